"""Work on a row of items that runs ahead of whoever takes its results, in threads of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


class Ahead:
    """Maps functions over items as `map` does, results in the order of the items, and works on the next ones meanwhile.

    Without `threads` nothing is ahead, which is `map`. Call `close` in the end: no thread works on then.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="icesize-ahead") if threads else None
        self._threads = threads

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[A], B], items: Iterable[A], waiting: int = 1) -> Iterator[B]:
        """The results; what `function` raises is raised in place of the result. So many results more than there are
        threads are on their way or wait, which is all the memory it takes."""
        if (pool := self._pool) is None:
            return map(function, items)
        running = (pool.submit(function, item) for item in items)
        # begun at once, not when the first result is taken
        return _results(running, deque(islice(running, self._threads + waiting - 1)))


def _results(running: Iterator[Future[B]], waiting: deque[Future[B]]) -> Iterator[B]:
    for future in running:
        waiting.append(future)
        yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


NOT_AHEAD = Ahead(0)
"""Each result when it is asked for."""
