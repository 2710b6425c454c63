"""Budgets of bytes and seconds."""

from __future__ import annotations

import pytest

from icesize.maintenance.rounds import Budget, RoundsEnd, carried_out
from icesize.planning.plan import MergeTask
from icesize.report import Report


def test_no_time_is_left_after_the_end() -> None:
    """A budget counts down to nothing, and one without a limit stays."""
    assert [Budget(seconds=10).after(seconds) for seconds in (4, 10, 11)] == [Budget(seconds=s) for s in (6, 0, 0)]
    assert Budget(5).after(100) == Budget(5)


def test_rounds_cannot_end_in_the_first() -> None:
    """There is no report of earlier rounds then, so the caller gets the reason."""

    def ended(groups: tuple[MergeTask, ...], is_first: bool) -> Report:
        raise RoundsEnd("no time")

    with pytest.raises(RoundsEnd, match="no time"):
        carried_out((), None, ended, Report.together)
