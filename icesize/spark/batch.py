"""One micro-batch, from a DataFrame to a commit: plan, then run, then make visible. No step goes back.

Merging is optional at every point: when it fails, is late or loses to another writer it is left out and the rows are
committed all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from icesize import failpoints
from icesize.environment import Environment, Stopwatch
from icesize.errors import TableError, TableNotFound
from icesize.parquet.merge import MergeTask
from icesize.parquet.pool import write_in_threads
from icesize.parquet.settings import WriteSettings
from icesize.parquet.written import WrittenFile
from icesize.planning.layout import Layout, PartitionKey
from icesize.planning.merging import Plan, plan_merges
from icesize.report import Report
from icesize.spark import columns, jobs, routing, session
from icesize.spark.evolution import add_columns
from icesize.spark.merges import MergeRun
from icesize.spark.runtime import StreamState, TableSource, handle_of, refresh
from icesize.spark.small import is_small, shape_in_hand
from icesize.spark.statistics import BatchShape, shape_of
from icesize.table.handle import Current, TableHandle
from icesize.table.ledger import LedgerEntry, is_done, stream_hash
from icesize.table.outcome import MergeResults, report_of

LOG = logging.getLogger("icesize")


@dataclass(frozen=True)
class BatchOptions:
    """How batches of one stream are taken in. `ledger` is None for rows that belong to no stream."""

    source: TableSource
    merge: str = "inline"
    schema_evolution: str = "refuse"
    accept_new_checkpoint: bool = False
    ledger: LedgerEntry | None = None
    environment: Environment = field(default_factory=Environment)


def run_batch(df: DataFrame, options: BatchOptions, state: StreamState) -> Report:
    """Write and commit one batch, exactly once; the report says what happened."""
    with state.lock:
        return _Batch(df, options, state).run()


class _Batch:
    """The parts of one batch on their way to the commit."""

    def __init__(self, df: DataFrame, options: BatchOptions, state: StreamState) -> None:
        self.options = options
        self.state = state
        self.df = df
        self.spark = df.sparkSession
        self.watch = Stopwatch(options.environment)
        self.run_id = options.environment.new_id()
        self.notes: list[str] = []

    def run(self) -> Report:
        handle, settings = handle_of(self.spark, self.options.source, self.state)
        current = self._load(handle)
        entry = self.options.ledger
        if entry and is_done(current.table.metadata.properties, entry, self.options.accept_new_checkpoint):
            refresh(self.spark, self.options.source, current.name, settings)
            return Report(table=current.name, batch_id=entry.batch_id, already_committed=True)
        current = self._fit_columns(handle, current, session.is_case_sensitive(self.spark))
        self.watch.lap("load")
        write_settings = current.settings()
        metadata = current.table.metadata
        layout = handle.reader(current.policy).read(metadata, current.table.io)
        self.watch.lap("layout")
        shape = shape_in_hand(self.df, write_settings, layout, current.policy) if is_small(self.df) else None
        shape = shape or shape_of(self.df, write_settings, layout, current.policy)
        self.watch.lap("statistics")
        if shape.rows == 0:
            return Report(table=current.name, batch_id=self._batch_id, seconds=self.watch.seconds)
        settings_now = write_settings.with_bytes_per_row(shape.bytes_per_row)
        report = self._write_and_commit(handle, current, settings_now, layout, shape)
        if report.snapshot_ids:
            refresh(self.spark, self.options.source, current.name, settings)
        return report

    @property
    def _batch_id(self) -> int | None:
        return self.options.ledger.batch_id if self.options.ledger else None

    def _load(self, handle: TableHandle) -> Current:
        try:
            current = handle.load()
        except TableNotFound as error:
            statement = columns.create_table(handle.name, self.df.schema)
            raise TableNotFound(f"{error}; create it first: {statement}", table=handle.name) from error
        opened = self.options.source.table_uuid
        if opened is not None and opened != current.uuid:
            raise TableError(
                f"Cannot append to '{current.name}': the table was dropped and created again since it was opened; "
                "open it again, and start the query anew, if the new table is meant",
                table=current.name,
            )
        self.notes += current.warnings
        return current

    def _fit_columns(self, handle: TableHandle, current: Current, case_sensitive: bool) -> Current:
        """The batch gets the table's columns; with schema_evolution="add" the table first gets the batch's."""
        extras = columns.extra_columns(self.df.schema, current.table.metadata.schema(), case_sensitive)
        if extras and self.options.schema_evolution == "add":
            add_columns(handle, extras, case_sensitive)
            current = handle.load()
            extras = columns.extra_columns(self.df.schema, current.table.metadata.schema(), case_sensitive)
        columns.refuse(extras, current.name)
        self.df = columns.align(self.df, current.table.metadata.schema(), current.name)
        return current

    def _write_and_commit(
        self, handle: TableHandle, current: Current, settings: WriteSettings, layout: Layout, shape: BatchShape
    ) -> Report:
        contested = self.state.backoff.next_batch()
        plan = self._plan(current, layout, shape.incoming, shape.size_bytes, contested)
        self.watch.lap("plan")
        failpoints.reach("planned")
        merging = self._start(plan, settings, beside_write_job=shape.parts is None)
        try:
            written = self._write(settings, shape)
        except BaseException:
            merging.discard()
            raise
        write_ms = int(self.watch.lap("write") * 1000)
        if not written:
            merging.discard()
            return Report(table=current.name, batch_id=self._batch_id, seconds=self.watch.seconds)
        try:
            if shape.incoming is None:
                incoming = _small_files_of(written, layout.small_file_limit_bytes)
                plan = self._plan(current, layout, incoming, sum(f.size_bytes for f in written), contested)
                merging = self._start(plan, settings)
            results = MergeResults.of(plan.groups, merging.finish(current.policy.merge_deadline_for(write_ms) / 1000))
            self.watch.lap("merge_wait")
            failpoints.reach("files-written")
        except BaseException:
            merging.discard()
            for file in written:
                settings.storage.delete(file.path)
            raise
        outcome = handle.commit(
            current, layout, self.run_id, self.options.environment, appended=written, merged=results.merged,
            ledger=self.options.ledger, accept_new_checkpoint=self.options.accept_new_checkpoint,
        )  # fmt: skip
        self.watch.lap("commit")
        self.state.backoff.lost(outcome.contested)
        self.state.backoff.landed(g.victims[0].partition for g in outcome.merged)
        return report_of(
            current.name, plan, layout, written, results, outcome, self.watch.seconds, self.notes, self._batch_id
        )

    def _write(self, settings: WriteSettings, shape: BatchShape) -> list[WrittenFile]:
        if shape.parts is not None:
            return write_in_threads(shape.parts, settings, self._prefix)
        if shape.task is None or shape.tasks == 1:
            routed = routing.gather(self.df, cheap=shape.incoming is not None)
        else:
            routed = routing.place(self.df, shape.task, shape.tasks)
        return jobs.write_rows(routed, settings, self._prefix)

    def _plan(
        self,
        current: Current,
        layout: Layout,
        incoming: Mapping[PartitionKey, int] | None,
        batch_bytes: float,
        contested: frozenset[PartitionKey],
    ) -> Plan:
        """Merges for this batch; none yet when the batch is not known before it is written."""
        if self.options.merge == "off" or incoming is None:
            layout = Layout(layout.snapshot_id, layout.sequence_number, layout.spec_id, layout.small_file_limit_bytes)
        budget = current.policy.budget_for(int(batch_bytes))
        return plan_merges(layout, current.policy, incoming=incoming or {}, budget_bytes=budget, contested=contested)

    def _start(self, plan: Plan, settings: WriteSettings, beside_write_job: bool = False) -> MergeRun:
        tasks = [MergeTask(g.victims, g.partition, g.outputs) for g in plan.groups]
        return MergeRun(self.spark, tasks, settings, self._prefix, beside_write_job).start()

    @property
    def _prefix(self) -> str:
        """Names of files tell the stream and the batch; rows outside of a stream are told by the run."""
        entry = self.options.ledger
        return f"{stream_hash(entry.stream_id)}-{entry.batch_id}" if entry else f"{stream_hash(self.run_id)}-0"


def _small_files_of(written: list[WrittenFile], limit_bytes: int) -> dict[PartitionKey, int]:
    """New small files of every partition that was written to; 0 where all its files are well sized."""
    counts: dict[PartitionKey, int] = {}
    for file in written:
        counts[file.partition] = counts.get(file.partition, 0) + (file.size_bytes < limit_bytes)
    return counts
