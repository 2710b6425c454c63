"""The merges of many tables that a budget pays for, and the order of the tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from icesize.planning.files import PartitionKey

FAIR_SHARE = 0.05
"""Share of the budget that is divided equally among the tables, and the most of the benefit that this may cost."""
TOLERANCE = 0.05
"""Share of the best possible benefit that a choice may miss.

With `FAIR_SHARE`, a choice has at least 0.95 x 0.95 = 90 % of the benefit that an exact knapsack would have.
"""


@dataclass(frozen=True, slots=True)
class Job:
    """A merge of one table that is due.

    Attributes:
        table: The name of the table.
        partition: The partition whose files are merged.
        benefit: What the merge brings, such as the number of files that it saves.
        size_bytes: Bytes that the merge rewrites.
    """

    table: str
    partition: PartitionKey
    benefit: float
    size_bytes: int


def choose(jobs: Iterable[Job], budget_bytes: int | None) -> list[Job]:
    """Return the jobs that a budget pays for (None: all), those with most benefit per byte first.

    A twentieth of the budget is divided equally among the tables. What a table does not use goes to the others. So a
    table with few files has its turn beside one with a large backlog. The rest goes to the jobs with the most benefit.
    If the equal shares cost more than a twentieth of the benefit, there are none. The benefit is at least 90 % of the
    best possible one.
    """
    ranked = sorted(jobs, key=_bytes_per_benefit)
    if budget_bytes is None or sum(job.size_bytes for job in ranked) <= budget_bytes:
        return ranked
    best = _most_beneficial(ranked, budget_bytes)
    fair = _equal_shares(ranked, int(FAIR_SHARE * budget_bytes))
    left = [n for n in range(len(ranked)) if n not in fair]
    used = sum(ranked[n].size_bytes for n in fair)
    fair |= {left[n] for n in _most_beneficial([ranked[n] for n in left], budget_bytes - used)}
    is_cheap = _benefit(ranked, fair) >= (1 - FAIR_SHARE) * _benefit(ranked, best)
    return [ranked[n] for n in sorted(fair if is_cheap else best)]


def order_of(benefits: Mapping[str, float], maintainer: str) -> list[str]:
    """Return the order in which one of several maintainers works on tables.

    Tables with more benefit per byte come first. Among tables whose benefits differ by less than a factor of ten, the
    order depends on the maintainer, so that two of them rarely work on the same table at the same time.

    Args:
        benefits: Table -> benefit per byte; 0 for tables without a merge.
        maintainer: Any text that differs between maintainers.
    """

    def rank(table: str) -> float:
        digest = blake2b(f"{maintainer}\0{table}".encode(), digest_size=8).digest()
        jitter = int.from_bytes(digest, "big") / 2**64
        # tables without a merge come last: the least positive float is 10 ** -324
        return jitter - (math.log10(benefits[table]) if benefits[table] > 0 else -400)

    return sorted(benefits, key=rank)


def _bytes_per_benefit(job: Job) -> tuple[float, int]:
    return job.size_bytes / job.benefit if job.benefit > 0 else math.inf, job.size_bytes


def _benefit(jobs: Sequence[Job], chosen: Iterable[int]) -> float:
    return sum(jobs[n].benefit for n in chosen)


def _equal_shares(ranked: Sequence[Job], budget_bytes: int) -> set[int]:
    """Return the numbers of jobs that fit into an equal share for each table.

    Tables whose best job is small come first, so that the others share what these leave.
    """
    by_table = defaultdict[str, list[int]](list)
    for number, job in enumerate(ranked):
        by_table[job.table].append(number)
    cheapest = sorted(by_table.values(), key=lambda numbers: ranked[numbers[0]].size_bytes)
    chosen = set[int]()
    for waiting, numbers in zip(range(len(cheapest), 0, -1), cheapest, strict=True):
        taken = _that_fit([ranked[n] for n in numbers], budget_bytes // waiting)
        chosen |= {numbers[n] for n in taken}
        budget_bytes -= sum(ranked[numbers[n]].size_bytes for n in taken)
    return chosen


def _that_fit(ranked: Sequence[Job], budget_bytes: int) -> set[int]:
    """Return the numbers of the jobs that fit, in their order."""
    chosen = set[int]()
    for number, job in enumerate(ranked):
        if job.size_bytes <= budget_bytes:
            chosen.add(number)
            budget_bytes -= job.size_bytes
    return chosen


def _most_beneficial(ranked: Sequence[Job], budget_bytes: int) -> set[int]:
    """Return the numbers of the jobs with at least 1 - TOLERANCE of the benefit that the budget can buy."""
    fitting = [n for n, job in enumerate(ranked) if job.size_bytes <= budget_bytes]
    jobs = [ranked[n] for n in fitting]
    chosen = _that_fit(jobs, budget_bytes)
    # the first job that does not fit, cut to size, bounds what any choice can have
    free, bound = budget_bytes, 0.0
    for job in jobs:
        bound += job.benefit * min(1.0, free / job.size_bytes if job.size_bytes else 1.0)
        free -= min(free, job.size_bytes)
    if _benefit(jobs, chosen) < (1 - TOLERANCE) * bound:
        single = max(range(len(jobs)), key=lambda n: jobs[n].benefit)
        chosen = max(chosen, {single}, _with_large(jobs, budget_bytes, bound), key=lambda some: _benefit(jobs, some))
    return {fitting[n] for n in chosen}


def _with_large(jobs: Sequence[Job], budget_bytes: int, bound: float) -> set[int]:
    """Return a choice that is nearly the best one if single jobs have a large part of the benefit.

    This is the scheme of Ibarra and Kim (1975). Benefits of large jobs are rounded down to steps, and for each sum of
    them the choice with the fewest bytes is computed. The small jobs fill the rest. With T for the tolerance and the
    best benefit between `bound` / 2 and `bound`, a choice has at most 4 / T large jobs. Rounding loses at most T / 2 of
    the best, and the last small job that does not fit at most another T / 2.
    """
    least = TOLERANCE / 4 * bound
    step = least * TOLERANCE / 4
    small = [n for n, job in enumerate(jobs) if job.benefit <= least]
    by_steps = defaultdict[int, list[int]](list)
    for number in sorted(set(range(len(jobs))).difference(small), key=lambda n: jobs[n].size_bytes):
        by_steps[int(jobs[number].benefit / step)].append(number)
    most = int(bound / step)
    # no choice has more of equal jobs than fill the bound, and the smallest ones serve best
    large = [(steps, n) for steps, numbers in by_steps.items() for n in numbers[: most // steps]]
    fewest = np.full(most + 1, np.inf)
    fewest[0] = 0
    rows = []
    for steps, number in large:
        with_it = fewest[:-steps] + jobs[number].size_bytes
        rows.append(np.packbits(with_it < fewest[steps:]))
        fewest[steps:] = np.minimum(fewest[steps:], with_it)
    sums = np.cumsum([0, *(jobs[n].size_bytes for n in small)])
    gains = np.cumsum([0.0, *(jobs[n].benefit for n in small)])
    room = np.searchsorted(sums, budget_bytes - fewest, side="right") - 1
    totals = np.where(fewest <= budget_bytes, np.arange(most + 1) * step + gains[room], -1)
    at = int(np.argmax(totals))
    chosen = set(small[: room[at]])
    for (steps, number), row in zip(reversed(large), reversed(rows), strict=True):
        if at >= steps and np.unpackbits(row)[at - steps]:
            chosen.add(number)
            at -= steps
    return chosen
