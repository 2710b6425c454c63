"""What a table held at its commits, held against PyIceberg's own listing of each snapshot."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icesize.planning.insight.inspection import size_bounds
from icesize.planning.insight.trends import FileCounts, PastState
from icesize.table.past.commits import history_of
from icesize.table.past.past_states import chosen_snapshots, past_states
from tests.support.examples import examples
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
    CountingIO,
    append,
    batch,
    compact,
    local,
    make_table,
    rewrite_manifests,
    run,
    small_files,
    sqlite_catalog,
    two_files,
)

LIMIT = 1_200
"""Between the files of these tests: those of one row are smaller."""


def seen(table: Table) -> list[PastState]:
    """All states of a table."""
    chosen = chosen_snapshots(table.metadata, history_of(table.metadata, "t"))
    states, unreadable = past_states(table.metadata, table.io, chosen, LIMIT)
    assert unreadable == 0
    return states


def listed(table: Table, snapshot_id: int) -> PastState:
    """The same by PyIceberg."""
    files = table.inspect.files(snapshot_id).to_pylist()
    small, every, deletes = Counter[str](), Counter[str](), Counter[str]()
    sizes = Counter[int]()
    for file in files:
        label = f"kind={file['partition']['kind']}"
        (deletes if file["content"] else every)[label] += 1
        if not file["content"]:
            small[label] += file["file_size_in_bytes"] < LIMIT
            sizes[sum(file["file_size_in_bytes"] >= bound for bound in size_bounds(LIMIT))] += 1
    partitions = {
        label: FileCounts(every[label], small[label], deletes[label]) for label in every.keys() | deletes.keys()
    }
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    return PastState(snapshot_id, snapshot.timestamp_ms, partitions, (sizes[0], sizes[1]))


def step(catalog: Catalog, what: str, kind: str, number: int) -> None:
    """One change of a history."""
    table = catalog.load_table("db.t")
    files = small_files(table, kind)
    if what == "large":
        append(catalog, range(number * 1000, number * 1000 + 400), kind)
    elif what == "merge" and len(files) > 1:
        compact(catalog, kind)
    elif what == "delete" and files:
        delete_rows(catalog, files[-1])
    elif what == "manifests" and files:
        rewrite_manifests(catalog)
    else:
        append(catalog, [number], kind)


STEPS = st.lists(
    st.tuples(st.sampled_from(["small", "large", "merge", "delete", "manifests"]), st.sampled_from("ab")),
    min_size=1, max_size=8,
)  # fmt: skip


@examples(15)
@given(steps=STEPS)
def test_states_are_those_of_each_commit(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    """Files, small files and delete files of each partition after each commit; every manifest is read once."""
    catalog = sqlite_catalog(tmp_path_factory.mktemp("lake"))
    make_table(catalog)
    for number, (what, kind) in enumerate(steps):
        step(catalog, what, kind, number)
    table = catalog.load_table("db.t")
    chosen = chosen_snapshots(table.metadata, history_of(table.metadata, "t"))
    io = CountingIO()
    states, _ = past_states(table.metadata, io, chosen, LIMIT)
    assert states == [listed(table, snapshot.snapshot_id) for snapshot in table.metadata.snapshots]
    assert len(io.manifests) == len(set(io.manifests))
    catalog.close()


def test_an_empty_table_has_no_states(lake: SqlCatalog) -> None:
    """Nothing was ever committed."""
    assert seen(make_table(lake)) == []


def test_between_the_snapshots_of_one_commit_nobody_looked(lake: SqlCatalog) -> None:
    """A batch with its merge is one state, that of its last snapshot."""
    two_files(lake)
    run(lake, batch(lake, 7), lake.load_table("db.t"))
    table = lake.load_table("db.t")
    ids = [s.snapshot_id for s in table.metadata.snapshots]
    assert [state.snapshot_id for state in seen(table)] == [*ids[:2], ids[3]]


def test_of_a_large_table_fewer_snapshots_are_looked_at(lake: SqlCatalog) -> None:
    """At most so many, and no more than their files allow, with the oldest and the newest; at least these two."""
    make_table(lake)
    for number in range(9):
        table = append(lake, [number])
    ids = [s.snapshot_id for s in table.metadata.snapshots]
    history = history_of(table.metadata, "t")

    def chosen(most_snapshots: int, most_entries: int) -> list[int]:
        return [s.snapshot_id for s in chosen_snapshots(table.metadata, history, most_snapshots, most_entries)]

    assert chosen(48, 10**6) == ids
    assert chosen(5, 10**6) == ids[::2]
    assert chosen(48, 27) == [ids[0], ids[4], ids[8]]
    assert chosen(48, 1) == [ids[0], ids[8]]
    untold = replace(history, commits=tuple(replace(c, total_files=None) for c in history.commits))
    assert len(chosen_snapshots(table.metadata, untold)) == 9


def test_states_that_storage_does_not_give_are_counted(lake: SqlCatalog) -> None:
    """One manifest list is gone and one is damaged: the others are told all the same."""
    make_table(lake)
    for number in range(4):
        table = append(lake, [number])
    first, second, *others = table.metadata.snapshots
    local(first.manifest_list).unlink()
    local(second.manifest_list).write_bytes(b"Obj\x01 nonsense")
    states, unreadable = past_states(table.metadata, CountingIO(), table.metadata.snapshots, LIMIT)
    assert ([s.snapshot_id for s in states], unreadable) == ([s.snapshot_id for s in others], 2)


def test_equality_deletes_count_for_their_partition(lake: SqlCatalog) -> None:
    """A partition may hold nothing but delete files."""
    table = two_files(lake)
    delete_ids(lake, small_files(table)[0], [1])
    newest = seen(lake.load_table("db.t"))[-1]
    assert newest.partitions == {"kind=a": FileCounts(2, 2, 1)}
