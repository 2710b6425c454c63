"""Restoring a partition: its rows as they were, everything else as it is, or a refusal that changes nothing.

`landed` and `check` look at every restored table whether a live file is among those that a snapshot has removed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate, TableUpdate
from pyiceberg.types import StringType

from icesize import failpoints
from icesize.environment import Environment
from icesize.errors import CommitConflict, CommitStateUnknown, RewriteFailed, TableError, UnsupportedTable
from icesize.maintenance.restore import RESTORED_ID, TAG_PREFIX, restore
from icesize.parquet.files.names import FileNames, copy_prefix, set_of, set_prefix
from icesize.planning.files import FileFact, PartitionKey
from icesize.report import Report
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.manifests import store
from icesize.table.manifests.facts import Columns, ManifestFacts
from icesize.table.records.summary import RUN_ID
from icesize.table.state.handle import TableHandle
from icesize.table.state.live_files import files_at as files_of_version
from tests.support.delete_files import delete_positions, live_deletes
from tests.support.examples import examples
from tests.support.jobs import context_of
from tests.support.machine import Reader
from tests.support.rest_faults import Fault
from tests.support.rest_server import MiniRest
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
    append,
    check,
    compact,
    data_files_on_disk,
    ids_of,
    landed,
    live_paths,
    local,
    make_table,
    make_visible,
    merged,
    metadata_files_on_disk,
    operations,
    overwritten,
    referenced_metadata,
    removed_and_live,
    request_on,
    run,
    small_files,
    sqlite_catalog,
    write,
)

A = PartitionKey(0, ("a",))
DAY_MS = 86_400_000
AGE_MS = 3 * DAY_MS
READERS = "stream readers of this table stop at snapshot {}, an overwrite (Spark continues with {})"


_numbers = itertools.count()


def restored(catalog: Catalog, snapshot_id: int, partition: PartitionKey = A) -> Report:
    """The call, three days after the newest snapshot was made, on the table as it is now and without waiting."""
    handle = TableHandle(catalog, ("db", "t"))
    current = handle.load()
    now_ms = current.table.metadata.last_updated_ms + AGE_MS
    environment = Environment(
        monotonic=lambda: 0.0,
        now_ms=lambda: now_ms,
        sleep=lambda seconds: None,
        new_id=lambda: f"restore-{next(_numbers)}",
    )
    return restore(context_of(handle, environment), current, partition, snapshot_id)


def with_history(catalog: Catalog, **properties: str) -> tuple[Table, int]:
    """Rows 1, 2 in `a` and 5 in `b`, the snapshot with these; then `a` is compacted, and 3 and 6 are appended."""
    make_table(catalog, properties=properties)
    append(catalog, [1])
    append(catalog, [2])
    table = append(catalog, [5], "b")
    snapshot_id = table.metadata.current_snapshot_id
    assert snapshot_id is not None
    compact(catalog, "a")
    append(catalog, [3])
    return append(catalog, [6], "b"), snapshot_id


def files(table: Table, kind: str) -> list[tuple[str, int]]:
    """Live files of a partition with their data sequence numbers."""
    return [(f.path, f.sequence_number) for f in small_files(table, kind)]


def files_at(catalog: Catalog, snapshot_id: int) -> set[str]:
    table = catalog.load_table("db.t")
    return {task.file.file_path for task in table.scan(snapshot_id=snapshot_id).plan_files()}


def contents(paths: set[str]) -> set[bytes]:
    """The bytes of some files."""
    return {local(path).read_bytes() for path in paths}


def data_files_needed(table: Table) -> set[str]:
    """Data and delete files that some snapshot of the table lists."""
    manifests = [m for s in table.metadata.snapshots for m in s.manifests(table.io)]
    return {entry.data_file.file_path for m in manifests for entry in m.fetch_manifest_entry(table.io)}


def unchanged(catalog: Catalog, before: Table) -> Table:
    """The table has the head and the refs that it had, and nothing of a failed restore is on storage."""
    table = catalog.load_table("db.t")
    check(table)
    assert data_files_on_disk(table) <= data_files_needed(table), "copies were left"
    assert table.metadata.current_snapshot_id == before.metadata.current_snapshot_id
    assert table.metadata.refs == before.metadata.refs
    assert metadata_files_on_disk(table) == referenced_metadata(table)
    return table


@contextmanager
def before_swap(number: int, action: Callable[[], object], point: str = "before-swap") -> Iterator[None]:
    """What happens just before a swap, or after it: the first is that of the tag, the second that of the overwrite."""
    reached = itertools.count(1)

    def act() -> None:
        if next(reached) == number:
            action()

    with failpoints.armed(point, act):
        yield


@pytest.fixture
def rival(catalog: Catalog, tmp_path: Path) -> Iterator[Catalog]:
    """A second handle on the same tables."""
    if isinstance(catalog, SqlCatalog):
        other = sqlite_catalog(tmp_path)
        yield other
        other.close()
    else:
        yield catalog


def test_a_partition_is_what_it_was(catalog: Catalog) -> None:
    """Merged and appended files go, copies of the old ones come as new files, in one overwrite without a tag."""
    before, snapshot_id = with_history(catalog)
    report = restored(catalog, snapshot_id)
    table = landed(catalog, [1, 2, 5, 6])
    assert operations(table) == ["append"] * 3 + ["replace"] + ["append"] * 2 + ["overwrite"]
    then = files_at(catalog, snapshot_id) - {files(before, "b")[0][0]}
    now = {path for path, _ in files(table, "a")}
    assert not then & now
    assert contents(then) == contents(now)
    assert [number for _, number in files(table, "a")] == [7, 7]
    assert files(table, "b") == files(before, "b")
    assert data_files_on_disk(table) == data_files_needed(table)
    assert set(table.metadata.refs) == {"main"}
    head = table.metadata.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert (report.snapshot_ids, report.operations) == ((head.snapshot_id,), ("overwrite",))
    assert (report.files_added, report.files_removed, report.partitions_touched) == (2, 2, 1)
    assert (report.table, report.rows, report.rows_before, report.rows_after) == ("lake.db.t", 0, 3, 2)
    assert report.bytes_written == report.bytes_copied == sum(local(path).stat().st_size for path in now)
    assert report.notes == (READERS.format(head.snapshot_id, "'streaming-skip-overwrite-snapshots'"),)
    facts = head.summary.additional_properties
    assert facts[RESTORED_ID] == str(snapshot_id)
    names = ("added-data-files", "added-records", "deleted-data-files", "deleted-records", "changed-partition-count")
    assert [facts[name] for name in names] == ["2", "2", "2", "3", "1"]
    assert metadata_files_on_disk(table) == referenced_metadata(table)


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("transforms", [{}, {"kind": "identity"}])
def test_formats_and_tables_without_partitions(lake: SqlCatalog, transforms: dict[str, str], version: str) -> None:
    """Format v1 and v2; an unpartitioned table is one partition."""
    make_table(lake, transforms, {"format-version": version})
    snapshot_id = append(lake, [1]).metadata.current_snapshot_id
    assert snapshot_id is not None
    table = append(lake, [2])
    run(lake, request_on(table, groups=[merged(table, small_files(table))]), table)
    restored(lake, snapshot_id, A if transforms else PartitionKey(0))
    assert len(live_paths(landed(lake, [1]))) == 1


def test_a_restore_can_be_undone(catalog: Catalog) -> None:
    """Back, and forth again to what the partition was before the restore, in files of a third name."""
    before, snapshot_id = with_history(catalog)
    latest = before.metadata.current_snapshot_id
    assert latest is not None
    restored(catalog, snapshot_id)
    restored(catalog, latest)
    table = landed(catalog, [1, 2, 3, 5, 6])
    assert contents({path for path, _ in files(table, "a")}) == contents({path for path, _ in files(before, "a")})


def test_files_that_are_still_there_stay(catalog: Catalog) -> None:
    """Rows that came later go; the file that has been there all the time is neither removed nor copied."""
    make_table(catalog)
    table = append(catalog, [1])
    snapshot_id = table.metadata.current_snapshot_id
    assert snapshot_id is not None
    append(catalog, [2])
    report = restored(catalog, snapshot_id)
    assert files(landed(catalog, [1]), "a") == files(table, "a")
    assert (report.files_added, report.files_removed, report.bytes_written) == (0, 1, 0)
    assert (report.rows_before, report.rows_after) == (2, 1)


def test_what_is_equal_already_is_not_committed(catalog: Catalog) -> None:
    """No tag, no snapshot: the metadata file stays the same one, and the report says why."""
    table, _ = with_history(catalog)
    latest = table.metadata.current_snapshot_id
    assert latest is not None
    report = restored(catalog, latest)
    assert catalog.load_table("db.t").metadata_location == table.metadata_location
    assert (report.snapshot_ids, report.files_added, report.files_removed) == ((), 0, 0)
    assert report.notes == (f"'kind=a' is what it was at snapshot {latest}",)


def test_a_forecast_changes_nothing(lake: SqlCatalog) -> None:
    """What would go and come, in files and rows, and what would be refused."""
    before, snapshot_id = with_history(lake)
    context = context_of(TableHandle(lake, ("db", "t")))
    report = restore(context, context.load(), A, snapshot_id, dry_run=True)
    assert (report.files_added, report.files_removed, report.rows_before, report.rows_after) == (2, 2, 3, 2)
    assert (report.snapshot_ids, report.operations, report.notes) == ((), (), ())
    with pytest.raises(TableError, match="it had no files there"):
        restore(context, context.load(), PartitionKey(0, ("x",)), snapshot_id, dry_run=True)
    unchanged(lake, before)


def listed_twice(catalog: Catalog) -> tuple[Table, int]:
    """One file listed by two snapshots; the id of the first of them."""
    table = make_table(catalog)
    file = write(table, [1])
    run(catalog, request_on(table, [file]), table)
    table = catalog.load_table("db.t")
    first = table.metadata.current_snapshot_id
    assert first is not None
    run(catalog, request_on(table, [file]), table)
    return catalog.load_table("db.t"), first


def test_a_file_that_was_listed_once_and_is_twice_is_copied(lake: SqlCatalog) -> None:
    """Were one listing removed while the other stays, an expiry by Java would take the file away."""
    _, first = listed_twice(lake)
    assert ids_of(lake) == [1, 1]
    report = restored(lake, first)
    landed(lake, [1])
    assert (report.files_added, report.files_removed) == (1, 2)


def test_a_file_that_was_listed_twice_and_is_merged_comes_back_twice(lake: SqlCatalog) -> None:
    """Two copies, each with a name of its own."""
    _, first = listed_twice(lake)
    second = append(lake, [2]).metadata.current_snapshot_id
    assert second is not None
    restored(lake, first)
    report = restored(lake, second)
    landed(lake, [1, 1, 2])
    assert (report.files_added, report.files_removed) == (3, 1)


def test_a_file_of_another_partition_too_is_refused(lake: SqlCatalog) -> None:
    """It would have to go from one partition and to stay in the other."""
    table = make_table(lake)
    snapshot_id = append(lake, [1]).metadata.current_snapshot_id
    assert snapshot_id is not None
    file = write(table, [2])
    elsewhere = replace(file, partition=PartitionKey(0, ("b",)))
    table = lake.load_table("db.t")
    run(lake, request_on(table, [file, elsewhere]), table)
    before = lake.load_table("db.t")
    with pytest.raises(UnsupportedTable, match=f"{file.path} is listed in another partition as well, where it has to"):
        restored(lake, snapshot_id)
    assert lake.load_table("db.t").metadata.refs == before.metadata.refs


def test_names_of_copies(lake: SqlCatalog) -> None:
    """The run's own, which orphan cleanup knows; a copy of a clustered file stays in its set."""
    names = FileNames(set_prefix("0123abcd", "a1b2", 3, True), 4, 0)
    old = f"s3://b/t/data/kind=a/{names.next()}"
    assert set_of(f"{FileNames(copy_prefix(old, 'run-0'), 0, 0).next()}") == set_of(old)
    assert copy_prefix("s3://b/t/data/kind=a/00000-1-x.parquet", "run-0") == "run-0"


