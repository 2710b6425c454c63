"""The plan of an appended batch, made once on one state of the table, and the writes of that plan.

Merges are selected before the rows are written, or after their files are known:

- "append": before the write, if the number of new files is known or predicted. Unpredicted merges follow the write.
- "absorb": after the write, because the new files themselves are merged.
- "absorb" with `stream_safe=False`: always before the write, because the writers of new rows also write the rows of
  older small files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pyspark.sql import DataFrame

from icesize import failpoints
from icesize.errors import RewriteFailed, TableError, UnsupportedTable
from icesize.parquet.files.data_file import NewDataFile, Written
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.rewriting.absorb import NOTHING, Absorption
from icesize.planning.files import FileFact, Layout, PartitionKey
from icesize.planning.merging.after_write import complete_plan, divided, plan_absorbing
from icesize.planning.merging.groups import MergeBudget
from icesize.planning.merging.planner import Occasion, plan_merges
from icesize.planning.plan import FileGroup, MergeTask, Plan
from icesize.planning.upsert_rule import UpsertRule
from icesize.spark.engine import columns, session
from icesize.spark.engine.jobs import Cores
from icesize.spark.engine.merge_job import MergeRun, work_for_spark
from icesize.spark.routing.learning import Learned
from icesize.spark.routing.statistics import is_small, plan_rows_in_hand, plan_write
from icesize.spark.routing.write_plan import KnownBatch, WritePlan
from icesize.spark.stream.new_columns import fold_of, with_columns_of
from icesize.spark.stream.options import SinkOptions
from icesize.spark.stream.process_state import TableState
from icesize.table.commit.batch_commit import Batch
from icesize.table.commit.batch_life import MOST_ATTEMPTS, PlanAgain
from icesize.table.commit.batch_report import MergeResults, WrittenBatch, incoming_files
from icesize.table.state.handle import Current


@dataclass(eq=False)
class AppendedRows:
    """The rows of a batch that are appended.

    Attributes:
        df: The rows.
        options: Options of the sink.
        learned: Statistics of earlier batches.
        absorbs: New rows go into the small file of their partition.
        is_kept: The rows stay in Spark's cache until the batch is done.
    """

    verb: ClassVar[str] = "append to"
    df: DataFrame
    options: SinkOptions
    learned: Learned
    absorbs: bool
    is_kept: bool

    @property
    def overwrites(self) -> bool:
        """True if new rows are written into the same files as the older rows of their partition's small files."""
        return self.absorbs and not self.options.stream_safe

    def plan(self, batch: Batch, current: Current) -> BatchPlan | None:
        """Plan the writers and the merges of the batch on a state of the table; return None for an empty batch.

        Columns that the table lacks are added first if the options allow it. Raises SchemaMismatch, TableError or
        UnsupportedTable.
        """
        _refuse_append(current, self.options)
        lost = len(batch.conflicts)
        if self.absorbs and lost == MOST_ATTEMPTS - 1:
            self.absorbs = False
            batch.conflicts.append(f"nothing was absorbed: others came first {lost} times")
        fitted = _fit(self, batch, current)
        write_plan = _by_driver(fitted) or _by_spark(fitted)
        batch.watch.lap("statistics")
        failpoints.reach("statistics")
        if write_plan.known is not None and write_plan.known.rows == 0:
            return None
        settings = replace(fitted.settings, bytes_per_row=write_plan.bytes_per_row)
        begun = _decide_before(fitted, write_plan)
        most_along = self.options.environment.limits.driver_bytes_along
        if begun and write_plan.fetched is not None and begun.absorption.most_bytes > most_along:
            # a Spark job decodes this many bytes faster than the driver
            write_plan = _by_spark(fitted)
            begun = _decide_before(fitted, write_plan)
        write_plan = _beside_merges(fitted, write_plan, begun)
        # for tables with a sort order, this reads values of the batch: do it before the merges use the cores
        rows = write_plan.to_tasks(fitted.df)
        batch.watch.lap("plan")
        failpoints.reach("planned")
        return BatchPlan(replace(fitted, settings=settings), write_plan, rows, begun)


