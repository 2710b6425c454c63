"""Layouts read from manifests: every file counted, small ones as values, each manifest read once."""

from __future__ import annotations

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icesize.planning.files import PartitionKey, SkipReason
from icesize.table.state.live_files import OLDEST, LayoutReader
from icesize.table.state.naming import Labels
from tests.support.row_deletes import delete_rows
from tests.support.tables import (
    LIMIT,
    CountingIO,
    append,
    arrow,
    compact,
    expire,
    ids_of,
    layout_of,
    live_paths,
    make_table,
    merged,
    request_on,
    run,
    small_files,
    write,
)


def test_an_empty_table_has_an_empty_layout(lake: SqlCatalog) -> None:
    """No snapshot: no base, no partitions."""
    table = make_table(lake)
    layout = layout_of(table)
    assert (layout.snapshot_id, layout.sequence_number, layout.partitions) == (None, 0, {})


def test_every_file_is_counted_and_small_ones_are_listed(lake: SqlCatalog) -> None:
    """Files, bytes and rows per partition are those of PyIceberg's own listing; the limit decides who is a value."""
    make_table(lake)
    append(lake, [1, 2], "a")
    append(lake, [3], "a")
    table = append(lake, range(5000), "b")
    files = table.inspect.files()
    sizes = sorted(files["file_size_in_bytes"].to_pylist())
    layout = LayoutReader(sizes[-1]).read(table.metadata, table.io)
    assert (layout.files, layout.rows, layout.size_bytes) == (3, 5003, sum(sizes))
    assert sum(len(facts.small) for facts in layout.partitions.values()) == 2
    assert layout.partitions[PartitionKey(0, ("b",))].small == ()
    small = layout.partitions[PartitionKey(0, ("a",))].small
    assert sorted(f.size_bytes for f in small) == sizes[:2]
    assert {f.path for f in small} < set(live_paths(table))
    head = table.metadata.current_snapshot()
    assert head is not None
    assert layout.snapshot_id == head.snapshot_id
    assert layout.sequence_number == 3


def test_files_of_pyicebergs_own_appends_are_read(lake: SqlCatalog) -> None:
    """Tables that another writer filled look the same, inherited sequence numbers included."""
    table = make_table(lake)
    table.append(arrow([1]))
    table.append(arrow([2]))
    assert [f.sequence_number for f in small_files(lake.load_table("db.t"))] == [1, 2]


def test_a_second_reading_opens_new_manifests_only(lake: SqlCatalog) -> None:
    """Manifests never change: what was read once is not read again, and what is gone is forgotten."""
    make_table(lake)
    append(lake, [1])
    reader, io = LayoutReader(LIMIT), CountingIO()

    def read(table: Table) -> int:
        before = len(io.manifests)
        assert reader.read(table.metadata, io) == layout_of(table)
        return len(io.manifests) - before

    assert read(lake.load_table("db.t")) == 1
    assert read(lake.load_table("db.t")) == 0
    assert read(append(lake, [2])) == 1
    assert read(compact(lake)) == 1
    assert read(lake.load_table("db.t")) == 0


def test_files_of_an_old_spec_are_held_back(lake: SqlCatalog) -> None:
    """After the spec changed old files stay where they are, and say why."""
    make_table(lake)
    table = append(lake, [1])
    with table.update_spec() as update:
        update.add_field("id", "bucket[2]", "id_bucket")
    table = append(lake, [2])
    reasons = {f.partition.spec_id: f.obstacle for f in small_files(table)}
    assert reasons == {0: SkipReason.OLD_SPEC, 1: None}


@pytest.mark.parametrize("version", ["1", "2"])
def test_partitions_age_by_commits_that_add_rows(lake: SqlCatalog, version: str) -> None:
    """Age counts appends after the partition's newest rows, merges do not count; expired ones are estimated."""
    make_table(lake, properties={"format-version": version})
    append(lake, [1], "cold")
    append(lake, [2], "cold")
    for number in range(3):
        append(lake, [10 + number], "hot")
    table = compact(lake, "hot")

    def age(table: Table, kind: str) -> int:
        return layout_of(table).partitions[PartitionKey(0, (kind,))].commits_since_append

    assert age(table, "cold") == 3
    assert age(table, "hot") == 0
    cold = age(append(lake, [20], "hot"), "cold")
    assert cold == 4
    expire(lake.load_table("db.t"), keep=3)
    after = age(lake.load_table("db.t"), "cold")
    assert after == (OLDEST if version == "1" else 2), "with sequence numbers a lower bound, without the oldest"


