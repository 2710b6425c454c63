"""The columns of a row group that change.

Their pages lose deleted rows, or the column is encoded again. If rows are removed, null counts and bounds of the chunk
are those of the rows that stay. So are the null counts of its pages, but the bounds of a page may be wider than its
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icesize.parquet.editing.column_plan import ColumnPlan, Part, Piece
from icesize.parquet.editing.lineage import lineage_works
from icesize.parquet.editing.page_copy import read_indexes, read_piece
from icesize.parquet.editing.reencode import reencode
from icesize.parquet.format.fields import ColumnMetaData, Statistics
from icesize.parquet.format.hybrid import decode, encode, histogram, repeat, repeated
from icesize.parquet.format.page_body import PageBody, page_body
from icesize.parquet.format.page_index import PageCounts, with_counts
from icesize.parquet.format.page_values import Indices, Values, coded_values, plain_values
from icesize.parquet.format.pages import DICTIONARY_ENCODINGS, PLAIN, DictionaryPage, Page, Pages
from icesize.parquet.format.refusals import CopyRefused, DamagedFile, Refusal, damaged_as
from icesize.parquet.format.schema import Column
from icesize.parquet.format.statistics import Order, count_of, order_of
from icesize.parquet.format.thrift import (
    Bytes,
    Fields,
    binary,
    boolean_field,
    bytes_field,
    i64,
    struct_field,
)

_MOST_PARTS, _MOST_BYTES = 8, 2**20
"""Parts and bytes of one leaf column that are made at once: several of these are in memory, up to two per thread."""

Work: TypeAlias = "Callable[[int | None], list[Piece]]"
"""Makes the chunks of some columns and parts, with this compression level."""


def works(parts: Sequence[Part], plan: ColumnPlan) -> Iterator[Work]:
    """Yield the work to do, in the order in which `merge_row_groups` uses its results: the row lineage comes last."""
    leaves = enumerate(parts[0].footer.columns)
    for top, indices in groupby((index for index, _ in leaves), key=lambda i: parts[0].footer.columns[i].top):
        if top in plan.reencode:
            yield partial(reencode, parts, top, plan)
            continue
        for index in indices:
            if not plan.is_copied(index, parts):
                yield from (partial(_pieces, some, index) for some in _together(parts, index))
    yield from lineage_works(parts)


def _together(parts: Sequence[Part], index: int) -> Iterator[list[Part]]:
    """Yield the parts that are processed together."""
    some, size_bytes = list[Part](), 0
    for part in parts:
        chunk_bytes = part.group.chunks[index].size_bytes
        if some and (len(some) == _MOST_PARTS or size_bytes + chunk_bytes > _MOST_BYTES):
            yield some
            some, size_bytes = [], 0
        some.append(part)
        size_bytes += chunk_bytes
    if some:
        yield some


def _pieces(parts: Sequence[Part], index: int, level: int | None) -> list[Piece]:
    # one buffer for all parts, because touching new memory costs as much as reading
    room = memoryview(bytearray(max(part.group.chunks[index].size_bytes for part in parts)))
    return [_piece(part, index, level, room) for part in parts]


def _piece(part: Part, index: int, level: int | None, room: memoryview) -> Piece:
    """Return a chunk in its written form; a chunk that changes is read into `room` and does not stay there."""
    column, chunk = part.footer.columns[index], part.group.chunks[index]
    indexes = read_indexes(part.source, [chunk])
    room = room[: chunk.size_bytes] if part.deleted else memoryview(bytearray(chunk.size_bytes))
    piece = read_piece(part.source, chunk, part.group.rows, column, indexes, room)
    return cut(piece, part.deleted_rows, column, level) if part.deleted else piece


@damaged_as(Refusal.PAGES)
def cut(piece: Piece, deleted: Indices, column: Column, level: int | None) -> Piece:
    """Return the same chunk of a flat column without the rows at the positions `deleted`.

    Changed pages are compressed at this `level`; the others are copied. Raises `CopyRefused` for pages that do not
    match their headers, and for deleted rows in pages that are neither PLAIN nor encoded with a dictionary.
    """
    chunk, bounds = _Chunk(piece, column), _Bounds.of(piece, column)
    stored, pages, counts, nulls, at = list[Bytes](), list[Page](), list[PageCounts | None](), 0, 0
    for page, gone in chunk.pages(deleted):
        left = None
        data: list[Bytes] = [piece.data[page.at : page.at + page.size_bytes]]
        if len(gone):
            opened = chunk.opened(page)
            values = opened.of_values(gone)
            bounds.leave(opened.values, values, opened.count)
            nulls += len(gone) - len(values)
            left = opened.leave(gone, values)
            opened.check(gone, left)
            data, page = opened.body.stored(page, piece.chunk.codec, level)
            page = replace(page, values=left.values, rows=left.values)
        counts.append(left)
        if left is None or left.values:
            pages.append(replace(page, at=at))
            stored += data
            at += page.size_bytes
    piece = replace(piece, data=memoryview(b"".join(stored)), pages=Pages(piece.pages.dictionary, pages))
    if bounds.in_doubt:
        bounds.be(end for page, gone in chunk.pages(deleted) for end in chunk.ends(page, gone))
    rows = piece.rows - len(deleted)
    metadata = {k: v for k, v in piece.chunk.metadata.items() if k != ColumnMetaData.SIZE_STATISTICS}
    metadata[ColumnMetaData.STATISTICS] = struct_field(bounds.statistics(nulls))
    return replace(
        piece,
        chunk=replace(piece.chunk, metadata=metadata, values=rows),
        rows=rows,
        offset_index=None,
        column_index=None if piece.column_index is None else with_counts(piece.column_index, counts),
    )


@dataclass(slots=True)
class _Opened:
    """A page of `rows` rows without compression.

    `levels` are the definition level of each row, None if no value is null. `count` is the number of `values`.
    """

    body: PageBody
    rows: int
    levels: NDArray[np.uint32] | None
    values: Values
    count: int

    def of_values(self, rows: Indices) -> Indices:
        """Return the positions of the rows' values among all values."""
        if self.levels is None:
            return rows
        filled = self.levels == self.body.highest[1]
        values: Indices = (np.cumsum(filled) - 1)[rows[filled[rows]]]
        return values

    def leave(self, rows: Indices, values: Indices) -> PageCounts:
        """Remove rows and their values, and return the counts that are left."""
        left, bits = self.rows - len(rows), self.body.highest[1].bit_length()
        if self.count:
            self.body.values = self.values.without(values)
        if self.levels is not None:
            self.body.levels[1] = encode(np.delete(self.levels, rows), bits)
        elif runs := self.body.levels[1]:
            self.body.levels[1] = repeat(repeated(runs, self.rows) or b"", left)
        counts = PageCounts(left, left - self.count + len(values))
        self.body.cut(*counts)
        return counts

    def check(self, gone: Indices, left: PageCounts) -> None:
        """Raise `CopyRefused` unless the page has the levels of all rows except the removed ones, counted as `left`."""
        runs, highest = self.body.levels[1], self.body.highest[1]
        nulls = np.zeros(self.rows, bool) if self.levels is None else self.levels != highest
        kept = self.rows - len(gone), int(np.count_nonzero(nulls)) - int(np.count_nonzero(nulls[gone]))
        stored = 0
        if runs or self.levels is not None:
            stored = left.values - int(histogram(runs, highest, left.values)[-1])
        if not kept == left == (left.values, stored):
            raise CopyRefused(Refusal.COUNTS, f"{left} of {kept} rows and NULLs")


