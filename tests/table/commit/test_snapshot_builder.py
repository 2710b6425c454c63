"""Manifests that a commit writes again: every entry is kept, and few entries are written."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count, pairwise

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from icesize.parquet.files.data_file import MergeResult, NewDataFile
from icesize.planning.files import FileFact, PartitionKey
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.append import Append
from icesize.table.commit.steps.merge import Merge
from icesize.table.manifests.entries import read_entries
from icesize.table.manifests.packing import (
    ENOUGH_ENTRIES,
    MOST_COLD_ENTRIES,
    MOST_FOLDED_ENTRIES,
    MOST_HOT_ENTRIES,
)
from tests.support.tables import NOW_MS, append, make_table, make_visible

_NUMBERS = count()
OLD = 4_500
"""Partitions that get no rows any more."""


def new_file(kind: str) -> NewDataFile:
    """A file that does not exist: its entry is all that these tests look at."""
    path = f"file:///nowhere/kind={kind}/{next(_NUMBERS)}.parquet"
    return NewDataFile(path=path, size_bytes=1_000, rows=1, partition=PartitionKey(0, (kind,)))


def appended(lake: SqlCatalog, kinds: list[str], *others: NewDataFile) -> list[NewDataFile]:
    """Append a file to each of these partitions, and other files beside them."""
    table, files = lake.load_table("db.t"), [*map(new_file, kinds), *others]
    make_visible(lake, table, [Append(tuple(files)).stage(SnapshotBuilder(table, NOW_MS), {})])
    return files


def replaced(lake: SqlCatalog, files: list[NewDataFile]) -> NewDataFile:
    """Replace these files of one partition by one."""
    table, output = lake.load_table("db.t"), new_file(str(files[0].partition.values[0]))
    inputs = tuple(FileFact(file.path, file.size_bytes, file.rows, file.partition) for file in files)
    merge = Merge((MergeResult(inputs, (output,)),))
    make_visible(lake, table, [merge.stage(SnapshotBuilder(table, NOW_MS), {})])
    return output


def data_manifests(table: Table) -> list[ManifestFile]:
    head = table.metadata.current_snapshot()
    assert head is not None
    return head.manifests(table.io)


def live_entries(table: Table) -> Counter[str]:
    """How often each path is live, by the manifests alone."""
    return Counter(entry.path for manifest in data_manifests(table) for entry in read_entries(table.io, manifest))


def test_entries_of_old_partitions_are_written_once(lake: SqlCatalog) -> None:
    """A commit that touches a manifest with thousands of old partitions puts these into small manifests of their own,
    in the order of partitions, and the next commits leave them as they are; no entry is lost or doubled."""
    make_table(lake)
    old = appended(lake, [f"old{number:04}" for number in range(OLD)])
    first = replaced(lake, appended(lake, ["hot", "hot"]))
    expected = Counter(file.path for file in [*old, first])
    assert live_entries(lake.load_table("db.t")) == expected

    merged = replaced(lake, [old[0], *appended(lake, ["old0000"])])
    expected = expected - Counter([old[0].path]) + Counter([merged.path])
    table = lake.load_table("db.t")
    assert live_entries(table) == expected
    cold = [m for m in data_manifests(table) if m.existing_files_count and not m.added_files_count]
    assert sorted(m.existing_files_count or 0 for m in cold) == [1_999, 2_000]
    hot = max((m for m in data_manifests(table) if m.deleted_files_count), key=lambda m: m.existing_files_count or 0)
    assert hot.existing_files_count == MOST_HOT_ENTRIES
    assert all((m.existing_files_count or 0) <= MOST_COLD_ENTRIES for m in cold)
    ranges = sorted((m.partitions[0].lower_bound, m.partitions[0].upper_bound) for m in cold if m.partitions)
    assert all(one[1] < other[0] for one, other in pairwise(ranges))  # type: ignore[operator]

    again = replaced(lake, [first, *appended(lake, ["hot"])])
    table = lake.load_table("db.t")
    assert live_entries(table) == expected - Counter([first.path]) + Counter([again.path])
    assert {m.manifest_path for m in cold} <= {m.manifest_path for m in data_manifests(table)}


def test_appends_leave_manifests_of_old_partitions_alone(lake: SqlCatalog) -> None:
    """When an append merges small manifests, those with entries of old partitions stay as they are."""
    make_table(lake, properties={"commit.manifest.min-count-to-merge": "5"})
    old = appended(lake, [f"old{number:04}" for number in range(OLD)])
    replaced(lake, [old[0], *appended(lake, ["old0000"])])
    manifests = data_manifests(lake.load_table("db.t"))
    cold = {m.manifest_path for m in manifests if (m.existing_files_count or 0) > MOST_HOT_ENTRIES}
    for _ in range(6):
        appended(lake, ["hot"])
    manifests = data_manifests(lake.load_table("db.t"))
    assert len(cold) == 2
    assert cold <= {m.manifest_path for m in manifests}
    assert len(manifests) < len(cold) + 6


def test_large_files_of_a_changed_partition_are_written_once(lake: SqlCatalog) -> None:
    """Merges take small files: entries of large ones leave the manifest that each merge of the partition rewrites."""
    make_table(lake)
    large = [replace(new_file("a"), size_bytes=2**30) for _ in range(OLD)]
    small = appended(lake, ["a", "a"], *large)[:2]
    written = list[set[str]]()
    for _ in range(2):
        small = [replaced(lake, small), *appended(lake, ["a"])]
        table = lake.load_table("db.t")
        assert live_entries(table) == Counter(file.path for file in [*large, *small])
        written.append({m.manifest_path for m in data_manifests(table) if (m.existing_files_count or 0) > 1})
    assert len(written[0]) == 3
    assert written[0] == written[1]


def test_an_append_merges_a_bounded_number_of_entries(lake: SqlCatalog) -> None:
    """Of many manifests that are not quite large enough, an append merges as many as it may, and the next ones more."""
    make_table(lake, properties={"commit.manifest.min-count-to-merge": "12"})
    made = [appended(lake, ["a"] * (ENOUGH_ENTRIES - 1)) for _ in range(14)]
    expected = Counter(file.path for files in made for file in files)
    table = lake.load_table("db.t")
    assert live_entries(table) == expected
    merged = [sum(m.existing_files_count or 0 for m in s.manifests(table.io)) for s in table.metadata.snapshots]
    assert merged[:12] == [0] * 12
    assert 0 < merged[12] <= MOST_FOLDED_ENTRIES
    assert len(data_manifests(table)) < 14


def test_two_splits_of_one_kind_keep_all_entries(lake: SqlCatalog) -> None:
    """Entries that stay and entries that go are joined, kind by kind."""
    make_table(lake)
    append(lake, [1])
    table = append(lake, [2])
    head = table.metadata.current_snapshot()
    assert head is not None
    manifests = head.manifests(table.io)
    kind = manifests[0].partition_spec_id, manifests[0].content
    paths = [[entry.path for entry in read_entries(table.io, manifest)] for manifest in manifests]
    builder = SnapshotBuilder(table, NOW_MS)
    split = builder.split([*paths[0], *paths[1]])
    apart = builder.split(paths[1], into=builder.split(paths[0]))
    for each in (split, apart):
        assert [entry.path for entry in each.parts[kind].deleted] == [*paths[0], *paths[1]]
        assert each.parts[kind].existing == []
        assert each.touched == {manifest.manifest_path for manifest in manifests}
