"""Statistics of a column chunk that consists of pages of several chunks, from their statistics, never from values."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from icesize.parquet.format.fields import ColumnOrder, FileMetaData, IntType, LogicalType, SizeStatistics, Statistics
from icesize.parquet.format.footer import Chunk, Footer
from icesize.parquet.format.refusals import DamagedFile, Refusal, damaged_as
from icesize.parquet.format.schema import (
    BOOLEAN,
    BYTE_ARRAY,
    CONVERTED,
    DOUBLE,
    FIXED_LEN_BYTE_ARRAY,
    FLOAT,
    INT32,
    INT64,
    Column,
    Element,
)
from icesize.parquet.format.thrift import (
    I64,
    Fields,
    binary,
    boolean,
    boolean_field,
    bytes_field,
    i64,
    integer,
    integers_field,
    integers_of,
    list_header,
    read_struct,
    struct_field,
    write_struct,
)

_ORDERED: dict[int | None, set[int | None]] = {
    BOOLEAN: {None},
    INT32: {None, LogicalType.DECIMAL, LogicalType.DATE, LogicalType.TIME, LogicalType.INTEGER},
    INT64: {None, LogicalType.DECIMAL, LogicalType.TIME, LogicalType.TIMESTAMP, LogicalType.INTEGER},
    FLOAT: {None},
    DOUBLE: {None},
    BYTE_ARRAY: {None, LogicalType.DECIMAL, LogicalType.STRING, LogicalType.ENUM, LogicalType.JSON, LogicalType.BSON},
    FIXED_LEN_BYTE_ARRAY: {None, LogicalType.DECIMAL, LogicalType.UUID},
}
"""Physical type -> logical types whose order is known here (parquet.thrift, ColumnOrder). INTERVAL, the old INT96,
geometries and variants have none; FLOAT16 has one that no reader needs."""
_INTEGERS = {INT32: 4, INT64: 8}
_FLOATS = {FLOAT: struct.Struct("<f"), DOUBLE: struct.Struct("<d")}
_BOUNDS = frozenset({Statistics.MAX, Statistics.MIN, Statistics.MAX_VALUE, Statistics.MIN_VALUE})
_CONVERTED_SIGNED = {kind: kind >= 15 for kind in range(11, 19)}
"""Converted types UINT_8 to UINT_64, then INT_8 to INT_64."""

_TRUSTED = {
    "parquet-mr": (1, 10, 0),
    "parquet-cpp-arrow": (4, 0, 0),
    "parquet-rs": (4, 0, 0),
    "DuckDB": (1, 0, 0),
    "icesize": (0, 0, 0),
}
"""Writers and the versions from which on readers trust their statistics: a copied file may carry another name, under
which statistics of an older version would be believed (PARQUET-251, PARQUET-246, PARQUET-816)."""
_VERSION = re.compile(r"(\S{1,99}) version v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)
"""Bounded: the name comes from a file, and numbers of thousands of digits are an error."""

Order = Callable[[bytes], Any]
"""Bytes of a bound -> what compares as the column's values do; None for bytes that are no value of the type."""


def is_trusted(created_by: str) -> bool:
    """Return whether readers trust the statistics of this writer's files."""
    found = _VERSION.match(created_by)
    if found is None or found[1] not in _TRUSTED:
        return False
    return tuple(int(part or 0) for part in found.groups()[1:]) >= _TRUSTED[found[1]]


def column_orders(footer: Footer) -> bytes:
    """Return the order of each column's bounds as the footer has it; empty if the footer has none."""
    return bytes(footer.fields.get(FileMetaData.COLUMN_ORDERS, (0, b""))[1])


def orders_by_type(columns: int) -> bytes:
    """Return the order of bounds by type for all columns, the only order with mergeable statistics."""
    return list_header(columns) + write_struct({ColumnOrder.TYPE_ORDER: struct_field({})}) * columns


