"""Which columns of a row group can be made of the pages of older ones, by what that costs; others are encoded again."""

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
    from icesize.parquet.editing.dictionaries import Numbers
    from icesize.parquet.format.page_values import Indices

_CUT_ENCODINGS = frozenset({PLAIN, *DICTIONARY_ENCODINGS})
"""Pages of which single values can be left out."""


CHUNK_NS = 100_000
"""A column chunk whose pages are moved, or that is decoded alone, in nanoseconds of one core, as all costs here.

Measured on TPC-H lineitem in files of Spark and of pyarrow, 4,000-200,000 rows each, to within a factor of 1.5."""
_INDEX_NS = 12
"""A value whose index into a dictionary changes: 6, twice, since Python's lock is held for most of it (13 of 15 ns a
value, with pages of 20,000), while another thread merges beside it. pyarrow encodes a column again without the lock."""
_REPEATED_NS = {BYTE_ARRAY: 20, INT64: 16, FIXED_LEN_BYTE_ARRAY: 42}
_OTHER_REPEATED_NS = 12
"""A value that is decoded out of a dictionary and encoded again."""
_VALUE_NS, _RAW_BYTE_NS = 12, 8
"""Another value, and each byte it has without compression."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One row group that goes into a larger one, without the rows at the places that are `deleted`."""

    source: Source
    footer: Footer
    group: RowGroup
    deleted: BitMap | None = None

    @property
    def rows(self) -> int:
        """Rows that it brings."""
        return self.group.rows - len(self.deleted or ())

    @property
    def deleted_rows(self) -> Indices:
        """Places of the rows that are deleted."""
        import numpy as np  # which copying needs for nothing else

        return np.frombuffer((self.deleted or BitMap()).to_array(), np.uint32).astype(np.int64)


@dataclass(slots=True)
class Piece:
    """One chunk whose pages are copied: all its bytes, the rows of its row group, its page indexes if it has any."""

    chunk: Chunk
    data: memoryview
    pages: Pages
    rows: int
    offset_index: bytes | None
    column_index: bytes | None


@dataclass(slots=True)
class ColumnPlan:
    """How each column of one new row group is made.

    `reencode` maps top-level columns to why they are (a value of `Refusal`); all others are copied, by `leaves`.
    """

    reencode: dict[str, str]
    leaves: list[LeafPlan]
    copied_bytes: int
    reencoded_bytes: int

    def is_copied(self, index: int, parts: Sequence[Part]) -> bool:
        """Whether the pages of a leaf column stay as they are."""
        is_changed = self.leaves[index].numbers or any(part.deleted for part in parts)
        return not is_changed and parts[0].footer.columns[index].top not in self.reencode


def plan_columns(parts: Sequence[Part], renumber_page_ns: int, cut_cost: float = 1.0) -> ColumnPlan:
    """Plan one row group of all parts, in their order. Reads the dictionaries of all parts, keeps one per column.

    Pages are copied only where all parts have one codec, dictionaries of which each is the beginning of the longest or
    which one dictionary can unite, encodings that all readers know, and where no page with a dictionary would follow
    one without: Spark's vectorised reader gives wrong values for such. A nested column is encoded again as a whole.
    Where rows are deleted, pages of flat columns are cut if that takes less than encoding the column again.
    `renumber_page_ns` is what it takes to change the indices of a page, besides its values, `cut_cost` what cutting a
    page takes where encoding its values again takes 1. Raises `CopyRefused`.
    """
    columns = parts[0].footer.columns
    leaves = [_plan_leaf(parts, index, column, renumber_page_ns, cut_cost) for index, column in enumerate(columns)]
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


def costs_less_than_decoding(plan: ColumnPlan, parts: Sequence[Part], open_ns: int, page_ns: int) -> bool:
    """Whether the row group is better made by its plan than out of rows, where opening a file for those takes `open_ns`
    and changing the indices of a page `page_ns`."""
    moved = decoded = 0
    for index, column in enumerate(parts[0].footer.columns):
        chunks = [part.group.chunks[index] for part in parts]
        moved += CHUNK_NS * len(chunks)
        decoded += (again := decoding_ns(chunks))
        if column.top in plan.reencode:
            moved += again
        elif plan.leaves[index].numbers:
            moved += renumbering_ns(chunks, page_ns)
    return moved <= decoded + open_ns * len(parts)


