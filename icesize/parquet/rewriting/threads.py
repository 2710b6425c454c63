"""Merges groups and writes rows in threads of this process: for small ones, and where there is no Spark.

Arrow decodes and encodes without holding Python's lock, so two threads keep two cores busy.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.tasks import MergeOutcome, MergeTask
from icesize.parquet.rewriting.absorb import NOTHING, Absorption, Written, write_with
from icesize.parquet.rewriting.merge import merge

THREADS = "icesize-files"
"""How the threads are called that write files."""

Result = MergeOutcome | RewriteFailed | None
"""What became of a group: its outcome, why it failed, or None when the work was cancelled before it began."""


def merge_in_threads(
    groups: Sequence[MergeTask],
    settings: WriteSettings,
    prefix: str,
    *,
    cancelled: threading.Event | None = None,
    progress: Callable[[int], None] = lambda size_bytes: None,
    threads: int | None = None,
) -> list[Result]:
    """One result per group, in their order. A damaged input fails its own group only.

    `cancelled` is looked at before each group: those under way are finished. `progress` hears the bytes of each
    finished group, from several threads.
    """

    def work(number: int, task: MergeTask) -> MergeOutcome:
        return merge(task, settings, FileNames(prefix, number, 0))

    return rewrite_in_threads(groups, work, settings, cancelled=cancelled, progress=progress, threads=threads)


def rewrite_in_threads(
    groups: Sequence[MergeTask],
    rewrite: Callable[[int, MergeTask], MergeOutcome],
    settings: WriteSettings,
    *,
    cancelled: threading.Event | None = None,
    progress: Callable[[int], None] = lambda size_bytes: None,
    threads: int | None = None,
) -> list[Result]:
    """What `rewrite(number, group)` makes of each group, a `RewriteFailed` of its too, as `merge_in_threads` does."""
    stop = cancelled or threading.Event()

    def work(numbered: tuple[int, MergeTask]) -> Result:
        number, task = numbered
        if stop.is_set():
            return None
        try:
            return rewrite(number, task)
        except RewriteFailed as error:
            return error
        finally:
            progress(task.size_bytes)

    # at least two: while one group waits for storage the other computes
    workers = threads or max(2, os.cpu_count() or 2)
    with ThreadPoolExecutor(max(1, min(workers, len(groups))), thread_name_prefix=THREADS) as pool:
        running: list[Future[Result]] = []
        try:
            running.extend(pool.submit(work, numbered) for numbered in enumerate(groups))
            return [future.result() for future in running]
        except BaseException:
            stop.set()
            _discard(running, settings)
            raise


def write_in_threads(
    parts: Sequence[pa.Table], settings: WriteSettings, prefix: str, absorption: Absorption = NOTHING
) -> Written:
    """Write each part in a thread of its own; a partition that is in one part only gets no more files than it needs.

    The n-th thread takes along what `absorption` gives to writer n. On any error the files of all parts are removed,
    best effort, and it is raised: RewriteFailed for one of storage.
    """
    with ThreadPoolExecutor(max(1, len(parts)), thread_name_prefix=THREADS) as pool:
        running = [
            pool.submit(write_with, absorption, number, [part], settings, FileNames(prefix, number, 0))
            for number, part in enumerate(parts)
        ]
        try:
            return Written.together(future.result() for future in running)
        except BaseException as error:
            for future in running:
                if future.exception() is None:
                    for file in future.result().files:
                        settings.storage.delete(file.path)
            if isinstance(error, (OSError, pa.ArrowException)):
                raise RewriteFailed(
                    f"Cannot write the batch: {error}; what was written is removed", path=None
                ) from error
            raise


def _discard(running: Sequence[Future[Result]], settings: WriteSettings) -> None:
    """Wait for the groups under way, then remove what all of them wrote: nobody will commit it."""
    for future in running:
        if future.exception() is None and isinstance(outcome := future.result(), MergeOutcome):
            for file in outcome.files:
                settings.storage.delete(file.path)
