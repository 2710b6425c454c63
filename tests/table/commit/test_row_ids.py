"""Row ids of format v3: assigned by manifest lists, kept by every file whatever happens to its manifest."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

import icesize
from icesize import failpoints
from icesize.policy import SizePolicy
from icesize.table.commit.documents import lossless
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.append import Append
from icesize.table.state.layouts import LayoutReader
from tests.support.entry_layouts import plain
from tests.support.examples import examples
from tests.support.row_lineage import first_row_ids
from tests.support.tables import (
    NOW_MS,
    append,
    layout_of,
    make_table,
    merged,
    metadata_files_on_disk,
    referenced_metadata,
    request_on,
    rewrite_manifests,
    run,
    small_files,
    sqlite_catalog,
    write,
)
from tests.support.v3_tables import as_v3


def check(table: Table, known: dict[str, int]) -> None:
    """Ranges of ids are disjoint and below `next-row-id`, and each file keeps the id that it got first."""
    metadata = table.metadata
    for snapshot in metadata.snapshots:
        if snapshot.first_row_id is None:
            continue
        ids = first_row_ids(table, snapshot, known)
        ranges = sorted((first, first + rows) for first, rows in ids.values() if first is not None)
        assert len(ranges) == len(ids), "each file has ids"
        assert all(one[1] <= other[0] for one, other in pairwise(ranges))
        assert all(end <= snapshot.first_row_id + (snapshot.added_rows or 0) for _, end in ranges)
        assert snapshot.first_row_id + (snapshot.added_rows or 0) <= metadata.next_row_id
        for path, (first, _) in ids.items():
            assert first is not None
            assert known.setdefault(path, first) == first
    head = metadata.current_snapshot()
    if head is not None:
        expected = {path: first for path, (first, _) in first_row_ids(table, head).items()}
        assert {file.path: file.first_row_id for file in small_files(table)} == expected


STEPS = ("append", "other", "merge", "manifests", "expire", "upgrade", "number")


@examples(25)
@given(steps=st.lists(st.sampled_from(STEPS), min_size=3, max_size=10))
def test_any_history(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    """Whatever is committed in whatever order, before and after the upgrade, ids are as the specification demands."""
    catalog = sqlite_catalog(tmp_path_factory.mktemp("lake"))
    make_table(catalog)
    known = dict[str, int]()
    kept = LayoutReader(2**20, policy=SizePolicy())
    for number, step in enumerate(steps):
        change(catalog, step, number)
        table = catalog.load_table("db.t")
        check(table, known)
        assert plain(kept.read(table.metadata, table.io)) == plain(layout_of(table))
    catalog.close()


def change(catalog: Catalog, step: str, number: int) -> None:
    """One step of a history; an append where the step is not possible."""
    table = catalog.load_table("db.t")
    is_v3 = table.metadata.format_version == 3
    ready = [f for f in small_files(table, "a") if f.obstacle is None]
    if step == "merge" and len(ready) > 1:
        run(catalog, request_on(table, groups=[merged(table, ready[:2])]), table)
    elif step == "manifests" and len(small_files(table)) > 1:
        rewrite_manifests(catalog)
    elif step == "expire" and len(table.metadata.snapshots) > 1:
        icesize.open(None, "db.t", catalog=catalog).expire_snapshots(older_than=timedelta(), retain_last=1)
    elif step == "upgrade" and not is_v3:
        as_v3(catalog)
    elif step == "number" and is_v3 and table.metadata.current_snapshot() is not None:
        icesize.open(None, "db.t", catalog=catalog).compact()
    else:
        append(catalog, range(number * 10, number * 10 + 1 + number % 3), "b" if step == "other" else "a")


def test_two_snapshots_of_one_commit(lake: SqlCatalog) -> None:
    """The second one lists the manifests of the first with the ids that they got there, and begins after them."""
    make_table(lake)
    as_v3(lake)
    append(lake, [1, 2])
    append(lake, [3])
    table = lake.load_table("db.t")
    request = request_on(table, [write(table, [4, 5, 6])], [merged(table, small_files(table))])
    run(lake, request, table)
    table = lake.load_table("db.t")
    added, replaced = table.metadata.snapshots[-2:]
    assert [s.summary.operation for s in (added, replaced) if s.summary] == [Operation.APPEND, Operation.REPLACE]
    assert (added.first_row_id, added.added_rows) == (3, 3)
    # the new manifest takes ids for the merged file and for the appended one, which keeps its own
    assert (replaced.first_row_id, replaced.added_rows) == (6, 3)
    assert table.metadata.next_row_id == 9
    check(table, {})


def test_a_merge_that_was_read_before_the_upgrade_is_dropped(lake: SqlCatalog) -> None:
    """Its files lack the ids that the rows of its inputs have now; the append beside it stays."""
    make_table(lake)
    append(lake, [1])
    append(lake, [2])
    table = lake.load_table("db.t")
    request = request_on(table, [write(table, [3])], [merged(table, small_files(table))])
    as_v3(lake)
    outcome = run(lake, request, table)
    assert outcome.operations == ("append",)
    assert outcome.conflicts == ("merge of 2 files dropped: the table was upgraded to format v3 while the merge ran",)
    check(lake.load_table("db.t"), {})


def test_an_upgrade_before_the_swap(lake: SqlCatalog) -> None:
    """A snapshot of format v2 does not fit any more: it is certain that it did not land, and its metadata go."""
    make_table(lake)
    table = append(lake, [1])
    request = request_on(table, [write(table, [2])])
    waiting = [as_v3]
    with failpoints.armed("before-swap", lambda: waiting and waiting.pop()(lake)):
        assert run(lake, request, table).operations == ("append",)
    table = lake.load_table("db.t")
    check(table, {})
    files = {path for path in metadata_files_on_disk(table) if path.endswith(".avro")}
    assert files <= referenced_metadata(table)


def test_another_branch_takes_row_ids_first(lake: SqlCatalog) -> None:
    """All branches of a table share its row ids: the commit that comes second takes others, and loses nothing."""
    make_table(lake)
    as_v3(lake)
    table = append(lake, [1, 2])
    request = request_on(table, [write(table, [3])])

    def to_audit() -> None:
        now = lake.load_table("db.t")
        if "audit" in now.metadata.refs:
            return
        builder = SnapshotBuilder(now, NOW_MS, ref="audit")
        Append((write(now, [7, 8]),)).stage(builder, {})
        lossless(lake).commit_table(now, tuple(builder.requirements), tuple(builder.made_visible()))

    with failpoints.armed("before-swap", to_audit):
        outcome = run(lake, request, table)
    table = lake.load_table("db.t")
    assert outcome.operations == ("append",)
    check(table, {})
    assert [s.first_row_id for s in table.metadata.snapshots] == [0, 2, 4]
    assert table.metadata.next_row_id == 5
