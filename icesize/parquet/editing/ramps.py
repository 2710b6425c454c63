"""Pages of integers that rise evenly, or not at all, written without the values themselves.

Making values and encoding them takes 20 ns each; a page takes 25 µs, whatever the number of its values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from icesize.parquet.editing.column_plan import Piece
from icesize.parquet.format.fields import ColumnIndex, ColumnMetaData, DataPageHeader, PageHeader, Statistics
from icesize.parquet.format.footer import Chunk
from icesize.parquet.format.hybrid import repeat
from icesize.parquet.format.page_body import PageBody
from icesize.parquet.format.pages import DATA_PAGE, RLE, Page, Pages
from icesize.parquet.format.schema import INT64, Column
from icesize.parquet.format.thrift import (
    BOOLEAN_FALSE,
    BOOLEAN_TRUE,
    I32,
    I64,
    LIST,
    Bytes,
    binaries_field,
    bytes_field,
    i32,
    i64,
    integers_field,
    list_header,
    struct_field,
    varint,
    write_struct,
    zigzag,
)

_DELTA_BINARY_PACKED = 5
_BLOCK_ROWS, _MINIBLOCKS = 128, 4
"""Values of a block, and its parts: what all known writers choose."""
_PAGE_ROWS = 2**17
"""More than in other columns, whose pages readers hold as bytes: such a page has 5 KiB."""


class Ramp(NamedTuple):
    """The numbers `first`, `first + step`, and so on, `rows` of them."""

    first: int
    step: int
    rows: int

    @property
    def last(self) -> int:
        """The last of the numbers."""
        return self.first + self.step * (self.rows - 1)

    def then(self, other: Ramp) -> Ramp | None:
        """Return the numbers of both as one ramp; None if they are not one."""
        if self.step != other.step or self.last + self.step != other.first:
            return None
        return self._replace(rows=self.rows + other.rows)

    def pages(self) -> Iterator[Ramp]:
        """Yield the numbers of each page."""
        for start in range(0, self.rows, _PAGE_ROWS):
            yield Ramp(self.first + self.step * start, self.step, min(_PAGE_ROWS, self.rows - start))


def ramp_piece(ramps: Sequence[Ramp], column: Column, codec: int, level: int | None) -> Piece:
    """Return a chunk with the numbers of all ramps, for an optional column of 64-bit integers; its steps are >= 0."""
    pages, stored, at = list[Page](), list[Bytes](), 0
    of_pages = [page for ramp in ramps for page in ramp.pages()]
    for ramp in of_pages:
        data, page = _page(ramp, at, codec, level)
        stored += data
        pages.append(page)
        at += page.size_bytes
    rows = sum(ramp.rows for ramp in ramps)
    statistics = {
        Statistics.NULL_COUNT: i64(0),
        Statistics.MAX_VALUE: bytes_field(_plain(max(ramp.last for ramp in ramps))),
        Statistics.MIN_VALUE: bytes_field(_plain(min(ramp.first for ramp in ramps))),
    }
    metadata = {
        ColumnMetaData.TYPE: i32(INT64),
        ColumnMetaData.ENCODINGS: integers_field((RLE, _DELTA_BINARY_PACKED), I32),
        ColumnMetaData.PATH_IN_SCHEMA: binaries_field(name.encode() for name in column.path),
        ColumnMetaData.CODEC: i32(codec),
        ColumnMetaData.NUM_VALUES: i64(rows),
        ColumnMetaData.STATISTICS: struct_field(statistics),
    }
    chunk = Chunk({}, metadata, 0, at, rows, codec, 0, 0)
    return Piece(chunk, memoryview(b"".join(stored)), Pages(None, pages), rows, None, _bounds(of_pages))


def _page(ramp: Ramp, at: int, codec: int, level: int | None) -> tuple[list[Bytes], Page]:
    inner = {
        DataPageHeader.NUM_VALUES: i32(ramp.rows),
        DataPageHeader.ENCODING: i32(_DELTA_BINARY_PACKED),
        DataPageHeader.DEFINITION_LEVEL_ENCODING: i32(RLE),
        DataPageHeader.REPETITION_LEVEL_ENCODING: i32(RLE),
    }
    unknown = dict.fromkeys(
        (PageHeader.UNCOMPRESSED_PAGE_SIZE, PageHeader.COMPRESSED_PAGE_SIZE, PageHeader.CRC), i32(0)
    )
    header = {PageHeader.TYPE: i32(DATA_PAGE), **unknown, PageHeader.DATA_PAGE_HEADER: struct_field(inner)}
    body = PageBody(header, inner, (0, 1), [b"", repeat(b"\1", ramp.rows)], [_packed(ramp)])
    return body.stored(
        Page(at, 0, 0, 0, DATA_PAGE, _DELTA_BINARY_PACKED, ramp.rows, ramp.rows, has_checksum=True), codec, level
    )


def _packed(ramp: Ramp) -> bytes:
    """Return the numbers in the encoding DELTA_BINARY_PACKED: each difference is the least one, so it takes no bits."""
    blocks = -(-(ramp.rows - 1) // _BLOCK_ROWS)
    begin = varint(_BLOCK_ROWS) + varint(_MINIBLOCKS) + varint(ramp.rows) + zigzag(ramp.first)
    return begin + (zigzag(ramp.step) + bytes(_MINIBLOCKS)) * blocks


def _bounds(pages: Sequence[Ramp]) -> bytes:
    """Return the ColumnIndex of the pages."""
    of_nulls = bytes([BOOLEAN_FALSE]) * len(pages)
    return write_struct(
        {
            ColumnIndex.NULL_PAGES: (LIST, list_header(len(pages), BOOLEAN_TRUE) + of_nulls),
            ColumnIndex.MIN_VALUES: binaries_field([_plain(page.first) for page in pages]),
            ColumnIndex.MAX_VALUES: binaries_field([_plain(page.last) for page in pages]),
            ColumnIndex.BOUNDARY_ORDER: i32(0),
            ColumnIndex.NULL_COUNTS: integers_field([0] * len(pages), I64),
        }
    )


def _plain(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)