def appended_rows(df: DataFrame, options: SinkOptions, state: TableState, cached: ExitStack) -> AppendedRows:
    """Return the rows of a batch for an append.

    A batch that must be counted, and so is read twice, stays in Spark's cache until `cached` ends if it is expensive to
    read again.
    """
    absorbs = options.placement == "absorb"
    is_kept = absorbs and not options.stream_safe and not session.is_cheap_to_read_again(df)
    if is_kept:
        cached.callback(df.persist().unpersist)
    return AppendedRows(df, options, state.learned, absorbs, is_kept)


def _refuse_append(current: Current, options: SinkOptions) -> None:
    """Raise TableError for rows that are appended to a table with a key, unless the caller allows it."""
    rule = UpsertRule.of(current.table.metadata.properties)
    if rule is None or options.allow_duplicate_keys:
        return
    schema = current.table.metadata.schema()
    key = ", ".join(schema.find_column_name(each) or f"field {each}" for each in rule.key)
    raise TableError(
        f"Cannot append to '{current.name}': the table has the key ({key}), and an append does not look for older rows "
        'of its keys. Use mode="upsert" or `table.upsert`; if no key of the batch is in the table, use '
        "allow_duplicate_keys=True",
        table=current.name,
    )


@dataclass(frozen=True)
class ResolvedBatch:
    """Appended rows with the columns of the `current` table. No merge begins in `contested` partitions."""

    appended: AppendedRows
    batch: Batch
    df: DataFrame
    current: Current
    layout: Layout
    settings: WriteSettings
    contested: frozenset[PartitionKey]


@dataclass(frozen=True)
class Decision:
    """The merges of a batch: separate `merges`, and `absorption`, whose files the writers of new rows rewrite."""

    plan: Plan
    merges: Sequence[MergeTask]
    absorption: Absorption = NOTHING


