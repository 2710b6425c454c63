"""Layout + SizePolicy -> Plan: which small files are merged now, and why the others are not.

Hot partitions (the batch writes to them) are kept at k small files for as few rewritten bytes as `choose_prefix`
finds; cold ones and maintenance go down to the fewest files, where at most one small file is left. Several outputs
are only planned where each is surely not small again, so a second plan is empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from icesize.planning.files import Layout, PartitionFacts, PartitionKey, SkipReason
from icesize.planning.merging.groups import Work, groups_of, outputs_per_group, within_budget
from icesize.planning.merging.schedule import choose_prefix
from icesize.planning.plan import MergeGroup, PartitionOutcome, Plan, Skipped, held_back_in
from icesize.policy import SizePolicy


def plan_merges(
    layout: Layout,
    policy: SizePolicy,
    *,
    incoming: Mapping[PartitionKey, int] | None = None,
    budget_bytes: int | None = None,
    touched: Collection[PartitionKey] | None = None,
    contested: Collection[PartitionKey] = (),
) -> Plan:
    """Decides which small files of `layout` are merged now; the same plan for any order of files and partitions.

    With `incoming` (files that a batch is about to add to each partition, all taken as small) those partitions are
    brought down to `max_small_files`, new files included; partitions without rows for `cold_after_commits` commits
    are finished to the fewest files; nothing else is touched. With `touched` alone the rows are in the layout
    already: these partitions are brought down to `max_small_files`. With neither, every partition is merged to the
    fewest files. Partitions in `contested` are left to the writers that keep rewriting them.

    `budget_bytes` (None: no bound) bounds the bytes to rewrite as `within_budget` describes.
    """
    in_order = sorted(layout.partitions.values(), key=lambda facts: facts.key.rank)
    works = [_work(facts, layout.spec_id, policy, contested) for facts in in_order]
    hot = None if incoming is None and touched is None else dict.fromkeys(touched or (), 0) | dict(incoming or {})
    most_outputs = outputs_per_group(policy, budget_bytes)
    for work in works:
        _find_due(work, policy, hot, finish_cold=incoming is not None)
        work.due = groups_of(work, work.mergeable[: work.prefix], policy, most_outputs)
    groups = within_budget(works, policy, budget_bytes)
    outcomes = tuple(_outcomes(works, policy, incoming or {}))
    return Plan(
        snapshot_id=layout.snapshot_id,
        sequence_number=layout.sequence_number,
        spec_id=layout.spec_id,
        groups=groups,
        skipped=tuple(skip for work in works for skip in _skipped(work)),
        outcomes=outcomes,
        max_small_files=policy.max_small_files,
        files_before=layout.files,
        notes=tuple(_notes(policy, groups, outcomes, budget_bytes)),
        incoming=dict(incoming or {}),
    )


def _work(facts: PartitionFacts, current_spec_id: int, policy: SizePolicy, contested: Collection[PartitionKey]) -> Work:
    """Sorts the small files of a partition into mergeable ones, smallest first, and ineligible ones."""
    blocked = SkipReason.OLD_SPEC if facts.key.spec_id != current_spec_id else None
    if blocked is None and facts.key in contested:
        blocked = SkipReason.CONTESTED
    # a policy computes its default limit each time that it is asked
    work, limit_bytes = Work(facts), policy.small_file_limit_bytes
    for file in facts.small:
        if file.size_bytes >= limit_bytes:
            continue
        reason = file.obstacle or blocked
        if reason is None:
            work.mergeable.append(file)
        else:
            work.held_back.append((file, reason))
    work.mergeable.sort(key=lambda file: (file.size_bytes, file.sequence_number, file.path))
    work.held_back.sort(key=lambda pair: pair[0].path)
    return work


def _find_due(work: Work, policy: SizePolicy, hot: Mapping[PartitionKey, int] | None, finish_cold: bool) -> None:
    """Sets how many of the smallest files of a partition are to be merged now."""
    count = len(work.mergeable)
    if count < 2:
        return
    if hot is None:
        work.prefix = count
    elif work.facts.key in hot:
        work.slots = max(0, policy.max_small_files - hot[work.facts.key])
        sizes = [file.size_bytes for file in work.mergeable]
        work.prefix = choose_prefix(sizes, policy.small_file_limit_bytes, work.slots) if work.slots else count
    # the commit of this batch is one more without rows for this partition
    elif finish_cold and work.facts.commits_since_append + 1 >= policy.cold_after_commits:
        work.cold = True
        work.prefix = count


def _skipped(work: Work) -> Iterator[Skipped]:
    """Every file of the partition that no taken group contains, with its reason."""
    key = work.facts.key
    small = [*work.mergeable, *(file for file, _ in work.held_back)]
    well_sized = work.facts.files - len(small)
    if well_sized:
        size_bytes = work.facts.size_bytes - sum(file.size_bytes for file in small)
        yield Skipped(None, key, SkipReason.WELL_SIZED, well_sized, size_bytes)
    for file, reason in work.held_back:
        yield Skipped(file, key, reason, 1, file.size_bytes)
    inputs = _paths(work.taken)
    due = _paths(work.due)
    for file in work.mergeable:
        if file.path not in inputs:
            reason = SkipReason.OVER_BUDGET if file.path in due else SkipReason.TOO_FEW
            yield Skipped(file, key, reason, 1, file.size_bytes)


def _paths(groups: list[MergeGroup]) -> set[str]:
    return {file.path for group in groups for file in group.inputs}


def _outcomes(
    works: list[Work], policy: SizePolicy, incoming: Mapping[PartitionKey, int]
) -> Iterator[PartitionOutcome]:
    """Small files of each partition after plan and batch, partitions that the batch creates last."""
    for work in works:
        small = work.small_files_after(policy.small_file_limit_bytes) + incoming.get(work.facts.key, 0)
        held_back = dict(Counter(reason for _, reason in work.held_back))
        if small or held_back:
            yield PartitionOutcome(work.facts.key, work.facts.label, small, held_back)
    known = {work.facts.key for work in works}
    for key, files in sorted(incoming.items(), key=lambda item: repr(item[0])):
        if key not in known:
            yield PartitionOutcome(key, "/".join(map(str, key.values)), files, {})


def _notes(
    policy: SizePolicy,
    groups: tuple[MergeGroup, ...],
    outcomes: tuple[PartitionOutcome, ...],
    budget_bytes: int | None,
) -> Iterator[str]:
    if not policy.merging:
        yield "merging is off: 'small-file-limit-bytes' is 0, so small files stay as they are"
    for outcome in held_back_in(outcomes):
        # a contested partition is merged later, and reports count its files as they are
        for_good = {reason: n for reason, n in outcome.held_back.items() if reason is not SkipReason.CONTESTED}
        held_back = sum(for_good.values())
        if held_back > policy.max_small_files:
            reasons = ", ".join(f"{reason.value} {count}" for reason, count in for_good.items())
            yield (
                f"{outcome.label or 'the table'}: {held_back} small files are ineligible ({reasons}), "
                f"more than 'max-small-files' ({policy.max_small_files}): no merge of ours can lower their number"
            )
    for group in groups:
        if budget_bytes is not None and group.size_bytes > budget_bytes:
            yield (
                f"{group.label or 'the table'}: one merge of {group.size_bytes} bytes exceeds the budget of "
                f"{budget_bytes} bytes and is planned on top of it, or its files would stay small for ever"
            )
