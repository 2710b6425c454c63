"""How many rows the pages of a column in lists or maps have, which only their repetition levels tell.

A damaged level makes a row more or less. Its file has that row wrong then; behind it in one chunk, the rows of other
files would be wrong, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from icesize.parquet.format.fields import DataPageHeader, DataPageHeaderV2, PageHeader
from icesize.parquet.format.pages import DATA_PAGE_V2, RLE, Page, decompressed
from icesize.parquet.format.refusals import CopyRefused, Refusal, malformed_as
from icesize.parquet.format.schema import Column
from icesize.parquet.format.thrift import STRUCT, Bytes, raw_of, read_struct, required_integer


@malformed_as(Refusal.PAGES)
def check_levels(pages: Sequence[Page], data: Bytes, column: Column, codec: int, rows: int) -> None:
    """Raise `CopyRefused` where the data pages of a chunk do not begin so many rows.

    Pages that all have checksums, which are right by now, are not looked into: those of Iceberg, Spark and icesize
    have. For others that costs decompressing them.
    """
    highest, _ = column.levels
    if not highest or all(page.has_checksum for page in pages):
        return
    filled = [page for page in pages if page.values]
    found = sum(_rows(page, bytes(data[page.at : page.at + page.size_bytes]), highest, codec) for page in filled)
    if found != rows:
        raise CopyRefused(Refusal.PAGES, f"{'.'.join(column.path)} has {found} rows of {rows}")


def _rows(page: Page, stored: bytes, highest: int, codec: int) -> int:
    """The levels of one page that are 0: each is where a row begins."""
    from icesize.parquet.format.hybrid import zeros  # needs numpy, which copying needs for nothing else

    levels = (_v2 if page.type == DATA_PAGE_V2 else _v1)(page, stored, codec)
    return zeros(levels, highest.bit_length(), page.values)


def _v1(page: Page, stored: bytes, codec: int) -> bytes:
    header, at = read_struct(stored)
    inner, _ = read_struct(raw_of(header, PageHeader.DATA_PAGE_HEADER, STRUCT))
    if required_integer(inner, DataPageHeader.REPETITION_LEVEL_ENCODING) != RLE:
        raise CopyRefused(Refusal.PAGES, "levels of an old encoding")
    raw = decompressed(stored[at:], page.raw_size_bytes - page.header_bytes, codec)
    return raw[4 : 4 + int.from_bytes(raw[:4], "little")]


def _v2(_page: Page, stored: bytes, _codec: int) -> bytes:
    header, at = read_struct(stored)
    inner, _ = read_struct(raw_of(header, PageHeader.DATA_PAGE_HEADER_V2, STRUCT))
    return stored[at : at + max(0, required_integer(inner, DataPageHeaderV2.REPETITION_LEVELS_BYTE_LENGTH))]
