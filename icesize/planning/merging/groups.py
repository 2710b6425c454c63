"""Merge groups of a partition, from its small files and its files with due deletes; the groups that a budget covers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from icesize.planning.deletes.delete_reach import is_due
from icesize.planning.file_sizes import ROUND_DOWN_RATIO, is_small_file, least_output_bytes, merged_files
from icesize.planning.files import FileFact, PartitionFacts, PartitionKey, SkipReason
from icesize.planning.plan import MergeTask
from icesize.policy import SizePolicy

OUTPUTS_PER_GROUP = 4
"""Larger merges are cut into groups of about this number of files, which run in parallel and fail alone."""


@dataclass(frozen=True, slots=True)
class MergeBudget:
    """The bytes that merges may rewrite together; None for no limit.

    One merge may exceed `size_bytes`, as `within_budget` describes. All merges together, this one included, never
    exceed `most_bytes`, which is at least `size_bytes`.
    """

    size_bytes: int | None = None
    most_bytes: int | None = None

    @classmethod
    def hard(cls, size_bytes: int | None) -> MergeBudget:
        """Return a budget that no merge may exceed, such as that of a user."""
        return cls(size_bytes, size_bytes)

    @classmethod
    def of_batch(cls, policy: SizePolicy, batch_bytes: float) -> MergeBudget:
        """Return the budget for the merges of a batch."""
        return cls(policy.budget_for(int(batch_bytes)), policy.merge_budget_bytes)

    def after(self, used_bytes: int) -> MergeBudget:
        """Return what is left."""
        left = (None if b is None else max(0, b - used_bytes) for b in (self.size_bytes, self.most_bytes))
        return MergeBudget(*left)


UNLIMITED = MergeBudget()


@dataclass(frozen=True, slots=True)
class Work:
    """The files of one partition that a plan decides on. `blocked` is the reason if all of them stay.

    Files at `excluded_paths` are not due. `mergeable` are small files, smallest first. `large` files are not small, and
    due for their deletes. `ineligible` files of both kinds must stay.
    """

    facts: PartitionFacts
    mergeable: Sequence[FileFact] = ()
    large: Sequence[FileFact] = ()
    ineligible: Sequence[tuple[FileFact, SkipReason]] = ()
    blocked: SkipReason | None = None
    excluded_paths: frozenset[str] = frozenset()

    def small_files_after(self, taken: Iterable[MergeTask], small_file_limit_bytes: int) -> int:
        """Return the number of mergeable small files after the `taken` groups are merged."""
        large, left = {file.path for file in self.large}, len(self.mergeable)
        for group in taken:
            left -= sum(file.path not in large for file in group.inputs)
            left += group.outputs if is_small_file(group.output_size_bytes, small_file_limit_bytes) else 0
        return left


def has_due_deletes(file: FileFact, policy: SizePolicy, excluded_paths: Collection[str]) -> bool:
    """Return whether a file has to be rewritten for its deletes; not if the caller rewrites its delete files."""
    return bool(file.delete_files) and file.path not in excluded_paths and is_due(file, policy)


@dataclass(frozen=True, slots=True)
class DueMerges:
    """The merges of one partition that are due; none if the occasion leaves it out.

    `slots` is the number of mergeable files that may remain; None for the fewest. `too_large` groups never fit into the
    budget. The part of each that fits is among the `groups`.
    """

    work: Work
    slots: int | None = None
    groups: Sequence[MergeTask] = ()
    too_large: Sequence[MergeTask] = ()

    @property
    def excess(self) -> int:
        """Mergeable files above the slots, or above one if as few as possible may remain."""
        return max(0, len(self.work.mergeable) - max(1, self.slots or 0))


def by_partition(groups: Iterable[MergeTask]) -> dict[PartitionKey, list[MergeTask]]:
    """Return the groups of each partition, in their order."""
    found = dict[PartitionKey, list[MergeTask]]()
    for group in groups:
        found.setdefault(group.partition, []).append(group)
    return found


def outputs_per_group(policy: SizePolicy, budget: MergeBudget) -> int:
    """Return the most outputs of a group: 4, or fewer if the budget does not cover four."""
    if budget.size_bytes is None:
        return OUTPUTS_PER_GROUP
    affordable = int(budget.size_bytes / (ROUND_DOWN_RATIO * policy.target_file_size_bytes))
    return max(1, min(OUTPUTS_PER_GROUP, affordable))


def groups_of(work: Work, files: Sequence[FileFact], policy: SizePolicy, most_outputs: int) -> list[MergeTask]:
    """Return the merges of `files` into as few files as `merged_files` allows, in groups of neighbors in time.

    A single file is rewritten if its deletes are due. No file may exceed the planned size of one of several outputs.
    """
    if not files or (len(files) == 1 and not has_due_deletes(files[0], policy, work.excluded_paths)):
        return []
    total_bytes = sum([file.live_bytes for file in files])
    outputs = merged_files(total_bytes, policy.target_file_size_bytes, policy.small_file_limit_bytes)
    in_time = sorted(files, key=lambda file: (file.sequence_number, file.path))
    return [
        MergeTask(tuple(inputs), work.facts.key, count, work.facts.label)
        for inputs, count in _cut(in_time, total_bytes, outputs, policy, most_outputs)
    ]


def _cut(
    files: Sequence[FileFact], total_bytes: int, outputs: int, policy: SizePolicy, most_outputs: int
) -> list[tuple[Sequence[FileFact], int]]:
    """Cut `files` into runs of about `most_outputs` outputs each; together they have exactly `outputs`.

    A cut needs two conditions for the run and the rest: both divide into files that are not small again, and no file
    exceeds the target by more than 10 %. Each output is then larger than any input file, so that a run has more input
    files than outputs. If sizes are too coarse for that, the run grows.
    """
    if outputs <= most_outputs:
        return [(files, outputs)]
    part = total_bytes / outputs
    least = least_output_bytes(policy.small_file_limit_bytes)
    most = max(ROUND_DOWN_RATIO * policy.target_file_size_bytes, part)

    def divides(size_bytes: int, count: int) -> bool:
        return count * least <= size_bytes <= count * most

    runs: list[tuple[Sequence[FileFact], int]] = []
    start = size_bytes = 0
    for end, file in enumerate(files, 1):
        if outputs <= most_outputs:
            break
        size_bytes += file.live_bytes
        # a run that lacks 5% of its last part is full: the next file would rather overshoot
        count = int(size_bytes / part + 0.05)
        if (
            most_outputs <= count < outputs
            and divides(size_bytes, count)
            and divides(total_bytes - size_bytes, outputs - count)
        ):
            runs.append((files[start:end], count))
            total_bytes, outputs = total_bytes - size_bytes, outputs - count
            start, size_bytes = end, 0
    runs.append((files[start:], outputs))
    return runs


def fit_into_budget(due: DueMerges, policy: SizePolicy, budget: MergeBudget) -> DueMerges:
    """Return the due merges, with the merge of the smallest files that fit in place of groups above `most_bytes`.

    The files of all these groups count together: the two smallest may lie in different groups.
    """
    most_bytes = budget.most_bytes
    if most_bytes is None:
        return due
    too_large = [group for group in due.groups if group.size_bytes > most_bytes]
    fit = [group for group in due.groups if group.size_bytes <= most_bytes]
    files = sorted((file for group in too_large for file in group.inputs), key=by_size)
    parts = groups_of(due.work, _that_fit(files, most_bytes), policy, outputs_per_group(policy, budget))
    return replace(due, groups=[*fit, *parts], too_large=too_large)


def by_size(file: FileFact) -> tuple[int, int, str]:
    """Return the key that sorts files by size, smallest first."""
    return file.live_bytes, file.sequence_number, file.path


def _that_fit(files: Sequence[FileFact], most_bytes: float) -> Sequence[FileFact]:
    """Return the first files whose bytes together are at most `most_bytes`."""
    return files[: sum(size_bytes <= most_bytes for size_bytes in accumulate(file.size_bytes for file in files))]


def within_budget(dues: Sequence[DueMerges], policy: SizePolicy, budget: MergeBudget) -> tuple[MergeTask, ...]:
    """Return the groups that the budget covers by their worth, highest first.

    Hot partitions come first. Among them, partitions above their slots or with files of more than `max_delete_files`
    delete files come first. Then groups are ranked by the scan cost that they save per rewritten byte. Two rules
    prevent starvation. First, one group that exceeds the whole budget is taken in addition to it, from the partition
    that is furthest above its slots: otherwise, two files that together exceed the budget could never be merged. All
    groups together never exceed `most_bytes` (None: no limit). Second, a hot partition above its slots may have no
    group that lowers its number of files. It gets the cheapest merge that reaches its slots, or the largest that fits.
    This uses only what is left of the budget, because due groups keep later merges cheap, and cheap merges first would
    leave less for them.
    """
    purse = _BudgetAllocator(policy, budget)
    hot = [due for due in dues if due.slots is not None]
    purse.take_due(hot)
    taken = by_partition(purse.groups)
    for due in sorted(hot, key=lambda due: -due.excess):
        own = taken.get(due.work.facts.key, ())
        if due.excess and not any(group.outputs < len(group.inputs) for group in own):
            purse.take_cheaper(due, own)
    purse.take_due([due for due in dues if due.slots is None])
    return tuple(purse.groups)


class _BudgetAllocator:
    """The rest of the budget while groups are taken."""

    def __init__(self, policy: SizePolicy, budget: MergeBudget) -> None:
        self.groups: list[MergeTask] = []
        self._policy, self._open_bytes = policy, max(1, policy.close_file_cost_bytes)
        self._most_left_bytes = math.inf if budget.most_bytes is None else budget.most_bytes
        self._budget_bytes = min(self._most_left_bytes, math.inf if budget.size_bytes is None else budget.size_bytes)
        self._left_bytes = self._budget_bytes
        self._may_exceed = self._budget_bytes > 0

    def take_due(self, dues: Sequence[DueMerges]) -> None:
        ranked = sorted(((due, group) for due in dues for group in due.groups), key=self._rank)
        odd = [pair for pair in ranked if self._budget_bytes < pair[1].size_bytes <= self._most_left_bytes]
        extra = max(odd, key=lambda pair: pair[0].excess)[1] if odd and self._may_exceed else None
        for _, group in ranked:
            if group is extra:
                self._may_exceed = False
                self._left_bytes = min(self._left_bytes + group.size_bytes, self._most_left_bytes)
            if group.size_bytes <= self._left_bytes:
                self._take(group)

    def take_cheaper(self, due: DueMerges, taken: Iterable[MergeTask]) -> None:
        # a taken group may be a single file with due deletes
        paths = {file.path for group in taken for file in group.inputs}
        files = [file for file in due.work.mergeable[: due.excess + 1] if file.path not in paths]
        for group in groups_of(due.work, _that_fit(files, self._left_bytes), self._policy, OUTPUTS_PER_GROUP):
            self._take(group)

    def _take(self, group: MergeTask) -> None:
        self._left_bytes -= group.size_bytes
        self._most_left_bytes -= group.size_bytes
        self.groups.append(group)

    def _rank(self, pair: tuple[DueMerges, MergeTask]) -> tuple[bool, float, tuple[int, str], str]:
        due, group = pair
        has_many_deletes = any(file.avoidable_deletes > self._policy.max_delete_files for file in group.with_deletes)
        can_wait = due.slots is not None and not due.excess and not has_many_deletes
        # a scan opens a delete file once for each file that it may hit
        files = len(group.inputs) - group.outputs + group.avoidable_deletes
        spared_bytes = files * self._open_bytes + group.size_bytes - group.live_bytes
        return can_wait, -spared_bytes / max(1, group.size_bytes), group.partition.rank, group.inputs[0].path
