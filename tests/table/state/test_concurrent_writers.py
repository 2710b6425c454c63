"""What other writers did to a table is read from its newest snapshots."""

from __future__ import annotations

from dataclasses import replace

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

import icesize
from icesize.environment import Environment
from icesize.planning.files import PartitionKey
from icesize.planning.merging.contention import COOLDOWN_MS, QUIET_MS
from icesize.table.records.ledger import LedgerEntry
from icesize.table.state.concurrent_writers import ConcurrentWriters, other_compactors, rolled_back
from tests.support.delete_files import upsert
from tests.support.row_deletes import delete_rows
from tests.support.tables import append, arrow, compact, landed, make_table, small_files, two_files

A = PartitionKey(0, ("a",))


def changed(catalog: SqlCatalog, row: int) -> Table:
    """Another writer deletes a row, copy-on-write: the file that held it makes room for one without it."""
    catalog.load_table("db.t").delete(f"id = {row}")
    return catalog.load_table("db.t")


def pairs(catalog: SqlCatalog, count: int) -> None:
    """Partition `a` in files of two rows: 0 and 1, 2 and 3, ..."""
    make_table(catalog)
    for number in range(count):
        append(catalog, [2 * number, 2 * number + 1])


def newest_ms(table: Table) -> int:
    head = table.metadata.current_snapshot()
    assert head is not None
    return head.timestamp_ms


def at(snapshot: Snapshot, timestamp_ms: int, **others: object) -> Snapshot:
    return snapshot.model_copy(update={"timestamp_ms": timestamp_ms, **others})


def only(table: Table, timestamp_ms: int) -> TableMetadata:
    """The table after all snapshots but the newest have expired, as if that were of another time."""
    head = at(table.metadata.snapshots[-1], timestamp_ms, parent_snapshot_id=None)
    return table.metadata.model_copy(update={"snapshots": [head]})


def waits(rivals: ConcurrentWriters, table: Table, after_ms: int = 0) -> frozenset[PartitionKey]:
    return rivals.contested(table.metadata, table.io, newest_ms(table) + after_ms)


def test_a_rivals_change_keeps_merges_away_until_it_is_quiet(lake: SqlCatalog) -> None:
    """Partitions that another writer changed wait ten minutes; appends of others and all that is ours do not matter."""
    pairs(lake, 2)
    append(lake, [10], "b")
    compact(lake, "b")
    rivals = ConcurrentWriters()
    lake.load_table("db.t").append(arrow([11], "b"))
    assert waits(rivals, lake.load_table("db.t")) == set()
    table = changed(lake, 0)
    assert waits(rivals, table) == {A}
    assert waits(ConcurrentWriters(), table, QUIET_MS - 1) == {A}
    assert waits(rivals, table, QUIET_MS) == set()


def test_upserts_by_equality_keep_no_merge_away(lake: SqlCatalog) -> None:
    """Who writes rows in place of those with equal keys needs no older file; who deletes by position does."""
    pairs(lake, 2)
    table = upsert(lake.load_table("db.t"), arrow([1, 1, 7]), ["id", "kind"])
    assert waits(ConcurrentWriters(), table) == set()
    table = delete_rows(lake, small_files(table, "a")[0])
    assert waits(ConcurrentWriters(), table) == {A}


def test_patience_is_remembered_beyond_expiry(lake: SqlCatalog) -> None:
    """A partition that is changed all the time is merged after twenty minutes, also when older changes have expired."""
    pairs(lake, 2)
    table = changed(lake, 0)
    first_ms = newest_ms(table)
    rivals = ConcurrentWriters()
    assert waits(rivals, table) == {A}
    alone = only(changed(lake, 2), first_ms + COOLDOWN_MS - 1000)
    assert rivals.contested(alone, table.io, first_ms + COOLDOWN_MS - 1) == {A}
    assert rivals.contested(alone, table.io, first_ms + COOLDOWN_MS) == set()
    # who has not seen it from the beginning begins to wait now
    assert ConcurrentWriters().contested(alone, table.io, first_ms + COOLDOWN_MS) == {A}


def test_our_merge_begins_the_wait_anew(lake: SqlCatalog) -> None:
    """After a merge the partition is left alone again, and that is remembered when the merge is out of sight."""
    pairs(lake, 3)
    first_ms = newest_ms(changed(lake, 0))
    merged = compact(lake)
    merge_ms = first_ms + COOLDOWN_MS
    late = merged.metadata.model_copy(update={"snapshots": [at(s, merge_ms) for s in merged.metadata.snapshots]})
    rivals = ConcurrentWriters()
    assert rivals.contested(late, merged.io, merge_ms + 1000) == {A}
    alone = only(changed(lake, 2), merge_ms + COOLDOWN_MS - 1000)
    assert rivals.contested(alone, merged.io, merge_ms + COOLDOWN_MS - 1) == {A}
    assert rivals.contested(alone, merged.io, merge_ms + COOLDOWN_MS) == set()


