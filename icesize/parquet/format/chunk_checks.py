"""What a footer says of a column chunk, checked before it is copied: readers stumble over some of it, pyarrow even ends
the process, and the copy has the rows of other files, too."""

from __future__ import annotations

from collections.abc import Sequence

from icesize.parquet.format.fields import (
    ColumnIndex,
    ColumnMetaData,
    KeyValue,
    PageEncodingStats,
    SizeStatistics,
    Statistics,
)
from icesize.parquet.format.footer import Chunk, RowGroup
from icesize.parquet.format.page_index import concatenate
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.schema import BOOLEAN, BYTE_ARRAY, DOUBLE, FLOAT, INT32, INT64, INT96, Column
from icesize.parquet.format.statistics import order_of
from icesize.parquet.format.thrift import (
    BINARY,
    I32,
    MalformedError,
    binaries_of,
    binary,
    integer,
    integers_of,
    raw_of,
    read_list_header,
    read_struct,
    structs_of,
)

_BOUNDS = (Statistics.MAX, Statistics.MIN, Statistics.MAX_VALUE, Statistics.MIN_VALUE)
_LEVELS = (SizeStatistics.REPETITION_LEVEL_HISTOGRAM, SizeStatistics.DEFINITION_LEVEL_HISTOGRAM)
_PAGE_LEVELS = (ColumnIndex.REPETITION_LEVEL_HISTOGRAMS, ColumnIndex.DEFINITION_LEVEL_HISTOGRAMS)
_VALUE_BYTES = {BOOLEAN: 1, INT32: 4, INT64: 8, INT96: 12, FLOAT: 4, DOUBLE: 8}


def check_row_group(group: RowGroup, columns: Sequence[Column]) -> None:
    """Raise `CopyRefused` for a column chunk that readers of its copy would stumble over."""
    try:
        for chunk, column in zip(group.chunks, columns, strict=True):
            _check_lists(chunk)
            problem = _statistics_problem(chunk, column) or _sizes_problem(chunk, column)
            if problem:
                raise CopyRefused(Refusal.CORRUPT_FOOTER, f"{'.'.join(column.path)}: {problem}")
    except MalformedError as error:
        raise CopyRefused(Refusal.CORRUPT_FOOTER, f"statistics: {error}") from error


def _check_lists(chunk: Chunk) -> None:
    """Raise `MalformedError` where structs lack a required field: other readers could not read the whole footer."""
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
    order, size = order_of(element), _VALUE_BYTES.get(element.type or 0, element.length)
    for field_id in _BOUNDS:
        raw = binary(fields, field_id)
        if raw is not None and ((size is not None and len(raw) != size) or (order is not None and order(raw) is None)):
            return f"bound {raw[:40]!r} is no value of the type"
    return None


def _sizes_problem(chunk: Chunk, column: Column) -> str | None:
    fields = chunk.size_statistics
    if (
        integer(fields, SizeStatistics.UNENCODED_BYTE_ARRAY_DATA_BYTES) is not None
        and column.element.type != BYTE_ARRAY
    ):
        return "a size of byte arrays, there are none"
    for field_id, highest in zip(_LEVELS, column.levels, strict=True):
        found = len(integers_of(fields, field_id))
        if found not in (0, highest + 1):
            return f"a histogram of {found} levels, there are {highest + 1}"
    return None


def index_fits(column_index: bytes, pages: int, column: Column) -> bool:
    """Whether a ColumnIndex is one of this many pages, with bounds that are values of the type."""
    if concatenate([column_index], [pages]) is None:
        return False
    fields, _ = read_struct(column_index)
    histograms = [read_list_header(fields[field_id][1], 0)[0] if field_id in fields else 0 for field_id in _PAGE_LEVELS]
    if any(n not in (0, pages * (most + 1)) for n, most in zip(histograms, column.levels, strict=True)):
        return False
    order = order_of(column.element)
    bounds = [*binaries_of(fields, ColumnIndex.MIN_VALUES), *binaries_of(fields, ColumnIndex.MAX_VALUES)]
    # pages of nulls have empty ones
    return order is None or all(not raw or order(raw) is not None for raw in bounds)
