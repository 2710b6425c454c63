"""Advice on the columns to cluster a table by, as far as the bounds of its files show. Pure.

Bounds show how many files a query for one value of a column opens now, and how many it would open if the rows of each
partition were in order. They do not show the queries. Therefore a command is advised only for a column that the table
itself marks as searched. Nothing is advised if too few values are known.
"""

from __future__ import annotations

import shlex
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from icesize.planning.cluster_by import Bounds, ClusterFile
from icesize.planning.clustering.depth import middles
from icesize.planning.clustering.sets import outputs_of
from icesize.planning.files import PartitionKey
from icesize.planning.insight.filters import WORTH_IT
from icesize.policy import SizePolicy
from icesize.results import Advice
from icesize.units import format_count

FEWEST_FILES = 4
"""Files that a query for one value opens, below which there is nothing to gain."""
IN_ORDER = 1.25
"""Files that such a query opens, per file that it would open of a clustered table, up to which files are in order."""
KNOWN_VALUES = 0.75
"""Different bounds, per file of a partition, from which on its files can be distinguished by the values of a column."""
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class ColumnCandidate:
    """A column that queries may filter by.

    `why` is the sign of that in the table, and `values` the smallest number of values that the column is known to have.
    """

    name: str
    why: str = ""
    values: int = 0


@dataclass(frozen=True, slots=True)
class PointFiles:
    """Files that a query for one value of a column opens, on average over the bytes of a table.

    `now` is the present number, `merged` the number after small files are merged, `clustered` the number in a table
    clustered by the column.
    """

    now: float
    merged: float
    clustered: float

    @property
    def gains(self) -> bool:
        """Return whether clustering saves more than merging does, and enough."""
        without = min(self.now, self.merged)
        return without >= FEWEST_FILES and self.clustered <= WORTH_IT * without

    @property
    def in_order(self) -> bool:
        """Return whether clustering saves nothing here but would save files in an unordered table."""
        return self.now <= IN_ORDER * self.clustered and self.clustered <= WORTH_IT * self.merged


def point_files(
    partitions: Sequence[Sequence[tuple[Bounds, int]]], outputs: Callable[[int], int], values: int = 0
) -> PointFiles | None:
    """Return the files that a point query opens, for partitions of files given as (bounds, size in bytes).

    `outputs` returns the number of files for the bytes of a partition, `values` is the smallest number of values.
    Returns None if bounds are missing, or show too few values to separate files, because the rows of one value can fill
    several files.
    """
    files = [file for owned in partitions for file in owned]
    known = [(bounds, size_bytes) for bounds, size_bytes in files if bounds]
    if not known or any(bounds is None for bounds, _ in files):
        return None
    spans = [(bounds[0], bounds[1]) for bounds, _ in known]
    whole = [(_whole(owned), outputs(sum(size for _, size in owned)), len(owned)) for owned in partitions]
    values = max(values, len({low for low, _ in spans}), len({high for _, high in spans}))
    if values < KNOWN_VALUES * max(min(made, present) for span, made, present in whole if span):
        return None
    places, weights = middles(spans), [max(1, size_bytes) for _, size_bytes in known]

    def mean(covering: Sequence[tuple[Any, Any]]) -> float:
        lows, highs = sorted(low for low, _ in covering), sorted(high for _, high in covering)
        depths = (bisect_right(lows, first) - bisect_left(highs, last) for first, last in places)
        return sum(depth * weight for depth, weight in zip(depths, weights, strict=True)) / sum(weights)

    # where there are fewer values than files, each is in several of them
    stretch = max(1.0, max(made for span, made, _ in whole if span) / values)
    merged = mean([span for span, made, _ in whole if span for _ in range(made)])
    return PointFiles(mean(spans), merged, stretch * mean([span for span, _, _ in whole if span]))


def _whole(files: Sequence[tuple[Bounds, int]]) -> tuple[Any, Any] | None:
    """Return the lowest and the highest value of a partition."""
    known = [bounds for bounds, _ in files if bounds]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None


def advise_clustering(
    table: str,
    files: Mapping[PartitionKey, Sequence[ClusterFile]],
    candidates: Sequence[ColumnCandidate],
    policy: SizePolicy,
) -> tuple[Advice, ...]:
    """Return one sentence if queries for one value of a column would open fewer files of a clustered table.

    `candidates` are in the order of the files' bounds, the most important first. A table with files of several
    partition specs gets no advice, because only one spec is clustered.
    """
    if len({key.spec_id for key in files}) != 1:
        return ()
    found = [
        (candidate, estimate)
        for n, candidate in enumerate(candidates)
        if (estimate := point_files(_bounds(files, n), partial(outputs_of, policy=policy), candidate.values))
    ]
    gaining = [candidate for candidate, estimate in found if estimate.gains]
    if not gaining:
        return ()
    ordered = [candidate for candidate, estimate in found if estimate.in_order]
    start = f"files are already ordered by {_names(ordered)}; " if ordered else ""
    best, estimate = next((one, estimate) for one, estimate in found if estimate.gains)
    count = sum(map(len, files.values()))
    merged = f" ({estimate.merged:,.1f} after a compaction)" if estimate.merged < KNOWN_VALUES * estimate.now else ""
    why = f", {best.why}," if best.why else ""
    fact = (
        f"{start}a query for one value of {best.name}{why} opens {estimate.now:,.1f} of {count:,} files on average"
        f"{merged}, about {estimate.clustered:,.1f} after clustering"
    )
    if best.why:
        command = f"icesize cluster {shlex.quote(table)} --by {shlex.quote(best.name)}"
        return (Advice(f"{fact}: `{command}`", command),)
    others = f" (the same holds for {_names(gaining[1:])})" if gaining[1:] else ""
    return (
        Advice(
            f"{fact} by it{others}; to see the columns to cluster by, run `icesize inspect` with `--filter` and your "
            "query filters"
        ),
    )


def _bounds(files: Mapping[PartitionKey, Sequence[ClusterFile]], column: int) -> list[list[tuple[Bounds, int]]]:
    return [[(file.bounds[column], file.fact.size_bytes) for file in owned] for owned in files.values()]


def _names(candidates: Sequence[ColumnCandidate]) -> str:
    names = [candidate.name for candidate in candidates]
    named, more = names[:MOST_NAMED], len(names) - MOST_NAMED
    return ", ".join([*named, *([format_count(more, "more column")] if more > 0 else [])])
