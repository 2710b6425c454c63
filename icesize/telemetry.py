"""OpenTelemetry: metrics and spans of batches, jobs and commits, made from the events of icesize.

The application owns the SDK, as OpenTelemetry intends: it sets the providers, or passes them. Without an SDK, nothing
is recorded. Commits have the names of Iceberg's own reporter (apache/iceberg, pull request 16250); all other names
begin with `icesize.`. Attributes have few values: no snapshot, batch, file or partition is one.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, get_args

from icesize import __version__
from icesize.errors import EngineUnavailable, needs_extra
from icesize.events import BatchCommitted, CommitEnded, CommitStarted, JobFinished, Outcome

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import TracerProvider

    from icesize.events import Event

TABLE, OPERATION, JOB, OUTCOME = "iceberg.table.name", "iceberg.operation", "icesize.job", "icesize.outcome"

_NS = 1_000_000_000
_MOST_COMMITS = 100
"""Commits of a thread that wait for the end of their job, which is their parent span."""


@dataclass(frozen=True)
class Metric:
    """A metric of OpenTelemetry.

    Attributes:
        name: Its name.
        kind: Its instrument.
        unit: Its unit in UCUM, such as `By` and `ms`; empty for a plain number.
        description: What it measures.
        read: Returns its value from an event, a summary or a result; None if there is none.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    description: str
    read: Callable[[Any], int | float | None]


def _counter(name: str, description: str, read: Callable[[Any], int | float | None], unit: str = "") -> Metric:
    return Metric(name, "counter", unit, description, read)


def _of(field: str) -> Callable[[Any], int | float | None]:
    """Return what reads a field of an event or a result, if it has the field."""
    return lambda value: getattr(value, field, None)


def _length_of(field: str) -> Callable[[Any], int | float | None]:
    return lambda value: len(getattr(value, field, ()))


def _summed(key: str) -> Callable[[Any], int | float | None]:
    """Return what reads a number of a snapshot's summary, if it has the key."""
    return lambda summary: int(summary[key]) if key in summary else None


def _deleted(result: Any) -> int | None:
    deleted = getattr(result, "files_deleted", None)
    return sum(deleted.values()) if isinstance(deleted, Mapping) else deleted


_ATTEMPTS = _counter("iceberg.commit.attempts", "Number of commit attempts", _of("attempts"))

COMMITS = (
    Metric(
        "iceberg.commit.duration", "histogram", "ms", "Time spent on commit operation",
        lambda ended: ended.seconds * 1e3,
    ),
    _ATTEMPTS,
    _counter(
        "icesize.commit.conflicts", "Commit attempts that conflicted with another writer", _of("conflicts")
    ),
)  # fmt: skip
"""Metrics of a commit. Attributes: table, operation of its last snapshot (empty without one), outcome."""

SNAPSHOTS = tuple(
    _counter(f"iceberg.commit.{name}", description, _summed(key), "By" if "size" in name else "")
    for name, description, key in (
        ("data_files.added", "Number of data files added by commit", "added-data-files"),
        ("data_files.removed", "Number of data files removed by commit", "deleted-data-files"),
        ("delete_files.added", "Number of delete files added by commit", "added-delete-files"),
        ("delete_files.removed", "Number of delete files removed by commit", "removed-delete-files"),
        ("dvs.added", "Number of deletion vectors added by commit", "added-dvs"),
        ("dvs.removed", "Number of deletion vectors removed by commit", "removed-dvs"),
        ("records.added", "Number of records added by commit", "added-records"),
        ("records.removed", "Number of records removed by commit", "deleted-records"),
        ("file_size.added_bytes", "Total size of files added by commit", "added-files-size"),
        ("file_size.removed_bytes", "Total size of files removed by commit", "removed-files-size"),
    )
)
"""Metrics of each snapshot that a commit adds. Attributes: table, operation."""

