"""The reads of a table from a log of its queries: filters, or scan reports of Iceberg.

A scan report is JSON as Iceberg's `ScanReportParser` writes it. Iceberg replaces the values in its filters, so that the
report shows columns, conditions and the number of files that were read, but not which partitions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timezone
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icesize.errors import ArgumentError
from icesize.planning.files import Layout, PartitionKey
from icesize.planning.filters import FilterUse
from icesize.planning.reads import Reads, together
from icesize.planning.trends import evenly
from icesize.table.catalog.history import count_of, head_snapshot
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.filter_scan import filters_asked
from icesize.table.state.partition_changes import Append
from icesize.table.state.where import partition_filter
from icesize.units import time_of

_DAY_MS = 86_400_000
MOST_QUERIES = 1_000
"""Queries of a log that are looked at: a second for each 1,000 different filters of a small table. More are sampled."""
LEAST_LOG_DAYS = 1 / 24
"""A shorter log is one of an hour."""
_POINTS = ("eq", "in")
"""Conditions of a scan report that select single values."""


@dataclass(frozen=True)
class Query:
    """A query: its time if it is known, and its filter (empty: none) or its scan report."""

    timestamp_ms: int | None = None
    filter: str = ""
    report: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PartitionOrder:
    """The partitions of a table in the order of their first rows.

    `since_ms` is the time of the first rows of those that recent appends began.
    """

    keys: tuple[PartitionKey, ...]
    since_ms: Mapping[PartitionKey, int]

    @classmethod
    def of(cls, layout: Layout, appends: Sequence[Append]) -> PartitionOrder:
        """Return the order of the partitions of a layout; `appends` are the newest ones, oldest first."""
        since_ms = dict[PartitionKey, int]()
        for append in appends:
            for key in append.partitions:
                since_ms.setdefault(key, append.timestamp_ms)
        newest = layout.partitions.newest
        older = sorted((key for key in newest if key not in since_ms), key=lambda key: (newest[key], key.rank))
        return cls((*older, *(key for key in since_ms if key in newest)), since_ms)

    def window(self, matched: Collection[PartitionKey], timestamp_ms: int | None) -> tuple[int | None, int]:
        """Return how many partitions a query read, and how many newer ones there were; None for all."""
        places = [place for place, key in enumerate(self.keys) if key in matched]
        if not places or len(places) == len(self.keys):
            return (None if places else 1), 0
        newer = self.keys[places[-1] + 1 :]
        known = [key for key in newer if timestamp_ms is None or self.since_ms.get(key, 0) <= timestamp_ms]
        return len(places), len(known)


def queries_in(lines: str | Iterable[str], table: str) -> tuple[Query, ...]:
    """Return the queries of a log: one per line, a filter with or without an ISO time before it, or a scan report.

    A time alone is a query without a filter. Empty lines, lines that begin with #, reports of commits, and reports of
    tables whose name is not the last part of `table` are skipped.

    Raises ArgumentError for a line that is neither.
    """
    each = lines.splitlines() if isinstance(lines, str) else lines
    read = (_query(line.strip().lstrip("\ufeff"), number) for number, line in enumerate(each, 1) if _is_query(line))
    return tuple(query for query in read if query.report is None or _is_scan_of(query.report, table))


def _is_scan_of(report: Mapping[str, Any], table: str) -> bool:
    name = str(report.get("table-name", table)).rpartition(".")[2]
    return report.get("report-type") != "commit-report" and name == table.rpartition(".")[2]


def _is_query(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip("\ufeff \t").startswith("#")


def _query(line: str, number: int) -> Query:
    if line.startswith("{"):
        try:
            report = json.loads(line)
        except ValueError as error:
            raise ArgumentError(f"Cannot read line {number} of the queries as JSON: {error}") from None
        # a catalog gets reports in an envelope
        if isinstance(inner := report.get("report"), dict):
            report = {key: value for key, value in report.items() if key != "report"} | inner
        if not isinstance(report.get("metrics"), dict):
            raise ArgumentError(f"Cannot read line {number} of the queries: a scan report has 'metrics'")
        return Query(report=report)
    first, *others = line.split(maxsplit=1)
    rest = others[0] if others else ""
    try:
        time = time_of(first)
    except ValueError:
        return Query(filter=line)
    time = time if time.tzinfo else time.replace(tzinfo=timezone.utc)
    return Query(int(time.timestamp() * 1000), rest.strip())


def reads_of(
    queries: Sequence[Query],
    metadata: TableMetadata,
    io: FileIO,
    layout: Layout,
    appends: Sequence[Append],
    store: ManifestStore,
) -> tuple[Reads, ...]:
    """Return the reads that queries show. They cover the days between their first and last time, or one day.

    Raises ArgumentError for a filter that is malformed or names a column that the table does not have.
    """
    order, found = PartitionOrder.of(layout, appends), list[Reads]()
    timed = [query for query in queries if _time_of(query, metadata) is not None]
    times = [_time_of(query, metadata) or 0 for query in timed]
    days = (max(times) - min(times)) / _DAY_MS * len(times) / (len(times) - 1) if len(times) > 1 else 1.0
    others = [query for query in queries if _time_of(query, metadata) is None]
    for some, period in ((timed, max(days, LEAST_LOG_DAYS)), (others, 1.0)):
        sample = evenly(some, MOST_QUERIES)
        uses = {use.text: use for use in _uses(sample, metadata, io, layout, store)}
        reads = list(_reads(sample, metadata, layout, order, uses))
        found += together(reads, period * len(sample) / len(some)) if some else ()
    return tuple(found)


def _time_of(query: Query, metadata: TableMetadata) -> int | None:
    if query.report is None:
        return query.timestamp_ms
    snapshot = _snapshot_of(query.report, metadata)
    return snapshot.timestamp_ms if snapshot else None


def _snapshot_of(report: Mapping[str, Any], metadata: TableMetadata) -> Snapshot | None:
    snapshot_id = report.get("snapshot-id")
    return metadata.snapshot_by_id(snapshot_id) if isinstance(snapshot_id, int) else None


def _uses(
    queries: Sequence[Query], metadata: TableMetadata, io: FileIO, layout: Layout, store: ManifestStore
) -> tuple[FilterUse, ...]:
    texts = list(dict.fromkeys(query.filter for query in queries if query.filter))
    return filters_asked(metadata, io, texts, layout.partitions.keys(), store) if texts else ()


def _reads(
    queries: Sequence[Query],
    metadata: TableMetadata,
    layout: Layout,
    order: PartitionOrder,
    uses: Mapping[str, FilterUse],
) -> Iterator[Reads]:
    matched = dict[str, frozenset[PartitionKey]]()
    for query in queries:
        if query.report is not None:
            yield _reported(query.report, metadata, len(order.keys))
            continue
        if not query.filter:
            yield Reads(1.0)
            continue
        if query.filter not in matched:
            touches = partition_filter(metadata, query.filter).touches
            matched[query.filter] = frozenset(key for key in order.keys if touches(key))
        keys, use = matched[query.filter], uses[query.filter]
        files = sum(facts.files for facts in layout.partitions.some(keys).values())
        partitions, skipped = order.window(keys, query.timestamp_ms)
        yield Reads(1.0, partitions, skipped, use.points, use.files / files if files else 0.0)


def _reported(report: Mapping[str, Any], metadata: TableMetadata, partitions: int) -> Reads:
    """Return the read of a scan report: the newest partitions if it compares a partitioned column, else a share."""
    conditions = list(_conditions(report.get("filter")))
    points = tuple(dict.fromkeys(name for kind, name in conditions if kind in _POINTS))
    snapshot = _snapshot_of(report, metadata) or head_snapshot(metadata)
    files = count_of(snapshot, "total-data-files") if snapshot else 0
    counter = report["metrics"].get("result-data-files")
    opened = counter.get("value") if isinstance(counter, Mapping) else None
    share = min(1.0, max(0, opened) / files) if files and isinstance(opened, int) else 1.0
    sources = {metadata.schema().find_column_name(field.source_id) for field in metadata.spec().fields}
    if share < 1 and any(name in sources for _, name in conditions):
        return Reads(1.0, max(1, math.ceil(share * partitions)), 0, tuple(p for p in points if p not in sources))
    return Reads(1.0, points=points, share=share)


def _conditions(expression: object) -> Iterator[tuple[str, str]]:
    """Yield (condition, column) of an expression as Iceberg's `ExpressionParser` writes it."""
    if not isinstance(expression, Mapping):
        return
    for part in ("left", "right", "child"):
        yield from _conditions(expression.get(part))
    term = expression.get("term")
    column = term.get("term") if isinstance(term, Mapping) else term
    if isinstance(column, str):
        yield str(expression.get("type")), column
