"""The clustering half of the facade: rows laid out for queries, beside whoever writes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from icesize.errors import EngineUnavailable, TableError
from icesize.maintenance import compaction
from icesize.maintenance.cluster_settings import ForgetClusterBy, ForgottenClusterBy, KeepClusterBy
from icesize.maintenance.clustering import ClusterLook, ClusterPass, wanted_by
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.tasks import MergeTask
from icesize.parquet.ordering.cluster_order import RowOrder
from icesize.parquet.rewriting.threads import Result
from icesize.planning.files import Layout
from icesize.planning.plan import Plan
from icesize.report import Report
from icesize.table.state.handle import Current
from icesize.table.state.where import NO_MATCH, PartitionFilter, Where, partition_filter
from icesize.units import format_bytes
from icesize.versioned_table import VersionedTable

Progress = Callable[[int], None]
Columns = Sequence[str] | None


class ClusteredTable(VersionedTable):
    """A table whose rows lie in an order that queries profit from."""

    @property
    def is_clustered(self) -> bool:
        """Whether the table says by which columns it is to be clustered; raises TableError, PolicyError."""
        return wanted_by(self._handle.load(self._environment)) is not None

    def cluster(
        self,
        by: Columns = None,
        strategy: str | None = None,
        where: Where = None,
        budget_bytes: int | None = None,
        *,
        on_plan: Callable[[Plan], object] | None = None,
        progress: Progress = lambda size_bytes: None,
    ) -> Report:
        """Lay rows out by the columns `by`, partition by partition, in one REPLACE commit.

        `strategy`: "sort" (the first column's queries profit most), "zorder" or "hilbert" (those of up to four columns
        alike). Both are remembered in the table's properties, a sort also as Iceberg's sort order, and are needed only
        the first time. Partitions that are in order are left alone, and new files until they have a fifth of the bytes
        of those that they are to join; with `budget_bytes` what pays most comes first. `on_plan` hears the plan before
        rows are moved, `progress` the bytes of each finished group.

        Raises TableError for columns that cannot be clustered by, PolicyError for a property that says nonsense,
        RewriteFailed when every partition failed, and EngineUnavailable when more than 1 GiB is to be written and there
        is no Spark.
        """
        with self._lock:
            by = _names(by)
            # what is refused is refused before anything is remembered
            look, plan = self._planned(by, strategy, where, budget_bytes)
            if on_plan is not None:
                on_plan(plan)
            self._check_affordable(plan, "cluster", "files")
            kept = self._handle.change(look.current, KeepClusterBy(look.by, self._environment), self._environment)
            if kept.changed:
                look, plan = self._planned(None, None, where, budget_bytes)
            told = kept.sentences
            return self._cluster(look, replace(plan, notes=(*told, *plan.notes)), progress, told)

    def forget_clustering(self) -> ForgottenClusterBy:
        """Take back what `cluster` has stored in the table: columns and strategy in its properties, and the sort order
        where a sort has set it. Files stay as they are, and nobody clusters them any more.

        Raises TableError for a table that does not say by what it is clustered.
        """
        with self._lock:
            return self._handle.change(self._handle.load(), ForgetClusterBy(self._environment), self._environment)

    def plan_clustering(
        self,
        by: Columns = None,
        strategy: str | None = None,
        where: Where = None,
        budget_bytes: int | None = None,
    ) -> Plan | None:
        """What `cluster` would do now; None when neither `by` nor the table says by which columns. Changes nothing."""
        by = _names(by)
        with self._lock:
            current = self._handle.load(self._environment)
            if wanted_by(current, by, strategy) is None:
                return None
            return self._planned(by, strategy, where, budget_bytes, current)[1]

    def cluster_round(self, budget_bytes: int, most_bytes: int | None = None) -> Report | None:
        """Cluster what `budget_bytes` pay for, or, where they pay for nothing, the least that `most_bytes` (None: no
        bound) pay for: a set is written as a whole. None when nothing is due, or the table is not to be clustered; a
        report without snapshots when something is, and is too large.

        Partitions that others change all the time are left alone. Without Spark at most 1 GiB.
        """
        with self._lock:
            current = self._handle.load(self._environment)
            if wanted_by(current) is None:
                return None
            current, layout, notes, selection = self._select(None, current)
            look = self._look(current, layout, selection, None, None)
            contested = self._handle.contested(current, self._environment)
            most_bytes = self._affordable(sys.maxsize if most_bytes is None else most_bytes)
            plan = noted(look.round(self._affordable(budget_bytes), most_bytes, contested), current, notes)
            return self._cluster(look, plan, lambda size_bytes: None, ()) if plan.is_due else None

    def _planned(
        self,
        by: Columns,
        strategy: str | None,
        where: Where,
        budget_bytes: int | None,
        loaded: Current | None = None,
    ) -> tuple[ClusterLook, Plan]:
        if budget_bytes is not None and budget_bytes < 0:
            raise ValueError(f"'budget_bytes' ({budget_bytes}) must be >= 0: leave it out for no bound")
        current, layout, notes, selection = self._select(where, loaded)
        look = self._look(current, layout, selection, by, strategy)
        return look, noted(look.plan(budget_bytes), current, notes)

    def _look(
        self, current: Current, layout: Layout, selection: PartitionFilter, by: Columns, strategy: str | None
    ) -> ClusterLook:
        wanted = wanted_by(current, by, strategy)
        if wanted is None:
            raise TableError(
                f"Cannot cluster '{current.name}': neither the argument 'by' nor the table's property "
                "'icesize.cluster.by' says by which columns",
                table=current.name,
            )
        return ClusterLook.at(self._handle, current, layout, wanted, selection.may_hold)

    def _cluster(self, look: ClusterLook, plan: Plan, progress: Progress, changed: Sequence[str]) -> Report:
        def run(
            tasks: Sequence[MergeTask], prefixes: Sequence[str], order: RowOrder, settings: WriteSettings
        ) -> list[Result]:
            from icesize.spark.clustering.run import run_clusters

            return run_clusters(self._spark, tasks, prefixes, order, settings, threading.Event(), progress)

        failed = partial(compaction.all_failed, self.name, "cluster", changed=changed)
        report = ClusterPass(self._handle, look, plan, run, self._environment, plan.notes, on_failure=failed).run()
        return self._seen(report) if report.snapshot_ids else report

    def _read(self, where: Where) -> tuple[Current, Layout, tuple[str, ...]]:
        return self._select(where)[:3]

    def _select(
        self, where: Where, loaded: Current | None = None
    ) -> tuple[Current, Layout, tuple[str, ...], PartitionFilter]:
        current = self._handle.load(self._environment) if loaded is None else loaded
        selection = partition_filter(current.table.metadata, where)
        layout = self._handle.reader(current.policy).read(current.table.metadata, current.table.io, selection.may_hold)
        chosen, partly = selection.select(layout)
        notes = (f"{partly:,} partitions match the filter only in part and were left out",) if partly else ()
        if where is not None and not chosen.partitions:
            notes = (NO_MATCH, *notes)
        return current, chosen, notes, selection

    def _affordable(self, budget_bytes: int) -> int:
        return budget_bytes if self._spark is not None else min(budget_bytes, compaction.MAX_BYTES_WITHOUT_SPARK)

    def _check_affordable(self, plan: Plan, what: str, files: str) -> None:
        if self._spark is None and plan.bytes_to_write > compaction.MAX_BYTES_WITHOUT_SPARK:
            raise EngineUnavailable(
                f"Cannot {what} {plan.bytes_to_write / 2**30:.1f} GiB of {files} without Spark: the bound is "
                f"{format_bytes(compaction.MAX_BYTES_WITHOUT_SPARK)}; open the table with a session, or choose fewer "
                "partitions (where=...)"
            )


def _names(by: Columns) -> Columns:
    """To be read more than once."""
    return by if by is None or isinstance(by, str) else list(by)


def noted(plan: Plan, current: Current, notes: Sequence[str]) -> Plan:
    """The plan with what the table's settings and the filter make worth knowing, each sentence once."""
    return replace(plan, notes=tuple(dict.fromkeys((*current.warnings, *notes, *plan.notes))))
