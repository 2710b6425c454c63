"""The rows of data files in the table's current schema, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types
from pyroaring import BitMap

from icesize.concurrency import NOT_AHEAD
from icesize.errors import RewriteFailed
from icesize.parquet.files.settings import Limits, WriteSettings
from icesize.parquet.format.footer import Chunk, Footer, read_footer
from icesize.parquet.format.refusals import CopyRefused, DamagedFile, log_internal_error
from icesize.parquet.format.schema import Column
from icesize.parquet.format.sources import Source, StreamSource
from icesize.parquet.reading.casting import CastingError
from icesize.parquet.reading.conservation import Conservation
from icesize.parquet.reading.prefetch import Fetched
from icesize.parquet.reading.projection import BoundProjection, Projection
from icesize.parquet.reading.texts import (
    asks_in_vain,
    bounded,
    check_indices,
    joined,
    most_value_bytes,
    of_schema,
    plain_bytes,
    plain_schema,
    texts_of_few,
    without_arrow_schema,
)
from icesize.planning.files import FileFact
from icesize.planning.plan import FileGroup

RUN_SHARE = 1 / 32
"""Part of `Limits.decoded_bytes` (8 MiB by default) that the rows of small files are at most which become one table: a
table costs 0.1 ms, whatever its size."""
_VALUE_BYTES = 8
"""Of most types, or of an index and the place of a text."""
_MANY_ROWS = 1_024
"""In a batch: fewer cost more than their values, about 0.1 ms for 10 columns."""
_BATCH_BYTES = 2**20
"""Files that are read at once, by their size: handing them from one thread to another costs 0.1 ms."""


def read_inputs(
    group: FileGroup,
    settings: WriteSettings,
    fetched: Fetched | None = None,
    dictionaries: bool = False,
    deleted: Mapping[str, BitMap] = MappingProxyType({}),
    counted: Conservation | None = None,
) -> Iterator[pa.Table]:
    """The rows of all input files, in their order, as tables of `settings.arrow_schema`, those of small files together.

    With `dictionaries`, columns of text that have few values in a file are dictionaries.
    Rows that are `deleted`, by file and by their place in it, are left out. The threads of `fetched` read ahead. Raises
    `RewriteFailed` with the attribute `path` of a file that is missing, damaged or does not have the rows that its
    manifest entry says, after some of its rows. What `counted` adds up is counted before anything is made of the rows.
    """
    projection = Projection(settings, group.partition)

    def stored(file: FileFact) -> Iterator[_Stored]:
        source = None if fetched is None else fetched.get(file.path)
        return _stored(settings, file.path, file.size_bytes, projection, dictionaries, source)

    def begin(files: Sequence[FileFact]) -> list[Iterator[_Stored]]:
        begun, left_bytes = list[Iterator[_Stored]](), settings.limits.whole_file_bytes
        for file in files:
            rows = _live(_counted(file, stored(file)), deleted.get(file.path))
            if left_bytes > 0:  # small files can hold many rows
                first = [*islice(rows, 1)]  # all of a small file
                left_bytes -= sum(some.rows.get_total_buffer_size() for some in first)
                rows = chain(first, rows)
            begun.append(rows)
        return begun

    ahead = NOT_AHEAD if fetched is None else fetched.ahead
    begun = chain.from_iterable(ahead.map(begin, _batches(group.inputs)))
    if counted is not None:
        counted.constants = projection.constants
    for run in _runs(chain.from_iterable(begun), RUN_SHARE * settings.limits.decoded_bytes):
        if counted is not None:
            for some in run:
                counted.add_file(some.path, None if deleted.get(some.path) else some.footer)
        yield _projected(run, counted)


class _Stored(NamedTuple):
    """Rows as they are in the file at `path`, and what makes them rows of the table."""

    path: str
    rows: pa.Table
    fitted: BoundProjection
    footer: Footer | None = None


def _stored(
    settings: WriteSettings,
    path: str,
    size_bytes: int,
    projection: Projection,
    dictionaries: bool,
    source: Source | None = None,
) -> Iterator[_Stored]:
    """The rows of one file; `source` has its bytes where they were fetched already."""
    try:
        opened = settings.storage.open(path, size_bytes) if source is None else source.stream()
        with opened as stream, open_parquet(stream) as parquet:
            fitted = projection.fit(plain_schema(parquet.schema_arrow))
            footer = None if _is_small(parquet.metadata, settings.limits) else _footer(stream)
            for rows in _tables(stream, parquet, fitted, settings.limits, footer):
                yield _Stored(path, rows if dictionaries else of_schema(rows, fitted.stored), fitted, footer)
    except Exception as error:
        raise _unreadable(path, error) from error


UNREADABLE_ROWS = (pa.ArrowException, OSError, CastingError, DamagedFile, UnicodeDecodeError)
"""Errors of a file that is missing or damaged, or whose values do not fit."""


def _unreadable(path: str, error: Exception) -> RewriteFailed:
    return RewriteFailed(f"Cannot read {path}: {why_unreadable(error)}", path=path)


def why_unreadable(error: Exception) -> str:
    """Return what is wrong with a file, and what to do; an internal error is logged."""
    if not isinstance(error, UNREADABLE_ROWS):
        return log_internal_error("reading rows", error)
    why = str(error)
    if isinstance(error, CastingError):
        return why
    return f"{(why or type(error).__name__).splitlines()[0]}, check that the file exists and is whole"


def _counted(file: FileFact, stored: Iterator[_Stored]) -> Iterator[_Stored]:
    """The same; in the end there must have been as many rows as its manifest entry says."""
    rows = 0
    for some in stored:
        rows += some.rows.num_rows
        yield some
    if rows != file.rows:
        raise RewriteFailed(
            f"Cannot read {file.path}: it has {rows} rows, its manifest records {file.rows}, "
            "check the table's metadata",
            path=file.path,
        )


def _live(stored: Iterator[_Stored], deleted: BitMap | None) -> Iterator[_Stored]:
    """The rows of one file but for those at these places in it."""
    if deleted is None:
        yield from stored
        return
    places, first = np.frombuffer(deleted.to_array(), np.uint32), 0
    for some in stored:
        end = first + some.rows.num_rows
        # whole numbers of another type would have all places copied to it each time
        here = places[slice(*np.searchsorted(places, np.array([first, end], np.uint32)))]
        if len(here):
            kept = np.ones(end - first, bool)
            kept[here - np.uint32(first)] = False
            some = some._replace(rows=some.rows.filter(pa.array(kept)))
        yield some
        first = end


def _batches(files: Sequence[FileFact]) -> Iterator[list[FileFact]]:
    batch: list[FileFact] = []
    size_bytes = 0
    for file in files:
        batch.append(file)
        size_bytes += file.size_bytes
        if size_bytes >= _BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    yield batch


def _runs(stored: Iterable[_Stored], most_bytes: float) -> Iterator[list[_Stored]]:
    """Those that follow each other, are of one schema and small."""
    run: list[_Stored] = []
    run_bytes = 0
    for some in stored:
        size_bytes = plain_bytes(some.rows)
        run_bytes += size_bytes
        if run and (run_bytes > most_bytes or not _alike(some.rows.schema, run[0].rows.schema)):
            yield run
            run, run_bytes = [], size_bytes
        run.append(some)
    if run:
        yield run


def _alike(one: pa.Schema, other: pa.Schema) -> bool:
    """Whether their rows can become one table: of tables without columns pyarrow forgets how many rows they have."""
    return len(one) > 0 and bool(one.equals(other, check_metadata=True))


def _projected(run: Sequence[_Stored], counted: Conservation | None = None) -> pa.Table:
    """One table; what cannot be projected is told of the file it is in."""
    fitted = run[0].fitted
    try:
        rows = run[0].rows if len(run) == 1 else pa.concat_tables(some.rows for some in run).combine_chunks()
        if counted is not None:
            counted.add_rows(rows, fitted.source, fitted.names)
        return fitted(rows)
    except Exception as error:
        if len(run) == 1:
            raise _unreadable(run[0].path, error) from error
        for some in run:
            _projected([some])
        raise


def open_parquet(stream: Any, footer: pq.FileMetaData | None = None, texts: Sequence[str] = ()) -> pq.ParquetFile:
    """A Parquet file, whose columns of these `texts` are read as dictionaries; raises one of `UNREADABLE_ROWS`, as
    reading it does."""
    parquet = _open(stream, footer, texts)
    categories = {field.name for field in parquet.schema_arrow if types.is_dictionary(field.type)}
    if categories and (found := _footer(stream)) is not None and asks_in_vain(found, categories):
        # the Arrow schema in the file requests dictionaries of pages of which pyarrow makes none
        parquet = _open(stream, without_arrow_schema(parquet.metadata), texts)
    groups = [parquet.metadata.row_group(i).num_rows for i in range(parquet.metadata.num_row_groups)]
    if groups and (min(groups) < 0 or sum(groups) != parquet.metadata.num_rows):
        # pyarrow takes room for as many rows as a row group claims
        raise DamagedFile(f"row groups of {sum(groups)} rows in a file of {parquet.metadata.num_rows}")
    return parquet


def _open(stream: Any, footer: pq.FileMetaData | None, texts: Sequence[str]) -> pq.ParquetFile:
    # INT96 would become nanoseconds, which do not reach the year 2263
    return pq.ParquetFile(
        stream,
        metadata=footer,
        read_dictionary=texts,
        coerce_int96_timestamp_unit="us",
        page_checksum_verification=True,
    )


def _is_small(metadata: pq.FileMetaData, limits: Limits) -> bool:
    """Return whether all rows of a file may be read together: no value is longer than all of them."""
    return int(metadata.num_rows) * _raw_size_bytes(metadata) <= limits.whole_file_bytes


def _raw_size_bytes(metadata: pq.FileMetaData) -> int:
    return sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))


def _tables(
    stream: Any, file: pq.ParquetFile, fitted: BoundProjection, limits: Limits, footer: Footer | None
) -> Iterator[pa.Table]:
    metadata, names = file.metadata, fitted.names
    if _is_small(metadata, limits):
        yield of_schema(file.read(columns=names, use_threads=False), fitted.stored)
        return
    coded = {field.name for field in file.schema_arrow if types.is_dictionary(field.type)}
    texts = [] if footer is None else [name for name in texts_of_few(footer, fitted.texts) if name not in coded]
    file = open_parquet(stream, metadata, texts) if texts else file
    decoded_bytes = max(1, _raw_size_bytes(metadata))
    if footer is not None:
        decoded_bytes = max(1, _decoded_bytes(stream, footer, names, texts))
    if decoded_bytes <= limits.whole_file_bytes:
        tables = iter([file.read(columns=names, use_threads=False)])
    else:
        size = _batch_rows(metadata, limits, decoded_bytes)
        batches = file.iter_batches(batch_size=size, columns=names, use_threads=False)
        tables = (pa.Table.from_batches([batch]) for batch in batches)
    for table in tables:
        for name in texts:
            check_indices(table.column(name))
        yield from bounded(_without_categories(table, fitted.stored, texts), limits.whole_file_bytes)


def _batch_rows(metadata: pq.FileMetaData, limits: Limits, decoded_bytes: int) -> int:
    """Return the rows of a batch, with at most `Limits.whole_file_bytes` if each has the longest text: one long text
    makes `decoded_bytes` far more than the rows take."""
    rows = int(metadata.num_rows)
    likely = rows * limits.batch_bytes // max(1, _raw_size_bytes(metadata))
    many = min(_MANY_ROWS, likely, rows * limits.whole_file_bytes // decoded_bytes)
    return max(1, many, rows * limits.batch_bytes // decoded_bytes)


def _without_categories(rows: pa.Table, stored: pa.Schema, texts: Collection[str]) -> pa.Table:
    """Return the rows with dictionaries in columns of `texts` only; a file's Arrow schema can ask for others."""
    fields = [own if own.name in texts else wanted for own, wanted in zip(rows.schema, stored, strict=True)]
    return of_schema(rows, pa.schema(fields, rows.schema.metadata))


