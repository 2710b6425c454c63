"""Plan from a layout and a policy: the small files to merge now, the files with due deletes, and the reasons of the
rest.

Hot partitions (a batch writes to them) keep k small files, for as few rewritten bytes as `choose_prefix` finds. Cold
partitions and maintenance go down to the fewest files, so that at most one small file is left. A pass that runs often
leaves k small files in partitions that are known to grow (`Layout.growing`). Several outputs are planned only if none
of them is small again, so that a second plan is empty. Files with due deletes (`delete_reach.is_due`) join these
merges, or are rewritten alone if they are large enough without their deleted rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from enum import Enum, auto
from itertools import islice
from types import MappingProxyType

from icesize.planning.deletes.delete_reach import delete_files_freed
from icesize.planning.file_sizes import least_output_bytes
from icesize.planning.files import FileFact, Layout, PartitionFacts, PartitionKey, SkipReason, cannot_merge
from icesize.planning.merging.chosen_files import choose_prefix
from icesize.planning.merging.groups import (
    UNLIMITED,
    MergeBudget,
    Work,
    by_size,
    fit_into_budget,
    groups_of,
    outputs_per_group,
    within_budget,
)
from icesize.planning.merging.standing import (
    Standing,
    partition_outcome,
    skipped_of,
    standing_of,
    turns_cold,
    work_of,
)
from icesize.planning.plan import MergeTask, PartitionOutcome, Plan, Untouched, ineligible_partitions
from icesize.policy import SizePolicy
from icesize.units import format_bytes, format_count

MOST_COLD = 1_000
"""Cold partitions with files to merge that one batch looks at: 50 ms of planning.

