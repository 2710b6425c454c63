"""How many tasks write a batch, which of them which partitions, how much of each, and where it is cut for them.

Few files and equal loads pull in opposite directions: a partition on one task is one file, spread over all tasks it is
as many files as there are tasks. The rule: a partition is split for its size, and for balance only where a task would
otherwise carry too much. What is split for balance has unequal shares, which level the loads at no further file.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any, Generic, NamedTuple, TypeVar

from icesize.planning.routing.bin_packing import Item, Rules, pack, share_files
from icesize.planning.sizing import expected_files
from icesize.policy import CLOSE_FILE_COST_BYTES

Key = TypeVar("Key", bound=Hashable)

Value = TypeVar("Value", bound=Any)
"""A plain value of a column, which compares with those of the same column."""

MOST_TASK_BYTES = 2**30
"""Bytes that one task writes at most, half a minute: what is lost when it fails and runs again."""

MERGE_COST = 0.5
"""Time of merging a byte, of writing a new one: 65-75 MB/s decoded and encoded against 35 MB/s through Spark."""

_LEAST_PART = 0.01
"""A file below this part of a task's fair load is never cut: it may exceed a tolerance below 1% by as much."""


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
    """Gives each partition its tasks and shares, so that files are few and tasks are about equally loaded.

    `weights_bytes` are the expected bytes of each partition. A task's load is the bytes of its shares and
    `close_file_cost_bytes` for each of its files; the bound is the mean load times (1 + `tolerance`), or the largest
    file where that may not be split further. A partition gets `expected_files` files of equal size, several of them on
    one task where that suits; it gets more, each on its own task, only where a task would exceed the bound, and then at
    most max(expected files, `most_files`), and none planned lighter than closing it costs or than a byte. `most_files`
    None: as many as balance needs. Where closing files is a large part of the mean load, the bound may be missed.
    There are fewer than `tasks` files beside those that any routing needs for size and balance.

    The largest files are placed first, each on the least loaded task. What exceeds the bound then is cut off, unless
    best fit finds room for it whole (see `bin_packing`). The same weights give the same routing, whatever the order of
    the mapping: `repr` decides between partitions of equal weight.

    Raises ValueError when a weight is negative or not finite, the loads add up to more than a float holds, `tasks` or
    the target is below 1, the close-file cost or the tolerance is negative or not finite, or `most_files` negative.
    """
    request = _Request(tasks, target_file_size_bytes, close_file_cost_bytes, tolerance, most_files)
    request.check()
    _check_weights(weights_bytes)
    ordered = sorted(weights_bytes.items(), key=lambda item: (-item[1], repr(item[0])))
    items, rules = _divided([weight for _, weight in ordered], request)
    by_size = sorted(range(len(items)), key=lambda n: -items[n].piece_bytes)
    shares = dict(zip(by_size, pack([items[n] for n in by_size], rules).shares, strict=True))
    assignment = {key: _fractions(shares[n]) for n, (key, _) in enumerate(ordered)}
    files = {
        key: sum(share_files(weight, share, target_file_size_bytes) for _, share in assignment[key])
        for key, weight in ordered
    }
    return Routing(tasks, assignment, files)


def skew(loads_bytes: Sequence[float]) -> float:
    """The most that one writer has over the mean of all; 1.0 where there is nothing to write."""
    mean = sum(loads_bytes) / len(loads_bytes)
    return max(loads_bytes) / mean if mean else 1.0


