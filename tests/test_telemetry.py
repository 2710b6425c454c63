"""What OpenTelemetry's own SDK receives of commits, batches and jobs."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any, get_args

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from icesize.environment import Environment
from icesize.errors import CommitConflict
from icesize.events import BatchCommitted, CommitEnded, JobFinished, Outcome, Planned
from icesize.failpoints import armed
from icesize.report import Report
from icesize.sized_table import SizedTable
from icesize.table.cleanup.expiry import ExpiryReport
from icesize.table.cleanup.orphans import OrphanReport
from icesize.telemetry import METRICS, JsonLines, Telemetry
from tests.support.tables import append, arrow, make_table

NOW_NS = 10_000_000_000_000
Values = dict[tuple[str, ...], Any]


class Recorded:
    """A telemetry with an SDK that keeps everything in memory."""

    def __init__(self) -> None:
        self._reader, self._spans = InMemoryMetricReader(), InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.telemetry = Telemetry(MeterProvider([self._reader]), tracers, lambda: NOW_NS)

    def values(self) -> Values:
        """Return name and sorted attributes -> value; of a histogram the sum."""
        found = self._reader.get_metrics_data()
        return {
            (metric.name, *(str(value) for _, value in sorted((point.attributes or {}).items()))): getattr(
                point, "value", getattr(point, "sum", None)
            )
            for resource in (found.resource_metrics if found else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }

    def spans(self) -> list[tuple[str, str | None, int]]:
        """Return name, name of the parent and nanoseconds of each span, as they ended."""
        done = self._spans.get_finished_spans()
        names = {span.context.span_id: span.name for span in done if span.context}
        return [
            (
                span.name,
                names.get(span.parent.span_id) if span.parent else None,
                (span.end_time or 0) - (span.start_time or 0),
            )
            for span in done
        ]


def _small_files(lake: SqlCatalog, recorded: Recorded) -> SizedTable:
    """Return a table of six small files whose calls are recorded."""
    make_table(lake)
    for start in range(0, 60, 10):
        append(lake, range(start, start + 10))
    return icesize.open(None, "lake.db.t", catalog=lake, environment=Environment(observe=recorded.telemetry))


def test_jobs_on_a_table(lake: SqlCatalog) -> None:
    """A merge and an expiry record their commits, by operation, and their own figures; a dry run records nothing."""
    recorded = Recorded()
    table = _small_files(lake, recorded)
    table.plan()
    table.expire_snapshots(dry_run=True)
    assert recorded.values() == {}
    done = table.compact()
    expired = table.expire_snapshots(retain_last=1, older_than=timedelta(0))
    values = recorded.values()
    assert values["iceberg.commit.data_files.added", "replace", "lake.db.t"] == done.files_added == 1
    assert values["iceberg.commit.data_files.removed", "replace", "lake.db.t"] == done.files_removed == 6
    assert values["iceberg.commit.records.added", "replace", "lake.db.t"] == 60
    assert values["iceberg.commit.attempts", "replace", "lake.db.t", "committed"] == 1
    assert values["icesize.written", "lake.db.t", "merge"] == done.bytes_written
    assert values["icesize.small_files.max", "lake.db.t"] == done.small_files_max
    assert values["icesize.snapshots.expired", "lake.db.t", "expire"] == len(expired.snapshot_ids_expired) > 0
    assert values["icesize.files.deleted", "lake.db.t", "expire"] == sum(expired.files_deleted.values())
    spans = [(name, parent) for name, parent, _ in recorded.spans()]
    assert spans.count(("icesize merge", None)) == spans.count(("icesize commit", "icesize merge")) == 1
    assert ("icesize commit", "icesize expire") in spans


def test_a_conflict_and_a_failure(lake: SqlCatalog) -> None:
    """A commit that ends in a conflict is counted by its outcome; it has no operation."""
    recorded = Recorded()
    recorded.telemetry(CommitEnded("lake.db.t", "conflict", 1.5, 4, 4))
    values = recorded.values()
    assert values["iceberg.commit.attempts", "", "lake.db.t", "conflict"] == 4
    assert values["icesize.commit.conflicts", "", "lake.db.t", "conflict"] == 4
    assert values["iceberg.commit.duration", "", "lake.db.t", "conflict"] == 1500


def test_attempts_of_each_outcome_start_at_zero(lake: SqlCatalog) -> None:
    """From the first commit on, a table has a series for an outcome that has not happened: an alert sees it grow."""
    recorded = Recorded()
    table = _small_files(lake, recorded)
    table.compact()
    attempts = {key: value for key, value in recorded.values().items() if key[0] == "iceberg.commit.attempts"}
    zero = {("iceberg.commit.attempts", "", "lake.db.t", outcome): 0 for outcome in get_args(Outcome)}
    assert attempts == {**zero, ("iceberg.commit.attempts", "replace", "lake.db.t", "committed"): 1}


def test_all_metrics_are_recorded() -> None:
    """Batches, jobs and commits record every metric of the table in the documentation."""
    recorded = Recorded()
    summary = {
        **dict.fromkeys(("added-data-files", "deleted-data-files", "added-delete-files", "removed-delete-files"), "2"),
        **dict.fromkeys(("added-dvs", "removed-dvs", "added-records", "deleted-records"), "3"),
        **dict.fromkeys(("added-files-size", "removed-files-size"), "4"),
        "operation": "overwrite",
    }
    report = Report("t", 7, (1,), rows=5, merge_lag_batches=1, seconds={"write": 1.0, "commit": 0.5, "total": 2.0})
    recorded.telemetry(CommitEnded("t", "committed", 0.5, 1, 0, (summary,)))
    recorded.telemetry(BatchCommitted(report))
    recorded.telemetry(JobFinished("t", ExpiryReport("t", files_deleted={"data": 2, "manifest": 1})))
    recorded.telemetry(JobFinished("t", OrphanReport("t", files_deleted=4)))
    recorded.telemetry(Planned(lambda: pytest.fail("a plan is no metric")))
    values = recorded.values()
    assert {name for name, *_ in values} == {metric.name for metric in METRICS}
    assert values["icesize.files.deleted", "t", "expire"] == 3
    assert values["icesize.files.deleted", "t", "orphans"] == 4
    assert values["icesize.batch.time", "t"] == NOW_NS / 1e9
    assert values["icesize.rows.ingested", "t", "batch"] == 5
    assert recorded.spans()[:4] == [
        ("icesize commit", "icesize batch", 500_000_000),
        ("write", "icesize batch", 1_000_000_000),
        ("commit", "icesize batch", 500_000_000),
        ("icesize batch", None, 2_000_000_000),
    ]


def test_a_replayed_batch_is_not_counted() -> None:
    """A batch that the table contained before records nothing."""
    recorded = Recorded()
    recorded.telemetry(BatchCommitted(Report("t", 7, rows=5, already_committed=True)))
    assert recorded.values() == {}


def test_commits_are_told_with_their_outcome(lake: SqlCatalog) -> None:
    """An observer gets the end of each commit once, also if the commit fails, and its errors change no outcome."""
    make_table(lake)
    for start in range(0, 60, 10):
        append(lake, range(start, start + 10))
    ended = list[CommitEnded]()

    def observe(event: object) -> None:
        if isinstance(event, CommitEnded):
            ended.append(event)
            raise OSError("the observer is out of order")

    table = icesize.open(None, "lake.db.t", catalog=lake, environment=Environment(observe=observe))
    with armed("before-swap", lambda: (_ for _ in ()).throw(CommitConflict("no"))), pytest.raises(CommitConflict):
        table.compact()
    assert [event.outcome for event in ended] == ["conflict"]
    assert table.compact().files_removed == 6
    assert [(event.outcome, event.attempts, len(event.summaries)) for event in ended[1:]] == [("committed", 1, 1)]
    assert ended[1].summaries[0]["operation"] == "replace"


def test_upserts_without_a_stream_are_told(lake: SqlCatalog) -> None:
    """An upsert of an Arrow table counts as a batch."""
    make_table(lake)
    recorded = Recorded()
    table = icesize.open(None, "lake.db.t", catalog=lake, environment=Environment(observe=recorded.telemetry))
    table.upsert(arrow(range(10)), key="id")
    assert recorded.values()["icesize.rows.ingested", "lake.db.t", "batch"] == 10


def test_lines_of_json() -> None:
    """A log record becomes one line of JSON, with the error that it carries and without credentials."""
    try:
        raise OSError("no room")
    except OSError as error:
        info = (OSError, error, error.__traceback__)
    record = logging.makeLogRecord({"name": "icesize", "levelname": "WARNING", "msg": "%s failed", "args": ("x",)})
    record.created, record.exc_info = 1.5, info
    line = json.loads(JsonLines().format(record))
    assert line["time"] == "1970-01-01T00:00:01.500+00:00"
    assert (line["level"], line["logger"], line["message"]) == ("WARNING", "icesize", "x failed")
    assert line["error"].endswith("OSError: no room")
