"""One micro-batch, from a DataFrame to a commit: plan, then run, then make visible. No step goes back.

Merging is optional at every point: when it fails, is late or loses to another writer it is left out and the rows are
committed all the same. Rows are written again where they are in one file with older ones that others have changed, and
where the table has changed so that it could not read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame

from icesize import failpoints
from icesize.clock import Environment, Stopwatch
from icesize.errors import CommitConflict, TableError, TableNotFound
from icesize.maintenance.reporting import MergeResults, report_of
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.tasks import MergeTask
from icesize.parquet.files.uncommitted import uncommitted
from icesize.parquet.rewriting.absorb import NOTHING, Written
from icesize.planning.files import Layout, PartitionKey
from icesize.planning.plan import MergeGroup
from icesize.policy import SizePolicy
from icesize.report import Report
from icesize.spark.engine import columns, session
from icesize.spark.engine.merge_job import MergeRun, finish_all, in_order, stop_all, stopping, work_for_spark
from icesize.spark.routing.driver_batch import is_small, plan_rows_in_hand
from icesize.spark.routing.statistics import plan_write
from icesize.spark.routing.write_plan import WritePlan
from icesize.spark.stream.merge_decision import Absorbing, Appending, Decision, Placement, WritingOnce
from icesize.spark.stream.process_state import StreamState, TableSource, handle_of, refresh
from icesize.spark.stream.schema_evolution import add_columns
from icesize.table.commit.ledger import LedgerEntry, is_done, stream_hash
from icesize.table.commit.request import Overtaken
from icesize.table.state.concurrent_writers import rolled_back
from icesize.table.state.handle import Current, TableHandle
from icesize.table.state.missing_files import check_still_there

OVERWRITES = 3
"""Times that rows are written for nothing, as others came first; then they are written once more, and only appended."""


@dataclass(frozen=True)
class BatchOptions:
    """How batches of one stream are taken in. `ledger` is None for rows that belong to no stream."""

    source: TableSource
    merge: str = "inline"
    placement: str = "append"
    stream_safe: bool = True
    schema_evolution: str = "refuse"
    accept_new_checkpoint: bool = False
    statistics: str = "auto"
    write_tasks: int | None = None
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
        self.given = self.df = df
        self.kept = False
        self.spark = df.sparkSession
        self.watch = Stopwatch(options.environment)
        self.run_id = options.environment.new_id()
        self.absorbs = options.placement == "absorb"
        self.pausing: frozenset[PartitionKey] = frozenset()
        self.contested: frozenset[PartitionKey] = frozenset()
        self.notes: list[str] = []
        self.conflicts: list[str] = []

    def run(self) -> Report:
        failpoints.reach("batch-started")
        handle, settings = handle_of(self.spark, self.options.source, self.state)
        self.pausing = self.state.backoff.next_batch()
        try:
            report = self._until_it_lands(handle)
        finally:
            if self.kept:
                self.given.unpersist()
        if report.snapshot_ids or report.already_committed:
            refresh(self.spark, self.options.source, report.table, settings)
        return report

    def _until_it_lands(self, handle: TableHandle) -> Report:
        """Rows are written again when their files do not fit the table any more or hold older rows that changed."""
        for _ in range(OVERWRITES):
            try:
                return self._attempt(handle)
            except Overtaken as lost:
                self.state.backoff.lost(lost.partitions)
                self.conflicts.append(f"the batch was written again: {lost}")
        if self.absorbs:
            self.absorbs = False
            self.conflicts.append(f"nothing was absorbed: others came first {OVERWRITES} times")
        try:
            return self._attempt(handle)
        except Overtaken as lost:
            raise CommitConflict(
                f"Cannot append to '{handle.name}': the table was changed {OVERWRITES + 1} times while the batch was "
                f"written, last: {lost}; nothing landed",
                table=handle.name,
            ) from lost

    def _attempt(self, handle: TableHandle) -> Report:
        current = self._load(handle)
        entry = self.options.ledger
        undone = rolled_back(current.table.metadata, entry) if entry else ()
        if entry and is_done(current.table.metadata.properties, entry, self.options.accept_new_checkpoint):
            return Report(table=current.name, batch_id=entry.batch_id, already_committed=True, notes=undone)
        self.notes += undone
        self._keep()
        current = self._fit_columns(handle, current, session.is_case_sensitive(self.spark))
        self.watch.lap("load")
        write_settings = current.settings()
        metadata = current.table.metadata
        layout = handle.reader(current.policy).read(metadata, current.table.io)
        self.contested = self.pausing | handle.contested(current, self.options.environment)
        self.watch.lap("layout")
        shape = self._in_hand(write_settings, layout, current.policy) or self._shape(current, write_settings, layout)
        self.watch.lap("statistics")
        failpoints.reach("statistics")
        if shape.rows == 0:
            return Report(table=current.name, batch_id=self._batch_id, seconds=self.watch.seconds)
        settings_now = write_settings.with_bytes_per_row(shape.bytes_per_row)
        return self._write_and_commit(handle, current, settings_now, layout, shape)

    @property
    def _overwrites(self) -> bool:
        return self.absorbs and not self.options.stream_safe

    def _keep(self) -> None:
        """A batch that has to be counted is read twice: where that costs, it is kept in the meantime."""
        if self._overwrites and not self.kept and not session.is_cheap_to_read_again(self.given):
            self.given.persist()
            self.kept = True

    def _in_hand(self, settings: WriteSettings, layout: Layout, policy: SizePolicy) -> WritePlan | None:
        if self.options.write_tasks is not None or not is_small(self.df):
            return None
        return plan_rows_in_hand(self.df, settings, layout, policy, self.state.learned)

    def _shape(self, current: Current, settings: WriteSettings, layout: Layout) -> WritePlan:
        cheap = self.kept or session.is_cheap_to_read_again(self.df)
        self.state.learned.seed(current.table.metadata, current.table.io)
        return plan_write(
            self.df, settings, layout, current.policy, self.state.learned, statistics=self.options.statistics,
            write_tasks=self.options.write_tasks, cheap=cheap, whole=self._overwrites,
        )  # fmt: skip

    @property
    def _batch_id(self) -> int | None:
        return self.options.ledger.batch_id if self.options.ledger else None

    def _load(self, handle: TableHandle) -> Current:
        try:
            current = handle.load(self.options.environment)
        except TableNotFound as error:
            statement = columns.create_table(handle.name, self.df.schema)
            raise TableNotFound(f"{error}; create it first: {statement}", table=handle.name) from error
        files_scanned = self.options.source.table_uuid
        if files_scanned is not None and files_scanned != current.uuid:
            raise TableError(
                f"Cannot append to '{current.name}': the table was dropped and created again since it was opened; "
                "open it again, and start the query anew, if the new table is meant",
                table=current.name,
            )
        self.notes += current.warnings
        return current

    def _fit_columns(self, handle: TableHandle, current: Current, case_sensitive: bool) -> Current:
        """The batch gets the table's columns; with schema_evolution="add" the table first gets the batch's."""
        extras = columns.extra_columns(self.given.schema, current.table.metadata.schema(), case_sensitive)
        if extras and self.options.schema_evolution == "add":
            add_columns(handle, extras, case_sensitive)
            current = handle.load()
            extras = columns.extra_columns(self.given.schema, current.table.metadata.schema(), case_sensitive)
        columns.refuse(extras, current.name)
        self.df = columns.align(self.given, current.table.metadata.schema(), current.name)
        return current

    def _write_and_commit(
        self, handle: TableHandle, current: Current, settings: WriteSettings, layout: Layout, shape: WritePlan
    ) -> Report:
        placement = self._placement(current.policy, layout)
        begun = placement.before(shape)
        if begun and not shape.writer.can_take_along(begun.absorption):
            shape = self._shape(current, settings, layout)
            begun = placement.before(shape)
        shape = self._beside_merges(shape, begun, settings)
        # looks at values of the batch for tables with a sort order: before the merges take the cores
        placed = shape.place(self.df)
        self.watch.lap("plan")
        failpoints.reach("planned")
        runs: list[MergeRun] = []
        with uncommitted(settings.storage, self.options.environment) as environment, stopping(runs):
            self._start(runs, begun.merges if begun else (), settings, shape)
            taken_along = begun.absorption if begun else NOTHING
            written = shape.writer.write(placed, settings, self._prefix, taken_along)
            deadline = self._deadline_seconds(current.policy, int(self.watch.lap("write") * 1000))
            if written.new_rows == 0:
                stop_all(runs)
                settings.storage.abandon()
                return Report(table=current.name, batch_id=self._batch_id, seconds=self.watch.seconds)
            decision = begun if begun and shape.is_complete else placement.after(written.files, begun)
            results = self._merged(settings, begun, decision, written, runs, deadline)
            results = results.completed(written.files, current.table.io, settings)
            self.watch.lap("merge_wait")
            failpoints.reach("files-written")
            paths = [*(file.path for file in written.files), *results.paths()]
            check_still_there(handle, paths, self.watch)
            with self.state.commit_lock:
                outcome = handle.commit(
                    current, layout, self.run_id, environment,
                    appended=written.files, merged=results.merged, absorbed=written.absorbed,
                    ledger=self.options.ledger, accept_new_checkpoint=self.options.accept_new_checkpoint,
                )  # fmt: skip
        self.watch.lap("commit")
        self.state.backoff.lost(outcome.contested)
        self.state.backoff.landed(g.inputs[0].partition for g in outcome.merged)
        self.state.backoff.landed(file.partition for file in written.absorbed)
        outcome = replace(outcome, conflicts=(*self.conflicts, *outcome.conflicts))
        notes = [*self.notes, *(f"small files stay beside the new rows: {error}" for error in written.failed)]
        report = report_of(
            current.name, decision.plan, layout, written.files, results, outcome, self.watch.seconds, notes,
            self._batch_id, written.absorbed,
        )  # fmt: skip
        return self.state.learned.compare(report, shape, written)

    def _merged(
        self,
        settings: WriteSettings,
        begun: Decision | None,
        decision: Decision,
        written: Written,
        runs: list[MergeRun],
        deadline_seconds: float | None,
    ) -> MergeResults:
        """Wait for the merges that have `begun`, and for those that only the final `decision` has; adds to `runs`."""
        started = [*(begun.merges if begun else ())]
        known = {id(group) for group in started}
        late = [group for group in decision.merges if id(group) not in known]
        self._start(runs, late, settings)
        done = finish_all(runs, deadline_seconds, self.options.environment)
        kept = in_order([*started, *late], done, decision.merges, settings)
        return MergeResults.of(decision.merges, kept, written.files)

    def _placement(self, policy: SizePolicy, layout: Layout) -> Placement:
        if not self.absorbs:
            return Appending(layout, policy, self.contested, merging=self.options.merge == "inline")
        return (WritingOnce if self._overwrites else Absorbing)(layout, policy, self.contested)

    def _deadline_seconds(self, policy: SizePolicy, write_ms: int) -> float | None:
        """Absorbing cannot begin before the rows are written and is what was asked for: the budget bounds it, and time
        only where a deadline is set."""
        if self.absorbs and policy.merge_deadline_ms is None:
            return None
        return policy.merge_deadline_for(write_ms) / 1000

    def _beside_merges(self, shape: WritePlan, decision: Decision | None, settings: WriteSettings) -> WritePlan:
        """The cores divided between rows and merges; who takes files along was decided by task and stays."""
        if decision is None or decision.absorption.by_writer or self.options.write_tasks is not None:
            return shape
        work = list(work_for_spark(decision.merges, settings).values())
        return shape.beside(work, session.parallelism(self.spark))

    def _start(
        self,
        runs: list[MergeRun],
        groups: Sequence[MergeGroup],
        settings: WriteSettings,
        beside: WritePlan | None = None,
    ) -> None:
        """Merge in the background, in a run that is among `runs` before it starts; `beside` is the batch whose write
        job is about to start."""
        tasks = [MergeTask(g.inputs, g.partition, g.outputs) for g in groups]
        waits = beside is not None and beside.writer.starts_a_job
        most = beside.merge_tasks if beside else None
        runs.append(MergeRun(self.spark, tasks, settings, self._prefix, waits, most))
        runs[-1].start()

    @property
    def _prefix(self) -> str:
        """Names of files tell the stream and the batch; rows outside of a stream are told by the run."""
        entry = self.options.ledger
        return f"{stream_hash(entry.stream_id)}-{entry.batch_id}" if entry else f"{stream_hash(self.run_id)}-0"
