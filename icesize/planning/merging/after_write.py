"""Plans that include the new files of a batch: new rows end up in the small files of their partition.

The planner is that of `merging`, on the layout after the batch. New files compete with older ones for the k small files
that may remain, so k = 1 is possible. Some partitions are only appended to: those with pending deletes that are not
applied, and those that other writers keep rewriting. Their new files stay unchanged until the next merge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from icesize.planning.deletes.delete_reach import delete_files_freed
from icesize.planning.file_sizes import is_small_file
from icesize.planning.files import FileFact, Layout, PartitionFacts, PartitionKey, SkipReason
from icesize.planning.merging.groups import UNLIMITED, MergeBudget, by_partition
from icesize.planning.merging.planner import Occasion, plan_merges
from icesize.planning.plan import FileGroup, MergeTask, Plan
from icesize.policy import SizePolicy


def plan_absorbing(
    layout: Layout,
    policy: SizePolicy,
    new: Sequence[FileFact],
    *,
    budget: MergeBudget = UNLIMITED,
    contested: Collection[PartitionKey] = (),
) -> Plan:
    """Plan which small files are merged once the `new` files of a batch are in `layout`.

    Each partition with new files is reduced to `max_small_files`. Well-sized new files stay. Cold partitions are
    finished as in `plan_merges`, and the budget has the same meaning. New files may be expected ones, because only
    their sizes, paths and partitions are used.
    """
    incoming = Counter({file.partition: 0 for file in new})
    known = layout.partitions.some(incoming)
    appended = {key for key in incoming if key in contested or _keeps_deletes(known.get(key))}
    small = (file.partition for file in new if is_small_file(file.size_bytes, layout.small_file_limit_bytes))
    incoming.update(key for key in small if key in appended)
    wider = with_files(layout, (file for file in new if file.partition not in appended))
    return plan_merges(wider, policy, Occasion.BATCH, incoming, budget=budget, contested=contested)


def with_files(layout: Layout, new: Iterable[FileFact]) -> Layout:
    """Return the layout with these files of any size in addition; its snapshot stays the planning base."""
    added = list(new)
    wider: dict[PartitionKey, PartitionFacts | None] = {**layout.partitions.some({file.partition for file in added})}
    for file in added:
        key = file.partition
        facts = wider.get(key) or PartitionFacts(key, key.label, 0, 0, 0)
        wider[key] = facts.adding(file, layout.small_file_limit_bytes)
    return layout.with_partitions(wider)


def divided(groups: Iterable[MergeTask], new: Iterable[FileFact]) -> tuple[list[MergeTask], list[FileGroup]]:
    """Return the groups of older files only, and the older files of the other groups, which new rows take along."""
    paths = {file.path for file in new}
    apart, along = list[MergeTask](), list[FileGroup]()
    for group in groups:
        older = tuple(file for file in group.inputs if file.path not in paths)
        if len(older) == len(group.inputs):
            apart.append(group)
        elif older:
            along.append(FileGroup(older, group.partition))
    return apart, along


def _keeps_deletes(facts: PartitionFacts | None) -> bool:
    return facts is not None and any(file.obstacle is SkipReason.HAS_DELETES for file in facts.small)


def complete_plan(
    first: Plan,
    layout: Layout,
    policy: SizePolicy,
    incoming: Mapping[PartitionKey, int],
    *,
    budget: MergeBudget = UNLIMITED,
    contested: Collection[PartitionKey] = (),
) -> Plan:
    """Return the `first` plan, whose merges have begun, completed now that the small files of the batch are known.

    `incoming` are these small files by partition. Groups of `first` come first, unchanged. Groups of partitions without
    rows after all are dropped, because a batch makes no new version of these. If a partition with groups received more
    files than expected, its remaining older files are planned again, beside the outputs of its groups. `first` has used
    its part of the budget, dropped merges included, because they have begun. Every file of the layout is in the plan
    once.
    """
    groups = tuple(group for group in first.groups if group.cold or group.partition in incoming)
    begun = by_partition(groups)
    limit_bytes = policy.small_file_limit_bytes
    settled = {key for key in begun if incoming.get(key, 0) <= first.incoming.get(key, 0)}
    rest: dict[PartitionKey, PartitionFacts | None] = dict.fromkeys(settled)
    small = {key: files for key, files in incoming.items() if key not in settled}
    for key, facts in layout.partitions.some(begun.keys() - settled).items():
        rest[key] = facts.without(file for group in begun[key] for file in group.inputs)
        small[key] += sum(group.outputs for group in begun[key] if is_small_file(group.output_size_bytes, limit_bytes))
    second = plan_merges(
        layout.with_partitions(rest), policy, Occasion.BATCH, small,
        budget=budget.after(first.bytes_to_write), contested=contested,
    )  # fmt: skip
    kept = tuple(
        replace(outcome, small_files=outcome.small_files - fewer)
        for outcome in first.outcomes
        if outcome.partition in settled
        for fewer in [first.incoming.get(outcome.partition, 0) - incoming.get(outcome.partition, 0)]
    )
    inputs = (file for group in (*groups, *second.groups) for file in group.inputs)
    return replace(
        first,
        groups=(*groups, *second.groups),
        skipped=(*(skip for skip in first.skipped if skip.partition in settled), *second.skipped),
        outcomes=(*kept, *second.outcomes),
        incoming=dict(incoming),
        delete_files_freed=delete_files_freed(layout, inputs),
        notes=tuple(dict.fromkeys((*(first.notes if groups else ()), *second.notes))),
        untouched=second.untouched,
    )
