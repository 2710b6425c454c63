"""The files of one partition as sets: files in order, new files, and whether joining them pays."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from icesize.planning.cluster_by import SORT, Bounds, ClusterBy, ClusterFile
from icesize.planning.clustering.depth import files_scanned
from icesize.planning.file_sizes import is_small_file, merged_files
from icesize.policy import SizePolicy
from icesize.units import format_bytes

LEAST_GAIN = 1.25
"""Files that a point query opens now per file after: below it a rewrite is not worth its bytes."""

FLOOR_SLACK = 1.5
"""Files on a curve are in order while a point query opens at most this multiple of the floor: curves of few files and
skewed values come out that far above it."""

CUT_CHARACTERS = 16
"""Iceberg's default metrics mode is truncate(16): text bounds of more characters are cut, upper ones then raised."""

CUT_BYTES = range(14, CUT_CHARACTERS + 1)
"""Lengths of binary upper bounds that may have been cut and raised; bytes that overflow are dropped."""

IN_ORDER = "in order"
"""The reason why files stay if nothing is gained by moving them."""


@dataclass(frozen=True, slots=True)
class Sets:
    """Files of one partition that may be rewritten: the `new` ones, and those of each open set, the smallest set first.

    Files that were never clustered but are in order may form such a set.
    """

    new: tuple[ClusterFile, ...]
    open_sets: tuple[tuple[ClusterFile, ...], ...]

    @property
    def files(self) -> list[ClusterFile]:
        """All of them."""
        return [*self.new, *(file for members in self.open_sets for file in members)]

    @property
    def size_bytes(self) -> int:
        """Bytes of all of them."""
        return total_bytes(self.files)

    def among(self, files: Collection[ClusterFile]) -> Sets:
        """Only those that are among `files`."""
        paths = {file.fact.path for file in files}
        parts = (tuple(file for file in part if file.fact.path in paths) for part in (self.new, *self.open_sets))
        new, *members = parts
        return Sets(new, _smallest_first(members))


def total_bytes(files: Collection[ClusterFile]) -> int:
    """Bytes of `files`."""
    return sum(file.fact.size_bytes for file in files)


def sets_of(files: Sequence[ClusterFile], by: ClusterBy, policy: SizePolicy) -> tuple[Sets, list[ClusterFile]]:
    """Return the sets among `files` of one partition, none of which is in a sealed set.

    Files in order with the bytes of a sealed set stay forever. Other files in order form a set if it is the largest
    one. If there is a larger set, they are new to it. One file among others is not an order.
    """
    members: dict[str, list[ClusterFile]] = {}
    for file in files:
        if file.set_id is not None:
            members.setdefault(file.set_id, []).append(file)
    open_sets = list(members.values())
    untagged = [file for file in files if file.set_id is None]
    ordered = in_order(untagged, by, policy)
    sealed: list[ClusterFile] = []
    if total_bytes(ordered) >= by.sealed_set_bytes:
        sealed = ordered
    elif len(ordered) < min(2, len(untagged)) or total_bytes(ordered) < max(map(total_bytes, open_sets), default=0):
        ordered = []
    else:
        open_sets.append(ordered)
    settled = {file.fact.path for file in ordered}
    new = tuple(file for file in untagged if file.fact.path not in settled)
    return Sets(new, _smallest_first(open_sets)), sealed


def _smallest_first(sets: Collection[Sequence[ClusterFile]]) -> tuple[tuple[ClusterFile, ...], ...]:
    ordered = (tuple(sorted(files, key=lambda file: file.fact.path)) for files in sets if files)
    return tuple(sorted(ordered, key=lambda files: (total_bytes(files), files[0].fact.path)))


