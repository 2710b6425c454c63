"""The pages of a chunk under another dictionary: their indices change, and what they are compressed to.

Levels, nulls and the values that are meant stay, so statistics and bounds in page indexes stay true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from icesize.parquet.copying.column_plan import Piece
from icesize.parquet.format.fields import DataPageHeader, DataPageHeaderV2, PageHeader
from icesize.parquet.format.hybrid import bits_of, renumber
from icesize.parquet.format.page_index import offset_index, read_offset_index
from icesize.parquet.format.pages import (
    DATA_PAGE_V2,
    DICTIONARY_ENCODINGS,
    RLE,
    Page,
    Pages,
    compressed,
    decompressed,
    signed_checksum,
)
from icesize.parquet.format.refusals import CopyRefused, Refusal, malformed_as
from icesize.parquet.format.schema import Column
from icesize.parquet.format.thrift import (
    STRUCT,
    Fields,
    boolean,
    i32,
    raw_of,
    read_struct,
    required_integer,
    write_struct,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@malformed_as(Refusal.PAGES)
def renumbered(piece: Piece, numbers: NDArray[np.uint16], column: Column, level: int | None) -> Piece:
    """The same chunk with the index `numbers[i]` for each index i, compressed at this `level`.

    Pages that do not hold indices are copied, and so is the old dictionary in front of them. Raises `CopyRefused` for
    pages that are not what their headers say.
    """
    change = _Change(numbers, bits_of(numbers), column.levels, piece.chunk.codec, level)
    pages = piece.pages.data
    data = bytearray(piece.data[: pages[0].at])
    moved: list[Page] = []
    for page in pages:
        stored = bytes(piece.data[page.at : page.at + page.size_bytes])
        if page.encoding in DICTIONARY_ENCODINGS and page.values:
            stored, page = change.page(stored, page)
        moved.append(replace(page, at=len(data)))
        data += stored
    index = piece.offset_index
    if index is not None and not column.flat:
        index = _moved(index, piece.chunk.start, pages, moved)
    return replace(piece, data=memoryview(data), pages=Pages(piece.pages.dictionary, moved), offset_index=index)


@dataclass(frozen=True, slots=True)
class _Change:
    """What becomes of the pages of one chunk; `levels` are the highest of its column."""

    numbers: NDArray[np.uint16]
    bits: int
    levels: tuple[int, int]
    codec: int
    level: int | None

    def page(self, stored: bytes, page: Page) -> tuple[bytes, Page]:
        """A page of indices, header and body as stored, and what it is now."""
        fields, at = read_struct(stored)
        raw_size_bytes = page.raw_size_bytes - page.header_bytes
        change = self._v2 if page.type == DATA_PAGE_V2 else self._v1
        body, raw_size_bytes = change(fields, stored[at:], raw_size_bytes)
        fields[PageHeader.UNCOMPRESSED_PAGE_SIZE] = i32(raw_size_bytes)
        fields[PageHeader.COMPRESSED_PAGE_SIZE] = i32(len(body))
        if PageHeader.CRC in fields:
            fields[PageHeader.CRC] = i32(signed_checksum(body))
        header = write_struct(fields)
        stored, raw_size_bytes = header + body, len(header) + raw_size_bytes
        return stored, replace(page, header_bytes=len(header), size_bytes=len(stored), raw_size_bytes=raw_size_bytes)

    def _v1(self, fields: Fields, body: bytes, raw_size_bytes: int) -> tuple[bytes, int]:
        inner, _ = read_struct(raw_of(fields, PageHeader.DATA_PAGE_HEADER, STRUCT))
        raw = decompressed(body, raw_size_bytes, self.codec)
        values, at = required_integer(inner, DataPageHeader.NUM_VALUES), 0
        encodings = (DataPageHeader.REPETITION_LEVEL_ENCODING, DataPageHeader.DEFINITION_LEVEL_ENCODING)
        for highest, encoding in zip(self.levels, encodings, strict=True):
            if highest:
                if required_integer(inner, encoding) != RLE:
                    raise CopyRefused(Refusal.PAGES, "levels of an old encoding")
                at += 4 + int.from_bytes(raw[at : at + 4], "little")
        _check_levels(at, raw)
        changed = raw[:at] + self._indices(raw[at:], values)
        return compressed(changed, self.codec, self.level), len(changed)

    def _v2(self, fields: Fields, body: bytes, raw_size_bytes: int) -> tuple[bytes, int]:
        inner, _ = read_struct(raw_of(fields, PageHeader.DATA_PAGE_HEADER_V2, STRUCT))
        values = required_integer(inner, DataPageHeaderV2.NUM_VALUES)
        at = required_integer(inner, DataPageHeaderV2.DEFINITION_LEVELS_BYTE_LENGTH)
        at += required_integer(inner, DataPageHeaderV2.REPETITION_LEVELS_BYTE_LENGTH)
        _check_levels(at, body)
        if boolean(inner, DataPageHeaderV2.IS_COMPRESSED) is False:
            changed = self._indices(body[at:], values)
            return body[:at] + changed, at + len(changed)
        changed = self._indices(decompressed(body[at:], raw_size_bytes - at, self.codec), values)
        return body[:at] + compressed(changed, self.codec, self.level), at + len(changed)

    def _indices(self, raw: bytes, values: int) -> bytes:
        """The bits of an index, then the runs; a page of nulls may have neither."""
        if not raw:
            return raw
        return bytes([self.bits]) + renumber(raw[1:], raw[0], values, self.numbers, self.bits)


def _check_levels(size_bytes: int, page: bytes) -> None:
    if not 0 <= size_bytes <= len(page):
        raise CopyRefused(Refusal.PAGES, f"levels of {size_bytes} bytes in a page of {len(page)}")


def _moved(index: bytes, start: int, pages: Sequence[Page], moved: Sequence[Page]) -> bytes | None:
    """The offset index of pages that lie elsewhere in their chunk; None where it did not tell where they were."""
    locations, variable_bytes = read_offset_index(index)
    if [location.at - start for location in locations] != [page.at for page in pages]:
        return None
    new = [
        location._replace(at=start + page.at, size_bytes=page.size_bytes)
        for location, page in zip(locations, moved, strict=True)
    ]
    return offset_index(new, variable_bytes)