def test_a_merge_does_not_make_a_partition_young(lake: SqlCatalog) -> None:
    """Merged files keep the number of their newest input."""
    make_table(lake)
    append(lake, [1], "a")
    append(lake, [2], "a")
    append(lake, [3], "b")
    table = compact(lake, "a")
    assert layout_of(table).partitions[PartitionKey(0, ("a",))].commits_since_append == 1


def test_a_long_lived_reader_agrees_with_a_new_one_when_snapshots_expire(lake: SqlCatalog) -> None:
    """In format v1 ages come from the history, which expiry shortens: a remembered manifest must not look young."""
    make_table(lake, properties={"format-version": "1"})
    reader = LayoutReader(LIMIT)
    append(lake, [1], "old")
    append(lake, [2], "old")
    for number in range(6):
        table = append(lake, [10 + number], "hot")
        reader.read(table.metadata, table.io)
    expire(table, keep=8)
    table.refresh()
    ids = [entry.snapshot_id for entry in table.metadata.snapshot_log]
    table.maintenance.expire_snapshots().by_ids(ids[:1]).commit()
    table = append(lake, [99], "hot")
    remembered = reader.read(table.metadata, table.io).partitions
    key = PartitionKey(0, ("old",))
    assert remembered[key].commits_since_append == layout_of(table).partitions[key].commits_since_append == 7


@pytest.mark.parametrize(
    ("transforms", "label"),
    [
        ({"kind": "identity"}, "kind=a"),
        ({"ts": "hour"}, "ts_hour=1970-01-01-05"),
        ({"ts": "day"}, "ts_day=1970-01-01"),
        ({"ts": "month"}, "ts_month=1970-01"),
        ({"ts": "year"}, "ts_year=1970"),
        ({"id": "truncate[10]"}, "id_truncate=0"),
        ({"kind": "void"}, "kind_void=null"),
        ({"kind": "identity", "ts": "day"}, "kind=a/ts_day=1970-01-01"),
        ({}, ""),
    ],
)
def test_labels_are_printed_as_iceberg_prints_them(lake: SqlCatalog, transforms: dict[str, str], label: str) -> None:
    """Partition values are shown in their own units, not as stored numbers."""
    make_table(lake, transforms)
    table = append(lake, [5])
    (partition,) = layout_of(table).partitions.values()
    assert partition.label == label
    assert Labels(table.metadata).values(partition.key) == dict(p.split("=") for p in label.split("/") if p)


def test_labels_survive_a_dropped_source_column(lake: SqlCatalog) -> None:
    """Partitions of an old spec whose column is gone still have a name."""
    make_table(lake)
    table = append(lake, [5])
    with table.update_spec() as update:
        update.remove_field("kind")
    with lake.load_table("db.t").update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("kind")
    (partition,) = layout_of(lake.load_table("db.t")).partitions.values()
    assert partition.label == "kind=a"


def test_a_null_partition_is_a_partition(lake: SqlCatalog) -> None:
    """NULL values have a partition of their own, printed as null, and can be merged."""
    make_table(lake)
    for i in range(2):
        table = lake.load_table("db.t")
        run(lake, request_on(table, [write(table, [i], None)]), table)  # type: ignore[arg-type]
    table = lake.load_table("db.t")
    (partition,) = layout_of(table).partitions.values()
    assert partition.label == "kind=null"
    run(lake, request_on(table, groups=[merged(table, partition.small)]), table)
    assert ids_of(lake) == [0, 1]


def test_a_reader_outlives_an_upgrade_to_v2(lake: SqlCatalog) -> None:
    """What was read of a v1 table is not taken for v2: ages, numbers and deletes are those that a new reader finds."""
    make_table(lake, properties={"format-version": "1"})
    append(lake, [1], "cold")
    table = append(lake, [2])
    reader = LayoutReader(LIMIT)
    assert reader.read(table.metadata, table.io) == layout_of(table)
    with table.transaction() as change:
        change.upgrade_table_version(2)
    table = lake.load_table("db.t")
    assert reader.read(table.metadata, table.io) == layout_of(table)
    for number in range(3, 6):
        table = append(lake, [number])
    assert reader.read(table.metadata, table.io) == layout_of(table)
    assert layout_of(table).partitions[PartitionKey(0, ("cold",))].commits_since_append == 3
    table = delete_rows(lake, small_files(table, "cold")[0])
    found = reader.read(table.metadata, table.io)
    assert found == layout_of(table)
    assert [f.obstacle for f in found.partitions[PartitionKey(0, ("cold",))].small] == [SkipReason.HAS_DELETES]
