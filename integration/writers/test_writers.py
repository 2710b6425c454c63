"""A hundred merges of files by the writers of this environment, and by others whose small files are checked in."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from integration.writers.__main__ import Tally
from integration.writers.cases import PATHS, Case, Cases
from integration.writers.in_spark import Reader
from integration.writers.merging import Lake, run
from integration.writers.pool import HERE, Made, checked_in, make_pool
from integration.writers.ways import limits_of
from tests.support.footers import with_other_bounds

CASES = 100
"""A number and not a time, so that a faster machine meets the same cases."""


def test_files_of_many_writers_keep_their_rows(tmp_path: Path) -> None:
    """Every reader finds the rows of the input files in the merged one, by every path and with deletes."""
    made, missing = make_pool(tmp_path / "pool", HERE, seed=0, each=24)
    cases, tally, lake = Cases((*made, *checked_in())), Tally(), Lake.create(tmp_path)
    for seed in range(CASES):
        case = cases.of(seed)
        tally.add(case, run(lake, case))
    tally.print(cases, missing, full=False)
    assert tally.failures == []
    assert missing == {}
    assert {cell.path for cell in tally.cells} == set(PATHS)


COMPARED = [seed for seed in range(300) if not limits_of("decode", seed).compared_chunk_bytes]
"""Seeds whose cases compare least and greatest values in small files."""


@pytest.mark.parametrize("path", ["decode", "absorb", "cluster"])
def test_a_third_of_the_cases_compare_least_and_greatest_values(tmp_path: Path, path: str) -> None:
    """Files are small, so that a footer that lies about them would not be noticed by default limits."""
    assert 80 < len(COMPARED) < 120
    some = (file for file in checked_in() if file.rows == 30 and file.writer in ("pyarrow-14", "pyarrow-21"))
    case = Case(COMPARED[0], tuple(lying(file, tmp_path) for file in some), path, "none")
    failure = run(Lake.create(tmp_path), case).failure
    assert failure is not None
    assert "column 'id' has another minimum or maximum" in failure


def lying(file: Made, folder: Path) -> Made:
    """The same file under a footer in which the greatest id is the least, too."""
    path = Path(shutil.copy(file.path, folder))
    with_other_bounds(path, file.columns.index("id"))
    return replace(file, path=str(path))


@dataclass
class Found(Reader):
    """A reader of whose tables it is known already what is wrong with their rows; "" stands for those of inputs."""

    spark: Any = None
    wrong: Mapping[str, str] = field(default_factory=dict)

    def _wrong(self, table: str, wanted: list[str], vectorized: str) -> str:
        return self.wrong.get(table, self.wrong[""])


@pytest.mark.parametrize(
    ("merged", "inputs", "failures"),
    [
        ("", "fails: none", 0),
        ("fails: a", "fails: b", 0),
        ("fails: a", "", 2),
        ("fails: a", "reads other rows: b", 2),
        ("reads other rows: a", "fails: b", 2),
        ("reads other rows: a", "reads other rows: a", 2),
    ],
)
def test_spark_may_only_fail_where_it_fails_for_an_input(
    tmp_path: Path, merged: str, inputs: str, failures: int
) -> None:
    """Other rows in a merged table are a failure in both modes, whatever Spark makes of its input files."""
    lake, file = Lake.create(tmp_path), checked_in()[0]
    lake.kept.append((Case(0, (file,), "decode", "none"), "db.merged", []))
    found, refused = Found(wrong={"db.merged": merged, "": inputs}).read(lake)
    assert len(found) == failures
    assert refused.total() == (2 if merged and not failures else 0)


def test_seeds_aim_at_all_cells_in_turn() -> None:
    """Three times as many seeds as there are cells aim at all, and the case of a seed is the same in another run."""
    files = tuple(checked_in())
    cases, again = Cases(files), Cases(files)
    seeds = range(700, 700 + 3 * len(cases.cells))
    assert {cases.aim(seed) for seed in seeds} == set(cases.cells)
    for seed in seeds[::3]:
        case, cell = cases.of(seed), cases.aim(seed)
        assert (case.path, case.deletes) == (cell.path, cell.deletes)
        assert (case.files[0].writer, case.files[0].encoding) == (cell.writer, cell.encoding)
        assert case == again.of(seed)


def test_files_of_one_name_are_refused() -> None:
    """Two files of one name would be one path in a merge, so that the deletes of one would be lost."""
    files = checked_in()
    with pytest.raises(ValueError, match="two have one name"):
        Cases((*files, files[0]))