def test_who_else_merges_is_named(lake: SqlCatalog) -> None:
    """A REPLACE of others that removed files is another compactor's, ours is not."""
    two_files(lake)
    table = compact(lake)
    assert other_compactors(table.metadata, "lake.db.t") == ()
    head = table.metadata.current_snapshot()
    assert head is not None
    assert head.summary is not None
    facts = {k: v for k, v in head.summary.additional_properties.items() if not k.startswith("icesize.")}
    theirs = head.model_copy(update={"summary": Summary(Operation.REPLACE, **facts, **{"engine-name": "spark"})})
    foreign = table.metadata.model_copy(update={"snapshots": [theirs]})
    assert other_compactors(foreign, "lake.db.t") == (
        "another compactor (spark) works on 'lake.db.t': turn one off; files that both want to merge are read and "
        "written for nothing",
    )
    assert ConcurrentWriters().contested(foreign, table.io, head.timestamp_ms) == {A}


def test_maintenance_leaves_such_partitions_alone_and_says_so(lake: SqlCatalog) -> None:
    """`maintain` names what it leaves to another writer; `compact` does what it is asked."""
    make_table(lake)
    for number in range(4):
        append(lake, [2 * number, 2 * number + 1])
        append(lake, [10 + number], "b")
    changed(lake, 0)
    now_ms = newest_ms(lake.load_table("db.t"))
    table = icesize.open(None, "db.t", catalog=lake, environment=Environment(now_ms=lambda: now_ms))
    [first, last] = table.maintain().merges
    assert (first.files_removed, first.ineligible) == (4, {"kind=a": 4})
    assert (last.snapshot_ids, last.skipped) == ((), {"CONTESTED": 4, "TOO_FEW": 1})
    assert "CONTESTED" in str(last)
    assert table.compact().files_removed == 4
    landed(lake, [*range(1, 8), *range(10, 14)])


def test_what_cannot_be_read_is_no_change(lake: SqlCatalog) -> None:
    """A snapshot whose manifests are gone keeps nobody waiting, and no batch fails for it."""
    pairs(lake, 1)
    table = changed(lake, 0)
    gone = at(table.metadata.snapshots[-1], newest_ms(table), manifest_list=f"{table.location()}/metadata/gone.avro")
    seen = table.metadata.model_copy(update={"snapshots": [gone]})
    assert ConcurrentWriters().contested(seen, table.io, newest_ms(table)) == set()


def test_an_hour_of_quiet_is_not_forgotten(lake: SqlCatalog) -> None:
    """A partition that others change again after a long pause is protected again, whatever was known before."""
    pairs(lake, 2)
    table = changed(lake, 0)
    first_ms = newest_ms(table)
    rivals = ConcurrentWriters()
    assert waits(rivals, table) == {A}
    hour_ms = 3_600_000
    table = changed(lake, 2)
    *older, newest = table.metadata.snapshots
    again = table.metadata.model_copy(update={"snapshots": [*older, at(newest, first_ms + hour_ms)]})
    assert rivals.contested(again, table.io, first_ms + hour_ms) == {A}


def test_a_rollback_behind_a_batch_is_told(lake: SqlCatalog) -> None:
    """A batch that the ledger has and main has not is named; not one that is older than all that is known of main."""
    make_table(lake)
    append(lake, [1])
    table = append(lake, [2], batch=7)
    entry = LedgerEntry("s", "q", 7)
    batch = table.metadata.snapshots[-1]
    assert rolled_back(table.metadata, entry) == ()
    with table.transaction() as changed:
        changed.set_properties({entry.key: replace(entry, retired=("0",)).to_json()})
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[0].snapshot_id).commit()
    rolled = lake.load_table("db.t").metadata
    [told] = rolled_back(rolled, entry)
    assert told.startswith(
        f"batch 7 of stream 's' stays marked as committed, but its snapshot {batch.snapshot_id} is not"
    )
    newer = at(rolled.snapshots[0], batch.timestamp_ms + 1, parent_snapshot_id=None)
    tagged = rolled.model_copy(update={"snapshots": [batch, newer], "current_snapshot_id": newer.snapshot_id})
    assert rolled_back(tagged, entry) == ()
