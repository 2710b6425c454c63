"""Page indexes: positions of a column chunk's pages and bounds of their values, moved and joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from icesize.parquet.format.fields import ColumnIndex, OffsetIndex
from icesize.parquet.format.fields import PageLocation as PageLocationIds
from icesize.parquet.format.refusals import CopyRefused, DamagedFile, Refusal, damaged_as
from icesize.parquet.format.thrift import (
    BINARY,
    BOOLEANS,
    I64,
    LIST,
    Bytes,
    Fields,
    Parser,
    binaries_of,
    booleans_of,
    i32,
    integer,
    integers_field,
    integers_of,
    list_header,
    list_of,
    raw_of,
    read_struct,
    read_structs,
    required_integer,
    write_struct,
    zigzag,
)

_UNORDERED = 0
"""A boundary order: bounds ascend or descend only within the parts, if at all."""
_REQUIRED = {ColumnIndex.NULL_PAGES: BOOLEANS, ColumnIndex.MIN_VALUES: (BINARY,), ColumnIndex.MAX_VALUES: (BINARY,)}
"""Lists of ColumnIndex and the types of their entries; writers name booleans by either of two types."""
_HISTOGRAMS = {ColumnIndex.REPETITION_LEVEL_HISTOGRAMS: (I64,), ColumnIndex.DEFINITION_LEVEL_HISTOGRAMS: (I64,)}
"""Lists with an entry for each level of each page, page by page; all others have one entry for each page."""
_LISTS = {**_REQUIRED, ColumnIndex.NULL_COUNTS: (I64,), **_HISTOGRAMS}

_AT, _SIZE, _FIRST_ROW, _STOP = b"\x16", b"\x15", b"\x16", b"\0"
"""Headers of the fields of a PageLocation and its end, as all known writers lay them out."""

_READING = damaged_as(Refusal.CORRUPT_FOOTER, "a page index")
_LOCATION_FIELDS = (PageLocationIds.OFFSET, PageLocationIds.COMPRESSED_PAGE_SIZE, PageLocationIds.FIRST_ROW_INDEX)


class PageLocation(NamedTuple):
    """One data page: the position of its header, its compressed bytes with header, its first row in the row group."""

    at: int
    size_bytes: int
    first_row: int


class _List(NamedTuple):
    """A list as stored: the number of its entries, and their bytes."""

    entries: int
    body: Bytes


@_READING
def read_offset_index(raw: bytes) -> tuple[list[PageLocation], list[int] | None]:
    """Return the pages of an OffsetIndex, and the uncompressed bytes of byte arrays in each page, or None without them.

    Raises `CopyRefused`, also for fields that this version does not know, because they may be offsets.
    """
    fields = _only_struct(raw, {OffsetIndex.PAGE_LOCATIONS: (LIST, partial(read_structs, parser=_location))})
    OffsetIndex.check(fields)
    locations: list[PageLocation] = raw_of(fields, OffsetIndex.PAGE_LOCATIONS, LIST)
    if OffsetIndex.UNENCODED_BYTE_ARRAY_DATA_BYTES not in fields:
        return locations, None
    return locations, integers_of(fields, OffsetIndex.UNENCODED_BYTE_ARRAY_DATA_BYTES)


def offset_index(locations: Sequence[PageLocation], variable_bytes: Sequence[int] | None) -> bytes:
    """Return an OffsetIndex, the inverse of `read_offset_index`."""
    pages = b"".join(
        b"".join((_AT, zigzag(page.at), _SIZE, zigzag(page.size_bytes), _FIRST_ROW, zigzag(page.first_row), _STOP))
        for page in locations
    )
    fields: Fields = {OffsetIndex.PAGE_LOCATIONS: (LIST, list_header(len(locations)) + pages)}
    if variable_bytes is not None:
        fields[OffsetIndex.UNENCODED_BYTE_ARRAY_DATA_BYTES] = integers_field(variable_bytes, I64)
    return write_struct(fields)


def rebase(raw: bytes, delta: int, chunk: range) -> bytes:
    """Return an OffsetIndex for pages that move by `delta` bytes; `chunk` is the old range of their column chunk.

    Raises `CopyRefused` as `read_offset_index` does, and for pages outside of the chunk.
    """
    locations, variable_bytes = read_offset_index(raw)
    if any(
        page.at < chunk.start or page.at + page.size_bytes > chunk.stop or page.size_bytes < 0 for page in locations
    ):
        raise CopyRefused(Refusal.CORRUPT_FOOTER, "an OffsetIndex has pages outside of its chunk")
    return offset_index([page._replace(at=page.at + delta) for page in locations], variable_bytes)


def concatenate(column_indexes: Sequence[bytes], pages: Sequence[int]) -> bytes | None:
    """Return one ColumnIndex for the pages of several column chunks in this order; `pages` are their numbers of pages.

    Lists that only some of the chunks have are left out. Returns None if there can be no such index: a list does not
    fit the number of pages, a required list is missing, or a field is unknown. Raises `CopyRefused` if an index is
    damaged.
    """
    parts = [_lists_of(raw) for raw in column_indexes]
    fields: Fields = {ColumnIndex.BOUNDARY_ORDER: i32(_UNORDERED)}
    for field in _LISTS:
        lists = [part[field] for part in parts if part is not None and field in part]
        if len(lists) == len(parts):
            if not _fit(lists, pages, histogram=field in _HISTOGRAMS):
                return None
            header = list_header(sum(one.entries for one in lists), _LISTS[field][0])
            fields[field] = (LIST, header + b"".join(one.body for one in lists))
    return write_struct(fields) if fields.keys() >= _REQUIRED.keys() else None


class PageBounds(NamedTuple):
    """A ColumnIndex: each of its lists has one entry for each page."""

    null_pages: list[bool]
    min_values: list[bytes]
    max_values: list[bytes]
    null_counts: list[int] | None
    boundary_order: int | None


def read_column_index(raw: bytes) -> PageBounds:
    """Read all of a ColumnIndex except its histograms; raises `DamagedFile`."""
    fields = _only_struct(raw)
    return PageBounds(
        booleans_of(fields, ColumnIndex.NULL_PAGES),
        binaries_of(fields, ColumnIndex.MIN_VALUES),
        binaries_of(fields, ColumnIndex.MAX_VALUES),
        integers_of(fields, ColumnIndex.NULL_COUNTS) if ColumnIndex.NULL_COUNTS in fields else None,
        integer(fields, ColumnIndex.BOUNDARY_ORDER),
    )


def _fit(lists: Sequence[_List], pages: Sequence[int], *, histogram: bool) -> bool:
    """Return whether all parts have equally many entries per page; a list that is no histogram has one."""
    entries = 1
    if histogram:
        entries = next((one.entries // number for one, number in zip(lists, pages, strict=True) if number), 0)
    return [one.entries for one in lists] == [entries * number for number in pages]


@_READING
def _lists_of(raw: bytes) -> dict[int, _List] | None:
    """Return the lists of a ColumnIndex, or None if it has an unknown field."""
    fields, lists = _only_struct(raw), dict[int, _List]()
    for field in fields.keys() - {ColumnIndex.BOUNDARY_ORDER}:
        if field not in _LISTS:
            return None
        data, count, at = list_of(fields, field, _LISTS[field])
        lists[field] = _List(count, data[at:])
    return lists


def _location(data: Bytes, at: int) -> tuple[PageLocation, int]:
    fields, at = read_struct(data, at)
    PageLocationIds.check(fields)
    return PageLocation(*(required_integer(fields, field) for field in _LOCATION_FIELDS)), at


def _only_struct(raw: bytes, parsers: Mapping[int, tuple[int, Parser]] | None = None) -> Fields:
    fields, end = read_struct(raw, 0, parsers)
    if end != len(raw):
        raise DamagedFile("bytes follow a page index")
    return fields
