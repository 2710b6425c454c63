"""Files that were written long ago and are not committed yet: orphan cleanup may have taken them for its own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from icesize.clock import Stopwatch
from icesize.errors import RewriteFailed
from icesize.table.catalog.access_errors import readable
from icesize.table.state.handle import TableHandle

LONG_RUN_SECONDS = 12 * 3600
"""Half of the least age at which orphan cleanup, ours and Iceberg's, takes a file: what runs shorter need not look, and
a commit that looks has hours left for its attempts."""
_THREADS = 16


def check_still_there(handle: TableHandle, paths: Sequence[str], watch: Stopwatch) -> None:
    """Looks for files written by a run that took long; `watch` is its clock.

    Raises RewriteFailed when one is gone: a commit that names it would make the table unreadable.
    """
    watch.lap("check")
    if watch.seconds["total"] < LONG_RUN_SECONDS:
        return
    table = handle.name
    with readable(table), ThreadPoolExecutor(_THREADS) as pool:
        # the credentials that the files were written with have ended by now
        io = handle.load().table.io
        there = list(pool.map(lambda path: io.new_input(path).exists(), paths))
    gone = [path for path, exists in zip(paths, there, strict=True) if not exists]
    if gone:
        hours = watch.seconds["total"] / 3600
        raise RewriteFailed(
            f"Cannot commit to '{table}': {len(gone)} of {len(paths)} files written for it are gone, {gone[0]} is one; "
            f"this took {hours:.0f} h, and orphan cleanup took them: it must spare files for longer than that "
            "('older-than'). Nothing is visible; run it again",
            table=table,
            gone=tuple(gone),
        )
