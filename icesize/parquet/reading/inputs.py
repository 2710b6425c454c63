"""The rows of data files in the table's current schema, in tables of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from icesize.parquet.files.properties import ARROW_VERSION
from icesize.parquet.files.settings import Limits, WriteSettings
from icesize.parquet.format.fields import FileMetaData
from icesize.parquet.format.footer import MAGIC, Footer, read_footer
from icesize.parquet.format.refusals import CopyRefused, DamagedFile, log_internal_error
from icesize.parquet.format.sources import Source, StreamSource
from icesize.parquet.format.thrift import read_struct, write_struct
from icesize.parquet.reading.casting import CastingError
from icesize.parquet.reading.conservation import Conservation
from icesize.parquet.reading.inherited_lineage import check_row_ids, with_lineage
from icesize.parquet.reading.prefetch import Fetched, with_bytes
from icesize.parquet.reading.projection import BoundProjection, Projection
from icesize.parquet.reading.value_bytes import most_value_bytes
from icesize.planning.file_sizes import in_batches
from icesize.planning.files import FileFact
from icesize.planning.plan import FileGroup

RUN_SHARE = 1 / 32
"""Part of `Limits.decoded_bytes` (8 MiB by default) that the rows of small files are at most which become one table: a
table costs 0.1 ms, whatever its size."""
_VALUE_BYTES = 8
"""Bytes of a value of most types, or of the place of a text."""
_END_BYTES = 8
"""Bytes of a file after its footer: the length, and `MAGIC`."""
_MANY_ROWS = 1_024
"""In a batch: fewer cost more than their values, about 0.1 ms for 10 columns."""
_BATCH_BYTES = 2**20
"""Files that are read at once, by their size: handing them from one thread to another costs 0.1 ms."""


def read_inputs(
    group: FileGroup,
    settings: WriteSettings,
    fetched: Fetched | None = None,
    deleted: Mapping[str, BitMap] = MappingProxyType({}),
    counted: Conservation | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows of all input files, in their order, as tables of `settings.arrow_schema`.

    With the columns of the row lineage in this schema, each row has both values.

    Small files share tables. Rows that are `deleted`, by file and position in it, are left out. The threads of
    `fetched` read ahead. `counted` counts the rows before they are projected.

    Raises `RewriteFailed`, possibly after some of the rows. Its attribute `path` is a file that is missing, damaged or
    does not have as many rows as its manifest entry records. It is None if rows whose lineage is wanted have no row ids
    yet.
    """
    projection = Projection(settings, group.partition)

    if settings.stores_lineage:
        check_row_ids(group.inputs)

    def begin(files: Sequence[tuple[FileFact, Source | OSError | None]]) -> list[Iterator[_Stored]]:
        begun, left_bytes = list[Iterator[_Stored]](), settings.limits.whole_file_bytes
        for file, source in files:
            rows = _live(_counted(file, _stored(settings, file, projection, source)), deleted.get(file.path))
            if left_bytes > 0:  # a small file can hold many rows
                first = [*islice(rows, 1)]  # all rows of a small file
                left_bytes -= sum(some.rows.get_total_buffer_size() for some in first)
                rows = chain(first, rows)
            begun.append(rows)
        return begun

    ahead = NOT_AHEAD if fetched is None else fetched.ahead
    files = with_bytes(settings, group.inputs, fetched)
    batches = in_batches(files, lambda file: file[0].size_bytes, _BATCH_BYTES)
    begun = chain.from_iterable(ahead.map(begin, batches))
    if counted is not None:
        counted.constants = projection.constants
    for run in _runs(chain.from_iterable(begun), RUN_SHARE * settings.limits.decoded_bytes):
        if counted is not None:
            for some in run:
                counted.add_file(some.path, None if deleted.get(some.path) else some.footer)
        yield _projected(run, counted)


class _Stored(NamedTuple):
    """Rows as stored in the file at `path`, and the projection that turns them into rows of the table."""

    path: str
    rows: pa.Table
    fitted: BoundProjection
    footer: Footer | None = None


def _stored(
    settings: WriteSettings, file: FileFact, projection: Projection, source: Source | OSError | None = None
) -> Iterator[_Stored]:
    """Yield the rows of one file, with their lineage if the settings have its columns.

    `source` has the bytes of the file if they were fetched already, or the error.
    """
    path, first = file.path, 0
    try:
        if isinstance(source, OSError):
            raise source
        opened = settings.storage.open(path, file.size_bytes) if source is None else source.stream()
        with opened as stream, open_parquet(stream) as parquet:
            fitted = projection.fit(parquet.schema_arrow)
            if projection.has_nanoseconds or ARROW_VERSION < _READS_INT96:
                _check_no_int96(parquet, projection)
            footer = None if _is_small(parquet.metadata, settings.limits) else _footer(stream)
            for rows in _tables(stream, parquet, fitted.names, settings.limits, footer):
                if settings.stores_lineage:
                    rows = with_lineage(rows, file, first, fitted.target)
                yield _Stored(path, rows, fitted, footer)
                first += rows.num_rows
    except Exception as error:
        raise _unreadable(path, error) from error


