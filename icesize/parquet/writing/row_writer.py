"""Rows of one task -> Parquet files of the target size, one partition per file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import NewFiles
from icesize.parquet.files.partitioning import arrange_by_partition
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.reading.conservation import Conservation
from icesize.parquet.reading.projection import ColumnAligner
from icesize.parquet.writing.encoding import Encoding, dictionary_columns, nan_columns
from icesize.parquet.writing.filling import Filling
from icesize.planning.files import PartitionKey

MAX_BUFFER_BYTES = 128 * 2**20
"""Arrow memory of the rows that a task holds; the process needs about twice as much, and what Python itself takes."""
BLOCK_BYTES = 16 * 2**20
"""Arrow memory of the rows that are divided together, which takes as much again for a moment."""
MIN_CHUNK_ROWS = 1_024
"""Rows that lie in shorter chunks are copied into one: encoding starts again with each."""


def use_system_memory() -> None:
    """Make Arrow allocate from the C library, once per worker process, before anything else.

    Arrow's own pool uses huge pages, whose first touch makes a new worker up to 1.5x slower.
    """
    pa.set_memory_pool(pa.system_memory_pool())


def write_rows(
    batches: Iterable[pa.RecordBatch | pa.Table],
    settings: WriteSettings,
    names: FileNames,
    older: Iterable[tuple[PartitionKey, pa.Table]] = (),
    counted: Conservation | None = None,
) -> list[NewDataFile]:
    """Write all batches, after the rows of `older` files.

    The older rows have the table's Arrow schema, stay in their partitions and are `counted`. On any error, the files
    already written are deleted, best effort, and the error is raised.

    Raises `SchemaMismatch` if rows do not fit the table, `RewriteFailed` or `OSError` if storage fails.
    """
    writer, counted = RowWriter(settings, names), counted or Conservation(settings)
    with writer.all_or_none():
        for partition, rows in older:
            writer.take_along(partition, rows)
        for batch in batches:
            writer.write(batch)
            counted.add_new(batch)
        return counted.check(writer.close())


class RowWriter:
    """Takes rows in any order of partitions and writes few, well-sized files.

    Up to `max_buffer_bytes` of rows (Arrow memory) are held. That is usually all of them, and each partition is then
    written at one time, in equal parts if it is larger than a file.

    With more rows than that, partitions with many rows are written to files that stay open for their later rows. The
    rows of the other partitions wait on local disk until all rows have arrived (`Filling`). The order of rows therefore
    adds no files, and no partition is cut into files below `settings.small_file_limit_bytes`.

    Files of a table with a sort order are sorted by it, and record its id, if their rows could be sorted together.
    """

    def __init__(self, settings: WriteSettings, names: FileNames, *, max_buffer_bytes: int = MAX_BUFFER_BYTES) -> None:
        self._settings = settings
        self._align_columns = ColumnAligner(settings)
        self._max_buffer_bytes = max_buffer_bytes
        self._groups: dict[PartitionKey, _Group] = {}
        self._undivided: list[pa.Table] = []
        self._undivided_bytes = self._arrow_bytes = self._rows_in = 0
        self._new_files = NewFiles(settings, names)
        self._filling = Filling(self._new_files, max_buffer_bytes)

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Remove the files that are begun in the block if an error leaves it.

        Nothing may be written after the block.
        """
        try:
            with self._new_files.all_or_none():
                yield
        finally:
            self._filling.close()

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Write a batch; raises `SchemaMismatch` if it does not fit the table."""
        if rows.num_rows:
            self._take(self._align_columns(rows))

    def take_along(self, partition: PartitionKey, rows: pa.Table) -> None:
        """Write rows of a partition that were read from its files, with the table's Arrow schema."""
        if rows.num_rows:
            self._take(rows, partition)

    def _take(self, rows: pa.Table, partition: PartitionKey | None = None) -> None:
        self._rows_in += rows.num_rows
        self._arrow_bytes += rows.nbytes
        if partition is not None:
            self._group(partition).add(rows, 0, rows.num_rows, rows.nbytes)
        else:
            self._undivided.append(rows)
            self._undivided_bytes += rows.nbytes
            if self._undivided_bytes >= BLOCK_BYTES:
                self._divide()
        if self._arrow_bytes > self._max_buffer_bytes:
            self._make_room()

    def _group(self, partition: PartitionKey) -> _Group:
        return self._groups.setdefault(partition, _Group(partition))

    def _divide(self) -> None:
        """Divide the rows of any partition that have arrived since the last time."""
        block, ranges = arrange_by_partition(pa.concat_tables(self._undivided), self._settings)
        self._undivided, self._undivided_bytes = [], 0
        bytes_per_row, start = block.nbytes / block.num_rows, 0
        for partition, rows in ranges:
            self._group(partition).add(block, start, rows, bytes_per_row * rows)
            start += rows

    def close(self) -> list[NewDataFile]:
        """Write the remaining rows and return all files."""
        if self._filling.some_wait:
            self._make_room()  # buffered rows join the waiting ones, which leaves the memory to one partition
        groups, encoding = self._take_buffered()
        files = self._filling.complete({group.partition: group.table for group in groups}, encoding)
        rows_out = sum(file.rows for file in files)
        if rows_out != self._rows_in:
            raise RewriteFailed(
                f"Cannot write: {self._rows_in} rows went in and {rows_out} came out, report this", path=None
            )
        return files

    def _take_buffered(self) -> tuple[list[_Group], Encoding]:
        """Return the buffered rows by partition, and their encoding.

        The encoding is judged once, from the partition with the most rows.
        """
        if self._undivided:
            self._divide()
        groups, self._groups, self._arrow_bytes = [*self._groups.values()], {}, 0
        if not groups:
            return [], Encoding()
        largest = max(groups, key=lambda group: group.rows).table()
        blocks = {id(block): block for group in groups for block, _, _ in group.parts}
        nan = nan_columns(self._settings, pa.concat_tables(blocks.values()))
        return groups, Encoding(dictionary_columns(self._settings, largest), nan)

    def _make_room(self) -> None:
        """Pass on all buffered rows, the largest partitions first."""
        groups, encoding = self._take_buffered()
        for group in sorted(groups, key=lambda group: group.arrow_bytes, reverse=True):
            self._filling.add(group.partition, group.table(), encoding)


@dataclass(slots=True)
class _Group:
    """Rows of one partition: `parts` of blocks (block, first row, rows), about `arrow_bytes` of them."""

    partition: PartitionKey
    rows: int = 0
    arrow_bytes: float = 0.0
    parts: list[tuple[pa.Table, int, int]] = field(default_factory=list)

    def add(self, block: pa.Table, start: int, rows: int, arrow_bytes: float) -> None:
        """Add rows of a block."""
        self.rows += rows
        self.arrow_bytes += arrow_bytes
        self.parts.append((block, start, rows))

    def table(self) -> pa.Table:
        """Return the rows, in their order.

        The table is made when needed, because a table for each of 10,000 partitions is large by itself.
        """
        table = pa.concat_tables([block.slice(start, rows) for block, start, rows in self.parts])
        return table.combine_chunks() if self.rows < MIN_CHUNK_ROWS * len(self.parts) else table
