"""Groups that are rewritten in threads of this process: what stops them, and what they stop."""

from __future__ import annotations

import threading

import pytest

from icesize.parquet.files.data_file import MergeFailure
from icesize.parquet.rewriting.threads import rewrite_in_threads
from icesize.planning.files import PartitionKey
from icesize.planning.plan import MergeTask

GROUPS = {number: MergeTask((), PartitionKey(0)) for number in range(100)}


def test_error_that_nobody_foresaw_is_no_cancellation() -> None:
    """It is raised, groups that wait are not begun, and the event of the caller stays as it was: others look at it."""
    cancelled, failed = threading.Event(), threading.Event()
    kept: list[int] = []

    def rewrite(number: int, group: MergeTask) -> str:
        if number == 0:
            failed.set()
            raise ZeroDivisionError
        failed.wait()
        return "done" if cancelled.wait(0.01) else ""

    def keep(number: int, result: str | MergeFailure) -> None:
        assert result == ""
        kept.append(number)

    with pytest.raises(ZeroDivisionError):
        rewrite_in_threads(GROUPS, rewrite, keep, cancelled=cancelled, threads=2)
    assert len(kept) < len(GROUPS) - 1
    assert not cancelled.is_set()


def test_nothing_begins_once_it_is_cancelled() -> None:
    """Groups that were not begun by then are not heard of."""
    cancelled = threading.Event()
    kept: list[int] = []

    def keep(number: int, result: int | MergeFailure) -> None:
        kept.append(number)
        cancelled.set()

    rewrite_in_threads(GROUPS, lambda number, group: number, keep, cancelled=cancelled, threads=1)
    assert kept == [0]
