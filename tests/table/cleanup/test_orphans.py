"""Orphan files are found, spared while in doubt, and deleted when it is certain that nobody needs them."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import StringType

from icesize.environment import ORPHANS_OLDER_THAN_MS, Environment
from icesize.errors import PolicyError, TableError
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.row_writer import write_rows
from icesize.table.cleanup.orphans import DAY_MS, OrphanReport, OrphanSearch
from icesize.table.cleanup.other_tables import OtherTables, other_tables, overlap
from icesize.table.records.ledger import stream_hash
from icesize.table.storage.bulk_delete import deleter
from icesize.table.storage.listing import Listed, list_files
from icesize.table.storage.ownership import check_spelling
from icesize.table.storage.reachable import Reachable
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
    SCHEMA,
    append,
    arrow,
    check,
    compact,
    data_files_on_disk,
    expire,
    ids_of,
    local,
    make_table,
    metadata_files_on_disk,
    referenced_metadata,
    request_on,
    run,
    small_files,
    spec_of,
    two_files,
    write,
)

HOUR_MS = 3_600_000
BEING_WRITTEN = "1 metadata file without a whole text left alone for three days: perhaps still being written"


@dataclass
class Search:
    """Searches table `db.t` of a catalog; `aged` sets the times of files, counted from the time they have now."""

    catalog: SqlCatalog
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> Table:
        return self.catalog.load_table("db.t")

    def now_ms(self) -> int:
        """A moment at which files that were written by this test are zero to few milliseconds old."""
        probe = local(self.table.location()).parent / "probe"
        probe.write_text("")
        return probe.stat().st_mtime_ns // 1_000_000

    def __call__(
        self, dry_run: bool = False, older_than_ms: int = ORPHANS_OLDER_THAN_MS, trust_location: bool = False
    ) -> OrphanReport:
        options: dict[str, Any] = {
            "name": "lake.db.t",
            "reload": lambda: self.table,
            "environment": Environment(now_ms=self.now_ms),
        }
        search = OrphanSearch(**{**options, **self.changes})
        return search.run(older_than_ms, dry_run, trust_location=trust_location)


@pytest.fixture
def search(lake: SqlCatalog) -> Search:
    return Search(lake)


def aged(location: str | Path, age_ms: int = 4 * DAY_MS) -> str:
    """Make a file look older than it is; returns its location."""
    path = local(str(location))
    now_ns = path.stat().st_mtime_ns
    os.utime(path, ns=(now_ns, now_ns - age_ms * 1_000_000))
    return f"file://{path}"


def leftover(table: Table, name: str, age_ms: int = 4 * DAY_MS, text: str = "left") -> str:
    """A file below the table's location that nobody needs."""
    path = local(table.location()) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return aged(path, age_ms)


def all_aged(table: Table) -> None:
    """Every file of the table looks old, so that only being needed protects it."""
    for path in local(table.location()).rglob("*"):
        if path.is_file():
            aged(path, 30 * DAY_MS)


def of_batch(table: Table, stream: str, batch: int, age_ms: int) -> str:
    """A file that icesize wrote for a batch and nobody committed."""
    settings = WriteSettings.of(table.metadata, table.io.properties, 2**29)
    (file,) = write_rows([arrow([1])], settings, FileNames(f"{stream_hash(stream)}-{batch}", 0, 7))
    return aged(file.path, age_ms)


def exists(location: str) -> bool:
    return local(location).is_file()


def test_what_nobody_needs_is_deleted_and_all_else_stays(lake: SqlCatalog, search: Search) -> None:
    """Leftovers of writes, merges and failed commits go; every file of every snapshot stays, however old."""
    table = two_files(lake)
    first, second = small_files(table)
    delete_rows(lake, first)
    delete_ids(lake, second, [99])
    append(lake, [3], "b")
    append(lake, [4], "b")
    table = compact(lake, "b")
    before = data_files_on_disk(table) | metadata_files_on_disk(table)
    leftovers = {write(table, [9]).path, leftover(table, "metadata/x-m0.avro"), leftover(table, "data/kind=a/x.crc")}
    all_aged(table)
    size = sum(local(each).stat().st_size for each in leftovers)
    report = search()
    assert (report.files_found, report.files_deleted, report.files_failed, report.young) == (3, 3, 0, 0)
    assert (report.bytes_found, report.bytes_deleted) == (size, size)
    assert set(report.examples) == leftovers
    assert not any(exists(each) for each in leftovers)
    assert data_files_on_disk(table) | metadata_files_on_disk(table) == before
    assert search().files_found == 0


def test_a_dry_run_deletes_and_writes_nothing(lake: SqlCatalog, search: Search) -> None:
    """The same is found, and the table's folder is untouched."""
    table = two_files(lake)
    left = leftover(table, "data/x.parquet")
    seen: list[set[Listed]] = [set(list_files(table.io, table.location()))]
    search.changes["deleter"] = lambda io: pytest.fail("nothing is to be deleted")
    report = search(dry_run=True)
    seen.append(set(list_files(table.io, table.location())))
    assert seen[0] == seen[1]
    assert (report.dry_run, report.files_found, report.files_deleted, report.examples) == (True, 1, 0, (left,))


