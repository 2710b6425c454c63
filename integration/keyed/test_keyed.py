"""Thirty random histories of tables with upserts; `python -m integration.keyed` runs more."""

from __future__ import annotations

from collections import Counter

from icesize import failpoints
from integration.keyed.history import POINTS, run

HISTORIES = 30


def test_random_histories_end_in_the_rows_of_their_events() -> None:
    """The rows are those of the events through replays, crashes, lost answers, late events and other writers."""
    reached = Counter[str]()
    for seed in range(HISTORIES):
        reached += run(seed).reached
    assert set(POINTS) <= set(reached) <= set(failpoints.POINTS)
