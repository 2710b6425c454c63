"""The facade: one table, and everything that can be done to its files. Wires the floors, decides nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from icesize.clock import Environment
from icesize.clustered_table import ClusteredTable, Progress, noted
from icesize.errors import EngineUnavailable, UnsupportedTable
from icesize.maintenance.compaction import Maintenance, all_failed
from icesize.maintenance.full_pass import Upkeep, UpkeepReport
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.tasks import MergeTask
from icesize.parquet.rewriting.forecast import forecast
from icesize.parquet.rewriting.threads import Result, merge_in_threads
from icesize.planning.files import Layout, PartitionKey, SkipReason
from icesize.planning.inspection import Inspection
from icesize.planning.inspection import inspect as inspect_layout
from icesize.planning.merging.planner import Plan, plan_merges
from icesize.policy import SizePolicy
from icesize.report import Report
from icesize.table.catalog import loading, opening
from icesize.table.commit import ledger
from icesize.table.commit.forget_stream import ForgetStream
from icesize.table.state.changed_partitions import partitions_changed
from icesize.table.state.handle import Current, PolicyArgument, TableHandle
from icesize.table.state.layout_reader import Labels
from icesize.table.state.recent_batches import bytes_per_partition_and_day
from icesize.table.state.where import Where

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from icesize.spark.stream.sink import Sink


def open(
    spark: SparkSession | None,
    name: str,
    *,
    catalog: Catalog | None = None,
    policy: PolicyArgument = None,
    environment: Environment | None = None,
) -> SizedTable:
    """A table whose files are to be kept well sized.

    `name` is `catalog.namespace.table`; the catalog comes from the session's `spark.sql.catalog.<catalog>.*`, from
    PyIceberg's configuration, or is the PyIceberg `catalog` object given (then `namespace.table` will do). Without
    Spark (`None`) nothing can be appended or read, and `compact` and `after_batch` merge up to 1 GiB. `policy` is a
    SizePolicy or a mapping of its keys; it wins over the table's own properties, key by key.

    Raises TableNotFound, UnsupportedTable or PolicyError.
    """
    return SizedTable(spark, name, catalog, policy, environment or Environment())


class SizedTable(ClusteredTable):
    """One Iceberg table. Every call loads it anew, so schema, properties and credentials are those of the moment."""

    def __init__(
        self,
        spark: SparkSession | None,
        name: str,
        catalog: Catalog | None,
        policy: PolicyArgument,
        environment: Environment,
    ) -> None:
        if spark is None:
            handle = _handle_without_spark(name, catalog, policy)
            # wrong names and settings are told here, not by the first call
            handle.load()
            self._source = None
        else:
            from icesize.spark.stream import process_state

            token = process_state.remember_catalog(catalog) if catalog is not None else None
            source = process_state.TableSource(name, policy, token)
            handle, _ = process_state.handle_of(spark, source, process_state.state_of(source, None))
            self._source = replace(source, table_uuid=handle.load().uuid)
        super().__init__(spark, handle, environment)

    @property
    def policy(self) -> SizePolicy:
        """The policy that holds now: argument over table properties over Iceberg's properties over defaults."""
        return self._handle.load(self._environment).policy

    def inspect(self, where: Where = None) -> Inspection:
        """How well sized the files are; `where` limits it to partitions that match as a whole."""
        current, layout, notes = self._read(where)
        labels = Labels(current.table.metadata)
        return inspect_layout(
            current.name,
            layout,
            current.policy,
            {key: labels.values(key) for key in layout.partitions},
            bytes_per_partition_and_day(current.table.metadata),
            (*current.warnings, *notes),
        )

    def plan(self, where: Where = None) -> Plan:
        """What `compact` would do now, with a forecast of what it would copy and decode; changes nothing."""
        current, layout, notes = self._read(where)
        return _foreseen(noted(plan_merges(layout, current.policy), current, notes), current)

    def compact(
        self,
        where: Where = None,
        *,
        on_plan: Callable[[Plan], object] | None = None,
        progress: Progress = lambda size_bytes: None,
    ) -> Report:
        """Merge the small files of every partition to as few as possible, in one REPLACE commit.

        `on_plan` hears the plan before anything is done, `progress` the bytes of each finished group. Merges that
        failed are the first of the report's notes. Raises RewriteFailed when every one did, and EngineUnavailable when
        more than 1 GiB is to be merged and there is no Spark.
        """
        with self._lock:
            current, layout, notes = self._read(where)
            plan = noted(plan_merges(layout, current.policy), current, notes)
            if on_plan is not None:
                on_plan(_foreseen(plan, current))
            return self._maintain(current, layout, plan, notes, progress)

    def after_batch(self) -> Report:
        """Another writer has appended: merge what is due in the partitions changed since icesize last merged.

        Raises what `compact` raises.
        """
        with self._lock:
            current, layout, notes = self._read(None)
            changed = partitions_changed(current.table.metadata, current.table.io)
            plan = plan_merges(
                layout,
                current.policy,
                # what an earlier call had to leave is due again, although nothing has changed there
                touched=layout.partitions.keys() if changed is None else changed | _in_backlog(layout, current.policy),
                budget_bytes=current.policy.budget_for(_newest_bytes(current)),
            )
            return self._maintain(current, layout, plan, notes, lambda size_bytes: None)

    def maintain(self, budget_bytes: int | None = None, budget_seconds: float | None = None) -> UpkeepReport:
        """One bounded pass of all maintenance: cold partitions, compaction, manifests, expiry by the table's own rules,
        and a dry run of orphan cleanup.

        `budget_bytes` bounds what merges rewrite, `budget_seconds` when a step may begin. What one pass leaves the
        next goes on with. A step that fails is named in the report and the others run; raises CommitStateUnknown.
        """
        return Upkeep(self, self._environment, budget_bytes, budget_seconds).run()

    def merge_round(self, budget_bytes: int, cold_only: bool) -> Report | None:
        """Merge what `budget_bytes` pay for, in one commit: of cold partitions, or of all; None when nothing is due.

        Partitions that others change all the time are left alone, and named. Without Spark at most 1 GiB.
        """
        budget_bytes = self._affordable(budget_bytes)
        with self._lock:
            current, layout, notes = self._read(None)
            incoming: Mapping[PartitionKey, int] | None = {} if cold_only else None
            contested = self._handle.contested(current, self._environment)
            plan = plan_merges(
                layout, current.policy, incoming=incoming, budget_bytes=budget_bytes, contested=contested
            )
            waits = not cold_only and SkipReason.CONTESTED in plan.skipped_by_reason
            if not plan.groups and not waits:
                return None
            return self._maintain(current, layout, plan, notes, lambda size_bytes: None)

    def append(self, df: DataFrame, stream_id: str | None = None, batch_id: int | None = None) -> Report:
        """Append a DataFrame in few, well-sized files, and merge what that makes due, in one commit.

        With `stream_id` and `batch_id` it is done once however often it is called; without, each call appends.
        """
        from icesize.spark.stream.batch import BatchOptions, run_batch
        from icesize.spark.stream.process_state import state_of

        if (stream_id is None) != (batch_id is None):
            raise ValueError("Cannot append: 'stream_id' and 'batch_id' are given together or not at all")
        source = self._spark_source("append")
        if stream_id is not None and batch_id is not None:
            from icesize.spark.stream.sink import Sink

            return Sink(source, stream_id, environment=self._environment, query_id=stream_id).run(df, batch_id)
        return run_batch(df, BatchOptions(source, environment=self._environment), state_of(source, None))

    def sink(self, stream_id: str, **options: Any) -> Sink:
        """The function for `foreachBatch`. Options as in `icesize.Sink`: `placement` ("append", "absorb"),
        `stream_safe`, `merge` ("inline", "async", "off"), `statistics` ("auto", "recent", "exact"), `write_tasks`,
        `schema_evolution` ("refuse", "add"), `accept_new_checkpoint`, `expire_every`, `query_id`, `listener`, `cluster`
        ("off", "inline", "async").

        Raises EngineUnavailable on Spark Connect for a table opened with a catalog object that holds credentials: the
        sink is sent to the server, they must not be.
        """
        from icesize.spark.stream.process_state import for_its_server
        from icesize.spark.stream.sink import Sink

        source = self._spark_source("sink")
        source = for_its_server(cast("SparkSession", self._spark), source)
        return Sink(source, stream_id, environment=self._environment, **options)

    def streams(self) -> list[ledger.LedgerEntry]:
        """The streams that have committed to the table, each with its newest batch."""
        return ledger.entries(self._handle.load().table.metadata.properties)

    def forget_stream(self, stream_id: str) -> None:
        """Remove a stream from the ledger: its next batch is taken whatever its query and id.

        Raises TableError for an unknown stream, CommitConflict (nothing landed) or CommitStateUnknown.
        """
        change = ForgetStream(self.name, stream_id, self._environment)
        self._handle.change(self._handle.load(), change, self._environment)

    def _spark_source(self, what: str) -> Any:
        if self._source is None:
            raise EngineUnavailable(f"Cannot {what}: it needs Spark; open the table with a session")
        return self._source

    def _maintain(
        self, current: Current, layout: Layout, plan: Plan, notes: Sequence[str], progress: Progress
    ) -> Report:
        self._check_affordable(plan, "merge", "small files")

        def run(tasks: Sequence[MergeTask], settings: WriteSettings, prefix: str) -> list[Result]:
            if self._spark is None:
                return merge_in_threads(tasks, settings, prefix, progress=progress)
            from icesize.spark.engine.merge_job import run_merges

            return run_merges(self._spark, tasks, settings, prefix, threading.Event(), progress)

        failed = partial(all_failed, self.name, "compact")
        report = Maintenance(
            self._handle, current, layout, plan, run, self._environment, tuple(notes), on_failure=failed
        ).run()
        return self._seen(report) if report.snapshot_ids else report


def _handle_without_spark(name: str, catalog: Catalog | None, policy: PolicyArgument) -> TableHandle:
    if catalog is not None:
        return TableHandle(opening.with_timeout(catalog), loading.namespace_and_table(catalog, name), policy)
    catalog_name, identifier = loading.split_name(name)
    return TableHandle(opening.open_catalog(catalog_name), identifier, policy)


def _foreseen(plan: Plan, current: Current) -> Plan:
    if not plan.groups:
        return plan
    try:
        return replace(plan, forecast=forecast(plan.groups, current.settings()))
    except UnsupportedTable as error:
        return replace(plan, notes=(*plan.notes, str(error)))


def _in_backlog(layout: Layout, policy: SizePolicy) -> set[PartitionKey]:
    """Partitions with more mergeable small files than they may hold."""
    return {
        key
        for key, facts in layout.partitions.items()
        if sum(f.obstacle is None for f in facts.small) > policy.max_small_files
    }


def _newest_bytes(current: Current) -> int:
    """Bytes that the newest snapshot added: what the budget of `after_batch` grows with."""
    head = current.table.metadata.current_snapshot()
    summary: Mapping[str, str] = head.summary.additional_properties if head and head.summary else {}
    return int(summary.get("added-files-size", "0"))
