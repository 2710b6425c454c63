"""How many files of a table a query on one column opens, exactly, from the bounds that readers see."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from icesize.planning.cluster_by import Bounds, ClusterBy, ClusterFile
from icesize.planning.layout import PartitionKey

WINDOW_SHARE = 10
"""A range query asks for one in so many of the places: a tenth of what is there, wherever the data are dense."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What queries on one column open: means of files and bytes, and the most files that one value needs.

    What lies between bounds is not known, so a *point* query asks for the middle of a file by the order of all bounds:
    of eight files over the same values a value is in eight, though few are open at the end points. Files with the same
    middle count once: queries ask for values, however many rows these have. A *range* query asks for a tenth of these
    places, wherever it begins. `most_files` are those of the worst value. A sum over partitions is what queries open
    that name no partition; its `most_files` then is an upper bound, as partitions may be deepest at different values.
    """

    point_files: float
    point_bytes: float
    most_files: int
    range_files: float
    range_bytes: float

    def __add__(self, other: Opened) -> Opened:
        return Opened(
            self.point_files + other.point_files,
            self.point_bytes + other.point_bytes,
            self.most_files + other.most_files,
            self.range_files + other.range_files,
            self.range_bytes + other.range_bytes,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, under the names of the fields."""
        return asdict(self)


NOTHING = Opened(0.0, 0.0, 0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Clustering:
    """What makes a plan one of clustering.

    `full` says for each group of the plan whether its outputs are a full set, which is never written again. `before`
    is what queries on each column open now, `expected_point_files` what point queries are expected to open after the
    plan. `new_bytes` are those of victims that were in no set, among the `bytes_to_write`.
    """

    by: ClusterBy
    full: tuple[bool, ...]
    before: Mapping[str, Opened]
    expected_point_files: Mapping[str, float]
    new_bytes: int
    bytes_to_write: int

    @property
    def amplification(self) -> float | None:
        """Bytes to write per byte that is clustered for the first time; None where sets alone are joined."""
        return self.bytes_to_write / self.new_bytes if self.new_bytes else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `full` in the order of the plan's groups."""
        return {
            "strategy": self.by.strategy,
            "columns": list(self.by.columns),
            "full": list(self.full),
            "before": {column: value.to_dict() for column, value in self.before.items()},
            "expected_point_files": dict(self.expected_point_files),
            "new_bytes": self.new_bytes,
            "amplification": self.amplification,
        }


def opened(files: Sequence[tuple[Bounds, int]]) -> Opened:
    """What queries open among the files of one partition, given as (bounds, size in bytes), in O(n log n).

    Unknown bounds are always opened, a file without a value that can be compared never is.
    """
    always = [size_bytes for bounds, size_bytes in files if bounds is None]
    known = [(bounds[0], bounds[1], size_bytes) for bounds, size_bytes in files if bounds]
    files_too, bytes_too = len(always), sum(always)
    if not known:
        return Opened(files_too, bytes_too, files_too, files_too, bytes_too)
    lows, begun_bytes = _running([(low, size_bytes) for low, _, size_bytes in known])
    highs, ended_bytes = _running([(high, size_bytes) for _, high, size_bytes in known])
    most = max(bisect_right(lows, value) - bisect_left(highs, value) for value in lows) + files_too
    places = _middles([(low, high) for low, high, _ in known])
    begun = [bisect_right(lows, first) for first, _ in places]
    ended = [bisect_left(highs, last) for _, last in places]
    window = max(1, len(places) // WINDOW_SHARE)

    def means(last: list[int], first: list[int]) -> tuple[float, float]:
        """Files and bytes that begin up to the end of what is asked for and do not end before it starts."""
        count = len(last)
        size_bytes = sum(begun_bytes[b] - ended_bytes[e] for b, e in zip(last, first, strict=True))
        return (sum(last) - sum(first)) / count + files_too, size_bytes / count + bytes_too

    point_files, point_bytes = means(begun, ended)
    return Opened(point_files, point_bytes, most, *means(begun[window - 1 :], ended[: len(ended) - window + 1]))


def _middles(spans: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Where each file has its middle, in order and each place once: between two neighbouring bounds, or at the one
    value that it has.
    """
    ends = sorted({value for span in spans for value in span})
    places = set()
    for low, high in spans:
        first, last = bisect_left(ends, low), bisect_left(ends, high)
        middle = (first + last) // 2
        places.add((middle, middle + (first < last)))
    return [(ends[first], ends[last]) for first, last in sorted(places)]


def _running(pairs: list[tuple[Any, int]]) -> tuple[list[Any], list[int]]:
    """Values in order, and the bytes of the first 0, 1, 2, ... of them."""
    pairs.sort(key=lambda pair: pair[0])
    return [value for value, _ in pairs], list(accumulate((size for _, size in pairs), initial=0))


def by_column(files: Mapping[PartitionKey, Sequence[ClusterFile]], columns: Sequence[str]) -> dict[str, Opened]:
    """What queries on each of `columns` open that name no partition; `columns` in the order of the files' bounds."""
    return {
        column: sum(
            (opened([(file.bounds[n], file.fact.size_bytes) for file in owned]) for owned in files.values()), NOTHING
        )
        for n, column in enumerate(columns)
    }
