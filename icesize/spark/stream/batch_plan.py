"""The plan of one batch, made once on one state of the table, before anything is written.

Merges are selected before the rows are written, or after their files are known:

- "append": before the write, if the number of new files is known or predicted. Unpredicted merges follow the write.
- "absorb": after the write, because the new files themselves are merged.
- "absorb" with `stream_safe=False`: always before the write, because the writers of new rows also write the rows of
  older small files.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from icesize import failpoints
from icesize.environment import Stopwatch
from icesize.errors import UnsupportedTable
from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.rewriting.absorb import NOTHING, Absorption
from icesize.planning.file_counts import is_small_file
from icesize.planning.files import FileFact, Layout, PartitionKey
from icesize.planning.merging.after_write import complete_plan, divided, plan_absorbing
from icesize.planning.merging.planner import plan_merges
from icesize.planning.plan import FileGroup, MergeTask, Plan
from icesize.spark.engine import columns, session
from icesize.spark.engine.columns import iceberg_type
from icesize.spark.engine.merge_job import work_for_spark
from icesize.spark.routing.statistics import is_small, plan_rows_in_hand, plan_write
from icesize.spark.routing.write_plan import WritePlan
from icesize.spark.stream.options import SinkOptions
from icesize.spark.stream.process_state import TableSource, TableState
from icesize.table.commit import batch_commit
from icesize.table.commit.metadata_change import add_columns
from icesize.table.records.ledger import LedgerEntry
from icesize.table.state.handle import Current, TableHandle


@dataclass(frozen=True)
class Batch:
    """A batch to commit: its rows, its options, its table, and the conflicts of earlier attempts.

    `ledger` is its entry in the ledger, None for rows without a stream. `pausing` are partitions whose merges recently
    conflicted with other writers. `is_kept`: the rows stay in Spark's cache until the batch is done. `absorbs`: new
    rows go into the small file of their partition. `conflicts` are sentences about attempts that conflicted.
    """

    df: DataFrame
    source: TableSource
    options: SinkOptions
    ledger: LedgerEntry | None
    state: TableState
    handle: TableHandle
    watch: Stopwatch
    run_id: str
    pausing: frozenset[PartitionKey]
    is_kept: bool
    absorbs: bool
    conflicts: tuple[str, ...] = ()

    @property
    def spark(self) -> SparkSession:
        """The session of the batch's DataFrame."""
        return self.df.sparkSession

    @property
    def overwrites(self) -> bool:
        """True if new rows are written into the same files as the older rows of their partition's small files."""
        return self.absorbs and not self.options.stream_safe

    def after(self, conflict: str) -> Batch:
        """Return the batch with one more conflict."""
        return replace(self, conflicts=(*self.conflicts, conflict))

    @property
    def batch_id(self) -> int | None:
        """The number of the batch in its stream; None for rows without a stream."""
        return self.ledger.batch_id if self.ledger else None


@dataclass(frozen=True)
class ResolvedBatch:
    """A batch with the columns of the current table. No merge begins in `contested` partitions."""

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

    def decide(self, written: Sequence[NewDataFile]) -> Decision:
        """Return the merges for the new files.

        Merges of `begun`, which may come from a prediction, are kept unchanged or dropped.
        """
        fitted, begun = self.fitted, self.begun
        # if writers of new rows also rewrite older files, the written files already contain the older rows
        if begun and (self.write_plan.is_complete or fitted.batch.overwrites):
            return begun
        if fitted.batch.absorbs:
            number = fitted.layout.head.sequence_number + 1
            new = [FileFact(file.path, file.size_bytes, file.rows, file.partition, number) for file in written]
            plan = _absorbing(fitted, new)
            return Decision(plan, plan.groups)
        incoming = Counter({file.partition: 0 for file in written})
        limit_bytes = fitted.layout.small_file_limit_bytes
        incoming.update(f.partition for f in written if is_small_file(f.size_bytes, limit_bytes))
        return _beside_rows(fitted, incoming, sum(file.size_bytes for file in written), begun)

    def merge_deadline_seconds(self, write_seconds: float) -> float | None:
        """Return the seconds for which merges may delay a batch after its write; None for no limit.

        With "absorb", merges begin only after the write, and the user requested them. So the budget limits them, and
        time does only if a deadline is set.
        """
        policy = self.fitted.current.policy
        if self.fitted.batch.absorbs and policy.merge_deadline_ms is None:
            return None
        return policy.merge_deadline_for(int(write_seconds * 1000)) / 1000


