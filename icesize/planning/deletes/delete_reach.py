"""The data files that a delete file applies to, and what follows for a file that replaces others. Pure.

An equality delete of sequence number d hits data files of numbers n < d, a position delete those with n <= d, both of
its own partition and spec; an equality delete without partition values hits files of every partition (Iceberg
specification, "Scan planning"). A deletion vector (format v3) is a position delete with all deleted positions
of one data file: readers ignore position delete files for a data file that a vector hits.

Let S be the number of the snapshot whose deletes were read to plan a merge, never the table's last sequence number,
which other branches push up. All deletes with d <= S are applied while the inputs are read, each by the input's own n.
The output then carries **max(n of its inputs, d of the equality deletes that were applied)**, which is at most S. What
is committed at or before S, between S and the commit, and after the commit:

| what | at or before S | between | after |
|---|---|---|---|
| position delete of an input | applied | the group is dropped | its writer is refused: the input is gone |
| equality delete | applied; d <= the output's number | d > S: it hits the output as it hit the inputs | as between |
| data file | an input by its own n, or none | stays unchanged | stays unchanged |

An output that holds rows of the same commit carries that commit's number, which equality deletes between S and the
commit would not reach any more: one that hits an older input drops the group. A delete file that is listed again with
d <= S is a known one, written again.

A *move* writes rows of a partition of an old spec into partitions of the current one. Deletes of one do not reach files
of the other, but those without partition values reach both. The output carries the number of its commit:

| equality delete | at or before S | between | after |
|---|---|---|---|
| of the old partition | applied | the group is dropped | does not reach the rows any more |
| of the new partition | does not reach the rows, as before | does not reach them, as before | reaches them |
| without partition values | applied | the group is dropped | reaches them, as before |

Position deletes are as above.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from icesize.planning.files import DeleteFile, FileFact, Layout, PartitionKey
from icesize.policy import SizePolicy

PENDING = 1 << 62
"""Sequence number of delete files that an earlier step of the same commit adds: greater than any other."""


def plain_path(path: str) -> str:
    """Return a local path without its scheme, because Java writes `file:/x` and Python writes `file:///x`."""
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith(("file:", "/")) else path


def only_path(delete: DeleteFile) -> str | None:
    """Return the data file of a position delete file if there is only one; None otherwise.

    Writers record the path, or both bounds are the same path. Shortened bounds are never the same.
    """
    if delete.referenced_path is not None:
        return delete.referenced_path
    return delete.lowest_path if delete.lowest_path == delete.highest_path else None


def may_hit(delete: DeleteFile, file: FileFact) -> bool:
    """Return whether a delete of the file's partition may apply to its rows; bounds of paths can only exclude it."""
    if not reaches(delete, file.sequence_number):
        return False
    return bool(delete.equality_ids) or _may_name(delete, plain_path(file.path))


def reaches(delete: DeleteFile, number: float) -> bool:
    """Return whether a delete is new enough to apply to a data file with this data sequence number."""
    return delete.sequence_number > number if delete.equality_ids else delete.sequence_number >= number


def vectors_hitting(files: Iterable[FileFact], deletes: Iterable[DeleteFile]) -> dict[str, list[DeleteFile]]:
    """Return the deletion vectors of each data file that has some, by `FileFact.path`; more than one is an error."""
    by_path, vectors = {plain_path(file.path): file for file in files}, defaultdict[str, list[DeleteFile]](list)
    for delete in deletes:
        if delete.is_vector and delete.referenced_path is not None:
            file = by_path.get(plain_path(delete.referenced_path))
            if file is not None and may_hit(delete, file):
                vectors[file.path].append(delete)
    return dict(vectors)


def _is_readable(delete: DeleteFile) -> bool:
    """Return whether icesize can read a delete: Parquet, or a deletion vector with all facts that a reader needs."""
    if not delete.is_vector:
        return delete.file_format == "PARQUET"
    has_place = delete.file_format == "PUFFIN" and delete.content_size_bytes is not None
    return has_place and delete.referenced_path is not None and not delete.equality_ids