@dataclass(slots=True)
class LeafPlan:
    """How a leaf column is copied, or `why` not, by its chunks in turn.

    `dictionary` is the one to write, and `numbers` are what becomes of the indices of each part in it: none if all
    pages agree with it unchanged. `entries` is how many distinct values there can be, None if a part has no dictionary.
    """

    codec: int
    why: Refusal | None = None
    entries: int | None = 0
    dictionary: DictionaryPage | None = None
    numbers: Sequence[Numbers] = ()
    plain: bool = False
    differ: bool = False
    raw: bytes | None = field(default=None, repr=False)

    def refuse(self, why: Refusal) -> None:
        """The first reason counts; dictionaries are not needed any more."""
        self.why = self.why or why
        self.dictionary = self.raw = None

    def add(self, page: DictionaryPage | None, encodings: set[int]) -> None:
        """The next chunk: its dictionary and the encodings of its pages, which may be more than it has."""
        if page is None:
            self.plain, self.entries = True, None
            return
        if self.plain:
            self.refuse(Refusal.DICTIONARY_ORDER)
        if not encodings <= DICTIONARY_ENCODINGS:
            self.plain, self.entries = True, None
        elif self.entries is not None:
            self.entries += page.values
        self.differ = self.differ or (self.why is None and not self._agree(page))

    def share(self, united: tuple[DictionaryPage, Sequence[Numbers]] | None) -> None:
        """Take one dictionary in place of those that differ, if there is one."""
        if united is None:
            self.refuse(Refusal.DICTIONARIES)
        else:
            self.dictionary, self.numbers = united

    def _agree(self, page: DictionaryPage) -> bool:
        """Keep the longest of dictionaries that begin alike: indices into a shorter one are true in it, too."""
        kept = self.dictionary
        if kept is None or not kept.values:  # the empty one of a chunk of nulls agrees with any
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


def _plan_leaf(parts: Sequence[Part], index: int, column: Column, page_ns: int, cut_cost: float) -> LeafPlan:
    chunks = [part.group.chunks[index] for part in parts]
    leaf = LeafPlan(chunks[0].codec)
    found: list[DictionaryPage | None] = []
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
        found.append(page)
    longest = max((page.values for page in found if page is not None), default=0)
    if any(part.deleted for part in parts) and longest > 1 << MOST_BITS:
        leaf.refuse(Refusal.DELETED_ROWS)
    if leaf.why is None:
        cut_ns = cutting_ns(chunks, [part.deleted for part in parts], cut_cost)
        changed_ns = cut_ns + (renumbering_ns(chunks, page_ns) if leaf.differ else 0)
        if changed_ns > decoding_ns(chunks):
            leaf.refuse(Refusal.DELETED_ROWS if cut_ns else Refusal.DICTIONARIES)
        elif leaf.differ:
            leaf.share(_united(found, column, leaf.codec))
    leaf.raw = None
    return leaf


def _united(
    pages: Sequence[DictionaryPage | None], column: Column, codec: int
) -> tuple[DictionaryPage, Sequence[Numbers]] | None:
    from icesize.parquet.editing.dictionaries import unite  # copying alone needs no pyarrow, which takes 100 MB

    return unite(pages, column, codec)


def _entries(page: DictionaryPage, codec: int) -> bytes | None:
    """The entries, one after the other; None when they cannot be had."""
    return page.entries(codec) if page.may_be_opened(codec) else None


def renumbering_ns(chunks: Sequence[Chunk], page_ns: int) -> int:
    """Return the cost of changing the indices of a column, besides moving its chunks: `page_ns` for each page, and its
    values."""
    return sum(page_ns * data_pages(chunk) + _INDEX_NS * chunk.values for chunk in chunks)


def cutting_ns(chunks: Sequence[Chunk], deleted: Sequence[BitMap | None], cost: float) -> int:
    """Of chunks of one column of which some rows go: the pages that have such rows, if all have equally many, where
    that takes `cost` times what decoding takes."""
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
    """With encoding the values again, but for what each chunk or file takes."""
    return sum(map(_decoding_chunk_ns, chunks))


def _decoding_chunk_ns(chunk: Chunk) -> int:
    if data_encodings(chunk) <= DICTIONARY_ENCODINGS:
        return _REPEATED_NS.get(chunk.type, _OTHER_REPEATED_NS) * chunk.values
    raw_bytes = chunk.raw_size_bytes
    return _VALUE_NS * chunk.values + _RAW_BYTE_NS * raw_bytes
