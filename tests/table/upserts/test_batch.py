"""Batches of upserts, in process: the table is what its events make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyiceberg.catalog import Catalog
from pyiceberg.transforms import BucketTransform

from icesize import failpoints
from icesize.environment import Environment
from icesize.errors import BatchError, SchemaMismatch, TableError, UnsupportedTable
from icesize.maintenance.verify.checkup import check_up
from icesize.parquet.files.data_file import Results
from icesize.planning.cluster_by import ClusterFile
from icesize.planning.files import FileFact, PartitionKey, SkipReason
from icesize.report import Report
from icesize.table.manifests.delete_index import DeleteIndex
from icesize.table.manifests.store import ManifestStore
from icesize.table.records.ledger import LedgerEntry
from icesize.table.state.handle import Current, PolicyArgument, TableHandle
from icesize.table.upserts.batch import FetchSlice, merge_here
from icesize.table.upserts.settings import WantedRule
from icesize.table.upserts.state_files import COMPARE_KEYS, FilesWithBounds
from tests.support.tables import (
    FakeTime,
    append,
    check,
    make_table,
    request_on,
    run,
    sqlite_catalog,
    theirs,
    write,
)
from tests.support.upserts import Event, catalog_with_table, events_of, live_rows, sliced, upsert

RULE = WantedRule(key="id", order_by="ts")


@pytest.fixture(params=[2, 3])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Catalog:
    """A catalog with the empty table `db.t`, in format v2 and v3."""
    return catalog_with_table(tmp_path, request.param)


def commit(
    catalog: Catalog,
    events: Sequence[Event],
    batch: int,
    rule: WantedRule = RULE,
    policy: PolicyArgument = None,
    slices: int = 1,
    stream: str = "s",
    **options: bool,
) -> Report:
    handle, entry = TableHandle(catalog, ("db", "t"), policy), LedgerEntry(stream, "q", batch)
    report = upsert(handle, rule, lambda current, rule: sliced(events, slices), entry, **options)
    check(catalog.load_table("db.t"))
    return report


def test_new_versions_replace_old_ones_in_one_commit(catalog: Catalog) -> None:
    """Rows are added by an append, and replaced by an overwrite, also if they move to another partition."""
    first = commit(catalog, [(1, 10, "a"), (2, 10, "a"), (3, 10, "b")], 0)
    second = commit(catalog, [(1, 11, "b"), (2, 11, None), (4, 11, "a")], 1)

    assert (first.operations, second.operations[0]) == (("append",), "overwrite")
    assert live_rows(catalog) == [(1, 11, "b"), (3, 10, "b"), (4, 11, "a")]
    assert second.upsert == {"events": 3, "keys": 3, "updated": 1, "deleted": 1, "late": 0, "doubled": 0}


def test_deletes_alone_are_a_delete(catalog: Catalog) -> None:
    """A batch of deletes makes a snapshot of the operation `delete`, and none if no row has the keys."""
    many = [(key, 10, "a") for key in range(1, 12)]
    commit(catalog, list(many), 0)

    assert commit(catalog, [(1, 11, None)], 1).operations == ("delete",)
    assert commit(catalog, [(1, 12, None), (77, 12, None)], 2).operations == ()
    assert live_rows(catalog) == many[1:]


def test_a_file_whose_rows_are_only_deleted_is_merged_with_the_batch(catalog: Catalog) -> None:
    """A batch that adds no row to a partition merges the files of it that have too many dead rows now."""
    commit(catalog, [(1, 10, "a"), (2, 10, "a")], 0)

    assert commit(catalog, [(1, 11, None)], 1).operations == ("delete", "replace")
    assert live_rows(catalog) == [(2, 10, "a")]


def test_the_greatest_order_wins(catalog: Catalog) -> None:
    """In a batch and across batches, an older event changes nothing, and an equal one leaves the row that is there."""
    commit(catalog, [(1, 12, "a"), (1, 10, "b"), (2, 10, "a")], 0)
    late = commit(catalog, [(1, 12, "c"), (2, 9, None), (3, 1, "a")], 1)

    assert live_rows(catalog) == [(1, 12, "a"), (2, 10, "a"), (3, 1, "a")]
    assert late.upsert is not None
    assert late.upsert["late"] == 2


def test_a_batch_is_committed_once(catalog: Catalog) -> None:
    """A replay of a batch changes nothing."""
    commit(catalog, [(1, 10, "a")], 0)
    commit(catalog, [(1, 11, "b")], 1)

    assert commit(catalog, [(1, 11, "b")], 1).already_committed
    assert live_rows(catalog) == [(1, 11, "b")]


def test_slices_make_the_same_table_as_one_batch(tmp_path: Path, catalog: Catalog) -> None:
    """Rows and counts do not depend on the slices, with updates, moves, deletes, late and repeated events."""
    (other := tmp_path / "other").mkdir()
    chance, tables = np.random.default_rng(5), [catalog, catalog_with_table(other, 2)]
    for batch in range(4):
        keys, times, kinds = (chance.integers(0, most, 60) for most in (25, 200, 4))
        events: list[Event] = [
            (key, time, "abc-"[kind].replace("-", "") or None)
            for key, time, kind in zip(keys.tolist(), times.tolist(), kinds.tolist(), strict=True)
        ]
        one_of_a_time = list({event[:2]: event for event in events}.values())
        reports = [
            commit(each, one_of_a_time, batch, slices=slices) for each, slices in zip(tables, (4, 1), strict=True)
        ]
        assert reports[0].upsert == reports[1].upsert
        assert live_rows(tables[0]) == live_rows(tables[1])


def test_slices_share_files(catalog: Catalog) -> None:
    """A partition that all slices write to gets one file, and a data file that they change one delete file."""
    commit(catalog, [(key, 10, "a") for key in range(40)], 0)
    report = commit(catalog, [(key, 11, "a") for key in range(4)] + [(50, 11, "a")], 1, slices=4)
    assert report.files_added == 1
    assert len(catalog.load_table("db.t").inspect.delete_files()) == 1


def test_slices_are_resolved_again_after_another_writer(catalog: Catalog) -> None:
    """Files of slices are used again; a row that is late now is deleted, and one that is valid now is written."""
    commit(catalog, [(1, 10, "a"), (2, 30, "a"), (3, 10, "a")], 0)

    waiting = [lambda: commit(catalog, [(1, 90, "b"), (2, 31, None), (4, 90, "b")], 0, stream="other")]
    with failpoints.armed("before-swap", lambda: waiting and waiting.pop()()):
        report = commit(catalog, [(key, 20, "c") for key in range(1, 7)], 1, slices=3)

    assert live_rows(catalog) == [
        (1, 90, "b"), (2, 20, "c"), (3, 20, "c"), (4, 90, "b"), (5, 20, "c"), (6, 20, "c")
    ]  # fmt: skip
    assert report.upsert is not None
    assert (report.upsert["keys"], report.upsert["late"]) == (6, 2)


@pytest.mark.parametrize(("first", "later"), [
    ((101, 20, "c"), (102, 20, "c")), ((101, 20, "c"), (101, 21, "c")), ((101, 20, "c"), (101, 20, None)),
    ((101, 20, None), (101, 20, "c")),
], ids=["key", "order", "row-then-delete", "delete-then-row"])  # fmt: skip
def test_a_source_that_returns_other_rows_is_read_again(catalog: Catalog, first: Event, later: Event) -> None:
    """Slices that differ at a second attempt do not fit their files, so that the batch is planned again."""
    commit(catalog, [(9, 10, "a")], 0)
    fetched = [first]

    def fetch() -> tuple[pa.Table, NDArray[np.bool_]]:
        return events_of([fetched.pop() if fetched else later])

    waiting = [lambda: commit(catalog, [(1, 90, "b")], 0, stream="other")]
    handle, slices = TableHandle(catalog, ("db", "t")), [fetch, partial(events_of, [(2, 20, "c")])]
    with failpoints.armed("before-swap", lambda: waiting and waiting.pop()()):
        report = upsert(handle, RULE, lambda current, rule: slices, None, FakeTime().environment)

    assert any("other rows than before" in each for each in report.conflicts)
    left = [later] if later[2] else []
    assert live_rows(catalog) == [(1, 90, "b"), (2, 20, "c"), (9, 10, "a"), *left]


@pytest.mark.parametrize(
    ("ties", "events", "left"),
    [
        ("error", [(1, 10, "a"), (1, 10, "a")], "a"),
        ("error", [(1, 10, "a"), (1, 10, "b")], None),
        ("last_delete", [(1, 10, "a"), (1, 10, None)], ""),
        ("last_delete", [(1, 10, "a"), (1, 10, "b")], None),
        ("max_row", [(1, 10, "a"), (1, 10, "b")], "b"),
    ],
)
def test_events_of_the_same_order(catalog: Catalog, ties: str, events: list[Event], left: str | None) -> None:
    """Exact duplicates are one event; the rule decides about others, or the batch is refused."""
    rule = WantedRule(key="id", order_by="ts", ties=ties)
    if left is None:
        with pytest.raises(BatchError, match=r"1 key has different events of the same order.*\(id=1\)"):
            commit(catalog, events, 0, rule)
        return
    commit(catalog, events, 0, rule)
    assert live_rows(catalog) == ([(1, 10, left)] if left else [])


def test_null_keys_are_refused_or_skipped(catalog: Catalog) -> None:
    """An event without a key stops the batch, unless such events are to be left out."""
    with pytest.raises(SchemaMismatch, match="column 'id' of the key is NULL in 1 of 2 rows; leave such rows out with"):
        commit(catalog, [(None, 1, "a"), (1, 1, "a")], 0)
    commit(catalog, [(None, 1, "a"), (1, 1, "a")], 0, skip_null_keys=True)
    assert live_rows(catalog) == [(1, 1, "a")]


def test_the_rule_belongs_to_the_table(catalog: Catalog) -> None:
    """A second writer need not repeat the rule, and a different one is refused."""
    commit(catalog, [(1, 10, "a")], 0)
    commit(catalog, [(1, 11, "b")], 1, WantedRule())

    with pytest.raises(TableError, match=r"'key' is \(id\) in the table and \(kind\) here; .* is \(ts\) in the table"):
        commit(catalog, [(1, 12, "b")], 2, WantedRule(key="kind", order_by=()))
    assert live_rows(catalog) == [(1, 11, "b")]


def test_files_with_many_dead_rows_are_merged_in_the_same_commit(catalog: Catalog) -> None:
    """Once a fifth of a file is dead, the batch rewrites it together with its own deletes."""
    commit(catalog, [(each, 1, "a") for each in range(1_000)], 0)
    report = commit(catalog, [(each, 2, "a") for each in range(300)], 1)

    assert report.operations == ("overwrite", "replace")
    assert len(live_rows(catalog)) == 1_000
    assert np.array([row[1] for row in live_rows(catalog)]).sum() == 1_300


def test_a_batch_that_deletes_rows_of_some_input_files_commits_its_merge(catalog: Catalog) -> None:
    """The batch replaces the vector of one input file, and the vector of another one stays."""
    commit(catalog, [(each, 1, "a") for each in range(50)], 0)
    commit(catalog, [(each, 1, "a") for each in range(50, 100)], 1)
    commit(catalog, [(0, 2, "a"), (50, 2, "a")], 2)
    report = commit(catalog, [(1, 3, "a")], 3, policy={"max-small-files": 1})

    assert (report.operations, report.notes) == (("overwrite", "replace"), ())
    assert report.files_removed == 3
    assert live_rows(catalog) == [(each, {0: 2, 50: 2, 1: 3}.get(each, 1), "a") for each in range(100)]


def test_rows_of_older_partition_specs_are_replaced(catalog: Catalog) -> None:
    """The deletes of a data file lie in its own partition, also if the table is partitioned in another way now."""
    commit(catalog, [(1, 10, "a"), (2, 10, "a"), (3, 10, "b")], 0)
    for number, change in enumerate(("add", "remove")):
        spec = theirs(catalog.load_table("db.t")).update_spec()
        (spec.add_field("id", BucketTransform(2), "bucket") if change == "add" else spec.remove_field("kind")).commit()
        commit(catalog, [(number + 1, 11, "a")], number + 1)

    assert live_rows(catalog) == [(1, 11, "a"), (2, 11, "a"), (3, 10, "b")]


def test_files_of_a_partition_spec_that_came_meanwhile_are_read(catalog: Catalog) -> None:
    """If another writer first adds a partition spec and rows of it, a key of them has one row after the batch."""
    commit(catalog, [(1, 10, "a")], 0)

    def others() -> None:
        theirs(catalog.load_table("db.t")).update_spec().add_field("id", BucketTransform(2), "bucket").commit()
        append(catalog, [1])

    waiting = [others]
    with failpoints.armed("before-swap", lambda: waiting and waiting.pop()()):
        commit(catalog, [(1, 10**13, "b")], 1)

    assert live_rows(catalog) == [(1, 10**13, "b")]


def test_a_doubled_key_keeps_its_newest_row_if_the_event_is_late(catalog: Catalog) -> None:
    """Rows that others doubled become one, and the report counts them as doubled and late, not as updated."""
    commit(catalog, [(1, 10, "a")], 0)
    append(catalog, [1])
    report = commit(catalog, [(1, 11, "b")], 1)

    assert live_rows(catalog) == [(1, 3_600_000_000, "a")]
    assert report.upsert == {"events": 1, "keys": 1, "updated": 0, "deleted": 0, "late": 1, "doubled": 1}


@pytest.mark.parametrize(("deadline_ms", "seconds"), [(None, None), (2_500, 2.5)])
def test_due_merges_have_no_deadline_unless_one_is_set(
    catalog: Catalog, deadline_ms: int | None, seconds: float | None
) -> None:
    """A merge that takes longer than the write is not stopped: its file would be due in each batch again."""
    timeouts = list[float | None]()

    def noting(*arguments: Any) -> Results:
        timeouts.append(arguments[-1])
        return merge_here(*arguments)

    policy = {} if deadline_ms is None else {"merge-deadline-ms": deadline_ms}
    upsert(
        TableHandle(catalog, ("db", "t"), policy), RULE, lambda current, rule: [lambda: events_of([(1, 1, "a")])],
        merges=noting,
    )  # fmt: skip
    assert timeouts == [seconds]


def test_files_have_whole_bounds_of_the_key(catalog: Catalog) -> None:
    """A long text in the key is not shortened in the bounds, from the first batch on; other columns are."""
    long_kind = "kind-" * 20
    commit(catalog, [(1, 10, long_kind)], 0, WantedRule(key=["kind", "id"], order_by="ts"))
    (entry,) = catalog.load_table("db.t").inspect.files().to_pylist()
    assert dict(entry["upper_bounds"])[2] == long_kind.encode()


def test_a_column_renamed_while_the_rule_is_stored(catalog: Catalog) -> None:
    """The first batch stores the rule; if another writer renames a column then, the events are read again."""
    waiting = [lambda: theirs(catalog.load_table("db.t")).update_schema().rename_column("kind", "sort").commit()]

    def fetch(current: Current, rule: object) -> list[FetchSlice]:
        rows, is_delete = events_of([(1, 10, "a")])
        return [lambda: (rows.rename_columns([field.name for field in current.table.schema().fields]), is_delete)]

    handle, entry = TableHandle(catalog, ("db", "t")), LedgerEntry("s", "q", 0)
    with failpoints.armed("after-swap", lambda: waiting and waiting.pop()()):
        report = upsert(handle, RULE, fetch, entry, FakeTime().environment)

    assert catalog.load_table("db.t").metadata.current_snapshot() is not None
    assert any("the schema changed" in each for each in report.conflicts)


def test_rows_of_an_older_partition_spec_are_replaced(tmp_path: Path) -> None:
    """Files of a spec that is no longer the table's get their deletes, too (format v2: beside their partition)."""
    catalog = sqlite_catalog(tmp_path)
    make_table(catalog)
    commit(catalog, [(1, 10, "a"), (2, 10, "a")], 0)
    with catalog.load_table("db.t").update_spec() as spec:
        spec.remove_field("kind")

    commit(catalog, [(1, 11, "b")], 1)
    assert live_rows(catalog) == [(1, 11, "b"), (2, 10, "a")]