def are_trusted(footer: Footer) -> bool:
    """Return whether readers trust the bounds in this footer."""
    return is_trusted(footer.created_by) and column_orders(footer) == orders_by_type(len(footer.columns))


@lru_cache(1_024)
def bound_order(element: Element) -> Order | None:
    """Return a function that makes bounds of a column comparable, or None if their order is undefined or unknown.

    The function returns NaN for NaN; callers test for it.
    """
    signed, length = _signed(element), element.length
    if element.type is None or signed is None:
        return None
    if element.type == BOOLEAN:
        return lambda raw: raw[0] if raw in (b"\0", b"\1") else None
    if element.type in _INTEGERS:
        size = _INTEGERS[element.type]
        return lambda raw: int.from_bytes(raw, "little", signed=signed) if len(raw) == size else None
    if element.type in _FLOATS:
        layout = _FLOATS[element.type]
        return lambda raw: layout.unpack(raw)[0] if len(raw) == layout.size else None
    if element.logical is not None and element.logical[0] == LogicalType.DECIMAL:
        # two's complement, big-endian
        return lambda raw: int.from_bytes(raw, "big", signed=True) if raw and len(raw) == (length or len(raw)) else None
    # unsigned bytes from the left; bounds may be shorter than values
    return lambda raw: raw if length is None or len(raw) <= length else None


def null_count(fields: Fields, values: int) -> int | None:
    """Return the number of the `values` entries without a value from these Statistics, or None if it is unknown.

    An impossible number counts as unknown: some writers count all entries of a list as NULLs, and give bounds. Raises
    `DamagedFile` if the number cannot be read.
    """
    count = integer(fields, Statistics.NULL_COUNT)
    if count is None or not 0 <= count <= values or (0 < count == values and _BOUNDS & fields.keys()):
        return None
    return count


@damaged_as(Refusal.CORRUPT_FOOTER, "statistics")
def merge_statistics(element: Element, parts: Sequence[tuple[Fields | None, int]]) -> Fields | None:
    """Merge the Statistics of a chunk's parts, each given with its number of values, nulls included.

    Old bounds without a defined order and numbers of distinct values are left out, because they cannot be merged. A
    number or bound is set only if all parts that need one have it: a missing bound may be any value, and a NaN hides
    one. Zeros become the outermost of -0.0 and 0.0. A bound is exact if a part with this bound has it as exact. Raises
    `CopyRefused` if Statistics cannot be read.
    """
    filled = [(fields or {}, values) for fields, values in parts if values]
    nulls = [null_count(fields, values) for fields, values in filled]
    merged: Fields = {}
    if filled and None not in nulls:
        merged[Statistics.NULL_COUNT] = i64(sum(count or 0 for count in nulls))
    needed = [fields for (fields, values), count in zip(filled, nulls, strict=True) if count != values]
    if (order := bound_order(element)) is not None and needed:
        merged |= _merged_bounds(element, order, needed)
    return merged or None


@damaged_as(Refusal.CORRUPT_FOOTER, "size statistics")
def merge_size_statistics(chunks: Sequence[Chunk]) -> Fields | None:
    """Merge the SizeStatistics of a chunk's parts: sums of the numbers that all parts have.

    Raises `CopyRefused` if they cannot be read.
    """
    parts = [chunk.size_statistics for chunk in chunks]
    if not parts or any(field_id > SizeStatistics.DEFINITION_LEVEL_HISTOGRAM for part in parts for field_id in part):
        return None
    merged: Fields = {}
    size_id = SizeStatistics.UNENCODED_BYTE_ARRAY_DATA_BYTES
    if all(size_id in part for part in parts):
        merged[size_id] = i64(sum(integer(part, size_id) or 0 for part in parts))
    for field_id in (SizeStatistics.REPETITION_LEVEL_HISTOGRAM, SizeStatistics.DEFINITION_LEVEL_HISTOGRAM):
        histograms = [integers_of(part, field_id) for part in parts]
        if all(field_id in part for part in parts) and len(set(map(len, histograms))) == 1:
            merged[field_id] = integers_field(map(sum, zip(*histograms, strict=True)), I64)
    return merged or None