def test_it_is_tagged_while_it_works_and_for_a_day_after_a_crash(catalog: Catalog) -> None:
    """Killed before the overwrite, the tag is left; as a tag is as old as its snapshot, its age allows for that."""
    before, snapshot_id = with_history(catalog)
    tags: list[Any] = []

    def look() -> None:
        refs = catalog.load_table("db.t").metadata.refs
        tags.extend(ref for name, ref in refs.items() if name.startswith(f"{TAG_PREFIX}restore-"))

    with before_swap(2, look):
        restored(catalog, snapshot_id)
    made = before.metadata.snapshot_by_id(snapshot_id)
    assert made is not None
    (tag,) = tags
    assert (tag.snapshot_ref_type.value, tag.snapshot_id) == ("tag", snapshot_id)
    assert tag.max_ref_age_ms == before.metadata.last_updated_ms + AGE_MS - made.timestamp_ms + DAY_MS


def test_rows_of_batches_that_are_gone_are_named(lake: SqlCatalog) -> None:
    """The ledger is not rolled back: batches that wrote here after the version stay committed, and are told."""
    make_table(lake)
    append(lake, [1], batch=0)
    snapshot_id = append(lake, [2], batch=1).metadata.current_snapshot_id
    assert snapshot_id is not None
    append(lake, [3], batch=2)
    append(lake, [9], "b", batch=3)
    append(lake, [4], batch=4)
    compact(lake, "a")
    ledger = {k: v for k, v in lake.load_table("db.t").properties.items() if k.startswith("icesize.stream.")}
    report = restored(lake, snapshot_id)
    table = landed(lake, [1, 2, 9])
    assert {k: v for k, v in table.properties.items() if k.startswith("icesize.stream.")} == ledger
    assert report.notes[1:] == (
        "rows of stream 's' are gone from the partition and will not be replayed: 2 batches (2 to 4) stay marked as "
        "committed",
    )


