"""A minute of merges of files by the writers of this environment, and by others whose small files are checked in."""

from __future__ import annotations

import time
from pathlib import Path

from integration.writers.__main__ import Tally
from integration.writers.cases import PATHS, case_of
from integration.writers.merging import Lake, run
from integration.writers.pool import HERE, checked_in, make_pool

SECONDS = 40


def test_files_of_many_writers_keep_their_rows(tmp_path: Path) -> None:
    """Every reader finds the rows of the input files in the merged one, by every path and with deletes."""
    end = time.monotonic() + SECONDS
    made, missing = make_pool(tmp_path / "pool", HERE, seed=0, each=20)
    tally, lake, seed = Tally(), Lake.create(tmp_path), 0
    made += checked_in()
    while time.monotonic() < end:
        case = case_of(seed, made)
        tally.add(case, run(lake, case))
        seed += 1
    tally.print(missing, full=False)
    assert tally.failures == []
    assert missing == {}
    reached = {path for found in tally.cells.values() for path, _ in found}
    assert reached == set(PATHS)
    assert {"whole", "columns encoded again", "decoded"} <= set(tally.moved)
