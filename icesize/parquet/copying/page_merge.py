"""Large row groups made of the pages of small ones: nothing is decoded but columns whose dictionaries differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from icesize.parquet.copying.assembly import Assembly, ColumnPart, GroupPart
from icesize.parquet.copying.column_copy import CopiedColumn, Piece
from icesize.parquet.copying.column_plan import ColumnPlan, Part
from icesize.parquet.format.fields import RowGroup, Statistics
from icesize.parquet.format.footer import Chunk
from icesize.parquet.format.pages import dictionary_page
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.schema import Column
from icesize.parquet.format.sources import Source, read_ranges
from icesize.parquet.format.statistics import merge_statistics
from icesize.parquet.format.thrift import Fields, MalformedError, i64

_Indexes = dict[tuple[int, int], bytes]
"""(offset, length) in a file -> page index."""


def merge_row_groups(parts: Sequence[Part], plan: ColumnPlan, assembly: Assembly, *, level: int | None = None) -> int:
    """Write one row group of all parts, rows in their order, and add it to `assembly`; how many data pages were copied.

    `level` is the compression level of columns that are encoded again, None for the codec's own. Holds one column
    chunk of one part at a time, the page indexes of all, and one decoded column where the plan wants it. Bloom filters
    are dropped, since they are of the parts. Raises `CopyRefused`, also after some bytes were written.
    """
    try:
        return _merge(parts, plan, assembly, level)
    except MalformedError as error:
        raise CopyRefused(Refusal.CORRUPT_FOOTER, str(error)) from error


def runs_of(parts: Sequence[Part], rows_per_group: int, bytes_per_group: int) -> Iterator[list[Part]]:
    """The parts of each new row group, in their order: about equal ones, near the number of bytes and never above that
    of rows unless a single part is.
    """
    weights = [max(part.group.rows / rows_per_group, part.group.size_bytes / bytes_per_group) for part in parts]
    # a tenth more bytes than wanted are no reason for another row group
    share = sum(weights) / max(1, math.ceil(sum(weights) - 0.1))
    group: list[Part] = []
    filled, rows = 0.0, 0
    for part, weight in zip(parts, weights, strict=True):
        if group and (rows + part.group.rows > rows_per_group or filled + weight / 2 > share):
            yield group
            group, filled, rows = [], 0.0, 0
        group.append(part)
        filled, rows = filled + weight, rows + part.group.rows
    if group:
        yield group


def _merge(parts: Sequence[Part], plan: ColumnPlan, assembly: Assembly, level: int | None) -> int:
    start = assembly.position
    group = _Group(parts, plan, assembly, level)
    for top, leaves in groupby(enumerate(parts[0].footer.columns), key=lambda leaf: leaf[1].top):
        if top in plan.reencode:
            group.encode(top, list(leaves))
        else:
            for index, column in leaves:
                group.copy(index, column)
    fields: Fields = {RowGroup.TOTAL_BYTE_SIZE: i64(group.raw_size_bytes)}
    rows = sum(part.group.rows for part in parts)
    assembly.add(
        GroupPart(fields, group.columns, rows, start, assembly.position - start), reencoded=bool(plan.reencode)
    )
    return group.pages_copied


class _Group:
    """A row group while its columns are written."""

    def __init__(self, parts: Sequence[Part], plan: ColumnPlan, assembly: Assembly, level: int | None) -> None:
        self.columns: list[ColumnPart] = []
        self.raw_size_bytes = self.pages_copied = 0
        self._parts = parts
        self._plan = plan
        self._assembly = assembly
        self._level = level
        copied = [index for index, c in enumerate(parts[0].footer.columns) if c.top not in plan.reencode]
        self._indexes = [_read_indexes(part.source, [part.group.chunks[i] for i in copied]) for part in parts]

    def copy(self, index: int, column: Column) -> None:
        """Write a leaf column out of the pages of all parts."""
        column_copy = CopiedColumn(column, self._plan.dictionaries[index], self._assembly)
        for part, indexes in zip(self._parts, self._indexes, strict=True):
            column_copy.add(self._piece(part.source, part.group.chunks[index], part.group.rows, indexes))
        self.pages_copied += column_copy.pages
        self._add(column_copy)

    def encode(self, top: str, leaves: Sequence[tuple[int, Column]]) -> None:
        """Write all leaves of a top-level column out of its newly encoded pages."""
        from icesize.parquet.copying.reencode import reencode  # copying alone needs no pyarrow, which takes 100 MB

        again = reencode(self._parts, top, self._plan, self._level)
        indexes = _read_indexes(again.source, again.chunks)
        rows = sum(part.group.rows for part in self._parts)
        for (index, column), chunk, unbounded in zip(leaves, again.chunks, again.without_bounds, strict=True):
            column_copy = CopiedColumn(column, dictionary_page(again.source, chunk), self._assembly)
            column_copy.add(self._piece(again.source, chunk, rows, indexes))
            self._add(column_copy, self._null_count(index, column) if unbounded else None)

    def _add(self, column_copy: CopiedColumn, statistics: Fields | None = None) -> None:
        self.columns.append(column_copy.part(statistics))
        self.raw_size_bytes += column_copy.raw_size_bytes

    def _piece(self, source: Source, chunk: Chunk, rows: int, indexes: _Indexes) -> Piece:
        data = self._assembly.room(chunk.size_bytes)
        source.read_into(chunk.start, data)
        offsets = None if chunk.offset_index is None else indexes[chunk.offset_index]
        columns = None if chunk.column_index is None else indexes[chunk.column_index]
        return Piece(chunk, data, rows, offsets, columns)

    def _null_count(self, index: int, column: Column) -> Fields | None:
        """What the older statistics say that needs no bounds."""
        chunks = [part.group.chunks[index] for part in self._parts]
        known = merge_statistics(column.element, [(chunk.statistics, chunk.values) for chunk in chunks]) or {}
        return {Statistics.NULL_COUNT: known[Statistics.NULL_COUNT]} if Statistics.NULL_COUNT in known else None


def _read_indexes(source: Source, chunks: Sequence[Chunk]) -> _Indexes:
    ranges = {place for chunk in chunks for place in (chunk.offset_index, chunk.column_index) if place is not None}
    return read_ranges(source, ranges)
