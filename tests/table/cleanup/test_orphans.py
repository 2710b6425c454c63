"""Orphan files are found, spared while in doubt, and deleted when it is certain that nobody needs them."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.types import StringType

from icesize.environment import Environment
from icesize.errors import PolicyError, TableError, UnsupportedTable
from icesize.events import Progress
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.row_writer import write_rows
from icesize.storage.stores import Listed
from icesize.table.cleanup import orphans
from icesize.table.cleanup.orphans import DAY_MS, OrphanReport
from icesize.table.records.ledger import stream_hash
from icesize.table.storage.inventory import Inventory
from icesize.table.storage.listing import list_files
from tests.support.expiry import run_expiry
from tests.support.inventories import inventory_file
from tests.support.orphans import HOUR_MS, Search, aged, all_aged, exists, left_by_batch, leftover, on_load, one_by_one
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
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
    two_files,
    write,
)


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
    assert (report.files_found, report.files_deleted, report.files_failed, report.too_recent) == (3, 3, 0, 0)
    assert (report.bytes_found, report.bytes_deleted) == (size, size)
    assert set(report.examples) == leftovers
    assert not any(exists(each) for each in leftovers)
    assert data_files_on_disk(table) | metadata_files_on_disk(table) == before
    assert search().files_found == 0


def test_a_dry_run_deletes_and_writes_nothing(
    lake: SqlCatalog, search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same is found, and the table's folder is untouched."""
    table = two_files(lake)
    left = leftover(table, "data/x.parquet")
    seen: list[set[Listed]] = [set(list_files(table.io, table.location()))]
    monkeypatch.setattr(orphans, "deleter", lambda io: pytest.fail("nothing is to be deleted"))
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
        "too_recent": 1,
        "from_committed_batches": 0,
        "incomplete_uploads": None,
        "examples": [left],
        "notes": [],
    }
    found = OrphanReport("lake.db.t", files_found=1, bytes_found=4, too_recent=2)
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
    assert (report.files_deleted, report.too_recent) == (1, 4)
    report = search(older_than_ms=DAY_MS)
    assert (report.files_deleted, report.too_recent) == (2, 2)
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
    assert note.endswith(" s behind this machine; its time counts")
    assert search(dry_run=True).files_found == 1


def test_a_clock_that_is_behind(lake: SqlCatalog, search: Search) -> None:
    """The storage may be ahead too; minutes are no news."""
    two_files(lake)
    search.changes["environment"] = Environment(now_ms=lambda: search.now_ms() - HOUR_MS)
    assert [note.endswith(" s ahead of this machine; its time counts") for note in search().notes] == [True]
    search.changes["environment"] = Environment(now_ms=lambda: search.now_ms() - 60_000)
    assert search().notes == ()


def test_leftovers_of_batches_that_are_past(lake: SqlCatalog, search: Search) -> None:
    """Files of a batch that the stream has left behind are due after a day; those of later batches are not."""
    make_table(lake)
    table = append(lake, [1], batch=5)
    past = [left_by_batch(table, "s", number, 25 * HOUR_MS) for number in (0, 5)]
    stay = [
        left_by_batch(table, "s", 5, 23 * HOUR_MS),
        left_by_batch(table, "s", 6, 25 * HOUR_MS),
        left_by_batch(table, "another", 0, 25 * HOUR_MS),
        leftover(table, f"data/{stream_hash('s')}-5-0-0-x.parquet", 25 * HOUR_MS),
    ]
    report = search()
    assert (report.files_deleted, report.from_committed_batches, report.too_recent) == (2, 2, 4)
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


def test_parent_segments_in_metadata_are_refused(lake: SqlCatalog, search: Search) -> None:
    """A path with `..` may be any file: none can be said to be an orphan."""
    table = two_files(lake)
    leftover(table, "data/x.parquet")
    log = [table.metadata.metadata_log[0].model_copy(update={"metadata_file": f"{table.location()}/../t/x.json"})]
    odd = table.metadata.model_copy(update={"metadata_log": log})
    search.changes["reload"] = lambda: Table(table._identifier, odd, table.metadata_location, table.io, table.catalog)
    with pytest.raises(TableError, match=r"its path contains '\.\.', so its real location is unknown"):
        search()


@pytest.mark.parametrize("mark", ["nessie.commit.id", "nessie.catalog.content-id", "nessie.is-nessie-catalog"])
def test_files_in_nessie_are_never_deleted(lake: SqlCatalog, search: Search, mark: str) -> None:
    """Its other branches need files that this one does not show, even if someone allows deletions."""
    make_table(lake, properties={"gc.enabled": "true", mark: "abc"})
    if mark == "nessie.is-nessie-catalog":
        lake.properties[mark] = "true"
    message = (
        "Cannot delete files of 'lake.db.t': its catalog, Nessie, has branches of its own, which may need them, "
        "whatever 'gc.enabled' is. Run nessie-gc, Nessie's own collector"
    )
    with pytest.raises(UnsupportedTable) as refused:
        search(dry_run=True)
    assert str(refused.value) == message
    append(lake, [1])
    with pytest.raises(UnsupportedTable) as refused:
        run_expiry(lake)
    assert str(refused.value) == message


def test_gc_disabled_is_refused(lake: SqlCatalog, search: Search) -> None:
    """The owner of the table has said that its files may be another's as well."""
    make_table(lake, properties={"gc.enabled": "False"})
    with pytest.raises(TableError) as refused:
        search(dry_run=True)
    assert str(refused.value) == (
        "Cannot delete files of 'lake.db.t': its property 'gc.enabled' is false, so other tables may need them"
    )


