"""Merges small files without new rows: all of them, those that are due, or one round of a pass.

The steps are those of a batch that has nothing to write. This module does not use Spark; the caller passes the engine
that runs merges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from icesize.errors import CommitConflict, CommitStateUnknown, UnsupportedTable
from icesize.events import Planned
from icesize.maintenance.rounds import (
    Budget,
    RoundsEnd,
    as_they_are,
    can_end,
    carried_out,
    ended_by,
    noting_rounds,
)
from icesize.maintenance.table_context import Advance, Selection, TableContext
from icesize.planning.deletes.delete_plan import DeleteRewrite, plan_delete_rewrites
from icesize.planning.deletes.delete_reach import is_due
from icesize.planning.files import Layout, PartitionKey, SkipReason
from icesize.planning.merging.groups import MergeBudget
from icesize.planning.merging.moves import plan_moves
from icesize.planning.merging.planner import Occasion, plan_merges
from icesize.planning.merging.standing import standing_of
from icesize.planning.plan import MergeTask, Plan
from icesize.policy import SizePolicy
from icesize.report import Report
from icesize.table.catalog.history import head_snapshot, summary_of
from icesize.table.commit.batch_commit import rewrite
from icesize.table.commit.batch_report import WrittenBatch
from icesize.table.state.handle import Current
from icesize.table.state.partition_changes import partitions_changed
from icesize.table.state.where import Where
from icesize.units import format_count

if TYPE_CHECKING:
    from icesize.maintenance.jobs.rewrite_deletes import DeletesReport

_KEYS_SHARE = 8
"""Limit for reading key columns to rewrite delete files, in budgets of a batch.

Equality deletes need the key columns of their data files. These columns have about an eighth of the bytes, so data
files of 8 budgets cost about one budget of reading.
"""

_GROWING_MS = 3_600_000
"""Time after its newest rows during which a partition is expected to grow, in milliseconds.

