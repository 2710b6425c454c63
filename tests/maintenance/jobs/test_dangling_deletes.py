"""Delete files that hit nothing: which ones go, which stay, and what a commit beside it changes of that."""

from __future__ import annotations

import os
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform

import icesize
from icesize.environment import Environment
from icesize.failpoints import armed
from icesize.maintenance.jobs.dangling_deletes import DanglingReport, remove_dangling_deletes
from icesize.maintenance.passes.maintain import UNCHECKED
from icesize.planning.files import FileFact, PartitionKey
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.state.handle import TableHandle
from tests.support.delete_files import delete_equal, delete_positions, live_deletes
from tests.support.jobs import context_of
from tests.support.machine import Reader, Rows
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
    NOW_MS,
    append,
    check,
    head_id,
    live_paths,
    local,
    make_table,
    make_visible,
    metadata_files_on_disk,
    operations,
    referenced_metadata,
    small_files,
    write,
)

A = PartitionKey(0, ("a",))
ANY_ID = [(99,)]


def removed(catalog: Catalog) -> DanglingReport:
    """The maintenance call on the table as it is now, without waiting; it changes no row and no data file."""
    handle = TableHandle(catalog, ("db", "t"))
    environment = Environment(monotonic=lambda: 0.0, now_ms=lambda: NOW_MS, sleep=lambda seconds: None)
    return remove_dangling_deletes(context_of(handle, environment))


def looked_at(catalog: Catalog) -> DanglingReport:
    """`removed`, where rows and data files are compared before and after."""
    before = catalog.load_table("db.t")
    report = removed(catalog)
    after = catalog.load_table("db.t")
    assert live_paths(after) == live_paths(before)
    assert rows(after) == rows(before)
    check(after)
    return report


def rows(table: Table) -> Rows:
    head = table.metadata.current_snapshot()
    assert head is not None
    return Reader().rows(head, table.io)


def left(catalog: Catalog) -> list[str]:
    """Delete files of the table."""
    return sorted(entry.data_file.file_path for entry in live_deletes(catalog.load_table("db.t")))


def rewritten(catalog: Catalog, *gone: FileFact, ids: list[int] | None = None) -> Table:
    """Another engine writes files again and leaves every delete file: the new one is as young as its commit."""
    table = catalog.load_table("db.t")
    added = [write(table, ids, str(gone[0].partition.values[0]))] if ids else []
    builder = SnapshotBuilder(table, NOW_MS)
    split = builder.split([file.path for file in gone])
    make_visible(catalog, table, [builder.exchange(Operation.OVERWRITE, split, added, {})])
    return catalog.load_table("db.t")


def files_of(catalog: Catalog, kind: str = "a") -> list[FileFact]:
    return small_files(catalog.load_table("db.t"), kind)


def test_every_kind_goes_once_its_files_are_gone(lake: SqlCatalog) -> None:
    """By position of one file, of several, and by equality; report, summary and totals say what went."""
    make_table(lake)
    append(lake, [1, 2])
    first, second = files_of(lake)[0], small_files(append(lake, [3, 4]), "a")[1]
    delete_rows(lake, first)
    delete_positions(lake.load_table("db.t"), {first.path: [1], second.path: [0]})
    delete_ids(lake, first, [4])
    assert looked_at(lake).snapshot_id is None
    table = rewritten(lake, first, second, ids=[7])
    assert len(left(lake)) == 3
    size = sum(entry.data_file.file_size_in_bytes for entry in live_deletes(table))
    report = looked_at(lake)
    after = lake.load_table("db.t")
    assert left(lake) == []
    assert (report.table, report.snapshot_id, report.notes) == ("lake.db.t", head_id(after), ())
    assert (report.delete_files, report.bytes) == (3, size)
    assert str(report).startswith("removed 3 delete files of ")
    assert report.to_dict()["snapshot_ids"] == [str(head_id(after))]
    assert operations(after)[-1] == "replace"
    head = after.metadata.current_snapshot()
    assert head is not None
    assert head.summary is not None
    facts = head.summary.additional_properties
    names = ("removed-delete-files", "removed-position-deletes", "removed-equality-deletes", "total-delete-files")
    assert [facts[name] for name in names] == ["3", "3", "1", "0"]
    assert "added-data-files" not in facts
    assert "deleted-data-files" not in facts
    assert metadata_files_on_disk(after) == referenced_metadata(after)


