"""The choice for each column of a row group: made of pages of older ones, or encoded again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from icesize.parquet.format.footer import Chunk, Footer, RowGroup
from icesize.parquet.format.pages import DICTIONARY_ENCODINGS, DictionaryPage, Pages, data_encodings, dictionary_page
from icesize.parquet.format.refusals import Refusal
from icesize.parquet.format.schema import Column
from icesize.parquet.format.sources import Source
from icesize.parquet.row_groups.compatibility import common_encodings


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One row group that becomes part of a larger one, without the rows at the `deleted` positions.

    `inherited` are the row id of its first row, and the sequence number of the last change, that rows have without a
    stored lineage; None if the new file stores no lineage. `span` are its rows in their file, as
    `icesize.parquet.files.row_map` has them.
    """

    source: Source
    footer: Footer
    group: RowGroup
    deleted: BitMap | None = None
    inherited: tuple[int, int] | None = None
    span: tuple[str, int, int] = ("", 0, 0)

    @property
    def rows(self) -> int:
        """Rows that are not deleted."""
        return self.group.rows - len(self.deleted or ())

    @property
    def deleted_rows(self) -> NDArray[np.int64]:
        """Positions of the deleted rows."""
        return np.frombuffer((self.deleted or BitMap()).to_array(), np.uint32).astype(np.int64)


@dataclass(slots=True)
class Piece:
    """One chunk whose pages are copied: its bytes, the rows of its row group, and its page indexes, if any."""

    chunk: Chunk
    data: memoryview
    pages: Pages
    rows: int
    offset_index: bytes | None
    column_index: bytes | None


@dataclass(slots=True)
class ColumnPlan:
    """The way in which each column of one new row group is made.

    `reencode` maps the top-level columns that are encoded again to the reason (a value of `Refusal`). All other columns
    are copied, as `leaves` describes.
    """

    reencode: dict[str, str]
    leaves: list[LeafPlan]
    copied_bytes: int
    reencoded_bytes: int

    def copies(self, least_bytes: int, parts: Sequence[Part]) -> bool:
        """Return whether the copied columns have at least `least_bytes` of encoded values for each chunk of all parts.

        Fewer are decoded as fast as chunks are moved.
        """
        columns = parts[0].footer.columns
        copied = [index for index, column in enumerate(columns) if column.top not in self.reencode]
        raw_bytes = sum(part.group.chunks[index].raw_size_bytes for part in parts for index in copied)
        return raw_bytes >= least_bytes * len(parts) * len(self.leaves)


def plan_columns(parts: Sequence[Part]) -> ColumnPlan:
    """Plan one row group of all parts, in their order. Reads the dictionaries of all parts, and keeps one per column.

    Pages of a column are copied only under these conditions:

    - No row is deleted.
    - All parts have one codec.
    - All dictionaries are equal.
    - All readers support the encodings.
    - No page with a dictionary follows a page without one, because Spark's vectorized reader returns wrong values for
      such a column.

    A nested column is encoded again as a whole. Raises `CopyRefused`.
    """
    columns = parts[0].footer.columns
    leaves = [_plan_leaf(parts, index, column) for index, column in enumerate(columns)]
    reencode: dict[str, str] = {}
    for column, leaf in zip(columns, leaves, strict=True):
        if leaf.why is not None:
            reencode.setdefault(column.top, leaf.why.value)
    for column, leaf in zip(columns, leaves, strict=True):
        if column.top in reencode:
            leaf.dictionary = None
    sizes = [sum(part.group.chunks[index].size_bytes for part in parts) for index in range(len(columns))]
    again = sum(size for column, size in zip(columns, sizes, strict=True) if column.top in reencode)
    return ColumnPlan(reencode, leaves, sum(sizes) - again, again)


@dataclass(slots=True)
class LeafPlan:
    """The way in which a leaf column is copied, or the reason (`why`) against it; chunks are added one by one.

    `dictionary` is the dictionary to write. `entries` is the most distinct values that there can be, None if a chunk
    has values outside of dictionaries.
    """

    why: Refusal | None = None
    entries: int | None = 0
    dictionary: DictionaryPage | None = None
    plain: bool = False

    def refuse(self, why: Refusal) -> None:
        """Refuse to copy the column; the first reason counts, and dictionaries are dropped."""
        self.why = self.why or why
        self.dictionary = None

    def add(self, page: DictionaryPage | None, encodings: set[int]) -> None:
        """Add the next chunk: its dictionary, and the encodings of its pages or a superset of them."""
        if page is None:
            self.plain, self.entries = True, None
            return
        if self.plain:
            self.refuse(Refusal.DICTIONARY_ORDER)
        if not encodings <= DICTIONARY_ENCODINGS:
            self.plain, self.entries = True, None
        elif self.entries is not None:
            self.entries += page.values
        if self.why is None and not self._agree(page):
            self.refuse(Refusal.DICTIONARIES)

    def _agree(self, page: DictionaryPage) -> bool:
        """Return whether the dictionaries are equal; the empty one of a chunk of nulls agrees with any."""
        if self.dictionary is None or not self.dictionary.values:
            self.dictionary = page
        return not page.values or self.dictionary.body == page.body


def _plan_leaf(parts: Sequence[Part], index: int, column: Column) -> LeafPlan:
    chunks = [part.group.chunks[index] for part in parts]
    leaf = LeafPlan()
    for part, chunk in zip(parts, chunks, strict=True):
        if chunk.codec != chunks[0].codec:
            leaf.refuse(Refusal.CODEC)
        if column.top in part.footer.strict:
            leaf.refuse(Refusal.SCHEMA_DIFFERS)
        encodings = data_encodings(chunk)
        if part.deleted:
            leaf.refuse(Refusal.DELETED_ROWS)
        if not encodings <= common_encodings(column):
            leaf.refuse(Refusal.ENCODING)
        leaf.add(dictionary_page(part.source, chunk), encodings)
    return leaf
