"""The merges of many tables that a budget pays for, and the order of the tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from icesize.planning.files import PartitionKey

FAIR_SHARE = 0.05
"""Share of the budget that is divided equally among the tables, and the most of the benefit that this may cost."""


@dataclass(frozen=True, slots=True)
class DueMerge:
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


def choose(jobs: Iterable[DueMerge], budget_bytes: int | None) -> list[DueMerge]:
    """Return the jobs that a budget pays for (None: all), those with most benefit per byte first.

    A twentieth of the budget is divided equally among the tables. What a table does not use goes to the others. So a
    table with few files is also maintained beside one with a large backlog. The rest goes to the jobs with the most
    benefit. If the equal shares cost more than a twentieth of the benefit, there are none. The benefit is at least half
    of the best possible one, less a twentieth. It is 90 % if no job is larger than a twentieth of the budget.
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


def _bytes_per_benefit(job: DueMerge) -> tuple[float, int]:
    return job.size_bytes / job.benefit if job.benefit > 0 else math.inf, job.size_bytes


def _benefit(jobs: Sequence[DueMerge], chosen: Iterable[int]) -> float:
    return sum(jobs[n].benefit for n in chosen)


def _equal_shares(ranked: Sequence[DueMerge], budget_bytes: int) -> set[int]:
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


def _that_fit(ranked: Sequence[DueMerge], budget_bytes: int) -> set[int]:
    """Return the numbers of the jobs that fit, in their order."""
    chosen = set[int]()
    for number, job in enumerate(ranked):
        if job.size_bytes <= budget_bytes:
            chosen.add(number)
            budget_bytes -= job.size_bytes
    return chosen


def _most_beneficial(ranked: Sequence[DueMerge], budget_bytes: int) -> set[int]:
    """Return the numbers of the jobs that fit in their order, or of the single best one if that brings more."""
    chosen = _that_fit(ranked, budget_bytes)
    fitting = (n for n, job in enumerate(ranked) if job.size_bytes <= budget_bytes)
    single = {max(fitting, key=lambda n: ranked[n].benefit)} if chosen else chosen
    return max(chosen, single, key=lambda some: _benefit(ranked, some))
