"""The function for `foreachBatch`, which Spark can pickle: a pickle has names and options only."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from icesize.errors import BatchError, EngineUnavailable
from icesize.events import BatchCommitted
from icesize.parquet.format.refusals import log_if_internal
from icesize.report import Report
from icesize.spark.clustering.run import cluster_beside_stream, inline_budget
from icesize.spark.engine import session
from icesize.spark.stream.background import CLUSTER, MERGE, Trigger, expiry_notes
from icesize.spark.stream.batch import commit_batch
from icesize.spark.stream.options import SinkOptions
from icesize.spark.stream.process_state import TableSource, stream_state
from icesize.spark.stream.stopping import interruptions_reported, was_interrupted
from icesize.table.catalog.access_errors import brief
from icesize.table.cluster_settings import off_because
from icesize.table.commit.batch_report import BatchOutcome
from icesize.table.records.ledger import LedgerEntry, check_names, stream_hash
from icesize.table.state.handle import TableHandle
from icesize.units import format_count

LOG = logging.getLogger("icesize")

MANY_SNAPSHOTS = 2_000
"""Number of snapshots from which a sink without expiry warns: each commit rewrites the metadata of all of them."""


class Sink:
    """Commits the micro-batches of one stream to one table, each exactly once: `sink(df, batch_id)`.

    Its pickle contains only names and options. Caches (manifests, catalog sessions) stay in the process that runs it.
    On Spark Connect, that is a process of the server, so `last_report` is None on the client.
    """

    def __init__(self, source: TableSource, stream_id: str, options: SinkOptions) -> None:
        if not stream_id:
            raise ValueError(
                "Cannot make a sink: 'stream_id' is empty, but the sink needs it to recognize replayed batches"
            )
        self.source = source
        self.stream_id = stream_id
        self.options = options
        # this reference keeps the state as long as the sink, even if the process works on many other tables
        self._state = stream_state(source, stream_id)

    def __reduce__(self) -> tuple[type[Sink], tuple[TableSource, str, SinkOptions]]:
        return Sink, (self.source, self.stream_id, self.options)

    def __repr__(self) -> str:
        return f"Sink({self.source!r}, {self.stream_id!r}, {self.options!r})"

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Commit the batch; do nothing if it is committed already.

        Args:
            df: The rows of the batch.
            batch_id: Spark's number of the batch, from 0 on.

        Raises:
            BatchError: The batch must not be committed.
            TableError: icesize cannot work on the table.
            RewriteFailed: The rows could not be written.
            CommitConflict: Other writers committed first until the deadline.
            CommitStateUnknown: The outcome of the commit is unknown: all rows may be visible, or none. After every
                other error, none is visible.
            EngineUnavailable: Spark or a package that its workers need is missing; or `merge` or `cluster` is "async"
                on Spark Connect.
        """
        self.run(df, batch_id)

    def run(self, df: DataFrame, batch_id: int) -> Report:
        """Commit the batch as a call of the sink does, and return the report."""
        check_names(self.stream_id, batch_id)
        spark, state, options = df.sparkSession, self._state, self.options
        if self._in_background and session.is_connect(spark):
            raise EngineUnavailable(
                "Cannot merge in the background on Spark Connect: the sink runs in a process of the server that ends "
                "with the query, so the caller could not wait for merges or stop them; use 'inline' for 'merge' and "
                "'cluster', or 'off' and `icesize maintain`"
            )
        query_id = self.query_id_in(spark)
        with state.lock, interruptions_reported(self.stream_id, batch_id):
            entry = LedgerEntry(self.stream_id, query_id, batch_id)
            outcome = commit_batch(df, self.source, options, entry, state)
            report = self._follow_up(outcome, batch_id, spark)
            state.last_report = report
        LOG.info("%s: %s", report.table, report)
        self._publish(report)
        return report

    def query_id_in(self, spark: SparkSession) -> str:
        """Return the id of the query whose batches a session passes; by hand, it is the stream id.

        Raises BatchError on Spark Connect without `query_id`: batch 0 of a new checkpoint would look like a replay.
        """
        if self.options.query_id is None and session.is_connect(spark):
            raise BatchError(
                f"Cannot commit batches of stream '{self.stream_id}' on Spark Connect without 'query_id': Spark does "
                "not pass the id of the query there, so batch 0 of a new checkpoint would look committed already. Set "
                "'query_id' to a text that changes with the checkpoint, such as its path. For a checkpoint that has "
                f"written without one, use the stream id '{self.stream_id}', so that no batch is doubled or skipped"
            )
        return self.options.query_id or session.query_id_of(spark) or self.stream_id

    def drain(self, timeout_seconds: float | None = None) -> Report | None:
        """Wait until background merges have covered every batch that is committed so far.

        Args:
            timeout_seconds: The longest wait in seconds; None for no limit.

        Returns:
            The report of the last background run in this process; None if there was none.

        Raises:
            TimeoutError: The wait took too long. The run continues.
        """
        return self._state.background.drain(timeout_seconds)

    def stop(self) -> None:
        """Stop background merges, wait for their end, and remove the files that they have not committed.

        The next batch starts background merges again. They run on after the end of a query, and stop at the end of the
        interpreter or of Spark.
        """
        self._state.background.stop()

    @property
    def last_report(self) -> Report | None:
        """The report of the newest batch in this process; None before the first."""
        return self._state.last_report

    def _follow_up(self, outcome: BatchOutcome, batch_id: int, spark: SparkSession) -> Report:
        """Start or run the work after the commit (merges, clustering, expiry), and return the report with its notes.

        None of this work can fail the batch, because the batch is committed.
        """
        state, options = self._state, self.options
        handle, committed, report = state.handle, outcome.commit, outcome.report
        if handle is None:
            return report
        notes = [*self._many_snapshots(outcome), *self._stops_readers(handle.name)]
        due = self._expiry_is_due(batch_id)
        clustering = None
        if options.cluster == "inline" and committed.snapshot_ids:
            clustering, said = self._cluster(spark, handle, report.bytes_ingested)
            notes += said
        lag = None
        if self._in_background:
            notes += state.background.take_notes()
            lag = state.background.lag
            if committed.snapshot_ids or committed.already_committed or due:
                trigger, batches = self._trigger(spark, handle, batch_id), 1 if committed.snapshot_ids else 0
                lag = state.background.trigger(trigger, batches, report.bytes_ingested, expire=due)
        elif due:
            notes += expiry_notes(handle.name, lambda: handle, options.environment)
        shown = lag if options.merge == "async" else None
        notes = list(dict.fromkeys((*report.notes, *notes)))
        return replace(report, notes=tuple(notes), clustering=clustering, merge_lag_batches=shown)

    @property
    def _in_background(self) -> bool:
        return "async" in (self.options.merge, self.options.cluster)

    def _cluster(
        self, spark: SparkSession, handle: TableHandle, bytes_ingested: int
    ) -> tuple[dict[str, Any] | None, list[str]]:
        """Cluster after this batch; return the outcome, and sentences for the report of the batch."""
        try:
            current = handle.load(self.options.environment)
            current.check_same(self.source.table_uuid, "cluster")
            budget = inline_budget(current.policy, bytes_ingested)
            outcome = cluster_beside_stream(
                spark, handle, current, self.options.environment,
                budget_bytes=budget, most_bytes=budget,
            )  # fmt: skip
        except Exception as error:
            return None, [_why_not_clustered(handle.name, error)]
        if outcome is None:
            return None, []
        report = outcome.report
        if report.snapshot_ids:
            self._state.refresh(spark)
        # the report of the batch already has the warnings about the table's settings
        notes = [note for note in report.notes if note not in outcome.current.warnings]
        if not report.seconds.get("merge"):
            return None, [f"clustering waits: {note}" for note in notes]
        self._publish(report)
        what, sentences = "clustering failed", list[str]()
        if report.snapshot_ids:
            files = format_count(report.files_removed, "file")
            what, sentences = "clustering", [f"clustered: {files} became {report.files_added:,}"]
        return report.clustering, [*sentences, *(f"{what}: {sentence}" for sentence in (*report.conflicts, *notes))]

    def _trigger(self, spark: SparkSession, handle: TableHandle, batch_id: int) -> Trigger:
        return Trigger(
            spark,
            handle,
            self.source.table_uuid,
            # names with stream and batch identify the files that a killed run leaves, as for batches
            f"{stream_hash(self.stream_id)}-{batch_id}",
            self.options.environment,
            partial(self._state.refresh, spark),
            self._publish,
            spark.sparkContext.getLocalProperty("spark.scheduler.pool"),
            tuple(
                task for task, how in ((MERGE, self.options.merge), (CLUSTER, self.options.cluster)) if how == "async"
            ),
        )

    def _expiry_is_due(self, batch_id: int) -> bool:
        """Return True if a multiple of `expire_every` lies between the last batch id and this one."""
        last, self._state.last_batch_id, every = self._state.last_batch_id, batch_id, self.options.expire_every
        if every is None:
            return False
        last = batch_id - 1 if last is None else last
        return (batch_id + 1) // every > (last + 1) // every

    def _many_snapshots(self, outcome: BatchOutcome) -> Iterator[str]:
        """Yield a note if the table has many snapshots: without `expire_every`, the sink never expires any."""
        current = outcome.current
        snapshots, table = len(current.table.metadata.snapshots) + len(outcome.commit.snapshot_ids), current.name
        if self.options.expire_every is None and snapshots >= MANY_SNAPSHOTS:
            note = (
                f"the table has {snapshots:,} snapshots, each commit rewrites all of them: "
                f"run `icesize expire-snapshots {shlex.quote(table)}` or use sink(..., expire_every=N)"
            )
            self._warn_once("snapshots", table, note)
            yield note

    def _stops_readers(self, table: str) -> Iterator[str]:
        """Yield a note, once in a process, that Spark cannot read the table as a stream."""
        note = (
            "upserts make this table unreadable for Spark's readStream, which stops at the first overwrite, and for "
            "changelog scans, which refuse delete files: read it as a batch"
        )
        if self.options.upsert is not None and self._warn_once("readers", table, note):
            yield note

    def _warn_once(self, what: str, table: str, note: str) -> bool:
        """Log a warning unless this process has logged it; return whether it did."""
        is_new = what not in self._state.warned_of
        if is_new:
            self._state.warned_of.add(what)
            LOG.warning("%s: %s", table, note)
        return is_new

    def _publish(self, report: Report) -> None:
        """Give a report to the listener and to the observer; what they raise is logged.

        The batch is committed: an error must not make Spark replay it.
        """
        try:
            self.options.environment.observe(BatchCommitted(report))
            if self.options.listener is not None:
                self.options.listener(report)
        except Exception:
            what = "merges were" if report.batch_id is None else f"batch {report.batch_id} was"
            LOG.exception("the listener failed after %s committed", what)


def _why_not_clustered(table: str, error: Exception) -> str:
    """Return a sentence for the report of the batch, which is committed."""
    if was_interrupted(error):
        LOG.info("%s: clustering was stopped with its query, the batch is committed", table)
        return "clustering was stopped with its query"
    why = off_because(error)
    if why is not None:
        LOG.warning("%s: clustering is off: %s", table, why)
        return f"clustering is off: {why}"
    if not log_if_internal("clustering after a batch", error):
        LOG.warning("%s: clustering failed, the batch is committed", table, exc_info=error)
    return f"clustering failed: {brief(error)}"
