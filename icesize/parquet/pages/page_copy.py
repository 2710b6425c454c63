"""Large row groups made of the stored pages of small ones.

`column_plan` names the columns that are encoded again instead, such as those with deleted rows or other dictionaries.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import compress

from icesize.parquet.format.fields import ColumnChunk, ColumnMetaData, PageEncodingStats, RowGroup
from icesize.parquet.format.footer import Chunk
from icesize.parquet.format.levels import check_levels
from icesize.parquet.format.page_index import PageLocation, concatenate, offset_index, read_offset_index
from icesize.parquet.format.pages import (
    DICTIONARY_ENCODINGS,
    DICTIONARY_PAGE,
    LEVEL_ENCODINGS,
    DictionaryPage,
    Page,
    Pages,
    walk,
)
from icesize.parquet.format.refusals import CopyRefused, Refusal, damaged_as
from icesize.parquet.format.schema import Column
from icesize.parquet.format.sources import Source, read_ranges
from icesize.parquet.format.statistics import merge_size_statistics, merge_statistics
from icesize.parquet.format.thrift import I32, Fields, i32, i64, integers_field, struct_field, structs_field
from icesize.parquet.pages.column_plan import ColumnPlan, Part, Piece
from icesize.parquet.row_groups.assembly import Assembly, ColumnPart, GroupPart
from icesize.parquet.row_groups.compatibility import check_encoding, index_fits
from icesize.parquet.row_groups.footer_lineage import LINEAGE_COLUMNS

Indexes = dict[tuple[int, int], bytes]
"""(offset, length) in a file -> page index."""


@damaged_as(Refusal.CORRUPT_FOOTER)
def merge_row_groups(
    parts: Sequence[Part],
    plan: ColumnPlan,
    assembly: Assembly,
    changed: Iterator[list[Piece]],
) -> int:
    """Write one row group of all parts, rows in their order, and return the number of data pages copied.

    The row group is added to `assembly`. Memory holds one column chunk of one part at a time, and the page indexes of
    all parts. `changed` yields the chunks of columns that change, in the order of columns and parts, and after these
    the chunks of the row lineage. A column that is encoded again has one chunk for all parts. Bloom filters are
    dropped, because each covers one part only. Raises `CopyRefused`, possibly after some bytes were written.
    """
    start, columns, pages_copied, made = assembly.position, list[ColumnPart](), 0, deque[Piece]()
    copied = [column.top not in plan.reencode for column in parts[0].footer.columns]
    indexes = [read_indexes(part.source, [*compress(part.group.chunks, copied)]) for part in parts]
    for index, column in enumerate(parts[0].footer.columns):
        if not copied[index]:
            if not made:
                made.extend(next(changed))
            columns.append(_write_made(column, [made.popleft()], assembly))
            continue
        column_copy = CopiedColumn(column, plan.leaves[index].dictionary, assembly)
        for part, stored in zip(parts, indexes, strict=True):
            chunk = part.group.chunks[index]
            room = assembly.room(chunk.size_bytes)
            column_copy.add(read_piece(part.source, chunk, part.group.rows, column, stored, room))
        pages_copied += column_copy.pages
        columns.append(column_copy.part())
    if parts[0].inherited is not None:
        columns += write_lineage(changed, assembly)
    fields: Fields = {RowGroup.TOTAL_BYTE_SIZE: i64(sum(column.raw_size_bytes for column in columns))}
    rows = sum(part.rows for part in parts)
    assembly.add(GroupPart(fields, columns, rows, start, assembly.position - start), reencoded=bool(plan.reencode))
    return pages_copied


def runs_of(parts: Sequence[Part], rows_per_group: int, bytes_per_group: int) -> Iterator[list[Part]]:
    """Yield the parts of each new row group, in their order.

    Row groups are about equal, near `bytes_per_group`, and never above `rows_per_group` unless a single part is.
    """
    weights = [max(part.rows / rows_per_group, part.group.size_bytes / bytes_per_group) for part in parts]
    # a tenth more bytes than wanted do not justify another row group
    share = sum(weights) / max(1, math.ceil(sum(weights) - 0.1))
    group: list[Part] = []
    filled, rows = 0.0, 0
    for part, weight in zip(parts, weights, strict=True):
        if group and (rows + part.rows > rows_per_group or filled + weight / 2 > share):
            yield group
            group, filled, rows = [], 0.0, 0
        group.append(part)
        filled, rows = filled + weight, rows + part.rows
    if group:
        yield group


def write_lineage(made: Iterator[list[Piece]], assembly: Assembly) -> list[ColumnPart]:
    """Write the columns of the row lineage of one row group; `made` yields the chunks of each."""
    return [_write_made(column, next(made), assembly) for column in LINEAGE_COLUMNS]


def _write_made(column: Column, pieces: Sequence[Piece], assembly: Assembly) -> ColumnPart:
    """Write a column that was made; its dictionary is that of the first piece."""
    page = pieces[0].pages.dictionary
    made = CopiedColumn(column, None if page is None else DictionaryPage.of(page, pieces[0].data), assembly)
    for piece in pieces:
        made.add(piece)
    return made.part()


def read_indexes(source: Source, chunks: Sequence[Chunk]) -> Indexes:
    """Return the page indexes of some chunks of one file."""
    ranges = {place for chunk in chunks for place in (chunk.offset_index, chunk.column_index) if place is not None}
    return read_ranges(source, ranges)


def read_piece(source: Source, chunk: Chunk, rows: int, column: Column, indexes: Indexes, room: memoryview) -> Piece:
    """Return a chunk, read into `room`."""
    source.read_into(chunk.start, room)
    offsets = None if chunk.offset_index is None else indexes[chunk.offset_index]
    columns = None if chunk.column_index is None else indexes[chunk.column_index]
    return Piece(chunk, room, walk(room, column.flat, chunk.values), rows, offsets, columns)


_KEPT = (ColumnMetaData.TYPE, ColumnMetaData.PATH_IN_SCHEMA, ColumnMetaData.CODEC)
"""Fields that the new chunk has as its parts have them; all others are computed again or do not apply to it."""


class CopiedColumn:
    """Writes the pages of one column, piece by piece, and then describes them; holds indexes, never pages.

    `dictionary` is written first, whichever piece it is from. Raises `CopyRefused` for pages that must not follow each
    other, or that would have other values at the new position.
    """

    def __init__(self, column: Column, dictionary: DictionaryPage | None, assembly: Assembly) -> None:
        self.raw_size_bytes: int = 0
        self._column = column
        self._dictionary = dictionary
        self._assembly = assembly
        self._start = self._first_data = assembly.position
        self._chunks: list[Chunk] = []
        self._rows = 0
        self._pages: Counter[tuple[int, int]] = Counter()
        self._level_encodings: set[int] = set()
        self._after_plain = False
        self._locations: list[PageLocation] | None = []
        self._column_indexes: list[bytes] | None = []
        self._page_counts: list[int] = []
        if dictionary is not None:
            assembly.write(dictionary.page)
            self.raw_size_bytes += dictionary.raw_size_bytes
            self._pages[DICTIONARY_PAGE, dictionary.encoding] = 1
            self._first_data = assembly.position

    @property
    def pages(self) -> int:
        """Data pages written so far."""
        return sum(self._page_counts)

    def add(self, piece: Piece) -> None:
        pages = piece.pages
        self._check(pages, piece)
        self._index(pages.data, piece)
        # pyarrow sometimes writes a page without values, and not all readers accept it
        filled = [page for page in pages.data if page.values]
        self._count(filled)
        if len(filled) == len(pages.data):
            self._assembly.write(piece.data[filled[0].at :])
        else:
            for page in filled:
                self._assembly.write(piece.data[page.at : page.at + page.size_bytes])
        self._level_encodings |= LEVEL_ENCODINGS & piece.chunk.encodings
        self._chunks.append(piece.chunk)
        self._rows += piece.rows

    def part(self) -> ColumnPart:
        """Describe the chunk."""
        offsets = columns = None
        if self._locations is not None:
            offsets = offset_index(self._locations, None)
            if self._column_indexes is not None:
                columns = concatenate(self._column_indexes, self._page_counts)
        return ColumnPart({ColumnChunk.FILE_OFFSET: i64(0)}, self._metadata(), None, offsets, columns)

    def _check(self, pages: Pages, piece: Piece) -> None:
        if not any(page.values for page in pages.data):
            raise CopyRefused(Refusal.PAGES, "a chunk without data pages")
        if pages.dictionary is not None and self._dictionary is None:
            raise CopyRefused(Refusal.PAGES, "a dictionary that the footer does not mention")
        check_levels(pages.data, piece.data, self._column, piece.chunk, piece.rows)
        for page in pages.data:
            self._check_encoding(page.encoding, pages.dictionary is not None)

    def _check_encoding(self, encoding: int, has_dictionary: bool) -> None:
        check_encoding(self._column, encoding)
        if encoding not in DICTIONARY_ENCODINGS:
            self._after_plain = True
        elif not has_dictionary:
            raise CopyRefused(Refusal.PAGES, "a page needs a dictionary that its chunk does not have")
        elif self._after_plain:  # checked here, because the footer may be wrong
            raise CopyRefused(Refusal.DICTIONARY_ORDER, ".".join(self._column.path))

    def _count(self, pages: Sequence[Page]) -> None:
        for page in pages:
            self._pages[page.type, page.encoding] += 1
            self.raw_size_bytes += page.raw_size_bytes
        self._page_counts.append(len(pages))

    def _index(self, pages: Sequence[Page], piece: Piece) -> None:
        """Keep the data for the new page indexes; after one piece without an index, there is no new index."""
        first_rows = _first_rows(piece)
        if first_rows is None or self._locations is None:
            self._locations = None
        else:
            self._locations += self._moved(pages, first_rows)
        filled = all(page.values for page in pages)
        bounds = piece.column_index if filled and self._column_indexes is not None else None
        if self._column_indexes is not None and bounds is not None and index_fits(bounds, len(pages), self._column):
            self._column_indexes.append(bounds)
        else:
            self._column_indexes = None

    def _moved(self, pages: Sequence[Page], first_rows: Sequence[int]) -> Iterator[PageLocation]:
        at = self._assembly.position
        for page, first in zip(pages, first_rows, strict=True):
            if page.values:
                yield PageLocation(at, page.size_bytes, self._rows + first)
                at += page.size_bytes

    def _metadata(self) -> Fields:
        first = self._chunks[0]
        fields = {field_id: first.metadata[field_id] for field_id in _KEPT}
        encodings = self._level_encodings | {encoding for _, encoding in self._pages}
        fields[ColumnMetaData.ENCODINGS] = integers_field(sorted(encodings), I32)
        fields[ColumnMetaData.NUM_VALUES] = i64(sum(chunk.values for chunk in self._chunks))
        fields[ColumnMetaData.TOTAL_UNCOMPRESSED_SIZE] = i64(self.raw_size_bytes)
        fields[ColumnMetaData.TOTAL_COMPRESSED_SIZE] = i64(self._assembly.position - self._start)
        fields[ColumnMetaData.DATA_PAGE_OFFSET] = i64(self._first_data)
        if self._dictionary is not None:
            fields[ColumnMetaData.DICTIONARY_PAGE_OFFSET] = i64(self._start)
        counted = [(chunk.statistics, chunk.values) for chunk in self._chunks]
        statistics = merge_statistics(self._column.element, counted)
        if statistics is not None:
            fields[ColumnMetaData.STATISTICS] = struct_field(statistics)
        fields[ColumnMetaData.ENCODING_STATS] = structs_field(
            {
                PageEncodingStats.PAGE_TYPE: i32(kind),
                PageEncodingStats.ENCODING: i32(encoding),
                PageEncodingStats.COUNT: i32(self._pages[kind, encoding]),
            }
            for kind, encoding in sorted(self._pages, key=lambda page: (page[0] != DICTIONARY_PAGE, page))
        )
        sizes = merge_size_statistics(self._chunks)
        if sizes is not None:
            fields[ColumnMetaData.SIZE_STATISTICS] = struct_field(sizes)
        return fields


def _first_rows(piece: Piece) -> list[int] | None:
    """Return the first row of each page, from the offset index if the pages do not show it; None if it is unknown."""
    pages, known = piece.pages.data, piece.pages.first_rows(piece.rows)
    if known is not None:
        return known
    stored = [] if piece.offset_index is None else read_offset_index(piece.offset_index)[0]
    if [place.at - piece.chunk.start for place in stored] != [page.at for page in pages]:
        return None
    firsts = [place.first_row for place in stored]
    last = max(first for page, first in zip(pages, firsts, strict=True) if page.values)
    return firsts if firsts[0] == 0 and firsts == sorted(firsts) and last < piece.rows else None
