"""What is done with one batch: looked at once, on one state of the table, before anything is written.

What it merges is decided before its rows are written, or once their files are known:

append           the number of new files is enough: before the batch is written, where it is known or expected; what
                 was not expected is merged when it is written
absorb           new files are merged themselves, so they have to be there first
absorb, written  the writers of new rows take older small files along: before, always
once
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from icesize import failpoints
from icesize.environment import Stopwatch
from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.rewriting.absorb import NOTHING, Absorption
from icesize.planning.files import FileFact, Layout, PartitionKey
from icesize.planning.merging.after_write import complete_plan, divided, plan_absorbing
from icesize.planning.merging.planner import plan_merges
from icesize.planning.plan import FileGroup, MergeTask, Plan
from icesize.spark.engine import columns, session
from icesize.spark.engine.columns import Extra, iceberg_type
from icesize.spark.engine.merge_job import work_for_spark
from icesize.spark.routing.statistics import is_small, plan_rows_in_hand, plan_write
from icesize.spark.routing.write_plan import WritePlan
from icesize.spark.stream.options import SinkOptions
from icesize.spark.stream.process_state import StreamState, TableSource
from icesize.table.commit import submit
from icesize.table.commit.loaded import Loaded, Staged
from icesize.table.commit.metadata_change import MetadataChange
from icesize.table.records.ledger import LedgerEntry, stream_hash
from icesize.table.state.handle import Current, TableHandle


@dataclass(frozen=True)
class Batch:
    """A batch to take in: rows, options, where they go, and what earlier tries at it have left.

    `ledger` is its entry among the batches of its stream, None for rows that belong to no stream.
    `pausing` are partitions whose merges lately lost to other writers. `is_kept`: the rows are in Spark's cache until
    the batch is done. `absorbs`: new rows are to end up in the small file of their partition. `conflicts` are sentences
    about tries that were lost.
    """

    df: DataFrame
    source: TableSource
    options: SinkOptions
    ledger: LedgerEntry | None
    state: StreamState
    handle: TableHandle
    watch: Stopwatch
    run_id: str
    pausing: frozenset[PartitionKey]
    is_kept: bool
    absorbs: bool
    conflicts: tuple[str, ...] = ()

    @property
    def spark(self) -> SparkSession:
        """The session that the batch came in."""
        return self.df.sparkSession

    @property
    def overwrites(self) -> bool:
        """Whether new rows are written into the same files as the older ones of their partition's small files."""
        return self.absorbs and not self.options.stream_safe

    def after(self, conflict: str) -> Batch:
        """The same batch once this has happened to it."""
        return replace(self, conflicts=(*self.conflicts, conflict))

    @property
    def batch_id(self) -> int | None:
        """The batch's number in its stream, None for rows that belong to none."""
        return self.ledger.batch_id if self.ledger else None

    @property
    def prefix(self) -> str:
        """Names of files tell the stream and the batch; rows outside of a stream are told by the run."""
        entry = self.ledger
        return f"{stream_hash(entry.stream_id)}-{entry.batch_id}" if entry else f"{stream_hash(self.run_id)}-0"


@dataclass(frozen=True)
class ResolvedBatch:
    """A batch beside the table as it is now: `df` has its columns. No merge begins in `contested` partitions."""

    batch: Batch
    df: DataFrame
    current: Current
    layout: Layout
    settings: WriteSettings
    contested: frozenset[PartitionKey]


@dataclass(frozen=True)
class Decision:
    """What is merged with a batch: `merges` by themselves, files of `absorption` by the writers of the new rows."""

    plan: Plan
    merges: Sequence[MergeTask]
    absorption: Absorption = NOTHING


@dataclass(frozen=True)
class BatchPlan:
    """How one batch is written, and what is merged beside it.

    `rows` are those of the batch as `write_plan` divides them over its writers. `begun` is what was decided before they
    are written, None where their files have to be known first.
    """

    fitted: ResolvedBatch
    write_plan: WritePlan
    rows: DataFrame
    begun: Decision | None

    def decide(self, written: Sequence[NewDataFile]) -> Decision:
        """What is merged, now that these files are about to be added.

        Merges of `begun`, which may have been decided on a prediction, are among its merges as they were, or given up.
        """
        fitted, begun = self.fitted, self.begun
        # where new rows take older files along these are in the new files by now
        if begun and (self.write_plan.is_complete or fitted.batch.overwrites):
            return begun
        if fitted.batch.absorbs:
            number = fitted.layout.head.sequence_number + 1
            new = [FileFact(file.path, file.size_bytes, file.rows, file.partition, number) for file in written]
            plan = _absorbing(fitted, new)
            return Decision(plan, plan.groups)
        incoming = Counter({file.partition: 0 for file in written})
        incoming.update(f.partition for f in written if f.size_bytes < fitted.layout.small_file_limit_bytes)
        return _beside_rows(fitted, incoming, sum(file.size_bytes for file in written), begun)

    def merge_deadline_seconds(self, write_seconds: float) -> float | None:
        """How long merges may keep a batch waiting whose rows took so long to write; None: without end.

        Absorbing cannot begin before the rows are written and is what was asked for: the budget bounds it, and time
        only where a deadline is set.
        """
        policy = self.fitted.current.policy
        if self.fitted.batch.absorbs and policy.merge_deadline_ms is None:
            return None
        return policy.merge_deadline_for(int(write_seconds * 1000)) / 1000