An hour is the time between two passes of most schedules.
"""

_WAITS = SkipReason.CONTESTED, SkipReason.OVER_BUDGET


def plan_compaction(
    context: TableContext, where: Where, budget_bytes: int | None, *, into_current_spec: bool = False
) -> Plan:
    """Return the plan of `compact`, with a forecast of the bytes that it would copy and decode.

    With `into_current_spec`, it is the plan of the moves if there are any.
    """
    if into_current_spec and (moves := _moves(context, where, budget_bytes)).groups:
        return moves
    return plan_of(context.select(where), budget_bytes)


def plan_of(selection: Selection, budget_bytes: int | None = None) -> Plan:
    """Return the plan of the merges of a selection, with a forecast."""
    return _forecast(selection, _planned(selection, budget_bytes, moves=False))


def _moves(context: TableContext, where: Where, budget_bytes: int | None) -> Plan:
    selection = context.select(where, old_specs_only=True)
    return _forecast(selection, _planned(selection, budget_bytes, moves=True))


def _planned(selection: Selection, budget_bytes: int | None, *, moves: bool) -> Plan:
    """Return the moves or the merges of a selection within a budget that none of them exceeds."""
    layout, policy = selection.layout, selection.current.policy
    if moves:
        return plan_moves(layout, policy, budget_bytes)
    return plan_merges(layout, policy, budget=MergeBudget.hard(budget_bytes))


def _forecast(selection: Selection, plan: Plan) -> Plan:
    plan = selection.noted(plan)
    if not plan.groups:
        return plan
    from icesize.parquet.rewriting.forecast import forecast  # slow: imports all ways to merge

    try:
        return replace(plan, forecast=forecast(plan.groups, selection.current.settings()))
    except UnsupportedTable as error:
        return replace(plan, notes=(*plan.notes, str(error)))


def compact(context: TableContext, where: Where, budget: Budget, *, into_current_spec: bool = False) -> Report:
    """Merge the small files of every matching partition, as `_Rounds.run` does.

    With `into_current_spec`, the rows of old partition specs are moved first, within the same budget. The report then
    has an error of the merges.
    """
    began = context.environment.monotonic()
    moves = _Rounds.of(context, where, budget, moves=True) if into_current_spec else None
    if moves is None or not moves.whole.groups:
        return _Rounds.of(context, where, budget, moves=False).run()
    moved = moves.run()
    left = None if budget.size_bytes is None else max(0, budget.size_bytes - moved.bytes_written)
    rest = replace(budget, size_bytes=left).after(context.environment.monotonic() - began)
    try:
        merged = None if rest.seconds == 0 else _Rounds.of(context, where, rest, moves=False).run()
    except Exception as error:
        if not can_end(error) or not moved.snapshot_ids:
            raise
        before = error.report if isinstance(error, CommitStateUnknown) else None
        return ended_by(error, Report.together([moved, before]) if isinstance(before, Report) else moved)
    return Report.together([moved, merged]) if merged else moved


@dataclass(frozen=True)
class _Rounds:
    """A plan of merges, or of `moves`, within a budget, in the partitions that match `where`."""

    context: TableContext
    where: Where
    budget: Budget
    moves: bool
    selection: Selection
    whole: Plan
    is_late: Callable[[], bool]

    @classmethod
    def of(cls, context: TableContext, where: Where, budget: Budget, *, moves: bool) -> _Rounds:
        """Plan what the budget allows."""
        is_late = budget.started(context.environment)
        selection = context.select(where, context.numbered(), old_specs_only=moves)
        whole = noting_rounds(_planned(selection, budget.size_bytes, moves=moves), context.engine.most_bytes)
        return cls(context, where, budget, moves, selection, whole, is_late)

    def run(self) -> Report:
        """Run the plan; the observer gets it with its forecast first.

        If the work exceeds the bytes that the engine rewrites before one commit, or has a time limit, it runs in rounds
        with a commit each. No later round begins after the time limit or after a change of the partition spec. The
        report notes the remaining work, also after an error of a later round.

        A round in which every merge fails does not stop the others. Raises RewriteFailed if there is no other, and
        CommitStateUnknown with the attribute `report` of the rounds before.
        """
        context, whole = self.context, self.whole
        context.environment.observe(Planned(lambda: _forecast(self.selection, whole)))
        advance = context.advance("merges", whole.bytes_to_write)

        def run(groups: Sequence[MergeTask], is_first: bool) -> Report:
            now = self.selection if is_first else self._again()
            owned = now.layout.partitions.some(dict.fromkeys(group.partition for group in groups))
            files = (file for facts in owned.values() for file in facts.small + facts.large)
            plan, lost = as_they_are(whole, groups, now.layout, files)
            report = _merge(context, now, plan, advance)
            return replace(report, conflicts=(*lost, *report.conflicts))

        most_bytes = context.engine.most_bytes if self.budget.seconds is None else context.round_bytes()
        return carried_out(whole.groups, most_bytes, run, Report.together)

    def _again(self) -> Selection:
        """Return the newest state. Raises RoundsEnd if no further round is possible."""
        if self.is_late():
            raise RoundsEnd(f"the budget of {self.budget.seconds:g} s is used up")
        now = self.context.select(self.where, old_specs_only=self.moves)
        if now.layout.spec_id != self.selection.layout.spec_id:
            raise RoundsEnd("another writer changed the partition spec")
        return now


def merge_changed(context: TableContext) -> Report:
    """Merge the files that are due after commits of other writers.

    These are files in partitions that changed since icesize last merged, and the backlog of earlier calls. Files with
    due deletes are rewritten in every partition. If only the number of delete files is too large, icesize rewrites the
    delete files instead. It does so only if the bytes to read are in proportion to the budget.
    """
    selection, plan, rewrites = _changed(context, context.numbered())
    report = _merge(context, selection, plan)
    max_delete_files = selection.current.policy.max_delete_files
    return _with_few_deletes(context, report, rewrites, max_delete_files) if rewrites else report


def plan_changed(context: TableContext) -> Plan:
    """Return the merges of `merge_changed`, with a forecast."""
    selection, plan, _ = _changed(context)
    return _forecast(selection, plan)


def _changed(context: TableContext, current: Current | None = None) -> tuple[Selection, Plan, list[DeleteRewrite]]:
    selection = context.select(current=current)
    current, layout, policy = selection.current, selection.layout, selection.current.policy
    changed = partitions_changed(current.table.metadata, current.table.io, context.handle.store)
    touched = layout.partitions.keys() if changed is None else changed | _with_backlog(layout, policy)
    newest = head_snapshot(current.table.metadata)
    # the budget grows with the bytes of the newest commit
    new_bytes = int((newest and summary_of(newest, "added-files-size")) or 0)
    budget_bytes = context.affordable(policy.budget_for(new_bytes))
    rewrites = [r for r in plan_delete_rewrites(layout, policy) if r.size_by_equality <= _KEYS_SHARE * budget_bytes]
    plan = plan_merges(
        layout, policy, Occasion.COMMIT, dict.fromkeys(touched, 0),
        budget=MergeBudget(budget_bytes, policy.merge_budget_bytes), excluded_paths=_due(rewrites),
    )  # fmt: skip
    return selection, plan, rewrites


def _with_few_deletes(
    context: TableContext, report: Report, rewrites: Sequence[DeleteRewrite], most_deletes: int
) -> Report:
    """Rewrite delete files after the commit of the merges; add their outcome or their error to the report."""
    from icesize.maintenance.jobs.rewrite_deletes import DeletesReport, rewrite_deletes  # slow: imports the writers

    try:
        deletes = rewrite_deletes(context, only={rewrite.partition for rewrite in rewrites})
    except Exception as error:
        may_be_first = isinstance(error, (CommitConflict, CommitStateUnknown))
        if not can_end(error) or not (report.snapshot_ids or may_be_first):
            raise
        before = error.report if isinstance(error, CommitStateUnknown) else None
        if isinstance(before, DeletesReport):
            report = _with_deletes(report, before, report.delete_files_max)
        return ended_by(error, report)
    return _with_deletes(report, deletes, most_deletes)


def _with_deletes(report: Report, deletes: DeletesReport, most_deletes: int) -> Report:
    """Combine both reports; `most_deletes` is the number of delete files per data file that rewrites leave."""
    notes, most = deletes.notes, report.delete_files_max
    if deletes.snapshot_ids:
        of = f"{format_count(deletes.files_removed, 'delete file')} of {format_count(deletes.data_files, 'file')}"
        notes = (f"{of} became {deletes.files_added:,}", *notes)
    left = deletes.conflicts or not deletes.snapshot_ids
    return replace(
        report,
        snapshot_ids=report.snapshot_ids + deletes.snapshot_ids,
        operations=report.operations + deletes.operations,
        delete_files_max=most if left else min(most, most_deletes),
        conflicts=(*report.conflicts, *deletes.conflicts),
        notes=tuple(dict.fromkeys((*report.notes, *notes))),
    )


def merge_round(
    context: TableContext, bytes_left: int | None, damaged: Collection[PartitionKey], *, cold_only: bool
) -> Report | None:
    """Merge within the bytes left, in cold partitions or in all but the `damaged` ones; return None if nothing is due.

    If merges are due but too large, the report has no snapshots.

    Partitions that other writers change constantly are skipped and reported. Files whose delete files a later step
    rewrites are also skipped. A partition that was merged before and still grows keeps up to `max-small-files` small
    files. If each of many passes merged these to one file, the same rows would be written as often.
    """
    selection = context.select(current=context.numbered()).without(damaged)
    budget = MergeBudget(context.round_bytes(bytes_left), bytes_left)
    plan = plan_of_round(context, selection, budget, cold_only=cold_only)
    waits = not cold_only and not plan.skipped_by_reason.keys().isdisjoint(_WAITS)
    if not (plan.groups or waits):
        return None
    return _merge(context, selection, plan)


def move_round(context: TableContext, bytes_left: int | None, damaged: Collection[PartitionKey]) -> Report | None:
    """Move rows of old partition specs, except of the `damaged` partitions, within the bytes left.

    Return None if nothing is due, or if the policy does not want it.
    """
    current = context.numbered()
    if not current.policy.into_current_spec:
        return None
    selection = context.select(current=current, old_specs_only=True).without(damaged)
    contested = context.handle.contested(current, context.environment)
    plan = plan_moves(selection.layout, current.policy, context.round_bytes(bytes_left), contested=contested)
    return _merge(context, selection, plan) if plan.is_due else None


def plan_rounds(context: TableContext, budget_bytes: int | None) -> Plan:
    """Return the plan of all such rounds for the table in its current state, with a forecast.

    If rows have to be moved first, it is the plan of that.
    """
    selection = context.select()
    if selection.current.policy.into_current_spec and (moves := _moves(context, None, budget_bytes)).groups:
        return moves
    return _forecast(selection, plan_of_round(context, selection, MergeBudget.hard(budget_bytes)))


def plan_of_round(
    context: TableContext,
    selection: Selection,
    budget: MergeBudget,
    *,
    cold_only: bool = False,
    contested: Collection[PartitionKey] | None = None,
) -> Plan:
    """Return the merges of one round within its budget, without a forecast.

    `contested` partitions are left alone; None looks for those that other writers change constantly.
    """
    layout, current = selection.layout, selection.current
    return plan_merges(
        layout,
        current.policy,
        Occasion.BATCH if cold_only else Occasion.MAINTENANCE,
        {} if cold_only else dict.fromkeys(_growing(context, selection), 0),
        budget=budget,
        contested=context.handle.contested(current, context.environment) if contested is None else contested,
        excluded_paths=_due(plan_delete_rewrites(layout, current.policy)),
    )


def _growing(context: TableContext, selection: Selection) -> list[PartitionKey]:
    """Return the partitions with merged small files that are expected to receive more rows."""
    since_ms = context.environment.now_ms() - _GROWING_MS
    snapshots = selection.current.table.metadata.snapshots
    recent = [s.sequence_number for s in snapshots if s.timestamp_ms >= since_ms and s.sequence_number is not None]
    return selection.layout.growing(min(recent), selection.current.policy.cold_after_commits) if recent else []


def _due(rewrites: Iterable[DeleteRewrite]) -> set[str]:
    """Return the files that are due only for the number of their delete files, which costs less to reduce directly."""
    return {file.path for rewrite in rewrites for file in rewrite.due}


def _merge(context: TableContext, selection: Selection, plan: Plan, advance: Advance | None = None) -> Report:
    planned = WrittenBatch(selection.current, selection.layout, selection.noted(plan))
    advance = advance or context.advance("merges", plan.bytes_to_write)
    runner = partial(context.engine.merge, advance=advance)
    return context.report(rewrite(context.handle, planned, runner, context.environment), "compact")


def _with_backlog(layout: Layout, policy: SizePolicy) -> set[PartitionKey]:
    """Return the partitions with more mergeable small files than allowed, or with deletes that are due."""
    standing = standing_of(layout, policy)
    owed = layout.partitions.some(standing.outcomes.keys() | standing.due.keys()) if standing else layout.partitions
    return {
        key
        for key, facts in owed.items()
        if sum(f.obstacle is None for f in facts.small) > policy.max_small_files
        or any(f.obstacle is None and is_due(f, policy) for f in facts.with_deletes)
    }
