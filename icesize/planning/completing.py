"""A plan that was made for the files a batch was expected to add, completed once they are known."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from icesize.planning.layout import Layout, PartitionKey
from icesize.planning.merging import plan_merges
from icesize.planning.plan import Plan
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

    Groups of `first` come first and as they were; partitions with one are not planned twice, so one that got more
    files than were expected may hold more than `max_small_files` until its next merge, and its outcome says so. What
    `first` spends of the budget is spent. Every file of the layout is in the plan once, as `Plan` promises.
    """
    begun = {group.partition for group in first.groups}
    rest = replace(layout, partitions={key: facts for key, facts in layout.partitions.items() if key not in begun})
    second = plan_merges(
        rest,
        policy,
        incoming={key: files for key, files in incoming.items() if key not in begun},
        budget_bytes=None if budget_bytes is None else max(0, budget_bytes - first.bytes_to_write),
        contested=contested,
    )
    kept = tuple(
        replace(outcome, small_files=outcome.small_files + more)
        for outcome in first.outcomes
        if outcome.partition in begun
        for more in [incoming.get(outcome.partition, 0) - first.incoming.get(outcome.partition, 0)]
    )
    return replace(
        first,
        groups=(*first.groups, *second.groups),
        skipped=(*(skip for skip in first.skipped if skip.partition in begun), *second.skipped),
        outcomes=(*kept, *second.outcomes),
        incoming=dict(incoming),
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
    )
