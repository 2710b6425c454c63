"""Rows of one task -> Parquet files of the target size, one partition per file."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.conform import Conformer
from icesize.parquet.encoder import FileEncoder, LateNanError
from icesize.parquet.encoding import Encoding, dictionary_columns, nan_columns
from icesize.parquet.finish import Finisher
from icesize.parquet.names import FileNames
from icesize.parquet.partition import split_by_partition
from icesize.parquet.settings import WriteSettings
from icesize.parquet.sizes import Density
from icesize.parquet.written import WrittenFile
from icesize.planning.layout import PartitionKey
from icesize.planning.sizing import merged_files

MAX_BUFFER_BYTES = 256 * 2**20
MAX_OPEN_FILES = 32
Group = tuple[PartitionKey, pa.Table]


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
    try:
        for batch in batches:
            writer.write(batch)
        return writer.close()
    except BaseException:
        writer.abort()
        raise


class RowWriter:
    """Takes rows in any order of partitions and writes few, well-sized files.

    Up to `max_buffer_bytes` of rows (Arrow memory) are held; usually that is all of them, each partition is then
    written at once, in equal parts when it is larger than a file. More rows than that: the largest partitions are
    written first, into files that stay open for their later rows. A partition is not cut into parts below
    `small_file_limit_bytes`.
    """

    def __init__(
        self,
        settings: WriteSettings,
        names: FileNames,
        *,
        max_buffer_bytes: int = MAX_BUFFER_BYTES,
        small_file_limit_bytes: int = 0,
    ) -> None:
        self._settings = settings
        self._names = names
        self._conform = Conformer(settings)
        self._max_buffer_bytes = max_buffer_bytes
        self._small_file_limit_bytes = small_file_limit_bytes
        self._rows: list[pa.Table] = []
        self._sorted: dict[PartitionKey, list[pa.Table]] = {}
        self._buffered_bytes = self._rows_in = 0
        self._open: dict[PartitionKey, FileEncoder] = {}
        self._arrow_bytes: dict[PartitionKey, int] = {}
        self._density = Density(settings)
        self._finisher = Finisher(settings.storage)

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Take a batch; raises `SchemaMismatch` when it does not fit the table."""
        if rows.num_rows == 0:
            return
        table = self._conform(rows)
        self._rows.append(table)
        self._count(table)

    def take_along(self, partition: PartitionKey, rows: pa.Table) -> None:
        """Take rows of a partition as they were read from its files, with the table's Arrow schema."""
        if rows.num_rows == 0:
            return
        self._sorted.setdefault(partition, []).append(rows)
        self._count(rows)

    def _count(self, rows: pa.Table) -> None:
        self._rows_in += rows.num_rows
        self._buffered_bytes += rows.nbytes
        if self._buffered_bytes > self._max_buffer_bytes:
            self._spill()

    def close(self) -> list[WrittenFile]:
        """Write what is left and return all files; after an error call `abort`."""
        groups, encoding = self._split()
        for group in groups:
            self._emit(group, encoding, last=True)
        for key in list(self._open):
            self._finish(key)
        files = self._finisher.files()
        rows_out = sum(file.rows for file in files)
        if rows_out != self._rows_in:
            raise RewriteFailed(
                f"Cannot write: {self._rows_in} rows went in and {rows_out} came out, report this", path=None
            )
        return files

    def abort(self) -> None:
        """Delete everything written so far, best effort."""
        for encoder in self._open.values():
            encoder.discard()
        self._finisher.discard()
        self._open, self._rows, self._sorted, self._buffered_bytes = {}, [], {}, 0

    def _split(self) -> tuple[list[Group], Encoding]:
        """The buffered rows by partition, and how to encode them: judged once, from the partition with most rows."""
        by_partition, self._sorted = self._sorted, {}
        everything = [*(rows for parts in by_partition.values() for rows in parts), *self._rows]
        if not everything:
            return [], Encoding()
        if self._rows:
            for key, rows in split_by_partition(pa.concat_tables(self._rows), self._settings):
                by_partition.setdefault(key, []).append(rows)
        self._rows, self._buffered_bytes = [], 0
        groups = [(key, pa.concat_tables(parts)) for key, parts in by_partition.items()]
        largest = max((rows for _, rows in groups), key=lambda rows: rows.num_rows)
        nan = nan_columns(self._settings, pa.concat_tables(everything))
        return groups, Encoding(dictionary_columns(self._settings, largest), nan)

    def _spill(self) -> None:
        """Write the largest partitions until half of the buffer is free."""
        groups, encoding = self._split()
        groups.sort(key=lambda group: group[1].nbytes, reverse=True)
        freed, kept = 0, []
        for group in groups:
            if freed * 2 < self._max_buffer_bytes:
                freed += group[1].nbytes
                self._emit(group, encoding, last=False)
            else:
                kept.append(group)
        if kept:
            # slices would keep the rows just written in memory
            rest = pa.concat_tables([rows for _, rows in kept]).combine_chunks()
            self._buffered_bytes, start = rest.nbytes, 0
            for key, rows in kept:
                self._sorted[key] = [rest.slice(start, rows.num_rows)]
                start += rows.num_rows

    def _emit(self, group: Group, encoding: Encoding, *, last: bool) -> None:
        """Write the rows of one partition: in equal parts when they fill a file, else into the partition's open one."""
        key, rows = group
        if encoding.nan:
            encoding = Encoding(encoding.dictionary, nan_columns(self._settings, rows))
        largest = 1.1 * self._settings.target_file_size_bytes
        if key in self._open and self._open[key].size_bytes + self._expected(rows, encoding) > largest:
            self._finish(key)
        if key not in self._open:
            while (files := self._files(rows, encoding)) > 1:
                part = -(-rows.num_rows // files)
                self._append(key, rows.slice(0, part), encoding)
                self._finish(key)
                rows = rows.slice(part)
        self._append(key, rows, encoding)
        if last or self._open[key].size_bytes > 0.9 * self._settings.target_file_size_bytes:
            self._finish(key)
        elif len(self._open) > MAX_OPEN_FILES:
            self._finish(max(self._open, key=lambda k: self._open[k].size_bytes))

    def _files(self, rows: pa.Table, encoding: Encoding) -> int:
        size_bytes = int(self._expected(rows, encoding))
        return merged_files(size_bytes, self._settings.target_file_size_bytes, self._small_file_limit_bytes)

    def _expected(self, rows: pa.Table, encoding: Encoding) -> float:
        return self._density.expected_bytes(rows, encoding)

    def _append(self, key: PartitionKey, rows: pa.Table, encoding: Encoding) -> None:
        """Row groups of the table's size, into the partition's file."""
        per_group = max(1.0, self._expected(rows, encoding) / self._settings.parquet.row_group_bytes)
        step = math.ceil(rows.num_rows / math.ceil(per_group)) or 1
        for start in range(0, rows.num_rows, step):
            part = rows.slice(start, step)
            if key not in self._open:
                self._open[key] = FileEncoder(self._settings, self._names, key, encoding, rows.num_rows)
            try:
                self._open[key].append(part, encoding.nan)
            except LateNanError:
                # the file at hand began with statistics that would now be wrong: its rows end here
                self._finish(key)
                self._open[key] = FileEncoder(self._settings, self._names, key, encoding, rows.num_rows)
                self._open[key].append(part, encoding.nan)
            self._arrow_bytes[key] = self._arrow_bytes.get(key, 0) + part.nbytes

    def _finish(self, key: PartitionKey) -> None:
        encoder = self._open.pop(key)
        self._density.learn(self._arrow_bytes.pop(key), encoder.size_bytes)
        self._finisher.finish(encoder)