def test_the_report_as_data_and_text(lake: SqlCatalog, search: Search) -> None:
    """Keys are stable and JSON-ready, and one line says what matters."""
    table = two_files(lake)
    left = leftover(table, "data/x.parquet")
    leftover(table, "data/y.parquet", HOUR_MS)
    report = search(dry_run=True)
    data = json.loads(json.dumps(report.to_dict()))
    assert set(data.pop("seconds")) == {"read", "list", "check", "total"}
    assert data == {
        "table": "lake.db.t",
        "dry_run": True,
        "older_than_ms": 3 * DAY_MS,
        "files_found": 1,
        "bytes_found": 4,
        "files_deleted": 0,
        "bytes_deleted": 0,
        "files_failed": 0,
        "young": 1,
        "passed": 0,
        "incomplete_uploads": None,
        "examples": [left],
        "notes": [],
    }
    found = OrphanReport("lake.db.t", files_found=1, bytes_found=4, young=2)
    assert str(found).splitlines() == [
        "lake.db.t: 1 orphan file, 4 B: delete with `icesize remove-orphan-files TABLE --delete`",
        "  2 files too young to be sure",
    ]
    done = OrphanReport("lake.db.t", dry_run=False, files_found=3, files_deleted=2, files_failed=1, notes=("a note",))
    assert str(done).splitlines() == [
        "lake.db.t: 3 orphan files, 0 B: 2 deleted", "! 1 file could not be deleted", "! a note",
    ]  # fmt: skip


def test_examples_are_few(lake: SqlCatalog, search: Search) -> None:
    """Twenty locations, in order, stand for all."""
    table = two_files(lake)
    left = [leftover(table, f"data/{i:03}.parquet") for i in range(25)]
    report = search(dry_run=True)
    assert (report.files_found, report.examples) == (25, tuple(left[:20]))


def test_age_decides(lake: SqlCatalog, search: Search) -> None:
    """Younger than asked for stays and is counted; a table's own age limit is the caller's."""
    table = two_files(lake)
    ages = {hours: leftover(table, f"data/{hours}.parquet", hours * HOUR_MS) for hours in (1, 23, 25, 71, 73)}
    report = search()
    assert (report.files_deleted, report.young) == (1, 4)
    report = search(older_than_ms=DAY_MS)
    assert (report.files_deleted, report.young) == (2, 2)
    assert [hours for hours, each in ages.items() if exists(each)] == [1, 23]


@pytest.mark.parametrize(
    ("older_than_ms", "said"), [(HOUR_MS, "3600"), (DAY_MS - 1, "86399.999"), (0, "0"), (-5000, "-5")]
)
def test_ages_under_a_day_are_refused(search: Search, older_than_ms: int, said: str) -> None:
    """Also zero and ages in the future; the table is not even loaded."""
    with pytest.raises(PolicyError) as refused:
        search(older_than_ms=older_than_ms)
    assert str(refused.value) == (
        f"'older-than' ({said} s) must be >= 24 h: a batch that is being written would lose its files"
    )


def test_the_clock_of_the_storage_counts(lake: SqlCatalog, search: Search) -> None:
    """A machine whose clock is days ahead deletes nothing young, and says that the clocks differ."""
    table = two_files(lake)
    young, old = leftover(table, "data/young.parquet", HOUR_MS), leftover(table, "data/old.parquet", 4 * DAY_MS)
    search.changes["environment"] = Environment(now_ms=lambda: search.now_ms() + 10 * DAY_MS)
    report = search()
    assert (exists(young), exists(old)) == (True, False)
    (note,) = report.notes
    assert note.startswith("the clock of the storage is 86")
    assert note.endswith(" s behind ours; its time counts")
    assert search(dry_run=True).files_found == 1


def test_a_clock_that_is_behind(lake: SqlCatalog, search: Search) -> None:
    """The storage may be ahead too; minutes are no news."""
    two_files(lake)
    search.changes["environment"] = Environment(now_ms=lambda: search.now_ms() - HOUR_MS)
    assert [note.endswith(" s ahead of ours; its time counts") for note in search().notes] == [True]
    search.changes["environment"] = Environment(now_ms=lambda: search.now_ms() - 60_000)
    assert search().notes == ()


def test_leftovers_of_batches_that_are_past(lake: SqlCatalog, search: Search) -> None:
    """Files of a batch that the stream has left behind are due after a day; those of later batches are not."""
    make_table(lake)
    table = append(lake, [1], batch=5)
    past = [of_batch(table, "s", number, 25 * HOUR_MS) for number in (0, 5)]
    stay = [
        of_batch(table, "s", 5, 23 * HOUR_MS),
        of_batch(table, "s", 6, 25 * HOUR_MS),
        of_batch(table, "another", 0, 25 * HOUR_MS),
        leftover(table, f"data/{stream_hash('s')}-5-0-0-x.parquet", 25 * HOUR_MS),
    ]
    report = search()
    assert (report.files_deleted, report.passed, report.young) == (2, 2, 4)
    assert ([exists(each) for each in past], all(exists(each) for each in stay)) == ([False, False], True)