def _footer(stream: Any) -> Footer | None:
    """What a footer says of columns: pyarrow ends the process for some that are damaged, when it is asked for that.
    None for one that icesize does not read, which pyarrow may."""
    try:
        return read_footer(StreamSource(stream))
    except (CopyRefused, OSError):
        return None


def _decoded_bytes(stream: Any, footer: Footer, names: Sequence[str] | None, texts: Collection[str]) -> int:
    """Return about the most Arrow memory that these columns take; those of `texts` are read as dictionaries."""
    source = StreamSource(stream)

    def value_bytes(column: Column, chunk: Chunk) -> int:
        return chunk.raw_size_bytes if column.top in texts else most_value_bytes(source, chunk, column)

    both = (pair for group in footer.row_groups for pair in zip(footer.columns, group.chunks, strict=True))
    read = (pair for pair in both if names is None or pair[0].top in names)
    return sum(max(value_bytes(column, chunk), _VALUE_BYTES * chunk.values) for column, chunk in read)


def of_size(tables: Iterable[pa.Table], most_bytes: int, most_rows: int) -> Iterator[pa.Table]:
    """The rows of all tables, at most so many at once, of at most so many Arrow bytes, and one table more."""
    waiting: list[pa.Table] = []
    size = rows = 0
    for table in tables:
        waiting.append(table)
        size, rows = size + table.nbytes, rows + table.num_rows
        if size >= most_bytes or rows >= most_rows:
            yield pa.concat_tables(waiting)
            waiting, size, rows = [], 0, 0
    if waiting:
        yield pa.concat_tables(waiting)


class Stream:
    """Takes rows off a stream of tables with one schema but for dictionaries, whatever their sizes; holds `max_bytes`
    and one table, as if there were no dictionaries."""

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
            taken, size = taken + parts[-1].num_rows, size + plain_bytes(parts[-1])
        return joined(parts)

    def rest(self) -> Iterator[pa.Table]:
        while self._has_more():
            table, self._next = self._next, None
            yield table
