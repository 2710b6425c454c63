"""The tables of the benchmark `catalog` are what they are meant to be."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from benchmarks.catalog import WELL
from benchmarks.catalog_tables import Shape, Sizes, make, shapes

NOW_MS = 1_767_225_600_000


def test_the_catalog_has_the_tables_that_are_asked_for() -> None:
    """A thousand tables with medians of about 300 and 200, ten large ones, one of many snapshots, 100 with deletes."""
    made = list(shapes(Sizes(1_000, 10, 50_000, 70_000, 100)))
    assert statistics.median(shape.files for shape in made) == pytest.approx(300, rel=0.02)
    assert statistics.median(shape.snapshots for shape in made) == pytest.approx(200, rel=0.02)
    assert [shape.files for shape in made].count(50_000) == 10
    assert max(shape.snapshots for shape in made) == 70_000
    assert sum(shape.deletes > 0 for shape in made) == 100


def test_pyiceberg_reads_the_tables(tmp_path: Path) -> None:
    """The manifests list the files, with the delete files that apply to them; the history is one line."""
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/cat.db", warehouse=tmp_path.as_uri())
    names = make(catalog, tmp_path, [Shape(100, 50, 25), WELL], NOW_MS)
    table = catalog.load_table(names[0].removeprefix("c."))
    tasks = list(table.scan().plan_files())
    assert (len(tasks), sum(len(task.delete_files) for task in tasks)) == (100, 25)
    assert [entry.snapshot_id for entry in table.history()] == [snapshot.snapshot_id for snapshot in table.snapshots()]
    surveyed = {each.table: each for each in icesize.scan("c", catalog=catalog).tables}
    found = surveyed[names[0]]
    assert (found.files, found.delete_files, found.snapshots) == (100, 25, 50)
    catalog.close()
