"""The tasks that write a batch: their number, their partitions, and the cuts of partitions that several of them share.

Few files and equal loads pull in opposite directions: a partition on one task is one file, spread over all tasks it is
one file for each task. The rule: a partition is split for its size, and for balance only where a task would
otherwise carry too much. What is split for balance has unequal shares, which level the loads at no further file.

Nothing finer paid. A packing with best fit and cuts after it had as many files (1.001 times) and as even loads (1.04
both, on average 1.18 where partitions came out 20 % otherwise). That was simulated on 2,808 batches: alike, by hours,
by Zipf's law, lognormal and a few large partitions, on 2 to 200 tasks.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, NamedTuple

from icesize.planning.file_sizes import ROUND_DOWN_RATIO, expected_files
from icesize.planning.routing.traffic import Key
from icesize.policy import CLOSE_FILE_COST_BYTES

MOST_TASK_BYTES = 2**30
"""Bytes that one task writes at most, half a minute: what is lost when it fails and runs again."""

MERGE_COST = 0.5
"""Time of merging a byte, of writing a new one: 65-75 MB/s decoded and encoded against 35 MB/s through Spark."""

MANY = 8
"""The last files per task of one partition that are placed one by one; those before are the same on every task."""

_LEVEL_ROUNDS = 4
"""Levelling one partition after the other comes near to the level of all; more rounds changed less than 0.1%."""


@dataclass(frozen=True)
class Routing(Generic[Key]):
    """Tasks 0 .. `tasks` - 1, who writes what, and the files each partition is expected to get.

    `assignment` gives each partition its tasks, in ascending order, each with the share of the partition's rows that it
    writes: a fraction above 0; the shares of a partition add up to 1.
    """

    tasks: int
    assignment: Mapping[Key, tuple[tuple[int, float], ...]]
    files: Mapping[Key, int]


def route(
    weights_bytes: Mapping[Key, float],
    tasks: int,
    target_file_size_bytes: int,
    close_file_cost_bytes: float = CLOSE_FILE_COST_BYTES,
    tolerance: float = 0.1,
    *,
    most_files: int | None = None,
) -> Routing[Key]:
    """Give each partition its tasks and shares, so that files are few and tasks are about equally loaded.

    `weights_bytes` are the expected bytes of each partition. The load of a task is the bytes of its shares, and
    `close_file_cost_bytes` for each of its files. The bound of a load is the mean load times (1 + `tolerance`). The
    mean includes the cost of `tasks` - 1 cuts. If the largest file exceeds this bound and may not be split, it is the
    bound. If closing files is a large part of the mean load, the bound may be missed.

    A partition gets `expected_files` files of equal size. Several of them may be on one task. It gets more files only
    if a task would exceed the bound, and at most max(expected files, `most_files`). `most_files` None means the files
    that balance needs. No planned file is lighter than a byte or than the cost of closing it. There are fewer than
    `tasks` files beside those that any routing needs for size and balance.

    The largest files are placed first, each on the least loaded task (longest first, Graham 1969). What exceeds the
    bound there is cut off for the next task. This gives the number of needed files. If some were cut, as many equal
    files are placed once more. Small files then lie beside large ones on every task, and a batch that differs from the
    expectation is divided better. In both cases, the parts of a partition level the loads of their tasks. The same
    weights give the same routing, in any order of the mapping: `repr` decides between partitions of equal weight.
    """
    cost = close_file_cost_bytes
    ordered = sorted(weights_bytes.items(), key=lambda item: (-item[1], repr(item[0])))
    expected = [max(1, expected_files(weight, target_file_size_bytes)) for _, weight in ordered]
    # fewer than `tasks` cuts level any loads; a bound without the cost of these files would need more and more cuts
    fair = (math.fsum(weights_bytes.values()) + cost * (sum(expected) + tasks - 1)) / tasks
    items = [
        _Item(weight, files, max(files, files + tasks if most_files is None else most_files))
        for (_, weight), files in zip(ordered, expected, strict=True)
    ]
    large = takewhile(lambda item: item.weight + cost > fair, items)
    # what its lightest parts make of a task is inevitable: it were in vain to cut others for less
    inevitable = [item.weight / item.most_parts(tasks, cost) + cost for item in large if item.weight]
    rules = _Rules(tasks, target_file_size_bytes, cost, max([fair * (1 + tolerance), *inevitable]))
    whole = [item.expected if rules.fits(item.weight / item.expected + cost) else 1 for item in items]
    packing = _Packing(items, whole, [item.limit for item in items], rules)
    if packing.files != expected:
        even = _Packing(items, packing.files, packing.files, rules)
        packing = even if rules.fits(even.highest) or even.highest <= packing.highest else packing
    assignment = {key: _fractions(shares) for (key, _), shares in zip(ordered, packing.shares, strict=True)}
    files = {
        key: sum(share_files(weight, share, target_file_size_bytes) for _, share in assignment[key])
        for key, weight in ordered
    }
    return Routing(tasks, assignment, files)


def share_files(weight: float, share: float, target: int) -> int:
    """Return the number of files for a share of a partition."""
    # rounding must not make n whole files out of m a file less
    return max(1, expected_files(weight * share * (1 if share == 1 else 1 + 1e-12), target))


def skew(loads_bytes: Sequence[float]) -> float:
    """Return the largest load over the mean of all writers; 1.0 if nothing is written."""
    mean = sum(loads_bytes) / len(loads_bytes)
    return max(loads_bytes) / mean if mean else 1.0


class _Item(NamedTuple):
    """A partition: its bytes, its files for its size, and the most that it may have."""

    weight: float
    expected: int
    limit: int

    def most_parts(self, tasks: int, cost: float) -> int:
        """Return the most equal parts of the partition: each on its own task, and none lighter than the cost of closing
        it.
        """
        return max(self.expected, int(min(self.limit, tasks, self.weight // max(1.0, cost))))


class _Rules(NamedTuple):
    """No task should carry more than `bound` bytes; each file costs a task `cost` bytes beside its own."""

    tasks: int
    target: int
    cost: float
    bound: float

    def fits(self, load: float) -> bool:
        """Return whether a load is within the bound, except for rounding."""
        return load <= self.bound * (1 + 1e-9)


class _Packing:
    """Partitions on tasks: `shares` are the bytes of each by task, `files` how many files it got.

    Each partition is placed as its equal `pieces`, the largest first, and cut into at most `limits` files.
    """

    def __init__(self, items: Sequence[_Item], pieces: Sequence[int], limits: Sequence[int], rules: _Rules) -> None:
        self._rules, self._free = rules, [(0.0, task) for task in range(rules.tasks)]
        self.shares: list[dict[int, float]] = [{} for _ in items]
        self.files = list(pieces)
        for n in sorted(range(len(items)), key=lambda n: -items[n].weight / pieces[n]):
            self._place(n, items[n].weight / pieces[n], limits[n])
        self._level([self.shares[n] for n, item in enumerate(items) if self.files[n] > item.expected])

    def _place(self, n: int, size: float, limit: int) -> None:
        """Put the pieces of an item, bytes of each given, on the least loaded tasks."""
        pieces, tasks, cost = self.files[n], self._rules.tasks, self._rules.cost
        if each := max(0, pieces // tasks - MANY):
            self.shares[n] = dict.fromkeys(range(tasks), each * size)
            self._free = [(load + each * (size + cost), task) for load, task in self._free]
        for _ in range(pieces - each * tasks):
            left = size
            while True:
                load, task = self._free[0]
                room = self._rules.bound - cost - load
                part = room if self.files[n] < limit and self._is_worth(room, left) else left
                self.files[n] += part < left
                self.shares[n][task] = self.shares[n].get(task, 0.0) + part
                heapq.heapreplace(self._free, (load + part + cost, task))
                left -= part
                if not left:
                    break

    def _is_worth(self, room: float, size: float) -> bool:
        """Return whether to cut this many bytes at the end of the room: neither part costs less than closing a file."""
        least = max(1.0, self._rules.cost)
        return room >= least and size - room >= max(least, 1e-9 * self._rules.bound)

    def _level(self, cut: list[dict[int, float]]) -> None:
        """Move bytes of what was cut from the fullest of its tasks to the least loaded one, at no new file.

        Shares of several files stay as they are, and no share outgrows one file.
        """
        least, most = max(1.0, self._rules.cost), ROUND_DOWN_RATIO * self._rules.target * (1 - 1e-6)
        loads = {task: load for load, task in self._free}
        for shares in cut * _LEVEL_ROUNDS:
            tasks = [task for task, share in shares.items() if share <= most]
            for _ in tasks:
                low, high = min(tasks, key=loads.__getitem__), max(tasks, key=loads.__getitem__)
                moved = min((loads[high] - loads[low]) / 2, shares[high] - least, most - shares[low])
                if moved <= 0:
                    break
                for task, change in ((low, moved), (high, -moved)):
                    shares[task] += change
                    loads[task] += change
        self.highest = max(loads.values())


def _fractions(shares: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """Return the tasks in order, with their part of the bytes."""
    if len(shares) == 1:
        return tuple((task, 1.0) for task in shares)
    total = math.fsum(shares.values())
    return tuple((task, shares[task] / total) for task in sorted(shares))


def tasks_for(work_bytes: float, cores: int, task_bytes: int) -> int:
    """Return the tasks of a batch: one per core, fewer for little work, more in whole waves if one would write too
    much.

    `work_bytes` are bytes to write and the cost of closing files. Less than `task_bytes` is not worth a task.
    """
    waves = max(1, math.ceil(work_bytes / (MOST_TASK_BYTES * cores)))
    return max(1, min(waves * cores, math.ceil(work_bytes / task_bytes)))


def side_by_side(work_bytes: float, merges_bytes: Sequence[int], tasks: int, cores: int) -> tuple[int, int]:
    """Tasks that write the batch, and Spark tasks that merge at the same time.

    Divides the cores between a write job that would take `tasks` tasks and the merge groups of a Spark job.

    Rows can be divided over any number of tasks, a merge group cannot: where groups would still run when the rows
    are written they get cores of their own from the start. The division that ends first is chosen; among equal ones,
    the one with most tasks for the rows. A batch of several waves is not divided: merges fill the gaps at its end.
    """
    merging = MERGE_COST * sum(merges_bytes)
    slots = max(1, min(cores, len(merges_bytes)))
    if not merging or tasks > cores:
        return tasks, slots
    longest = MERGE_COST * max(merges_bytes)
    one_after_the_other = work_bytes / tasks + max(merging / slots, longest)
    divisions = [(one_after_the_other, -tasks, slots)]
    for merge_tasks in range(1, min(cores - 1, len(merges_bytes)) + 1):
        writers = min(tasks, cores - merge_tasks)
        divisions.append((max(work_bytes / writers, merging / merge_tasks, longest), -writers, merge_tasks))
    _, writers, merge_tasks = min(divisions)
    return -writers, merge_tasks
