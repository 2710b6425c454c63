"""Conditions for copying files and column chunks, and for joining files into one.

The footer's facts about a column chunk are checked before the copy. Readers fail on some wrong facts, and pyarrow even
ends the process. A copy would also expose the rows of other files to this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from icesize.parquet.format.fields import (
    ColumnIndex,
    ColumnMetaData,
    KeyValue,
    PageEncodingStats,
    SizeStatistics,
    Statistics,
)
from icesize.parquet.format.footer import Chunk, Footer, RowGroup
from icesize.parquet.format.page_index import concatenate
from icesize.parquet.format.pages import DICTIONARY_ENCODINGS, PLAIN, data_encodings
from icesize.parquet.format.refusals import CopyRefused, Refusal, damaged_as
from icesize.parquet.format.schema import BOOLEAN, BYTE_ARRAY, DOUBLE, FLOAT, INT32, INT64, INT96, LINEAGE_IDS, Column
from icesize.parquet.format.statistics import bound_order, column_orders, is_trusted, orders_by_type
from icesize.parquet.format.thrift import (
    BINARY,
    I32,
    binaries_of,
    binary,
    integer,
    integers_of,
    raw_of,
    read_list_header,
    read_struct,
    structs_of,
)

MOST_ROW_GROUPS = 4_096
"""Row groups of one file; their ordinals have 16 bits."""

Rare: TypeAlias = "tuple[tuple[str, ...], int]"
"""A column, and a codec or an encoding of it that some readers refuse."""
_COMMON_CODECS = frozenset({0, 1, 2, 6})
"""None, snappy, gzip and zstd: Spark lacks Brotli and LZO, and older readers lack both kinds of LZ4."""
_DELTA_BINARY_PACKED, _DELTA_LENGTH_BYTE_ARRAY, _DELTA_BYTE_ARRAY = 5, 6, 7
_COMMON_ENCODINGS = DICTIONARY_ENCODINGS | {PLAIN, _DELTA_BINARY_PACKED, _DELTA_LENGTH_BYTE_ARRAY, _DELTA_BYTE_ARRAY}
"""Spark, Iceberg, DuckDB and pyarrow all read these; Spark refuses BYTE_STREAM_SPLIT."""
_COMMON_BOOLEANS = frozenset({PLAIN})
"""Iceberg's vectorized reader refuses booleans of v2 pages, which are RLE."""

_LEGACY_PREFIX = b"org.apache.spark.legacy"
_DELETE_KEYS = (b"delete-type", b"delete-field-ids")
_SPARK_VERSION = b"org.apache.spark.version"
_SPARK_3 = re.compile(rb"([3-9]|[1-9]\d+)\.")
"""This version and all later ones."""


def check_file(footer: Footer) -> None:
    """Raise `CopyRefused` if values of this file may change their meaning in a file with another writer's metadata."""
    if any(element.type == INT96 for element in footer.schema):
        raise CopyRefused(Refusal.INT96)
    if any(element.field_id in LINEAGE_IDS for element in footer.schema):
        raise CopyRefused(Refusal.ROW_LINEAGE)
    if column_orders(footer) not in (b"", orders_by_type(len(footer.columns))):
        raise CopyRefused(Refusal.COLUMN_ORDERS)
    if not is_trusted(footer.created_by):
        raise CopyRefused(Refusal.CREATED_BY, footer.created_by)
    for key, value in footer.keys.items():
        if key.startswith(_LEGACY_PREFIX) or key in _DELETE_KEYS or (key == _SPARK_VERSION and _is_old(value)):
            raise CopyRefused(Refusal.LEGACY_VALUES, key.decode("utf-8", "replace"))


def check_together(footers: Sequence[Footer]) -> None:
    """Raise `CopyRefused` unless row groups of all these files may be in one file."""
    first = footers[0]
    for footer in footers:
        if footer.meaning != first.meaning:
            raise CopyRefused(Refusal.SCHEMA_DIFFERS)
        if column_orders(footer) != column_orders(first):
            raise CopyRefused(Refusal.COLUMN_ORDERS)


def common_encodings(column: Column) -> frozenset[int]:
    """Return the encodings of data pages that all readers support."""
    return _COMMON_BOOLEANS if column.element.type == BOOLEAN else _COMMON_ENCODINGS


def check_encoding(column: Column, encoding: int) -> None:
    """Raise `CopyRefused` for a page that some readers cannot read."""
    if encoding not in common_encodings(column):
        raise CopyRefused(Refusal.ENCODING, f"{'.'.join(column.path)} has pages of encoding {encoding}")


def rare_codecs(footer: Footer, groups: Iterable[RowGroup], asked: int | None) -> frozenset[Rare]:
    """Return the codecs of row groups that some readers refuse, by column, except the one that the table names."""
    chunks = _chunks(footer, groups)
    return frozenset((c.path, chunk.codec) for c, chunk in chunks if chunk.codec not in _COMMON_CODECS | {asked})


