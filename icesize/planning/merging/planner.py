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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from itertools import islice
from types import MappingProxyType

from icesize.planning.deletes.delete_reach import delete_files_freed
from icesize.planning.file_sizes import least_output_bytes
from icesize.planning.files import FileFact, Layout, PartitionFacts, PartitionKey, SkipReason, cannot_merge
from icesize.planning.merging.chosen_files import choose_prefix
from icesize.planning.merging.groups import (
    UNLIMITED,
    DueMerges,
    MergeBudget,
    Work,
    by_partition,
    by_size,
    fit_into_budget,
    groups_of,
    has_due_deletes,
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
    standing = None if occasion is Occasion.MAINTENANCE or excluded_paths else standing_of(layout, policy)
    examined = _examined(layout, standing, {*hot, *contested}, occasion)
    untouched, others = standing.untouched(examined) if standing else (Untouched(), ())
    excluded, is_planned = frozenset(excluded_paths), partial(_is_planned, layout, policy, occasion, hot)
    works = [work_of(facts, policy, contested, excluded) for facts in examined]
    dues = [_due(work, policy, budget, hot) if is_planned(work.facts) else DueMerges(work) for work in works]
    groups = within_budget(dues, policy, budget)
    if occasion is Occasion.BATCH:
        groups = tuple(group if group.partition in hot else replace(group, cold=True) for group in groups)
    taken = by_partition(groups)
    outcomes = (*_outcomes(works, taken, policy, hot), *others)
    return replace(
        Plan.empty(layout, policy),
        groups=groups,
        skipped=tuple(skip for due in dues for skip in skipped_of(due, taken.get(due.work.facts.key, ()))),
        outcomes=outcomes,
        notes=(
            *_beyond_help(policy, outcomes),
            *_over_budget(groups, budget),
            *_behind(layout, policy, outcomes, is_planned),
            *_too_large([group for due in dues for group in due.too_large], budget),
        ),
        incoming=dict(hot),
        delete_files_freed=delete_files_freed(layout, (file for group in groups for file in group.inputs)),
        untouched=untouched,
    )


def _examined(
    layout: Layout, standing: Standing | None, keys: Collection[PartitionKey], occasion: Occasion
) -> list[PartitionFacts]:
    """Return the partitions to look at, in order: without a summary all, otherwise those in which something may be due.

    These are the partitions of `keys`, and cold ones if the plan finishes them.
    """
    partitions: Mapping[PartitionKey, PartitionFacts] = layout.partitions
    if standing is not None:
        waiting = _maybe_cold(layout, standing) if occasion is Occasion.BATCH else ()
        partitions = layout.partitions.some({*keys, *waiting})
    return sorted(partitions.values(), key=lambda facts: facts.key.rank)


def _maybe_cold(layout: Layout, standing: Standing) -> Iterator[PartitionKey]:
    """Yield partitions with due files that may be cold, at most `MOST_COLD`."""
    # the newest first: older ones whose merges exceed the budget would take each other's turn again and again
    newest = layout.partitions.newest
    waited = (key for _, key in standing.unfinished.up_to(layout.now + 1))
    return islice((key for key in waited if _is_quiet(layout, newest[key], standing.policy)), MOST_COLD)


def _is_planned(
    layout: Layout, policy: SizePolicy, occasion: Occasion, hot: Collection[PartitionKey], facts: PartitionFacts
) -> bool:
    """Return whether files of a partition are merged on this occasion."""
    if facts.key in hot or occasion is Occasion.MAINTENANCE:
        return True
    return occasion is Occasion.BATCH and _is_cold(layout, facts, policy)


def _is_cold(layout: Layout, facts: PartitionFacts, policy: SizePolicy) -> bool:
    """Return whether a partition is cold after a batch without rows for it: the commit of the batch also counts."""
    return turns_cold(facts.arrivals, policy) <= layout.now + 1 and _is_quiet(layout, facts.newest, policy)


def _is_quiet(layout: Layout, newest: int, policy: SizePolicy) -> bool:
    return layout.commits_since(newest) + 1 >= policy.cold_after_commits


def _due(work: Work, policy: SizePolicy, budget: MergeBudget, hot: Mapping[PartitionKey, int]) -> DueMerges:
    """Return the merges of a partition that are due: those of its smallest files, and of all with due deletes."""
    key, least_bytes = work.facts.key, least_output_bytes(policy.small_file_limit_bytes)
    slots = max(0, policy.max_small_files - hot[key]) if key in hot else None
    shrunk = [file for file in work.large if file.live_bytes < least_bytes]
    # their sizes are right without their deleted rows
    alone = sorted((file for file in work.large if file.live_bytes >= least_bytes), key=by_size)
    ranked = sorted([*work.mergeable, *shrunk], key=by_size) if shrunk else work.mergeable
    prefix = _prefix(ranked, policy, slots)
    due = (file for file in ranked[prefix:] if has_due_deletes(file, policy, work.excluded_paths))
    groups = groups_of(work, [*ranked[:prefix], *due], policy, outputs_per_group(policy, budget))
    groups += [MergeTask((file,), key, 1, work.facts.label) for file in alone]
    return fit_into_budget(DueMerges(work, slots, groups), policy, budget)


def _prefix(ranked: Sequence[FileFact], policy: SizePolicy, slots: int | None) -> int:
    """Return how many of the smallest files are merged because of their number."""
    count = len(ranked)
    if count < 2:
        return 0
    if not slots:
        return count
    sizes = [file.live_bytes for file in ranked]
    return choose_prefix(sizes, policy.small_file_limit_bytes, slots)


def _outcomes(
    works: Sequence[Work],
    taken: Mapping[PartitionKey, Sequence[MergeTask]],
    policy: SizePolicy,
    incoming: Mapping[PartitionKey, int],
) -> Iterator[PartitionOutcome]:
    """Yield the small files of each partition after plan and batch; partitions that the batch creates come last."""
    for work in works:
        key = work.facts.key
        outcome = partition_outcome(work, policy, taken.get(key, ()), incoming.get(key, 0))
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


def _over_budget(groups: Iterable[MergeTask], budget: MergeBudget) -> Iterator[str]:
    for group in groups:
        if budget.size_bytes is not None and group.size_bytes > budget.size_bytes:
            yield (
                f"{group.label or 'the table'}: one merge of {format_bytes(group.size_bytes)} exceeds the budget of "
                f"{format_bytes(budget.size_bytes)} but is planned anyway, or its files would never be merged"
            )


def _behind(
    layout: Layout,
    policy: SizePolicy,
    outcomes: Iterable[PartitionOutcome],
    is_planned: Callable[[PartitionFacts], bool],
) -> Iterator[str]:
    """Yield one sentence about the planned partitions that keep a file with too many delete files."""
    bound = policy.max_delete_files
    over = [outcome for outcome in outcomes if outcome.delete_files > bound] if policy.merging else []
    known = layout.partitions.some(outcome.partition for outcome in over)
    planned = {key for key, facts in known.items() if is_planned(facts)}
    if behind := [outcome for outcome in over if outcome.partition in planned]:
        worst = max(behind, key=lambda outcome: outcome.delete_files)
        yield (
            f"{format_count(len(behind), 'partition')} with files that are read with more than 'max-delete-files' "
            f"({bound}) delete files: {worst.delete_files} in {worst.label or 'the table'}"
        )
