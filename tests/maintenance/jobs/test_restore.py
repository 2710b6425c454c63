"""Restoring a partition: its rows as they were, everything else as it is, or a refusal that changes nothing.

`landed` and `check` look at every restored table whether a live file is among those that a snapshot has removed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.types import StringType

from icesize.errors import TableError, UnsupportedTable
from icesize.maintenance.jobs.restore import TAG_PREFIX, restore
from icesize.parquet.files.names import FileNames, copy_prefix, set_of, set_prefix
from icesize.planning.files import PartitionKey
from icesize.table.records.summary import RESTORED_ID
from icesize.table.state.handle import TableHandle
from tests.support.jobs import context_of
from tests.support.restored import (
    AGE_MS,
    DAY_MS,
    A,
    assert_unchanged,
    before_swap,
    contents,
    data_files_needed,
    files_at,
    numbered_files,
    restored,
    with_history,
)
from tests.support.tables import (
    append,
    compact,
    data_files_on_disk,
    ids_of,
    landed,
    live_paths,
    local,
    make_table,
    merged,
    metadata_files_on_disk,
    operations,
    referenced_metadata,
    request_on,
    run,
    small_files,
    write,
)

READERS = "stream readers of this table stop at snapshot {}, an overwrite (Spark continues with {})"


def test_a_partition_is_what_it_was(catalog: Catalog) -> None:
    """Merged and appended files go, copies of the old ones come as new files, in one overwrite without a tag."""
    before, snapshot_id = with_history(catalog)
    metadata_before = metadata_files_on_disk(before)
    report = restored(catalog, snapshot_id)
    table = landed(catalog, [1, 2, 5, 6])
    assert operations(table) == ["append"] * 3 + ["replace"] + ["append"] * 2 + ["overwrite"]
    then = files_at(catalog, snapshot_id) - {numbered_files(before, "b")[0][0]}
    now = {path for path, _ in numbered_files(table, "a")}
    assert not then & now
    assert contents(then) == contents(now)
    assert [number for _, number in numbered_files(table, "a")] == [7, 7]
    assert numbered_files(table, "b") == numbered_files(before, "b")
    assert data_files_on_disk(table) == data_files_needed(table)
    assert set(table.metadata.refs) == {"main"}
    head = table.metadata.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert (report.snapshot_ids, report.operations) == ((head.snapshot_id,), ("overwrite",))
    assert (report.files_added, report.files_removed, report.partitions_touched) == (2, 2, 1)
    assert (report.table, report.rows, report.rows_before, report.rows_after) == ("lake.db.t", 0, 3, 2)
    assert report.bytes_written == report.bytes_copied == sum(local(path).stat().st_size for path in now)
    new = metadata_files_on_disk(table) - metadata_before
    assert report.metadata_bytes_written == sum(local(path).stat().st_size for path in new)
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
    assert contents({path for path, _ in numbered_files(table, "a")}) == contents(
        {path for path, _ in numbered_files(before, "a")}
    )


def test_files_that_are_still_there_stay(catalog: Catalog) -> None:
    """Rows that came later go; the file that has been there all the time is neither removed nor copied."""
    make_table(catalog)
    table = append(catalog, [1])
    snapshot_id = table.metadata.current_snapshot_id
    assert snapshot_id is not None
    append(catalog, [2])
    report = restored(catalog, snapshot_id)
    assert numbered_files(landed(catalog, [1]), "a") == numbered_files(table, "a")
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
    assert_unchanged(lake, before)


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
        "the schema has changed since that version: columns that came later are NULL in its rows, or have their "
        "initial default",
    )
    assert lake.load_table("db.t").scan().to_arrow()["note"].null_count == 4


def test_an_unknown_snapshot_is_refused(lake: SqlCatalog) -> None:
    """Expired, of another table, or mistyped: nothing is tagged or changed."""
    before, _ = with_history(lake)
    with pytest.raises(TableError, match=r"Cannot find snapshot 42: it has expired or is of another table"):
        restored(lake, 42)
    assert_unchanged(lake, before)


def test_a_version_without_files_is_refused(lake: SqlCatalog) -> None:
    """The partition came later: restoring would empty it."""
    before, snapshot_id = with_history(lake)
    first = before.metadata.snapshots[0].snapshot_id
    with pytest.raises(TableError, match=rf"'kind=b' of 'lake\.db\.t' to snapshot {first}: it had no files there"):
        restored(lake, first, PartitionKey(0, ("b",)))
    with pytest.raises(TableError, match=r"'kind=x'.*it had no files there"):
        restored(lake, snapshot_id, PartitionKey(0, ("x",)))
    assert_unchanged(lake, before)


def test_a_changed_partition_spec_is_refused(lake: SqlCatalog) -> None:
    """Newer rows of the partition lie under the new spec, out of reach of a restore by files."""
    _, snapshot_id = with_history(lake)
    with lake.load_table("db.t").update_spec() as update:
        update.add_field("id", "bucket[4]", "id_bucket")
    before = lake.load_table("db.t")
    with pytest.raises(UnsupportedTable, match=r"is of spec 0, the table's current partition spec is 1"):
        restored(lake, snapshot_id)
    assert_unchanged(lake, before)


def test_a_file_that_is_gone_is_named(lake: SqlCatalog) -> None:
    """Deleted from storage by whoever: refused before anything is tagged."""
    before, snapshot_id = with_history(lake)
    with_file, *_ = sorted(files_at(lake, snapshot_id) - {numbered_files(before, "b")[0][0]})
    before.io.delete(with_file)
    with pytest.raises(TableError, match=rf"to snapshot {snapshot_id}: {with_file} is gone") as caught:
        restored(lake, snapshot_id)
    assert caught.value.missing == [with_file]
    assert_unchanged(lake, before)


def test_how_many_more_files_are_gone_is_told(lake: SqlCatalog) -> None:
    """Two of two files."""
    before, snapshot_id = with_history(lake)
    for path in files_at(lake, snapshot_id) - {numbered_files(before, "b")[0][0]}:
        before.io.delete(path)
    with pytest.raises(TableError, match="and 1 more of its 2 files are gone"):
        restored(lake, snapshot_id)


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
    assert_unchanged(lake, before)
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
    assert_unchanged(lake, before)
    assert ids_of(lake) == [1, 2, 3]
