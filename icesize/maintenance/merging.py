"""Merging small files of a table that nobody writes to right now: all of them, what is due, or a round of a pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from icesize.errors import UnsupportedTable
from icesize.maintenance.compaction import Maintenance
from icesize.maintenance.table_context import Progress, Selection, TableContext
from icesize.parquet.files.data_file import Results
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.rewriting.forecast import forecast
from icesize.planning.files import Layout, PartitionKey, SkipReason
from icesize.planning.merging.planner import plan_merges
from icesize.planning.plan import MergeGroup, Plan
from icesize.policy import SizePolicy
from icesize.report import Report
from icesize.table.catalog.history import summary_of
from icesize.table.state.handle import Current
from icesize.table.state.partition_changes import partitions_changed
from icesize.table.state.where import Where


def plan_compaction(selection: Selection) -> Plan:
    """What `compact` would do, with a forecast of what it would copy and decode."""
    plan = selection.noted(plan_merges(selection.layout, selection.current.policy))
    if not plan.groups:
        return plan
    try:
        return replace(plan, forecast=forecast(plan.groups, selection.current.settings()))
    except UnsupportedTable as error:
        return replace(plan, notes=(*plan.notes, str(error)))


def compact(
    context: TableContext, where: Where, on_plan: Callable[[Plan], object] | None, progress: Progress
) -> Report:
    """Merge the small files of every partition that matches; `on_plan` hears the plan with its forecast before."""
    selection = context.select(where)
    plan = selection.noted(plan_merges(selection.layout, selection.current.policy))
    if on_plan is not None:
        on_plan(plan_compaction(selection))
    return _merge(context, selection, plan, progress)


def merge_changed(context: TableContext) -> Report:
    """Merge what is due in partitions that got files since icesize last merged, and what earlier calls had to leave."""
    selection = context.select()
    current, layout, policy = selection.current, selection.layout, selection.current.policy
    changed = partitions_changed(current.table.metadata, current.table.io)
    touched = layout.partitions.keys() if changed is None else changed | _with_backlog(layout, policy)
    plan = plan_merges(layout, policy, touched=touched, budget_bytes=policy.budget_for(_newest_bytes(current)))
    return _merge(context, selection, plan)


def merge_round(context: TableContext, budget_bytes: int, *, cold_only: bool) -> Report | None:
    """Merge what the budget pays for, of cold partitions or of all; None when nothing is due.

    Partitions that other writers change all the time are left alone, and named.
    """
    selection = context.select()
    incoming: Mapping[PartitionKey, int] | None = {} if cold_only else None
    plan = plan_merges(
        selection.layout,
        selection.current.policy,
        incoming=incoming,
        budget_bytes=context.affordable(budget_bytes),
        contested=context.handle.contested(selection.current, context.environment),
    )
    waits = not cold_only and SkipReason.CONTESTED in plan.skipped_by_reason
    return _merge(context, selection, plan) if plan.groups or waits else None


def _merge(
    context: TableContext, selection: Selection, plan: Plan, progress: Progress = lambda size_bytes: None
) -> Report:
    context.check_affordable(plan, "merge")

    def run(groups: Mapping[int, MergeGroup], settings: WriteSettings, prefix: str) -> Results:
        return context.engine.merge(groups, settings, prefix, progress)

    outcome = Maintenance(
        context.handle, selection.current, selection.layout, plan, run, context.environment, selection.notes
    ).run()
    return context.report(outcome, "compact")


def _with_backlog(layout: Layout, policy: SizePolicy) -> set[PartitionKey]:
    """Partitions with more mergeable small files than they may hold."""
    return {
        key
        for key, facts in layout.partitions.items()
        if sum(f.obstacle is None for f in facts.small) > policy.max_small_files
    }


def _newest_bytes(current: Current) -> int:
    """Bytes that the newest snapshot added: what the budget grows with."""
    head = current.table.metadata.current_snapshot()
    return int((head and summary_of(head, "added-files-size")) or 0)
