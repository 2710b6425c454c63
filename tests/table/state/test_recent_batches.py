"""What the last commits added, by partition, without what merges and overwrites of ours wrote again."""

from __future__ import annotations

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.planning.files import PartitionKey
from icesize.planning.routing.traffic import PartitionWrites
from icesize.table.catalog.history import operation_of
from icesize.table.manifests.manifest_lists import manifests_of
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.partition_changes import LEAST_HISTORY_MS, arrivals_of, recent_appends
from tests.support.tables import (
    CountingIO,
    append,
    arrow,
    compact,
    expire,
    local,
    make_table,
    merged,
    request_on,
    run,
    small_files,
    write,
)

A, B = PartitionKey(0, ("a",)), PartitionKey(0, ("b",))


def added(table: Table, most: int = 8) -> list[dict[PartitionKey, int]]:
    """Rows by partition of each commit that is found."""
    return [
        {key: seen.rows for key, seen in each.items()}
        for each in recent_appends(table.metadata, table.io, ManifestStore(), most)
    ]


def head(table: Table) -> Snapshot:
    found = table.metadata.current_snapshot()
    assert found is not None
    return found


def test_nothing_was_ever_written(lake: SqlCatalog) -> None:
    """A table without snapshots has no traffic."""
    assert added(make_table(lake)) == []


@pytest.mark.parametrize("version", ["1", "2"])
def test_rows_of_each_commit(lake: SqlCatalog, version: str) -> None:
    """Rows, bytes and files by partition, oldest first; merges put nothing into the table."""
    make_table(lake, properties={"format-version": version})
    first = write(append(lake, [1, 2]), [3, 4, 5])
    table = lake.load_table("db.t")
    other = write(table, [6], "b")
    again = write(table, [7])
    run(lake, request_on(table, [first, other, again]), table)
    compact(lake)
    table = append(lake, [8], "b")
    found = recent_appends(table.metadata, table.io, ManifestStore())
    assert [list(each) for each in found] == [[A], [A, B], [B]]
    assert found[1] == {
        A: PartitionWrites(4, first.size_bytes + again.size_bytes, 2),
        B: PartitionWrites(1, other.size_bytes, 1),
    }
    assert added(table, most=2) == [{A: 4, B: 1}, {B: 1}]
    assert added(table, most=0) == []


def test_rows_that_a_batch_took_along_are_not_new(lake: SqlCatalog) -> None:
    """Appended and merged in one commit, or written together with older ones as an overwrite: new rows count only."""
    make_table(lake)
    append(lake, [1, 2])
    before = append(lake, [3])
    new = write(before, [4, 5])
    run(lake, request_on(before, [new], [merged(before, small_files(before))]), before)
    table = lake.load_table("db.t")
    together, other = write(table, [1, 2, 3, 6]), write(table, [7], "b")
    inputs = [file for file in small_files(table, "a") if file.path != new.path]
    run(lake, request_on(table, [together, other], absorbed=tuple(inputs)), table)
    table = lake.load_table("db.t")
    assert added(table) == [{A: 2}, {A: 1}, {A: 2}, {A: 1, B: 1}]
    assert recent_appends(table.metadata, table.io, ManifestStore())[3][A] == PartitionWrites(
        1, together.size_bytes // 4, 1
    )


def test_an_overwrite_by_others_is_new(lake: SqlCatalog) -> None:
    """Another engine puts rows in the place of older ones: all of them were written by it."""
    make_table(lake)
    append(lake, [1, 2, 3])
    table = append(lake, [9], "b")
    writer = table.transaction()
    old = next(iter(table.scan("kind = 'a'").plan_files())).file
    (new,) = _dataframe_to_data_files(writer.table_metadata, arrow([4, 5]), table.io)
    with writer.update_snapshot().overwrite() as overwrite:
        overwrite.delete_data_file(old)
        overwrite.append_data_file(new)
    writer.commit_transaction()
    table = lake.load_table("db.t")
    assert table.metadata.snapshots[-1].summary is not None
    assert table.metadata.snapshots[-1].summary.operation.value == "overwrite"
    assert added(table) == [{A: 3}, {B: 1}, {A: 2}]


def test_deletes_add_nothing(lake: SqlCatalog) -> None:
    """A partition is dropped: no rows came, and what came before is still known."""
    make_table(lake)
    append(lake, [1, 2]).delete("kind = 'a'")
    assert added(lake.load_table("db.t")) == [{A: 2}]