def _may_name(delete: DeleteFile, path: str) -> bool:
    if (only := only_path(delete)) is not None:
        return plain_path(only) == path
    if delete.lowest_path is None or delete.highest_path is None:
        return True
    return may_lie_between(path, delete.lowest_path, delete.highest_path)


def may_lie_between(path: str, lowest_path: str, highest_path: str) -> bool:
    """Return whether a `plain_path` may lie between two bounds of paths as they are written."""
    lowest, highest = plain_path(lowest_path), plain_path(highest_path)
    if len(lowest_path) - len(lowest) != len(highest_path) - len(highest):
        return True  # paths of two spellings do not lie between these two
    # bounds may be truncated: compare only as many characters as they have
    return path[: len(lowest)] >= lowest and path[: len(highest)] <= highest


def _bounds(delete: DeleteFile) -> tuple[bytes, bytes] | None:
    """Return the first key of the paths that a delete may name, and the first one after them; None without bounds.

    A path lies between the bounds (`may_lie_between`) if its `_path_key` is at least the first key, and less than the
    second one. No path begins a key with the byte 0xff, so that it is greater than the rest of any path.
    """
    if delete.lowest_path is None or delete.highest_path is None:
        return None
    lowest, highest = plain_path(delete.lowest_path), plain_path(delete.highest_path)
    if len(delete.lowest_path) - len(lowest) != len(delete.highest_path) - len(highest):
        return None
    return _path_key(lowest), _path_key(highest) + b"\xff"


def _path_key(path: str) -> bytes:
    """Return bytes in the order of the paths' characters; paths are as `plain_path` writes them."""
    return path.encode(errors="surrogatepass")


class _Counted:
    """Counts those of the first keys of a sequence that come before a key, and sums up their rows.

    This is a Fenwick tree: n keys take n log n references, and a query looks into log n sorted lists.
    """

    def __init__(self, keys: Iterable[tuple[bytes, int]]) -> None:
        items, self._nodes = list(keys), list[tuple[list[bytes], list[int]]]()
        for end in range(1, len(items) + 1):
            part = sorted(items[end - (end & -end) : end])
            self._nodes.append(([key for key, _ in part], list(accumulate((rows for _, rows in part), initial=0))))

    def before(self, first: int, key: bytes, bisect: Callable[[list[bytes], bytes], int]) -> tuple[int, int]:
        """Return the number and the rows of keys before `key` among the `first` ones.

        With `bisect_right`, equal keys also count.
        """
        count = rows = 0
        while first:
            keys, sums = self._nodes[first - 1]
            at = bisect(keys, key)
            count, rows, first = count + at, rows + sums[at], first & (first - 1)
        return count, rows


class _Between:
    """Position deletes of several data files, of which the bounds are known."""

    def __init__(self, deletes: Iterable[DeleteFile]) -> None:
        # a delete whose bounds are in the wrong order names no path, and would be subtracted below
        pairs = ((delete, _bounds(delete)) for delete in deletes)
        known = [(delete, bounds) for delete, bounds in pairs if bounds and bounds[0] < bounds[1]]
        known.sort(key=lambda pair: -pair[0].sequence_number)
        self._numbers = [-delete.sequence_number for delete, _ in known]
        self._starts = _Counted((bounds[0], delete.rows) for delete, bounds in known)
        self._ends = _Counted((bounds[1], delete.rows) for delete, bounds in known)

    def hitting(self, path: bytes, number: int) -> tuple[int, int]:
        """Return the number and the rows of those that may name a path, and have this sequence number or a greater one.

        Bounds that begin at the path or before it, without those that end before it, include it.
        """
        first = bisect_right(self._numbers, -number)
        begun, ended = (each.before(first, path, bisect_right) for each in (self._starts, self._ends))
        return begun[0] - ended[0], begun[1] - ended[1]


