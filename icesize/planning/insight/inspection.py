"""The state of a table's file sizes: counts, a histogram, the worst partitions and advice. Pure, from a Layout."""

from __future__ import annotations

import shlex
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile

from icesize.planning.deletes.delete_reach import is_due
from icesize.planning.files import Layout, PartitionFacts, PartitionKey, cannot_merge
from icesize.planning.insight.filters import FilterUse
from icesize.planning.insight.scan_cost import NO_COST, PRICE_PER_1000_REQUESTS, LayoutCost
from icesize.planning.partition_labels import label_of
from icesize.planning.plan import Plan, alike
from icesize.policy import MIB, SizePolicy
from icesize.results import Advice, Result, keys
from icesize.units import format_count

WORST_SHOWN = 10
"""Number of partitions that an inspection shows one by one."""

SMALLER_TARGET_BYTES = 128 * MIB
"""Target advised for partitions that get little: Iceberg's row group size is 128 MiB, so scans lose nothing by it."""

LITTLE_PER_DAY_BYTES = 512 * MIB
"""A partition that gets less than this a day stays below one default file for a day of merging."""


@dataclass(frozen=True)
class SizeClass:
    """Small files between two sizes: the upper bound is exclusive and at most the small file limit."""

    below_bytes: int
    files: int
    size_bytes: int


@dataclass(frozen=True)
class PartitionSizes:
    """One partition in an inspection, or the first of several partitions that are `alike`.

    `mergeable` of its small files may be merged now; `ineligible` counts the others by reason. Partitions with the same
    numbers of files are alike; their bytes are added up.
    """

    partition: dict[str, str | None]
    files: int
    size_bytes: int
    small_files: int
    mergeable: int
    small_bytes: int
    ineligible: dict[str, int]
    alike: int = 1

    @property
    def label(self) -> str:
        """`hour=h191/kind=3`, as people write it; `` for the one partition of an unpartitioned table."""
        return label_of(self.partition)


@dataclass(frozen=True)
class DeletesClass:
    """Number of data files with `at_least` delete files and less than twice as many."""

    at_least: int
    files: int


@dataclass(frozen=True)
class PendingDeletes:
    """Pending deletes.

    `files` is the number of data files to which some delete may apply; `files_due` of them are due for a
    rewrite. `deleted_rows` are known deletes, a share `row_share` of all rows. The rows of equality deletes, and of
    deletes for several files, are unknown. A scan opens `delete_files_per_file` on average for each data file,
    `worst_per_file` in the worst partition (`worst`; None without deletes), and `delete_files_max` for one file.
    """

    files: int = 0
    files_due: int = 0
    deleted_rows: int = 0
    row_share: float = 0.0
    delete_files_per_file: float = 0.0
    worst: dict[str, str | None] | None = None
    worst_per_file: float = 0.0
    delete_files_max: int = 0
    histogram: tuple[DeletesClass, ...] = ()


@dataclass(frozen=True)
class Inspection(Result):
    """The state of a table's data files at one snapshot. Sizes are in bytes.

    Attributes:
        table: The full name of the table.
        snapshot_id: The inspected snapshot; None for a table without snapshots.
        partitions: Number of partitions with files.
        files: Number of data files.
        size_bytes: Bytes of these files.
        rows: Rows in these files.
        small_file_limit_bytes: The size below which a file is small.
        target_file_size_bytes: The target size of a file.
        max_small_files: The policy key `max-small-files`.
        small_files: Number of small files.
        small_bytes: Bytes of the small files.
        small_files_max: The largest number of mergeable small files in one partition.
        histogram: Small files by size class.
        worst: Partitions with the most mergeable small files; those with the same numbers of files are one.
        ineligible: Number of small files that cannot be merged, by reason.
        ineligible_partitions: Partitions with the most ineligible files, in the same form.
        advice: Recommendations as sentences, with commands.
        deletes: Pending deletes of files of any size.
        files_to_merge: Number of files that a compaction would merge.
        files_merged: Number of files that would replace them.
        problems: Violations of the policy as sentences; empty for a healthy table.
        cost: Cost of a full scan, now and after a compaction.
        filters: The given filters, each with the number of files that it opens.
    """

    table: str
    snapshot_id: int | None
    partitions: int
    files: int
    size_bytes: int
    rows: int
    small_file_limit_bytes: int
    target_file_size_bytes: int
    max_small_files: int
    small_files: int
    small_bytes: int
    small_files_max: int
    histogram: tuple[SizeClass, ...]
    worst: tuple[PartitionSizes, ...]
    ineligible: dict[str, int]
    ineligible_partitions: tuple[PartitionSizes, ...]
    advice: tuple[Advice, ...]
    deletes: PendingDeletes = PendingDeletes()
    files_to_merge: int = 0
    files_merged: int = 0
    problems: tuple[str, ...] = ()
    cost: LayoutCost = NO_COST
    filters: tuple[FilterUse, ...] = ()

    KEYS = keys(advice=lambda inspection: list(map(str, inspection.advice)))


