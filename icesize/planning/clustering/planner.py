"""Plan from a layout, files with bounds, and a ClusterBy: the files to cluster now, and the reasons of the rest.

The plan uses only the files. Their names show which files were clustered together; their bounds show which files are in
order without that. Take the bytes outside sets, and those of all open sets but the largest. A partition is due if these
bytes reach `new_share` of the largest open set. On average over a set, bytes are therefore written at most 1 + 1 /
`new_share` times until the set is sealed. After a plan without a budget, each partition has at most one open set and
files that are not due, so that a second plan is empty.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from icesize.planning.cluster_by import SORT, ClusterBy, ClusterFile
from icesize.planning.clustering.depth import by_column
from icesize.planning.clustering.sets import (
    IN_ORDER,
    Sets,
    by_bounds,
    depth,
    floor_depth,
    is_sorted,
    leading_column,
    outputs_of,
    sealed_parts,
    sets_of,
    why_not,
)
from icesize.planning.file_sizes import is_small_file
from icesize.planning.files import Layout, PartitionKey, SkipReason
from icesize.planning.plan import Clustering, MergeTask, Plan, Skipped
from icesize.policy import SizePolicy
from icesize.units import format_bytes, format_count

_PLAIN = frozenset({SkipReason.CLUSTERED, SkipReason.TOO_FEW})
"""Reasons for which files stay that could be moved."""


@dataclass(slots=True)
class _Work:
    """One partition while it is planned.

    Files at the paths in `kept` stay for the given reason. `due` parts may be written; each of the `taken` parts
    becomes one set. `why` is the reason if none is due.
    """

    key: PartitionKey
    files: Sequence[ClusterFile]
    kept: dict[str, SkipReason]
    why: str | None = None
    due: list[Sets] = field(default_factory=list)
    taken: list[Sets] = field(default_factory=list)

    def keep(self, files: Iterable[ClusterFile], reason: SkipReason) -> None:
        self.kept |= {file.fact.path: reason for file in files}

    def staying(self) -> list[ClusterFile]:
        """Files of the partition that are no input file."""
        inputs = {file.fact.path for sets in self.taken for file in sets.files}
        return [file for file in self.files if file.fact.path not in inputs]


def plan_clusters(
    layout: Layout,
    files: Mapping[PartitionKey, Sequence[ClusterFile]],
    by: ClusterBy,
    policy: SizePolicy,
    *,
    budget_bytes: int | None = None,
    contested: Collection[PartitionKey] = (),
    leave_small: Collection[PartitionKey] = (),
) -> Plan:
    """Plan which of `files`, all live data files of some partitions, are clustered now, whatever their order.

    Every file is an input of one group or in one `Skipped`. The groups with the most gain per byte come first.
    Partitions in `contested` stay, because other writers keep rewriting them. In partitions of `leave_small`, files
    below the small file limit are left to merges. `budget_bytes` (None: no limit) is never exceeded: if the files of a
    partition do not fit, they are clustered without the largest sets, then only new files or some of them.
    """
    files = {key: files[key] for key in sorted(files, key=lambda key: key.rank)}
    works = []
    for key, owned in files.items():
        blocked = SkipReason.CONTESTED if key in contested else None
        blocked = SkipReason.OLD_SPEC if key.spec_id != layout.spec_id else blocked
        small_bytes = layout.small_file_limit_bytes if key in leave_small else 0
        reasons = {file.fact.path: file.fact.obstacle or blocked or _left_alone(file, small_bytes) for file in owned}
        kept = {path: reason for path, reason in reasons.items() if reason is not None}
        works.append(_sorted_out(_Work(key, owned, kept), by, policy))
    chosen = _within_budget(works, by, policy, budget_bytes)
    skipped = tuple(skip for work in works for skip in _skipped(work))
    groups = tuple(_merge_group(key, sets, layout, policy) for key, sets in chosen)
    return replace(
        Plan.empty(layout, policy),
        groups=groups,
        skipped=skipped,
        notes=tuple(_notes(works, skipped, budget_bytes)),
        clustering=Clustering(
            by=by,
            full=tuple(group.size_bytes >= by.sealed_set_bytes for group in groups),
            before=by_column(files, by.columns),
            expected_point_files=_expected(works, by, policy),
            new_bytes=sum(f.fact.size_bytes for _, sets in chosen for f in sets.files if f.set_id is None),
            bytes_to_write=sum(group.size_bytes for group in groups),
        ),
    )


def _sorted_out(work: _Work, by: ClusterBy, policy: SizePolicy) -> _Work:
    """Sort the files of a partition into those that stay and those that are due."""
    free = [file for file in work.files if file.fact.path not in work.kept]
    sets, sealed = sets_of(free, by, policy)
    work.keep(sealed, SkipReason.CLUSTERED)
    work.why = why_not(sets, by, policy) if free else IN_ORDER
    if work.why is None:
        work.due = list(sealed_parts(sets, by, policy))
    else:
        work.keep(sets.files, SkipReason.CLUSTERED)
        work.keep(sets.new, SkipReason.CLUSTERED if is_sorted(sets, by, policy) else SkipReason.TOO_FEW)
    return work


def _left_alone(file: ClusterFile, small_bytes: int) -> SkipReason | None:
    if file.full:
        return SkipReason.CLUSTERED
    return SkipReason.TOO_FEW if is_small_file(file.fact.size_bytes, small_bytes) else None


def _within_budget(
    works: Sequence[_Work], by: ClusterBy, policy: SizePolicy, budget_bytes: int | None
) -> list[tuple[PartitionKey, Sets]]:
    """Take what the budget covers, by the files that a point query saves per byte."""

    def worth(sets: Sets) -> float:
        fewer = depth(sets.files, by) - floor_depth(outputs_of(sets.size_bytes, policy), by)
        return fewer / sets.size_bytes

    left_bytes = math.inf if budget_bytes is None else budget_bytes
    ranked = sorted(
        ((worth(sets), work.key.rank, n, work, sets) for work in works for n, sets in enumerate(work.due)),
        key=lambda entry: (-entry[0], *entry[1:3]),
    )
    chosen = []
    for *_, work, sets in ranked:
        affordable = sets if sets.size_bytes <= left_bytes else _cheaper(sets, by, policy, left_bytes)
        if affordable is not None:
            left_bytes -= affordable.size_bytes
            work.taken.append(affordable)
            chosen.append((work.key, affordable))
    return chosen


def _cheaper(sets: Sets, by: ClusterBy, policy: SizePolicy, left_bytes: float) -> Sets | None:
    """Return the most of `sets` that fits and is due by itself: without its largest sets, or else some new files."""
    fitting, fitting_bytes = [], 0
    for file in by_bounds(sets.new):
        if fitting_bytes + file.fact.size_bytes <= left_bytes:
            fitting.append(file)
            fitting_bytes += file.fact.size_bytes
    less = [Sets(sets.new, sets.open_sets[:n]) for n in reversed(range(len(sets.open_sets)))]
    less.append(Sets(tuple(fitting), ()))
    return next((some for some in less if some.size_bytes <= left_bytes and why_not(some, by, policy) is None), None)


def _merge_group(key: PartitionKey, sets: Sets, layout: Layout, policy: SizePolicy) -> MergeTask:
    facts = layout.partitions.get(key)
    label = facts.label if facts else key.label
    inputs = tuple(file.fact for file in by_bounds(sets.files))
    return MergeTask(inputs, key, outputs_of(sum(file.live_bytes for file in inputs), policy), label)


def _skipped(work: _Work) -> Iterator[Skipped]:
    """Yield every file of the partition that is no input file, with its reason, by path."""
    for file in sorted(work.staying(), key=lambda file: file.fact.path):
        reason = work.kept.get(file.fact.path, SkipReason.OVER_BUDGET)
        yield Skipped(file.fact, work.key, reason, 1, file.fact.size_bytes)


def _expected(works: Sequence[_Work], by: ClusterBy, policy: SizePolicy) -> dict[str, float]:
    """Return the files that a point query on each column is expected to open after the plan.

    These are the files that stay, and the floor of each new set. A sort orders one column, so that all files of its set
    count for the others.
    """
    stay = by_column({work.key: work.staying() for work in works}, by.columns)
    expected = {column: scanned.point_files for column, scanned in stay.items()}
    for work in works:
        for sets in work.taken:
            outputs = outputs_of(sets.size_bytes, policy)
            for n, column in enumerate(by.columns):
                is_ordered = by.strategy != SORT or n == leading_column(sets.files)
                expected[column] += floor_depth(outputs, by) if is_ordered else outputs
    return expected


def _notes(works: Sequence[_Work], skipped: Sequence[Skipped], budget_bytes: int | None) -> Iterator[str]:
    if not any(work.due for work in works):
        partitions = Counter(work.why for work in works if work.why is not None and work.why != IN_ORDER)
        held = Counter(skip.reason.value for skip in skipped if skip.reason not in _PLAIN)
        reasons = [f"{format_count(count, 'partition')} {why}" for why, count in sorted(partitions.items())]
        reasons += [f"{format_count(count, 'file')} {reason}" for reason, count in sorted(held.items())]
        if reasons:
            yield f"nothing moves: {', '.join(reasons)}"
    waiting = [work for work in works if work.due and not work.taken]
    if waiting and budget_bytes is not None:
        least = min(sets.size_bytes for work in waiting for sets in work.due)
        yield (
            f"a budget of {format_bytes(budget_bytes)} is too small to cluster "
            f"{format_count(len(waiting), 'partition')}: the smallest needs {format_bytes(least)}"
        )
