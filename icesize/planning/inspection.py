"""How well sized a table is: counts, a histogram, the worst partitions and advice. Pure, from a Layout."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from icesize.planning.layout import Layout, PartitionFacts
from icesize.policy import SizePolicy

MIB = 2**20
SMALLER_TARGET_BYTES = 128 * MIB
"""Target advised for partitions that get little: files of 128 MiB are Iceberg's row group size, so scans lose nothing."""

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
    """One partition in an inspection; `mergeable` of its small files may be merged now."""

    partition: dict[str, str]
    files: int
    size_bytes: int
    small_files: int
    mergeable: int
    small_bytes: int


@dataclass(frozen=True)
class Inspection:
    """The state of a table's data files at one snapshot. Sizes in bytes; `held_back` counts small files by reason."""

    table: str
    snapshot_id: int | None
    partitions: int
    files: int
    size_bytes: int
    rows: int
    small_file_limit_bytes: int
    target_file_size_bytes: int
    small_files: int
    small_bytes: int
    small_files_max: int
    histogram: tuple[SizeClass, ...]
    worst: tuple[PartitionSizes, ...]
    held_back: dict[str, int]
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values under the field names."""
        return asdict(self)

    def __str__(self) -> str:
        mib = self.size_bytes / MIB
        lines = [
            f"{self.table}  {self.partitions:,} partitions  {self.files:,} files  {mib:,.1f} MiB",
            f"small files (< {self.small_file_limit_bytes / MIB:,.1f} MiB) {self.small_files:,}, "
            f"most in one partition {self.small_files_max:,}",
            *self.advice,
        ]
        return "\n".join(lines)


def inspect(
    table: str,
    layout: Layout,
    policy: SizePolicy,
    labels: dict[object, dict[str, str]],
    bytes_per_partition_and_day: float | None,
    notes: tuple[str, ...] = (),
    worst: int = 10,
) -> Inspection:
    """Count and advise. `labels` print the values of each partition key; what a partition gets per day may be None."""
    small = [f for p in layout.partitions.values() for f in p.small]
    mergeable = {k: [f for f in p.small if f.obstacle is None] for k, p in layout.partitions.items()}
    held: dict[str, int] = {}
    for file in small:
        if file.obstacle is not None:
            held[file.obstacle.value] = held.get(file.obstacle.value, 0) + 1
    ranked = sorted(layout.partitions.values(), key=lambda p: (-len(mergeable[p.key]), repr(p.key)))
    return Inspection(
        table=table,
        snapshot_id=layout.snapshot_id,
        partitions=len(layout.partitions),
        files=layout.files,
        size_bytes=layout.size_bytes,
        rows=layout.rows,
        small_file_limit_bytes=policy.small_file_limit_bytes,
        target_file_size_bytes=policy.target_file_size_bytes,
        small_files=len(small),
        small_bytes=sum(f.size_bytes for f in small),
        small_files_max=max((len(m) for m in mergeable.values()), default=0),
        histogram=_histogram([f.size_bytes for f in small], policy.small_file_limit_bytes),
        worst=tuple(_sizes(p, labels[p.key], len(mergeable[p.key])) for p in ranked[:worst] if p.small),
        held_back=held,
        advice=(*notes, *_advice(policy, bytes_per_partition_and_day, mergeable)),
    )


def _sizes(facts: PartitionFacts, label: dict[str, str], mergeable: int) -> PartitionSizes:
    small_bytes = sum(f.size_bytes for f in facts.small)
    return PartitionSizes(label, facts.files, facts.size_bytes, len(facts.small), mergeable, small_bytes)


def _histogram(sizes: list[int], limit_bytes: int) -> tuple[SizeClass, ...]:
    """Classes a factor of four apart, from the limit down; empty ones at the small end are left out."""
    bounds = [limit_bytes]
    while bounds[-1] > 64 * 1024:
        bounds.append(bounds[-1] // 4)
    classes = []
    for upper, lower in zip(bounds, [*bounds[1:], -1], strict=True):
        inside = [s for s in sizes if lower <= s < upper]
        classes.append(SizeClass(upper, len(inside), sum(inside)))
    while classes and classes[-1].files == 0:
        classes.pop()
    return tuple(reversed(classes))


def _advice(
    policy: SizePolicy, bytes_per_day: float | None, mergeable: dict[Any, list[Any]]
) -> list[str]:
    advice = []
    over = sum(len(m) > policy.max_small_files for m in mergeable.values())
    if over:
        advice.append(
            f"{over:,} partitions hold more than {policy.max_small_files} mergeable small files: run `icesize compact`"
        )
    little = bytes_per_day is not None and bytes_per_day < LITTLE_PER_DAY_BYTES
    if little and policy.target_file_size_bytes > SMALLER_TARGET_BYTES:
        advice.append(
            f"a partition gets about {(bytes_per_day or 0) / MIB:,.0f} MiB a day: a target of 128 MiB would be reached "
            f"sooner and rewrite less (write.target-file-size-bytes = {SMALLER_TARGET_BYTES})"
        )
    return advice
