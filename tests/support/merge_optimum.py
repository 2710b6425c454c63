"""How little rewriting is possible while at most k small files are kept: the optimum, and workloads to compare with it.

Files of size 1 arrive one at a time. At most k files ("slots") that are smaller than n may be there after each
arrival; a merge costs the sum of its files; n arrivals merged into one file are finished. Write amplification W is the
first write of everything plus all merges, per unit. Always merging (k = 1) is the dynamic-array worst case. The
optimum is the k-component binomial schedule of Mathieu, Rajaraman, Young and Yousefi, "Competitive data-structure
dynamization" (SODA 2021), found here by dynamic programming over its recursion. The recursion lets the merging arrival
take a slot of its own before its merge, which `simulate` does not ask for, so a policy may come out a little below it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import inf
from typing import NamedTuple


class Workload(NamedTuple):
    """File sizes in order of arrival, and the size from which a file is finished."""

    name: str
    sizes: list[float]
    limit: float

    @property
    def files_per_finished(self) -> int:
        """The n whose optimum the workload is compared with: how many files of its mean size reach the limit."""
        return round(self.limit * len(self.sizes) / sum(self.sizes))


def optimum(n: int, slots: int) -> float:
    """Smallest W of n equal arrivals that end as one file while at most `slots` files are kept."""
    return optima(n, slots)[slots][n]


def optima(most: int, slots: int) -> list[list[float]]:
    """`optima(most, slots)[k][n]` is `optimum(n, k)` for all 1 <= n <= most and 1 <= k <= slots, in one table fill."""
    one = [[0.0, 0.0, *(m * (m + 1) / 2 - 1 for m in range(2, most + 1))]]
    several = one[0]  # cost of leaving m arrivals in at most k files rather than in one
    for k in range(2, slots + 1):
        one_k, several_k = [0.0, 0.0], [0.0, 0.0]
        for m in range(2, most + 1):
            split = min(one_k[a] + several[m - a] for a in range(1, m))
            one_k.append(m + split)
            several_k.append(0.0 if m <= k else split)
        one.append(one_k)
        several = several_k
    return [[], *([inf, *(1 + row[n] / n for n in range(1, most + 1))] for row in one)]


class Deferral:
    """Puts a `share` of the merges above four times the newest file off by one to three arrivals, as a budget does."""

    def __init__(self, seed: int = 1, share: float = 0.2) -> None:
        self._random = random.Random(seed)
        self._share = share
        self._waiting = 0

    def __call__(self, newest: float, merged: float) -> bool:
        if self._waiting == 0 and merged > 4 * newest and self._random.random() < self._share:
            self._waiting = self._random.randint(1, 3)
        if self._waiting == 0:
            return False
        self._waiting -= 1
        return True


def equal_batches(n: int) -> Workload:
    """Files of one size, n of them per finished file, for ten finished files or more."""
    return Workload(f"equal, {n} per file", [1.0] * max(1280, 10 * n), n)


def workloads(seed: int = 3) -> Iterator[Workload]:
    """Equal sizes, log-normal, heavy-tailed, and many tiny files per finished one; the same for the same seed."""
    generator = random.Random(seed)
    yield from (equal_batches(n) for n in (96, 24, 384))
    yield Workload("log-normal", [generator.lognormvariate(0, 1) for _ in range(3000)], 150)
    yield Workload("pareto 1.3", [generator.paretovariate(1.3) for _ in range(3000)], 225)
    yield Workload("uniform, 384 per file", [generator.uniform(0.5, 1.5) for _ in range(4000)], 384)
