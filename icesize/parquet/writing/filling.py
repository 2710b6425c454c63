"""Which rows of a partition go into which of its files, and which wait until it is known how many there are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import NewFiles
from icesize.parquet.ordering.sort_order import sorter_of
from icesize.parquet.reading.inputs import Stream
from icesize.parquet.writing.buffer import Group
from icesize.parquet.writing.encoding import Encoding, dictionary_columns, nan_columns
from icesize.parquet.writing.open_files import OpenFiles
from icesize.parquet.writing.size_estimates import bytes_for_file
from icesize.parquet.writing.spill import Spill
from icesize.planning.files import PartitionKey
from icesize.planning.sizing import least_output_bytes

OPEN_SHARE = 1 / 16
"""Part of the buffer that rows of one partition must fill to be written before its other rows are there: with the
default buffer row groups of 8 MiB of Arrow memory, some 60,000 rows."""
TOP_UP_SHARE = 1 / 20
"""Part of the target that a file must lack to be filled up: less would be a tiny row group."""


@dataclass(frozen=True)
class _Rows:
    """Rows of one partition that are written now. `waiting_bytes` (Arrow) more will come, `together` says that all of
    them fit in memory."""

    tables: Iterable[pa.Table]
    rows: int
    arrow_bytes: int
    encoding: Encoding
    together: bool
    waiting_bytes: int = 0


class Filling:
    """Fills files of the target size with rows that come in any order of partitions.

    At most `Limits.open_files` files are open, one for each partition; rows that have no open file, are few
    (`OPEN_SHARE` of `max_buffer_bytes`), or would begin a file that may stay below `small_file_limit_bytes` wait in a
    `Spill`. Call `close` in the end.
    """

    def __init__(self, settings: WriteSettings, names: FileNames, new_files: NewFiles, max_buffer_bytes: int) -> None:
        self._settings = settings
        self._max_buffer_bytes = max_buffer_bytes
        self._least_bytes = least_output_bytes(settings.small_file_limit_bytes)
        self._sorter = sorter_of(settings)
        self._runs = itertools.count()
        self._files = OpenFiles(settings, names, new_files)
        self._spill = Spill(settings.arrow_schema)

    @property
    def some_wait(self) -> bool:
        """Whether rows wait on disk."""
        return bool(self._spill)

    def add(self, partition: PartitionKey, rows: pa.Table, encoding: Encoding) -> None:
        """Write rows or let them wait: more may come."""
        encoding = self._of_rows(encoding, rows)
        has_file = partition in self._files or len(self._files) < self._settings.limits.open_files
        if not has_file or rows.nbytes < OPEN_SHARE * self._max_buffer_bytes:
            self._spill.put(partition, [rows], encoding.nan)
            return
        held = self._spill.held(partition)
        arrow_bytes = held.arrow_bytes + rows.nbytes
        more = self._files.density.expected_bytes(partition, arrow_bytes, rows, encoding)
        rest = more - bytes_for_file(self._files.size_bytes(partition), more, self._settings, last=False)
        if held.rows and rest >= self._least_bytes:
            self._pour(partition, self._all(partition, rows, encoding), last=False)
        else:
            alone = _Rows([rows], rows.num_rows, rows.nbytes, encoding, True, held.arrow_bytes)
            self._pour(partition, alone, last=False)

    def complete(self, groups: list[Group], encoding: Encoding) -> list[WrittenFile]:
        """Write these last rows, and all that wait, and return all files."""
        if self._spill:
            encoding = Encoding(self._dictionary_of_waiting(), encoding.nan)
        left = {group.partition: group for group in groups}
        # open ones first: none beyond the limit is opened
        for partition in dict.fromkeys([*self._files, *self._spill, *left]):
            group = left.get(partition)
            self._pour(partition, self._all(partition, group and group.table(), encoding), last=True)
            self._files.finish(partition)
        self._spill.close()
        return self._files.files()

    def close(self) -> None:
        """Forget the rows that wait, and end the threads that finish files."""
        self._spill.close()
        self._files.close()

    def _of_rows(self, encoding: Encoding, rows: pa.Table) -> Encoding:
        return Encoding(encoding.dictionary, nan_columns(self._settings, rows)) if encoding.nan else encoding

    def _dictionary_of_waiting(self) -> tuple[str, ...]:
        """Judged from the partition of which most rows wait."""
        largest = max(self._spill, key=lambda partition: self._spill.held(partition).rows)
        some = Stream(self._spill.read(largest), self._max_buffer_bytes // 2).take(self._spill.held(largest).rows)
        return dictionary_columns(self._settings, some)

    def _all(self, partition: PartitionKey, rows: pa.Table | None, encoding: Encoding) -> _Rows:
        """The rows that wait, and these."""
        held = self._spill.held(partition)
        tables, count, arrow_bytes, nan = self._spill.take(partition), held.rows, held.arrow_bytes, held.nan
        if rows is not None:
            tables = itertools.chain(tables, [rows])
            count, arrow_bytes = count + rows.num_rows, arrow_bytes + rows.nbytes
            nan |= self._of_rows(encoding, rows).nan
        together = not held.rows or arrow_bytes <= self._max_buffer_bytes
        return _Rows(tables, count, arrow_bytes, Encoding(encoding.dictionary, nan), together)

    def _pour(self, partition: PartitionKey, rows: _Rows, *, last: bool) -> None:
        """Into the open file of the partition and as many more as it takes; what is planned is looked at again after
        each piece, as only then its encoded size is known."""
        pieces, left = self._pieces(rows), rows.rows
        while left:
            arrow_bytes = rows.arrow_bytes * left // rows.rows
            like = pieces.stream.peek()
            more = self._files.density.expected_bytes(partition, arrow_bytes, like, rows.encoding)
            total = more * (1 + rows.waiting_bytes / max(1, arrow_bytes))
            part = bytes_for_file(self._files.size_bytes(partition), total, self._settings, last=last)
            if part < min(total, TOP_UP_SHARE * self._settings.target_file_size_bytes):
                if not last and total - part < self._least_bytes:
                    self._spill.put(partition, pieces.stream.rest(), rows.encoding.nan)
                    return
                self._files.finish(partition)
                continue
            wanted = min(left, math.ceil(left * part / max(1.0, more)))
            left -= self._append(partition, pieces, wanted, rows.encoding)

    def _pieces(self, rows: _Rows) -> _Pieces:
        """As a stream of bounded memory; sorted when all are together and the table has an order."""
        tables, half = rows.tables, self._max_buffer_bytes // 2
        if self._sorter is None or not rows.together:
            return _Pieces(Stream(tables, half), None)
        tables = list(tables)
        ordered = [self._sorter(pa.concat_tables(tables))] if tables else []
        return _Pieces(Stream(ordered, half), next(self._runs))

    def _append(self, partition: PartitionKey, pieces: _Pieces, wanted: int, encoding: Encoding) -> int:
        """Write the next `wanted` rows, or fewer, and return how many."""
        rows, run = pieces.stream.take(wanted), pieces.run
        if self._sorter is not None and run is None:
            rows, run = self._sorter(rows), next(self._runs)
        self._files.append(partition, rows, encoding, run)
        return int(rows.num_rows)


@dataclass(frozen=True)
class _Pieces:
    """`run`: the number of the sequence in the table's sort order that the rows are, None when each piece is one."""

    stream: Stream
    run: int | None
