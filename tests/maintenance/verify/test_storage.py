"""Files of kept snapshots that storage lacks, or has with another size, are found by one listing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import SetStatisticsUpdate

import icesize
from icesize.errors import ArgumentError, TableError
from icesize.maintenance.verify import verification
from icesize.maintenance.verify.rules import LOST, Found, Severity
from icesize.maintenance.verify.storage import StorageCheck, Stored
from icesize.maintenance.verify.verification import (
    MOST_FINDINGS,
    Findings,
    Scope,
    Verification,
    verify,
    without_expired,
)
from icesize.storage.stores import Listed
from icesize.table.catalog.access_errors import readable
from icesize.table.manifests.file_columns import read_facts
from icesize.table.manifests.manifest_lists import manifests_in
from icesize.table.storage import listing
from icesize.table.storage.inventory import Inventory
from icesize.table.storage.listing import list_files
from tests.support.inventories import inventory_file
from tests.support.tables import CountingIO, append, compact, expire, live_paths, local, make_table, small_files

LISTING = Scope(list_files)


def three_snapshots(catalog: SqlCatalog) -> Table:
    """Two appends and a merge of their files: the older snapshots need files that the newest one does not."""
    make_table(catalog)
    append(catalog, [1])
    append(catalog, [2])
    return compact(catalog)


def broken(verification: Verification) -> list[tuple[str, str, str]]:
    return [(finding.rule, finding.path, finding.detail) for finding in verification.findings]


def verified(table: Table, scope: Scope = LISTING) -> Verification:
    return verify("t", table.metadata, table.io, scope)


def test_files_that_are_gone_or_have_another_size(lake: SqlCatalog) -> None:
    """Of the newest snapshot and of older ones: data files, a manifest and a manifest list; each is reported once."""
    table = three_snapshots(lake)
    first, second, newest = table.metadata.snapshots
    assert verified(table).findings == ()
    specs = table.metadata.specs()
    (old, _), (new,) = ([f for m in manifests_in(s, table.io, specs) for f in read_facts(table.io, m).paths()]
                        for s in (second, newest))  # fmt: skip
    local(new).write_bytes(b"x" * 7)
    local(old).unlink()
    size = small_files(table)[0].size_bytes
    assert set(broken(verified(table))) == {
        ("file sizes", new, f"it has 7 bytes, by the metadata {size:,}"),
        ("missing files", old, "it is not there"),
    }
    assert [f.rule for f in verified(table, Scope(list_files, newest_only=True)).findings] == ["file sizes"]
    local(first.manifest_list).unlink()
    verification = icesize.open(None, "db.t", catalog=lake).verify()
    assert ("missing files", first.manifest_list, "it is not there") in broken(verification)
    assert verification.snapshots == 3
    assert all(finding.advice for finding in verification.findings)


def test_a_damaged_manifest_list_of_an_older_snapshot(lake: SqlCatalog) -> None:
    """It is a finding, and the other snapshots are verified nevertheless."""
    table = three_snapshots(lake)
    path = table.metadata.snapshots[0].manifest_list
    local(path).write_bytes(b"not Avro")
    ((rule, where, detail),) = broken(verified(table))
    assert (rule, where) == ("damaged metadata", path)
    assert "it is not an Avro file" in detail


@pytest.mark.parametrize("what", ["manifest", "list"])
def test_metadata_without_field_ids(lake: SqlCatalog, what: str) -> None:
    """The advice says that the file is whole, because a backup of it would not help."""
    make_table(lake)
    table = append(lake, [1])
    head = table.metadata.snapshots[-1]
    path = (
        head.manifest_list if what == "list" else manifests_in(head, table.io, table.metadata.specs())[0].manifest_path
    )
    local(path).write_bytes(local(path).read_bytes().replace(b'"field-id"', b'"field_no"'))
    (finding,) = verified(table).findings
    assert (finding.rule, finding.path) == ("damaged metadata", path)
    assert finding.advice.startswith("The file is whole, but its writer left out the field ids")


@pytest.mark.parametrize("what", ["manifest", "list"])
def test_metadata_of_the_newest_snapshot_that_cannot_be_read(lake: SqlCatalog, what: str) -> None:
    """A missing manifest is one finding; totals that lack it are none."""
    make_table(lake)
    append(lake, [1])
    table = append(lake, [2])
    head = table.metadata.snapshots[-1]
    path = (
        head.manifest_list if what == "list" else manifests_in(head, table.io, table.metadata.specs())[0].manifest_path
    )
    local(path).unlink()
    assert broken(verified(table)) == [("missing files", path, "it is not there")]
    local(path).write_bytes(b"Obj")
    assert next((rule, where) for rule, where, _ in broken(verified(table))) == ("damaged metadata", path)


def test_no_request_for_a_listed_file(lake: SqlCatalog) -> None:
    """Storage is asked for metadata only, each file once, although three snapshots name the data files."""
    three_snapshots(lake)
    table, io = lake.load_table("db.t"), CountingIO()
    check = StorageCheck(io, stored_in(table))
    assert list(check.run(table.metadata, table.metadata.snapshots, lambda m: read_facts(io, m))) == []
    assert check.notes == []
    assert len(io.opened) == len(set(io.opened)) == 3 + len(io.manifests)
    assert check.files == len(io.opened) + 3


def stored_in(table: Table, without: str = "", complete: bool = True) -> Stored:
    listed = (file for file in list_files(table.io, table.location()) if not without or without not in file.location)
    return Stored.of(listed, [table.location()], complete, lambda count: None)


class Remote(PyArrowFileIO):
    """Local files as an object store shows them: requests find them, and the operating system does not."""

    def __init__(self) -> None:
        super().__init__({})
        self.fs_by_scheme = lambda scheme, authority: LocalFileSystem()

    def parse(self, location: str, properties: Any = None) -> tuple[str, str, str]:
        return "gs", "bucket", location.removeprefix("file://")

    parse_location = parse  # type: ignore[assignment]


def test_lookups_are_bounded(lake: SqlCatalog) -> None:
    """Of many remote files that are not listed, few are looked up: a listing decides on the others, no inventory does.

    A lookup of a local file costs nothing, and a listing does not follow links: all of them are looked up.
    """
    make_table(lake)
    for number in range(4):
        append(lake, [number])
    table = lake.load_table("db.t")
    local(live_paths(table)[0]).unlink()

    def run(io: FileIO, complete: bool, most: int) -> tuple[list[str], list[str]]:
        check = StorageCheck(io, stored_in(table, ".parquet", complete), most)
        found = check.run(table.metadata, table.metadata.snapshots[-1:], lambda m: read_facts(table.io, m))
        return [each.detail for each in found], check.notes

    assert run(Remote(), True, 4) == run(table.io, True, 0) == (["it is not there"], [])
    assert len(run(Remote(), True, 1)[0]) >= 3
    details, (note,) = run(Remote(), False, 0)
    assert (details, note.partition(":")[0]) == ([], "4 files were not looked up")


def test_a_linked_folder(lake: SqlCatalog, tmp_path: Path) -> None:
    """A listing does not follow links; files behind one are there, however many they are."""
    table = three_snapshots(lake)
    data = local(table.location()) / "data"
    data.rename(tmp_path / "other-disk")
    data.symlink_to(tmp_path / "other-disk")
    check = StorageCheck(table.io, stored_in(table), most_lookups=0)
    assert list(check.run(table.metadata, table.metadata.snapshots, lambda m: read_facts(table.io, m))) == []


def test_files_outside_of_the_listed_folders(lake: SqlCatalog, tmp_path: Path) -> None:
    """They are looked up one by one, and a note says so; `write.data.path` is listed, too, once it is there."""
    outside = f"file://{tmp_path}/elsewhere"
    make_table(lake, properties={"write.data.path": outside})
    table = append(lake, [1])
    assert (verified(table).findings, verified(table).notes) == ((), ())
    with table.transaction() as change:
        change.remove_properties("write.data.path")
    table = lake.load_table("db.t")
    assert verified(table).notes == ("1 files outside of the listed directories were looked up one by one",)
    with table.transaction() as change:
        change.set_properties({"write.data.path": f"{outside}/not/yet"})
    assert verified(lake.load_table("db.t")).findings == ()


def test_storage_that_refuses_the_listing(lake: SqlCatalog) -> None:
    """The metadata are verified, and a note has the reason."""
    table = three_snapshots(lake)

    def refused(io: FileIO, location: str) -> Iterator[Listed]:
        raise TableError("Cannot list it: no right")

    verification = verified(table, Scope(refused))
    assert (verification.is_valid, verification.snapshots) == (True, 0)
    assert verification.notes == ("the files were not compared with the storage: Cannot list it: no right",)


def test_statistics_that_are_gone(lake: SqlCatalog) -> None:
    """Readers work without them."""
    table = three_snapshots(lake)
    path = f"{table.location()}/metadata/statistics.puffin"
    head = table.metadata.snapshots[-1].snapshot_id
    local(path).write_bytes(b"PFA1")
    file = StatisticsFile(
        snapshot_id=head, statistics_path=path, file_size_in_bytes=4, file_footer_size_in_bytes=1, blob_metadata=[],
    )  # fmt: skip
    lake.commit_table(table, (), (SetStatisticsUpdate(snapshot_id=head, statistics=file),))
    table = lake.load_table("db.t")
    assert verified(table).findings == ()
    local(path).unlink()
    (finding,) = verified(table).findings
    assert (finding.rule, finding.severity, verified(table).is_valid) == ("missing statistics", Severity.WARNING, True)


def test_findings_are_bounded() -> None:
    """If everything is gone, the first findings of the rule are listed, and the others are counted."""
    missing = [Found(LOST, str(number), "gone") for number in range(MOST_FINDINGS + 5)]
    found = Findings()
    found.add(missing)
    assert len(found.found) == MOST_FINDINGS
    assert found.notes == ["missing files: the first 1,000 of 1,005 findings are listed"]


def test_the_bound_holds_for_all_phases() -> None:
    """Findings of one rule that several phases add are listed up to the bound, with one note about all of them."""
    found = Findings(2)
    for phase in "abc":
        found.add(Found(LOST, f"{phase}{number}", "gone") for number in range(3))
    assert [each.path for each in found.found] == ["a0", "a1"]
    assert found.notes == ["missing files: the first 2 of 9 findings are listed"]


def test_files_beyond_the_bound_are_reported_once(lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest and data files that the listing lacks are not reported again by a verification that reads files."""
    table = three_snapshots(lake)
    lists = [manifests_in(each, table.io, table.metadata.specs()) for each in table.metadata.snapshots]
    gone = {lists[0][0].manifest_path, lists[1][-1].manifest_path, *live_paths(table)}
    for path in gone:
        local(path).unlink()
    every = {finding.path for finding in verified(table, Scope(list_files, deep=True)).findings}
    monkeypatch.setattr(verification, "MOST_FINDINGS", 1)
    bounded = verified(table, Scope(list_files, deep=True))
    assert every == gone
    assert [finding.rule for finding in bounded.findings] == ["missing files"]
    assert bounded.notes == (f"missing files: the first 1 of {len(gone)} findings are listed",)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_an_inventory_instead_of_a_listing(lake: SqlCatalog, tmp_path: Path, kind: str) -> None:
    """It finds the same; newer files, which it lacks, are looked up."""
    table = three_snapshots(lake)
    file = inventory_file(tmp_path, list(list_files(table.io, table.location())), kind)
    sized = icesize.open(None, "db.t", catalog=lake)
    assert set(Inventory((str(file),))(table.io, table.location())) == set(list_files(table.io, table.location()))
    assert sized.verify(inventory=file).stored_files == sized.verify().stored_files
    known = set(live_paths(table))
    table = append(lake, [3])
    assert sized.verify(inventory=[file]).findings == ()
    (gone,) = set(live_paths(table)) - known
    local(gone).unlink()
    assert [finding.path for finding in sized.verify(inventory=file).findings] == [gone]


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        ("", ['"lake","t/a%2Bb+c.parquet","7","TIME"', '"lake","t2/d","1","TIME"']),
        ("", ['"lake","t/a%2Bb+c.parquet","v","true","false","7","TIME","x"',
              '"lake","t/old","v","false","false","1","TIME","x"', '"lake","t/gone","v","true","true","","TIME","x"']),
        ("Key, Bucket, LastModifiedDate, Size",
         ["t/a%2Bb+c.parquet,lake,TIME,7", "t//e,lake,TIME,7", "t/f/,lake,TIME,0"]),
    ],
)  # fmt: skip
def test_csv_of_s3_inventory(tmp_path: Path, header: str, rows: list[str]) -> None:
    """With and without a header, of current objects and of versions; what is no file of the table is left out."""
    file = tmp_path / "inventory.CSV"
    lines = [row.replace("TIME", "2026-01-31T12:00:00.000Z") for row in rows]
    file.write_text("\n".join([*([header] if header else []), *lines]) + "\n")
    found = list(Inventory((str(file),))(CountingIO(), "s3a://lake/t"))
    assert found == [Listed("s3a://lake/t/a+b c.parquet", 7, 1_769_860_800_000)]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"path": ["a"], "size": [1]}, "it has no column time"),
        ({"key": ["a"], "size": [1], "time": [1]}, "it has no column bucket"),
        ({"path": ["a"], "size": ["many"], "time": [1]}, "many"),
    ],
)
def test_inventories_that_cannot_be_read(tmp_path: Path, lake: SqlCatalog, table: dict[str, Any], why: str) -> None:
    """They are no reason to skip the comparison."""
    location = make_table(lake).location()
    append(lake, [1])
    file = tmp_path / "i.parquet"
    pq.write_table(pa.table(table | {"path": [f"{location}/data/a"]} if "path" in table else table), file)
    with pytest.raises(ArgumentError, match=why):
        icesize.open(None, "db.t", catalog=lake).verify(inventory=str(file))