JOBS = (
    Metric(
        "icesize.job.duration", "histogram", "ms", "Time of a batch, or of one round of a job",
        lambda result: result.seconds.get("total", 0.0) * 1e3,
    ),
    _counter("icesize.rows.ingested", "New rows", _of("rows")),
    _counter("icesize.ingested", "Bytes of new rows", _of("bytes_ingested"), "By"),
    _counter("icesize.written", "Bytes of all new data files", _of("bytes_written"), "By"),
    _counter("icesize.copied", "Bytes that merges copied without decoding", _of("bytes_copied"), "By"),
    _counter("icesize.decoded", "Bytes that merges decoded", _of("bytes_decoded"), "By"),
    _counter("icesize.changes.dropped", "Merges dropped because of other writers", _length_of("conflicts")),
    _counter("icesize.snapshots.expired", "Snapshots that expired", _length_of("snapshot_ids_expired")),
    _counter("icesize.files.deleted", "Files deleted by expiry and by the removal of orphan files", _deleted),
    _counter("icesize.deleted", "Bytes of deleted files", _of("bytes_deleted"), "By"),
    _counter("icesize.files.failed", "Files that could not be deleted", _of("files_failed")),
    Metric(
        "icesize.merge.lag", "gauge", "", "Batches that wait for merges in the background", _of("merge_lag_batches")
    ),
)  # fmt: skip
"""Metrics of each batch and job. Attributes: table, job."""

TABLES = (
    Metric("icesize.small_files.max", "gauge", "", "Most small files of a touched partition", _of("small_files_max")),
    Metric("icesize.delete_files.max", "gauge", "", "Most delete files of one data file", _of("delete_files_max")),
)
"""Metrics of the table after a batch or a merge that changed it. Attribute: table."""

LAST_BATCH = Metric(
    "icesize.batch.time", "gauge", "s", "Time of the last micro-batch, in seconds since 1970", lambda now: now
)
"""Attribute: table."""

METRICS = (*COMMITS, *SNAPSHOTS, *JOBS, *TABLES, LAST_BATCH)


