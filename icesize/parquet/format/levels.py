"""What the levels of a column in lists or maps say, held against the footer: of rows, and of values at each level.

A damaged level makes a row, or an entry of a list, more or less. Its file has some rows wrong then; behind it in one
chunk, the rows of other files would be wrong, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from icesize.parquet.format.fields import DataPageHeader, DataPageHeaderV2, PageHeader, SizeStatistics
from icesize.parquet.format.footer import Chunk
from icesize.parquet.format.pages import DATA_PAGE_V2, RLE, Page, decompressed
from icesize.parquet.format.refusals import CopyRefused, Refusal, damaged_as
from icesize.parquet.format.schema import Column
from icesize.parquet.format.thrift import STRUCT, Bytes, integers_of, raw_of, read_struct, required_integer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@damaged_as(Refusal.PAGES)
def check_levels(pages: Sequence[Page], data: Bytes, column: Column, chunk: Chunk, rows: int) -> None:
    """Raise `CopyRefused` where the data pages of a chunk do not begin so many rows, or have other definition levels
    than its histogram says, where it has one.

    Pages that all have checksums, which are right by now, are not looked into: those of Iceberg, Spark and icesize
    have. For others that costs decompressing them.
    """
    if not column.levels[0] or all(page.has_checksum for page in pages):
        return
    counted = [
        _counted(page, bytes(data[page.at : page.at + page.size_bytes]), column.levels, chunk.codec)
        for page in pages
        if page.values
    ]
    name, found = ".".join(column.path), sum(int(repetition[0]) for repetition, _ in counted)
    if found != rows:
        raise CopyRefused(Refusal.PAGES, f"{name} has {found} rows of {rows}")
    claimed = integers_of(chunk.size_statistics, SizeStatistics.DEFINITION_LEVEL_HISTOGRAM)
    if claimed and claimed != [sum(map(int, counts)) for counts in zip(*(each for _, each in counted), strict=True)]:
        raise CopyRefused(Refusal.PAGES, f"{name} has other definition levels than its histogram")


def _counted(
    page: Page, stored: bytes, highest: tuple[int, int], codec: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How often each repetition level and each definition level is in one page."""
    from icesize.parquet.format.hybrid import histogram  # needs numpy, which copying needs for nothing else

    repetition, definition = (_v2 if page.type == DATA_PAGE_V2 else _v1)(page, stored, codec)
    return histogram(repetition, highest[0], page.values), histogram(definition, highest[1], page.values)


def _v1(page: Page, stored: bytes, codec: int) -> tuple[bytes, bytes]:
    header, at = read_struct(stored)
    inner, _ = read_struct(raw_of(header, PageHeader.DATA_PAGE_HEADER, STRUCT))
    for encoding in (DataPageHeader.REPETITION_LEVEL_ENCODING, DataPageHeader.DEFINITION_LEVEL_ENCODING):
        if required_integer(inner, encoding) != RLE:
            raise CopyRefused(Refusal.PAGES, "levels of an old encoding")
    raw = decompressed(stored[at:], page.raw_size_bytes - page.header_bytes, codec)
    middle = 4 + int.from_bytes(raw[:4], "little")
    end = middle + 4 + int.from_bytes(raw[middle : middle + 4], "little")
    return raw[4:middle], raw[middle + 4 : end]


def _v2(_page: Page, stored: bytes, _codec: int) -> tuple[bytes, bytes]:
    header, at = read_struct(stored)
    inner, _ = read_struct(raw_of(header, PageHeader.DATA_PAGE_HEADER_V2, STRUCT))
    middle = at + max(0, required_integer(inner, DataPageHeaderV2.REPETITION_LEVELS_BYTE_LENGTH))
    end = middle + max(0, required_integer(inner, DataPageHeaderV2.DEFINITION_LEVELS_BYTE_LENGTH))
    return stored[at:middle], stored[middle:end]