def rare_encodings(footer: Footer, groups: Iterable[RowGroup]) -> frozenset[Rare]:
    """Return the encodings of these row groups that some readers refuse, by column."""
    chunks = _chunks(footer, groups)
    return frozenset((c.path, encoding) for c, k in chunks for encoding in data_encodings(k) - common_encodings(c))


def _chunks(footer: Footer, groups: Iterable[RowGroup]) -> Iterator[tuple[Column, Chunk]]:
    return (pair for group in groups for pair in zip(footer.columns, group.chunks, strict=True))


def _is_old(value: bytes | None) -> bool:
    """Return whether Spark is older than 3.0, which wrote dates of the Julian calendar without marking them."""
    return _SPARK_3.match(value or b"") is None


_BOUNDS = (Statistics.MAX, Statistics.MIN, Statistics.MAX_VALUE, Statistics.MIN_VALUE)
_LEVELS = (SizeStatistics.REPETITION_LEVEL_HISTOGRAM, SizeStatistics.DEFINITION_LEVEL_HISTOGRAM)
_PAGE_LEVELS = (ColumnIndex.REPETITION_LEVEL_HISTOGRAMS, ColumnIndex.DEFINITION_LEVEL_HISTOGRAMS)
_VALUE_BYTES = {BOOLEAN: 1, INT32: 4, INT64: 8, INT96: 12, FLOAT: 4, DOUBLE: 8}


@damaged_as(Refusal.CORRUPT_FOOTER, "statistics")
def check_row_group(group: RowGroup, columns: Sequence[Column]) -> None:
    """Raise `CopyRefused` for a column chunk whose copy readers could not read."""
    for chunk, column in zip(group.chunks, columns, strict=True):
        _check_lists(chunk)
        problem = _statistics_problem(chunk, column) or _sizes_problem(chunk, column)
        if problem:
            raise CopyRefused(Refusal.CORRUPT_FOOTER, f"{'.'.join(column.path)}: {problem}")


def _check_lists(chunk: Chunk) -> None:
    """Raise `DamagedFile` if structs lack a required field: other readers could not read the whole footer."""
    for encoding in structs_of(chunk.metadata, ColumnMetaData.ENCODING_STATS):
        for field_id in (PageEncodingStats.PAGE_TYPE, PageEncodingStats.ENCODING, PageEncodingStats.COUNT):
            raw_of(encoding, field_id, I32)
    for pair in structs_of(chunk.metadata, ColumnMetaData.KEY_VALUE_METADATA):
        raw_of(pair, KeyValue.KEY, BINARY)


def _statistics_problem(chunk: Chunk, column: Column) -> str | None:
    fields = chunk.statistics
    if not 0 <= (integer(fields, Statistics.NULL_COUNT) or 0) <= chunk.values:
        return f"more or fewer nulls than {chunk.values} values can have"
    element = column.element
    order, size = bound_order(element), _VALUE_BYTES.get(element.type or 0, element.length)
    for field_id in _BOUNDS:
        raw = binary(fields, field_id)
        if raw is not None and ((size is not None and len(raw) != size) or (order is not None and order(raw) is None)):
            return f"bound {raw[:40]!r} is no value of the type"
    return None


def _sizes_problem(chunk: Chunk, column: Column) -> str | None:
    fields = chunk.size_statistics
    array_bytes = integer(fields, SizeStatistics.UNENCODED_BYTE_ARRAY_DATA_BYTES)
    if array_bytes is not None and column.element.type != BYTE_ARRAY:
        return "a size of byte arrays, there are none"
    for field_id, highest in zip(_LEVELS, column.levels, strict=True):
        found = len(integers_of(fields, field_id))
        if found not in (0, highest + 1):
            return f"a histogram of {found} levels, there are {highest + 1}"
    return None


def index_fits(column_index: bytes, pages: int, column: Column) -> bool:
    """Return whether a ColumnIndex has this number of pages, and bounds that are values of the type."""
    if concatenate([column_index], [pages]) is None:
        return False
    fields, _ = read_struct(column_index)
    histograms = [read_list_header(fields[field_id][1], 0)[0] if field_id in fields else 0 for field_id in _PAGE_LEVELS]
    if any(n not in (0, pages * (most + 1)) for n, most in zip(histograms, column.levels, strict=True)):
        return False
    order = bound_order(column.element)
    bounds = [*binaries_of(fields, ColumnIndex.MIN_VALUES), *binaries_of(fields, ColumnIndex.MAX_VALUES)]
    # pages of nulls have empty bounds
    return order is None or all(not raw or order(raw) is not None for raw in bounds)
