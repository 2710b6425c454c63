"""Deletes that are remembered: events that are older and come later do not bring a row back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from icesize import open as open_table
from icesize.environment import Environment
from icesize.failpoints import armed
from icesize.planning.retention.ancestry import FOR_EVER_MS, TOMBSTONE_BRANCH
from icesize.report import Report
from icesize.table.manifests.manifest_lists import manifests_of
from icesize.table.manifests.store import ManifestStore
from icesize.table.records.ledger import LedgerEntry
from icesize.table.state.handle import TableHandle
from icesize.table.upserts.settings import WantedRule
from icesize.table.upserts.tombstones import MOST_FILES
from tests.support.tables import NOW_MS, check, sqlite_catalog, theirs
from tests.support.upserts import Event, catalog_with_table, events_of, live_rows, sliced, upsert

RULE = WantedRule(key="id", order_by="ts", tombstones="2 days")
DAY_MS = 86_400_000


@pytest.fixture(params=[2, 3])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Catalog:
    """A catalog with the empty, partitioned table `db.t`, in format v2 and v3."""
    return catalog_with_table(tmp_path, request.param)


def commit(
    catalog: Catalog, events: Sequence[Event], batch: int, *, stream: str = "s", days: float = 0,
    rule: WantedRule = RULE, slices: int = 1,
) -> Report:  # fmt: skip
    environment = replace(Environment(), now_ms=lambda: NOW_MS + round(days * DAY_MS))
    handle, entry = TableHandle(catalog, ("db", "t")), LedgerEntry(stream, "q", batch)
    report = upsert(handle, rule, lambda current, rule: sliced(events, slices), entry, environment)
    check(catalog.load_table("db.t"))
    return report


def tombstone_files(catalog: Catalog) -> int:
    table, store = catalog.load_table("db.t"), ManifestStore()
    head = table.metadata.snapshot_by_id(table.metadata.refs[TOMBSTONE_BRANCH].snapshot_id)
    return sum(
        len(store.facts(table.io, each).live) for each in manifests_of(head, table.io, table.metadata.specs()).data
    )


@pytest.mark.parametrize("slices", [1, 3])
def test_an_older_event_after_a_delete_changes_nothing(catalog: Catalog, slices: int) -> None:
    """The rows are those that the events would make in the order of `ts`."""
    commit(catalog, [(1, 10, "a"), (2, 10, "b")], 0)
    commit(catalog, [(1, 20, None)], 1, slices=slices)
    late = commit(catalog, [(1, 15, "b"), (2, 11, "a")], 2, slices=slices)

    assert live_rows(catalog) == [(2, 11, "a")]
    assert late.upsert is not None
    assert late.upsert["late"] == 1
    commit(catalog, [(1, 21, "c")], 3)
    assert live_rows(catalog) == [(1, 21, "c"), (2, 11, "a")]


def test_a_delete_before_its_row(catalog: Catalog) -> None:
    """A delete of a key that has no row is remembered, too, and changes nothing on main."""
    first = commit(catalog, [(1, 20, None)], 0)
    commit(catalog, [(1, 15, "a"), (1, 19, "b")], 1)

    assert first.operations == ()
    assert live_rows(catalog) == []
    assert commit(catalog, [(1, 20, None)], 0).already_committed


@pytest.mark.parametrize("ours", [[(1, 15, "a")], [(1, 15, "a"), (9, 15, None)]], ids=["row", "row-and-delete"])
def test_two_streams_begin_in_an_empty_table(catalog: Catalog, ours: list[Event]) -> None:
    """The other one only remembers a delete, so that main has no snapshot yet; the older row must not appear."""
    # the first commit stores the rule, and the other stream makes its own one beside the second
    others = iter([int, lambda: commit(catalog, [(1, 20, None)], 0, stream="other")])
    with armed("before-swap", lambda: next(others, int)()):
        report = commit(catalog, ours, 0)

    assert live_rows(catalog) == []
    assert report.upsert is not None
    assert report.upsert["late"] == 1


def test_deletes_are_forgotten_after_the_horizon(catalog: Catalog) -> None:
    """After two days an older event makes a row again, whether files of tombstones were merged or not."""
    commit(catalog, [(1, 20, None), (2, 20, None)], 0)
    commit(catalog, [(2, 15, "a")], 1, days=1.9)
    assert live_rows(catalog) == []
    commit(catalog, [(1, 15, "a"), (3, 30, None)], 2, days=2.1)
    assert live_rows(catalog) == [(1, 15, "a")]
    assert tombstone_files(catalog) == 1


def test_files_of_tombstones_expire_in_a_table_without_metrics(catalog: Catalog) -> None:
    """Their newest time is in the manifest, whatever the table collects, so that they go as a whole."""
    with theirs(catalog.load_table("db.t")).transaction() as change:
        change.set_properties({"write.metadata.metrics.default": "none"})
    commit(catalog, [(1, 20, None)], 0)
    commit(catalog, [(2, 20, None)], 1, days=2.1)
    assert tombstone_files(catalog) == 1


def test_files_of_tombstones_stay_few(catalog: Catalog) -> None:
    """Files are merged, and the newest tombstone of a key counts."""
    for number in range(20):
        commit(catalog, [(1, 10 + number, None), (100 + number, 50, None)], number)
        assert tombstone_files(catalog) <= 6
    commit(catalog, [(1, 28, "a"), (105, 49, "a"), (7, 1, "a")], 20)
    assert live_rows(catalog) == [(7, 1, "a")]


def test_deletes_that_come_again_after_a_rollback(catalog: Catalog) -> None:
    """A row that is older than a remembered delete dies with any event of its key; rows that are newer stay."""
    rows = [(1, 10, "a"), (2, 10, "a"), (3, 10, "a"), (4, 10, "a")]
    commit(catalog, rows, 0)
    before = catalog.load_table("db.t").metadata.current_snapshot_id
    later: list[list[Event]] = [[(1, 20, None), (2, 20, None)], [(3, 12, "b")], [(3, 15, None)], [(4, 5, None)]]
    for number, events in enumerate(later, 1):
        commit(catalog, events, number)
    wanted = live_rows(catalog)
    theirs(catalog.load_table("db.t")).manage_snapshots().rollback_to_snapshot(before).commit()
    assert live_rows(catalog) == rows
    # an older event of key 2, in place of its delete
    replayed = [commit(catalog, events, 5 + n) for n, events in enumerate([[(1, 20, None), (2, 15, "b")], *later[1:]])]

    assert live_rows(catalog) == wanted == [(4, 10, "a")]
    counts = [report.upsert for report in replayed if report.upsert]
    assert [(each["late"], each["deleted"], each["updated"]) for each in counts] == [
        (2, 2, 0), (1, 1, 0), (1, 0, 0), (1, 0, 0)
    ]  # fmt: skip
    assert replayed[0].operations[0] == "delete"


def test_an_older_delete_lasts_as_long_as_a_newer_one(catalog: Catalog) -> None:
    """The time of each delete counts from its own commit, also if a newer delete came first, and after merges."""
    for key in (1, 2):
        commit(catalog, [(key, 70, None)], key)
    commit(catalog, [(1, 50, None)], 3, days=1.5)
    for number in range(7):
        commit(catalog, [(100 + number, 1, None)], 4 + number, days=1.6)
    commit(catalog, [(1, 40, "a"), (2, 40, "a")], 20, days=2.5)
    assert live_rows(catalog) == [(2, 40, "a")]


def test_a_rule_with_more_columns_of_the_order_keeps_deletes(catalog: Catalog) -> None:
    """Deletes lack the new column, so that they are older than events of the same order that have it."""
    commit(catalog, [(1, 10, "a"), (2, 20, None), (3, 20, None)], 0)
    report = open_table(None, "db.t", catalog=catalog).rekey(order_by=["ts", "kind"])
    events: list[Event] = [(2, 19, "a"), (3, 20, "a"), (4, 1, "a")]
    commit(catalog, events, 1, rule=WantedRule())

    assert report.notes == ()
    assert live_rows(catalog) == [(1, 10, "a"), (3, 20, "a"), (4, 1, "a")]
    open_table(None, "db.t", catalog=catalog).rekey(order_by="ts")
    commit(catalog, [(2, 18, "a")], 2, rule=WantedRule())
    assert live_rows(catalog) == [(1, 10, "a"), (3, 20, "a"), (4, 1, "a")]


def test_a_required_column_of_the_order_that_deletes_lack(tmp_path: Path) -> None:
    """Files of deletes are older than the column in the order, and are read and merged without it."""
    catalog, names = sqlite_catalog(tmp_path), ("id", "ts", "n")
    schema = Schema(*(NestedField(i, name, LongType(), required=True) for i, name in enumerate(names, 1)))
    catalog.create_table("db.t", schema)
    sized = open_table(None, "db.t", catalog=catalog)

    def send(*rows: tuple[int, int, int], deletes: bool = False, **rule: Any) -> None:
        columns = [pa.array(values, pa.int64()) for values in zip(*rows, strict=True)]
        events = pa.table(columns, pa.schema([pa.field(name, pa.int64(), False) for name in names]))
        sized.upsert(events.append_column("gone", pa.array([deletes] * len(rows))), except_columns=["gone"], **rule)

    send((1, 1, 1), (2, 5, 1), delete_when="gone = true", key="id", order_by="ts", tombstones="2 days")
    for key in range(2, 9):
        send((key, 6, 1), deletes=True)
    sized.rekey(order_by=["ts", "n"])
    send((2, 5, 9), (3, 6, 1))
    send((4, 6, 0), deletes=True)
    send((5, 5, 9), (4, 6, 0))
    rows = catalog.load_table("db.t").scan().to_arrow().to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [(1, 1, 1), (3, 6, 1)]


@pytest.mark.parametrize("change", [{"order_by": "kind"}, {"key": ["id", "kind"]}, {"order_by": ()}])
def test_a_rule_that_does_not_compare_forgets_deletes_and_says_so(
    catalog: Catalog, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The commit that changes the rule removes the branch, so that a delete of other columns never hits a row.

    The printed report has the sentence, and so has the log, for programs that do not print it.
    """
    commit(catalog, [(1, 10, "a"), (2, 20, None)], 0)
    sized = open_table(None, "db.t", catalog=catalog)
    forgotten = "deletes that were remembered by the earlier rule are forgotten"
    for dry_run in (True, False):
        assert forgotten not in caplog.text
        report = sized.rekey(**change, dry_run=dry_run)
        assert forgotten in report.notes[0]
        assert forgotten in str(report)
    assert caplog.text.count(forgotten) == 1
    assert TOMBSTONE_BRANCH not in catalog.load_table("db.t").metadata.refs
    commit(catalog, [(2, 19, "b")], 1, rule=WantedRule())
    assert live_rows(catalog) == [(1, 10, "a"), (2, 19, "b")]


