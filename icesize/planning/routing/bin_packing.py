"""Files that need care in placing, on tasks: a bin packing whose items may be cut.

Used by `routing` for the partitions that are split or heavy; the others are poured on top.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from icesize.planning.sizing import ROUND_DOWN_RATIO, expected_files

MANY = 8
"""Files of one partition for each task above which they are not placed one by one."""

_LEVEL_ROUNDS = 12
"""Levelling one partition after the other comes near to the level of all; more rounds changed less than 0.1%."""

_LOOSER = tuple(1.03**n for n in range(1, 10))
"""Multiples of a bound that cannot be kept which are tried instead, up to 1.3: longest first is at 4/3 at worst."""


class Part(NamedTuple):
    """A partition that is split or heavy; `rank` is its place among all, heaviest first, `pieces` its first files."""

    rank: int
    weight: float
    expected: int
    limit: int
    pieces: int


class Rules(NamedTuple):
    """What all packings of a batch have in common; no task should carry more than `bound_bytes`."""

    tasks: int
    target_bytes: int
    cost_bytes: float
    bound_bytes: float


class Packing:
    """Where the parts are: bytes on each task, and what the tasks carry."""

    def __init__(self, parts: Sequence[Part], rules: Rules, fit_bytes: float) -> None:
        """Place each file on the fullest task that stays within `fit_bytes`, where there is none on the least loaded.

        With 0 that is longest first onto the least loaded.
        """
        self.parts, self.rules = parts, rules
        self.shares: list[dict[int, float]] = []
        self.loads = [0.0] * rules.tasks
        free = [(0.0, task) for task in range(rules.tasks)]
        for part in parts:
            free = self._place(part, free, fit_bytes)

    def _place(self, part: Part, free: list[tuple[float, int]], fit_bytes: float) -> list[tuple[float, int]]:
        """Place one part, and return the tasks by load again; what is split for balance gets a task for each file."""
        share, apart = part.weight / part.pieces, part.pieces > part.expected
        size = share + self.rules.cost_bytes
        counts: dict[int, int] = {}
        if part.pieces > MANY * self.rules.tasks:
            # all at once what they would get one by one, but for the last file of each task
            room = _fill({task: load for load, task in free}, size * part.pieces, math.inf)
            counts = {task: n for task, level in room.items() if (n := int(level // size)) > 0}
            missing = part.pieces - sum(counts.values())
            if not 0 <= missing <= self.rules.tasks:
                # numbers of files that a float does not hold exactly
                counts[free[0][1]] += missing
            free = sorted((load + counts.get(task, 0) * size, task) for load, task in free)
        taken = []
        for _ in range(part.pieces - sum(counts.values())):
            load, task = free.pop(max(0, bisect_right(free, (fit_bytes - size, self.rules.tasks)) - 1))
            counts[task] = counts.get(task, 0) + 1
            if apart:
                taken.append((load + size, task))
            else:
                insort(free, (load + size, task))
        for task, count in counts.items():
            self.loads[task] += count * size
        self.shares.append({task: count * share for task, count in counts.items()})
        return sorted(free + taken) if taken else free

    def add_small(
        self, weights: Sequence[float], expected: Sequence[int], split: dict[int, dict[int, float]]
    ) -> list[int]:
        """Give the files that are not in `split` to the least loaded tasks, in order; returns a task of each partition.

        Partitions of several files are added to `split`.
        """
        cost = self.rules.cost_bytes
        free = sorted((load, task) for task, load in enumerate(self.loads))
        owners = [0] * len(weights)
        careful = set(split)
        for rank, (weight, files) in enumerate(zip(weights, expected, strict=True)):
            if rank in careful:
                continue
            share = weight / files
            for _ in range(files):
                load, task = free[0]
                heapq.heapreplace(free, (load + share + cost, task))
                if files > 1:
                    shares = split.setdefault(rank, {})
                    shares[task] = shares.get(task, 0.0) + share
            owners[rank] = task
        for load, task in free:
            self.loads[task] = load
        return owners

    @property
    def highest(self) -> float:
        """Load of the task that carries most."""
        return max(self.loads)

    @property
    def fits(self) -> bool:
        """Whether no task exceeds the bound, but for rounding."""
        return self.highest <= self.rules.bound_bytes * (1 + 1e-9)

    @property
    def files(self) -> int:
        """Files of all parts."""
        return sum(self._files_of(position) for position in range(len(self.parts)))

    def _files_of(self, position: int) -> int:
        return sum(self._files(position, share) for share in self.shares[position].values())

    def _files(self, position: int, share_bytes: float) -> int:
        weight = self.parts[position].weight
        return share_files(weight, share_bytes / weight if weight else 1.0, self.rules.target_bytes)

    def level(self) -> None:
        """Move bytes of parts that are split for balance between their tasks, towards equal loads, at no new file."""
        loose = [n for n, part in enumerate(self.parts) if self._files_of(n) > part.expected]
        for _ in range(_LEVEL_ROUNDS):
            moved = [self._level(position) for position in loose]
            if max(moved, default=0.0) <= 1e-4 * self.rules.bound_bytes:
                return

    def _level(self, position: int) -> float:
        """Fill the least loaded tasks of one part as water would, and return the most that a task's load changed.

        Shares of several files stay as they are, and no share outgrows one file. A share that is lighter than closing
        its file is given up where the others can take it.
        """
        shares, most = self.shares[position], ROUND_DOWN_RATIO * self.rules.target_bytes * (1 - 1e-6)
        before = {task: share for task, share in shares.items() if share <= most}
        bases = {task: self.loads[task] - share for task, share in before.items()}
        total = math.fsum(before.values())
        after = _fill(bases, total, most)
        worth = {task: bases[task] for task, share in after.items() if share > max(1.0, self.rules.cost_bytes)}
        enough = max(self.parts[position].expected - len(shares) + len(before), total / most)
        if enough <= len(worth) < len(after):
            fewer = _fill(worth, total, most)
            if _top(worth, fewer) <= max(self.rules.bound_bytes, _top(worth, after)):
                after = fewer
        if min(after.values(), default=0.0) < 1.0:
            return 0.0
        for task in before.keys() - after.keys():
            del shares[task]
            self.loads[task] -= before[task] + self.rules.cost_bytes
        for task, share in after.items():
            shares[task] = share
            self.loads[task] = bases[task] + share
        return max(abs(before[task] - share) for task, share in after.items())

    def cut(self) -> None:
        """Move what is above the bound from the fullest tasks to the least loaded ones, with few new files."""
        bound = self.rules.bound_bytes
        held: list[set[int]] = [set() for _ in self.loads]
        for position, shares in enumerate(self.shares):
            for task in shares:
                held[task].add(position)
        over = [(-load, task) for task, load in enumerate(self.loads) if load > bound * (1 + 1e-9)]
        free = [(load, task) for task, load in enumerate(self.loads) if load <= bound * (1 + 1e-9)]
        heapq.heapify(over)
        heapq.heapify(free)
        while over and free:
            (load, task), (least, other) = over[0], free[0]
            amount = min(-load - bound, bound - self.rules.cost_bytes - least)
            if amount < 1.0:
                return
            heapq.heappop(over)
            chosen = self._to_move(held[task], task, amount)
            if chosen is None:
                continue
            position, moved = chosen
            self._add(position, task, -moved)
            self._add(position, other, moved)
            held[other].add(position)
            if task not in self.shares[position]:
                held[task].remove(position)
            heapq.heapreplace(free, (self.loads[other], other))
            if self.loads[task] > bound * (1 + 1e-9):
                heapq.heappush(over, (-self.loads[task], task))

    def _to_move(self, held: Iterable[int], task: int, amount: float) -> tuple[int, float] | None:
        """The part to move off a task, and how many of its bytes: a whole file where one is light enough.

        Else a cut, of a part that is split for balance already, or of the largest.
        """
        shares = {n: self.shares[n][task] for n in held}
        whole = [n for n, share in shares.items() if share <= amount and self._files(n, share) == 1]
        if whole:
            largest = max(whole, key=lambda n: (shares[n], -n))
            return largest, shares[largest]
        files = {n: self._files_of(n) for n, share in shares.items() if share >= amount + 1.0}
        cuttable = [n for n, count in files.items() if count < self.parts[n].limit]
        if not cuttable:
            return None
        return max(cuttable, key=lambda n: (files[n] > self.parts[n].expected, shares[n], -n)), amount

    def _add(self, position: int, task: int, amount: float) -> None:
        """Change the share of one part on one task; what has none left goes."""
        shares = self.shares[position]
        before = shares.pop(task, None)
        files = 0 if before is None else self._files(position, before)
        after = (before or 0.0) + amount
        if before is None or after > 0:
            shares[task] = after
            files -= self._files(position, after)
        self.loads[task] += amount - files * self.rules.cost_bytes


def pack(parts: Sequence[Part], rules: Rules) -> Packing:
    """The packing within the bound that has the fewest files; where there is none, the one with the lowest maximum."""
    tried: list[Packing] = []
    for fit_bytes in (0.0, rules.bound_bytes, *(rules.bound_bytes * looser for looser in _LOOSER)):
        packing = Packing(parts, rules, fit_bytes)
        packing.level()
        if packing.fits:
            return packing
        packing.cut()
        packing.level()
        tried.append(packing)
        if len(tried) > 1 and any(packing.fits for packing in tried):
            break
    return min(tried, key=lambda packing: (0.0 if packing.fits else packing.highest, packing.files, packing.highest))


def share_files(weight: float, share: float, target: int) -> int:
    """Files that a share of a partition becomes."""
    # rounding must not make n whole files out of m a file less
    return max(1, expected_files(weight * share * (1 if share == 1 else 1 + 1e-12), target))


def _fill(bases: Mapping[int, float], total: float, most: float) -> dict[int, float]:
    """Amounts up to `most`, together `total`, that raise the lowest of `bases` to one level."""
    turns = sorted([(base, 1) for base in bases.values()] + [(base + most, -1) for base in bases.values()])
    level, rising, left = 0.0, 0, total
    for turn, change in turns:
        gained = rising * (turn - level)
        if rising and gained >= left:
            break
        level, rising, left = turn, rising + change, left - gained
    if rising:
        level += left / rising
    return {task: min(most, max(0.0, level - base)) for task, base in bases.items()}


def _top(bases: Mapping[int, float], amounts: Mapping[int, float]) -> float:
    return max(base + amounts[task] for task, base in bases.items())
