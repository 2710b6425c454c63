"""Manifests that are split more than once keep every entry."""

from __future__ import annotations

from pyiceberg.catalog.sql import SqlCatalog

from icesize.table.commit.snapshot_builder import Split
from icesize.table.manifests.entries import read_entries
from tests.support.tables import append, make_table


def test_two_splits_of_one_kind_keep_all_entries(lake: SqlCatalog) -> None:
    """Entries that stay and entries that go are joined, kind by kind."""
    make_table(lake)
    append(lake, [1])
    table = append(lake, [2])
    head = table.metadata.current_snapshot()
    assert head is not None
    manifests = head.manifests(table.io)
    kind = manifests[0].partition_spec_id, manifests[0].content
    splits = []
    for manifest in manifests:
        entries = list(read_entries(table.io, manifest))
        splits.append(Split({manifest.manifest_path}, {kind: entries[:1]}, {kind: entries}))
    together = Split()
    for split in splits:
        together.add(split)
    everything = [entry for split in splits for entry in split.deleted[kind]]
    assert len(everything) == 2
    assert (together.survivors, together.deleted) == ({kind: everything}, {kind: everything})
    assert together.touched == {manifest.manifest_path for manifest in manifests}
    assert [len(split.deleted[kind]) for split in splits] == [1, 1], "their lists stay their own"