def plan(batch: Batch, current: Current) -> BatchPlan | None:
    """Plan the writers and the merges of a batch on the `current` state of the table; return None for an empty batch.

    Columns that the table lacks are added first if the options allow it. Raises SchemaMismatch, TableError or
    UnsupportedTable.
    """
    fitted, watch = _fit(batch, current), batch.watch
    write_plan = _by_driver(fitted) or _by_spark(fitted)
    watch.lap("statistics")
    failpoints.reach("statistics")
    if write_plan.rows == 0:
        return None
    settings = replace(fitted.settings, bytes_per_row=write_plan.bytes_per_row)
    begun = _decide_before(fitted, write_plan)
    most_along = batch.options.environment.limits.driver_bytes_along
    if begun and write_plan.fetched is not None and begun.absorption.most_bytes > most_along:
        # a Spark job decodes this many bytes faster than the driver
        write_plan = _by_spark(fitted)
        begun = _decide_before(fitted, write_plan)
    write_plan = _beside_merges(fitted, write_plan, begun)
    # for tables with a sort order, this reads values of the batch: do it before the merges use the cores
    rows = write_plan.to_tasks(fitted.df)
    watch.lap("plan")
    failpoints.reach("planned")
    return BatchPlan(replace(fitted, settings=settings), write_plan, rows, begun)


def _fit(batch: Batch, current: Current) -> ResolvedBatch:
    """Give the batch the table's columns; with schema_evolution="add", first add the batch's columns to the table."""
    handle, df, options = batch.handle, batch.df, batch.options
    if batch.absorbs and options.stream_safe and current.table.metadata.format_version >= FIRST_WITH_LINEAGE:
        raise UnsupportedTable(
            f"Cannot absorb into '{current.name}': in format v3, new rows have no row ids before they are committed, "
            "and a merge in the same commit would give them other ones. Set stream_safe=False, or placement='append'",
            table=current.name,
        )
    case_sensitive = session.is_case_sensitive(batch.spark)
    fold = str if case_sensitive else str.lower
    extras = columns.extra_columns(df.schema, current.table.metadata.schema().as_struct(), fold)
    if extras and options.schema_evolution == "add":
        new = {extra.path: iceberg_type(extra.kind) for extra in extras}
        change = add_columns(new, case_sensitive, options.environment.new_id())
        batch_commit.change(handle, current, change, options.environment)
        current = handle.load()
        extras = columns.extra_columns(df.schema, current.table.metadata.schema().as_struct(), fold)
    columns.refuse(extras, current.name)
    metadata, io = current.table.metadata, current.table.io
    fitted = columns.align(df, metadata.schema(), current.name, fold)
    batch.watch.lap("load")
    settings = current.settings()
    layout = handle.reader(current.policy).read(metadata, io)
    contested = batch.pausing | handle.contested(current, options.environment)
    batch.watch.lap("layout")
    return ResolvedBatch(batch, fitted, current, layout, settings, contested)


def _by_driver(fitted: ResolvedBatch) -> WritePlan | None:
    """Return the plan of a small batch, whose rows are then in the driver; None for other batches."""
    batch, metadata, limits = fitted.batch, fitted.current.table.metadata, fitted.batch.options.environment.limits

    def expected_rows() -> float | None:
        if session.query_id_of(batch.spark) is None:
            return None
        batch.state.learned.seed(metadata, fitted.current.table.io, batch.handle.store)
        expected = batch.state.learned.predict()
        return None if expected is None else expected.total_rows

    if batch.options.write_tasks is not None or not is_small(fitted.df, limits, expected_rows):
        return None
    return plan_rows_in_hand(
        fitted.df, fitted.settings, fitted.layout, fitted.current.policy, batch.state.learned, limits=limits
    )