def test_our_own_committed_files_are_no_leftovers(lake: SqlCatalog, search: Search) -> None:
    """The name alone deletes nothing: files of a committed batch are needed."""
    make_table(lake)
    table = lake.load_table("db.t")
    settings = WriteSettings.of(table.metadata, table.io.properties, 2**29)
    (file,) = write_rows([arrow([1])], settings, FileNames(f"{stream_hash('s')}-5", 0, 0))
    run(lake, request_on(table, [file], batch=5), table)
    all_aged(table)
    assert search().files_found == 0
    assert ids_of(lake) == [1]


def test_hidden_files_are_passed_over(lake: SqlCatalog, search: Search) -> None:
    """Names with a dot or an underscore in front belong to other programs, but for partitions of such a name."""
    table = make_table(lake, {})
    with table.update_schema() as schema:
        schema.add_column("_x", StringType())
    with lake.load_table("db.t").update_spec() as spec:
        spec.add_identity("_x")
    hidden = ["_SUCCESS", "data/.part.crc", "_spark_metadata/0", "data/_x/1.parquet", "data/_y=1/1.parquet", ".t/d/f"]
    stay = [leftover(table, name) for name in hidden]
    gone = leftover(table, "data/_x=1/1.parquet")
    assert search().files_deleted == 1
    assert (all(exists(each) for each in stay), exists(gone)) == (True, False)


def test_old_metadata_files_go_and_logged_ones_stay(lake: SqlCatalog, search: Search) -> None:
    """The metadata log, the current file and the version hint are needed; older metadata of the table is not."""
    make_table(lake, properties={"write.metadata.previous-versions-max": "2"})
    for i in range(4):
        table = append(lake, [i])
    leftover(table, "metadata/version-hint.text")
    all_aged(table)
    logged = {e.metadata_file for e in table.metadata.metadata_log} | {table.metadata_location}
    assert len(logged) == 3
    assert search().files_deleted == 2
    kept = {f"file://{p}" for p in local(table.location()).rglob("*.metadata.json")}
    assert kept == logged
    assert exists(f"{table.location()}/metadata/version-hint.text")


def test_files_of_expired_snapshots_are_orphans(lake: SqlCatalog, search: Search) -> None:
    """PyIceberg's expiry leaves its files behind: they are found, and the rows that are left can be read."""
    two_files(lake)
    expire(compact(lake))
    table = search.table
    all_aged(table)
    before = len(data_files_on_disk(table)), len(metadata_files_on_disk(table))
    report = search()
    assert before == (3, len(referenced_metadata(table)) + report.files_deleted - 2)
    assert len(data_files_on_disk(table)) == 1
    assert metadata_files_on_disk(table) == referenced_metadata(table)
    check(search.table)
    assert ids_of(lake) == [1, 2]


def shared(lake: SqlCatalog, place: str) -> str:
    """A second table below the first one's location, with an old data file; returns its newest metadata file."""
    location = lake.load_table("db.t").location() + place
    table = lake.create_table("db.other", lake.load_table("db.t").schema(), location=location)
    table.append(arrow([7]))
    all_aged(table)
    table = lake.load_table("db.other")
    return str(table.metadata_location)


@pytest.mark.parametrize("place", ["", "/nested", "/data/deep/er"])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_location_of_two_tables_is_refused(lake: SqlCatalog, search: Search, place: str, dry_run: bool) -> None:
    """The other table's files would be orphans: nothing is deleted, and its metadata file is named."""
    two_files(lake)
    shared(lake, place)
    everything = set(list_files(search.table.io, search.table.location()))
    with pytest.raises(TableError, match="is metadata of another table") as refused:
        search(dry_run=dry_run)
    other = lake.load_table("db.other")
    assert refused.value.location in {other.metadata_location, *(e.metadata_file for e in other.metadata.metadata_log)}
    assert str(refused.value) == (
        f"Cannot assign files to tables: {refused.value.location} is metadata of another table "
        f"({other.metadata.table_uuid}), whose files lie in the same location; give each table a location of its own"
    )
    assert set(list_files(search.table.io, search.table.location())) == everything
    assert ids_of(lake, "db.other") == [7]


def metadata_text(uuid: str, padding: int = 0) -> str:
    return json.dumps({"format-version": 2, "location": "x" * padding, "table-uuid": uuid})


@pytest.mark.parametrize("name", ["v3.metadata.json", "v3.gz.metadata.json", "v3.metadata.json.gz"])
@pytest.mark.parametrize("padding", [0, 10_000])
def test_whose_metadata_a_file_is(lake: SqlCatalog, search: Search, name: str, padding: int) -> None:
    """The UUID is found wherever it is, compressed or not: our own may go, another one's stops everything."""
    table = two_files(lake)
    path = local(leftover(table, f"metadata/{name}", text=""))

    def put(uuid: str) -> None:
        data = metadata_text(uuid, padding).encode()
        path.write_bytes(gzip.compress(data) if "gz" in name else data)
        aged(path)

    put("11111111-2222-3333-4444-555555555555")
    with pytest.raises(TableError, match=r"is metadata of another table \(11111111-2222-3333-4444-555555555555\)"):
        search()
    put(str(table.metadata.table_uuid).upper())
    assert search().files_deleted == 1


