"""Budgets of bytes and seconds."""

from __future__ import annotations

from icesize.maintenance.rounds import Budget


def test_no_time_is_left_after_the_end() -> None:
    """A budget counts down to nothing, and one without a limit stays."""
    assert [Budget(seconds=10).after(seconds) for seconds in (4, 10, 11)] == [Budget(seconds=s) for s in (6, 0, 0)]
    assert Budget(5).after(100) == Budget(5)
