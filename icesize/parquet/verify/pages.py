"""Whether a column chunk's metadata and page indexes are true of its pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from icesize.parquet.format.fields import ColumnIndex, ColumnMetaData, PageEncodingStats
from icesize.parquet.format.footer import Chunk
from icesize.parquet.format.page_index import read_offset_index
from icesize.parquet.format.pages import DATA_PAGE, DATA_PAGE_V2, DICTIONARY_ENCODINGS, DICTIONARY_PAGE, Page, Pages
from icesize.parquet.format.schema import BYTE_ARRAY, Column
from icesize.parquet.format.statistics import order_of
from icesize.parquet.format.thrift import (
    BOOLEAN_FALSE,
    BOOLEAN_TRUE,
    LIST,
    Fields,
    MalformedError,
    binaries_of,
    integers_of,
    raw_of,
    read_list_header,
    read_struct,
    required_integer,
    structs_of,
)
from icesize.parquet.verify.bounds import Bound, byte_array_bytes, check_bound
from icesize.parquet.verify.values import Leaves, extremes_of

_ORDERS = {1: "ascending", 2: "descending"}
"""Boundary orders that promise something."""


def check_metadata(chunk: Chunk, pages: Pages) -> Iterator[str]:
    """Compare ColumnMetaData with what page headers say; raises `MalformedError`."""
    raw_size_bytes = sum(page.raw_size_bytes for page in _all(pages))
    claimed = required_integer(chunk.metadata, ColumnMetaData.TOTAL_UNCOMPRESSED_SIZE)
    if claimed != raw_size_bytes:
        yield f"total_uncompressed_size is {claimed}, pages have {raw_size_bytes}"
    yield from _check_offsets(chunk, pages)
    yield from _check_encodings(chunk, pages)
    yield from _check_dictionary_order(pages)


def row_starts(pages: Sequence[Page], leaves: Leaves) -> tuple[list[int], list[int]]:
    """First row of each page, with the number of rows at the end; and the pages that begin within a row.

    The pages have all values of the chunk.
    """
    positions = np.cumsum([0, *(page.values for page in pages)])
    # rows without entries do not exist: each position is found once
    rows = np.searchsorted(leaves.entries, positions)
    within = np.flatnonzero(leaves.entries[rows] != positions)
    return rows.tolist(), within.tolist()


def check_page_rows(pages: Sequence[Page], starts: Sequence[int]) -> Iterator[str]:
    """Compare the numbers of rows in page headers with the values' own."""
    for number, page in enumerate(pages):
        rows = starts[number + 1] - starts[number]
        if page.rows is not None and page.rows != rows:
            yield f"page {number} has num_rows {page.rows}, there are {rows}"


def check_offset_index(
    raw: bytes, chunk: Chunk, pages: Sequence[Page], starts: Sequence[int], leaves: Leaves
) -> Iterator[str]:
    """Compare an OffsetIndex with the pages; raises `CopyRefused` when it cannot be read."""
    locations, variable_bytes = read_offset_index(raw)
    if len(locations) != len(pages):
        yield f"the offset index has {len(locations)} pages of {len(pages)}"
        return
    for number, (location, page) in enumerate(zip(locations, pages, strict=True)):
        claims = {"offset": location.at, "compressed_page_size": location.size_bytes}
        claims["first_row_index"] = location.first_row
        truth = (chunk.start + page.at, page.size_bytes, starts[number])
        for (name, claim), real in zip(claims.items(), truth, strict=True):
            if claim != real:
                yield f"the offset index has {name} {claim} of page {number}, it is {real}"
    if variable_bytes is not None and chunk.type == BYTE_ARRAY:
        real_bytes = [byte_array_bytes(leaves.of_rows(*rows)) for rows in pairwise(starts)]
        if variable_bytes != real_bytes:
            yield "the offset index has wrong sizes of byte arrays"


def check_column_index(
    raw: bytes, column: Column, starts: Sequence[int], leaves: Leaves, ordered: bool
) -> Iterator[str]:
    """Compare a ColumnIndex with the values of each page; raises `MalformedError`.

    Histograms of levels are not compared. Bounds are when the column is `ordered` as its type defines.
    """
    fields, end = read_struct(raw)
    if end != len(raw):
        raise MalformedError("bytes follow the column index")
    pages = len(starts) - 1
    null_pages = _booleans_of(fields, ColumnIndex.NULL_PAGES)
    lists: dict[str, Sequence[object]] = {
        "null_pages": null_pages,
        "min_values": binaries_of(fields, ColumnIndex.MIN_VALUES),
        "max_values": binaries_of(fields, ColumnIndex.MAX_VALUES),
        "null_counts": range(pages) if (counts := _null_counts(fields)) is None else counts,
    }
    wrong = [
        f"the column index has {len(found)} {name} of {pages}" for name, found in lists.items() if len(found) != pages
    ]
    yield from wrong
    if wrong:
        return
    yield from _check_nulls(fields, null_pages, starts, leaves)
    if ordered:
        yield from _check_bounds(fields, column, starts, leaves)
        yield from _check_boundary_order(fields, column)


def _null_counts(fields: Fields) -> list[int] | None:
    return integers_of(fields, ColumnIndex.NULL_COUNTS) if ColumnIndex.NULL_COUNTS in fields else None