def test_no_age_of_branches_removes_them(catalog: Catalog) -> None:
    """The branch allows itself any age, for other engines; ours keeps it even without."""
    commit(catalog, [(1, 10, "a"), (2, 20, None)], 0)
    with theirs(catalog.load_table("db.t")).transaction() as change:
        change.set_properties({"history.expire.max-ref-age-ms": "1"})
    open_table(None, "db.t", catalog=catalog).expire_snapshots()
    table = catalog.load_table("db.t")
    assert table.metadata.refs[TOMBSTONE_BRANCH].max_ref_age_ms == FOR_EVER_MS
    commit(catalog, [(2, 19, "b")], 1)
    assert live_rows(catalog) == [(1, 10, "a")]


def test_two_streams_remember_deletes_for_each_other(catalog: Catalog) -> None:
    """A commit asserts the branch, so that a stream sees the deletes that the other one has committed."""
    table, landed = catalog.load_table("db.t"), list[Report]()

    def meanwhile(event: object) -> None:
        if type(event).__name__ == "CommitStarted" and not landed:
            landed.append(Report())
            landed[0] = commit(catalog, [(1, 20, None)], 0, stream="other")

    commit(catalog, [(1, 10, "a")], 0)
    environment = replace(Environment(), now_ms=lambda: NOW_MS, observe=meanwhile, sleep=lambda seconds: None)
    handle, entry, events = TableHandle(catalog, ("db", "t")), LedgerEntry("s", "q", 1), [(1, 15, "b"), (2, 15, "b")]
    upsert(handle, RULE, lambda current, rule: [lambda: events_of(events)], entry, environment)

    assert landed[0].operations[0] == "delete"
    assert live_rows(catalog) == [(2, 15, "b")]
    check(catalog.load_table(table.name()[-2:]))


