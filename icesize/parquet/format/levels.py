"""What the levels of a column in lists or maps say, held against the footer: of rows, and of values at each level.

A damaged level makes a row, or an entry of a list, more or less. Its file has some rows wrong then; behind it in one
chunk, the rows of other files would be wrong, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from icesize.parquet.format.fields import SizeStatistics
from icesize.parquet.format.footer import Chunk
from icesize.parquet.format.page_body import levels_of
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
    """Raise `CopyRefused` where the data pages of a chunk do not begin so many rows, or have other definition levels
    than its histogram says, where it has one.

    Pages that all have checksums, which are right by now, are not looked into: those of Iceberg, Spark and icesize
    have. For others that costs decompressing them.
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
    """Return how many entries a chunk of `source` has, and how many of them have no value, by the levels in its pages.

    Rows at the places `deleted` do not count. Raises `CopyRefused` for pages that are not what their headers say.
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
    """The same without the entries of some rows."""
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
    """How often each repetition level and each definition level is in one page."""
    from icesize.parquet.format.hybrid import histogram  # needs numpy, which copying needs for nothing else

    repetition, definition = levels_of(data, page, highest, codec)
    return histogram(repetition, highest[0], page.values), histogram(definition, highest[1], page.values)
