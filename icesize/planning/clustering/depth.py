"""The exact number of files that a query on one column opens, from the bounds that readers see."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from icesize.planning.cluster_by import Bounds, ClusterFile
from icesize.planning.files import PartitionKey
from icesize.planning.plan import NOTHING, FilesScanned

WINDOW_SHARE = 10
"""A range query selects a tenth of the places, and so a tenth of the data, wherever they are dense."""


def files_scanned(files: Sequence[tuple[Bounds, int]]) -> FilesScanned:
    """Return what queries open among the files of one partition, given as (bounds, size in bytes), in O(n log n).

    A file with unknown bounds is always opened. A file without a comparable value is never opened.
    """
    always = [size_bytes for bounds, size_bytes in files if bounds is None]
    known = [(bounds[0], bounds[1], size_bytes) for bounds, size_bytes in files if bounds]
    files_too, bytes_too = len(always), sum(always)
    if not known:
        return FilesScanned(files_too, bytes_too, files_too, files_too, bytes_too)
    lows, begun_bytes = _running([(low, size_bytes) for low, _, size_bytes in known])
    highs, ended_bytes = _running([(high, size_bytes) for _, high, size_bytes in known])
    most = max(bisect_right(lows, value) - bisect_left(highs, value) for value in lows) + files_too
    places = sorted(set(middles([(low, high) for low, high, _ in known])))
    begun = [bisect_right(lows, first) for first, _ in places]
    ended = [bisect_left(highs, last) for _, last in places]
    window = max(1, len(places) // WINDOW_SHARE)

    def means(last: list[int], first: list[int]) -> tuple[float, float]:
        """Files and bytes that begin up to the end of what is asked for and do not end before it starts."""
        count = len(last)
        size_bytes = sum(begun_bytes[b] - ended_bytes[e] for b, e in zip(last, first, strict=True))
        return (sum(last) - sum(first)) / count + files_too, size_bytes / count + bytes_too

    point_files, point_bytes = means(begun, ended)
    return FilesScanned(point_files, point_bytes, most, *means(begun[window - 1 :], ended[: len(ended) - window + 1]))


def middles(spans: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return the middle of each file: between two neighboring bounds, or at its only value."""
    ends = sorted({value for span in spans for value in span})
    places = []
    for low, high in spans:
        first, last = bisect_left(ends, low), bisect_left(ends, high)
        middle = (first + last) // 2
        places.append((ends[middle], ends[middle + (first < last)]))
    return places


def _running(pairs: list[tuple[Any, int]]) -> tuple[list[Any], list[int]]:
    """Return the values in order, and the bytes of the first 0, 1, 2, ... of them."""
    pairs.sort(key=lambda pair: pair[0])
    return [value for value, _ in pairs], list(accumulate((size for _, size in pairs), initial=0))


def by_column(files: Mapping[PartitionKey, Sequence[ClusterFile]], columns: Sequence[str]) -> dict[str, FilesScanned]:
    """Return what queries on each of `columns` open without a filter on the partition.

    `columns` are in the order of the files' bounds.
    """
    return {
        column: sum(
            (files_scanned([(file.bounds[n], file.fact.size_bytes) for file in owned]) for owned in files.values()),
            NOTHING,
        )
        for n, column in enumerate(columns)
    }
