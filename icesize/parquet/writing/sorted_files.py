"""Ordered rows, cut into files of about equal size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.new_files import NewFiles
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.ordering.cluster_order import CUT_SLACK, Arranged
from icesize.parquet.ordering.sort_keys import whole
from icesize.parquet.writing.encoding import Encoding, dictionary_columns, encoded_bytes, nan_columns
from icesize.parquet.writing.file_writer import FileEncoder
from icesize.planning.file_sizes import least_output_bytes, merged_files
from icesize.planning.files import PartitionKey

WINDOWS = 64
"""Places at which the density of ordered rows is measured: values that are large may have keys of their own."""
WINDOW_ROWS = (256, 1_024)
"""Rows encoded at each of them: at least the first, at fewer places where there are few rows, at most the second."""
RUN_ROWS = 32_768
"""Rows encoded together, from which is learned how much less they need than in windows: dictionaries are shared."""


@dataclass(frozen=True)
class Target:
    """The target of a write: `rows` in all, of one partition, into at most `outputs` files.

    If `outputs` is None, there are as many files as have the table's target size. Files get `sort_order_id` and
    `sequence_number`.
    """

    partition: PartitionKey
    rows: int
    outputs: int | None
    sort_order_id: int | None
    sequence_number: int | None


class _Part:
    """Rows in memory and their order, the columns in which they hold NaN, and their encoded bytes.

    The bytes follow from samples that were encoded in memory.
    """

    def __init__(self, rows: pa.Table, arranged: Arranged, settings: WriteSettings) -> None:
        self.rows, self.arranged, self._settings = rows, arranged, settings
        self._nan = nan_columns(settings, rows)
        windows = min(WINDOWS, -(-rows.num_rows // WINDOW_ROWS[0]))
        self._places = np.linspace(0, rows.num_rows, windows + 1).astype(np.int64)
        self._empty_bytes = encoded_bytes(rows.slice(0, 0), settings)
        segments = pairwise(self._places.tolist())
        sizes = [self._bytes_per_row(start, end, WINDOW_ROWS[1]) * (end - start) for start, end in segments]
        self._bytes = np.append(0.0, np.cumsum(sizes))
        start, end = self._middle(0, rows.num_rows, RUN_ROWS)
        together = self._bytes_per_row(0, rows.num_rows, RUN_ROWS) * (end - start)
        self._bytes *= together / (self.bytes_before(end) - self.bytes_before(start))

    def bytes_before(self, place: float) -> float:
        """Return the bytes of the rows before a position."""
        return float(np.interp(place, self._places, self._bytes))

    def place(self, size_bytes: float) -> int:
        """Return the position at which this number of bytes is reached."""
        return round(float(np.interp(size_bytes, self._bytes, self._places)))

    def groups(self, start: int, end: int, step: int) -> Iterator[pa.Table]:
        """Yield ordered rows, `step` rows at a time."""
        for first in range(start, end, step):
            yield self.rows.take(self.arranged.order[first : min(end, first + step)])

    def nan_between(self, start: int, end: int, step: int) -> frozenset[int]:
        """Return the columns in which some of these rows hold NaN."""
        groups = self.groups(start, end, step) if self._nan else ()
        return frozenset().union(*(nan_columns(self._settings, group) for group in groups))

    def _bytes_per_row(self, start: int, end: int, most_rows: int) -> float:
        start, end = self._middle(start, end, most_rows)
        size = encoded_bytes(self.rows.take(self.arranged.order[start:end]), self._settings) - self._empty_bytes
        # equal rows compress to almost nothing
        return max(1.0, size / (end - start))

    def _middle(self, start: int, end: int, most_rows: int) -> tuple[int, int]:
        rows = min(most_rows, end - start)
        first = start + (end - start - rows) // 2
        return first, first + rows


class SortedFiles:
    """Writes ordered rows, a bounded part of them at a time; a file may have rows of several parts.

    A file ends when it has an equal share of the encoded bytes, as measured from samples. A better position up to
    `CUT_SLACK` of a file away takes precedence (`Arranged.cut`). The share is computed again for each part, from the
    bytes that are not in a finished file yet. No file ends with a part, because the next part provides more
    information.
    """

    def __init__(self, target: Target, new_files: NewFiles) -> None:
        self._target = target
        self._settings = new_files.settings
        self._new_files = new_files
        self._rows_done = 0
        self._file_rows = target.rows
        self._open_bytes = 0.0
        self._current: FileEncoder | None = None
        self._done: list[NewDataFile] = []

    def write(
        self,
        tables: list[pa.Table],
        arranged: Arranged,
        later_nan: frozenset[int] = frozenset(),
        later_arrow_bytes: float | None = None,
    ) -> None:
        """Write rows that follow all rows written before; the list is emptied to free memory.

        `arranged` is the order of these rows, in the sequence of the tables. `later_nan` are the float columns in which
        rows of later calls may hold NaN. `later_arrow_bytes` is the Arrow memory of those rows, which are expected to
        be encoded as well as these. If None, they are assumed to be as large as these, row by row.
        """
        rows = in_one_piece(tables)
        if not rows.num_rows:
            return
        part = _Part(rows, arranged, self._settings)
        self._rows_done += rows.num_rows
        later_rows = self._target.rows - self._rows_done
        times = later_rows / rows.num_rows if later_arrow_bytes is None else later_arrow_bytes / max(1, rows.nbytes)
        start = 0
        for end in self._ends(part, part.bytes_before(rows.num_rows) * times):
            self._append(part, start, end, frozenset())
            self._finish()
            start = end
        self._append(part, start, rows.num_rows, later_nan)

    def close(self) -> list[NewDataFile]:
        """Return all files."""
        self._finish()
        return self._done

    def _count(self, left_bytes: float) -> int:
        """Return the number of files for these bytes.

        Ordered rows often need fewer bytes than planned, and no file may be small because of that.
        """
        target, limit = self._settings.target_file_size_bytes, self._settings.small_file_limit_bytes
        files = merged_files(int(left_bytes), target, limit)
        if self._target.outputs is None:
            return files
        return max(1, min(files, self._target.outputs - len(self._done)))

    def _share(self, left_bytes: float) -> tuple[int, float]:
        """Return the number of files for the rows that are not in a finished file, and their bytes per file.

        The open file is one of them. It is finished first if it has its share and the rest makes no small file.
        """
        files = self._count(self._open_bytes + left_bytes)
        share = (self._open_bytes + left_bytes) / files
        enough = least_output_bytes(self._settings.small_file_limit_bytes)
        if files > 1 and self._open_bytes >= (1 - CUT_SLACK) * share and left_bytes >= enough:
            self._finish()
            files = self._count(left_bytes)
            share = left_bytes / files
        return files, share

    def _ends(self, part: _Part, later_bytes: float) -> Iterator[int]:
        """Yield the positions of file ends within a part."""
        rows = part.rows.num_rows
        files, share = self._share(part.bytes_before(rows) + later_bytes)
        self._file_rows = math.ceil(self._target.rows / (len(self._done) + files))
        begun, end = self._open_bytes, 0
        for number in range(1, files):
            wanted_bytes = number * share - begun
            if wanted_bytes <= 0:
                continue
            wanted = part.place(wanted_bytes)
            slack = (wanted - part.place(wanted_bytes - CUT_SLACK * share)) or 1
            end = max(end + 1, part.arranged.cut(wanted, slack))
            if end >= rows or rows - wanted <= slack:
                return
            yield end

    def _append(self, part: _Part, start: int, end: int, later_nan: frozenset[int]) -> None:
        rows, size_bytes = end - start, part.bytes_before(end) - part.bytes_before(start)
        self._open_bytes += size_bytes
        step = math.ceil(rows / self._settings.parquet.row_groups(size_bytes, rows))
        for group in part.groups(start, end, step):
            if self._current is None:
                nan = part.nan_between(start, end, step) | later_nan
                encoding = Encoding(dictionary_columns(self._settings, group), nan)
                partition, rows = self._target.partition, self._file_rows
                self._current = FileEncoder(self._new_files, partition, encoding, expected_rows=rows)
            self._current.append(group)

    def _finish(self) -> None:
        if self._current is None:
            return
        self._current.sort_order_id = self._target.sort_order_id
        file = self._current.finish()
        self._current = None
        self._open_bytes = 0.0
        self._done.append(replace(file, sequence_number=self._target.sequence_number))


def in_one_piece(tables: list[pa.Table]) -> pa.Table:
    """Return the rows of all tables with each column in one array, and empty the list.

    Only one column at a time exists twice.
    """
    schema = tables[0].schema
    columns = [[chunk for table in tables for chunk in table.column(i).chunks] for i in range(len(schema))]
    tables.clear()
    arrays = []
    for number, field in enumerate(schema):
        arrays.append(whole(pa.chunked_array(columns[number], field.type)))
        columns[number] = []
        pa.default_memory_pool().release_unused()
    return pa.Table.from_arrays(arrays, schema=schema)