@dataclass(frozen=True)
class BatchPlan:
    """The plan for the writers of one batch and for the merges beside it.

    `rows` are those of the batch as `write_plan` assigns them to its writers. `begun` is the decision made before the
    write; None if the new files must be known first.
    """

    fitted: ResolvedBatch
    write_plan: WritePlan
    rows: DataFrame
    begun: Decision | None

    @property
    def current(self) -> Current:
        """The state of the table, with the columns of the batch."""
        return self.fitted.current

    def write(self, owner: Uncommitted) -> WrittenBatch | None:
        """Write the rows and merge; return None if the batch has no rows. No work continues after the return.

        Merges are optional: one that fails or is late is dropped. Raises PlanAgain, SchemaMismatch or RewriteFailed
        for the rows.
        """
        fitted, settings, write_plan = self.fitted, self.fitted.settings, self.write_plan
        watch, environment = fitted.batch.watch, fitted.batch.environment
        with MergeRun(fitted.df.sparkSession, settings, owner, environment) as merging:
            # these merges start together with the write
            begun = dict(enumerate(self.begun.merges if self.begun else ()))
            before_job = session.wait_for_a_job if write_plan.fetched is None else None
            merging.start(begun, before_job, Cores(tasks=write_plan.merge_tasks))
            rows = self._write_rows(owner)
            deadline_seconds = self._merge_deadline_seconds(watch.lap("write"))
            if rows.new_rows == 0:
                return None
            decision = self.decide(rows.files)
            numbers = {group: number for number, group in begun.items()}
            groups = {numbers.setdefault(group, len(numbers)): group for group in decision.merges}
            merging.start({number: group for number, group in groups.items() if number not in begun})
            merges = MergeResults.of(groups, merging.finish(deadline_seconds), rows.files)
            watch.lap("merge_wait")
        return WrittenBatch(fitted.current, fitted.layout, decision.plan, merges, rows)

    def _write_rows(self, owner: Uncommitted) -> Written:
        appended = self.fitted.appended
        absorption = self.begun.absorption if self.begun else NOTHING
        try:
            return self.write_plan.write(self.rows, self.fitted.settings, owner, absorption)
        except RewriteFailed as error:
            if not appended.overwrites or "column" not in error.facts:
                raise
            # a value of older rows would change, which is detected only when they are written with the new ones
            appended.absorbs = False
            raise PlanAgain(f"nothing was absorbed: {error}") from error

    def for_report(self, written: WrittenBatch) -> tuple[Sequence[str], dict[str, Any]]:
        """Remember the statistics of the committed batch, and return notes and fields of its report."""
        seen = self.fitted.appended.learned.compare(self.write_plan, written.rows, written.bytes_ingested)
        failed = [f"small files stay beside the new rows: {each.why}" for each in written.rows.failed]
        return (*failed, *seen.notes), {"bytes_predicted": seen.bytes_predicted, "writer_skew": seen.writer_skew}

    def decide(self, written: Sequence[NewDataFile]) -> Decision:
        """Return the merges for the new files.

        Merges of `begun`, which may come from a prediction, are kept unchanged or dropped.
        """
        fitted, begun = self.fitted, self.begun
        # if writers of new rows also rewrite older files, the written files already contain the older rows
        known = self.write_plan.known
        if begun and ((known and known.is_complete) or fitted.appended.overwrites):
            return begun
        if fitted.appended.absorbs:
            number = fitted.layout.head.sequence_number + 1
            new = [FileFact(file.path, file.size_bytes, file.rows, file.partition, number) for file in written]
            plan = _absorbing(fitted, new)
            return Decision(plan, plan.groups)
        incoming = incoming_files(written, fitted.layout.small_file_limit_bytes)
        return _beside_rows(fitted, incoming, sum(file.size_bytes for file in written), begun)

    def _merge_deadline_seconds(self, write_seconds: float) -> float | None:
        """Return the seconds for which merges may delay a batch after its write; None for no limit.

        With "absorb", merges begin only after the write, and the user requested them. So the budget limits them, and
        time does only if a deadline is set.
        """
        policy = self.fitted.current.policy
        if self.fitted.appended.absorbs and policy.merge_deadline_ms is None:
            return None
        return policy.merge_deadline_for(int(write_seconds * 1000)) / 1000


def _fit(appended: AppendedRows, batch: Batch, current: Current) -> ResolvedBatch:
    """Give the rows the table's columns; with schema_evolution="add", first add the batch's columns to the table."""
    df, options = appended.df, appended.options
    if appended.absorbs and options.stream_safe and current.table.metadata.format_version >= FIRST_WITH_LINEAGE:
        raise UnsupportedTable(
            f"Cannot absorb into '{current.name}': in format v3, new rows have no row ids before they are committed, "
            "and a merge in the same commit would give them other ones. Set stream_safe=False, or placement='append'",
            table=current.name,
        )
    current = with_columns_of(df, batch, current, options)
    fitted = columns.align(df, current.table.metadata.schema(), current.name, fold_of(df))
    batch.watch.lap("load")
    settings = current.settings()
    layout = batch.handle.reader(current.policy).read(current.table.metadata, current.table.io)
    contested = batch.contested(current)
    batch.watch.lap("layout")
    return ResolvedBatch(appended, batch, fitted, current, layout, settings, contested)


def _by_driver(fitted: ResolvedBatch) -> WritePlan | None:
    """Return the plan of a small batch, whose rows are then in the driver; None for other batches."""
    appended, limits = fitted.appended, fitted.batch.environment.limits

    def expected_rows() -> float | None:
        if session.query_id_of(fitted.df.sparkSession) is None:
            return None
        expected = _seeded(fitted).predict()
        return None if expected is None else expected.total_rows

    if appended.options.write_tasks is not None or not is_small(fitted.df, limits, expected_rows):
        return None
    return plan_rows_in_hand(
        fitted.df, fitted.settings, fitted.layout, fitted.current.policy, appended.learned, limits=limits
    )