def test_the_batch_of_the_version_itself_is_not_gone(lake: SqlCatalog) -> None:
    """Its append and its merge are one commit: going back to either keeps its rows."""
    make_table(lake)
    table = append(lake, [1], batch=0)
    new = write(table, [2])
    run(lake, request_on(table, [new], [merged(table, small_files(table))], batch=1), table)
    table = append(lake, [3], batch=2)
    first = table.metadata.snapshots[1].snapshot_id
    report = restored(lake, first)
    landed(lake, [1, 2])
    assert report.notes[1:] == (
        "rows of stream 's' are gone from the partition and will not be replayed: batch 2 stays marked as committed",
    )


def test_a_newer_schema_is_told(lake: SqlCatalog) -> None:
    """Old files are read by field id, so a column that came later is NULL in them."""
    _, snapshot_id = with_history(lake)
    with lake.load_table("db.t").update_schema() as update:
        update.add_column("note", StringType())
    report = restored(lake, snapshot_id)
    assert report.notes[1:] == (
        "the schema has changed since that version: columns that came later are NULL in its rows",
    )
    assert lake.load_table("db.t").scan().to_arrow()["note"].null_count == 4


def test_an_unknown_snapshot_is_refused(lake: SqlCatalog) -> None:
    """Expired, of another table, or mistyped: nothing is tagged or changed."""
    before, _ = with_history(lake)
    with pytest.raises(TableError, match=r"Cannot find snapshot 42: it has expired or is of another table"):
        restored(lake, 42)
    unchanged(lake, before)


