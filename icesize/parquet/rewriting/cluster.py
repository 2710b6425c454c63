"""Clustering the files of one partition: their rows, in another order, in new files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icesize.concurrency import workers
from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import Merged, MergeResult, Results
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.row_map import Ordered
from icesize.parquet.files.settings import WriteSettings, pruned
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.ordering.cluster_order import Cuts, Ranking, RowOrder, by_part
from icesize.parquet.ordering.sort_keys import Rows, differ, slots, whole, words_of
from icesize.parquet.reading.conservation import Conservation
from icesize.parquet.reading.inputs import of_size, read_inputs
from icesize.parquet.reading.prefetch import Fetched
from icesize.parquet.rewriting.merge import Job, begun
from icesize.parquet.rewriting.threads import results_in_threads
from icesize.parquet.writing.encoding import nan_columns
from icesize.parquet.writing.sorted_files import SortedFiles, Target
from icesize.parquet.writing.spill import Spill, SpilledRows
from icesize.planning.plan import MergeTask

SAMPLE_ROWS = 2**20
"""Keys from which the parts of rows that do not fit into memory are cut, each then within 1% of its share."""
PART_SHARE = 0.75
"""Share of the memory for rows that a part is planned to fill.

The rest is a reserve, because the memory of a row is estimated from the first rows.
"""

MOST_SHARES = 4
"""Most threads that order rows at the same time. They share the memory, and less than a quarter of it per thread would
make small row groups.
"""

_NUMBER = pa.field("number of the row for icesize", pa.uint32(), nullable=False)
"""The last column of rows that wait: their place in the order of reading, of which `RowMap` is made. With 2**32 rows or
more, it has no meaning."""

Place = tuple[int, ...]
"""The place of a part in the order; one that was divided again has its parts below it."""


class TooLarge(Exception):
    """Rows need more parts than allowed; everything written was removed."""


def write_clustered(
    group: MergeTask,
    order: RowOrder,
    settings: WriteSettings,
    names: FileNames,
    *,
    most_parts: int | None = None,
    moved: Callable[[int], object] = lambda rows: None,
) -> Merged:
    """Write the live rows of all input files, in `order`, into at most `group.outputs` files of about equal size.

    There are fewer files if ordered rows need fewer bytes and more files would be below the small file limit.

    Rows that fit into `Limits.sorted_bytes` are held in memory. Otherwise the keys are read first, to cut the order
    into parts that fit. Then all rows wait on the local disk (`Spill`), and one part at a time is ordered. Files may
    continue across parts. Each file carries the largest data sequence number of the input files and of the applied
    equality deletes. `moved` is called with the number of rows that are spilled to disk, and of rows that are written.

    Memory measured above that of the process before: 430 MiB for 185 MiB of Arrow rows; 600 MiB for 252 MiB; 580 MiB
    for 800 MiB in 5 parts; 640 MiB for 3.1 GiB in 17 parts.

    Raises `TooLarge` for more than `most_parts` parts (None: any number), and the `RewriteFailed` errors of
    `icesize.parquet.rewriting.merge.merge`, after everything written is removed.
    """
    with begun("cluster", group, settings, names, TooLarge) as job:
        deleted = job.deleted
        sequence, live = deleted.merged_sequence_number(group.inputs), group.rows - deleted.rows
        target = Target(group.partition, live, job.group.outputs, order.sort_order_id, sequence)
        writing, counted = SortedFiles(target, job.new_files), Conservation(job.new_files.settings)
        ordered = Ordered(live)
        for part in _Reading(job, order, moved, counted).parts(most_parts):
            moved(part.write(order, writing, ordered.write))
        files = counted.check(writing.close())
        written = sum(file.rows for file in files)
        if written != live:
            raise RewriteFailed(
                f"Cannot cluster: {live} live rows went in and {written} came out, report this", path=None
            )
    return MergeResult(
        group.inputs, tuple(files), group.size_bytes, rows_deleted=deleted.rows, named=deleted.named,
        row_map=deleted.left_out_of(ordered.row_map(group.inputs)),
    )  # fmt: skip


def cluster_in_threads(
    groups: Mapping[int, MergeTask],
    prefixes: Mapping[int, str],
    order: RowOrder,
    settings: WriteSettings,
    owner: Uncommitted,
    *,
    progress: Callable[[int], None] = lambda size_bytes: None,
) -> Results:
    """Run `cluster` for each group in threads of this process, and return the results by group number.

    Each group's file names have its own prefix. A damaged input fails its own group only. `progress` is called with
    finished bytes, for a large group several times, from several threads.

    Up to `MOST_SHARES` threads share the memory that one alone would have.
    """
    limits, shares = settings.limits, max(1, min(workers(), len(groups), MOST_SHARES))
    names = ("sorted_bytes", "sorted_rows", "scattered_bytes")
    shared = replace(settings, limits=replace(limits, **{name: getattr(limits, name) // shares for name in names}))

    def work(number: int, group: MergeTask) -> Merged:
        most_rows, moved_rows, reported_bytes = 2 * group.rows, 0, 0  # onto the disk and into files

        def moved(rows: int) -> None:
            nonlocal moved_rows, reported_bytes
            moved_rows = min(moved_rows + rows, most_rows)
            done_bytes = group.size_bytes if moved_rows == most_rows else group.size_bytes * moved_rows // most_rows
            if done_bytes > reported_bytes:
                progress(done_bytes - reported_bytes)
                reported_bytes = done_bytes

        try:
            return write_clustered(group, order, shared, FileNames(prefixes[number], number, 0, owner), moved=moved)
        finally:
            moved(most_rows)

    return results_in_threads(groups, work)


def _keys(order: RowOrder, rows: list[pa.Table]) -> pa.Table:
    return pa.concat_tables([order.keys(table) for table in rows])


def numbered(tables: Iterable[pa.Table], numbers: npt.NDArray[np.uint32] | None = None) -> Iterator[pa.Table]:
    """Yield the rows with a last column of numbers: the given ones, or those of the order of reading."""
    first = 0
    for table in tables:
        end = first + table.num_rows
        column = np.arange(first, end, dtype=np.uint32) if numbers is None else numbers[first:end]
        yield table.append_column(_NUMBER, pa.array(column))
        first = end


def _take_numbers(tables: list[pa.Table]) -> npt.NDArray[np.uint32] | None:
    """Remove the numbers of the rows from the tables, and return them; None if the rows have none."""
    if not tables or tables[0].column_names[-1] != _NUMBER.name:
        return None
    numbers = pa.concat_arrays([chunk for table in tables for chunk in table.column(_NUMBER.name).chunks])
    tables[:] = [table.drop_columns([_NUMBER.name]) for table in tables]
    found: npt.NDArray[np.uint32] = numbers.to_numpy()
    return found


@dataclass(frozen=True, eq=False)
class _Part:
    """Unordered rows in memory, and facts about the rows of `later` parts."""

    ranking: Ranking
    rows: list[pa.Table]
    later: SpilledRows

    def write(self, order: RowOrder, files: SortedFiles, note: Callable[[npt.NDArray[Any]], object]) -> int:
        """Write the rows in order, after those of earlier parts, and return their number.

        `note` is called with their numbers in this order. Rows without numbers are all rows, in the order of reading.
        """
        numbers, arranged = _take_numbers(self.rows), self.ranking.arrange(_keys(order, self.rows))
        note(arranged.order if numbers is None else numbers[arranged.order])
        files.write(self.rows, arranged, self.later.nan, self.later.arrow_bytes)
        return len(arranged.order)


@dataclass(frozen=True, eq=False)
class _Reading:
    """Reads the input files of one group; the rows that it yields are `counted`."""

    job: Job
    order: RowOrder
    moved: Callable[[int], object]
    counted: Conservation

    @property
    def _rows(self) -> int:
        return self.job.group.rows - self.job.deleted.rows

    @property
    def _settings(self) -> WriteSettings:
        return self.counted.settings

    def _read(
        self, settings: WriteSettings, fetched: Fetched | None = None, counted: Conservation | None = None
    ) -> Iterator[pa.Table]:
        return read_inputs(self.job.group, settings, fetched, deleted=self.job.deleted.positions, counted=counted)

    def parts(self, most_parts: int | None) -> Iterator[_Part]:
        """Yield all rows in parts; the rows of a part precede those of the next one. Raises `TooLarge`."""
        if not self._rows:
            return
        rows, fillings = self._at_once()
        if fillings <= 1:
            yield _Part(self.order.fit(_keys(self.order, rows)), rows, SpilledRows())
            return
        self.counted.clear()  # all rows are read again
        parts = math.ceil(fillings / PART_SHARE)
        if most_parts is not None and parts > most_parts:
            raise TooLarge(f"their rows are ordered in {parts} parts")
        self.job.fetched.fetch_remote(self.job.group.inputs)  # fetched once, for both the keys and the rows
        ranking, cuts = self._cuts(parts)
        with closing(Divided(self.order, self._settings, ranking)) as divided:
            tables = numbered(self._read(self._settings, self.job.fetched, self.counted))
            divided.put((), self._telling(tables), cuts.part_of)
            yield from divided.parts()

    def _telling(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            yield table
            self.moved(table.num_rows)

    def _at_once(self) -> tuple[list[pa.Table], float]:
        """Return all rows if they fit, and their size in multiples of the memory.

        The size is estimated as soon as an eighth of the memory is filled.
        """
        total, held_bytes, held_rows = self._rows, 0, 0
        limits = self._settings.limits
        fillings = total / limits.sorted_rows
        held: list[pa.Table] = []
        for table in self._read(self._settings, counted=self.counted):
            held_bytes, held_rows = held_bytes + table.nbytes, held_rows + table.num_rows
            held.append(table)
            if held_bytes >= limits.sorted_bytes / 8:
                fillings = max(fillings, held_bytes / max(1, held_rows) * total / limits.sorted_bytes)
                if fillings > 1:
                    return [], fillings
        return (held if fillings <= 1 else []), fillings

    def _cuts(self, parts: int) -> tuple[Ranking, Cuts]:
        tables = self._read(pruned(self._settings, self.order.columns), self.job.fetched)
        keys = _sample(map(self.order.keys, tables), self._rows)
        ranking = self.order.fit(keys)
        return ranking, ranking.cuts(keys, [1.0] * parts)


class Divided:
    """Rows by their part, with their numbers, on the local disk until their part is processed."""

    def __init__(self, order: RowOrder, settings: WriteSettings, ranking: Ranking) -> None:
        self._order, self._settings, self._ranking = order, settings, ranking
        self._limits = settings.limits
        self._spill = Spill[Place](settings.arrow_schema.append(_NUMBER))
        self._alike: set[Place] = set()

    def close(self) -> None:
        self._spill.close()

    def put(self, place: Place, tables: Iterable[pa.Table], part_of: Callable[[pa.Table], Rows]) -> None:
        """Store rows under a place, each in the part that `part_of` returns for its keys."""
        for rows in of_size(tables, self._limits.scattered_bytes, self._limits.sorted_rows):
            nan = nan_columns(self._settings, rows)
            for part, some in by_part(rows, part_of(self._order.keys(rows))):
                self.add((*place, part), some, nan and nan_columns(self._settings, some))

    def add(self, place: Place, rows: pa.Table, nan: frozenset[int]) -> None:
        """Store rows of one part; `nan` are field ids of the float columns in which they hold NaN."""
        self._spill.put(place, [rows], nan)

    @property
    def rows(self) -> int:
        """Number of the rows that are stored."""
        return sum(self._spill.held(place).rows for place in self._spill)

    def parts(self) -> Iterator[_Part]:
        """Yield all rows in parts, and remove them from the disk."""
        while self._spill:
            place = min(self._spill)
            held, alike = self._spill.held(place), place in self._alike
            if not alike and self._is_large(held):
                self._divide(place, held.rows)
                continue
            pa.default_memory_pool().release_unused()
            left_bytes, taken = held.arrow_bytes, self._spill.take(place)
            for rows in self._pieces(taken) if alike else [self._copied(taken)]:
                left_bytes -= sum(table.nbytes for table in rows)
                later = [self._spill.held(other) for other in self._spill]
                nan = frozenset().union(*(other.nan for other in [*later, *([held] if alike else [])]))
                arrow_bytes = left_bytes + sum(other.arrow_bytes for other in later)
                yield _Part(self._ranking, rows, SpilledRows(arrow_bytes=arrow_bytes, nan=nan))

    def _is_large(self, held: SpilledRows) -> bool:
        limits = self._limits
        return max(held.arrow_bytes / limits.sorted_bytes, held.rows / limits.sorted_rows) > 1

    def _divide(self, place: Place, rows: int) -> None:
        """Divide a part into the rows before its middle row, the rows equal to it, and the rows after it."""
        keys = _sample(map(self._order.keys, self._spill.read(place)), rows)
        middle = self._ranking.arrange(keys).order[keys.num_rows // 2]
        bound = self._ranking.compared(keys.take([middle]))
        self._alike.add((*place, 1))
        self.put(place, self._spill.take(place), lambda keys: _around(bound, self._ranking.compared(keys)))

    def _copied(self, tables: Iterable[pa.Table]) -> list[pa.Table]:
        """Return rows whose columns have memory of their own, which `SortedFiles` can free column by column.

        The columns of spilled rows share the memory of one message.
        """
        limits = self._limits
        return [rows.combine_chunks() for rows in of_size(tables, limits.blob_bytes, limits.sorted_rows)]

    def _pieces(self, tables: Iterable[pa.Table]) -> Iterator[list[pa.Table]]:
        """Yield rows that are all equal, at most half the memory at a time, because concatenation holds them twice."""
        for rows in of_size(tables, self._limits.sorted_bytes // 2, self._limits.sorted_rows):
            yield [rows]


def _around(bound: pa.Table, keys: pa.Table) -> Rows:
    """Return 0 for keys before the only key in `bound`, 1 for keys equal to it, 2 for keys after it."""
    both = pa.concat_tables([bound, keys])
    words = [word for column in both.columns for word in words_of(whole(column))]
    places = np.arange(1, both.num_rows)
    return slots(bound, keys) * (1 + differ(words, np.zeros_like(places), places))


def _sample(keys: Iterable[pa.Table], rows: int) -> pa.Table:
    """Return a sample of the keys, at equal distances; `rows` is the number of all keys."""
    step = max(1, math.ceil(rows / SAMPLE_ROWS))
    sample, skip = [], 0
    for table in keys:
        sample.append(table.take(pa.array(np.arange(skip, table.num_rows, step))) if step > 1 else table)
        skip = (skip - table.num_rows) % step
    return pa.concat_tables(sample)
