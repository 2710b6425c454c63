"""Layouts read from manifests: every file counted, small ones as values, each manifest read once."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection
from dataclasses import replace

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import InputFile
from pyiceberg.table import Table

from icesize.planning.deletes.delete_reach import PartitionDeletes
from icesize.planning.files import DeleteFile, FileFact, Head, PartitionFacts, PartitionKey, SkipReason
from icesize.planning.retention.ancestry import TOMBSTONE_BRANCH
from icesize.table.state.commit_ages import OLDEST
from icesize.table.state.layouts import LayoutReader
from icesize.table.state.live_files import LiveFiles
from icesize.table.state.naming import Labels
from tests.support.delete_files import delete_positions
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
    LIMIT,
    CountingIO,
    age_of,
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
    rewrite_manifests,
    run,
    small_files,
    write,
)

MANIFEST = re.compile(r"-m\d+\.avro$")


def test_an_empty_table_has_an_empty_layout(lake: SqlCatalog) -> None:
    """No snapshot: no base, no partitions."""
    table = make_table(lake)
    layout = layout_of(table)
    assert (layout.head, layout.partitions) == (Head(), {})


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
    assert layout.head.snapshot_id == head.snapshot_id
    assert layout.head.sequence_number == 3


class Together(CountingIO):
    """Storage that opens a manifest only when so many are asked for at the same time."""

    def __init__(self, manifests: int) -> None:
        super().__init__()
        self._all = threading.Barrier(manifests)

    def new_input(self, location: str) -> InputFile:  # type: ignore[override]
        opened = super().new_input(location)
        if MANIFEST.search(location):
            self._all.wait(60)
        return opened


def test_manifests_in_an_object_store_are_read_at_the_same_time(lake: SqlCatalog) -> None:
    """Those of data and of deletes, each once; what is known is not read again."""
    make_table(lake)
    for number in range(4):
        table = append(lake, [number])
    table = delete_positions(table, {live_paths(table)[0]: [0]})
    remote = table.metadata.model_copy(update={"location": "s3://bucket/t"})
    reader, io = LayoutReader(LIMIT), Together(5)
    assert reader.read(remote, io) == layout_of(table)
    assert len(io.manifests) == len(set(io.manifests)) == 5
    reader.read(remote, io)
    assert len(io.manifests) == 5


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


def test_files_of_an_old_spec_are_ineligible_without_its_source_column(lake: SqlCatalog) -> None:
    """The type of their partition values is not in the schema any more, also for a reader that knew it before."""
    make_table(lake)
    table = append(lake, [1])
    with table.update_spec() as update:
        update.remove_field("kind").add_field("id", "bucket[2]", "id_bucket")
    table, reader = append(lake, [2]), LayoutReader(LIMIT)
    reader.read(table.metadata, table.io)
    assert {f.partition.spec_id: f.obstacle for f in small_files(table)} == {0: None, 1: None}
    with table.update_schema() as change:
        change.delete_column("kind")
    assert {f.partition.spec_id: f.obstacle for f in small_files(table)} == {0: SkipReason.OLD_SPEC, 1: None}
    assert reader.read(table.metadata, table.io) == layout_of(table)


@pytest.mark.parametrize(
    ("version", "branch", "estimate"),
    # with sequence numbers a lower bound, which is lower if deletes are remembered, without them the oldest
    [("1", "other", OLDEST), ("2", "other", 2), ("2", TOMBSTONE_BRANCH, 1)],
)
def test_partitions_age_by_commits_that_add_rows(lake: SqlCatalog, version: str, branch: str, estimate: int) -> None:
    """Age counts appends after the partition's newest rows, merges do not count; expired ones are estimated."""
    make_table(lake, properties={"format-version": version})
    append(lake, [1], "cold")
    append(lake, [2], "cold")
    for number in range(3):
        append(lake, [10 + number], "hot")
    table = compact(lake, "hot")

    def age(table: Table, kind: str) -> int:
        return age_of(layout_of(table), PartitionKey(0, (kind,)))

    assert age(table, "cold") == 3
    assert age(table, "hot") == 0
    cold = age(append(lake, [20], "hot"), "cold")
    assert cold == 4
    head = lake.load_table("db.t").metadata.current_snapshot_id
    lake.load_table("db.t").manage_snapshots().create_branch(head, branch).commit()
    expire(lake.load_table("db.t"))
    assert age(lake.load_table("db.t"), "cold") == estimate