def test_a_version_without_files_is_refused(lake: SqlCatalog) -> None:
    """The partition came later: restoring would empty it."""
    before, snapshot_id = with_history(lake)
    first = before.metadata.snapshots[0].snapshot_id
    with pytest.raises(TableError, match=rf"'kind=b' of 'lake\.db\.t' to snapshot {first}: it had no files there"):
        restored(lake, first, PartitionKey(0, ("b",)))
    with pytest.raises(TableError, match=r"'kind=x'.*it had no files there"):
        restored(lake, snapshot_id, PartitionKey(0, ("x",)))
    unchanged(lake, before)


def test_a_changed_partition_spec_is_refused(lake: SqlCatalog) -> None:
    """Newer rows of the partition lie under the new spec, out of reach of a restore by files."""
    _, snapshot_id = with_history(lake)
    with lake.load_table("db.t").update_spec() as update:
        update.add_field("id", "bucket[4]", "id_bucket")
    before = lake.load_table("db.t")
    with pytest.raises(UnsupportedTable, match=r"is of spec 0, the table's current partition spec is 1"):
        restored(lake, snapshot_id)
    unchanged(lake, before)


def test_a_file_that_is_gone_is_named(lake: SqlCatalog) -> None:
    """Deleted from storage by whoever: refused before anything is tagged."""
    before, snapshot_id = with_history(lake)
    with_file, *_ = sorted(files_at(lake, snapshot_id) - {files(before, "b")[0][0]})
    before.io.delete(with_file)
    with pytest.raises(TableError, match=rf"to snapshot {snapshot_id}: {with_file} is gone") as caught:
        restored(lake, snapshot_id)
    assert caught.value.missing == [with_file]
    unchanged(lake, before)


def test_how_many_more_files_are_gone_is_told(lake: SqlCatalog) -> None:
    """Two of two files."""
    before, snapshot_id = with_history(lake)
    for path in files_at(lake, snapshot_id) - {files(before, "b")[0][0]}:
        before.io.delete(path)
    with pytest.raises(TableError, match="and 1 more of its 2 files are gone"):
        restored(lake, snapshot_id)


def test_newer_deletes_do_not_reach_what_comes_back(catalog: Catalog) -> None:
    """Neither an equality delete on the whole partition nor one by positions: the copies are newer than both."""
    _, snapshot_id = with_history(catalog)
    before = catalog.load_table("db.t")
    then = files_at(catalog, snapshot_id) - {files(before, "b")[0][0]}
    input_file = small_files(before, "a")[0]
    delete_rows(catalog, input_file)
    delete_ids(catalog, input_file, [1])
    restored(catalog, snapshot_id)
    table = catalog.load_table("db.t")
    check(table)
    # PyIceberg refuses to read tables with equality deletes; whether these reach a file is a matter of numbers alone
    assert {number for _, number in files(table, "a")} == {table.metadata.last_sequence_number}
    assert contents({path for path, _ in files(table, "a")}) == contents(then)


def test_a_file_with_newer_deletes_is_copied(lake: SqlCatalog) -> None:
    """It is still there, but a row of it was deleted since: the copy has the row, the deletes do not reach it."""
    make_table(lake)
    table = append(lake, [1, 2])
    snapshot_id = table.metadata.current_snapshot_id
    assert snapshot_id is not None
    delete_rows(lake, small_files(table)[0])
    assert ids_of(lake) == [2]
    report = restored(lake, snapshot_id)
    assert ids_of(lake) == [1, 2]
    assert not removed_and_live(lake.load_table("db.t"))
    assert (report.files_added, report.files_removed) == (1, 1)


def test_deletes_that_went_apply_again(lake: SqlCatalog) -> None:
    """The version had a row deleted; its delete file went with a rival's snapshot: the file is written without it."""
    make_table(lake)
    table = append(lake, [1, 2])
    clean = table.metadata.current_snapshot()
    assert clean is not None
    deleted = delete_rows(lake, small_files(table)[0]).metadata.current_snapshot_id
    assert deleted is not None
    lake.load_table("db.t").manage_snapshots().rollback_to_snapshot(clean.snapshot_id).commit()
    append(lake, [3])
    report = restored(lake, deleted)
    landed(lake, [2])
    assert (report.files_added, report.files_removed, report.rows_before, report.rows_after) == (1, 2, 3, 1)