class _Chunk:
    """The pages of a chunk, stored or opened."""

    def __init__(self, piece: Piece, column: Column) -> None:
        self._piece = piece
        self._column = column
        self._codec = piece.chunk.codec

    def pages(self, deleted: Indices) -> Iterator[tuple[Page, Indices]]:
        """Yield each page with the positions of its rows that are deleted."""
        first = start = 0
        for page in self._piece.pages.data:
            end = int(np.searchsorted(deleted, first + page.values))
            yield page, deleted[start:end] - first
            first, start = first + page.values, end

    def opened(self, page: Page) -> _Opened:
        """Open a page; raises `DamagedFile` or `CopyRefused`."""
        body = page_body(self._piece.data, page, self._column.levels, self._codec)
        levels, count = self._levels(body, page), page.values
        if levels is not None:
            count = int(np.count_nonzero(levels == body.highest[1]))
        [values] = body.values
        return _Opened(body, page.values, levels, self._values(values, page, count), count)

    def ends(self, page: Page, gone: Indices) -> list[bytes]:
        """Return the least and the greatest value of a page, without the removed rows."""
        opened = self.opened(page)
        return opened.values.ends(_others(opened.of_values(gone), opened.count))

    @cached_property
    def _entries(self) -> tuple[Values, int]:
        stored = self._piece.pages.dictionary
        page = None if stored is None else DictionaryPage.of(stored, self._piece.data)
        if page is None or not page.is_plain:
            raise CopyRefused(Refusal.PAGES, "a dictionary that cannot be read")
        return plain_values(page.entries(self._codec), page.values, self._column.element), page.values

    def _levels(self, body: PageBody, page: Page) -> NDArray[np.uint32] | None:
        runs, highest = body.levels[1], body.highest[1]
        if not runs or repeated(runs, page.values) == bytes([highest]):
            return None
        levels = decode(runs, highest.bit_length(), page.values)
        if levels.max(initial=0) > highest:
            raise DamagedFile(f"a level is higher than {highest}")
        return levels

    def _values(self, raw: Bytes, page: Page, count: int) -> Values:
        if page.encoding in DICTIONARY_ENCODINGS:
            return coded_values(raw, count, *self._entries)
        if page.encoding != PLAIN:
            raise CopyRefused(Refusal.PAGES, f"encoding {page.encoding}")
        return plain_values(raw, count, self._column.element)