_READS_INT96 = 23
"""The first version of pyarrow that reads timestamps of 96 bits before 1970; older ones read them as later times."""


def _check_no_int96(parquet: pq.ParquetFile, projection: Projection) -> None:
    """Raise `CastingError` for timestamps of 96 bits, which `open_parquet` reads as microseconds."""
    columns = (parquet.schema.column(i) for i in range(len(parquet.schema)))
    if (path := next((column.path for column in columns if column.physical_type == "INT96"), None)) is not None:
        why = f"pyarrow {pa.__version__} misreads such times before 1970; update pyarrow to {_READS_INT96}, or"
        if projection.has_nanoseconds:
            why = "the table has columns with nanoseconds;"
        raise CastingError(
            f"column '{path}' is stored as INT96, and {why} write the file again with timestamps of 64 bits"
        )


UNREADABLE_ROWS = (pa.ArrowException, OSError, CastingError, DamagedFile, UnicodeDecodeError)
"""Errors of a file that is missing or damaged, or whose values do not fit."""


def _unreadable(path: str, error: Exception) -> RewriteFailed:
    return RewriteFailed(f"Cannot read {path}: {why_unreadable(error)}", path=path)


def why_unreadable(error: Exception) -> str:
    """Return the fault of a file, and the remedy; an internal error is logged."""
    if not isinstance(error, UNREADABLE_ROWS):
        return log_internal_error("reading rows", error)
    why = str(error)
    if isinstance(error, CastingError):
        return why
    return f"{(why or type(error).__name__).splitlines()[0]}, check that the file exists and is whole"


def _counted(file: FileFact, stored: Iterator[_Stored]) -> Iterator[_Stored]:
    """Yield the same rows; raises `RewriteFailed` at the end if their number is not that of the manifest entry."""
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
    """Yield the rows of one file, except the rows at the deleted positions."""
    if deleted is None:
        yield from stored
        return
    places, first = np.frombuffer(deleted.to_array(), np.uint32), 0
    for some in stored:
        end = first + some.rows.num_rows
        # bounds of the same type: with another integer type, numpy would copy all positions for each table
        here = places[slice(*np.searchsorted(places, np.array([first, end], np.uint32)))]
        if len(here):
            kept = np.ones(end - first, bool)
            kept[here - np.uint32(first)] = False
            some = some._replace(rows=some.rows.filter(pa.array(kept)))
        yield some
        first = end


def _runs(stored: Iterable[_Stored], most_bytes: float) -> Iterator[list[_Stored]]:
    """Yield runs of consecutive rows that have one schema and together at most `most_bytes`."""
    run: list[_Stored] = []
    run_bytes = 0
    for some in stored:
        size_bytes = some.rows.nbytes
        run_bytes += size_bytes
        if run and (run_bytes > most_bytes or not _alike(some.rows.schema, run[0].rows.schema)):
            yield run
            run, run_bytes = [], size_bytes
        run.append(some)
    if run:
        yield run


def _alike(one: pa.Schema, other: pa.Schema) -> bool:
    """Return whether their rows can become one table.

    Tables without columns cannot, because pyarrow drops their number of rows.
    """
    return len(one) > 0 and bool(one.equals(other, check_metadata=True))


def _projected(run: Sequence[_Stored], counted: Conservation | None = None) -> pa.Table:
    """Return the rows of a run as one table; an error names the file of the rows that cannot be projected."""
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


def open_parquet(
    stream: Any, footer: pq.FileMetaData | None = None, dictionaries: list[str] | None = None
) -> pq.ParquetFile:
    """Open a Parquet file; `footer` is its `metadata` when it was opened before.

    Only the columns in `dictionaries` are dictionaries, whatever its Arrow schema requests.

    Opening and reading raise one of `UNREADABLE_ROWS`.
    """
    parquet = _open(stream, footer, dictionaries)
    asked = [field for field in parquet.schema_arrow if field.name in (dictionaries or ())]
    # categories have other indices, for as few values as the file has
    as_asked = [field for field in asked if types.is_dictionary(field.type) and field.type.index_type == pa.int32()]
    if any(_has_categories(field.type) for field in parquet.schema_arrow if field not in as_asked):
        parquet = _open(stream, _without_arrow_schema(StreamSource(stream)), dictionaries)
    groups = [parquet.metadata.row_group(i).num_rows for i in range(parquet.metadata.num_row_groups)]
    if groups and (min(groups) < 0 or sum(groups) != parquet.metadata.num_rows):
        # pyarrow allocates as many rows as a row group claims
        raise DamagedFile(f"row groups of {sum(groups)} rows in a file of {parquet.metadata.num_rows}")
    return parquet