def replaced(catalog: Catalog, gone: Sequence[FileFact], ids: Sequence[int] = ()) -> Table:
    """Another engine puts these rows in the place of files; what was deleted goes with them."""
    table = catalog.load_table("db.t")
    with SnapshotBuilder(table, table.metadata.last_updated_ms) as builder:
        snapshot = overwritten(builder, [file.path for file in gone], [write(table, ids)] if ids else [])
    make_visible(catalog, table, [snapshot])
    return catalog.load_table("db.t")


def rows_at(catalog: Catalog, snapshot_id: int | None = None) -> list[int]:
    """What a reader of a snapshot sees, or of the newest, deletes of both kinds applied."""
    table = catalog.load_table("db.t")
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id else table.metadata.current_snapshot()
    assert snapshot is not None
    return sorted(row[0] for (_, row), times in Reader().rows(snapshot, table.io).items() for _ in range(times))


def test_files_with_deletes_come_back_without_the_deleted_rows(catalog: Catalog) -> None:
    """By position and by equality, each by the number of its file; clean ones are copied, one without rows stays away;
    none of the deletes reaches what came back."""
    make_table(catalog)
    append(catalog, [1, 2, 3])
    append(catalog, [4])
    table = append(catalog, [5, 6])
    first, second, third = small_files(table)
    delete_positions(table, {first.path: [0], third.path: [1]})
    delete_ids(catalog, first, [2, 4])
    append(catalog, [2])
    append(catalog, [8], "b")
    then = catalog.load_table("db.t").metadata.current_snapshot_id
    assert then is not None
    assert rows_at(catalog) == [2, 3, 5, 8]
    clean = files(catalog.load_table("db.t"), "a")[-1][0]
    replaced(catalog, small_files(catalog.load_table("db.t"), "a"), [70])
    context = context_of(TableHandle(catalog, ("db", "t")))
    forecast = restore(context, context.load(), A, then, dry_run=True)
    assert (forecast.files_added, forecast.files_removed, forecast.rows_before) == (4, 1, 1)
    report = restored(catalog, then)
    after = catalog.load_table("db.t")
    check(after)
    assert rows_at(catalog) == [2, 3, 5, 8]
    assert rows_at(catalog, then) == [2, 3, 5, 8]
    assert (report.files_added, report.files_removed, report.rows_before, report.rows_after) == (3, 1, 1, 3)
    assert {number for _, number in files(after, "a")} == {after.metadata.last_sequence_number}
    assert contents({clean}) < contents({path for path, _ in files(after, "a")})
    assert second.path not in live_paths(after)
    assert report.bytes_written == sum(local(path).stat().st_size for path, _ in files(after, "a"))
    assert report.notes[1:] == (
        "3 files of that version had deletes: they were written again without the deleted rows",
    )
    assert data_files_on_disk(after) == data_files_needed(after)


def test_a_version_whose_rows_were_all_deleted_is_empty_again(lake: SqlCatalog) -> None:
    """Nothing comes back, what came since goes."""
    make_table(lake)
    file = small_files(append(lake, [1]))[0]
    then = delete_rows(lake, file).metadata.current_snapshot_id
    assert then is not None
    replaced(lake, [file], [2])
    report = restored(lake, then)
    landed(lake, [])
    assert (report.files_added, report.files_removed, report.rows_after) == (0, 1, 0)


def test_a_file_that_stays_with_other_deletes_is_written_again(lake: SqlCatalog) -> None:
    """One row was deleted then, another since: the version's deletes alone apply, and a file without new ones stays."""
    make_table(lake)
    append(lake, [1, 2])
    table = append(lake, [3, 4])
    first, second = small_files(table)
    delete_rows(lake, second)
    then = delete_rows(lake, first).metadata.current_snapshot_id
    assert then is not None
    delete_rows(lake, first, [1])
    assert ids_of(lake) == [4]
    report = restored(lake, then)
    table = landed(lake, [2, 4])
    assert (report.files_added, report.files_removed) == (1, 1)
    assert second.path in live_paths(table)


@given(data=st.data())
@examples(25)
def test_any_version_comes_back_with_its_rows(data: st.DataObject) -> None:
    """After any history of appends, deletes of both kinds, merges and overwrites: the rows of the version in its
    partition, those of now in the other."""
    with TemporaryDirectory() as folder:
        lake = sqlite_catalog(Path(folder))
        make_table(lake)
        append(lake, range(3))
        append(lake, [50], "b")
        known = []
        for number in range(data.draw(st.integers(1, 8))):
            change_rows(lake, data, 3 * number + 3)
            known.append((lake.load_table("db.t").metadata.current_snapshot_id, rows_at(lake)))
        snapshot_id, rows = data.draw(st.sampled_from(known))
        assert snapshot_id is not None
        if not small_at(lake, snapshot_id):
            return
        restored(lake, snapshot_id)
        assert rows_at(lake) == rows
        check(lake.load_table("db.t"))
        lake.close()


def small_at(catalog: Catalog, snapshot_id: int) -> list[Any]:
    """Data files of partition a at a snapshot."""
    table = catalog.load_table("db.t")
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    return files_of_version(table.metadata, table.io, snapshot, A)


