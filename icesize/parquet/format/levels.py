"""A check of the levels of columns in lists or maps against the footer: counts of rows, and of values per level.

A damaged level makes a row, or an entry of a list, more or less. Some rows of that file are wrong then. If another
file's rows followed it in one chunk, they would be wrong, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from icesize.parquet.format.fields import SizeStatistics
from icesize.parquet.format.footer import Chunk
from icesize.parquet.format.page_levels import levels_of
from icesize.parquet.format.pages import Page, walk
from icesize.parquet.format.refusals import CopyRefused, Refusal, damaged_as
from icesize.parquet.format.schema import Column
from icesize.parquet.format.sources import Readable
from icesize.parquet.format.thrift import Bytes, integers_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@damaged_as(Refusal.PAGES)
def check_levels(pages: Sequence[Page], data: Bytes, column: Column, chunk: Chunk, rows: int) -> None:
    """Check the levels in a chunk's data pages against its number of rows and its histogram of definition levels.

    Raises `CopyRefused` if the pages begin another number of rows, or if a histogram exists and differs from the
    levels. Pages are skipped if all of them have checksums, which `walk` has verified; Iceberg, Spark and icesize write
    checksums. Files of other writers cost their decompression.
    """
    if not column.levels[0] or all(page.has_checksum for page in pages):
        return
    counted = [_counted(page, memoryview(data), column.levels, chunk.codec) for page in pages if page.values]
    name, found = ".".join(column.path), sum(int(repetition[0]) for repetition, _ in counted)
    if found != rows:
        raise CopyRefused(Refusal.PAGES, f"{name} has {found} rows of {rows}")
    claimed = integers_of(chunk.size_statistics, SizeStatistics.DEFINITION_LEVEL_HISTOGRAM)
    if claimed and claimed != [sum(map(int, counts)) for counts in zip(*(each for _, each in counted), strict=True)]:
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
    if deleted is not None:
        return _count_kept(pages, data, column.levels, chunk.codec, deleted)
    entries = sum(page.values for page in pages)
    if not column.levels[1]:
        return entries, 0
    from icesize.parquet.format.hybrid import histogram

    runs = ((levels_of(data, page, column.levels, chunk.codec)[1], page.values) for page in pages)
    filled = sum(int(histogram(definition, column.levels[1], values)[-1]) for definition, values in runs)
    return entries, entries - filled


def _count_kept(
    pages: Sequence[Page], data: memoryview, highest: tuple[int, int], codec: int, deleted: NDArray[np.int64]
) -> tuple[int, int]:
    """Return the same as `count_levels`, without the entries of deleted rows."""
    import numpy as np

    from icesize.parquet.format.hybrid import decode

    kept, filled, first = 0, 0, 0
    for page in pages:
        levels = zip(levels_of(data, page, highest, codec), highest, strict=True)
        repetition, definition = (
            decode(runs, most.bit_length(), page.values) if most else np.zeros(page.values, np.uint32)
            for runs, most in levels
        )
        rows = first + np.cumsum(repetition == 0)
        first = int(rows[-1])
        stays = ~np.isin(rows - 1, deleted)
        kept += int(np.count_nonzero(stays))
        filled += int(np.count_nonzero(definition[stays] == highest[1]))
    return kept, kept - filled


def _counted(
    page: Page, data: memoryview, highest: tuple[int, int], codec: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count each repetition level and each definition level of one page."""
    from icesize.parquet.format.hybrid import histogram  # imports numpy, which copying otherwise does not need

    repetition, definition = levels_of(data, page, highest, codec)
    return histogram(repetition, highest[0], page.values), histogram(definition, highest[1], page.values)