def _booleans_of(fields: Fields, field_id: int) -> list[bool]:
    data = raw_of(fields, field_id, LIST)
    count, kind, at = read_list_header(data, 0)
    if count and kind not in (BOOLEAN_TRUE, BOOLEAN_FALSE):
        raise MalformedError(f"field {field_id} is not a list of booleans")
    return [byte == BOOLEAN_TRUE for byte in data[at : at + count]]


def _all(pages: Pages) -> list[Page]:
    return pages.data if pages.dictionary is None else [pages.dictionary, *pages.data]


def _check_offsets(chunk: Chunk, pages: Pages) -> Iterator[str]:
    claimed, data = chunk.dictionary_offset, chunk.data_offset
    if pages.dictionary is None and claimed:
        yield f"dictionary_page_offset is {claimed}, there is no dictionary"
    elif pages.dictionary is not None and claimed != chunk.start:
        yield f"dictionary_page_offset is {claimed}, it is at {chunk.start}"
    if pages.data and data != chunk.start + pages.data[0].at:
        yield f"data_page_offset is {data}, the first page is at {chunk.start + pages.data[0].at}"


def _check_encodings(chunk: Chunk, pages: Pages) -> Iterator[str]:
    missing = {page.encoding for page in pages.data} - chunk.encodings
    if missing:
        yield f"encodings lack {sorted(missing)}"
    if ColumnMetaData.ENCODING_STATS not in chunk.metadata:
        return
    claimed: Counter[tuple[int, int]] = Counter()
    for fields in structs_of(chunk.metadata, ColumnMetaData.ENCODING_STATS):
        kind = _kind(required_integer(fields, PageEncodingStats.PAGE_TYPE))
        encoding = required_integer(fields, PageEncodingStats.ENCODING)
        claimed[kind, encoding] += required_integer(fields, PageEncodingStats.COUNT)
    has_dictionary = any(kind == DICTIONARY_PAGE for kind, _ in claimed)
    counted = _all(pages) if has_dictionary else pages.data
    real = Counter((_kind(page.type), page.encoding) for page in counted)
    if claimed != real:
        yield f"encoding_stats are {_readable(claimed)}; pages are {_readable(real)}"


def _kind(page_type: int) -> int:
    """pyarrow counts data pages of both versions as those of the first."""
    return DATA_PAGE if page_type == DATA_PAGE_V2 else page_type


def _readable(counts: Counter[tuple[int, int]]) -> str:
    names = {DATA_PAGE: "data", DICTIONARY_PAGE: "dictionary"}
    return ", ".join(f"{n} {names.get(kind, kind)} in encoding {e}" for (kind, e), n in sorted(counts.items()))


def _check_dictionary_order(pages: Pages) -> Iterator[str]:
    coded = [page.encoding in DICTIONARY_ENCODINGS for page in pages.data]
    late = [number for number in range(1, len(coded)) if coded[number] and not coded[number - 1]]
    if late:
        yield f"page {late[0]} is coded by a dictionary and follows one of another encoding"
    if any(coded) and pages.dictionary is None:
        yield "pages are coded by a dictionary, there is none"


def _check_nulls(fields: Fields, null_pages: Sequence[bool], starts: Sequence[int], leaves: Leaves) -> Iterator[str]:
    claims = _null_counts(fields)
    for number, (first, end) in enumerate(pairwise(starts)):
        nulls = leaves.nulls_of(first, end)
        values = int(leaves.entries[end] - leaves.entries[first]) - nulls
        if null_pages[number] != (values == 0):
            yield f"the column index has page {number} as {'null' if values else 'not null'}, it has {values} values"
        if claims is not None and claims[number] != nulls:
            yield f"the column index has null_count {claims[number]} of page {number}, there are {nulls}"


def _bounds(fields: Fields) -> Iterator[tuple[int, bytes, bytes]]:
    """Number, min and max of the pages that are not null."""
    lows, highs = binaries_of(fields, ColumnIndex.MIN_VALUES), binaries_of(fields, ColumnIndex.MAX_VALUES)
    both = zip(_booleans_of(fields, ColumnIndex.NULL_PAGES), lows, highs, strict=True)
    return ((number, low, high) for number, (null, low, high) in enumerate(both) if not null)


def _check_bounds(fields: Fields, column: Column, starts: Sequence[int], leaves: Leaves) -> Iterator[str]:
    order, find = order_of(column.element), extremes_of(column.element)
    if order is None or find is None:
        return
    for number, low, high in _bounds(fields):
        extremes = find(leaves.of_rows(starts[number], starts[number + 1]))
        yield from check_bound(Bound(f"the column index's min of page {number}", low, True), order, extremes)
        yield from check_bound(Bound(f"the column index's max of page {number}", high, False), order, extremes)


def _check_boundary_order(fields: Fields, column: Column) -> Iterator[str]:
    name, order = _ORDERS.get(required_integer(fields, ColumnIndex.BOUNDARY_ORDER)), order_of(column.element)
    if name is None or order is None:
        return
    for number, keys in enumerate(zip(*((order(low), order(high)) for _, low, high in _bounds(fields)), strict=True)):
        expected = _sorted(keys, name == "descending")
        if expected is not None and list(keys) != expected:
            yield f"the column index's {('min', 'max')[number]} values are not {name}, as its boundary order says"


def _sorted(keys: Sequence[Any], descending: bool) -> list[Any] | None:
    """None where some are no values or NaN, which is reported elsewhere."""
    return None if any(key is None or key != key for key in keys) else sorted(keys, reverse=descending)