class DeleteHits(NamedTuple):
    """The deletes of one file, with the names of `FileFact`."""

    delete_files: int
    deleted_rows: int
    avoidable_deletes: int


class PartitionDeletes:
    """The delete files that may apply to files of one partition, in the order of their numbers, indexed for many
    queries.
    """

    def __init__(self, files: Iterable[DeleteFile]) -> None:
        self.files: tuple[DeleteFile, ...] = tuple(
            sorted(files, key=lambda delete: (delete.sequence_number, delete.path, delete.content_offset or 0))
        )
        self._unreadable = [delete for delete in self.files if not _is_readable(delete)]
        # equality deletes, and position deletes that may be about any file, are counted by their numbers alone
        self._equality, self._anywhere = list[int](), list[int]()
        self._by_equality, self._of_any = list[DeleteFile](), list[DeleteFile]()
        self._by_path = defaultdict[str, list[DeleteFile]](list)
        self._between: list[DeleteFile] = []
        for delete in self.files:
            if delete.equality_ids:
                self._equality.append(delete.sequence_number)
                self._by_equality.append(delete)
            elif (only := only_path(delete)) is not None:
                self._by_path[plain_path(only)].append(delete)
            elif _bounds(delete):
                self._between.append(delete)
            else:
                self._anywhere.append(delete.sequence_number)
                self._of_any.append(delete)
        self._equality_rows, self._rows_anywhere = _rows_from_each(self._by_equality), _rows_from_each(self._of_any)

    def hitting(self, file: FileFact) -> DeleteHits:
        """Return the deletes that may apply to a data file.

        A position delete cannot name a path that came into the table after it. A file that replaced others since then
        is therefore not affected, although the sequence numbers would allow it until the delete file is gone. Rewriting
        that file would not help.
        """
        first = max(file.sequence_number, file.file_sequence_number)
        equality = len(self._equality) - bisect_right(self._equality, file.sequence_number)
        own = self._naming(file)
        if vectors := [delete for delete in own if delete.is_vector]:
            hits = equality + len(vectors)
            return DeleteHits(hits, min(file.rows, sum(delete.rows for delete in vectors)), hits)
        sure, rows = equality + len(own), sum(delete.rows for delete in own)
        of_any, avoidable = self._of_several(file, file.sequence_number)[0], self._of_several(file, first)[0]
        return DeleteHits(sure + of_any, min(file.rows, rows), sure + avoidable)

    def rows_without_target(self, file: FileFact) -> int:
        """Return the rows of the deletes that may apply to a data file, without those that name only this file."""
        equality = self._equality_rows[bisect_right(self._equality, file.sequence_number)]
        if any(delete.is_vector for delete in self._naming(file)):
            return equality
        return equality + self._of_several(file, file.sequence_number)[1]

    def applying(self, file: FileFact) -> list[DeleteFile]:
        """Return the deletes that may apply to a data file, as readers select them."""
        equality, own = self._by_equality[bisect_right(self._equality, file.sequence_number) :], self._naming(file)
        if vectors := [delete for delete in own if delete.is_vector]:
            return [*equality, *vectors]
        between = [delete for delete in self._between if may_hit(delete, file)]
        return [*equality, *own, *between, *self._of_any[bisect_left(self._anywhere, file.sequence_number) :]]

    def are_readable(self, file: FileFact) -> bool:
        """Return False if icesize cannot read a delete that may apply to a data file, or if two vectors apply to it."""
        if any(may_hit(delete, file) for delete in self._unreadable):
            return False
        return sum(delete.is_vector for delete in self._naming(file)) < 2

    def _of_several(self, file: FileFact, number: int) -> tuple[int, int]:
        """Return number and rows of the position deletes that may name a data file and others.

        Deletes with a smaller sequence number than `number` do not count.
        """
        at = bisect_left(self._anywhere, number)
        count, rows = (
            self._counted_between.hitting(_path_key(plain_path(file.path)), number) if self._between else (0, 0)
        )
        return count + len(self._anywhere) - at, rows + self._rows_anywhere[at]

    @cached_property
    def _counted_between(self) -> _Between:
        return _Between(self._between)

    def _naming(self, file: FileFact) -> list[DeleteFile]:
        """Return the position deletes and vectors that apply to this data file, and to no other."""
        return [delete for delete in self._by_path.get(plain_path(file.path), ()) if may_hit(delete, file)]


