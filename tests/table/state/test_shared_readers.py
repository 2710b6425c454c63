"""Readers of manifests that threads share: each thread sees the table as with a reader of its own."""

from __future__ import annotations

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from icesize.planning.cluster_by import ClusterBy
from icesize.planning.files import SkipReason
from icesize.table.manifests import store
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.cluster_reader import ClusterReader
from icesize.table.state.layouts import LayoutReader
from icesize.table.state.partition_changes import touched
from tests.support.meeting import Meeting, MeetingIO, all_at_once
from tests.support.tables import LIMIT, append, compact, ids_of, layout_of, make_table

BY = ClusterBy(("id",), (1,), "sort", 2**35)


def test_two_threads_read_layouts_with_one_reader(lake: SqlCatalog) -> None:
    """No file counts as listed twice because two threads read its manifest; each manifest is read once."""
    make_table(lake)
    append(lake, [1])
    table = append(lake, [2])
    reader, io = LayoutReader(LIMIT), MeetingIO()
    assert all_at_once([lambda: reader.read(table.metadata, io)] * 2) == [layout_of(table)] * 2
    assert len(io.manifests) == len(set(io.manifests)) == 2
    table = append(lake, [3])
    assert reader.read(table.metadata, io) == layout_of(table)


def test_two_threads_read_files_to_cluster_with_one_reader(lake: SqlCatalog) -> None:
    """The same for clustering: nothing hinders a file that is listed once."""
    make_table(lake)
    table = append(lake, [1])
    reader, io = ClusterReader(BY), MeetingIO()
    found, same = all_at_once([lambda: reader.read(table.metadata, io)] * 2)
    assert found == same == ClusterReader(BY).read(table.metadata, table.io)
    assert [file.fact.obstacle for files in found.values() for file in files] == [None]


def test_two_threads_read_changes_with_one_store(lake: SqlCatalog) -> None:
    """Both find what each snapshot changed, and so does a later call."""
    make_table(lake)
    append(lake, [1])
    append(lake, [2], "b")
    table = compact(lake)
    snapshots, shared, io = table.metadata.snapshots, ManifestStore(), MeetingIO()
    expected = [touched(ManifestStore(), table.io, snapshot, table.metadata.specs()) for snapshot in snapshots]

    def changes() -> list[object]:
        return [touched(shared, io, snapshot, table.metadata.specs()) for snapshot in snapshots]

    assert all_at_once([changes, changes]) == [expected] * 2
    assert changes() == expected


def test_eight_threads_work_on_one_table(lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some inspect, plan and look at versions while others merge: all is merged, no row is lost, no call fails."""
    make_table(lake)
    for number in range(4):
        append(lake, [number])
    append(lake, [4], "b")
    table = icesize.open(None, "db.t", catalog=lake)
    monkeypatch.setattr(store, "read_facts", Meeting().ahead_of(store.read_facts))
    all_at_once([table.inspect, table.plan, table.compact, table.versions] * 2)
    append(lake, [5], "b")
    table.compact()
    assert table.plan().skipped_by_reason == {SkipReason.TOO_FEW: 2}
    assert ids_of(lake) == [*range(6)]