def _by_spark(fitted: ResolvedBatch) -> WritePlan:
    appended, options = fitted.appended, fitted.appended.options
    return plan_write(
        fitted.df, fitted.settings, fitted.layout, fitted.current.policy, _seeded(fitted),
        limits=options.environment.limits, statistics=options.statistics, write_tasks=options.write_tasks,
        cheap=appended.is_kept or session.is_cheap_to_read_again(fitted.df), whole=appended.overwrites,
    )  # fmt: skip


def _seeded(fitted: ResolvedBatch) -> Learned:
    """Return the statistics of earlier batches; in a new process, those that the table has."""
    table, learned = fitted.current.table, fitted.appended.learned
    learned.seed(table.metadata, table.io, fitted.batch.handle.store)
    return learned


def _decide_before(fitted: ResolvedBatch, write_plan: WritePlan) -> Decision | None:
    """Return the decision that is possible before the write; None if it needs the new files."""
    known = write_plan.known
    if known is not None and fitted.appended.overwrites:
        return _written_once(fitted, known)
    if known is None or fitted.appended.absorbs:
        return None
    return _beside_rows(fitted, known.incoming, known.size_bytes or 0.0, None)


def _beside_rows(
    fitted: ResolvedBatch, incoming: Mapping[PartitionKey, int], batch_bytes: float, begun: Decision | None
) -> Decision:
    """Select merges of older small files; new files stay unchanged. Only merge="inline" selects any."""
    layout, policy, contested = fitted.layout, fitted.current.policy, fitted.contested
    budget = MergeBudget.of_batch(policy, batch_bytes)
    if fitted.appended.options.merge != "inline":
        layout = Layout(layout.head, layout.spec_id, layout.small_file_limit_bytes)
    if begun is None:
        plan = plan_merges(layout, policy, Occasion.BATCH, incoming, budget=budget, contested=contested)
    else:
        plan = complete_plan(begun.plan, layout, policy, incoming, budget=budget, contested=contested)
    return Decision(plan, plan.groups)


def _absorbing(fitted: ResolvedBatch, new: Sequence[FileFact]) -> Plan:
    """Plan merges of new files with the older small ones of their partition, in the commit that adds them."""
    policy = fitted.current.policy
    budget = MergeBudget.of_batch(policy, sum(file.size_bytes for file in new))
    return plan_absorbing(fitted.layout, policy, new, budget=budget, contested=fitted.contested)


def _written_once(fitted: ResolvedBatch, known: KnownBatch) -> Decision:
    """Plan to write new rows and the rows of small files that they absorb into the same files."""
    number = fitted.layout.head.sequence_number + 1
    new = [FileFact("", math.ceil(weight), 0, key, number) for key, weight in known.weights.items()]
    plan = _absorbing(fitted, new)
    apart, along = divided(plan.groups, new)
    by_writer: dict[int, tuple[FileGroup, ...]] = {}
    for group in along:
        owner = known.owners[group.partition]
        by_writer[owner] = (*by_writer.get(owner, ()), group)
    return Decision(plan, apart, Absorption(by_writer))


def _beside_merges(fitted: ResolvedBatch, write_plan: WritePlan, begun: Decision | None) -> WritePlan:
    """Divide the cores between rows and merges; writers that also rewrite older files keep their tasks."""
    options = fitted.appended.options
    if begun is None or begun.absorption.by_writer or options.write_tasks is not None:
        return write_plan
    work = work_for_spark(dict(enumerate(begun.merges)), fitted.settings, options.environment.limits)
    return write_plan.beside(list(work.values()), session.parallelism(fitted.df.sparkSession))
