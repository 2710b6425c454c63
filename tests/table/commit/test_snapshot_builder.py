"""Manifests that are split more than once keep every entry."""

from __future__ import annotations

from pyiceberg.catalog.sql import SqlCatalog

from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.manifests.entries import read_entries
from tests.support.tables import NOW_MS, append, make_table


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