def test_findings_about_files_of_snapshots_that_expired(lake: SqlCatalog) -> None:
    """Files that only expired snapshots needed are rightly gone; a finding about a file that is needed stays."""
    before = three_snapshots(lake)
    first, second, newest = before.metadata.snapshots
    (new,), old = ([f for m in manifests_in(s, before.io, {}) for f in read_facts(before.io, m).paths()]
                   for s in (newest, second))  # fmt: skip
    for path in (new, *old, first.manifest_list):
        local(path).unlink()
    expire(lake.load_table("db.t"))
    found = verified(before)
    assert {new, *old, first.manifest_list} <= {finding.path for finding in found.findings}
    left = without_expired(found, before, lake.load_table("db.t"))
    assert [finding.path for finding in left.findings] == [new]
    count = len(found.findings) - 1
    assert left.notes[-1] == f"{count} findings about files of snapshots that expired during this call are left out"
    assert without_expired(found, before, before) == found


def test_a_busy_table_with_a_finding_is_verified_once(lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots that expire during each verification do not start it again."""
    table = three_snapshots(lake)
    local(live_paths(table)[0]).unlink()
    listings = list[str]()

    def expiring(io: FileIO, location: str) -> Iterator[Listed]:
        listings.append(location)
        append(lake, [len(listings)])
        expire(lake.load_table("db.t"), keep=3)
        yield from list_files(io, location)

    monkeypatch.setattr(listing, "list_files", expiring)
    found = icesize.open(None, "db.t", catalog=lake).verify()
    assert {finding.rule for finding in found.findings} == {"missing files"}
    assert len(listings) == 1


def test_an_error_of_the_storage_is_no_expiry(lake: SqlCatalog) -> None:
    """The advice to run it again is only for a missing file; a defect of icesize stays what it is."""
    with pytest.raises(TableError) as failed, readable("t"):
        raise PermissionError("Unable to locate credentials")
    assert str(failed.value) == "Cannot read the history of 't': PermissionError: Unable to locate credentials"
    with pytest.raises(TableError, match="if snapshots expired during this call, run it again"), readable("t"):
        raise FileNotFoundError("m.avro")
    with pytest.raises(IndexError), readable("t"):
        raise IndexError("a defect")
