"""Merges, clusterings and upserts while others delete, rewrite, roll back and expire: rows and row ids are exact."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.beside_others import play

SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.engine) for seed in range(4, 16))]
SEEDS += [pytest.param(seed, marks=pytest.mark.slow) for seed in range(16, 400)]


@pytest.mark.parametrize("seed", SEEDS)
def test_any_history_keeps_rows_and_row_ids(seed: int) -> None:
    """Each snapshot of a merge has the rows of the one before it, whatever others did since the files were read."""
    assert play(seed).total() >= 2, "each of the two operations is counted"


@pytest.mark.engine
def test_histories_reach_what_they_are_for() -> None:
    """Some of them commit merges, carry deletes over to new files, and drop merges."""
    seen = sum((play(seed) for seed in range(1_000, 1_008)), Counter[str]())
    assert seen["committed"] > 3
    assert seen["carried"] > 1
    assert any(what.startswith("dropped") for what in seen)
