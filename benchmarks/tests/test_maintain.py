"""The benchmark `maintain`: its tables hold the rows that it expects, and a small run of it finds nothing wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from benchmarks.catalog_tables import FILE_BYTES, Shape, make
from benchmarks.linked_files import LinkedFiles, Rows
from benchmarks.maintain import bound, main

NOW_MS = 1_767_225_600_000


@pytest.mark.parametrize("targets", [1, 2])
def test_pyiceberg_reads_the_rows_of_linked_files(tmp_path: Path, targets: int) -> None:
    """Deleted ones left out; each file of a partition has the same bytes, and the manifests say the truth of them."""
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/cat.db", warehouse=tmp_path.as_uri())
    (tmp_path / "linked").mkdir()
    contents = LinkedFiles(tmp_path / "linked", targets)
    tables = [Shape(40, 10, 30, partitions=3), Shape(2, 3, 0, FILE_BYTES[2])]
    for name in make(catalog, tmp_path, tables, NOW_MS, contents=contents):
        table = catalog.load_table(name.removeprefix("c."))
        positions = table.scan().to_arrow()["c1"]
        assert Rows(len(positions), pc.sum(positions).as_py()) == contents.rows[table.location()]
        assert icesize.open(None, name, catalog=catalog).verify(deep=True).is_valid
    assert {os.stat(path).st_nlink for path in (tmp_path / "linked").iterdir()} == {14, 15, 3}
    catalog.close()


def test_no_choice_within_the_budget_exceeds_the_bound() -> None:
    """The bound takes the jobs that save most per byte, and a part of the last one."""
    assert bound([(10, 100), (9, 30), (1, 100)], 80) == 9 + 5
    assert bound([(10, 100), (9, 30)], 1_000) == 19


@pytest.mark.engine
def test_a_small_catalog_is_maintained_after_kills(capfd: pytest.CaptureFixture[str]) -> None:
    """`main` raises if a row is lost, a table is not valid, or a file is left over that icesize did not write."""
    sizes = "--tables 4 --large 1 --large-files 90 --large-deletes 40 --most-snapshots 20 --with-deletes 1"
    result = main([*sizes.split(), "--targets", "2", "--budget-share", "1", "--kills", "1", "--json"])
    assert (result["kills"], result["tables_not_started"]) == (["planned@4"], 0)
    assert capfd.readouterr().out.startswith('{"benchmark": "maintain"')