class Telemetry:
    """An observer that records metrics and spans: `icesize.Environment(observe=Telemetry())`.

    Args:
        meters: Provides the meter; None for the global provider.
        tracers: Provides the tracer; None for the global provider.
        now_ns: Returns nanoseconds since 1970.

    Raises:
        EngineUnavailable: OpenTelemetry, a package of the extra `otel`, is not installed.
    """

    def __init__(
        self,
        meters: MeterProvider | None = None,
        tracers: TracerProvider | None = None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        with needs_extra("otel", "record metrics"):
            from opentelemetry import metrics, trace
        meter = metrics.get_meter("icesize", __version__, meters)
        self._record = {each.name: _recorder(meter, each) for each in METRICS}
        self._tracer = trace.get_tracer("icesize", __version__, tracers)
        self._now_ns = now_ns
        self._of_thread = threading.local()

    def __call__(self, event: Event) -> None:
        """Record an event; plans and progress are ignored."""
        if isinstance(event, CommitStarted):
            self._start(event.table)
        elif isinstance(event, CommitEnded):
            self._commit(event)
        elif isinstance(event, JobFinished):
            self._job(event.table, event.result)
        elif isinstance(event, BatchCommitted) and not event.report.already_committed:
            self._job(event.report.table, event.report)

    def _start(self, table: str) -> None:
        """Count 0 attempts of each outcome, because an alert cannot see how a series grew to its first value."""
        for outcome in get_args(Outcome):
            self._record[_ATTEMPTS.name](0, {TABLE: table, OPERATION: "", OUTCOME: outcome})

    def _commit(self, ended: CommitEnded) -> None:
        operations = [summary.get("operation", "") for summary in ended.summaries]
        last = operations[-1] if operations else ""
        self._write(COMMITS, ended, {TABLE: ended.table, OPERATION: last, OUTCOME: ended.outcome})
        for operation, summary in zip(operations, ended.summaries, strict=True):
            self._write(SNAPSHOTS, summary, {TABLE: ended.table, OPERATION: operation})
        waiting = self._of_thread.__dict__.setdefault("commits", [])
        waiting[:] = [*waiting[1 - _MOST_COMMITS :], (self._now_ns(), replace(ended, summaries=(), commit=None))]

    def _job(self, table: str, result: Any) -> None:
        job = result.job
        if not job:
            return
        now_ns = self._now_ns()
        self._write(JOBS, result, {TABLE: table, JOB: job})
        if getattr(result, "snapshot_ids", ()):
            self._write(TABLES, result, {TABLE: table})
        if job == "batch":
            self._write((LAST_BATCH,), now_ns / _NS, {TABLE: table})
        self._spans(table, job, result, now_ns)

    def _write(self, some: Iterable[Metric], source: Any, attributes: Mapping[str, str]) -> None:
        for metric in some:
            value = metric.read(source)
            if value is not None:
                self._record[metric.name](value, dict(attributes))

    def _spans(self, table: str, job: str, result: Any, end_ns: int) -> None:
        """Record a job that has ended, with its commits and the phases of its time, one after the other."""
        from opentelemetry.trace import set_span_in_context

        start_ns = end_ns - round(result.seconds.get("total", 0.0) * _NS)
        span = self._tracer.start_span(f"icesize {job}", start_time=start_ns, attributes={TABLE: table, JOB: job})
        inside = set_span_in_context(span)
        for name, seconds, until_ns, attributes in (*self._commits(table, start_ns), *_phases(result, start_ns)):
            began_ns = max(start_ns, until_ns - round(seconds * _NS))
            child = self._tracer.start_span(name, inside, start_time=began_ns, attributes=attributes)
            child.end(until_ns)
        span.end(end_ns)

    def _commits(self, table: str, start_ns: int) -> Iterator[tuple[str, float, int, dict[str, str | int]]]:
        """Yield the commits that this thread has made for the job, and forget them."""
        waiting = self._of_thread.__dict__.pop("commits", [])
        for until_ns, ended in waiting:
            if ended.table == table and until_ns >= start_ns:
                facts: dict[str, str | int] = {
                    OUTCOME: ended.outcome, "icesize.attempts": ended.attempts, "icesize.conflicts": ended.conflicts
                }  # fmt: skip
                yield "icesize commit", ended.seconds, until_ns, facts


def _recorder(meter: Meter, metric: Metric) -> Callable[[int | float, dict[str, str]], None]:
    arguments = metric.name, metric.unit, metric.description
    if metric.kind == "counter":
        return meter.create_counter(*arguments).add
    if metric.kind == "gauge":
        return meter.create_gauge(*arguments).set
    return meter.create_histogram(*arguments).record


def _phases(result: Any, start_ns: int) -> Iterator[tuple[str, float, int, dict[str, str | int]]]:
    until_ns = start_ns
    for phase, seconds in result.seconds.items():
        if phase != "total":
            until_ns += round(seconds * _NS)
            yield phase, seconds, until_ns, {}


@contextmanager
def served_to_prometheus(port: int) -> Iterator[Telemetry]:
    """Serve the metrics of a telemetry to Prometheus at `/metrics` of this port, inside the block.

    Raises EngineUnavailable: a package of the extra `otel` is missing, or the port is taken.
    """
    with needs_extra("otel", "serve metrics"):
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider
        from prometheus_client import start_http_server
    try:
        server, thread = start_http_server(port)
    except OSError as error:
        raise EngineUnavailable(f"Cannot serve metrics at port {port}: {error}. Choose another port.") from error
    provider = MeterProvider([PrometheusMetricReader()])
    try:
        yield Telemetry(provider)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        provider.shutdown()


class JsonLines(logging.Formatter):
    """Formats each log record as one line of JSON: `time` (UTC), `level`, `logger`, `message`, and `error` if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)