def count_of(chunk: Chunk, column: Column) -> tuple[int, int | None]:
    """Return the number of entries of a chunk, and the number without a value, or None if that is unknown.

    NULLs and empty lists above an entry count as entries. Raises `DamagedFile` if the metadata cannot be read.
    """
    if not column.levels[1]:
        return chunk.values, 0
    nulls = null_count(chunk.statistics, chunk.values)
    if nulls is None:
        levels = integers_of(chunk.size_statistics, SizeStatistics.DEFINITION_LEVEL_HISTOGRAM)
        nulls = sum(levels[:-1]) if len(levels) == column.levels[1] + 1 and sum(levels) == chunk.values else None
    return chunk.values, nulls


def bounds_differ(element: Element, one: Fields, other: Fields) -> bool:
    """Return whether a bound that both Statistics mark as exact differs between them."""
    order = bound_order(element)
    if order is None:
        return False
    pairs = [[_bound(fields, end, order) for fields in (one, other)] for end in _ENDS]
    return any(a is not None and b is not None and a.exact and b.exact and a.key != b.key for a, b in pairs)


class _End(NamedTuple):
    """The fields of one bound in Statistics, the function that selects the outermost bound, and the outermost zero."""

    value: int
    exact: int
    outermost: Callable[..., Any]
    zero: float


_ENDS = (
    _End(Statistics.MIN_VALUE, Statistics.IS_MIN_VALUE_EXACT, min, -0.0),
    _End(Statistics.MAX_VALUE, Statistics.IS_MAX_VALUE_EXACT, max, 0.0),
)


class _Bound(NamedTuple):
    key: Any
    raw: bytes
    exact: bool | None


def _merged_bounds(element: Element, order: Order, needed: list[Fields]) -> Fields:
    lowest, highest = (_merge_bound([_bound(fields, end, order) for fields in needed], end) for end in _ENDS)
    if lowest is None or highest is None or lowest.key > highest.key:
        return {}
    merged: Fields = {}
    layout = _FLOATS.get(element.type or 0)
    for bound, end in zip((lowest, highest), _ENDS, strict=True):
        # a zero of the other sign may be among the values of another part
        merged[end.value] = bytes_field(layout.pack(end.zero) if layout and bound.key == 0 else bound.raw)
        if bound.exact is not None:
            merged[end.exact] = boolean_field(bound.exact)
    return merged


def _bound(fields: Fields, end: _End, order: Order) -> _Bound | None:
    raw = binary(fields, end.value)
    key = None if raw is None else order(raw)
    if raw is None or key is None or key != key:
        return None
    return _Bound(key, raw, boolean(fields, end.exact))


def _merge_bound(bounds: list[_Bound | None], end: _End) -> _Bound | None:
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds):
        return None
    winner: _Bound = end.outermost(known, key=lambda bound: bound.key)
    claims = {bound.exact for bound in known if bound.key == winner.key}
    return _Bound(winner.key, winner.raw, True if True in claims else None if None in claims else False)


def _signed(element: Element) -> bool | None:
    """Return whether numbers of the column are signed, or None without a known order.

    All columns except unsigned integers count as signed.
    """
    if element.type not in _ORDERED or element.unknown:
        return None
    annotation: tuple[Any, ...] = element.logical or (None,)
    logical = annotation[0]
    if logical == CONVERTED and element.type in _INTEGERS:
        return _CONVERTED_SIGNED.get(annotation[1])
    if logical not in _ORDERED[element.type]:
        return None
    if logical != LogicalType.INTEGER:
        return True
    try:
        return boolean(read_struct(annotation[1])[0], IntType.IS_SIGNED)
    except DamagedFile:
        return None