def test_manifests_that_keep_older_files(lake: SqlCatalog) -> None:
    """An append that folds older manifests into its own: their files are not counted again."""
    make_table(lake, properties={"commit.manifest.min-count-to-merge": "2", "commit.manifest-merge.enabled": "true"})
    for i in range(4):
        lake.load_table("db.t").append(arrow([i]))
    assert added(lake.load_table("db.t")) == [{A: 1}] * 4


def test_only_partitions_of_the_current_spec(lake: SqlCatalog) -> None:
    """After the table was partitioned anew, commits before say nothing of the new partitions."""
    make_table(lake)
    table = append(lake, [1])
    with table.update_spec() as update:
        update.add_identity("id")
    table = append(lake, [5])
    assert added(table) == [{PartitionKey(1, ("a", 5)): 1}]


def test_the_search_ends_where_snapshots_expired(lake: SqlCatalog) -> None:
    """What is left is told, as far back as it goes."""
    make_table(lake)
    for i in range(4):
        table = append(lake, [*range(i + 1)])
    expire(table, keep=2)
    assert added(lake.load_table("db.t")) == [{A: 3}, {A: 4}]


@pytest.mark.parametrize("damage", ["list is gone", "list is damaged", "manifest is gone", "manifest is damaged"])
def test_the_search_ends_at_files_that_cannot_be_read(lake: SqlCatalog, damage: str) -> None:
    """A list or a manifest of the second of three commits is missing or damaged: the newest commit is still told."""
    make_table(lake)
    append(lake, [1])
    table = append(lake, [1, 2])
    head = table.metadata.current_snapshot()
    assert head is not None
    mine = next(m for m in head.manifests(table.io) if m.added_snapshot_id == head.snapshot_id)
    path = local(head.manifest_list if damage.startswith("list") else mine.manifest_path)
    table = append(lake, [1, 2, 3])
    if damage.endswith("gone"):
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-40])
    assert added(table) == [{A: 3}]


def test_only_new_manifests_are_read(lake: SqlCatalog) -> None:
    """Of each commit the manifest that it wrote, newest first, each once."""
    make_table(lake)
    tables = [append(lake, [i]) for i in range(5)]
    io = CountingIO()
    assert len(recent_appends(tables[-1].metadata, io, ManifestStore(), 3)) == 3
    written_by = {
        m.manifest_path: m.added_snapshot_id
        for t in tables
        for m in manifests_of(head(t), t.io, t.metadata.specs()).data
    }
    assert [written_by[path] for path in io.manifests] == [head(t).snapshot_id for t in reversed(tables[2:])]


def test_the_heaviest_partitions_are_named(lake: SqlCatalog) -> None:
    """Of a commit with very many partitions those with the most rows."""
    make_table(lake)
    table = lake.load_table("db.t")
    run(
        lake,
        request_on(table, [write(table, range(rows), kind) for kind, rows in zip("abcd", (2, 1, 4, 3), strict=True)]),
        table,
    )
    table = lake.load_table("db.t")
    (heaviest,) = recent_appends(table.metadata, table.io, ManifestStore(), most_partitions=2)
    assert {key: seen.rows for key, seen in heaviest.items()} == {
        PartitionKey(0, ("c",)): 4,
        PartitionKey(0, ("d",)): 3,
    }


def test_how_batches_came(lake: SqlCatalog) -> None:
    """Batches, bytes that each brings to a partition, and the seconds of each; merges are no batches."""
    make_table(lake)
    assert arrivals_of(append(lake, [1]).metadata) is None
    first = write(lake.load_table("db.t"), [2, 3])
    table = lake.load_table("db.t")
    run(lake, request_on(table, [first, write(table, [4], "b")]), table)
    compact(lake)
    metadata = lake.load_table("db.t").metadata
    assert arrivals_of(metadata) is None, "two batches of one second are a load"
    first, *others = metadata.snapshots
    earlier = first.model_copy(update={"timestamp_ms": first.timestamp_ms - LEAST_HISTORY_MS})
    metadata = metadata.model_copy(update={"snapshots": [earlier, *others]})
    adding = [s for s in metadata.snapshots if operation_of(s) == Operation.APPEND]
    sizes = [int((s.summary or {})["added-files-size"] or 0) for s in adding]
    arrivals = arrivals_of(metadata)
    assert arrivals is not None
    assert (arrivals.batches, arrivals.is_ours) == (2, True)
    assert arrivals.partition_bytes == sum(sizes) / 3
    assert arrivals.seconds_between == (adding[1].timestamp_ms - adding[0].timestamp_ms) / 1000
    assert arrivals_of(metadata, most_batches=1) is None
