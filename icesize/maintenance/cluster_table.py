"""Clustering a table: what was asked for, what its properties say, or a round of a pass."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from icesize.errors import TableError
from icesize.maintenance.cluster_settings import keep_cluster_by
from icesize.maintenance.clustering import ClusterPass, ClusterScan, ClusterWork, wanted_by
from icesize.maintenance.table_context import Progress, Selection, TableContext
from icesize.parquet.files.data_file import Results
from icesize.planning.plan import Plan
from icesize.report import Report
from icesize.table.state.handle import Current
from icesize.table.state.where import Where

Columns = Sequence[str] | None


@dataclass(frozen=True)
class Wish:
    """What is asked of one call: by which columns (None: those that the table remembers) and how, where, and how much.

    Raises ValueError for a budget below 0.
    """

    by: Columns = None
    strategy: str | None = None
    where: Where = None
    budget_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.budget_bytes is not None and self.budget_bytes < 0:
            raise ValueError(f"'budget_bytes' ({self.budget_bytes}) must be >= 0: leave it out for no bound")


def is_clustered(context: TableContext) -> bool:
    """Whether the table says by which columns it is to be clustered; raises TableError, PolicyError."""
    return wanted_by(context.load()) is not None


def plan_clustering(context: TableContext, wish: Wish) -> Plan | None:
    """What `cluster` would do; None when neither the wish nor the table says by which columns."""
    current = context.load()
    if wanted_by(current, wish.by, wish.strategy) is None:
        return None
    return _planned(context, wish, current)[1]


def cluster(context: TableContext, wish: Wish, on_plan: Callable[[Plan], object] | None, progress: Progress) -> Report:
    """Remember the columns in the table and lay its rows out by them; what is refused is refused before anything is
    remembered."""
    scan, plan = _planned(context, wish)
    if on_plan is not None:
        on_plan(plan)
    context.check_affordable(plan, "cluster")
    keep = keep_cluster_by(scan.by, context.environment.new_id())
    kept = context.handle.change(scan.current, keep, context.environment)
    if kept.stored:
        scan, plan = _planned(context, replace(wish, by=None, strategy=None))
    plan = replace(plan, notes=(*kept.sentences, *plan.notes))
    return _run(context, scan, plan, progress, kept.sentences)


def cluster_round(context: TableContext, budget_bytes: int, most_bytes: int | None) -> Report | None:
    """Cluster what `budget_bytes` pay for, or, where they pay for nothing, the least that `most_bytes` (None: no
    bound) pay for: a set is written as a whole. None when nothing is due, or the table is not to be clustered; a
    report without snapshots when something is, and is too large.

    Partitions that other writers change all the time are left alone.
    """
    current = context.load()
    if wanted_by(current) is None:
        return None
    selection = context.select(None, current)
    scan = _scan(context, selection, Wish())
    contested = context.handle.contested(current, context.environment)
    most_bytes = context.affordable(sys.maxsize if most_bytes is None else most_bytes)
    plan = selection.noted(scan.round(context.affordable(budget_bytes), most_bytes, contested))
    return _run(context, scan, plan) if plan.is_due else None


def _planned(context: TableContext, wish: Wish, current: Current | None = None) -> tuple[ClusterScan, Plan]:
    selection = context.select(wish.where, current)
    scan = _scan(context, selection, wish)
    return scan, selection.noted(scan.plan(wish.budget_bytes))


def _scan(context: TableContext, selection: Selection, wish: Wish) -> ClusterScan:
    current = selection.current
    wanted = wanted_by(current, wish.by, wish.strategy)
    if wanted is None:
        raise TableError(
            f"Cannot cluster '{current.name}': neither the argument 'by' nor the table's property "
            "'icesize.cluster.by' says by which columns",
            table=current.name,
        )
    return ClusterScan.at(context.handle, current, selection.layout, wanted, selection.filter.may_hold)


def _run(
    context: TableContext,
    scan: ClusterScan,
    plan: Plan,
    progress: Progress = lambda size_bytes: None,
    changed: Sequence[str] = (),
) -> Report:
    def run(work: ClusterWork) -> Results:
        return context.engine.cluster(work, progress)

    outcome = ClusterPass(context.handle, scan, plan, run, context.environment, notes=plan.notes).run()
    return context.report(outcome, "cluster", changed)