def change_rows(catalog: Catalog, data: st.DataObject, next_id: int) -> None:
    """Something happens to partition a."""
    live = small_files(catalog.load_table("db.t"), "a")
    verb = data.draw(st.sampled_from(["append", "positions", "equality", "merge", "overwrite"]))
    if verb == "append" or not live:
        append(catalog, range(next_id, next_id + 3))
    elif verb == "positions":
        chosen = data.draw(st.lists(st.sampled_from(live), min_size=1, max_size=2, unique_by=lambda f: f.path))
        positions = {f.path: [data.draw(st.integers(0, f.rows - 1))] for f in chosen}
        delete_positions(catalog.load_table("db.t"), positions)
    elif verb == "equality":
        delete_ids(catalog, live[0], data.draw(st.lists(st.integers(0, next_id), min_size=1, max_size=3)))
    elif verb == "merge":
        compact(catalog, "a")
    else:
        replaced(catalog, live[:1], [next_id])


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda columns: {"obstacles": np.full_like(columns.status, 2)}, "the files are encrypted"),
        (lambda columns: {"obstacles": np.ones_like(columns.status)}, "the files are not Parquet"),
    ],
)
def test_deletes_that_cannot_be_applied_are_refused(
    lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Columns], dict[str, Any]], why: str
) -> None:
    """A byte copy of such a file would bring its deleted rows back."""
    make_table(lake)
    file = small_files(append(lake, [1, 2]))[0]
    then = delete_rows(lake, file).metadata.current_snapshot_id
    assert then is not None
    before = replaced(lake, [file], [3])
    read = store.read_facts

    def damaged(io: FileIO, manifest: ManifestFile) -> ManifestFacts:
        columns = read(io, manifest).columns
        is_data = manifest.content == ManifestContent.DATA
        return ManifestFacts(manifest, replace(columns, **damage(columns)) if is_data else columns)

    monkeypatch.setattr(store, "read_facts", damaged)
    with pytest.raises(TableError, match=f"deletes were pending on 1 file of that version, and {why}, so deleted rows"):
        restored(lake, then)
    unchanged(lake, before)


def test_a_delete_file_that_is_gone_is_refused(lake: SqlCatalog) -> None:
    """Before anything is written, named as a data file is."""
    make_table(lake)
    file = small_files(append(lake, [1, 2]))[0]
    table = delete_rows(lake, file)
    then = table.metadata.current_snapshot_id
    assert then is not None
    gone = live_deletes(table)[0].data_file.file_path
    before = replaced(lake, [file], [3])
    before.io.delete(gone)
    with pytest.raises(TableError, match=f"{gone} is gone"):
        restored(lake, then)
    assert lake.load_table("db.t").metadata.refs == before.metadata.refs
    assert ids_of(lake) == [3]


def test_a_delete_file_that_is_damaged_leaves_nothing_behind(lake: SqlCatalog) -> None:
    """The tag goes, and so do the files that were written before it was read."""
    make_table(lake)
    file = small_files(append(lake, [1, 2]))[0]
    table = delete_rows(lake, file)
    append(lake, [4])
    then = lake.load_table("db.t").metadata.current_snapshot_id
    assert then is not None
    entry = live_deletes(table)[0].data_file
    before = replaced(lake, small_files(lake.load_table("db.t")), [3])
    local(entry.file_path).write_bytes(b"x" * entry.file_size_in_bytes)
    with pytest.raises(RewriteFailed, match=f"Cannot apply the deletes in {entry.file_path}"):
        restored(lake, then)
    unchanged(lake, before)


def test_deletes_of_other_partitions_do_not_matter(lake: SqlCatalog) -> None:
    """They cannot apply here."""
    before, snapshot_id = with_history(lake)
    delete_rows(lake, small_files(before, "b")[0])
    restored(lake, snapshot_id)
    assert ids_of(lake) == [1, 2, 6]


def test_deletes_that_the_version_had_apply_again(lake: SqlCatalog) -> None:
    """Deleted then and deleted now: the file has been there all the time, and so has its delete file."""
    make_table(lake)
    table = append(lake, [1, 2])
    snapshot_id = delete_rows(lake, small_files(table)[0]).metadata.current_snapshot_id
    assert snapshot_id is not None
    append(lake, [3])
    restored(lake, snapshot_id)
    assert ids_of(lake) == [2]


def test_an_append_elsewhere_costs_one_more_attempt(catalog: Catalog, rival: Catalog) -> None:
    """Another partition changes just before the swap: both land, and no manifest is left over."""
    _, snapshot_id = with_history(catalog)
    with before_swap(2, lambda: append(rival, [7], "b")):
        restored(catalog, snapshot_id)
    table = landed(catalog, [1, 2, 5, 6, 7])
    assert operations(table)[-2:] == ["append", "overwrite"]
    assert set(table.metadata.refs) == {"main"}
    assert metadata_files_on_disk(table) == referenced_metadata(table)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("change", ["append", "compact"])
