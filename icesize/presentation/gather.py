"""Reads the values of an overview from manifests and metadata of one loaded state of a table."""

from __future__ import annotations

from icesize.errors import TableError
from icesize.maintenance.jobs.compaction import plan_of
from icesize.maintenance.passes.inspecting import inspect_selected
from icesize.maintenance.table_context import Selection, TableContext
from icesize.planning.insight.trends import FileSizes, PastState, Trends, file_sizes
from icesize.planning.plan import Plan
from icesize.presentation.facts import Comparison, advice_for
from icesize.presentation.overview import Overview
from icesize.table.catalog.access_errors import readable
from icesize.table.past.commits import history_of
from icesize.table.past.past_states import chosen_snapshots, past_states
from icesize.table.state.naming import known_snapshot
from icesize.units import format_time

MOST_PARTITIONS = 1_000
"""Partitions that an overview names, those with the most small files and delete files first."""


def gather(context: TableContext, since: int | str | None) -> Overview:
    """Return an overview of a whole table; compare file sizes with those at the snapshot `since`.

    Raises TableError if the table does not have the snapshot, or storage does not have its manifests.
    """
    selection = context.select()
    with readable(selection.current.name):
        return _overview(selection, since, context.environment.now_ms())


def _overview(selection: Selection, since: int | str | None, now_ms: int) -> Overview:
    table, inspection = selection.current.table, inspect_selected(selection)
    plan = plan_of(selection)
    history = history_of(table.metadata, selection.current.name)
    limit_bytes = selection.layout.small_file_limit_bytes
    chosen = chosen_snapshots(table.metadata, history)
    states, unreadable = past_states(table.metadata, table.io, chosen, limit_bytes)
    if since is None:
        sizes = _compared(selection, plan, states)
    else:
        before, _ = past_states(table.metadata, table.io, [known_snapshot(table.metadata, since)], limit_bytes)
        if not before:
            raise TableError(f"Cannot read snapshot {since}: storage does not give its manifests", snapshot_id=since)
        sizes = _with_now(selection, before[0])
    return Overview(
        made_ms=now_ms,
        inspection=inspection,
        plan=plan,
        history=history,
        trends=Trends.of(states, MOST_PARTITIONS, unreadable),
        sizes=sizes,
        advice=advice_for(inspection, plan, history),
    )


def _compared(selection: Selection, plan: Plan, states: list[PastState]) -> Comparison:
    """Return file sizes now and after the plan; if the plan changes nothing, those of the worst known state and now."""
    now = file_sizes(selection.layout)
    worst = max(states, key=lambda state: sum(state.sizes[:-1]), default=None)
    if plan.groups or worst is None or sum(worst.sizes[:-1]) <= now.small:
        return Comparison(now, "now", file_sizes(selection.layout, plan), "after `icesize compact`")
    return _with_now(selection, worst)


def _with_now(selection: Selection, past: PastState) -> Comparison:
    now = file_sizes(selection.layout)
    return Comparison(FileSizes(now.bounds, past.sizes), f"on {format_time(past.timestamp_ms)} UTC", now, "now")