def plan(batch: Batch, current: Current) -> BatchPlan | None:
    """Decide how the batch is written and what is merged, on the `current` state of the table; None when it is empty.

    Columns that the table lacks are added to it before, where the options say so. Raises SchemaMismatch, TableError or
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
        # a Spark job decodes them sooner
        write_plan = _by_spark(fitted)
        begun = _decide_before(fitted, write_plan)
    write_plan = _beside_merges(fitted, write_plan, begun)
    # looks at values of the batch for tables with a sort order: before the merges take the cores
    rows = write_plan.to_tasks(fitted.df)
    watch.lap("plan")
    failpoints.reach("planned")
    return BatchPlan(replace(fitted, settings=settings), write_plan, rows, begun)


def _fit(batch: Batch, current: Current) -> ResolvedBatch:
    """The batch gets the table's columns; with schema_evolution="add" the table first gets the batch's."""
    handle, df, options = batch.handle, batch.df, batch.options
    case_sensitive = session.is_case_sensitive(batch.spark)
    fold = str if case_sensitive else str.lower
    extras = columns.extra_columns(df.schema, current.table.metadata.schema().as_struct(), fold)
    if extras and options.schema_evolution == "add":
        change = add_columns(extras, case_sensitive, options.environment.new_id())
        submit.change(handle, current, change, options.environment)
        current = handle.load()
        extras = columns.extra_columns(df.schema, current.table.metadata.schema().as_struct(), fold)
    columns.refuse(extras, current.name)
    metadata, io = current.table.metadata, current.table.io
    fitted = columns.align(df, metadata.schema(), current.name)
    batch.watch.lap("load")
    settings = current.settings()
    layout = handle.reader(current.policy).read(metadata, io)
    contested = batch.pausing | handle.contested(current, options.environment)
    batch.watch.lap("layout")
    return ResolvedBatch(batch, fitted, current, layout, settings, contested)


def _by_driver(fitted: ResolvedBatch) -> WritePlan | None:
    """For a small batch, whose rows are here then; None for any other."""
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
    """What can be said before the rows are written; None: it is asked again once their files are known."""
    if fitted.batch.overwrites:
        return _written_once(fitted, write_plan)
    if fitted.batch.absorbs or write_plan.incoming is None:
        return None
    return _beside_rows(fitted, write_plan.incoming, write_plan.size_bytes or 0.0, None)


def _beside_rows(
    fitted: ResolvedBatch, incoming: Mapping[PartitionKey, int], batch_bytes: float, begun: Decision | None
) -> Decision:
    """New files stay as they are, older small ones make place for them; none but with merge="inline"."""
    layout, policy, contested = fitted.layout, fitted.current.policy, fitted.contested
    budget_bytes = policy.budget_for(int(batch_bytes))
    if fitted.batch.options.merge != "inline":
        layout = Layout(layout.head, layout.spec_id, layout.small_file_limit_bytes)
    if begun is None:
        plan = plan_merges(layout, policy, incoming=incoming, budget_bytes=budget_bytes, contested=contested)
    else:
        plan = complete_plan(begun.plan, layout, policy, incoming, budget_bytes=budget_bytes, contested=contested)
    return Decision(plan, plan.groups)


def _absorbing(fitted: ResolvedBatch, new: Sequence[FileFact]) -> Plan:
    """New files are merged with the older small ones of their partition, in the commit that adds them."""
    policy, budget_bytes = fitted.current.policy, fitted.current.policy.budget_for(sum(file.size_bytes for file in new))
    return plan_absorbing(fitted.layout, policy, new, budget_bytes=budget_bytes, contested=fitted.contested)


def _written_once(fitted: ResolvedBatch, write_plan: WritePlan) -> Decision:
    """New rows and the rows of the small files that they are to be merged with are written into the same files."""
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
    """The cores divided between rows and merges; who takes files along was decided by task and stays."""
    options = fitted.batch.options
    if begun is None or begun.absorption.by_writer or options.write_tasks is not None:
        return write_plan
    work = work_for_spark(dict(enumerate(begun.merges)), fitted.settings, options.environment.limits)
    return write_plan.beside(list(work.values()), session.parallelism(fitted.batch.spark))


def add_columns(extras: Sequence[Extra], case_sensitive: bool, run_id: str) -> MetadataChange[list[str]]:
    """The change that adds optional columns, nested ones too; it gives the names of those that it has added.

    A column that somebody else has added meanwhile is left as it is.
    """

    def missing(loaded: Loaded) -> list[Extra]:
        fold = str if case_sensitive else str.lower
        known = {fold(name) for name in loaded.table.schema().column_names}
        return [extra for extra in extras if fold(".".join(extra.path)) not in known]

    def build(loaded: Loaded) -> tuple[Staged | None, list[str]]:
        new = missing(loaded)
        if not new:
            return None, []
        update = loaded.table.transaction().update_schema(case_sensitive=case_sensitive)
        for extra in new:
            update.add_column(extra.path, iceberg_type(extra.kind))
        updates, requirements = update._commit()
        return loaded.staged(updates, *requirements), [".".join(extra.path) for extra in new]

    advice = "Look whether the table has the batch's columns; running the same batch again is safe"
    return MetadataChange(run_id, advice, build, lambda loaded: not missing(loaded))