def test_a_partition_that_changes_meanwhile_is_left_alone(
    catalog: Catalog, rival: Catalog, change: str, number: int
) -> None:
    """Whoever asked did not see the new rows: they stay, whenever they came, and the tag goes."""
    before, snapshot_id = with_history(catalog)

    def act() -> None:
        if change == "append":
            append(rival, [7])
        else:
            compact(rival, "a")

    with (
        before_swap(number, act),
        pytest.raises(CommitConflict, match="another writer changed the partition during the restore"),
    ):
        restored(catalog, snapshot_id)
    table = landed(catalog, [1, 2, 3, 5, 6, 7] if change == "append" else [1, 2, 3, 5, 6])
    assert set(table.metadata.refs) == {"main"}
    assert len(table.metadata.snapshots) == len(before.metadata.snapshots) + 1
    assert metadata_files_on_disk(table) == referenced_metadata(table)


def rival_expiry(catalog: Catalog, snapshot_id: int) -> None:
    """Somebody removes our tag and the snapshot, whatever the tag's age."""
    table = catalog.load_table("db.t")
    tags = [name for name in table.metadata.refs if name.startswith(TAG_PREFIX)]
    updates: list[TableUpdate] = [RemoveSnapshotRefUpdate(ref_name=name) for name in tags]
    updates.append(RemoveSnapshotsUpdate(snapshot_ids=[snapshot_id]))
    catalog.commit_table(table, (), tuple(updates))


def test_a_snapshot_that_expires_meanwhile_is_refused(catalog: Catalog, rival: Catalog) -> None:
    """In spite of the tag, which goes with it: nothing has changed, nothing is left."""
    before, snapshot_id = with_history(catalog)
    with (
        before_swap(2, lambda: rival_expiry(rival, snapshot_id)),
        pytest.raises(TableError, match=f"Cannot find snapshot {snapshot_id}"),
    ):
        restored(catalog, snapshot_id)
    table = landed(catalog, [1, 2, 3, 5, 6])
    assert table.metadata.refs == before.metadata.refs


def test_a_snapshot_that_expires_before_it_is_tagged_is_refused(lake: SqlCatalog, tmp_path: Path) -> None:
    """PyIceberg's catalog says so in a plain ValueError, which is a lost race."""
    before, snapshot_id = with_history(lake)
    rival = sqlite_catalog(tmp_path)
    with (
        before_swap(1, lambda: rival_expiry(rival, snapshot_id)),
        pytest.raises(TableError, match=f"Cannot find snapshot {snapshot_id}"),
    ):
        restored(lake, snapshot_id)
    rival.close()
    table = landed(lake, [1, 2, 3, 5, 6])
    assert table.metadata.refs == before.metadata.refs


def test_a_tag_that_somebody_removed_is_noticed(catalog: Catalog, rival: Catalog) -> None:
    """The snapshot is still there, but nothing holds it any more."""
    before, snapshot_id = with_history(catalog)

    def untag() -> None:
        table = rival.load_table("db.t")
        (name,) = [n for n in table.metadata.refs if n.startswith(TAG_PREFIX)]
        rival.commit_table(table, (), (RemoveSnapshotRefUpdate(ref_name=name),))

    with before_swap(2, untag), pytest.raises(TableError, match=f"another writer removed tag '{TAG_PREFIX}"):
        restored(catalog, snapshot_id)
    unchanged(catalog, before)


def test_a_file_that_goes_meanwhile_is_named_and_the_tag_goes(catalog: Catalog) -> None:
    """Deleted after the first check, before the second: refused, and nothing is left."""
    before, snapshot_id = with_history(catalog)
    gone, *_ = sorted(files_at(catalog, snapshot_id) - {files(before, "b")[0][0]})
    with before_swap(1, lambda: before.io.delete(gone)), pytest.raises(TableError, match=f"{gone} is gone"):
        restored(catalog, snapshot_id)
    unchanged(catalog, before)


def test_a_location_provider_that_fails_leaves_no_tag(lake: SqlCatalog) -> None:
    """New files cannot be named: refused before the snapshot is tagged."""
    before, snapshot_id = with_history(lake)
    handle = TableHandle(lake, ("db", "t"))
    current = handle.load()
    table, properties = current.table, {"write.py-location-provider.impl": "no.such.Provider"}
    odd = table.metadata.model_copy(update={"properties": properties})
    current = replace(current, table=Table(table.name(), odd, table.metadata_location, table.io, table.catalog))
    with pytest.raises(TableError, match=r"Cannot name new files of 'lake\.db\.t': .* check its location provider"):
        restore(context_of(handle), current, A, snapshot_id)
    unchanged(lake, before)