def test_doctor_counts_files_without_bounds(catalog: Catalog) -> None:
    """Files of other writers may have no bounds of the key, so that each batch reads their key column."""
    commit(catalog, [(1, 10, "a")], 0)
    handle = TableHandle(catalog, ("db", "t"))
    assert {each.name: each.detail for each in check_up(handle, Environment())}["upserts"].startswith(
        "1 data file, all"
    )

    table = catalog.load_table("db.t")
    without_bounds = replace(write(table, [7]), lower_bounds={}, upper_bounds={})
    run(catalog, request_on(table, [without_bounds]), table)
    detail = {each.name: each.detail for each in check_up(handle, Environment())}["upserts"]
    assert detail == (
        f"1 of 2 data files have no bounds of key or order, so each batch reads them: {without_bounds.path}"
    )


def test_the_policy_of_a_table_with_a_key(catalog: Catalog) -> None:
    """Jobs rewrite files from 20 % deleted rows on, unless a user set the threshold; a spread that was set stays."""
    handle = TableHandle(catalog, ("db", "t"))
    assert handle.load().policy.delete_ratio_threshold == 0.3
    commit(catalog, [(1, 10, "a")], 0)

    policy = handle.load().policy
    assert (policy.delete_ratio_threshold, policy.delete_ratio_spread) == (0.2, 0.4)
    given = TableHandle(catalog, ("db", "t"), {"delete-ratio-threshold": 0.5}).load().policy
    assert (given.delete_ratio_threshold, given.delete_ratio_spread) == (0.5, 0.0)
    spread = TableHandle(catalog, ("db", "t"), {"delete-ratio-spread": 0.1}).load().policy
    assert (spread.delete_ratio_threshold, spread.delete_ratio_spread) == (0.2, 0.1)


@pytest.mark.parametrize(
    ("fact", "why"),
    [
        (FileFact("a.parquet", 1, 1, PartitionKey(0, (float("nan"),))), "a partition value of it is NaN"),
        (FileFact("b.orc", 1, 1, PartitionKey(0), obstacle=SkipReason.NOT_PARQUET), "it is not a Parquet file"),
    ],
)
def test_unreadable_files_are_refused_if_a_batch_needs_them(fact: FileFact, why: str) -> None:
    """The message names the job, and the file."""
    live = FilesWithBounds([], {}, DeleteIndex(), ManifestStore())
    with pytest.raises(UnsupportedTable, match=f"Cannot upsert: {fact.path} may have keys of the batch, and {why}"):
        live.noted(ClusterFile(fact, ()))
    with pytest.raises(UnsupportedTable, match=f"Cannot compare keys: {fact.path} may have keys of other rows"):
        live.noted(ClusterFile(fact, ()), COMPARE_KEYS)
