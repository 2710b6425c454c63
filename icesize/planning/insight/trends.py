"""Small files and delete files of partitions over time: states of a table at several times. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from icesize.planning.files import Layout
from icesize.planning.insight.inspection import size_bounds
from icesize.planning.plan import Plan

Item = TypeVar("Item")


class FileCounts(NamedTuple):
    """Files of one partition at one time."""

    files: int = 0
    small_files: int = 0
    delete_files: int = 0

    def plus(self, other: FileCounts) -> FileCounts:
        """The sum."""
        return FileCounts(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class PastState:
    """The files of a table at one snapshot: by partition, as people write it, and by size class.

    Size classes lie between `size_bounds`, the smallest first. The last class has the well-sized files.
    """

    snapshot_id: int
    timestamp_ms: int
    partitions: Mapping[str, FileCounts]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class PartitionTrend:
    """One partition: its data files now, and its small files and delete files at each time."""

    label: str
    files: int
    small_files: tuple[int, ...]
    delete_files: tuple[int, ...]

    @property
    def worst(self) -> int:
        """The most that there ever were of both."""
        return max(map(sum, zip(self.small_files, self.delete_files, strict=True)), default=0)

    @property
    def now(self) -> int:
        """Both, at the last time."""
        return (self.small_files[-1] + self.delete_files[-1]) if self.small_files else 0


@dataclass(frozen=True)
class Trends:
    """Partitions over time, the worst first. `times_ms` and `snapshot_ids` belong to the states, oldest first.

    `left_out` counts the partitions that are not listed. `unreadable` counts the states that storage no longer has.
    """

    snapshot_ids: tuple[int, ...] = ()
    times_ms: tuple[int, ...] = ()
    partitions: tuple[PartitionTrend, ...] = ()
    left_out: int = 0
    unreadable: int = 0

    @classmethod
    def of(cls, states: Sequence[PastState], most_partitions: int, unreadable: int = 0) -> Trends:
        """The partitions that had the most small files and delete files at any of these times, then now."""
        labels = dict.fromkeys(label for state in states for label in state.partitions)
        counts = {label: [state.partitions.get(label, FileCounts()) for state in states] for label in labels}
        trends = [
            PartitionTrend(label, c[-1].files, tuple(n.small_files for n in c), tuple(n.delete_files for n in c))
            for label, c in counts.items()
        ]
        trends.sort(key=lambda trend: (-trend.worst, -trend.now, trend.label))
        return cls(
            tuple(state.snapshot_id for state in states),
            tuple(state.timestamp_ms for state in states),
            tuple(trends[:most_partitions]),
            max(0, len(trends) - most_partitions),
            unreadable,
        )


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most `most` of the items (at least two), in their order, evenly chosen, with both ends."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


@dataclass(frozen=True)
class FileSizes:
    """Number of data files by size class.

    A class has the small files below its bound (bytes, exclusive) and not below the bound before. The last class has
    the well-sized files, so `files` has one number more than `bounds`.
    """

    bounds: tuple[int, ...]
    files: tuple[int, ...]

    @property
    def small(self) -> int:
        """All that are not well sized."""
        return sum(self.files[:-1])


def count_by_size(sizes: Iterable[int], bounds: Sequence[int]) -> Counter[int]:
    """Files by the number of their size class."""
    return Counter(bisect_right(bounds, size) for size in sizes)


def file_sizes(layout: Layout, plan: Plan | None = None) -> FileSizes:
    """Return the data files of a layout by size, or those after a plan whose outputs have their expected size."""
    bounds, groups = size_bounds(layout.small_file_limit_bytes), plan.groups if plan else ()
    small = [file.size_bytes for facts in layout.partitions.values() for file in facts.small]
    counts = count_by_size(
        [*small, *(group.output_size_bytes for group in groups for _ in range(group.outputs))], bounds
    )
    counts[len(bounds)] += layout.files - len(small)
    counts.subtract(count_by_size((file.size_bytes for group in groups for file in group.inputs), bounds))
    return FileSizes(tuple(bounds), tuple(counts[i] for i in range(len(bounds) + 1)))