@dataclass(slots=True)
class _Bounds:
    """The bounds of a chunk while values are removed.

    A bound stays, unless a removed value may have been the outermost one and no value that stays is equal to it.
    """

    fields: Fields
    nulls: int | None
    order: Order | None
    ends: tuple[Any, Any]
    lost: tuple[bool, bool] = (False, False)
    found: tuple[bool, bool] = (False, False)

    @staticmethod
    def of(piece: Piece, column: Column) -> _Bounds:
        """Return the bounds in a chunk's statistics; none if their order is unknown."""
        fields, order = piece.chunk.statistics, order_of(column.element)
        _, nulls = count_of(piece.chunk, column)
        lower, upper = binary(fields, Statistics.MIN_VALUE), binary(fields, Statistics.MAX_VALUE)
        if order is None or lower is None or upper is None:
            return _Bounds(fields, nulls, None, (None, None))
        return _Bounds(fields, nulls, order, (order(lower), order(upper)))

    @property
    def in_doubt(self) -> bool:
        """True if a bound may be that of a removed value."""
        return any(lost and not found for lost, found in zip(self.lost, self.found, strict=True))

    def leave(self, values: Values, gone: Indices, count: int) -> None:
        """Record that some of the `count` values of a page are removed."""
        if self.order is None or not any(reached := self._reached(values.ends(gone))):
            return
        self.lost = (self.lost[0] or reached[0], self.lost[1] or reached[1])
        reached = self._reached(values.ends(_others(gone, count)))
        self.found = (self.found[0] or reached[0], self.found[1] or reached[1])

    def _reached(self, ends: list[bytes]) -> tuple[bool, bool]:
        """Return whether values with these ends reach the lower bound, and the upper bound."""
        if self.order is None or not ends:
            return False, False
        lower, upper = self.ends
        least, greatest = map(self.order, ends)
        return least <= lower, greatest >= upper

    def be(self, ends: Iterable[bytes]) -> None:
        """Set the bounds to those of all values that stay; `ends` are the outermost values of each page."""
        found = sorted(ends, key=self.order)
        self.fields = {k: v for k, v in self.fields.items() if k == Statistics.NULL_COUNT}
        if found:
            self.fields |= {
                Statistics.MIN_VALUE: bytes_field(found[0]),
                Statistics.MAX_VALUE: bytes_field(found[-1]),
                Statistics.IS_MIN_VALUE_EXACT: boolean_field(True),
                Statistics.IS_MAX_VALUE_EXACT: boolean_field(True),
            }

    def statistics(self, nulls_gone: int) -> Fields:
        """Return the statistics of the values that stay."""
        if self.nulls is None:
            return self.fields
        return {**self.fields, Statistics.NULL_COUNT: i64(self.nulls - nulls_gone)}


def _others(gone: Indices, count: int) -> Indices:
    return np.delete(np.arange(count), gone)