def _rows_from_each(deletes: Sequence[DeleteFile]) -> list[int]:
    """Return the rows of each delete together with all after it, and 0 at the end."""
    return list(accumulate((delete.rows for delete in reversed(deletes)), initial=0))[::-1]


def is_due(file: FileFact, policy: SizePolicy) -> bool:
    """Return whether the deletes of a file are due, whatever its size: many rows, or many delete files.

    Only delete files that would not apply to a new file in its place count. Otherwise the new file would be due at
    once.
    """
    return is_due_at_any_cost(file, policy) or file.avoidable_deletes > policy.max_delete_files


def is_due_at_any_cost(file: FileFact, policy: SizePolicy) -> bool:
    """Return whether a file has to be rewritten, so that fewer delete files are not enough."""
    delete_files, threshold = file.avoidable_deletes, policy.delete_file_threshold
    return delete_files > 0 and (
        file.deleted_rows >= _due_share(file, policy) * max(1, file.rows)
        or (threshold is not None and delete_files >= threshold)
    )


def _due_share(file: FileFact, policy: SizePolicy) -> float:
    """Return the share of deleted rows at which a file is due, which its path spreads below the threshold."""
    if not policy.delete_ratio_spread:
        return policy.delete_ratio_threshold
    part = zlib.crc32(plain_path(file.path).encode()) / 2**32
    return policy.delete_ratio_threshold * (1 - policy.delete_ratio_spread * part)


def delete_files_freed(layout: Layout, inputs: Iterable[FileFact]) -> int:
    """Return the number of delete files that apply to no file of the layout once these data files are gone.

    Delete files that also apply to other partitions do not count, because the layout may lack files there.
    """
    gone: defaultdict[PartitionKey, dict[str, FileFact]] = defaultdict(dict)
    for file in inputs:
        if file.delete_files and file.partition in layout.partitions:
            gone[file.partition][file.path] = file
    freed = 0
    for key, facts in layout.partitions.some(gone).items():
        files = gone[key]
        left = DataFiles([file for file in facts.with_deletes if file.path not in files])
        inputs_here = DataFiles(files.values())
        own = [delete for delete in next(iter(files.values())).deletes if delete.partition == key]
        freed += sum(not left.may_be_hit(delete) and inputs_here.may_be_hit(delete) for delete in own)
    return freed


class DataFiles:
    """Data files of one partition, indexed for comparison with many delete files."""

    def __init__(self, files: Collection[FileFact]) -> None:
        self._files = sorted(files, key=lambda file: file.sequence_number)
        self._numbers = {plain_path(file.path): file.sequence_number for file in files}
        self._oldest = self._files[0].sequence_number if self._files else math.inf

    def may_be_hit(self, delete: DeleteFile) -> bool:
        """Return whether a delete may apply to one of them; most kinds apply to the oldest one if to any."""
        number = delete.sequence_number
        if delete.equality_ids:
            return number > self._oldest
        if (only := only_path(delete)) is not None:
            return number >= self._numbers.get(plain_path(only), math.inf)
        bounds = _bounds(delete)
        if number < self._oldest or bounds is None:
            return number >= self._oldest
        first = bisect_right(self._files, number, key=lambda file: file.sequence_number)
        start, end = (self._counted.before(first, bound, bisect_left)[0] for bound in bounds)
        return start < end

    @cached_property
    def _counted(self) -> _Counted:
        return _Counted((_path_key(plain_path(file.path)), 0) for file in self._files)
