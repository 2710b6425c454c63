"""The body of a data page, split into levels and values, and joined again with other levels or values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from icesize.parquet.format.fields import DataPageHeader, DataPageHeaderV2, PageHeader
from icesize.parquet.format.pages import (
    DATA_PAGE_V2,
    INNER_HEADERS,
    RLE,
    UNCOMPRESSED,
    Page,
    compressed,
    decompressed,
    signed_checksum,
)
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.thrift import (
    STRUCT,
    Bytes,
    Fields,
    boolean,
    i32,
    raw_of,
    read_struct,
    required_integer,
    struct_field,
    write_struct,
)

_LENGTH_BYTES = 4


@dataclass(slots=True)
class PageBody:
    """A data page without compression.

    `levels` are the runs of its repetition levels and of its definition levels, each empty if the column has none.
    `values` are its values, in pieces. `highest` are the highest levels of its column.
    """

    header: Fields
    inner: Fields
    highest: tuple[int, int]
    levels: list[bytes]
    values: Sequence[Bytes]

    @property
    def _is_v2(self) -> bool:
        return PageHeader.DATA_PAGE_HEADER_V2 in self.header

    def cut(self, rows: int, nulls: int) -> None:
        """Set the number of rows, and in v2 headers of NULLs, of a page of a flat column, and remove its statistics."""
        kept = (
            (DataPageHeaderV2.NUM_VALUES, DataPageHeaderV2.IS_COMPRESSED)
            if self._is_v2
            else (DataPageHeader.NUM_VALUES, DataPageHeader.REPETITION_LEVEL_ENCODING)
        )
        self.inner = {number: field for number, field in self.inner.items() if number <= kept[1]}
        self.inner[kept[0]] = i32(rows)
        if self._is_v2:
            self.inner |= {DataPageHeaderV2.NUM_NULLS: i32(nulls), DataPageHeaderV2.NUM_ROWS: i32(rows)}

    def stored(self, page: Page, codec: int, level: int | None) -> tuple[list[Bytes], Page]:
        """Return the page, header and body, compressed at this level, and `page` with its new sizes."""
        body, raw_size_bytes = (self._v2 if self._is_v2 else self._v1)(codec, level)
        self.header[PageHeader.UNCOMPRESSED_PAGE_SIZE] = i32(raw_size_bytes)
        self.header[PageHeader.COMPRESSED_PAGE_SIZE] = i32(len(body))
        if PageHeader.CRC in self.header:
            self.header[PageHeader.CRC] = i32(signed_checksum(body))
        header = write_struct(self.header)
        at = len(header)
        now = replace(page, header_bytes=at, size_bytes=at + len(body), raw_size_bytes=at + raw_size_bytes)
        return [header, body], now

    def _v1(self, codec: int, level: int | None) -> tuple[bytes, int]:
        self.header[PageHeader.DATA_PAGE_HEADER] = struct_field(self.inner)
        levels = [runs for runs, highest in zip(self.levels, self.highest, strict=True) if highest]
        raw = b"".join((*(len(runs).to_bytes(_LENGTH_BYTES, "little") + runs for runs in levels), *self.values))
        return compressed(raw, codec, level), len(raw)

    def _v2(self, codec: int, level: int | None) -> tuple[bytes, int]:
        repetition, definition = self.levels
        self.inner[DataPageHeaderV2.REPETITION_LEVELS_BYTE_LENGTH] = i32(len(repetition))
        self.inner[DataPageHeaderV2.DEFINITION_LEVELS_BYTE_LENGTH] = i32(len(definition))
        self.header[PageHeader.DATA_PAGE_HEADER_V2] = struct_field(self.inner)
        is_plain = boolean(self.inner, DataPageHeaderV2.IS_COMPRESSED) is False
        values = raw = b"".join(self.values)
        if not is_plain:
            values = compressed(raw, codec, level)
        return repetition + definition + values, len(repetition) + len(definition) + len(raw)


def page_body(chunk: memoryview, page: Page, highest: tuple[int, int], codec: int) -> PageBody:
    """Split a data page of a chunk into levels and values.

    Raises `CopyRefused` and `DamagedFile` for a page that contradicts its header.
    """
    header, inner, body = _parts(chunk, page)
    raw_size_bytes = page.raw_size_bytes - page.header_bytes
    if page.type == DATA_PAGE_V2:
        levels = _v2_levels(inner, body)
        at = sum(map(len, levels))
        values = body[at:]
        codec = UNCOMPRESSED if boolean(inner, DataPageHeaderV2.IS_COMPRESSED) is False else codec
        values = memoryview(decompressed(values, raw_size_bytes - at, codec))
        return PageBody(header, inner, highest, levels, [values])
    raw = memoryview(decompressed(body, raw_size_bytes, codec))
    levels, at = _v1_levels(inner, raw, highest)
    return PageBody(header, inner, highest, levels, [raw[at:]])


def levels_of(chunk: memoryview, page: Page, highest: tuple[int, int], codec: int) -> list[bytes]:
    """Return the runs of both levels of a data page; values are decompressed only if levels are compressed with them.

    Raises `CopyRefused` and `DamagedFile` as `page_body` does.
    """
    if page.type != DATA_PAGE_V2:
        return page_body(chunk, page, highest, codec).levels
    _, inner, body = _parts(chunk, page)
    return _v2_levels(inner, body)


def _parts(chunk: memoryview, page: Page) -> tuple[Fields, Fields, memoryview]:
    """Return the header of a page, the header within it, and the page's body."""
    start = page.at + page.header_bytes
    header, _ = read_struct(bytes(chunk[page.at : start]))
    inner, _ = read_struct(raw_of(header, INNER_HEADERS[page.type], STRUCT))
    return header, inner, chunk[start : page.at + page.size_bytes]


def _v1_levels(inner: Fields, raw: memoryview, highest: tuple[int, int]) -> tuple[list[bytes], int]:
    """Return the runs of both levels, and the position of the values."""
    at, levels = 0, [b"", b""]
    encodings = (DataPageHeader.REPETITION_LEVEL_ENCODING, DataPageHeader.DEFINITION_LEVEL_ENCODING)
    for number, encoding in enumerate(encodings):
        if highest[number]:
            if required_integer(inner, encoding) != RLE:
                raise CopyRefused(Refusal.PAGES, "levels of an old encoding")
            start, length = at + _LENGTH_BYTES, int.from_bytes(raw[at : at + _LENGTH_BYTES], "little")
            at = _checked(start + length, raw)
            levels[number] = bytes(raw[start:at])
    return levels, at


def _v2_levels(inner: Fields, body: memoryview) -> list[bytes]:
    middle = required_integer(inner, DataPageHeaderV2.REPETITION_LEVELS_BYTE_LENGTH)
    length = required_integer(inner, DataPageHeaderV2.DEFINITION_LEVELS_BYTE_LENGTH)
    if min(middle, length) < 0:
        raise CopyRefused(Refusal.PAGES, f"levels of {min(middle, length)} bytes")
    at = _checked(middle + length, body)
    return [bytes(body[:middle]), bytes(body[middle:at])]


def _checked(end: int, page: Bytes) -> int:
    if end > len(page):
        raise CopyRefused(Refusal.PAGES, f"levels of {end} bytes in a page of {len(page)}")
    return end
