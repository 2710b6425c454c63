"""The levels of a data page."""

from __future__ import annotations

from icesize.parquet.format.fields import DataPageHeader, DataPageHeaderV2
from icesize.parquet.format.pages import (
    DATA_PAGE_V2,
    INNER_HEADERS,
    RLE,
    Page,
    decompressed,
)
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.thrift import (
    STRUCT,
    Bytes,
    Fields,
    raw_of,
    read_struct,
    required_integer,
)

_LENGTH_BYTES = 4


def levels_of(chunk: memoryview, page: Page, highest: tuple[int, int], codec: int) -> list[bytes]:
    """Return the runs of both levels of a data page, each empty if the column has none.

    `highest` are the highest levels of its column. Values are decompressed only if levels are compressed with them.
    Raises `CopyRefused` and `DamagedFile` for a page that contradicts its header.
    """
    inner, body = _parts(chunk, page)
    if page.type == DATA_PAGE_V2:
        return _v2_levels(inner, body)
    raw = memoryview(decompressed(body, page.raw_size_bytes - page.header_bytes, codec))
    return _v1_levels(inner, raw, highest)


def _parts(chunk: memoryview, page: Page) -> tuple[Fields, memoryview]:
    """Return the header of a data page within its header, and the page's body."""
    start = page.at + page.header_bytes
    header, _ = read_struct(bytes(chunk[page.at : start]))
    inner, _ = read_struct(raw_of(header, INNER_HEADERS[page.type], STRUCT))
    return inner, chunk[start : page.at + page.size_bytes]


def _v1_levels(inner: Fields, raw: memoryview, highest: tuple[int, int]) -> list[bytes]:
    at, levels = 0, [b"", b""]
    encodings = (DataPageHeader.REPETITION_LEVEL_ENCODING, DataPageHeader.DEFINITION_LEVEL_ENCODING)
    for number, encoding in enumerate(encodings):
        if highest[number]:
            if required_integer(inner, encoding) != RLE:
                raise CopyRefused(Refusal.PAGES, "levels of an old encoding")
            start, length = at + _LENGTH_BYTES, int.from_bytes(raw[at : at + _LENGTH_BYTES], "little")
            at = _checked(start + length, raw)
            levels[number] = bytes(raw[start:at])
    return levels


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
