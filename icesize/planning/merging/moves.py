"""Moves: the files of old partition specs whose rows go into the partitions of the current spec. Pure.

A group has files of one partition, of any size, and its rows may go into many partitions. Old partitions are emptied
one after the other, so that a pass within a budget continues where the last one ended.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from icesize.planning.clustering.sets import outputs_of
from icesize.planning.file_sizes import parts_within
from icesize.planning.files import FileFact, Layout, PartitionKey, SkipReason
from icesize.planning.merging.groups import OUTPUTS_PER_GROUP
from icesize.planning.plan import MergeTask, PartitionOutcome, Plan, Skipped
from icesize.policy import SizePolicy


def plan_moves(
    layout: Layout, policy: SizePolicy, budget_bytes: int | None = None, *, contested: Collection[PartitionKey] = ()
) -> Plan:
    """Plan which files of old partition specs are moved within `budget_bytes` (None: no limit).

    All files of the partitions have to be in the layout as small ones. Partitions in `contested` stay, because other
    writers keep rewriting them. So do files whose deletes or bytes icesize cannot read, and files over the budget. The
    plan counts only files of old specs.
    """
    groups, skipped, outcomes = list[MergeTask](), list[Skipped](), list[PartitionOutcome]()
    left = math.inf if budget_bytes is None else budget_bytes
    # a few files of the target size, or the whole budget if that is less
    group_bytes = min(OUTPUTS_PER_GROUP * policy.target_file_size_bytes, left)
    old = (facts for key, facts in layout.partitions.items() if key.spec_id != layout.spec_id)
    for facts in sorted(old, key=lambda facts: facts.key.rank):
        reasons = {file: _reason(file, contested) for file in facts.small}
        stay = {file: reason for file, reason in reasons.items() if reason}
        movable = sorted((file for file in facts.small if file not in stay), key=lambda f: (f.sequence_number, f.path))
        for inputs in parts_within(movable, lambda file: file.size_bytes, group_bytes):
            outputs = outputs_of(sum(file.live_bytes for file in inputs), policy)
            group = MergeTask(inputs, facts.key, outputs, facts.label, moves=True)
            if group.size_bytes <= left:
                groups.append(group)
                left -= group.size_bytes
            else:
                stay |= dict.fromkeys(inputs, SkipReason.OVER_BUDGET)
        skipped += (Skipped(file, facts.key, why, 1, file.size_bytes) for file, why in stay.items())
        held = Counter[SkipReason](why for why in stay.values() if why is not SkipReason.OVER_BUDGET)
        outcomes += [PartitionOutcome(facts.key, facts.label, 0, held)] if held else []
    return replace(Plan.empty(layout, policy), groups=tuple(groups), skipped=tuple(skipped), outcomes=tuple(outcomes))


def may_move(file: FileFact) -> bool:
    """Return whether the rows of a file of an old partition spec can be read, even if its spec cannot be written."""
    return file.obstacle in (None, SkipReason.OLD_SPEC)


def _reason(file: FileFact, contested: Collection[PartitionKey]) -> SkipReason | None:
    if not may_move(file):
        return file.obstacle
    return SkipReason.CONTESTED if file.partition in contested else None
