"""A minute of merges of files by the writers of this environment, and by others whose small files are checked in."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from integration.writers.__main__ import Tally
from integration.writers.cases import PATHS, case_of
from integration.writers.merging import Lake, run
from integration.writers.pool import HERE, Made, checked_in, make_pool

SECONDS = 40


def _is_left_out(file: Made) -> bool:
    """Files with ids on some levels only, and lists of a fixed size: `reading/projection.py` does not map them yet."""
    return file.ids == "partly" or any(map(pa.types.is_fixed_size_list, pq.read_schema(file.path).types))


def test_files_of_many_writers_keep_their_rows(tmp_path: Path) -> None:
    """Every reader finds the rows of the input files in the merged one, by every path and with deletes."""
    end = time.monotonic() + SECONDS
    made, missing = make_pool(tmp_path / "pool", HERE, seed=0, each=20)
    tally, lake, seed = Tally(), Lake.create(tmp_path), 0
    whole = [file for file in (*made, *checked_in()) if not _is_left_out(file)]
    while time.monotonic() < end:
        case = case_of(seed, whole)
        tally.add(case, run(lake, case))
        seed += 1
    tally.print(missing, full=False)
    assert tally.failures == []
    assert missing == {}
    reached = {path for found in tally.cells.values() for path, _ in found}
    assert reached == set(PATHS)