@pytest.mark.parametrize("text", ["{}", '{"format-version": 1}', "[]", "nonsense"])
def test_metadata_that_cannot_be_read_is_refused(lake: SqlCatalog, search: Search, text: str) -> None:
    """Nobody can say whose it is."""
    table = two_files(lake)
    path = leftover(table, "metadata/v3.metadata.json", text=text)
    with pytest.raises(TableError, match=f"Cannot look for orphan files: {path} cannot be read"):
        search()


@pytest.mark.parametrize("text", ["", "{", '{"format-version": 2, "location": "file:///é'])
@pytest.mark.parametrize("whole", [True, False])
def test_metadata_that_is_being_written_is_no_reason(lake: SqlCatalog, search: Search, text: str, whole: bool) -> None:
    """A young file without a whole text stays and keeps nothing else from going, also cut within a character."""
    table = two_files(lake)
    path, old = leftover(table, "metadata/v3.metadata.json", HOUR_MS, text), leftover(table, "data/x.parquet")
    if not whole:
        local(path).write_bytes(text.encode()[:-1])
    report = search()
    assert (report.files_deleted, report.notes) == (1, (BEING_WRITTEN,))
    assert (exists(path), exists(old)) == (True, False)
    check(search.table)


@pytest.mark.parametrize("text", ["", "{", '{"format-version": 2, "location": "x'])
def test_metadata_that_a_full_disk_cut_off_is_an_orphan(lake: SqlCatalog, search: Search, text: str) -> None:
    """After three days it goes, whatever age is asked for, as no table of the catalog names it; until then it stays."""
    path = leftover(two_files(lake), "metadata/v3.metadata.json", 2 * DAY_MS, text)
    report = search(older_than_ms=DAY_MS)
    assert (report.files_found, report.notes, exists(path)) == (0, (BEING_WRITTEN,), True)
    aged(path)
    assert (search(older_than_ms=DAY_MS).files_deleted, exists(path)) == (1, False)
    check(search.table)


def test_metadata_that_a_full_disk_cut_off_stays_if_a_table_has_it(lake: SqlCatalog, search: Search) -> None:
    """A table whose newest metadata file is cut off cannot be loaded, and is kept for its owner to bring back."""
    table = two_files(lake)
    other = lake.create_table("db.other", SCHEMA, properties={"write.metadata.path": f"{table.location()}/metadata/o"})
    local(other.metadata_location).write_bytes(b"")
    aged(other.metadata_location)
    report = search()
    assert (report.files_deleted, exists(other.metadata_location)) == (0, True)
    assert "1 table cannot be read, the first is db.other: " in report.notes[-1]


@pytest.mark.parametrize("text", ["{}", '{"format-version": 1}', "[]"])
def test_young_metadata_that_is_whole_and_of_nobody_is_refused(lake: SqlCatalog, search: Search, text: str) -> None:
    """Nothing more will be written to it, so its age is no excuse."""
    path = leftover(two_files(lake), "metadata/v3.metadata.json", HOUR_MS, text)
    with pytest.raises(TableError, match=f"Cannot look for orphan files: {path} cannot be read"):
        search()


def test_a_link_to_the_location_does_not_make_orphans(lake: SqlCatalog, search: Search, tmp_path: Path) -> None:
    """A table whose location is spelt otherwise than its files: these are known by device and inode, and stay."""
    table = two_files(lake)
    link = tmp_path / "link"
    link.symlink_to(local(table.location()))
    old = leftover(table, "data/x.parquet")
    all_aged(table)
    moved = table.metadata.model_copy(update={"location": f"file://{link}"})
    search.changes["reload"] = lambda: Table(table._identifier, moved, table.metadata_location, table.io, table.catalog)
    report = search()
    assert (report.files_deleted, exists(old)) == (1, False)
    assert report.notes[0].endswith("left alone: needed under another name, by a link or a mount")
    check(search.table)


def test_files_named_through_a_link_into_the_location_stay(lake: SqlCatalog, search: Search, tmp_path: Path) -> None:
    """Links to a folder and to a file, and a hard link: what is listed under one name is needed under another."""
    table = make_table(lake, {})
    inner = local(table.location()) / "data" / "import"
    inner.mkdir(parents=True)
    names = [inner / f"{number}.parquet" for number in range(3)]
    for number, name in enumerate(names):
        pq.write_table(arrow([number]), name)
    (tmp_path / "mounted").symlink_to(inner)
    (tmp_path / "one.parquet").symlink_to(names[1])
    (tmp_path / "two.parquet").hardlink_to(names[2])
    table.add_files([f"file://{tmp_path}/{name}" for name in ("mounted/0.parquet", "one.parquet", "two.parquet")])
    old = leftover(table, "data/import/x.parquet")
    all_aged(table)
    report = search()
    assert (report.files_deleted, exists(old), [name.exists() for name in names]) == (1, False, [True] * 3)
    assert report.notes == ("3 files left alone: needed under another name, by a link or a mount",)
    assert ids_of(lake) == [0, 1, 2]