def _by_spark(fitted: ResolvedBatch) -> WritePlan:
    batch, current = fitted.batch, fitted.current
    cheap = batch.is_kept or session.is_cheap_to_read_again(fitted.df)
    batch.state.learned.seed(current.table.metadata, current.table.io, batch.handle.store)
    return plan_write(
        fitted.df, fitted.settings, fitted.layout, current.policy, batch.state.learned,
        limits=batch.options.environment.limits, statistics=batch.options.statistics,
        write_tasks=batch.options.write_tasks, cheap=cheap, whole=batch.overwrites,
    )  # fmt: skip


def _decide_before(fitted: ResolvedBatch, write_plan: WritePlan) -> Decision | None:
    """Return the decision that is possible before the write; None if it needs the new files."""
    if fitted.batch.overwrites:
        return _written_once(fitted, write_plan)
    if fitted.batch.absorbs or write_plan.incoming is None:
        return None
    return _beside_rows(fitted, write_plan.incoming, write_plan.size_bytes or 0.0, None)


def _beside_rows(
    fitted: ResolvedBatch, incoming: Mapping[PartitionKey, int], batch_bytes: float, begun: Decision | None
) -> Decision:
    """Select merges of older small files; new files stay unchanged. Only merge="inline" selects any."""
    layout, policy, contested = fitted.layout, fitted.current.policy, fitted.contested
    budget_bytes, most_bytes = policy.budget_for(int(batch_bytes)), policy.merge_budget_bytes
    if fitted.batch.options.merge != "inline":
        layout = Layout(layout.head, layout.spec_id, layout.small_file_limit_bytes)
    if begun is None:
        plan = plan_merges(
            layout, policy, incoming=incoming, budget_bytes=budget_bytes, most_bytes=most_bytes, contested=contested
        )
    else:
        plan = complete_plan(
            begun.plan, layout, policy, incoming,
            budget_bytes=budget_bytes, most_bytes=most_bytes, contested=contested,
        )  # fmt: skip
    return Decision(plan, plan.groups)


def _absorbing(fitted: ResolvedBatch, new: Sequence[FileFact]) -> Plan:
    """Plan merges of new files with the older small ones of their partition, in the commit that adds them."""
    policy, new_bytes = fitted.current.policy, sum(file.size_bytes for file in new)
    return plan_absorbing(
        fitted.layout, policy, new, budget_bytes=policy.budget_for(new_bytes), most_bytes=policy.merge_budget_bytes,
        contested=fitted.contested,
    )  # fmt: skip


def _written_once(fitted: ResolvedBatch, write_plan: WritePlan) -> Decision:
    """Plan to write new rows and the rows of small files that they absorb into the same files."""
    number = fitted.layout.head.sequence_number + 1
    new = [FileFact("", math.ceil(weight), 0, key, number) for key, weight in write_plan.weights.items()]
    plan = _absorbing(fitted, new)
    apart, along = divided(plan.groups, new)
    by_writer: dict[int, tuple[FileGroup, ...]] = {}
    for group in along:
        owner = write_plan.owners[group.partition]
        by_writer[owner] = (*by_writer.get(owner, ()), group)
    return Decision(plan, apart, Absorption(by_writer))


def _beside_merges(fitted: ResolvedBatch, write_plan: WritePlan, begun: Decision | None) -> WritePlan:
    """Divide the cores between rows and merges; writers that also rewrite older files keep their tasks."""
    options = fitted.batch.options
    if begun is None or begun.absorption.by_writer or options.write_tasks is not None:
        return write_plan
    work = work_for_spark(dict(enumerate(begun.merges)), fitted.settings, options.environment.limits)
    return write_plan.beside(list(work.values()), session.parallelism(fitted.batch.spark))
