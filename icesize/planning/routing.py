"""Which tasks write which partitions of a batch."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from icesize.planning.sizing import expected_files

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Routing(Generic[Key]):
    """Tasks 0 .. `tasks` - 1, the tasks of each partition, and the files each partition is expected to get."""

    tasks: int
    assignment: Mapping[Key, tuple[int, ...]]
    files: Mapping[Key, int]


def route(
    weights_bytes: Mapping[Key, float],
    tasks: int,
    target_file_size_bytes: int,
    max_small_files: int,
    tolerance: float = 0.25,
) -> Routing[Key]:
    """Gives each partition its tasks, so that files are few and tasks are about equally loaded.

    `weights_bytes` are the expected bytes of each partition. A partition gets one task per expected file; more only
    where one task would carry more than its fair share (total / tasks) times (1 + `tolerance`), and then at most
    max(expected files, `max_small_files` // 2), so that the new files leave half of the slots for older small ones.
    The largest shares are placed first, each on the least loaded task. The same weights give the same routing,
    whatever the order of the mapping. Raises ValueError when `tasks` < 1.
    """
    if tasks < 1:
        raise ValueError(f"'tasks' ({tasks}) must be >= 1: no task would write the rows")
    fair_bytes = sum(sorted(weights_bytes.values())) / tasks * (1 + tolerance)
    parts: dict[Key, int] = {}
    for key, weight in weights_bytes.items():
        parts[key] = min(tasks, _parts(weight, fair_bytes, target_file_size_bytes, max_small_files // 2))
    files = {
        key: count * max(1, expected_files(weights_bytes[key] / count, target_file_size_bytes))
        for key, count in parts.items()
    }
    return Routing(tasks, _place(weights_bytes, parts, tasks), files)


def _parts(weight_bytes: float, fair_bytes: float, target_file_size_bytes: int, most_for_balance: int) -> int:
    """Tasks that one partition is split over, before the number of tasks limits it."""
    files = max(1, expected_files(weight_bytes, target_file_size_bytes))
    # a share below one byte is not worth a second file, and may be too small to divide by
    if weight_bytes / files <= max(1.0, fair_bytes):
        return files
    return max(files, min(most_for_balance, math.ceil(weight_bytes / fair_bytes)))


def _place(weights_bytes: Mapping[Key, float], parts: Mapping[Key, int], tasks: int) -> dict[Key, tuple[int, ...]]:
    """Longest processing time first: 4/3 of the best possible maximum at worst (Graham 1969)."""
    load = [(0.0, task) for task in range(tasks)]
    assignment: dict[Key, tuple[int, ...]] = {}
    for key in sorted(parts, key=lambda key: (-weights_bytes[key] / parts[key], repr(key))):
        chosen = [heapq.heappop(load) for _ in range(parts[key])]
        assignment[key] = tuple(sorted(task for _, task in chosen))
        for carried, task in chosen:
            heapq.heappush(load, (carried + weights_bytes[key] / parts[key], task))
    return assignment