def inspect(
    layout: Layout,
    policy: SizePolicy,
    labels: Mapping[PartitionKey, dict[str, str | None]],
    plan: Plan,
    *,
    table: str,
    bytes_per_partition_and_day: float | None = None,
    notes: tuple[str, ...] = (),
    price_per_1000_requests: float | None = PRICE_PER_1000_REQUESTS,
    recommended: tuple[Advice, ...] = (),
) -> Inspection:
    """Count files and give advice.

    `labels` are the printed values of each partition key, `plan` is the plan of a compaction.
    `bytes_per_partition_and_day` is None if it is unknown. `recommended` is further advice; it precedes the advice to
    merge.
    """
    small = [f for p in layout.partitions.values() for f in p.small]
    in_order = sorted(layout.partitions.values(), key=lambda p: p.key.rank)
    sizes = [_sizes(p, labels[p.key]) for p in in_order]
    held = alike((p for p in sizes if p.ineligible), lambda p: p.label, _sum)
    deletes = _deletes(in_order, policy, labels)
    over, many_deletes = _over_limit(policy, sizes), _many_deletes(policy, deletes)
    # the advice to merge begins with these partitions
    unmerged = () if plan.groups else over
    return Inspection(
        table=table,
        snapshot_id=layout.head.snapshot_id,
        partitions=len(layout.partitions),
        files=layout.files,
        size_bytes=layout.size_bytes,
        rows=layout.rows,
        small_file_limit_bytes=policy.small_file_limit_bytes,
        target_file_size_bytes=policy.target_file_size_bytes,
        max_small_files=policy.max_small_files,
        small_files=len(small),
        small_bytes=sum(f.size_bytes for f in small),
        small_files_max=max((p.mergeable for p in sizes), default=0),
        histogram=_histogram([f.size_bytes for f in small], layout.small_file_limit_bytes),
        worst=_worst((p for p in sizes if p.mergeable), lambda p: p.mergeable),
        ineligible=_ineligible(held),
        ineligible_partitions=_worst(held, lambda p: sum(p.ineligible.values())),
        deletes=deletes,
        advice=(
            *map(Advice, (*notes, *unmerged, *many_deletes, *_advice(policy, bytes_per_partition_and_day, held))),
            *recommended,
            *_to_do(deletes, plan, over, f"icesize compact {shlex.quote(table)}"),
        ),
        files_to_merge=plan.files_removed,
        files_merged=plan.files_added,
        problems=(*over, *many_deletes),
        cost=LayoutCost.of(layout, plan, price_per_1000_requests),
    )


def _sizes(facts: PartitionFacts, label: dict[str, str | None]) -> PartitionSizes:
    held = Counter(f.obstacle.value for f in facts.small if f.obstacle)
    small_bytes = sum(f.size_bytes for f in facts.small)
    mergeable = len(facts.small) - held.total()
    return PartitionSizes(label, facts.files, facts.size_bytes, len(facts.small), mergeable, small_bytes, dict(held))


def _sum(one: PartitionSizes, other: PartitionSizes) -> PartitionSizes:
    counts = ("files", "size_bytes", "small_files", "mergeable", "small_bytes")
    total = {name: getattr(one, name) + getattr(other, name) for name in counts}
    return replace(one, **total, ineligible=_ineligible((one, other)))


def _worst(sizes: Iterable[PartitionSizes], files: Callable[[PartitionSizes], int]) -> tuple[PartitionSizes, ...]:
    """Return the partitions with the most `files`; those with the same numbers of files are one."""

    def add(first: PartitionSizes, other: PartitionSizes) -> PartitionSizes:
        added = {name: getattr(first, name) + getattr(other, name) for name in ("size_bytes", "small_bytes", "alike")}
        return replace(first, **added)

    counts = alike(sizes, lambda p: (p.files, p.small_files, *sorted(p.ineligible.items())), add)
    return tuple(sorted(counts, key=files, reverse=True)[:WORST_SHOWN])


