"""Moves: the files of old partition specs whose rows go into the partitions of the current spec. Pure.

A group has files of one partition, of any size, and its rows may go into many partitions. Old partitions are emptied
one after the other, so that a pass within a budget continues where the last one ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from icesize.planning.file_counts import merged_files
from icesize.planning.files import FileFact, Layout, PartitionFacts, PartitionKey, SkipReason
from icesize.planning.merging.groups import OUTPUTS_PER_GROUP
from icesize.planning.plan import MergeTask, PartitionOutcome, Plan, Skipped
from icesize.policy import SizePolicy


def plan_moves(
    layout: Layout, policy: SizePolicy, *, most_bytes: int | None = None, contested: Collection[PartitionKey] = ()
) -> Plan:
    """Plan which files of old partition specs are moved within `most_bytes` (None: no limit).

    All files of the partitions have to be in the layout as small ones. Partitions in `contested` stay, because other
    writers keep rewriting them. So do files whose deletes or bytes icesize cannot read, and files over the budget. The
    plan counts only files of old specs.
    """
    groups, skipped, outcomes = list[MergeTask](), list[Skipped](), list[PartitionOutcome]()
    left = float("inf") if most_bytes is None else most_bytes
    old = (facts for key, facts in layout.partitions.items() if key.spec_id != layout.spec_id)
    for facts in sorted(old, key=lambda facts: facts.key.rank):
        reasons = {file: _reason(file, contested) for file in facts.small}
        stay = {file: reason for file, reason in reasons.items() if reason}
        for inputs in _cut((file for file in facts.small if file not in stay), _most_bytes(policy, most_bytes)):
            group = _move(facts, inputs, policy)
            if group.size_bytes <= left:
                groups.append(group)
                left -= group.size_bytes
            else:
                stay |= dict.fromkeys(inputs, SkipReason.OVER_BUDGET)
        skipped += (Skipped(file, facts.key, why, 1, file.size_bytes) for file, why in stay.items())
        held = Counter[SkipReason](why for why in stay.values() if why is not SkipReason.OVER_BUDGET)
        outcomes += [PartitionOutcome(facts.key, facts.label, 0, held)] if held else []
    return Plan(
        layout.head, layout.spec_id, tuple(groups), tuple(skipped), tuple(outcomes), policy.max_small_files,
        layout.files, max_delete_files=policy.max_delete_files,
    )  # fmt: skip


def may_move(file: FileFact) -> bool:
    """Return whether the rows of a file of an old partition spec can be read, even if its spec cannot be written."""
    return file.obstacle in (None, SkipReason.OLD_SPEC)


def _reason(file: FileFact, contested: Collection[PartitionKey]) -> SkipReason | None:
    if not may_move(file):
        return file.obstacle
    return SkipReason.CONTESTED if file.partition in contested else None


def _most_bytes(policy: SizePolicy, most_bytes: int | None) -> int:
    """Return the bytes of a group: of a few files of the target size, or of the whole budget if that is less."""
    size_bytes = OUTPUTS_PER_GROUP * policy.target_file_size_bytes
    return size_bytes if most_bytes is None else min(size_bytes, most_bytes)


def _cut(files: Iterable[FileFact], most_bytes: int) -> Iterator[tuple[FileFact, ...]]:
    """Yield the files in the order of their rows, in groups of at most `most_bytes`, or of one file."""
    group, size_bytes = list[FileFact](), 0
    for file in sorted(files, key=lambda file: (file.sequence_number, file.path)):
        if group and size_bytes + file.size_bytes > most_bytes:
            yield tuple(group)
            group, size_bytes = [], 0
        group.append(file)
        size_bytes += file.size_bytes
    if group:
        yield tuple(group)


def _move(facts: PartitionFacts, inputs: tuple[FileFact, ...], policy: SizePolicy) -> MergeTask:
    live_bytes = sum(file.live_bytes for file in inputs)
    outputs = merged_files(live_bytes, policy.target_file_size_bytes, policy.small_file_limit_bytes)
    return MergeTask(inputs, facts.key, max(1, outputs), facts.label, moves=True)
