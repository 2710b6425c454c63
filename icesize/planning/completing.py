"""A plan that was made for the files a batch was expected to add, completed once they are known."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from icesize.planning.layout import Layout, PartitionFacts, PartitionKey
from icesize.planning.merging import plan_merges
from icesize.planning.plan import MergeGroup, Plan
from icesize.policy import SizePolicy


def complete_plan(
    first: Plan,
    layout: Layout,
    policy: SizePolicy,
    incoming: Mapping[PartitionKey, int],
    *,
    budget_bytes: int | None = None,
    contested: Collection[PartitionKey] = (),
) -> Plan:
    """The `first` plan, whose merges have begun, and what is due besides now that the small files of the batch
    (`incoming`) are known.

    Groups of `first` come first and as they were, but for those of partitions that got no rows after all: a batch makes
    no new versions of these. Where a partition with groups got more files than were expected, what is left of its older
    files is planned again, beside what its groups make. What `first` spends of the budget is spent. Every file of the
    layout is in the plan once, as `Plan` promises.
    """
    groups = tuple(group for group in first.groups if group.cold or group.partition in incoming)
    begun: dict[PartitionKey, list[MergeGroup]] = {}
    for group in groups:
        begun.setdefault(group.partition, []).append(group)
    settled = {key for key in begun if incoming.get(key, 0) <= first.incoming.get(key, 0)}
    rest = {key: facts for key, facts in layout.partitions.items() if key not in settled}
    small = {key: files for key, files in incoming.items() if key not in settled}
    for key in begun.keys() - settled:
        rest[key] = _without(layout.partitions[key], begun[key])
        small[key] += sum(
            group.outputs for group in begun[key] if group.output_size_bytes < policy.small_file_limit_bytes
        )
    second = plan_merges(
        replace(layout, partitions=rest),
        policy,
        incoming=small,
        budget_bytes=None if budget_bytes is None else max(0, budget_bytes - first.bytes_to_write),
        contested=contested,
    )
    kept = tuple(
        replace(outcome, small_files=outcome.small_files - fewer)
        for outcome in first.outcomes
        if outcome.partition in settled
        for fewer in [first.incoming.get(outcome.partition, 0) - incoming.get(outcome.partition, 0)]
    )
    return replace(
        first,
        groups=(*groups, *second.groups),
        skipped=(*(skip for skip in first.skipped if skip.partition in settled), *second.skipped),
        outcomes=(*kept, *second.outcomes),
        incoming=dict(incoming),
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
    )


def _without(facts: PartitionFacts, groups: list[MergeGroup]) -> PartitionFacts:
    """The partition without the files that are being merged."""
    victims = {file.path for group in groups for file in group.victims}
    left = tuple(file for file in facts.small if file.path not in victims)
    return replace(
        facts,
        files=facts.files - len(victims),
        size_bytes=facts.size_bytes - sum(group.size_bytes for group in groups),
        small=left,
    )
