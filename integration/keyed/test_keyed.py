"""Twelve random histories of tables with upserts; `python -m integration.keyed` runs more."""

from __future__ import annotations

from collections import Counter

from icesize import failpoints
from integration.keyed.covering import case_of, pairs
from integration.keyed.history import POINTS, run

HISTORIES = 12


def test_random_histories_end_in_the_rows_of_their_events() -> None:
    """The rows are those of the events through replays, crashes, lost answers, late events and other writers."""
    reached = Counter[str]()
    for seed in range(HISTORIES):
        reached += run(seed).reached
    assert set(POINTS) <= set(reached) <= set(failpoints.POINTS)


def test_the_list_of_histories_has_each_pair_of_steps_in_both_orders() -> None:
    """Twelve histories of each kind of table have all pairs; the upgrade to v3 needs a table of format v2."""
    found = pairs(case_of(number).steps for number in range(48))
    assert min(found.values()) >= 2
    for kind in range(4):
        of_kind = pairs(case_of(number).steps for number in range(kind, 48, 4))
        assert {pair for pair, times in of_kind.items() if not times and "upgrade" not in pair} == set()


def test_histories_of_the_list() -> None:
    """One of each kind of table; `python -m integration.keyed --cover` runs more."""
    for number in range(4):
        assert len(run(number, case=case_of(number)).steps) > 5
