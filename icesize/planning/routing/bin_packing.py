"""Files on tasks: a bin packing whose items may be cut.

Longest first onto the least loaded task (Graham 1969) is right for nearly all batches. What it puts above the bound is
cut off, unless best fit finds room for it whole.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from icesize.planning.sizing import ROUND_DOWN_RATIO, expected_files

MANY = 8
"""The last files per task of one partition that are placed one by one; those before are the same on every task."""

_LEVEL_ROUNDS = 12
"""Levelling one partition after the other comes near to the level of all; more rounds changed less than 0.1%."""


class Item(NamedTuple):
    """A partition: its bytes, its files for its size, the most that it may have, and the equal pieces to begin with.

    With more pieces than `expected` it is split for balance, and each piece is on a task of its own.
    """

    weight: float
    expected: int
    limit: int
    pieces: int

    @property
    def piece_bytes(self) -> float:
        """Bytes of one piece."""
        return self.weight / self.pieces


class Rules(NamedTuple):
    """What all packings of a batch have in common; each file costs a task `cost_bytes` beside its own bytes.

    No task should carry more than `bound_bytes`; a piece of up to `gap_bytes` always fits on the least loaded task.
    """

    tasks: int
    target_bytes: int
    cost_bytes: float
    bound_bytes: float
    gap_bytes: float


class Packing:
    """Where the items are: `shares` has the bytes of each item by task, `loads` what the tasks carry."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.items: list[Item] = []
        self.shares: list[dict[int, float]] = []
        self.files: list[int] = []
        self.loads: list[float] = [0.0] * rules.tasks

    def place(self, items: Sequence[Item], fit_bytes: float = 0.0) -> None:
        """Add items piece by piece, each on the fullest task that stays within `fit_bytes`, else on the least loaded.

        With 0, and the largest pieces first, that is longest first.
        """
        free = sorted((load, task) for task, load in enumerate(self.loads))
        for item in items:
            if item.pieces == 1 and not fit_bytes:
                load, task = free.pop(0)
                insort(free, (load + item.weight + self.rules.cost_bytes, task))
                self.shares.append({task: item.weight})
            else:
                counts = self._place(item, free, fit_bytes)
                self.shares.append({task: count * item.piece_bytes for task, count in counts.items()})
        self.items += items
        self.files += [item.pieces for item in items]
        for load, task in free:
            self.loads[task] = load

    def _place(self, item: Item, free: list[tuple[float, int]], fit_bytes: float) -> dict[int, int]:
        """Returns how many pieces of an item each task gets; `free` are the tasks by load, before and after."""
        size, tasks = item.piece_bytes + self.rules.cost_bytes, self.rules.tasks
        each = max(0, item.pieces // tasks - MANY)
        counts = dict.fromkeys(range(tasks), each) if each else {}
        free[:] = [(load + each * size, task) for load, task in free]
        apart = []
        for _ in range(item.pieces - each * tasks):
            within = bisect_right(free, (fit_bytes - size, tasks)) if fit_bytes else 0
            load, task = free.pop(max(0, within - 1))
            counts[task] = counts.get(task, 0) + 1
            if item.pieces > item.expected:
                apart.append((load + size, task))
            else:
                insort(free, (load + size, task))
        for taken in apart:
            insort(free, taken)
        return counts

    @property
    def fits(self) -> bool:
        """Whether no task exceeds the bound, but for rounding."""
        return all(map(self._fits, self.loads))

    def _fits(self, load: float) -> bool:
        return load <= self.rules.bound_bytes * (1 + 1e-9)

    @property
    def rank(self) -> tuple[float, int, float]:
        """Of two packings the lower one is better: within the bound, then with few files, then with even loads."""
        highest = max(self.loads)
        return 0.0 if self.fits else highest, sum(self.files), highest

    def level(self) -> None:
        """Move bytes of items that are split for balance between their tasks, towards equal loads, at no new file."""
        split = [n for n, item in enumerate(self.items) if self.files[n] > item.expected]
        for _ in range(_LEVEL_ROUNDS):
            moved = [self._level(n) for n in split]
            if max(moved, default=0.0) <= 1e-4 * self.rules.bound_bytes:
                return

    def _level(self, n: int) -> float:
        """Fill the least loaded tasks of one item as water would, and return the most that a share changed.

        Shares of several files stay as they are, and no share outgrows one file. A share that is lighter than closing
        its file is given up where the others can take it.
        """
        most = ROUND_DOWN_RATIO * self.rules.target_bytes * (1 - 1e-6)
        before = {task: share for task, share in self.shares[n].items() if share <= most}
        bases = {task: self.loads[task] - share for task, share in before.items()}
        total = math.fsum(before.values())
        after = _filled(bases, total, most)
        worth = {task: bases[task] for task, share in after.items() if share > max(1.0, self.rules.cost_bytes)}
        if self.files[n] - len(before) + len(worth) >= self.items[n].expected and total <= most * len(worth):
            after = _filled(worth, total, most)
        if min(after.values(), default=0.0) < 1.0:
            return 0.0
        for task in before:
            self._set(n, task, after.get(task, 0.0))
        return max(abs(share - before[task]) for task, share in after.items())

    def cut(self) -> None:
        """Move what is above the bound from the fullest tasks to the least loaded ones.

        Each cut ends one task, so there are fewer cuts, and new files, than tasks.
        """
        bound, cost = self.rules.bound_bytes, self.rules.cost_bytes
        over = [task for task, load in enumerate(self.loads) if not self._fits(load)]
        free = [(load, task) for task, load in enumerate(self.loads) if self._fits(load)]
        heapq.heapify(free)
        for task in sorted(over, key=lambda task: -self.loads[task]):
            while free and not self._fits(self.loads[task]):
                least, other = free[0]
                amount = min(self.loads[task] - bound, bound - cost - least)
                if amount < 1.0:
                    return
                n, moved = self._to_move(task, amount)
                if n is None:
                    break
                self._set(n, task, self.shares[n][task] - moved)
                self._set(n, other, self.shares[n].get(other, 0.0) + moved)
                heapq.heapreplace(free, (self.loads[other], other))

    def _to_move(self, task: int, amount: float) -> tuple[int | None, float]:
        """The item to move off a task, and how many of its bytes: a whole file where one is light enough.

        Else a cut, of an item that is split for balance already, or of the largest.
        """
        # to move an item without bytes would balance nothing
        here = {n: share for n, shares in enumerate(self.shares) if (share := shares.get(task))}
        whole = [n for n, share in here.items() if share <= amount and self._files(n, share) == 1]
        if whole:
            largest = max(whole, key=lambda n: (here[n], -n))
            return largest, here[largest]
        cuttable = [n for n, share in here.items() if share > amount + 1.0 and self.files[n] < self.items[n].limit]
        split = [n for n in cuttable if self.files[n] > self.items[n].expected]
        return max(split or cuttable, key=lambda n: (here[n], -n), default=None), amount

    def _set(self, n: int, task: int, share: float) -> None:
        """Change the bytes of one item on one task; 0 for none."""
        before = self.shares[n].pop(task, 0.0)
        files = -self._files(n, before) if before else 0
        if share:
            self.shares[n][task] = share
            files += self._files(n, share)
        self.files[n] += files
        self.loads[task] += share - before + files * self.rules.cost_bytes

    def _files(self, n: int, share_bytes: float) -> int:
        return share_files(self.items[n].weight, share_bytes / self.items[n].weight, self.rules.target_bytes)


def pack(items: Sequence[Item], rules: Rules) -> Packing:
    """The packing of `items`, largest pieces first, within the bound or the least above it, with the fewest files.

    What fits on the least loaded task anyway is placed last, on top of what had to be cut.
    """
    large = list(takewhile(lambda item: item.piece_bytes > rules.gap_bytes, items))
    packing, is_cut = _packed(large, rules, 0.0)
    if is_cut:
        packing = min(packing, _packed(large, rules, rules.bound_bytes)[0], key=lambda packing: packing.rank)
    packing.place(items[len(large) :])
    packing.level()
    return packing


def _packed(items: Sequence[Item], rules: Rules, fit_bytes: float) -> tuple[Packing, bool]:
    """All items on tasks, and whether some had to be cut."""
    packing = Packing(rules)
    packing.place(items, fit_bytes)
    packing.level()
    if packing.fits:
        return packing, False
    packing.cut()
    packing.level()
    return packing, True


def share_files(weight: float, share: float, target: int) -> int:
    """Files that a share of a partition becomes."""
    # rounding must not make n whole files out of m a file less
    return max(1, expected_files(weight * share * (1 if share == 1 else 1 + 1e-12), target))


def _filled(bases: Mapping[int, float], total: float, most: float) -> dict[int, float]:
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
