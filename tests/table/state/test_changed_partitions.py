"""What `after_batch` has to look at: a snapshot that only wrote manifests anew merged nothing and hides nothing."""

from __future__ import annotations

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from icesize.table.manifests.store import ManifestStore
from icesize.table.records.summary import BASE_ID, RUN_ID
from icesize.table.state.partition_changes import partitions_changed
from tests.support.tables import append, compact, make_table, merged, request_on, rewrite_manifests, run, small_files


def changed(table: Table) -> set[object] | None:
    """The `kind` of each partition that has changed."""
    keys = partitions_changed(table.metadata, table.io, ManifestStore())
    return None if keys is None else {key.values[0] for key in keys}


def test_manifests_written_anew_are_no_merge(lake: SqlCatalog) -> None:
    """What changed since the last merge is found in the manifests that a later snapshot of ours wrote."""
    make_table(lake)
    append(lake, [1], "a")
    append(lake, [2], "a")
    assert changed(compact(lake, "a")) == set()
    append(lake, [3], "b")
    append(lake, [4], "c")
    table = rewrite_manifests(lake)
    head = table.metadata.current_snapshot()
    assert head is not None
    assert head.summary is not None
    facts = head.summary.additional_properties
    assert (head.summary.operation, RUN_ID in facts, BASE_ID in facts) == (Operation.REPLACE, True, False)
    assert [m.added_snapshot_id for m in head.manifests(table.io)] == [head.snapshot_id]
    assert changed(table) == {"b", "c"}
    assert changed(append(lake, [5], "d")) == {"b", "c", "d"}
    assert changed(compact(lake, "b")) == set()


def test_without_a_merge_everything_has_changed(lake: SqlCatalog) -> None:
    """A snapshot that only wrote manifests is no point to count from."""
    make_table(lake)
    append(lake, [1], "a")
    append(lake, [2], "b")
    assert changed(rewrite_manifests(lake)) is None


def test_what_expired_since_the_plan_may_have_changed_anything(lake: SqlCatalog) -> None:
    """A commit came between plan and merge and has expired since: what it changed is not told by anybody."""
    make_table(lake)
    append(lake, [1], "a")
    planned = append(lake, [2], "a")
    wanted = request_on(planned, groups=[merged(planned, small_files(planned, "a"))])
    between = append(lake, [3], "b").metadata.current_snapshot_id
    run(lake, wanted, planned)
    table = lake.load_table("db.t")
    assert changed(table) == {"b"}
    table.maintenance.expire_snapshots().by_ids([between]).commit()
    assert changed(lake.load_table("db.t")) is None