def test_only_partitions_that_changed_are_counted_again(lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an append, a merge and a rollback, a reader counts the changed partitions anew, as before and as now."""
    make_table(lake)
    for kind in "abcab":
        table = append(lake, [1], kind)
    reader, counted, right = LayoutReader(LIMIT), list[str](), LiveFiles.facts_of

    def facts_of(files: LiveFiles, keys: Collection[PartitionKey] | None = None) -> dict[PartitionKey, PartitionFacts]:
        counted.extend("*" if keys is None else sorted(str(key.values[0]) for key in keys))
        return right(files, keys)

    reader.read(table.metadata, table.io)
    earlier = table.metadata.current_snapshot_id
    monkeypatch.setattr(LiveFiles, "facts_of", facts_of)
    for expected, change in ((["a", "a"], lambda: append(lake, [2], "a")), (["b", "b"], lambda: compact(lake, "b"))):
        table = change()
        counted.clear()
        layout = reader.read(table.metadata, table.io)
        assert counted == expected
        assert layout == layout_of(table)
    with table.manage_snapshots() as snapshots:
        snapshots.set_current_snapshot(snapshot_id=earlier)
    table = lake.load_table("db.t")
    counted.clear()
    layout = reader.read(table.metadata, table.io)
    assert counted == ["a", "b"] * 2
    assert layout == layout_of(table)


@pytest.mark.parametrize("version", ["1", "2"])
def test_files_in_other_manifests_change_no_partition(
    lake: SqlCatalog, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewritten manifests leave all partitions as they are, but for the manifest that each file names."""
    make_table(lake, properties={"format-version": version})
    for kind in "abcab":
        table = append(lake, [1], kind)
    reader = LayoutReader(LIMIT)
    first = dict(reader.read(table.metadata, table.io).partitions.items())
    table = rewrite_manifests(lake)
    with monkeypatch.context() as patch:
        patch.setattr(LiveFiles, "counted", None)
        second = reader.read(table.metadata, table.io)
    assert second == layout_of(table)
    paths = [{f.path: f.manifest_path for p in each.values() for f in p.small} for each in (first, second.partitions)]
    assert paths[0].keys() == paths[1].keys()
    assert len(set(paths[0].values())) == 5
    assert len(set(paths[1].values())) == 1


def test_a_merge_does_not_make_a_partition_young(lake: SqlCatalog) -> None:
    """Merged files keep the number of their newest input."""
    make_table(lake)
    append(lake, [1], "a")
    append(lake, [2], "a")
    append(lake, [3], "b")
    table = compact(lake, "a")
    assert age_of(layout_of(table), PartitionKey(0, ("a",))) == 1


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
    remembered = reader.read(table.metadata, table.io)
    key = PartitionKey(0, ("old",))
    assert age_of(remembered, key) == age_of(layout_of(table), key) == 7


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
    printed = {
        name: None if value == "null" else value for name, value in (p.split("=") for p in label.split("/") if p)
    }
    assert Labels(table.metadata).values(partition.key) == printed


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
    assert age_of(layout_of(table), PartitionKey(0, ("cold",))) == 3
    table = delete_rows(lake, small_files(table, "cold")[0])
    found = reader.read(table.metadata, table.io)
    assert found == layout_of(table)
    [cold] = found.partitions[PartitionKey(0, ("cold",))].small
    assert (cold.obstacle, cold.delete_files, cold.deleted_rows) == (None, 1, 1)


def test_well_sized_files_are_values_where_deletes_may_hit_them(lake: SqlCatalog) -> None:
    """Each has its deletes as a new reader finds them, also where deletes come one by one; others are only counted, and
    no manifest is read again."""
    make_table(lake)
    append(lake, [1, 2, 3], "a")
    append(lake, [4], "a")
    append(lake, [5], "b")
    table = append(lake, [6], "c")
    first, *_ = [file for file in small_files(table, "a") if file.rows == 3]
    reader, io = LayoutReader(1), CountingIO()

    def large(table: Table, reads: int) -> dict[str, list[tuple[int, int, int]]]:
        before = len(io.manifests)
        partitions = reader.read(table.metadata, io).partitions.values()
        new = LayoutReader(1).read(table.metadata, table.io).partitions
        assert {p.key: hits(p.large) for p in partitions} == {key: hits(p.large) for key, p in new.items()}
        assert all(p.small == () for p in partitions)
        assert len(io.manifests) - before == reads
        return {str(p.key.values[0]): [hit[1:] for hit in hits(p.large)] for p in partitions if p.large}

    assert large(table, 4) == {}
    assert large(delete_rows(lake, first, [0, 2]), 1) == {"a": [(1, 2, 1)]}
    assert large(delete_ids(lake, first, [99]), 1) == {"a": [(1, 0, 1), (2, 2, 2)]}
    other = small_files(lake.load_table("db.t"), "c")[0]
    assert large(delete_rows(lake, other), 1) == {"a": [(1, 0, 1), (2, 2, 2)], "c": [(1, 1, 1)]}


def hits(files: tuple[FileFact, ...]) -> list[tuple[str, int, int, int]]:
    """Path, delete files, rows known to be deleted, and delete files that another file would be free of."""
    found = [(f.path, f.delete_files, f.deleted_rows, f.avoidable_deletes) for f in files]
    return sorted(found, key=lambda each: each[1:])


def test_deletes_that_must_not_be_applied_are_an_obstacle(lake: SqlCatalog) -> None:
    """With `apply-deletes` false files with deletes say so, of any size."""
    make_table(lake)
    append(lake, [1])
    table = append(lake, [2])
    table = delete_rows(lake, small_files(table)[0])
    [facts] = LayoutReader(LIMIT, apply_deletes=False).read(table.metadata, table.io).partitions.values()
    assert {f.obstacle for f in facts.small} == {SkipReason.HAS_DELETES, None}
    [facts] = LayoutReader(1, apply_deletes=False).read(table.metadata, table.io).partitions.values()
    assert [f.obstacle for f in facts.large] == [SkipReason.HAS_DELETES]


def test_a_merged_file_is_not_due_for_deletes_that_are_older(lake: SqlCatalog) -> None:
    """By its number a position delete of unknown files may hit a merged file: it is counted, and not as one that
    merging again would help against."""
    make_table(lake)
    append(lake, [1])
    append(lake, [2])
    table = append(lake, [3])
    delete_ids(lake, small_files(table)[0], [99])
    table = compact(lake)
    [merged_file] = small_files(table)
    assert merged_file.sequence_number == 4
    assert merged_file.file_sequence_number == 5
    index = PartitionDeletes([DeleteFile("d", 1, 1, merged_file.partition, 4)])
    assert index.hitting(merged_file) == (1, 0, 0)
    assert index.hitting(replace(merged_file, file_sequence_number=4)) == (1, 0, 1)