def _open(stream: Any, footer: pq.FileMetaData | None, dictionaries: list[str] | None) -> pq.ParquetFile:
    # INT96 would become nanoseconds, which end before the year 2263
    return pq.ParquetFile(
        stream, metadata=footer, read_dictionary=dictionaries, coerce_int96_timestamp_unit="us",
        page_checksum_verification=True,
    )  # fmt: skip


def _has_categories(kind: pa.DataType) -> bool:
    """Return whether the Arrow schema of a file requests dictionaries, for example for pandas' categories."""
    return types.is_dictionary(kind) or any(_has_categories(kind.field(i).type) for i in range(kind.num_fields))


def _without_arrow_schema(source: StreamSource) -> pq.FileMetaData:
    """Return the footer without its keys, one of which holds the Arrow schema: columns have the types of Parquet.

    pyarrow cannot make dictionaries of all pages, and indices of damaged pages may lie beyond their dictionary.
    """
    end = source.size_bytes - _END_BYTES
    length = int.from_bytes(source.read(end, _END_BYTES - len(MAGIC)), "little")
    fields, _ = read_struct(source.read(end - length, length))
    fields.pop(FileMetaData.KEY_VALUE_METADATA, None)
    raw = write_struct(fields)
    return pq.read_metadata(pa.BufferReader(MAGIC + raw + len(raw).to_bytes(_END_BYTES - len(MAGIC), "little") + MAGIC))


def _is_small(metadata: pq.FileMetaData, limits: Limits) -> bool:
    """Return whether all rows of a file may be read together: no value is longer than all of them."""
    return int(metadata.num_rows) * _raw_size_bytes(metadata) <= limits.whole_file_bytes


def _raw_size_bytes(metadata: pq.FileMetaData) -> int:
    return sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))


def _tables(
    stream: Any, file: pq.ParquetFile, names: Sequence[str] | None, limits: Limits, footer: Footer | None
) -> Iterator[pa.Table]:
    metadata = file.metadata
    decoded_bytes = max(1, _raw_size_bytes(metadata) if footer is None else _decoded_bytes(stream, footer, names))
    if _is_small(metadata, limits) or decoded_bytes <= limits.whole_file_bytes:
        yield file.read(columns=names, use_threads=False)
        return
    size = _batch_rows(metadata, limits, decoded_bytes)
    for batch in file.iter_batches(batch_size=size, columns=names, use_threads=False):
        yield from _bounded(pa.Table.from_batches([batch]), limits.whole_file_bytes)


def _bounded(rows: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows in pieces of at most `most_bytes`, or of one row."""
    if rows.num_rows <= 1 or rows.nbytes <= most_bytes:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _bounded(rows.slice(0, half), most_bytes)
    yield from _bounded(rows.slice(half), most_bytes)


def _batch_rows(metadata: pq.FileMetaData, limits: Limits, decoded_bytes: int) -> int:
    """Return the rows of a batch, with at most `Limits.whole_file_bytes` if each row had the longest text.

    One long text makes `decoded_bytes` far more than the rows take.
    """
    rows = int(metadata.num_rows)
    likely = rows * limits.batch_bytes // max(1, _raw_size_bytes(metadata))
    many = min(_MANY_ROWS, likely, rows * limits.whole_file_bytes // decoded_bytes)
    return max(1, many, rows * limits.batch_bytes // decoded_bytes)


def _footer(stream: Any) -> Footer | None:
    """Return the footer in icesize's form; None for a footer that icesize does not read, although pyarrow may.

    For some damaged footers, pyarrow ends the process when it returns facts about columns.
    """
    try:
        return read_footer(StreamSource(stream))
    except (CopyRefused, OSError):
        return None


def _decoded_bytes(stream: Any, footer: Footer, names: Sequence[str] | None) -> int:
    """Return about the most Arrow memory that these columns take."""
    source = StreamSource(stream)
    both = (pair for group in footer.row_groups for pair in zip(footer.columns, group.chunks, strict=True))
    read = (pair for pair in both if names is None or pair[0].top in names)
    return sum(max(most_value_bytes(source, chunk, column), _VALUE_BYTES * chunk.values) for column, chunk in read)


def of_size(tables: Iterable[pa.Table], most_bytes: int, most_rows: int) -> Iterator[pa.Table]:
    """Yield the rows of all tables in tables of `most_bytes` or `most_rows`, and at most one input table more."""
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
    """Takes rows off a stream of tables of any size with one schema; it holds at most `max_bytes` and one table."""

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
        """Return the next table; raises `RewriteFailed` at the end."""
        if not self._has_more():
            raise RewriteFailed("Cannot write: there are fewer rows than were counted, report this", path=None)
        return self._next

    def take(self, rows: int) -> pa.Table:
        """Return the next `rows` rows; fewer if they exceed `max_bytes` or the stream ends early.

        Raises `RewriteFailed` if the stream has ended.
        """
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