A table that was never maintained can have hundreds of thousands; the budget of a batch pays for few of them.
"""


class Occasion(Enum):
    """The occasion of a plan, which decides which partitions are merged besides the hot ones."""

    BATCH = auto()
    """A batch is about to add files to the hot partitions. Cold ones are merged to the fewest files."""
    COMMIT = auto()
    """A commit has added rows to the hot partitions, and their files are in the layout. All others stay."""
    MAINTENANCE = auto()
    """All others are merged to the fewest files; the hot ones are known to grow."""


def plan_merges(
    layout: Layout,
    policy: SizePolicy,
    occasion: Occasion = Occasion.MAINTENANCE,
    hot: Mapping[PartitionKey, int] = MappingProxyType({}),
    *,
    budget: MergeBudget = UNLIMITED,
    contested: Collection[PartitionKey] = (),
    excluded_paths: Collection[str] = (),
) -> Plan:
    """Plan which files of `layout` are merged now; the plan does not depend on the order of files and partitions.

    The `hot` partitions are reduced to `max_small_files`, with the number of files that a batch is about to add to each
    of them, all taken as small. What is done with the others depends on the `occasion`.

    A merge applies the due deletes of its files, except those of files at `excluded_paths`, whose delete files the
    caller rewrites. Partitions in `contested` stay, because other writers keep rewriting them. A merge that exceeds
    `budget.most_bytes` is planned for those of its smallest files that fit.

    If the layout has a `standing` summary for the policy, a plan for a batch or a commit looks only at partitions in
    which something may be due. All others are in the plan as `untouched`.
    """
    finishes = occasion is Occasion.BATCH
    standing = None if occasion is Occasion.MAINTENANCE or excluded_paths else standing_of(layout, policy)
    candidates = _candidates(layout, standing, {*hot, *contested}, finishes) if standing else None
    looked_up = layout.partitions if candidates is None else layout.partitions.some(candidates)
    in_order = sorted(looked_up.values(), key=lambda facts: facts.key.rank)
    works = [work_of(facts, policy, contested, frozenset(excluded_paths)) for facts in in_order]
    untouched, others = standing.untouched(in_order) if standing else (Untouched(), ())
    planned = [work for work in works if _is_planned(work, layout, policy, occasion, hot)]
    for work in planned:
        _find_due(work, policy, budget)
    looked_at = {work.facts.key for work in planned}
    if finishes:
        with_many = (other.partition for other in others if other.delete_files > policy.max_delete_files)
        asked_about = layout.partitions.some(with_many)
        looked_at |= {key for key, facts in asked_about.items() if _is_cold(layout, facts, policy)}
    groups = within_budget(works, policy, budget)
    outcomes = (*_outcomes(works, policy, hot), *others)
    too_large = _too_large([group for work in works for group in work.too_large], budget)
    return replace(
        Plan.empty(layout, policy),
        groups=groups,
        skipped=tuple(skip for work in works for skip in skipped_of(work)),
        outcomes=outcomes,
        notes=(*_notes(policy, groups, outcomes, budget, looked_at), *too_large),
        incoming=dict(hot),
        delete_files_freed=delete_files_freed(layout, (file for group in groups for file in group.inputs)),
        untouched=untouched,
    )


def _is_planned(
    work: Work, layout: Layout, policy: SizePolicy, occasion: Occasion, hot: Mapping[PartitionKey, int]
) -> bool:
    """Return whether files of a partition are merged on this occasion, and set how many small ones may remain."""
    key = work.facts.key
    if key in hot:
        work.slots = max(0, policy.max_small_files - hot[key])
    elif occasion is Occasion.BATCH:
        work.cold = _is_cold(layout, work.facts, policy)
        return work.cold
    return key in hot or occasion is Occasion.MAINTENANCE


def _candidates(
    layout: Layout, standing: Standing, keys: Collection[PartitionKey], finishes: bool
) -> set[PartitionKey]:
    """Return the partitions in which something may be due: those of `keys`, and cold ones if the plan finishes them."""
    known = {key for key in keys if key in layout.partitions}
    if not finishes:
        return known
    # the newest first: older ones whose merges exceed the budget would take each other's turn again and again
    newest = layout.partitions.newest
    waited = (key for _, key in standing.unfinished.up_to(layout.now + 1))
    cold = (key for key in waited if _is_quiet(layout, newest[key], standing.policy))
    return known.union(islice(cold, MOST_COLD))


def _is_cold(layout: Layout, facts: PartitionFacts, policy: SizePolicy) -> bool:
    """Return whether a partition is cold after a batch without rows for it: the commit of the batch also counts."""
    return turns_cold(facts.arrivals, policy) <= layout.now + 1 and _is_quiet(layout, facts.newest, policy)


def _is_quiet(layout: Layout, newest: int, policy: SizePolicy) -> bool:
    return layout.commits_since(newest) + 1 >= policy.cold_after_commits


def _find_due(work: Work, policy: SizePolicy, budget: MergeBudget) -> None:
    """Set the files of a partition that are merged now: the smallest ones, and all with due deletes."""
    least_bytes, most_outputs = least_output_bytes(policy.small_file_limit_bytes), outputs_per_group(policy, budget)
    shrunk = [file for file in work.large if file.live_bytes < least_bytes]
    # their sizes are right without their deleted rows
    alone = sorted((file for file in work.large if file.live_bytes >= least_bytes), key=by_size)
    ranked = sorted([*work.mergeable, *shrunk], key=by_size) if shrunk else work.mergeable
    prefix = _prefix(ranked, policy, work.slots)
    due = (file for file in ranked[prefix:] if work.is_due(file, policy))
    work.due = groups_of(work, [*ranked[:prefix], *due], policy, most_outputs)
    work.due += [MergeTask((file,), work.facts.key, 1, work.facts.label, work.cold) for file in alone]
    if budget.most_bytes is not None:
        fit_into_budget(work, policy, most_outputs, budget.most_bytes)


def _prefix(ranked: list[FileFact], policy: SizePolicy, slots: int | None) -> int:
    """Return how many of the smallest files are merged because of their number."""
    count = len(ranked)
    if count < 2:
        return 0
    if not slots:
        return count
    sizes = [file.live_bytes if file.deleted_rows else file.size_bytes for file in ranked]
    return choose_prefix(sizes, policy.small_file_limit_bytes, slots)


def _outcomes(
    works: list[Work], policy: SizePolicy, incoming: Mapping[PartitionKey, int]
) -> Iterator[PartitionOutcome]:
    """Yield the small files of each partition after plan and batch; partitions that the batch creates come last."""
    for work in works:
        outcome = partition_outcome(work, policy, incoming.get(work.facts.key, 0))
        if outcome.small_files or outcome.ineligible or outcome.delete_files:
            yield outcome
    known = {work.facts.key for work in works}
    for key, files in sorted(incoming.items(), key=lambda item: item[0].rank):
        if key not in known and files:
            yield PartitionOutcome(key, key.label, files, {})


def _beyond_help(policy: SizePolicy, outcomes: tuple[PartitionOutcome, ...]) -> Iterator[str]:
    """Yield one sentence about all partitions with too many files that no merge takes.

    After a change of the partition spec, these are most partitions of the table.
    """
    stuck = list[tuple[str, Counter[SkipReason]]]()
    for outcome in ineligible_partitions(outcomes):
        # a contested partition is merged later, and reports count its files as they are
        for_good = Counter[SkipReason](outcome.ineligible)
        del for_good[SkipReason.CONTESTED]
        if for_good.total() > policy.max_small_files:
            stuck.append((outcome.label or "the table", for_good))
    if not stuck:
        return
    total = sum((for_good for _, for_good in stuck), Counter[SkipReason]())
    where = stuck[0][0] if len(stuck) == 1 else f"{len(stuck):,} partitions"
    # the order of partitions must not show in the sentence
    ranked = sorted(total.items(), key=lambda item: (-item[1], item[0].value))
    reasons = ", ".join(f"{reason.value} {count:,}" for reason, count in ranked)
    yield (
        f"{where}: {total.total():,} small files are ineligible ({reasons}), more than 'max-small-files' "
        f"({policy.max_small_files}){' in each' if len(stuck) > 1 else ''}: {cannot_merge(total)}"
    )


def _too_large(groups: list[MergeTask], budget: MergeBudget) -> Iterator[str]:
    """Yield one sentence about all merges that do not fit into the budget, with the budget that the largest needs."""
    if groups and budget.most_bytes:
        largest = max(groups, key=lambda group: group.size_bytes)
        yield (
            f"{format_count(len(groups), 'merge')} cannot be done as a whole within {format_bytes(budget.most_bytes)}: "
            f"the largest, in {largest.label or 'the table'}, needs a budget of {format_bytes(largest.size_bytes)}"
        )


def _notes(
    policy: SizePolicy,
    groups: tuple[MergeTask, ...],
    outcomes: tuple[PartitionOutcome, ...],
    budget: MergeBudget,
    looked_at: Collection[PartitionKey],
) -> Iterator[str]:
    if not policy.merging:
        yield "merging is off: 'small-file-limit-bytes' is 0, so small files stay as they are"
    yield from _beyond_help(policy, outcomes)
    for group in groups:
        if (budget_bytes := budget.limit_bytes) is not None and group.size_bytes > budget_bytes:
            yield (
                f"{group.label or 'the table'}: one merge of {format_bytes(group.size_bytes)} exceeds the budget of "
                f"{format_bytes(budget_bytes)} but is planned anyway, or its files would never be merged"
            )
    bound = policy.max_delete_files
    behind = [o for o in outcomes if o.delete_files > bound and o.partition in looked_at] if policy.merging else []
    if behind:
        worst = max(behind, key=lambda outcome: outcome.delete_files)
        yield (
            f"{format_count(len(behind), 'partition')} with files that are read with more than 'max-delete-files' "
            f"({bound}) delete files: {worst.delete_files} in {worst.label or 'the table'}"
        )
