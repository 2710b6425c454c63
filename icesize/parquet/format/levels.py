"""The repetition and definition levels of data pages, and a check of them against the footer.

A damaged level makes a row, or an entry of a list, more or less. Some rows of that file are wrong then. If another
file's rows followed it in one chunk, they would also be wrong.

Levels are stored in runs of one level, and bit-packed in groups of eight (parquet-format, Encodings.md, "Run Length
Encoding / Bit-Packing Hybrid"). They are decoded here because no library returns the levels of a page.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from icesize.parquet.format.fields import DataPageHeader, DataPageHeaderV2, SizeStatistics
from icesize.parquet.format.footer import Chunk
from icesize.parquet.format.pages import DATA_PAGE_V2, INNER_HEADERS, RLE, Page, decompressed, walk
from icesize.parquet.format.refusals import CopyRefused, DamagedFile, Refusal, damaged_as
from icesize.parquet.format.schema import Column
from icesize.parquet.format.sources import Readable
from icesize.parquet.format.thrift import (
    STRUCT,
    Bytes,
    Fields,
    integers_of,
    raw_of,
    read_struct,
    read_varint,
    required_integer,
)

_LENGTH_BYTES = 4
Levels = NDArray[np.uint8]


@damaged_as(Refusal.PAGES)
def check_levels(pages: Sequence[Page], data: Bytes, column: Column, chunk: Chunk, rows: int) -> None:
    """Check the levels in a chunk's data pages against its number of rows and its histogram of definition levels.

    Raises `CopyRefused` if the pages begin another number of rows, or if a histogram exists and differs from the
    levels. Pages are skipped if all of them have checksums, which `walk` has verified; Iceberg, Spark and icesize write
    checksums. Files of other writers cost their decompression.
    """
    if not column.levels[0] or all(page.checksum is not None for page in pages):
        return
    name, found, counts = ".".join(column.path), 0, np.zeros(column.levels[1] + 1, np.int64)
    for page in pages:
        if page.values:
            repetition, definition = _levels_of(memoryview(data), page, column.levels, chunk.codec)
            found += int(np.count_nonzero(repetition == 0))
            counts += np.bincount(definition, minlength=len(counts))
    if found != rows:
        raise CopyRefused(Refusal.PAGES, f"{name} has {found} rows of {rows}")
    claimed = integers_of(chunk.size_statistics, SizeStatistics.DEFINITION_LEVEL_HISTOGRAM)
    if claimed and claimed != counts.tolist():
        raise CopyRefused(Refusal.PAGES, f"{name} has other definition levels than its histogram")


@damaged_as(Refusal.PAGES)
def count_levels(
    source: Readable, chunk: Chunk, column: Column, deleted: NDArray[np.int64] | None = None
) -> tuple[int, int]:
    """Return the number of entries of a chunk of `source`, and the number without a value, from its levels.

    Rows at the positions `deleted` do not count. Raises `CopyRefused` for pages that contradict their headers.
    """
    data = memoryview(source.read(chunk.start, chunk.size_bytes))
    pages = [page for page in walk(data, column.flat, chunk.values).data if page.values]
    if deleted is None and not column.levels[1]:
        return chunk.values, 0
    kept = filled = first = 0
    for page in pages:
        repetition, definition = _levels_of(data, page, column.levels, chunk.codec)
        if deleted is not None:
            rows = first + np.cumsum(repetition == 0)
            first = int(rows[-1])
            definition = definition[~np.isin(rows - 1, deleted)]
        kept += len(definition)
        filled += int(np.count_nonzero(definition == column.levels[1]))
    return kept, kept - filled


def _levels_of(chunk: memoryview, page: Page, highest: tuple[int, int], codec: int) -> tuple[Levels, Levels]:
    """Return the repetition levels and the definition levels of a data page, 0 if the column has none.

    `highest` are the highest levels of its column. Values are decompressed only if levels are compressed with them.
    Raises `CopyRefused` and `DamagedFile` for a page that contradicts its header.
    """
    start = page.at + page.header_bytes
    header, _ = read_struct(bytes(chunk[page.at : start]))
    inner, _ = read_struct(raw_of(header, INNER_HEADERS[page.type], STRUCT))
    body = chunk[start : page.at + page.size_bytes]
    if page.type == DATA_PAGE_V2:
        runs = _v2_runs(inner, body)
    else:
        raw = memoryview(decompressed(body, page.raw_size_bytes - page.header_bytes, codec))
        runs = _v1_runs(inner, raw, highest)
    repetition, definition = (decode(part, most, page.values) for part, most in zip(runs, highest, strict=True))
    return repetition, definition


def _v1_runs(inner: Fields, raw: memoryview, highest: tuple[int, int]) -> list[bytes]:
    """Return the runs of both levels, each empty if the column has none."""
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


def _v2_runs(inner: Fields, body: memoryview) -> list[bytes]:
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


def decode(data: bytes, highest: int, count: int) -> Levels:
    """Return the first `count` levels of some runs; a column whose `highest` level is 0 has no runs.

    Raises `DamagedFile` for fewer levels, for higher levels, and for runs that are cut off.
    """
    if not highest:
        return np.zeros(count, np.uint8)
    bits, size = highest.bit_length(), len(data)
    lengths, single, packed = list[int](), list[int](), list[bytes]()
    seen = at = 0
    while seen < count:
        if at < size and data[at] < 128:  # nearly all; there may be a run for every ten levels
            header, body = data[at], at + 1
        else:
            header, body = read_varint(data, at)
        run = header >> 1
        at = body + run * bits if header & 1 else body + 1
        if at > size or not run:
            raise DamagedFile("a run is cut off or empty")
        if header & 1:
            packed.append(data[body:at])
            run, level = run * 8, _PACKED
        else:
            run, level = min(run, count - seen), data[body]
        lengths.append(run)
        single.append(level)
        seen += run
    levels: Levels = np.repeat(np.array(single, np.int16), lengths).astype(np.uint8)
    if packed:
        is_packed = np.repeat(np.array(single) == _PACKED, lengths)
        levels[is_packed] = _unpacked(np.frombuffer(b"".join(packed), np.uint8), bits)
    levels = levels[:count]
    if levels.max(initial=0) > highest:
        raise DamagedFile(f"a level is higher than {highest}")
    return levels


_PACKED = -1
"""The mark of a bit-packed run among levels."""


def _unpacked(packed: Levels, bits: int) -> Levels:
    """Return the values of groups of eight, each value of at most eight bits."""
    values = np.zeros((len(packed) // bits, 8), np.uint8)
    padded = np.append(packed, np.uint8(0))
    for nth in range(8):
        byte, shift = divmod(nth * bits, 8)
        window = np.ndarray((len(values),), "<u2", padded.data, byte, (bits,))
        values[:, nth] = window >> np.uint16(shift) & np.uint16((1 << bits) - 1)
    return values.reshape(-1)