def in_order(files: Sequence[ClusterFile], by: ClusterBy, policy: SizePolicy) -> list[ClusterFile]:
    """Return the `files` of one partition that a clustering would not improve.

    For a sort, these are the files with the most bytes of which no two overlap, so that one late file does not undo the
    order of a partition. For curves, no single file is out of order. There, these are all files, or else the well-sized
    ones, if a point query opens at most `FLOOR_SLACK` times the floor.
    """
    if by.strategy == SORT:
        return _ordered(files, leading_column(files))
    limit_bytes = policy.small_file_limit_bytes
    well_sized = [file for file in files if not is_small_file(file.fact.size_bytes, limit_bytes)]
    for some in (files, well_sized):
        if some and depth(some, by) <= FLOOR_SLACK * floor_depth(len(some), by):
            return list(some)
    return []


def _ordered(files: Sequence[ClusterFile], column: int) -> list[ClusterFile]:
    """Return the chain by this column; files with one and the same value form a chain by the next column."""
    chain = _chain(files, column)
    alike: dict[tuple[Any, Any], list[ClusterFile]] = {}
    for file in chain:
        bounds = file.bounds[column]
        span = _span(bounds) if bounds else None
        if span is not None and span[0] == span[1]:
            alike.setdefault(span, []).append(file)
    kept = {file.fact.path for file in chain}
    for members in alike.values():
        if len(members) > 1 and column + 1 < len(files[0].bounds):
            kept -= {file.fact.path for file in members}
            kept |= {file.fact.path for file in _ordered(members, column + 1)}
    return [file for file in chain if file.fact.path in kept]


def _chain(files: Sequence[ClusterFile], column: int) -> list[ClusterFile]:
    """Return the heaviest chain of intervals, which may touch (weighted interval scheduling).

    `best[n]` is the most bytes among the first n intervals by their ends. A file without values fits everywhere. So
    does a file with unknown bounds: in a sorted table it is the last one, which has the NaN.
    """
    chosen = [file for file in files if file.bounds[column] == ()]
    unknown = [file for file in files if file.bounds[column] is None]
    if unknown:
        chosen.append(max(unknown, key=lambda file: (file.fact.size_bytes, file.fact.path)))
    spans = [(*_span(bounds), file) for file in files if (bounds := file.bounds[column])]
    spans.sort(key=lambda span: (span[1], span[0], span[2].fact.path))
    ends = [end for _, end, _ in spans]
    best, fits = [0], []
    for number, (start, _, file) in enumerate(spans):
        # a file of one value ends where it starts, and must not follow itself
        fits.append(min(number, bisect_right(ends, start)))
        best.append(max(best[number], best[fits[number]] + file.fact.size_bytes))
    number = len(spans)
    while number:
        file = spans[number - 1][2]
        if best[number] == best[fits[number - 1]] + file.fact.size_bytes:
            chosen.append(file)
            number = fits[number - 1]
        else:
            number -= 1
    return chosen