def test_an_older_delete_lasts_as_long_as_a_newer_one_that_came_first(catalog: Catalog) -> None:
    """The order of a remembered delete is that of the state that it is committed on, not of an earlier attempt."""
    others = [lambda: commit(catalog, [(1, 70, None)], 0, stream="other")]
    commit(catalog, [(5, 10, "a")], 0)
    with armed("before-swap", lambda: others and others.pop()()):
        commit(catalog, [(1, 50, None)], 1, days=1.5)
    commit(catalog, [(1, 60, "a")], 2, days=2.5)
    assert live_rows(catalog) == [(5, 10, "a")]


def test_tombstones_of_slices_are_merged_as_others_are(catalog: Catalog) -> None:
    """Each slice with deletes adds a file, and the next batch leaves few of them."""
    for number in range(5):
        commit(catalog, [(number, 20, None)], number)
    commit(catalog, [(10 + number, 20, None) for number in range(4)], 5, slices=4)
    assert tombstone_files(catalog) == 9
    commit(catalog, [(20, 20, None)], 6)
    assert tombstone_files(catalog) <= MOST_FILES
    commit(catalog, [(number, 10, "a") for number in range(30)], 7, slices=3)
    assert [row[0] for row in live_rows(catalog)] == [*range(5, 10), *range(14, 20), *range(21, 30)]


def test_expiry_and_orphan_cleanup_keep_them(catalog: Catalog) -> None:
    """Only the newest snapshot of the branch stays, and its files stay with it."""
    for number in range(9):
        commit(catalog, [(number, 20, None), (50 + number, 1, "a")], number)
    sized = open_table(None, "db.t", catalog=catalog)
    sized.expire_snapshots(older_than=timedelta(0), retain_last=1)
    sized.remove_orphan_files(older_than=timedelta(hours=25), dry_run=False)

    metadata = catalog.load_table("db.t").metadata
    kept = {metadata.refs[name].snapshot_id for name in ("main", TOMBSTONE_BRANCH)}
    assert {each.snapshot_id for each in metadata.snapshots} == kept
    commit(catalog, [(number, 10, "a") for number in range(9)], 9)
    assert live_rows(catalog) == [(50 + number, 1, "a") for number in range(9)]