def test_deletes_that_land_meanwhile_are_noticed(catalog: Catalog, rival: Catalog) -> None:
    """A delete in the partition comes between check and swap: the restore is refused on the new head."""
    before, snapshot_id = with_history(catalog)
    input_file = small_files(before, "a")[0]
    with (
        before_swap(2, lambda: delete_rows(rival, input_file)),
        pytest.raises(CommitConflict, match="another writer changed the partition during the restore"),
    ):
        restored(catalog, snapshot_id)
    table = catalog.load_table("db.t")
    assert set(table.metadata.refs) == {"main"}
    assert operations(table)[-1] == "delete"


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", [500, 503, "reset", "truncated"])
def test_a_lost_answer_lands_it_once(mini: MiniRest, kind: int | str, when: Any, number: int) -> None:
    """Of the tag or of the overwrite, landed or not: one overwrite in the end, no tag, the report as ever."""
    catalog = mini.catalog("lake")
    _, snapshot_id = with_history(catalog)
    with before_swap(number, lambda: mini.fail_next_commit(Fault(kind, when))):
        report = restored(catalog, snapshot_id)
    table = landed(catalog, [1, 2, 5, 6])
    assert operations(table).count("overwrite") == 1
    assert report.snapshot_ids == (table.metadata.current_snapshot_id,)
    assert (report.files_added, report.files_removed) == (2, 2)
    assert set(table.metadata.refs) == {"main"}


def test_an_unknown_outcome_leaves_the_tag_and_says_so(mini: MiniRest) -> None:
    """The overwrite is never answered: it may still land, so the tag stays, and the message names it."""
    catalog = mini.catalog("lake")
    _, snapshot_id = with_history(catalog)
    with (
        before_swap(2, lambda: mini.fail_next_commit(*[Fault(503)] * 10)),
        pytest.raises(CommitStateUnknown, match=rf"{RUN_ID}=restore-\d+; restoring again is safe\. Tag '{TAG_PREFIX}"),
    ):
        restored(catalog, snapshot_id)
    table = landed(catalog, [1, 2, 3, 5, 6])
    (tag,) = set(table.metadata.refs) - {"main"}
    assert tag.startswith(TAG_PREFIX)


def test_an_interrupted_restore_removes_its_tag(catalog: Catalog) -> None:
    """Stopped before the overwrite is asked for."""
    before, snapshot_id = with_history(catalog)

    def stop() -> None:
        raise KeyboardInterrupt

    with before_swap(2, stop), pytest.raises(KeyboardInterrupt):
        restored(catalog, snapshot_id)
    unchanged(catalog, before)


def test_an_interrupted_restore_removes_files_without_deleted_rows(lake: SqlCatalog) -> None:
    """They are written in this process, beside the copies, and go with them."""
    make_table(lake)
    table = append(lake, [1, 2])
    then = delete_rows(lake, small_files(table)[0]).metadata.current_snapshot_id
    assert then is not None
    append(lake, [3])
    before = delete_rows(lake, small_files(table)[0], [1])

    def stop() -> None:
        assert len(data_files_on_disk(before)) > len(data_files_needed(before)), "the file is written by then"
        raise KeyboardInterrupt

    with before_swap(2, stop), pytest.raises(KeyboardInterrupt):
        restored(lake, then)
    unchanged(lake, before)


def test_a_restore_that_is_interrupted_after_it_landed_keeps_its_copies(catalog: Catalog) -> None:
    """The call never heard of it, and the partition is what it was all the same."""
    before, snapshot_id = with_history(catalog)

    def stop() -> None:
        raise KeyboardInterrupt

    with before_swap(2, stop, "after-swap"), pytest.raises(KeyboardInterrupt):
        restored(catalog, snapshot_id)
    table = catalog.load_table("db.t")
    check(table)
    assert table.metadata.current_snapshot().summary[RESTORED_ID] == str(snapshot_id)
    assert set(live_paths(table)) - set(live_paths(before)), "nothing was copied"


def test_rows_that_moved_to_another_spec_are_refused(lake: SqlCatalog) -> None:
    """A rival has rewritten old files into the current spec: without the new ones their rows would be lost."""
    make_table(lake, {})
    append(lake, [1, 2])
    with lake.load_table("db.t").update_spec() as update:
        update.add_identity("kind")
    snapshot_id = append(lake, [3]).metadata.current_snapshot_id
    assert snapshot_id is not None
    table = lake.load_table("db.t")
    table.overwrite(table.scan().to_arrow())
    before = lake.load_table("db.t")
    with pytest.raises(UnsupportedTable, match="files of other partition specs have changed since"):
        restored(lake, snapshot_id, PartitionKey(1, ("a",)))
    unchanged(lake, before)
    assert ids_of(lake) == [1, 2, 3]


def test_a_spec_that_came_back_is_refused(lake: SqlCatalog) -> None:
    """Newer rows lie under the spec that held in between, out of reach of a restore by files of the first."""
    make_table(lake)
    snapshot_id = append(lake, [1]).metadata.current_snapshot_id
    assert snapshot_id is not None
    with lake.load_table("db.t").update_spec() as update:
        update.add_field("id", "bucket[4]", "id_bucket")
    append(lake, [2])
    with lake.load_table("db.t").update_spec() as update:
        update.remove_field("id_bucket")
    before = append(lake, [3])
    assert before.metadata.default_spec_id == A.spec_id
    with pytest.raises(UnsupportedTable, match="files of other partition specs have changed since"):
        restored(lake, snapshot_id)
    unchanged(lake, before)
    assert ids_of(lake) == [1, 2, 3]
