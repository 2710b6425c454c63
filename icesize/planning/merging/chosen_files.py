"""The choice of small files of one partition to merge now, so that few remain and little is rewritten over time.

The bytes of an arriving file are rewritten by each merge that takes them along: that number is their depth. With q
free places, C(q + d + 1, q) - 1 arrivals fit without any of them going deeper than d, as in the binomial schedule of
Mathieu, Rajaraman, Young and Yousefi, "Competitive data-structure dynamization" (SODA 2021). So the future of a
partition, up to the merge that finishes a file, is a small problem in whole numbers: how many more merges each present
file takes part in, and how deep the coming arrivals go. `choose_prefix` solves it for prefixes that it may merge
and takes the cheapest. All it knows comes from the present sizes: the smallest file represents the coming arrivals.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import comb, inf

from icesize.planning.file_sizes import is_small_file

# More arrivals per finished file than this are planned as this many; it bounds tables and time per call.
_MOST_ARRIVALS = 2.0**14

# Depths tried on each side of the depth that a whole file needs from an empty start; wider finds nothing better.
_DEPTHS_AROUND = 1

# Prefixes that one call tries, so that its time grows with the number of slots, not with its square.
_MOST_TRIED = 64

# Sums of equal sizes miss the exact multiple of one size by rounding only.
_ROUNDING = 1.0 + 1e-9

# A run of blocks of arrivals: the tables of its free places, its first base depth and the one after its last.
_Blocks = tuple[list[int], int, int]


class _Schedule:
    """Binomial numbers for two or more slots: at most some hundred entries per table."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        # arrivals_within[d]: arrivals that become one file without any of them going deeper than d.
        self.arrivals_within = [1]
        while self.arrivals_within[-1] < _MOST_ARRIVALS:
            self.arrivals_within.append(comb(slots + len(self.arrivals_within), slots))
        self.deepest = len(self.arrivals_within) + _DEPTHS_AROUND + 1
        depths = range(self.deepest + 1)
        # grown[q][d]: arrivals in a file with q places above it when it is due for the merge after its d-th.
        self.grown = [[comb(q + 1 + d, q + 1) for d in depths] for q in range(slots)]
        # saved[q][d]: depth, summed over arrivals, that blocks in q free places with d, d - 1, ... 1 levels save.
        self.saved = [[comb(q + d + 2, q + 2) - 1 - d for d in depths] for q in range(slots)]


_schedule = lru_cache(maxsize=64)(_Schedule)


def choose_prefix(small_sizes: Sequence[float], limit_bytes: float, slots: int) -> int:
    """Return how many of the smallest files to merge into one now (0, or at least 2), so that at most `slots` remain
    small.

    Sizes come in any order. Files of `limit_bytes` or more are not small and are ignored. As soon as all small files
    together reach the limit, the shortest prefix that reaches it is merged. Its output is not small; it is below twice
    the limit, unless a backlog of more files has to go. If the caller splits that output, each part has to reach the
    limit. Before that, nothing is merged as long as there are at most `slots` files. The result depends on the
    arguments alone.

    Raises `ValueError` if `slots` is below 1.
    """
    if slots < 1:
        raise ValueError(f"'slots' ({slots}) must be >= 1: a merge leaves one file")
    sizes = sorted(size for size in small_sizes if is_small_file(size, limit_bytes))
    sums = list(accumulate(sizes))
    count = len(sizes)
    if count >= 2 and sums[-1] >= limit_bytes:
        return max(2, count - slots, next(n for n, total in enumerate(sums, 1) if total >= limit_bytes))
    if count <= slots:
        return 0
    if slots == 1:
        return count
    return _cheapest(sizes, sums, limit_bytes, slots)


def _cheapest(sizes: list[float], sums: list[float], limit_bytes: float, slots: int) -> int:
    """Return the prefix with the least cost of its merge and of all later ones until a file is finished; the longer of
    two.
    """
    fewest = len(sizes) - slots + 1
    unit = max(sizes[0], limit_bytes / _MOST_ARRIVALS)
    arrivals = max(1.0, (limit_bytes - sums[-1]) / unit)
    schedule = _schedule(slots)
    depth = bisect_right(schedule.arrivals_within, limit_bytes / unit / _ROUNDING)
    least, chosen = inf, len(sizes)
    for count in range(len(sizes), fewest - 1, -max(1, slots // _MOST_TRIED)):
        merged = sums[count - 1]
        stack = sorted((size / unit for size in (merged, *sizes[count:])), reverse=True)
        cost = merged / unit + _cost_to_finish(schedule, stack, arrivals, depth)
        if cost < least:
            least, chosen = cost, count
    return chosen


def _cost_to_finish(schedule: _Schedule, stack: list[float], arrivals: float, depth: int) -> float:
    """Return the least cost until `stack` (largest file first) and `arrivals` more are one file, in sizes of an
    arrival.

    A file of the size that d merges produce has d fewer merges ahead than the depth of the whole schedule. It has at
    least as many ahead as each larger file, because a merge of the larger file takes it along.
    """
    places = schedule.slots - 1
    grown = [bisect_right(schedule.grown[places - i], size * _ROUNDING) for i, size in enumerate(stack)]
    least = inf
    tried: list[int] = []
    for whole in range(depth - _DEPTHS_AROUND, depth + _DEPTHS_AROUND + 1):
        merges = list(accumulate((whole - done for done in grown), max, initial=1))[1:]
        if merges == tried:
            continue
        tried = merges
        present = sum([size * times for size, times in zip(stack, merges, strict=True)])
        if present < least:
            least = min(least, present + _depth_of_arrivals(schedule, merges, arrivals, depth))
    return least


def _depth_of_arrivals(schedule: _Schedule, merges: list[int], arrivals: float, depth: int) -> float:
    """Return the least sum of depths of `arrivals` files while present file i takes part in `merges[i]` more merges.

    By the duality of linear programs, this needs no placing of arrivals. Let every arrival have the depth p ("price"),
    and subtract what the places above the present files save: an arrival in a place at depth d < p saves p - d. The
    largest of these numbers, over all p, is the least sum. They rise with p up to the largest one and then fall, so the
    search begins at `depth` and walks in the direction in which they rise. If there are too few places, they rise
    without end, and the sum is infinite.
    """
    blocks = _blocks(schedule, merges)
    best = _at_price(blocks, arrivals, depth)
    price = depth
    while (dearer := _at_price(blocks, arrivals, price + 1)) > best:
        price, best = price + 1, dearer
        if price == schedule.deepest:
            return inf
    while price > 1 and (cheaper := _at_price(blocks, arrivals, price - 1)) > best:
        price, best = price - 1, cheaper
    return best


def _blocks(schedule: _Schedule, merges: list[int]) -> list[_Blocks]:
    """Return the free places for arrivals, as blocks of the same number of places.

    Arrivals fill the places above a present file between two of its merges. They take part in each later merge of that
    file: the number of these merges is the base depth of the arrivals. A block has a range of base depths.
    """
    blocks: list[_Blocks] = []
    base = 1
    for i, times in enumerate(merges, 1):
        if times > base:
            blocks.append((schedule.saved[schedule.slots - i], base, times))
            base = times
    blocks.append((schedule.saved[schedule.slots - len(merges)], base, base + 1))
    return blocks


def _at_price(blocks: list[_Blocks], arrivals: float, price: int) -> float:
    total = price * arrivals
    for saved, first, after in blocks:
        if first < price:
            total -= saved[price - first]
            if after < price:
                total += saved[price - after]
    return total