class _Request(NamedTuple):
    """What `route` was asked for, but for the weights."""

    tasks: int
    target: int
    cost: float
    tolerance: float
    most_files: int | None

    def check(self) -> None:
        """Raise ValueError for what makes no sense."""
        if self.tasks < 1:
            raise ValueError(f"'tasks' ({self.tasks}) must be >= 1: no task would write the rows")
        if self.target < 1:
            raise ValueError(f"'target_file_size_bytes' ({self.target}) must be >= 1: no file could be of that size")
        for name, value, why in (
            ("close_file_cost_bytes", self.cost, "a file more never saves work"),
            ("tolerance", self.tolerance, "some task carries at least the mean"),
            ("most_files", self.most_files or 0, "leave it out for as many as balance needs"),
        ):
            if not 0 <= value < math.inf:
                raise ValueError(f"'{name}' ({value}) must be >= 0 and finite: {why}")

    def limit(self, expected: int) -> int:
        """The most files of a partition that has so many for its size."""
        return max(expected, expected + self.tasks if self.most_files is None else self.most_files)

    def most_pieces(self, weight: float, expected: int) -> int:
        """Equal pieces that a partition may be split into: each on its own task, and none lighter than closing it."""
        return max(expected, int(min(self.limit(expected), self.tasks, weight // max(1.0, self.cost))))


def _divided(weights: Sequence[float], request: _Request) -> tuple[list[Item], Rules]:
    """Divide what no task can carry whole into equal pieces, and say what a task may carry; `weights` descend."""
    expected, cost = [max(1, expected_files(weight, request.target)) for weight in weights], request.cost
    total, least_files = math.fsum(weights), sum(expected)
    fair = _mean(total, least_files, cost, request.tasks)
    large = [
        (weight, files, request.most_pieces(weight, files))
        for weight, files in takewhile(lambda item: item[0] + cost > fair, zip(weights, expected, strict=True))
        if weight
    ]
    inevitable = max((weight / most + cost for weight, _, most in large), default=0.0)

    def bound(files: int) -> float:
        return max(_mean(total, files, cost, request.tasks) * (1 + request.tolerance), inevitable)

    def pieces(further: int) -> list[int]:
        room = bound(least_files + further) - cost
        # rounding must not add a piece
        counts = [max(files, math.ceil(w / max(room, w / most) * (1 - 1e-12))) for w, files, most in large]
        return counts + expected[len(large) :]

    # each further file raises the mean load, and with it the bound: the fewest that are enough
    most_further = sum(pieces(0)) - least_files
    further = bisect_left(range(most_further), True, key=lambda further: sum(pieces(further)) <= least_files + further)
    counts = pieces(further)
    fair, most = _mean(total, sum(counts), cost, request.tasks), bound(sum(counts))
    items = [Item(w, n, request.limit(n), count) for w, n, count in zip(weights, expected, counts, strict=True)]
    gap = max(most - fair, _LEAST_PART * fair) - cost
    return items, Rules(request.tasks, request.target, cost, most, gap)


def _fractions(shares: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """Tasks in order, with their part of the bytes."""
    if len(shares) == 1:
        return tuple((task, 1.0) for task in shares)
    total = math.fsum(shares.values())
    return tuple((task, shares[task] / total) for task in sorted(shares))


def _mean(total: float, files: int, cost: float, tasks: int) -> float:
    try:
        mean = (total + cost * files) / tasks
    except OverflowError:
        mean = math.inf
    if mean == math.inf:
        raise ValueError(f"Cannot route: {total} bytes in {files} files are more than a float holds with their cost")
    return mean


def _check_weights(weights_bytes: Mapping[Key, float]) -> None:
    for key, weight in weights_bytes.items():
        if not 0 <= weight < math.inf:
            raise ValueError(f"'weights_bytes[{key!r}]' ({weight}) must be >= 0 and finite: it is a number of bytes")
    try:
        math.fsum(weights_bytes.values())
    except OverflowError:
        key = max(weights_bytes, key=weights_bytes.__getitem__)
        raise ValueError(
            f"Cannot route: the weights add up to more than a float holds; {key!r} alone weighs {weights_bytes[key]}"
        ) from None


def tasks_for(work_bytes: float, cores: int, task_bytes: int) -> int:
    """Tasks for a batch: one per core, fewer for little work, more in whole waves where one would write too much.

    `work_bytes` are bytes to write and the cost of closing files; fewer than `task_bytes` are not worth a task.
    """
    waves = max(1, math.ceil(work_bytes / (MOST_TASK_BYTES * cores)))
    return max(1, min(waves * cores, math.ceil(work_bytes / task_bytes)))


def side_by_side(work_bytes: float, merges_bytes: Sequence[int], tasks: int, cores: int) -> tuple[int, int]:
    """Tasks that write the batch, and Spark tasks that merge at the same time.

    Divides the cores between a write job that would take `tasks` tasks and the merge groups of a Spark job.

    Rows can be divided over any number of tasks, a merge group cannot: where groups would still run when the rows
    are written they get cores of their own from the start. Of all divisions the one that ends first, of equal ones
    that with most tasks for the rows. A batch of several waves is not divided: merges fill the gaps at its end.
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


def range_bounds(shares: Sequence[float], quantiles: Sequence[Value]) -> tuple[Value, ...]:
    """The len(`shares`) - 1 values between the parts of a partition, ascending.

    Part i gets the rows whose value is below bounds[i] and not below bounds[i - 1]; the first part has no lower and
    the last no upper bound, so that values outside of the quantiles have a part too. `quantiles` are equally spaced
    and ascending: j / len(`quantiles`) of the rows are below quantiles[j], as in a sorted sample of the rows. The parts
    differ from their shares by half a quantile at most.

    Rows of one value stay together. A value that many rows have is a run of equal quantiles; the cut goes to that end
    of the run that is nearer to the share, before it where both are equally near or nothing comes after the run.
    Several cuts at the same end are equal bounds, with empty ranges between them.
    """
    return tuple(_cut(quantiles, below * len(quantiles)) for below in list(accumulate(shares))[:-1])


def _cut(quantiles: Sequence[Value], position: float) -> Value:
    """The first value above the cut, which is at the end of a run of equal quantiles."""
    value = quantiles[min(len(quantiles) - 1, math.floor(position + 0.5))]
    before, after = bisect_left(quantiles, value), bisect_right(quantiles, value)
    nearer_after = after < len(quantiles) and after - position < position - before
    return quantiles[after if nearer_after else before]
