"""Entries go only for files that are certainly lost: not for disks that are not mounted, and not by another name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table

import icesize
from icesize.environment import Environment
from icesize.maintenance.verify import repair as repair_module
from icesize.maintenance.verify.repair import RepairReport, repair
from icesize.parquet.files.data_file import NewDataFile
from icesize.storage.stores import Listed
from icesize.table.state.handle import TableHandle
from icesize.table.storage.listing import list_files
from tests.support.jobs import context_of
from tests.support.tables import ids_of, live_paths, local, make_table, request_on, run, small_files, write


def repaired(catalog: SqlCatalog, lost_files: int | None = None) -> RepairReport:
    return icesize.open(None, "db.t", catalog=catalog).repair(lost_files=lost_files)


def of_many_files(catalog: SqlCatalog, **properties: str) -> Table:
    """Twenty files of partition `a`, and one of `b`."""
    table = make_table(catalog, properties=properties)
    files = [write(table, [number]) for number in range(20)]
    run(catalog, request_on(table, [*files, write(table, [20], "b")]), table)
    return catalog.load_table("db.t")


def test_one_lost_file_of_many(lake: SqlCatalog) -> None:
    """Its entry goes without a confirmation; a file that is alone in its directory does not."""
    table = of_many_files(lake)
    [alone] = small_files(table, "b")
    one = small_files(table, "a")[0]
    for file in (one, alone):
        local(file.path).unlink()
    report = repaired(lake)
    assert [(each.kind, each.findings) for each in report.repairs] == [("missing files", 1)]
    assert report.rows_lost == {"kind=a": 1}
    [refused] = report.refused
    assert (refused.path, "which may not be mounted" in refused.advice) == (alone.path, True)
    assert repaired(lake, lost_files=2).repairs == ()  # one is missing now
    assert repaired(lake, lost_files=1).rows_lost == {"kind=b": 1}
    assert len(live_paths(lake.load_table("db.t"))) == 19


def test_a_file_that_is_there_again_before_the_commit(lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """All missing files are looked up again directly before the commit: if one came back, no entry goes."""
    table = of_many_files(lake)
    back, lost = (local(file.path) for file in small_files(table, "a")[:2])
    content, listed = back.read_bytes(), list[bool]()
    for path in (back, lost):
        path.unlink()

    def lister(io: FileIO, place: str) -> Iterator[Listed]:
        yield from list_files(io, place)
        listed.append(True)

    def clock() -> float:
        """The first time after the listing is asked for when all missing files have been looked up once."""
        if listed:
            back.write_bytes(content)
        return 0.0

    context = context_of(TableHandle(lake, ("db", "t")), Environment(monotonic=clock))
    monkeypatch.setattr(repair_module, "list_files", lister)
    report = repair(context)
    assert (report.repairs, report.rows_lost, report.snapshot_ids) == ((), {}, ())
    assert {finding.advice for finding in report.refused} == {
        "1 of 2 missing files were there again before the commit: the storage does not respond reliably; run `icesize "
        "repair` again"
    }
    assert len(live_paths(lake.load_table("db.t"))) == 21
    assert repaired(lake).rows_lost == {"kind=a": 1}


@pytest.mark.parametrize("beside", ["nothing", "an imported file", "a file listed twice"])
def test_a_disk_that_is_not_mounted(lake: SqlCatalog, tmp_path: Path, beside: str) -> None:
    """Whatever else the table lists: no entry goes, and all rows are there when the disk is back."""
    disk = tmp_path / "disk"
    table = of_many_files(lake, **{"write.data.path": f"file://{disk}/t"})
    if beside == "an imported file":
        path = tmp_path / "import.parquet"
        local(write(table, [99]).path).rename(path)
        run(lake, request_on(table, [imported(table, f"file://{path}")]), table)
    elif beside == "a file listed twice":
        run(lake, request_on(table, [imported(table, small_files(table, "a")[0].path)]), table)
    table, before = lake.load_table("db.t"), ids_of(lake)
    disk.rename(tmp_path / "elsewhere")
    disk.mkdir()
    report = repaired(lake)
    assert report.rows_lost == {}
    assert {finding.rule for finding in report.refused if "--lost-files 21" in finding.advice} == {"missing files"}
    disk.rmdir()
    (tmp_path / "elsewhere").rename(disk)
    assert sorted(set(ids_of(lake))) == sorted(set(before))


def imported(table: Table, path: str, row: int = 1) -> NewDataFile:
    """An entry of a file that is there already, as `add_files` commits it."""
    return replace(write(table, [row]), path=path, size_bytes=local(path).stat().st_size)


@pytest.mark.parametrize(
    "name", ["report#1.parquet", "a?b.parquet", "a%20b c.parquet", "ü€+;&.parquet", "x#/y.parquet"]
)
def test_odd_names(lake: SqlCatalog, tmp_path: Path, name: str) -> None:
    """Spark's `add_files` takes files of any name: they are verified, repaired and compacted like others."""
    table = of_many_files(lake)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    for other in {name.partition("#")[0].partition("?")[0], unquote(name)}:  # names that URL parsers make of it
        if not (tmp_path / other).exists():
            pq.write_table(pa.table({"id": [0]}), tmp_path / other)
    local(write(table, [99]).path).rename(path)
    file = imported(table, f"file://{path}", 99)
    run(lake, request_on(table, [file]), table)
    sized = icesize.open(None, "db.t", catalog=lake)
    assert sized.verify(deep=True).findings == ()
    assert repaired(lake).repairs == ()
    sized.compact()
    assert file.path not in live_paths(lake.load_table("db.t"))
    assert 99 in ids_of(lake)
