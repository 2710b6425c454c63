"""Runs functions over items in threads, with results in the order of the items.

All threads that wait for storage or for a catalog are created here.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from typing import TypeVar

from icesize.errors import ArgumentError

A = TypeVar("A")
B = TypeVar("B")

THREADS = "icesize"
"""Prefix of the names of all threads."""
IO_THREADS = 8
"""Requests to storage or to a catalog that run at the same time.

They hide the latency of object stores and stay far below the request limits of a prefix.
"""
REQUESTS = "ICESIZE_REQUESTS"
"""The variable of the most requests to object stores that one process has in flight; 64 if it is not set."""
TABLES_AT_ONCE = 2
"""Tables that a pass over a catalog maintains at the same time: one computes while the other waits."""


def workers() -> int:
    """Return the number of threads that rewrite files: at least two, so that one computes while the other waits."""
    return max(2, os.cpu_count() or 2)


def requests_at_once() -> int:
    """Return the most requests to object stores in flight: `REQUESTS`, or 64.

    400 files of 119 KiB at 30 ms per request: 2.1 s with 8 at once, 0.67 s with 32, 0.52 s with 64. Raises
    ArgumentError for a value that is no positive number.
    """
    value = os.environ.get(REQUESTS, "64")
    if not value.isdecimal() or int(value) < 1:
        raise ArgumentError(f"{REQUESTS} must be a positive number, not {value!r}")
    return int(value)


def concurrently(
    function: Callable[[A], B], items: Iterable[A], threads: int = IO_THREADS, waiting: int | None = None
) -> Iterator[B]:
    """Yield the results of `function` in the order of the items, from several threads.

    At most `threads` + `waiting` items are started before their results are used; `waiting` is 3 x `threads` by
    default. The first error is raised in place of its result. Then running calls finish, and no further call begins.
    The same happens if the caller stops early.
    """
    with closing(Ahead(max(1, threads))) as ahead:
        yield from ahead.map(function, items, 3 * threads if waiting is None else waiting)


def within_bytes(
    function: Callable[[A], B], items: Iterable[A], size_of: Callable[[A], int], most_bytes: int, threads: int
) -> Iterator[B]:
    """Yield the results of `function` in the order of the items, from several threads.

    Items that are in progress, or whose results wait, are at most `threads`, and have at most `most_bytes` by `size_of`
    unless there is only one. Errors are raised as by `concurrently`.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix=THREADS) as pool:
        waiting, held_bytes = deque[tuple[Future[B], int]](), 0
        try:
            for item in items:
                size_bytes = size_of(item)
                while waiting and (len(waiting) >= threads or held_bytes + size_bytes > most_bytes):
                    future, done_bytes = waiting.popleft()
                    yield future.result()
                    held_bytes -= done_bytes
                waiting.append((pool.submit(function, item), size_bytes))
                held_bytes += size_bytes
            while waiting:
                yield waiting.popleft()[0].result()
        finally:
            pool.shutdown(cancel_futures=True)


class Ahead:
    """Maps functions over items as `map` does, in the order of the items, but computes the next results in advance.

    With 0 `threads`, nothing is computed in advance, as in `map`. `close` stops the threads.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=THREADS) if threads else None
        self._threads = threads

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[A], B], items: Iterable[A], waiting: int = 1) -> Iterator[B]:
        """Return an iterator over the results. An error of `function` is raised in place of its result.

        At most `threads` + `waiting` results are in progress or unused at the same time, which bounds the memory.
        """
        if (pool := self._pool) is None:
            return map(function, items)
        running = (pool.submit(function, item) for item in items)
        # start now, not when the caller takes the first result
        return _results(running, deque(islice(running, self._threads + waiting - 1)))


def _results(running: Iterator[Future[B]], waiting: deque[Future[B]]) -> Iterator[B]:
    for future in running:
        waiting.append(future)
        yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


NOT_AHEAD = Ahead(0)
"""Computes each result only when it is requested."""
