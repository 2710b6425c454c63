"""The facade is called from several threads: jobs of one table wait for each other, what only looks does not, and two
tables opened beside each other disturb no one."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from icesize.failpoints import armed
from icesize.table.manifests import store
from tests.support.meeting import Meeting, all_at_once
from tests.support.tables import append, check, ids_of, live_paths, make_table


def filled(lake: SqlCatalog) -> None:
    """Four small files in each of two partitions."""
    make_table(lake)
    for number in range(8):
        append(lake, [number], "ab"[number % 2])


def test_eight_threads_work_on_two_tables_without_spark(lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call fails, each file is replaced once, whoever comes first, and no row is lost."""
    filled(lake)
    one, other = (icesize.open(None, "db.t", catalog=lake) for _ in range(2))
    monkeypatch.setattr(store, "read_facts", Meeting().ahead_of(store.read_facts))
    looks: list[Callable[[], object]] = [one.inspect, other.plan, other.inspect, one.plan]
    reports = all_at_once([*looks, one.compact, other.compact, one.after_batch, other.compact])[4:]
    assert sum(report.files_removed for report in reports if isinstance(report, icesize.Report)) == 8
    assert (one.plan().groups, other.plan().groups) == ((), ())
    table = lake.load_table("db.t")
    check(table)
    assert (len(live_paths(table)), ids_of(lake)) == (2, list(range(8)))


def test_jobs_of_one_table_wait_for_each_other_and_looks_do_not(lake: SqlCatalog) -> None:
    """A second compaction begins when the first is done, and finds nothing; `inspect` is answered meanwhile."""
    filled(lake)
    table = icesize.open(None, "db.t", catalog=lake)
    looked, reports = Event(), list[icesize.Report]()
    second = Thread(target=lambda: reports.append(table.compact()))

    def look() -> None:
        table.inspect()
        looked.set()

    def meanwhile() -> None:
        if second.ident is None:
            second.start()
            Thread(target=look).start()
            assert looked.wait(60)
            second.join(0.3)

    with armed("files-written", meanwhile):
        first = table.compact()
        second.join(60)
    assert (first.files_removed, first.conflicts) == (8, ())
    assert [(report.files_removed, report.conflicts) for report in reports] == [(0, ())]
