"""Merges of which one input file is damaged anywhere: they are refused by an error of icesize's, or read as the damaged
file does; they come to an end, take little memory, and no row of another file is touched."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.children import run_child

QUICK = 200
SLOW = 2_500


def survey(tmp_path: Path, first: int, count: int) -> Counter[str]:
    """What became of so many damages, each told by its number; tried in a process of its own, which readers may end."""
    progress = tmp_path / "progress"
    try:
        found = run_child("tests.support.damaged_inputs", str(progress), str(first), str(count))
    except RuntimeError as error:
        raise AssertionError(f"the process ended at {progress.read_text()}: {error}") from error
    assert found["problems"] == []
    return Counter(found["outcomes"])


def ways(outcomes: Counter[str]) -> set[str]:
    """The first words of what became of damages."""
    return {outcome.split(",")[0] for outcome in outcomes}


@pytest.mark.engine
def test_damage_spreads_to_no_other_row(tmp_path: Path) -> None:
    """Of each kind in each part of a file, by whatever way its columns go."""
    outcomes = survey(tmp_path, 0, QUICK)
    assert outcomes.total() == QUICK
    assert ways(outcomes) == {"refused", "decoded", "copied"}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(8))
def test_twenty_thousand_damages_spread_to_no_other_row(tmp_path: Path, number: int) -> None:
    """The same with more of them; `python -m tests.support.damaged_inputs PROGRESS NUMBER 1` repeats a single one."""
    outcomes = survey(tmp_path, QUICK + number * SLOW, SLOW)
    assert outcomes.total() == SLOW
    assert min(outcomes[what] for what in ("refused", "copied, as the damaged file reads")) > SLOW / 50