def test_nothing_is_committed_where_there_is_nothing_to_remove(lake: SqlCatalog) -> None:
    """The metadata file stays the same one, with deletes that hit rows and without any, in format v1 as well."""
    make_table(lake)
    append(lake, [1, 2])
    delete_ids(lake, files_of(lake)[0], [1])
    make_table(lake, properties={"format-version": "1"}, name="db.old")
    before = {name: lake.load_table(name).metadata_location for name in ("db.t", "db.old")}
    assert str(removed(lake)) == "nothing to do in lake.db.t: no delete file is dangling"
    assert icesize.open(None, "db.old", catalog=lake).remove_dangling_deletes().snapshot_id is None
    assert {name: lake.load_table(name).metadata_location for name in before} == before


def test_one_live_file_keeps_what_names_it(lake: SqlCatalog) -> None:
    """A delete file that names two files stays for one of them, and goes with the other."""
    make_table(lake)
    append(lake, [1, 2])
    first, second = files_of(lake)[0], small_files(append(lake, [3, 4]), "a")[1]
    delete_positions(lake.load_table("db.t"), {first.path: [1], second.path: [0]})
    rewritten(lake, first)
    assert looked_at(lake).delete_files == 0
    rewritten(lake, second, ids=[9])
    assert looked_at(lake).delete_files == 1


def test_an_equality_delete_stays_for_one_older_file(lake: SqlCatalog) -> None:
    """Of its own partition; the age of files of others does not matter."""
    make_table(lake)
    append(lake, [5], "b")
    append(lake, [1, 2])
    append(lake, [3])
    first, second = files_of(lake)
    delete_ids(lake, first, [3])
    append(lake, [4])
    rewritten(lake, first)
    assert looked_at(lake).delete_files == 0
    rewritten(lake, second)
    assert looked_at(lake).delete_files == 1


def test_equality_deletes_of_unpartitioned_tables(lake: SqlCatalog) -> None:
    """They hit files of every partition of later specs, and stay as long as one of these is older."""
    make_table(lake, {})
    append(lake, [1])
    with lake.load_table("db.t").update_spec() as update:
        update.add_field("kind", IdentityTransform(), "kind")
    table = append(lake, [2])
    everywhere = PartitionKey(0)
    delete_equal(table, ["id"], ANY_ID, everywhere)
    old, newer = small_files(table)
    rewritten(lake, old)
    assert looked_at(lake).delete_files == 0
    rewritten(lake, newer)
    append(lake, [3])
    assert looked_at(lake).delete_files == 1


def test_deletes_of_older_specs(lake: SqlCatalog) -> None:
    """They are about files of their own spec only: younger ones of another spec keep none of them."""
    make_table(lake)
    append(lake, [1])
    append(lake, [2])
    first, second = files_of(lake)
    with lake.load_table("db.t").update_spec() as update:
        update.remove_field("kind")
    append(lake, [3])
    delete_equal(lake.load_table("db.t"), ["id"], ANY_ID, A)
    delete_positions(lake.load_table("db.t"), {first.path: [0]}, A)
    rewritten(lake, second)
    assert looked_at(lake).delete_files == 0
    rewritten(lake, first)
    assert looked_at(lake).delete_files == 2


