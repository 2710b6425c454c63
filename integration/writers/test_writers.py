"""A hundred merges of files by the writers of this environment, and by others whose small files are checked in."""

from __future__ import annotations

from pathlib import Path

from integration.writers.__main__ import Tally
from integration.writers.cases import PATHS, case_of
from integration.writers.merging import Lake, run
from integration.writers.pool import HERE, checked_in, make_pool

CASES = 100
"""A number and not a time, so that a faster machine meets the same cases."""


def test_files_of_many_writers_keep_their_rows(tmp_path: Path) -> None:
    """Every reader finds the rows of the input files in the merged one, by every path and with deletes."""
    made, missing = make_pool(tmp_path / "pool", HERE, seed=0, each=20)
    tally, lake = Tally(), Lake.create(tmp_path)
    made += checked_in()
    for seed in range(CASES):
        case = case_of(seed, made)
        tally.add(case, run(lake, case))
    tally.print(missing, full=False)
    assert tally.failures == []
    assert missing == {}
    reached = {path for found in tally.cells.values() for path, _ in found}
    assert reached == set(PATHS)
    assert {"whole", "columns encoded again", "decoded"} <= set(tally.moved)
