"""The rows of data files in the table's current schema, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icesize.errors import RewriteFailed
from icesize.parquet.files.settings import Limits, WriteSettings
from icesize.parquet.format.sources import Source
from icesize.parquet.reading.casting import CastingError
from icesize.parquet.reading.prefetch import Fetched
from icesize.parquet.reading.projection import Projection
from icesize.planning.plan import MergeGroup


def read_inputs(group: MergeGroup, settings: WriteSettings, fetched: Fetched | None = None) -> Iterator[pa.Table]:
    """The rows of all input files, in their order, as tables of `settings.arrow_schema`.

    Raises `RewriteFailed` with the attribute `path` of one that is missing, damaged or does not have the rows that its
    manifest entry says, after some of its rows.
    """
    projection = Projection(settings, group.partition)
    for input_file in group.inputs:
        rows = 0
        source = fetched.get(input_file.path) if fetched is not None else None
        for table in read_file(settings, input_file.path, input_file.size_bytes, projection, source):
            rows += table.num_rows
            yield table
        if rows != input_file.rows:
            raise RewriteFailed(
                f"Cannot merge {input_file.path}: it has {rows} rows, its manifest says {input_file.rows}, "
                "check the table's metadata",
                path=input_file.path,
            )


def read_file(
    settings: WriteSettings, path: str, size_bytes: int, projection: Projection, source: Source | None = None
) -> Iterator[pa.Table]:
    """The rows of one Parquet file as tables of `settings.arrow_schema`, in file order, without extra threads.

    `source` has the bytes of the file where they were fetched already. A file that decodes to little is read at once, a
    larger one in batches (`Limits.whole_file_bytes`, `Limits.batch_rows`). Raises `RewriteFailed` with the attribute
    `path` when the file is missing, damaged or cannot be projected.
    """
    try:
        opened = settings.storage.open(path, size_bytes) if source is None else source.stream()
        with opened as stream, _open(stream) as file:
            names = projection.fit(file.schema_arrow)
            for rows in _tables(file, names, settings.limits):
                yield projection(rows)
    except CastingError as error:
        raise RewriteFailed(f"Cannot read {path}: {error}", path=path) from error
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise RewriteFailed(f"Cannot read {path}: {why}, check that the file exists and is whole", path=path) from error


def _open(stream: Any) -> pq.ParquetFile:
    # INT96 would become nanoseconds, which do not reach the year 2263
    return pq.ParquetFile(stream, coerce_int96_timestamp_unit="us", page_checksum_verification=True)


def _tables(file: pq.ParquetFile, names: list[str] | None, limits: Limits) -> Iterator[pa.Table]:
    footer = file.metadata
    decoded = sum(footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))
    # a dictionary can hide any number of bytes behind few, so rows count as well
    if decoded <= limits.whole_file_bytes and footer.num_rows <= 4 * limits.batch_rows:
        yield file.read(columns=names, use_threads=False)
        return
    for batch in file.iter_batches(batch_size=limits.batch_rows, columns=names, use_threads=False):
        yield pa.Table.from_batches([batch])


class Stream:
    """Takes rows off a stream of tables with one schema, whatever their sizes; holds `max_bytes` and one table."""

    def __init__(self, tables: Iterable[pa.Table], max_bytes: int) -> None:
        self._tables = iter(tables)
        self._max_bytes = max_bytes
        self._next: pa.Table | None = None

    def _has_more(self) -> bool:
        while self._next is None or not self._next.num_rows:
            self._next = next(self._tables, None)
            if self._next is None:
                return False
        return True

    def peek(self) -> pa.Table:
        """The table that comes next. Raises `RewriteFailed` at the end."""
        if not self._has_more():
            raise RewriteFailed("Cannot write: there are fewer rows than were counted, report this", path=None)
        return self._next

    def take(self, rows: int) -> pa.Table:
        """The next `rows` rows; fewer when they would exceed `max_bytes`, or the stream ends early. Raises
        `RewriteFailed` when it has ended."""
        parts: list[pa.Table] = []
        taken = size = 0
        while not parts or (taken < rows and size < self._max_bytes and self._has_more()):
            table = self.peek()
            parts.append(table.slice(0, rows - taken))
            self._next = table.slice(rows - taken)
            taken, size = taken + parts[-1].num_rows, size + parts[-1].nbytes
        return pa.concat_tables(parts)

    def rest(self) -> Iterator[pa.Table]:
        while self._has_more():
            table, self._next = self._next, None
            yield table