def _ineligible(sizes: Iterable[PartitionSizes]) -> dict[str, int]:
    return dict(sum((Counter(p.ineligible) for p in sizes), Counter()))


def size_bounds(limit_bytes: int) -> list[int]:
    """Return the upper bounds of the size classes of small files: a factor of four apart, up to the limit."""
    bounds = [limit_bytes]
    while bounds[-1] > 64 * 1024:
        bounds.append(bounds[-1] // 4)
    return bounds[::-1]


def _histogram(sizes: list[int], limit_bytes: int) -> tuple[SizeClass, ...]:
    """Return the classes up to the limit, without empty ones at the small end."""
    bounds = size_bounds(limit_bytes)
    inside: list[list[int]] = [[] for _ in bounds]
    for size in sizes:
        inside[bisect_right(bounds, size)].append(size)
    classes = [SizeClass(upper, len(some), sum(some)) for upper, some in zip(bounds, inside, strict=True)]
    return tuple(dropwhile(lambda size_class: not size_class.files, classes))


def _deletes(
    partitions: Sequence[PartitionFacts], policy: SizePolicy, labels: Mapping[PartitionKey, dict[str, str | None]]
) -> PendingDeletes:
    hit = [(facts, files) for facts in partitions if (files := facts.with_deletes)]
    if not hit:
        return PendingDeletes()
    files = [file for _, some in hit for file in some]
    opened = [sum(file.delete_files for file in some) / max(1, facts.files) for facts, some in hit]
    worst_per_file = max(opened)
    worst, _ = hit[opened.index(worst_per_file)]
    known = sum(file.deleted_rows for file in files)
    classes = Counter(1 << (file.delete_files.bit_length() - 1) for file in files)
    return PendingDeletes(
        files=len(files),
        files_due=sum(f.obstacle is None and is_due(f, policy) for f in files) if policy.merging else 0,
        deleted_rows=known,
        row_share=known / max(1, sum(facts.rows for facts in partitions)),
        delete_files_per_file=sum(f.delete_files for f in files) / sum(facts.files for facts in partitions),
        worst=labels[worst.key],
        worst_per_file=worst_per_file,
        delete_files_max=max(file.delete_files for file in files),
        histogram=tuple(DeletesClass(least, count) for least, count in sorted(classes.items())),
    )


def _over_limit(policy: SizePolicy, partitions: Iterable[PartitionSizes]) -> tuple[str, ...]:
    over = sum(p.mergeable > policy.max_small_files for p in partitions)
    if not over or not policy.merging:
        return ()
    return (f"{format_count(over, 'partition')} with more than {policy.max_small_files} mergeable small files",)


def _many_deletes(policy: SizePolicy, deletes: PendingDeletes) -> tuple[str, ...]:
    if deletes.delete_files_max <= policy.max_delete_files:
        return ()
    most = f"up to {deletes.delete_files_max:,} delete files to be read with a file"
    return (f"{most}, more than {policy.max_delete_files}",)


def _to_do(deletes: PendingDeletes, plan: Plan, over: tuple[str, ...], command: str) -> Iterator[Advice]:
    if deletes.files_due:
        files, whose = format_count(deletes.files_due, "file"), "its" if deletes.files_due == 1 else "their"
        yield Advice(f"{files} due for rewriting: run `icesize compact` to remove {whose} deleted rows", command)
    if plan.groups:
        merged = f"`icesize compact` would merge {format_count(plan.files_removed, 'file')} into {plan.files_added:,}"
        yield Advice(": ".join((*over, merged)), command)


def _advice(policy: SizePolicy, bytes_per_day: float | None, held: list[PartitionSizes]) -> Iterator[str]:
    stuck = [p for p in held if sum(p.ineligible.values()) > policy.max_small_files]
    if stuck:
        yield (
            f"{format_count(len(stuck), 'partition')} with more than {policy.max_small_files} ineligible small files: "
            f"{cannot_merge(_ineligible(stuck))}"
        )
    little = bytes_per_day is not None and bytes_per_day < LITTLE_PER_DAY_BYTES
    if little and policy.target_file_size_bytes > SMALLER_TARGET_BYTES:
        yield (
            f"a partition gets about {(bytes_per_day or 0) / MIB:,.0f} MiB a day: a 128 MiB target fills sooner "
            f"and rewrites less (write.target-file-size-bytes = {SMALLER_TARGET_BYTES})"
        )