def test_a_rival_that_commits_before_the_swap(lake: SqlCatalog) -> None:
    """What hits nothing is decided anew: a delete file that comes in between stays, the useless one goes."""
    make_table(lake)
    append(lake, [1])
    old = files_of(lake)[0]
    delete_rows(lake, old)
    rewritten(lake, old, ids=[5, 6])
    rival = iter([lambda: append(lake, [7]), lambda: delete_ids(lake, old, [5])])

    def act() -> None:
        for commit in rival:
            commit()
            return

    with armed("before-swap", act):
        report = removed(lake)
    table = lake.load_table("db.t")
    check(table)
    assert report.delete_files == 1
    [kept] = live_deletes(table)
    assert kept.data_file.equality_ids == [1]
    assert sorted(row[0] for _, row in rows(table)) == [6, 7]
    assert metadata_files_on_disk(table) == referenced_metadata(table)


def test_a_delete_file_that_cannot_be_read_stays(lake: SqlCatalog) -> None:
    """Nobody knows whether it names a file that is as old; the others go, and the report tells."""
    make_table(lake)
    append(lake, [1, 2])
    append(lake, [3, 4])
    append(lake, [6])
    first, second, third = files_of(lake)
    table = delete_positions(lake.load_table("db.t"), {first.path: [1], second.path: [0]})
    [damaged] = left(lake)
    delete_rows(lake, first)
    rewritten(lake, first, second, ids=[5])
    local(damaged).write_bytes(b"x" * live_deletes(table)[0].data_file.file_size_in_bytes)
    report = removed(lake)
    assert (report.delete_files, left(lake)) == (1, [damaged])
    assert report.notes == (
        "1 position delete file could not be read: such a file goes only if all data files are newer",
    )
    rewritten(lake, third)
    assert (removed(lake).delete_files, left(lake)) == (1, [])


def test_a_pass_of_maintenance_removes_them(lake: SqlCatalog) -> None:
    """Between clustering and manifests; the next pass has nothing to do."""
    make_table(lake)
    append(lake, [1])
    old = files_of(lake)[0]
    delete_rows(lake, old)
    rewritten(lake, old, ids=[5])
    table = icesize.open(None, "db.t", catalog=lake)
    report = table.maintain()
    assert (report.failed, left(lake)) == ({}, [])
    assert report.to_dict()["deletes"]["delete_files"] == 1
    assert table.maintain().to_dict()["deletes"]["snapshot_id"] is None


class ReadOnlyIO(PyArrowFileIO):
    """Storage that refuses to write and to delete."""

    def new_output(self, location: str) -> Any:
        raise PermissionError(location)

    def delete(self, location: Any) -> None:
        raise PermissionError(location)


def test_dry_runs_need_no_right_to_write(lake: SqlCatalog) -> None:
    """Each step of a pass counts what it would do, on storage that refuses every write, and leaves no file."""
    make_table(lake, properties={"commit.manifest-merge.enabled": "false"})
    for number in range(4):
        append(lake, [number])
    old = files_of(lake)[0]
    delete_rows(lake, old)
    rewritten(lake, old, ids=[5])
    folder = local(lake.load_table("db.t").location())
    aged = folder / "data" / "left.parquet"
    aged.write_bytes(b"left")
    os.utime(aged, (0, 0))
    storage = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    lake.properties["py-io-impl"] = f"{__name__}.ReadOnlyIO"
    table = icesize.open(None, "db.t", catalog=lake)
    plan = table.plan_maintenance()
    assert plan.failed == {}
    assert plan.deletes is not None
    assert plan.manifests is not None
    assert plan.orphans is not None
    assert (plan.deletes.delete_files, plan.deletes.dry_run, plan.deletes.snapshot_id) == (1, True, None)
    assert (plan.manifests.manifests_before, plan.manifests.manifests_after) == (5, 2)
    assert (plan.orphans.files_found, plan.orphans.notes) == (1, (UNCHECKED,))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == storage
    # what is counted is what is done
    lake.properties.pop("py-io-impl")
    done = table.rewrite_manifests()
    assert (done.manifests_before, done.manifests_after) == (5, 2)
    assert table.remove_dangling_deletes().delete_files == 1