def test_a_listing_that_fails_half_way_deletes_nothing(
    lake: SqlCatalog, search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a listing is none: what was seen by then stays."""
    table = two_files(lake)
    left = [leftover(table, f"data/{i}.parquet") for i in range(3)]

    def broken(io: FileIO, location: str) -> Iterator[Listed]:
        for number, file in enumerate(list_files(io, location)):
            if number == 5:
                raise TableError(f"Cannot list {location}: OSError: connection reset; nothing was deleted")
            yield file

    monkeypatch.setattr(orphans, "list_files", broken)
    monkeypatch.setattr(orphans, "deleter", lambda io: pytest.fail("nothing is to be deleted"))
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


def test_deletes_that_fail_are_reported(lake: SqlCatalog, search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on; what is gone already counts as deleted."""
    table = two_files(lake)
    left = [leftover(table, f"data/{i}.parquet") for i in range(5)]

    def delete(location: str) -> None:
        if location in left[:2]:
            raise PermissionError(f"no right to delete {location[-9:]}")
        if location == left[2]:
            local(location).unlink()
        table.io.delete(location)

    seen = list[Progress]()
    search.changes["environment"] = Environment(observe=seen.append)
    monkeypatch.setattr(orphans, "deleter", lambda io: one_by_one(delete))
    report = search()
    assert (report.files_found, report.files_deleted, report.files_failed) == (5, 3, 2)
    assert report.bytes_deleted == 12
    assert report.notes == (
        f"cannot delete 2 files, the first is {left[0]}: PermissionError: no right to delete 0.parquet",
    )
    assert [exists(each) for each in left] == [True, True, False, False, False]
    assert seen == [Progress("orphans", 0), *(Progress("orphans", tried, 5) for tried in range(1, 6))]


@pytest.mark.parametrize("load", [2, 3])
def test_files_that_become_part_of_the_table_are_spared(lake: SqlCatalog, search: Search, load: int) -> None:
    """A commit of long-written files while the listing runs, or before the deletes: its files stay."""
    table = two_files(lake)
    late = write(table, [9])
    aged(late.path)
    gone = leftover(table, "data/x.parquet")
    on_load(search, load, lambda: run(lake, request_on(search.table, [late]), search.table))
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
    on_load(search, 4, lambda: run(lake, request_on(search.table, [late]), search.table))
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

    on_load(search, load, again)
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


def test_it_can_be_stopped_and_started_again(lake: SqlCatalog, search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C leaves a table in order, and the next run does the rest."""
    table = two_files(lake)
    for i in range(200):
        leftover(table, f"data/{i:03}.parquet")
    lock, gone = threading.Lock(), list[str]()

    def interrupted(event: object) -> None:
        if isinstance(event, Progress) and event.done == 10:
            raise KeyboardInterrupt

    def delete(location: str) -> None:
        table.io.delete(location)
        with lock:
            gone.append(location)

    search.changes["environment"] = Environment(observe=interrupted)
    monkeypatch.setattr(orphans, "deleter", lambda io: one_by_one(delete))
    with pytest.raises(KeyboardInterrupt):
        search()
    search.changes.clear()
    monkeypatch.undo()
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


def use_inventory(search: Search, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the search read an inventory of the files that are there now, and list nothing."""
    listed = list_files(search.table.io, search.table.location())
    search.changes["inventory"] = Inventory((str(inventory_file(folder, listed)),))
    monkeypatch.setattr(orphans, "list_files", lambda io, location: pytest.fail("nothing is to be listed"))


def test_an_inventory_instead_of_a_listing(
    lake: SqlCatalog, search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ages count from the newest file of the inventory, however long ago that was; nothing is listed."""
    table = two_files(lake)
    due, young = leftover(table, "data/x.parquet", 10 * DAY_MS), leftover(table, "data/y.parquet", 8 * DAY_MS)
    for path in local(table.location()).rglob("*"):
        if path.is_file() and path.suffix != ".parquet":
            aged(path, 6 * DAY_MS)
    for file in small_files(table):
        aged(file.path, 6 * DAY_MS)
    use_inventory(search, tmp_path, monkeypatch)
    report = search(dry_run=True)
    assert (report.examples, report.too_recent) == ((due,), 1)
    assert report.notes[0].startswith("ages count from the newest file of the inventory (")
    later = leftover(table, "data/z.parquet", 9 * DAY_MS)
    assert search().files_deleted == 1
    assert [exists(each) for each in (due, young, later)] == [False, True, True]
    check(lake.load_table("db.t"))


def test_files_of_an_inventory_that_have_changed_since(
    lake: SqlCatalog, search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was written again stays, and so does one that became part of the table; one that is gone is done."""
    table = two_files(lake)
    again, gone = (leftover(table, f"data/{name}.parquet") for name in "ag")
    committed = write(table, [7])
    aged(committed.path)
    use_inventory(search, tmp_path, monkeypatch)
    local(again).write_text("written again")
    local(gone).unlink()
    run(lake, request_on(table, [committed]), table)
    report = search()
    assert (report.files_found, report.files_deleted, report.files_failed) == (2, 1, 1)
    assert report.notes[-1].endswith("it was written after the inventory")
    assert exists(again)
    check(lake.load_table("db.t"))
