"""A cost-based choice for each column of a row group: made of pages of older ones, or encoded again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from pyroaring import BitMap

from icesize.parquet.copying.compatibility import common_encodings
from icesize.parquet.format.footer import Chunk, Footer, RowGroup
from icesize.parquet.format.hybrid import MOST_BITS
from icesize.parquet.format.pages import (
    DICTIONARY_ENCODINGS,
    PLAIN,
    DictionaryPage,
    Pages,
    data_encodings,
    data_pages,
    dictionary_page,
)
from icesize.parquet.format.refusals import Refusal
from icesize.parquet.format.schema import BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY, INT64, Column
from icesize.parquet.format.sources import Source

if TYPE_CHECKING:
    from icesize.parquet.format.page_values import Indices

_CUT_ENCODINGS = frozenset({PLAIN, *DICTIONARY_ENCODINGS})
"""Pages of which single values can be left out."""


CHUNK_NS = 100_000
"""A column chunk whose pages are moved, or that is decoded alone, in nanoseconds of one core, as all costs here.

Measured on TPC-H lineitem in files of Spark and of pyarrow, 4,000-200,000 rows each, to within a factor of 1.5."""
_REPEATED_NS = {BYTE_ARRAY: 20, INT64: 16, FIXED_LEN_BYTE_ARRAY: 42}
_OTHER_REPEATED_NS = 12
"""A value that is decoded out of a dictionary and encoded again."""
_VALUE_NS, _RAW_BYTE_NS = 12, 8
"""Another value, and each byte it has without compression."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One row group that becomes part of a larger one, without the rows at the `deleted` positions.

    `inherited` are the row id of its first row, and the sequence number of the last change, that rows have without a
    stored lineage; None if the new file stores no lineage.
    """

    source: Source
    footer: Footer
    group: RowGroup
    deleted: BitMap | None = None
    inherited: tuple[int, int] | None = None

    @property
    def rows(self) -> int:
        """Rows that are not deleted."""
        return self.group.rows - len(self.deleted or ())

    @property
    def deleted_rows(self) -> Indices:
        """Positions of the deleted rows."""
        import numpy as np  # imported here because a plain copy needs no numpy

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

    def is_copied(self, index: int, parts: Sequence[Part]) -> bool:
        """Return whether the pages of a leaf column stay unchanged."""
        return not any(part.deleted for part in parts) and parts[0].footer.columns[index].top not in self.reencode


def plan_columns(parts: Sequence[Part], cut_cost: float = 1.0) -> ColumnPlan:
    """Plan one row group of all parts, in their order. Reads the dictionaries of all parts, and keeps one per column.

    Pages of a column are copied only under these conditions:

    - All parts have one codec.
    - Each dictionary is the beginning of the longest one.
    - All readers support the encodings.
    - No page with a dictionary follows a page without one, because Spark's vectorized reader returns wrong values for
      such a column.

    A nested column is encoded again as a whole. Pages of flat columns lose their deleted rows by a cut if that takes
    less time than encoding the column again. `cut_cost` is the time to cut a page, relative to encoding its values
    again. Raises `CopyRefused`.
    """
    columns = parts[0].footer.columns
    leaves = [_plan_leaf(parts, index, column, cut_cost) for index, column in enumerate(columns)]
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


def costs_less_than_decoding(plan: ColumnPlan, parts: Sequence[Part], open_ns: int) -> bool:
    """Return whether making the row group by its plan costs less than making it out of decoded rows.

    Decoding takes `open_ns` to open a file.
    """
    moved = decoded = 0
    for index, column in enumerate(parts[0].footer.columns):
        chunks = [part.group.chunks[index] for part in parts]
        moved += CHUNK_NS * len(chunks)
        decoded += (again := decoding_ns(chunks))
        if column.top in plan.reencode:
            moved += again
    return moved <= decoded + open_ns * len(parts)


@dataclass(slots=True)
class LeafPlan:
    """The way in which a leaf column is copied, or the reason (`why`) against it; chunks are added one by one.

    `dictionary` is the dictionary to write.
    """

    codec: int
    why: Refusal | None = None
    dictionary: DictionaryPage | None = None
    plain: bool = False
    raw: bytes | None = field(default=None, repr=False)

    def refuse(self, why: Refusal) -> None:
        """Refuse to copy the column; the first reason counts, and dictionaries are dropped."""
        self.why = self.why or why
        self.dictionary = self.raw = None

    def add(self, page: DictionaryPage | None, encodings: set[int]) -> None:
        """Add the next chunk: its dictionary, and the encodings of its pages or a superset of them."""
        if page is None:
            self.plain = True
            return
        if self.plain:
            self.refuse(Refusal.DICTIONARY_ORDER)
        if not encodings <= DICTIONARY_ENCODINGS:
            self.plain = True
        if self.why is None and not self._agree(page):
            self.refuse(Refusal.DICTIONARIES)

    def _agree(self, page: DictionaryPage) -> bool:
        """Return whether the dictionaries begin alike, and keep the longest one.

        Indices into a shorter one are valid in it, too.
        """
        kept = self.dictionary
        if kept is None or not kept.values:  # the empty dictionary of a chunk of nulls agrees with any
            self.dictionary, self.raw = page, None
            return True
        if not page.values or kept.body == page.body:
            return True
        if not (kept.is_plain and page.is_plain):
            return False
        self.raw = self.raw if self.raw is not None else _entries(kept, self.codec)
        raw = _entries(page, self.codec)
        if self.raw is None or raw is None:
            return False
        if page.values <= kept.values:
            return self.raw.startswith(raw)
        agrees = raw.startswith(self.raw)
        self.dictionary, self.raw = page, raw
        return agrees


def _plan_leaf(parts: Sequence[Part], index: int, column: Column, cut_cost: float) -> LeafPlan:
    chunks = [part.group.chunks[index] for part in parts]
    leaf = LeafPlan(chunks[0].codec)
    longest = 0
    for part, chunk in zip(parts, chunks, strict=True):
        if chunk.codec != leaf.codec:
            leaf.refuse(Refusal.CODEC)
        if column.top in part.footer.strict:
            leaf.refuse(Refusal.SCHEMA_DIFFERS)
        encodings = data_encodings(chunk)
        if part.deleted and not (column.flat and encodings <= _CUT_ENCODINGS):
            leaf.refuse(Refusal.DELETED_ROWS)
        if not encodings <= common_encodings(column):
            leaf.refuse(Refusal.ENCODING)
        page = dictionary_page(part.source, chunk)
        leaf.add(page, encodings)
        longest = max(longest, 0 if page is None else page.values)
    if any(part.deleted for part in parts) and longest > 1 << MOST_BITS:
        leaf.refuse(Refusal.DELETED_ROWS)
    if leaf.why is None and cutting_ns(chunks, [part.deleted for part in parts], cut_cost) > decoding_ns(chunks):
        leaf.refuse(Refusal.DELETED_ROWS)
    leaf.raw = None
    return leaf


def _entries(page: DictionaryPage, codec: int) -> bytes | None:
    """Return the entries, one after the other; None if they cannot be read."""
    return page.entries(codec) if page.may_be_opened(codec) else None


def cutting_ns(chunks: Sequence[Chunk], deleted: Sequence[BitMap | None], cost: float) -> int:
    """Return the cost of cutting chunks of one column with deleted rows.

    Only pages with deleted rows are cut, and all pages are assumed to have the same number of rows. Cutting a page
    costs `cost` times its decoding.
    """
    pairs = zip(chunks, deleted, strict=True)
    return round(cost * sum(_decoding_chunk_ns(chunk) * _share_cut(chunk, places) for chunk, places in pairs))


def _share_cut(chunk: Chunk, places: BitMap | None) -> float:
    if not places:
        return 0.0
    pages = min(data_pages(chunk), chunk.values)
    ends = [chunk.values * (page + 1) // pages for page in range(pages)]
    ranks = [places.rank(end - 1) for end in ends]
    return sum(after > before for before, after in pairwise([0, *ranks])) / pages


def decoding_ns(chunks: Sequence[Chunk]) -> int:
    """Return the cost of decoding values and encoding them again, besides the cost of each chunk or file."""
    return sum(map(_decoding_chunk_ns, chunks))


def _decoding_chunk_ns(chunk: Chunk) -> int:
    if data_encodings(chunk) <= DICTIONARY_ENCODINGS:
        return _REPEATED_NS.get(chunk.type, _OTHER_REPEATED_NS) * chunk.values
    raw_bytes = chunk.raw_size_bytes
    return _VALUE_NS * chunk.values + _RAW_BYTE_NS * raw_bytes