def test_a_folder_that_is_a_link_within_the_location_keeps_its_files(lake: SqlCatalog, search: Search) -> None:
    """A partition was moved and a link left in its place: no listing follows it, and its files stay."""
    table = two_files(lake)
    data = local(table.location()) / "data"
    (data / "kind=a").rename(data / "moved")
    (data / "kind=a").symlink_to(data / "moved")
    all_aged(table)
    assert search().files_deleted == 0
    check(search.table)


def test_a_file_that_becomes_needed_under_another_name_is_spared(
    lake: SqlCatalog, search: Search, tmp_path: Path
) -> None:
    """It joins the table through a link after it was found."""
    table = make_table(lake, {})
    append(lake, [1])
    orphan = local(leftover(table, "data/x.parquet"))
    pq.write_table(arrow([2]), orphan)
    aged(orphan)
    (tmp_path / "link.parquet").symlink_to(orphan)
    between(search, 3, lambda: lake.load_table("db.t").add_files([f"file://{tmp_path}/link.parquet"]))
    report = search()
    assert (report.files_deleted, report.notes) == (0, ("1 file became part of the table during the run",))
    assert ids_of(lake) == [1, 2]


def neighbour(lake: SqlCatalog, properties: dict[str, str], name: str = "db.other") -> Table:
    """A table elsewhere with a row, of which some files may lie below the first one's location."""
    other = lake.create_table(name, SCHEMA, properties=properties)
    other.append(arrow([7]))
    return lake.load_table(name)


@pytest.mark.parametrize(
    "key",
    ["write.data.path", "write.object-storage.path", "write.folder-storage.path"],
)
def test_what_other_tables_keep_here_stays(lake: SqlCatalog, search: Search, key: str) -> None:
    """Their folders show which ones to read; what nobody refers to goes from the same folder."""
    table = two_files(lake)
    place = f"{table.location()}/data/other"
    # PyIceberg writes by the first of these only
    other = neighbour(lake, {"write.data.path": place})
    with other.transaction() as change:
        change.remove_properties("write.data.path")
        change.set_properties({key: place})
    old = leftover(table, "data/other/x.parquet")
    all_aged(table)
    report = search()
    assert (report.files_deleted, exists(old)) == (1, False)
    assert report.notes == ("1 file left alone: needed by other tables of the catalog with folders here (db.other)",)
    assert ids_of(lake, "db.other") == [7]
    check(search.table)


def test_a_table_whose_folder_holds_the_location_keeps_its_files(lake: SqlCatalog, search: Search) -> None:
    """A folder above this one, in a namespace within another, spelt as Java spells it, through a link."""
    table = two_files(lake)
    above = local(table.location()).parent
    link = above.parent / "link"
    link.symlink_to(above)
    lake.create_namespace("db.inner")
    neighbour(lake, {"write.data.path": f"file:{link}/t"}, "db.inner.other")
    all_aged(table)
    assert search().files_deleted == 0
    assert ids_of(lake, "db.inner.other") == [7]


