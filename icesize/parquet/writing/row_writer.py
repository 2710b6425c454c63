"""Rows of one task -> Parquet files of the target size, one partition per file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import NewFiles
from icesize.parquet.reading.column_matching import ColumnAligner
from icesize.parquet.writing.buffer import Buffer, Group, nan_in
from icesize.parquet.writing.encoding import Encoding, dictionary_columns
from icesize.parquet.writing.filling import Filling
from icesize.planning.files import PartitionKey

MAX_BUFFER_BYTES = 128 * 2**20
"""Arrow memory of the rows that a task holds; the process needs about twice as much, and what Python itself takes."""


def use_system_memory() -> None:
    """Make Arrow allocate from the C library, once per worker process, before anything else.

    Arrow's own pool takes huge pages whose first touch makes a fresh worker up to 1.5x slower.
    """
    pa.set_memory_pool(pa.system_memory_pool())


def write_rows(
    batches: Iterable[pa.RecordBatch | pa.Table],
    settings: WriteSettings,
    names: FileNames,
    writer: RowWriter | None = None,
) -> list[WrittenFile]:
    """Write all batches; on any error the files already written are deleted, best effort, and it is raised.

    `writer` is one that holds rows already. Raises `SchemaMismatch` when rows do not fit the table, `RewriteFailed` or
    `OSError` when storage fails.
    """
    writer = writer or RowWriter(settings, names)
    with writer.all_or_none():
        for batch in batches:
            writer.write(batch)
        return writer.close()


class RowWriter:
    """Takes rows in any order of partitions and writes few, well-sized files.

    Up to `max_buffer_bytes` of rows (Arrow memory) are held; usually that is all of them, each partition is then
    written at once, in equal parts when it is larger than a file. More rows than that: partitions with many of them go
    to files that stay open for their later rows, the rows of the others wait on local disk until all rows are there
    (`Filling`). So the order of rows makes no more files, and no partition is cut into files below
    `settings.small_file_limit_bytes`.

    Files of a table with a sort order are sorted by it, and say so, where their rows could be sorted together.
    """

    def __init__(self, settings: WriteSettings, names: FileNames, *, max_buffer_bytes: int = MAX_BUFFER_BYTES) -> None:
        self._settings = settings
        self._align_columns = ColumnAligner(settings)
        self._max_buffer_bytes = max_buffer_bytes
        self._buffer = Buffer(settings)
        self._rows_in = 0
        self._new_files = NewFiles(settings.storage)
        self._filling = Filling(settings, names, self._new_files, max_buffer_bytes)

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Files that are begun in the block go when an error leaves it; it is the last one that writes."""
        try:
            with self._new_files.all_or_none():
                yield
        finally:
            self._filling.close()

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Take a batch; raises `SchemaMismatch` when it does not fit the table."""
        if rows.num_rows == 0:
            return
        table = self._align_columns(rows)
        self._buffer.add(table)
        self._count(table)

    def take_along(self, partition: PartitionKey, rows: pa.Table) -> None:
        """Take rows of a partition as they were read from its files, with the table's Arrow schema."""
        if rows.num_rows == 0:
            return
        self._buffer.add_to(partition, rows)
        self._count(rows)

    def _count(self, rows: pa.Table) -> None:
        self._rows_in += rows.num_rows
        if self._buffer.arrow_bytes > self._max_buffer_bytes:
            self._make_room()

    def close(self) -> list[WrittenFile]:
        """Write what is left and return all files."""
        if self._filling.some_wait:
            self._make_room()  # what is buffered joins what waits: memory is then free for one partition
        groups, encoding = self._take_buffered()
        files = self._filling.complete(groups, encoding)
        rows_out = sum(file.rows for file in files)
        if rows_out != self._rows_in:
            raise RewriteFailed(
                f"Cannot write: {self._rows_in} rows went in and {rows_out} came out, report this", path=None
            )
        return files

    def _take_buffered(self) -> tuple[list[Group], Encoding]:
        """The buffered rows by partition, and how to encode them: judged once, from the partition with most rows."""
        groups = self._buffer.empty()
        if not groups:
            return [], Encoding()
        largest = max(groups, key=lambda group: group.rows).table()
        return groups, Encoding(dictionary_columns(self._settings, largest), nan_in(groups, self._settings))

    def _make_room(self) -> None:
        """Hand over all buffered rows, the largest partitions first."""
        groups, encoding = self._take_buffered()
        for group in sorted(groups, key=lambda group: group.arrow_bytes, reverse=True):
            self._filling.add(group.partition, group.table(), encoding)
