"""Rewrites groups of files and writes rows in threads of this process: for small groups, and without Spark.

Arrow decodes and encodes without holding Python's lock, so two threads keep two cores busy.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from icesize.concurrency import concurrently, workers
from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import MergeFailure, Results, Rewritten, Written
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import rewrite_failed
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.rewriting.absorb import NOTHING, Absorption, write_with
from icesize.parquet.rewriting.merge import merge
from icesize.planning.plan import MergeTask

G = TypeVar("G")
T = TypeVar("T")


def merge_in_threads(
    groups: Mapping[int, MergeTask],
    settings: WriteSettings,
    owner: Uncommitted,
    *,
    progress: Callable[[int], None] = lambda size_bytes: None,
) -> Results:
    """Merge groups in threads, and return the result of each by its number; a damaged input fails its own group only.

    `progress` is called with the bytes of each finished group, from several threads.
    """
    spare = (os.cpu_count() or 1) // max(1, len(groups))

    def work(number: int, group: MergeTask) -> Rewritten:
        return merge(group, settings, FileNames(owner.prefix, number, 0, owner), threads=spare)

    return results_in_threads(groups, work, progress)


def results_in_threads(
    groups: Mapping[int, MergeTask],
    rewrite: Callable[[int, MergeTask], Rewritten],
    progress: Callable[[int], None] = lambda size_bytes: None,
) -> Results:
    """Return the result of `rewrite(number, group)` for each group, by its number.

    The result is a failure if `rewrite` raises `RewriteFailed`. `progress` is that of `merge_in_threads`.
    """
    found: Results = {}

    def keep(number: int, result: Rewritten | MergeFailure) -> None:
        found[number] = result
        progress(groups[number].size_bytes)

    rewrite_in_threads(groups, rewrite, keep)
    return found


def rewrite_in_threads(
    groups: Mapping[int, G],
    rewrite: Callable[[int, G], T],
    keep: Callable[[int, T | MergeFailure], object],
    *,
    cancelled: threading.Event | None = None,
    threads: int | None = None,
) -> None:
    """Call `rewrite(number, group)` for each group, and `keep(number, result)` in the same thread.

    The result is a failure if `rewrite` raises `RewriteFailed`.

    `cancelled` is checked before each group: groups in progress are finished, and no others begin. The same happens if
    `rewrite` raises another error, which is raised. That error does not set `cancelled`, because other callers may
    check it too.
    """

    def work(number: int) -> None:
        if cancelled is not None and cancelled.is_set():
            return
        try:
            result: T | MergeFailure = rewrite(number, groups[number])
        except RewriteFailed as error:
            result = MergeFailure.of(error)
        keep(number, result)

    # a group may take as long as a hundred others, so no group waits for its result to be used
    for _ in concurrently(work, groups, min(threads or workers(), len(groups)), waiting=len(groups)):
        pass


def write_in_threads(
    parts: Sequence[pa.Table], settings: WriteSettings, owner: Uncommitted, absorption: Absorption = NOTHING
) -> Written:
    """Write each part in a thread of its own; a partition in only one part gets no more files than it needs.

    The n-th thread absorbs the files of `absorption` for writer n. Raises the errors of `rewrite_failed` and of
    `write_with`. By then, the `owner` has recorded the files that other parts have finished.
    """

    def write(number: int) -> Written:
        return write_with(absorption, number, [parts[number]], settings, FileNames(owner.prefix, number, 0, owner))

    with rewrite_failed("write the batch"):
        return Written.together(concurrently(write, range(len(parts)), len(parts)))
