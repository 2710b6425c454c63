"""Deletes that are remembered: events that are older and come later do not bring a row back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from icesize import open as open_table
from icesize.environment import Environment
from icesize.maintenance.upsert import UpsertBatch, UpsertJob, upsert
from icesize.report import Report
from icesize.table.commit.steps.move_tombstones import BRANCH
from icesize.table.manifests.lists import manifests_of
from icesize.table.manifests.store import ManifestStore
from icesize.table.records.ledger import LedgerEntry
from icesize.table.state.handle import TableHandle
from icesize.table.upserts.settings import WantedRule
from tests.support.tables import NOW_MS, check
from tests.support.upserts import Event, catalog_with_table, events_of, live_rows

RULE = WantedRule(key="id", order_by="ts", tombstones="2 days")
DAY_MS = 86_400_000


@pytest.fixture(params=[2, 3])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Catalog:
    """A catalog with the empty, partitioned table `db.t`, in format v2 and v3."""
    return catalog_with_table(tmp_path, request.param)


def commit(catalog: Catalog, events: Sequence[Event], batch: int, *, stream: str = "s", days: float = 0) -> Report:
    environment = replace(Environment(), now_ms=lambda: NOW_MS + round(days * DAY_MS))
    job = UpsertJob(TableHandle(catalog, ("db", "t")), environment, RULE, b"secret")
    outcome = upsert(
        job, UpsertBatch(lambda current, rule: events_of(events), LedgerEntry(stream, "q", batch), f"{stream}{batch}")
    )
    check(catalog.load_table("db.t"))
    return outcome.report


def tombstone_files(catalog: Catalog) -> int:
    table, store = catalog.load_table("db.t"), ManifestStore()
    head = table.metadata.snapshot_by_id(table.metadata.refs[BRANCH].snapshot_id)
    return sum(len(store.facts(table.io, each).live) for each in manifests_of(head, table.io).data)


def test_an_older_event_after_a_delete_changes_nothing(catalog: Catalog) -> None:
    """The rows are those that the events would make in the order of `ts`."""
    commit(catalog, [(1, 10, "a"), (2, 10, "b")], 0)
    commit(catalog, [(1, 20, None)], 1)
    late = commit(catalog, [(1, 15, "b"), (2, 11, "a")], 2)

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


def test_deletes_are_forgotten_after_the_horizon(catalog: Catalog) -> None:
    """After two days an older event makes a row again, whether files of tombstones were merged or not."""
    commit(catalog, [(1, 20, None), (2, 20, None)], 0)
    commit(catalog, [(2, 15, "a")], 1, days=1.9)
    assert live_rows(catalog) == []
    commit(catalog, [(1, 15, "a"), (3, 30, None)], 2, days=2.1)
    assert live_rows(catalog) == [(1, 15, "a")]
    assert tombstone_files(catalog) == 1


def test_files_of_tombstones_stay_few(catalog: Catalog) -> None:
    """Files are merged, and the newest tombstone of a key counts."""
    for number in range(20):
        commit(catalog, [(1, 10 + number, None), (100 + number, 50, None)], number)
        assert tombstone_files(catalog) <= 6
    commit(catalog, [(1, 28, "a"), (105, 49, "a"), (7, 1, "a")], 20)
    assert live_rows(catalog) == [(7, 1, "a")]


def test_two_streams_remember_deletes_for_each_other(catalog: Catalog) -> None:
    """A commit asserts the branch, so that a stream sees the deletes that the other one has committed."""
    table, landed = catalog.load_table("db.t"), list[Report]()

    def meanwhile(event: object) -> None:
        if type(event).__name__ == "CommitStarted" and not landed:
            landed.append(Report())
            landed[0] = commit(catalog, [(1, 20, None)], 0, stream="other")

    commit(catalog, [(1, 10, "a")], 0)
    environment = replace(Environment(), now_ms=lambda: NOW_MS, observe=meanwhile, sleep=lambda seconds: None)
    job = UpsertJob(TableHandle(catalog, ("db", "t")), environment, RULE, b"secret")
    events = [(1, 15, "b"), (2, 15, "b")]
    upsert(job, UpsertBatch(lambda current, rule: events_of(events), LedgerEntry("s", "q", 1), "r"))

    assert landed[0].operations[0] == "delete"
    assert live_rows(catalog) == [(2, 15, "b")]
    check(catalog.load_table(table.name()[-2:]))


def test_expiry_and_orphan_cleanup_keep_them(catalog: Catalog) -> None:
    """Only the newest snapshot of the branch stays, and its files stay with it."""
    for number in range(9):
        commit(catalog, [(number, 20, None), (50 + number, 1, "a")], number)
    sized = open_table(None, "db.t", catalog=catalog)
    sized.expire_snapshots(older_than=timedelta(0), retain_last=1)
    sized.remove_orphan_files(older_than=timedelta(hours=25), dry_run=False)

    metadata = catalog.load_table("db.t").metadata
    kept = {metadata.refs[name].snapshot_id for name in ("main", BRANCH)}
    assert {each.snapshot_id for each in metadata.snapshots} == kept
    commit(catalog, [(number, 10, "a") for number in range(9)], 9)
    assert live_rows(catalog) == [(50 + number, 1, "a") for number in range(9)]
