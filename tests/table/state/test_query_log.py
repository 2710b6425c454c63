"""Logs of queries: their lines, the partitions that they read, and the scan reports of Iceberg."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icesize.errors import ArgumentError
from icesize.planning.files import PartitionKey
from icesize.planning.reads import Reads
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.partition_changes import recent_appends
from icesize.table.state.query_log import MOST_QUERIES, PartitionOrder, Query, queries_in, reads_of
from tests.support.tables import append, layout_of, make_table, request_on, run, write

HOUR_MS = 3_600_000
REPORT = {
    "table-name": "lake.db.t", "snapshot-id": -1, "schema-id": 0, "projected-field-ids": [1],
    "projected-field-names": ["id"], "metrics": {"result-data-files": {"unit": "count", "value": 1}},
    "filter": {"type": "and", "left": {"type": "eq", "term": "id", "value": "(2-digit-int)"}, "right": True},
}  # fmt: skip


def hourly(lake: SqlCatalog, kinds: str) -> tuple[Table, int]:
    """A table whose partitions get rows one after the other, an hour apart; returns the time of the first ones, too."""
    table = make_table(lake)
    start_ms = table.metadata.last_updated_ms + 1
    for hour, kind in enumerate(kinds):
        rows = write(table, [hour, hour + 100], kind)
        run(lake, request_on(table, [rows]), table, now_ms=start_ms + hour * HOUR_MS)
        table = lake.load_table("db.t")
    return table, start_ms


def seen_in(table: Table, lines: Sequence[str]) -> tuple[Reads, ...]:
    """The reads that the lines of a log show."""
    store = ManifestStore()
    appends = recent_appends(table.metadata, table.io, store)
    return reads_of(queries_in(lines, "lake.db.t"), table.metadata, table.io, layout_of(table), appends, store)


def iso(time_ms: int) -> str:
    """A time as logs have it."""
    from datetime import datetime, timezone

    return datetime.fromtimestamp(time_ms / 1000, timezone.utc).isoformat()


def test_lines() -> None:
    """Filters with and without a time, a time alone, a scan report, also in the envelope that catalogs get."""
    lines = ["# the queries of a day", "", "id = 7", "2026-11-20T10:00:00Z  kind = 'a' ", "2026-11-20T10:00:00+01:00"]
    lines += [json.dumps(REPORT), json.dumps({"report-type": "scan-report", "report": REPORT})]
    noon = 1_763_632_800_000 + 365 * 24 * HOUR_MS
    assert queries_in(lines, "lake.db.t") == (
        Query(None, "id = 7"), Query(noon, "kind = 'a'"), Query(noon - HOUR_MS), Query(report=REPORT),
        Query(report={"report-type": "scan-report"} | REPORT),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "Cannot read line 2 of the queries as JSON: Expecting property name"),
        ('{"a": 1}', "Cannot read line 2 of the queries: a scan report has 'metrics'"),
    ],
)
def test_a_line_that_is_no_query(line: str, why: str) -> None:
    """The message has the number of the line."""
    with pytest.raises(ArgumentError, match=why.replace("(", r"\(")):
        queries_in(["id = 7", line], "lake.db.t")


def test_lines_that_are_no_queries_of_the_table() -> None:
    """Comments, reports of commits and of other tables are skipped; a string is a log, too."""
    others = [REPORT | {"report-type": "commit-report"}, REPORT | {"table-name": "lake.db.other"}]
    assert queries_in(["  # id = 7", "", *map(json.dumps, others)], "lake.db.t") == ()
    assert queries_in("\ufeffid = 7\n2026-11-20T10:00:00Z\tid = 8", "lake.db.t")[1].filter == "id = 8"


def test_a_filter_that_is_wrong(lake: SqlCatalog) -> None:
    """A column that the table does not have is an error, as in every other filter."""
    table, _ = hourly(lake, "ab")
    with pytest.raises(ArgumentError, match="nope"):
        seen_in(table, ["nope = 1"])


def test_partitions_that_were_new_at_the_time_of_a_query(lake: SqlCatalog) -> None:
    """Partitions that began later do not count as newer ones; without a time, the query is as old as the table."""
    table, start_ms = hourly(lake, "abcde")
    timed = [f"{iso(start_ms + 2 * HOUR_MS)} kind = 'c'"]
    assert seen_in(table, timed) == (Reads(1.0, 1, 0, ("kind",)),)
    assert seen_in(table, ["kind = 'c'"]) == (Reads(1.0, 1, 2, ("kind",)),)
    assert seen_in(table, ["kind = 'none'"]) == (Reads(1.0, 1, 0, ("kind",), 0.0),)


def test_days_of_a_log(lake: SqlCatalog) -> None:
    """Lines with times cover the days between them and as much again as one pause; lines without are those of a day."""
    table, start_ms = hourly(lake, "ab")
    two_days = [f"{iso(start_ms + hour * HOUR_MS)} kind in ('a', 'b')" for hour in range(48)]
    (reads,) = seen_in(table, two_days)
    assert (reads.per_day, reads.partitions) == (pytest.approx(24.0), None)
    assert seen_in(table, ["kind in ('a', 'b')"] * 48)[0].per_day == 48.0
    mixed = seen_in(table, [*two_days, "id = 8"])
    assert [round(each.per_day, 3) for each in mixed] == [24.0, 1.0]
    assert seen_in(table, [iso(start_ms), iso(start_ms + 1)])[0].per_day == 48.0
    many = seen_in(table, ["kind in ('a', 'b')"] * (3 * MOST_QUERIES))
    assert many[0].per_day == 3.0 * MOST_QUERIES
    assert seen_in(table, [iso(start_ms)]) == (Reads(1.0),)


def test_bounds_leave_a_share_of_the_files(lake: SqlCatalog) -> None:
    """Of ten files in a partition a filter opens those whose bounds hold the value."""
    make_table(lake)
    for first in range(0, 100, 10):
        append(lake, range(first, first + 10))
    table = lake.load_table("db.t")
    assert seen_in(table, ["id = 42"]) == (Reads(1.0, None, 0, ("id",), 0.1),)
    assert seen_in(table, ["id >= 50"]) == (Reads(1.0, None, 0, (), 0.5),)


def test_scan_reports_have_columns_and_files_but_no_values(lake: SqlCatalog) -> None:
    """A share of the files is read; of a partitioned column, it is the share of the partitions that are newest."""
    table, _ = hourly(lake, "abcd")
    head = table.metadata.snapshots[-1].snapshot_id
    of_column = REPORT | {"snapshot-id": head}
    assert seen_in(table, [json.dumps(of_column)]) == (Reads(1.0, None, 0, ("id",), 0.2),)
    in_partition = {
        "type": "not",
        "child": {"type": "lt-eq", "term": {"type": "transform", "term": "kind"}, "value": "x"},
    }
    assert seen_in(table, [json.dumps(of_column | {"filter": in_partition})]) == (Reads(1.0, 1, 0),)
    for metrics in ({}, {"result-data-files": None}):
        whole = REPORT | {"metrics": metrics, "filter": True, "snapshot-id": None}
        assert seen_in(table, [json.dumps(whole)]) == (Reads(1.0),)


def test_partitions_in_the_order_of_their_first_rows(lake: SqlCatalog) -> None:
    """Those without recent appends come first, by their newest rows."""
    table, start_ms = hourly(lake, "abcab")
    appends = recent_appends(table.metadata, table.io, ManifestStore(), 2)
    order = PartitionOrder.of(layout_of(table), appends)
    assert [key.values for key in order.keys] == [("c",), ("a",), ("b",)]
    assert order.since_ms[PartitionKey(0, ("a",))] == start_ms + 3 * HOUR_MS