@pytest.mark.parametrize("hidden", ["load", "not found", "namespace", "list", "limit", "files"])
def test_tables_that_cannot_be_read_protect_all_but_our_own_files(
    lake: SqlCatalog, search: Search, hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is damaged, a catalog that cannot list, too many tables: the report says so, an option overrides it."""
    table = two_files(lake)
    other = neighbour(lake, {"write.data.path": f"{table.location()}/data"})
    theirs, ours = leftover(table, "data/theirs.parquet"), of_batch(table, "s", 3, 4 * DAY_MS)
    # as icesize writes the other table, in a folder that this one does not have
    named = leftover(table, f"data/other/{local(ours).name}")
    if hidden == "load":
        local(other.metadata_location).write_text("{")
    elif hidden == "not found":
        only_without(lake, monkeypatch, "load_table", NoSuchTableError("no table"), "db.other")
    elif hidden == "namespace":
        only_without(lake, monkeypatch, "list_tables", NoSuchNamespaceError("no namespace"), "db")
    elif hidden == "list":
        monkeypatch.setattr(type(lake), "list_namespaces", lambda *_: (_ for _ in ()).throw(NotImplementedError("no")))
    elif hidden == "limit":
        search.changes["find_others"] = partial(other_tables, most_tables=0)
    else:
        snapshot = other.current_snapshot()
        assert snapshot is not None
        local(snapshot.manifest_list).unlink()
    left = "2 files left alone: only files with icesize's own names go, as other tables may need files here"
    report = search()
    assert (report.files_deleted, exists(ours), exists(theirs), report.notes[0]) == (1, False, True, left)
    assert exists(named)
    said = {
        "load": "1 table cannot be read, the first is db.other: ",
        "not found": "1 table cannot be read, the first is db.other: it was listed and is not found. ",
        "namespace": "the namespace db was listed and is not found. ",
        "list": "the catalog cannot list its tables (NotImplementedError: no). ",
        "limit": "1 table beyond the first 0 were not loaded. ",
        "files": "1 table cannot be read, the first is db.other: FileNotFoundError",
    }
    assert report.notes[1].startswith(said[hidden])
    assert report.notes[1].endswith(". Use --trust-location if no other table has files here")
    report = search(trust_location=True)
    assert (report.files_deleted, exists(theirs), report.notes) == (2, False, ())
    check(search.table)


def only_without(lake: SqlCatalog, patch: pytest.MonkeyPatch, call: str, error: Exception, hidden: str) -> None:
    """Have a call of the catalog raise this for one name, as for a principal without a right."""
    real = getattr(lake, call)

    def refusing(name: str | tuple[str, ...]) -> Any:
        if ".".join((name,) if isinstance(name, str) else name) == hidden:
            raise error
        return real(name)

    patch.setattr(lake, call, refusing)


@pytest.mark.parametrize("moment", ["listed by its old name", "not listed at all"])
def test_a_table_that_is_renamed_while_the_catalog_is_listed_keeps_its_files(
    lake: SqlCatalog, search: Search, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found by its new name, also where the namespace of that name was listed before."""
    table = two_files(lake)
    lake.create_namespace("a")
    neighbour(lake, {"write.data.path": f"{table.location()}/data/other"})
    all_aged(table)
    real, before = lake.list_tables, {("a",): lake.list_tables("a"), ("db",): lake.list_tables("db")}

    def list_tables(namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
        if lake.table_exists("db.other") and namespace == ("db",):
            lake.rename_table("db.other", "a.other")
            if moment == "listed by its old name":
                return before.pop(namespace)
        return before.pop(namespace) if namespace == ("a",) and namespace in before else real(namespace)

    monkeypatch.setattr(lake, "list_tables", list_tables)
    assert search().files_deleted == 0
    assert ids_of(lake, "a.other") == [7]


@pytest.mark.parametrize("kind", ["view", "not Iceberg"])
def test_what_is_certainly_no_table_is_no_doubt(
    lake: SqlCatalog, search: Search, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view has no files, and a table of another format is in no Iceberg metadata: orphans go beside them."""
    table = two_files(lake)
    neighbour(lake, {})
    error = NoSuchTableError("no table") if kind == "view" else NoSuchIcebergTableError("of another format")
    only_without(lake, monkeypatch, "load_table", error, "db.other")
    monkeypatch.setattr(lake, "view_exists", lambda _: kind == "view")
    old = leftover(table, "data/x.parquet")
    report = search()
    assert (report.files_deleted, report.notes, exists(old)) == (1, (), False)


@pytest.mark.parametrize(
    ("folder", "overlaps"),
    [
        ("s3a://bucket/lake/t/data/other/", True),
        ("s3://bucket/lake/t/data/empty", False),
        ("s3n://bucket//lake/t", True),
        ("s3://bucket/lake", True),
        ("s3://bucket", True),
        ("s3://bucket/lake/x/../t", True),
        ("s3://bucket/lake/t2", False),
        ("s3://mirror/lake/t", False),
        ("file:///lake/t", False),
    ],
)
def test_which_folders_overlap_a_location(folder: str, overlaps: bool) -> None:
    """Those that hold it, and those in it with a file that is due, however they are spelt."""
    assert overlap("s3://bucket/lake/t/", ["s3://bucket/lake/t/data/other/x.parquet"])(folder) is overlaps


def test_other_tables_are_loaded_only_if_they_matter(lake: SqlCatalog, search: Search) -> None:
    """None when nothing is due or the location is trusted; a folder without a file that is due is not read."""
    table = two_files(lake)
    other = neighbour(lake, {"write.data.path": f"{table.location()}/data/other"})
    asked: list[list[str]] = []

    def counted(table: Table, due: list[str]) -> OtherTables:
        asked.append(due)
        return other_tables(table, due)

    search.changes["find_others"] = counted
    search()
    snapshot = other.current_snapshot()
    assert snapshot is not None
    # nobody reads it, as nothing that is due lies in the folder
    local(snapshot.manifest_list).unlink()
    old = leftover(table, "data/x.parquet")
    search(trust_location=True, dry_run=True)
    assert asked == []
    report = search()
    assert (asked, report.notes, report.files_deleted) == ([[old]], (), 1)


@pytest.mark.parametrize(
    "needed",
    [
        "s3://mirror/lake/t/data/k=1/a.parquet",
        "gs://bucket/lake/t/data/k=1/a.parquet",
        "s3://bucket/mounted/t/data/k=1/a.parquet",
        "s3a://bucket/lake/old/data/k=1/a.parquet",
    ],
)
def test_a_file_that_may_be_needed_under_another_name(needed: str) -> None:
    """The same path elsewhere may be the same file: another bucket, another store, another folder."""
    suspect = "s3://bucket/lake/t/data/k=1/a.parquet"
    reachable = Reachable()
    metadata = new_table_metadata(SCHEMA, spec_of({}), UNSORTED_SORT_ORDER, "s3://x/y", {})
    reachable.add(metadata, needed, PyArrowFileIO())
    with pytest.raises(TableError) as refused:
        check_spelling("s3://bucket/lake/t", reachable, ["s3://bucket/lake/t/data/z.parquet", suspect])
    assert str(refused.value) == (
        f"Cannot look for orphan files: the table needs {needed}, and {suspect} may be the same file under another "
        "name; set the table's location as its metadata spells it"
    )


@pytest.mark.parametrize(
    "needed", ["s3://other/x/data/k=2/a.parquet", "s3://bucket/lake/t2/a.parquet", "s3a://bucket/lake/t/data/b.parquet"]
)
def test_names_alone_are_no_doubt(needed: str) -> None:
    """Files that were added from elsewhere may share a file name with an orphan, not its path."""
    reachable = Reachable()
    metadata = new_table_metadata(SCHEMA, spec_of({}), UNSORTED_SORT_ORDER, "s3://x/y", {})
    reachable.add(metadata, needed, PyArrowFileIO())
    suspects = ["s3://bucket/lake/t/data/k=1/a.parquet", "s3://bucket/lake/t/data/b.parquet"]
    check_spelling("s3://bucket/lake/t", reachable, suspects)
    # it is the path that makes the doubt
    same_path = f"s3://mirror/{needed.split('/', 3)[3]}"
    with pytest.raises(TableError, match="may be the same file under another name"):
        check_spelling("s3://mirror", reachable, [same_path])


def test_parent_segments_in_metadata_are_refused(lake: SqlCatalog, search: Search) -> None:
    """A path with `..` may be any file: none can be said to be an orphan."""
    table = two_files(lake)
    leftover(table, "data/x.parquet")
    log = [table.metadata.metadata_log[0].model_copy(update={"metadata_file": f"{table.location()}/../t/x.json"})]
    odd = table.metadata.model_copy(update={"metadata_log": log})
    search.changes["reload"] = lambda: Table(table._identifier, odd, table.metadata_location, table.io, table.catalog)
    with pytest.raises(TableError, match=r"'\.\.' does not say where that lies"):
        search()


def test_gc_disabled_is_refused(lake: SqlCatalog, search: Search) -> None:
    """The owner of the table has said that its files may be another's as well."""
    make_table(lake, properties={"gc.enabled": "False"})
    with pytest.raises(TableError) as refused:
        search(dry_run=True)
    assert str(refused.value) == (
        "Cannot delete files of 'lake.db.t': its property 'gc.enabled' is false, so other tables may need them"
    )


def test_a_listing_that_fails_half_way_deletes_nothing(lake: SqlCatalog, search: Search) -> None:
    """Half a listing is none: what was seen by then stays."""
    table = two_files(lake)
    left = [leftover(table, f"data/{i}.parquet") for i in range(3)]

    def broken(io: FileIO, location: str) -> Iterator[Listed]:
        for number, file in enumerate(list_files(io, location)):
            if number == 5:
                raise TableError(f"Cannot list {location}: OSError: connection reset; nothing was deleted")
            yield file

    search.changes.update(lister=broken, deleter=lambda io: pytest.fail("nothing is to be deleted"))
    with pytest.raises(TableError, match="connection reset; nothing was deleted"):
        search()
    assert all(exists(each) for each in left)


def test_metadata_that_is_lost_deletes_nothing(lake: SqlCatalog, search: Search) -> None:
    """When a manifest cannot be read nobody knows what the table needs."""
    table = two_files(lake)
    left = leftover(table, "data/x.parquet")
    head = table.metadata.current_snapshot()
    assert head is not None
    local(head.manifests(table.io)[0].manifest_path).unlink()
    with pytest.raises(TableError, match=r"Cannot read which files 'lake.db.t' needs: FileNotFoundError"):
        search()
    assert exists(left)


def test_deletes_that_fail_are_reported(lake: SqlCatalog, search: Search) -> None:
    """The others go on; what is gone already counts as deleted."""
    table = two_files(lake)
    left = [leftover(table, f"data/{i}.parquet") for i in range(5)]
    really = deleter(table.io)

    def delete(location: str) -> None:
        if location in left[:2]:
            raise PermissionError(f"no right to delete {location[-9:]}")
        if location == left[2]:
            local(location).unlink()
        really(location)

    seen: list[tuple[int, int | None]] = []
    search.changes.update(deleter=lambda io: delete, progress=lambda *told: seen.append(told))
    report = search()
    assert (report.files_found, report.files_deleted, report.files_failed) == (5, 3, 2)
    assert report.bytes_deleted == 8
    assert report.notes == (
        f"cannot delete 2 files, the first is {left[0]}: PermissionError: no right to delete 0.parquet",
    )
    assert [exists(each) for each in left] == [True, True, False, False, False]
    assert seen == [(tried, 5) for tried in range(1, 6)]


def between(search: Search, number: int, action: Callable[[], object]) -> None:
    """Run `action` when the table is loaded for the n-th time: 1 at the start, 2 after the listing, then per batch."""
    loads = [0]

    def reload() -> Table:
        loads[0] += 1
        if loads[0] == number:
            action()
        return search.table

    search.changes["reload"] = reload


@pytest.mark.parametrize("load", [2, 3])
def test_files_that_become_part_of_the_table_are_spared(lake: SqlCatalog, search: Search, load: int) -> None:
    """A commit of long-written files while the listing runs, or before the deletes: its files stay."""
    table = two_files(lake)
    late = write(table, [9])
    aged(late.path)
    gone = leftover(table, "data/x.parquet")
    between(search, load, lambda: run(lake, request_on(search.table, [late]), search.table))
    report = search()
    assert (report.files_found, report.files_deleted) == (1 if load == 2 else 2, 1)
    assert report.notes == (() if load == 2 else ("1 file became part of the table during the run",))
    assert (exists(late.path), exists(gone)) == (True, False)
    assert ids_of(lake) == [1, 2, 9]


def test_the_table_is_looked_at_before_each_thousand(lake: SqlCatalog, search: Search) -> None:
    """A commit between two bunches of deletes protects its files in the second."""
    table = two_files(lake)
    for i in range(1_000):
        leftover(table, f"data/{i:04}.parquet")
    late = write(table, [9])
    aged(late.path)
    last = local(table.location()) / "data" / late.path.rpartition("/")[2]
    assert f"file://{last}" > f"{table.location()}/data/0999.parquet"
    between(search, 4, lambda: run(lake, request_on(search.table, [late]), search.table))
    report = search()
    assert (report.files_found, report.files_deleted) == (1_001, 1_000)
    assert ids_of(lake) == [1, 2, 9]


@pytest.mark.parametrize("load", [2, 3])
def test_a_table_that_was_created_again_stops_it(lake: SqlCatalog, search: Search, load: int) -> None:
    """Another table under the same name and location: none of what was found counts."""
    table = two_files(lake)
    left = leftover(table, "data/x.parquet")

    def again() -> None:
        lake.drop_table("db.t")
        make_table(lake)

    between(search, load, again)
    with pytest.raises(TableError, match=r"Cannot clean up 'lake\.db\.t': it was dropped and recreated during the run"):
        search()
    assert exists(left)


def test_places_outside_are_not_searched(lake: SqlCatalog, search: Search, tmp_path: Path) -> None:
    """Files that the table writes elsewhere are needed, not listed, and the report says so."""
    outside = tmp_path / "elsewhere"
    make_table(lake, properties={"write.data.path": f"file://{outside}", "write.metadata.path": f"file://{outside}"})
    table = append(lake, [1])
    stray = outside / "stray.parquet"
    stray.write_text("x")
    aged(stray)
    with table.transaction() as change:
        change.set_properties({"write.metadata.path": f"{table.location()}/metadata"})
    report = search()
    assert (report.files_found, stray.exists()) == (0, True)
    assert report.notes == (
        f"'write.data.path' (file://{outside}) lies outside of the table's location and was not searched",
    )
    assert ids_of(lake) == [1]


def test_names_that_cannot_be_addressed_stay(lake: SqlCatalog, search: Search) -> None:
    """Deleting `x#y` through PyIceberg would delete `x`: such files are counted and left."""
    table = two_files(lake)
    needed = small_files(table)[0].path
    odd = leftover(table, f"{needed.removeprefix(table.location() + '/')}#copy")
    report = search()
    assert (report.files_found, exists(odd), exists(needed)) == (0, True, True)
    assert report.notes == ("1 file left alone: by a name with ? or # in it another file could be deleted",)


def test_it_can_be_stopped_and_started_again(lake: SqlCatalog, search: Search) -> None:
    """Ctrl-C leaves a table in order, and the next run does the rest."""
    table = two_files(lake)
    for i in range(200):
        leftover(table, f"data/{i:03}.parquet")
    really, lock, gone = deleter(table.io), threading.Lock(), []

    def interrupted(done: int, total: int | None) -> None:
        if done == 10:
            raise KeyboardInterrupt

    def delete(location: str) -> None:
        really(location)
        with lock:
            gone.append(location)

    search.changes.update(deleter=lambda io: delete, progress=interrupted)
    with pytest.raises(KeyboardInterrupt):
        search()
    search.changes.clear()
    assert search().files_deleted == 200 - len(gone)
    check(search.table)


def test_a_copy_of_the_table_beside_it_is_not_touched(lake: SqlCatalog, search: Search) -> None:
    """`t2` begins like `t` and is another folder."""
    table = two_files(lake)
    copy = Path(f"{local(table.location())}2")
    shutil.copytree(local(table.location()), copy)
    files = sorted(p for p in copy.rglob("*") if p.is_file())
    for path in files:
        aged(path)
    assert search().files_found == 0
    assert sorted(p for p in copy.rglob("*") if p.is_file()) == files