def _span(bounds: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return bounds with the upper one lowered again if it was rounded up after truncation, so that neighbors only
    touch.
    """
    low, high = bounds
    if isinstance(high, str) and len(high) >= CUT_CHARACTERS and high[-1] != "\0":
        code = ord(high[-1]) - 1
        # Iceberg jumps over the surrogates, which no text has
        high = high[:-1] + chr(0xD7FF if code == 0xDFFF else code)
    elif isinstance(high, bytes) and len(high) in CUT_BYTES and any(high):
        high = (int.from_bytes(high, "big") - 1).to_bytes(len(high), "big")
    return low, max(low, high)


def leading_column(files: Sequence[ClusterFile]) -> int:
    """Return the column by which a sort of `files` is visible: the first that is not the same single value in all.

    In a partition of one tenant, a sort by tenant and time is a sort by time.
    """
    return next(iter(telling_columns(files)), 0)


def telling_columns(files: Sequence[ClusterFile]) -> list[int]:
    """Return the columns that separate files: not one and the same value in all of them, and not nulls alone."""
    telling = []
    for column in range(len(files[0].bounds) if files else 0):
        first = files[0].bounds[column]
        alike = first is not None and (not first or first[0] == first[1])
        if not alike or any(file.bounds[column] != first for file in files):
            telling.append(column)
    return telling


def by_bounds(files: Sequence[ClusterFile]) -> list[ClusterFile]:
    """Return the files by the lower bound of the leading column, nulls first, unknown bounds last."""
    column = leading_column(files)

    def key(file: ClusterFile) -> tuple[Any, ...]:
        bounds: Bounds = file.bounds[column]
        if bounds is None:
            return (2, file.fact.path)
        return (1, *bounds, file.fact.path) if bounds else (0, file.fact.path)

    return sorted(files, key=key)


def depth(files: Sequence[ClusterFile], by: ClusterBy) -> float:
    """Return the files that a point query opens: on a sort's leading column, or on average over a curve's columns."""
    columns = [leading_column(files)] if by.strategy == SORT else telling_columns(files) or [0]
    return sum(files_scanned([(f.bounds[n], f.fact.size_bytes) for f in files]).point_files for n in columns) / len(
        columns
    )


def floor_depth(files: int, by: ClusterBy) -> float:
    """Return the files of a fresh set that a point query opens.

    It is one file of a sort, and files ** ((d - 1) / d) of a curve in d columns, because a curve cuts the space of its
    columns into boxes, about files ** (1 / d) along each column.
    """
    if by.strategy == SORT:
        return 1.0
    dimensions = len(by.columns)
    return float(max(1, files) ** ((dimensions - 1) / dimensions))


def outputs_of(size_bytes: int, policy: SizePolicy) -> int:
    """Return the number of files for `size_bytes`; merges use it too, so that neither undoes the other's sizes."""
    return merged_files(size_bytes, policy.target_file_size_bytes, policy.small_file_limit_bytes)


def why_not(sets: Sets, by: ClusterBy, policy: SizePolicy) -> str | None:
    """Return the reason why the files of a partition stay (`IN_ORDER`: well enough); None to join them now.

    They are joined if they become several files, if the files that join the largest set have `new_share` of its bytes,
    and if point queries gain by it.
    """
    files = sets.files
    outputs = outputs_of(total_bytes(files), policy)
    largest = total_bytes(sets.open_sets[-1]) if sets.open_sets else 0
    joining_bytes = total_bytes(files) - largest
    if len(files) < 2:
        return "of one file"
    if not joining_bytes:
        return IN_ORDER
    if outputs < 2:
        return f"with too few bytes for two files of {format_bytes(policy.target_file_size_bytes)}, left to merging"
    if joining_bytes < by.new_share * largest:
        return f"whose new files have less than {by.new_share:.0%} of the bytes that they are to join"
    # files of few values overlap where they touch, and no sort changes that
    if is_sorted(sets, by, policy) or depth(files, by) < LEAST_GAIN * floor_depth(outputs, by):
        return IN_ORDER
    return None


def is_sorted(sets: Sets, by: ClusterBy, policy: SizePolicy) -> bool:
    """Return whether the sets and the new files are one order together, as in a table whose rows arrive by time."""
    files = sets.files
    return by.strategy == SORT and len(in_order(files, by, policy)) == len(files)


def sealed_parts(sets: Sets, by: ClusterBy, policy: SizePolicy) -> Iterator[Sets]:
    """Cut the bytes beyond a sealed set into about equal parts by lower bound, each of them a sealed set.

    Less than that stays whole. No part is smaller than a sealed set, because the next plan would join two open ones.
    """
    whole = sets.size_bytes
    parts = whole // by.sealed_set_bytes
    taken_bytes, part_bytes, part = 0, 0, []
    cuts = 0
    for file in by_bounds(sets.files):
        part.append(file)
        part_bytes += file.fact.size_bytes
        cumulated = taken_bytes + part_bytes
        is_share = cumulated * parts >= whole * (cuts + 1)
        sizes = (part_bytes, whole - cumulated)
        if is_share and min(sizes) >= by.sealed_set_bytes and all(outputs_of(size, policy) >= 2 for size in sizes):
            yield sets.among(part)
            taken_bytes, part_bytes, part, cuts = cumulated, 0, [], cuts + 1
    yield sets.among(part)
