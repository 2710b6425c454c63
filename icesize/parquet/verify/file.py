"""Reads a Parquet file completely and compares its metadata with its contents.

`python -m icesize.parquet.verify FILE...` prints a line per problem and exits with 1 if there is one. It verifies files
of any writer, and needs the memory of one column of one row group.

It does not compare bloom filters, numbers of distinct values, SizeStatistics, sorting columns, or statistics in page
headers. Bounds are compared only for types with a known order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from icesize.parquet.files.metrics import count_nans
from icesize.parquet.format import fields as ids
from icesize.parquet.format.footer import Chunk, Footer, RowGroup, read_footer
from icesize.parquet.format.page_index import read_column_index, read_offset_index
from icesize.parquet.format.pages import DATA_PAGE, DATA_PAGE_V2, DICTIONARY_ENCODINGS, DICTIONARY_PAGE, Pages, walk
from icesize.parquet.format.refusals import CopyRefused, DamagedFile
from icesize.parquet.format.schema import DOUBLE, FLOAT, ROW_ID, Column
from icesize.parquet.format.sources import Source
from icesize.parquet.format.statistics import Order, bound_order
from icesize.parquet.format.thrift import binary, boolean, integer, required_integer, structs_of
from icesize.parquet.verify.values import Extremes, Leaves, ValueReader, extremes_of, is_unsigned

MOST_PROBLEMS = 20
"""Reported of one column chunk; a damaged one may have one for each page."""
DAMAGE = (CopyRefused, pa.ArrowException, OSError)
"""The errors that our own readers and pyarrow raise for damaged bytes."""


@dataclass(frozen=True, slots=True)
class NanBound:
    """A bound that is NaN. It costs readers time only: they ignore it, and parquet-java writes it."""

    text: str


Problem = str | NanBound


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """The values of a flat column: the numbers of all, of nulls and of NaN, and the least and greatest other one.

    `extremes` are None without such a value, or without a known order (`is_ordered` is False).
    """

    column: Column
    values: int
    nulls: int
    nans: int
    is_ordered: bool
    extremes: Extremes | None

    def plus(self, other: ColumnFacts) -> ColumnFacts:
        """Return the facts of the values of both."""
        both = [each for each in (self.extremes, other.extremes) if each is not None]
        ends = (min(low for low, _ in both), max(high for _, high in both)) if both else None
        counts = self.values + other.values, self.nulls + other.nulls, self.nans + other.nans
        return ColumnFacts(self.column, *counts, self.is_ordered and other.is_ordered, ends)


@dataclass(frozen=True, slots=True)
class FileVerification:
    """The result of a verification.

    `problems` and `nan_bounds` begin with the file's name and the place in it. Bounds of `unchecked` columns have no
    known order.
    `row_groups` counts those with rows, `pages` the data pages that could be found. `columns` has the flat columns that
    could be read, and `row_ids` the stored row ids, None without such a column.
    """

    problems: tuple[str, ...]
    unchecked: tuple[str, ...] = ()
    row_groups: int = 0
    rows: int = 0
    pages: int = 0
    columns: tuple[ColumnFacts, ...] = field(default=(), compare=False)
    row_ids: Any = field(default=None, compare=False)
    nan_bounds: tuple[str, ...] = ()


@dataclass(slots=True)
class _OpenFile:
    """A file in verification; `orders` maps each column to the order of its bounds, None if unknown.

    `pages` counts the data pages that were found. `facts` has those of each row group, by the place of the column.
    """

    source: Source
    footer: Footer
    orders: Sequence[Order | None]
    reader: ValueReader
    pages: int = 0
    facts: dict[int, list[ColumnFacts]] = field(default_factory=dict)
    row_ids: list[Any] = field(default_factory=list)


def verify_file(source: Source, name: str) -> FileVerification:
    """Verify one file; `name` precedes each problem. Raises `OSError` if not even the file's end can be read."""
    try:
        footer = read_footer(source)
    except CopyRefused as error:
        return FileVerification((f"{name}: footer: {error}",))
    problems = list(_placed(f"{name}: footer", _check_footer(source, footer)))
    try:
        reader = ValueReader(source.stream(), footer)
    except DAMAGE as error:
        return FileVerification((*map(str, problems), f"{name}: footer: values {_unreadable(error)}"))
    file = _OpenFile(source, footer, _orders(footer), reader)
    with closing(reader):
        for number, group in enumerate(footer.row_groups):
            place = f"{name}: row group {number}"
            problems += _placed(place, _check_sizes(group))
            for at, column in enumerate(footer.columns):
                problems += _placed(f"{place}, column {'.'.join(column.path)!r}", _check_chunk(file, number, at))
    columns = zip(footer.columns, file.orders, strict=True)
    unchecked = tuple(".".join(column.path) for column, order in columns if order is None)
    facts = [reduce(ColumnFacts.plus, parts) for parts in file.facts.values() if len(parts) == len(footer.row_groups)]
    ids_of_rows = pa.chunked_array(file.row_ids) if file.row_ids else None
    nan_bounds = tuple(problem.text for problem in problems if isinstance(problem, NanBound))
    return FileVerification(
        tuple(problem for problem in problems if isinstance(problem, str)), unchecked, len(footer.row_groups),
        footer.rows, file.pages, tuple(facts), ids_of_rows, nan_bounds,
    )  # fmt: skip


def _placed(place: str, problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the first problems of a place."""
    found = _readable(problems)
    for problem in islice(found, MOST_PROBLEMS):
        yield NanBound(f"{place}: {problem.text}") if isinstance(problem, NanBound) else f"{place}: {problem}"
    if next(found, None) is not None:
        yield f"{place}: further problems are left out"


def _readable(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the problems that a check finds; the last one may be an error that ended the check."""
    try:
        yield from problems
    except DAMAGE as error:
        yield _unreadable(error)


def _unreadable(error: Exception) -> str:
    first, *_ = str(error).strip().splitlines() or [type(error).__name__]
    return f"cannot be read: {first}"


def _wrong(*claims: tuple[str, Any, Any]) -> Iterator[str]:
    """Yield the claims that do not hold.

    Each claim has the text of a problem, the claimed value or None, and the true value.
    """
    return (words.format(claimed, real) for words, claimed, real in claims if claimed is not None and claimed != real)


def _check_footer(source: Source, footer: Footer) -> Iterator[str]:
    """Check that pyarrow reads the same from the footer, including the schema."""
    columns = len(footer.columns)
    orders = structs_of(footer.fields, ids.FileMetaData.COLUMN_ORDERS)
    yield from _wrong(("column_orders has {} entries for {} columns", len(orders) or None, columns))
    with source.stream() as stream, pq.ParquetFile(stream) as file:
        seen = (file.metadata.num_rows, file.metadata.num_columns)
    yield from _wrong(("pyarrow sees {0[0]} rows of {0[1]} columns", seen, (footer.rows, columns)))


def _orders(footer: Footer) -> list[Order | None]:
    """Return the order of each column's bounds; files that do not define it use the order of the type."""
    try:
        orders = structs_of(footer.fields, ids.FileMetaData.COLUMN_ORDERS)
    except DamagedFile:  # the check of the footer reports it
        return [None] * len(footer.columns)
    by_type = [ids.ColumnOrder.TYPE_ORDER in order for order in orders]
    if len(orders) != len(footer.columns):
        by_type = [True] * len(footer.columns)
    return [
        bound_order(column.element) if is_so else None for column, is_so in zip(footer.columns, by_type, strict=True)
    ]


def _check_sizes(group: RowGroup) -> Iterator[str]:
    """Check sums over the columns, and the offset at which readers split the file."""
    claims = {
        "total_byte_size": (ids.RowGroup.TOTAL_BYTE_SIZE, sum(c.raw_size_bytes for c in group.chunks)),
        "total_compressed_size": (ids.RowGroup.TOTAL_COMPRESSED_SIZE, group.size_bytes),
        "file_offset": (ids.RowGroup.FILE_OFFSET, min(chunk.start for chunk in group.chunks)),
    }
    for name, (field_id, real) in claims.items():
        yield from _wrong((f"{name} is {{}}, it should be {{}}", integer(group.fields, field_id), real))


def _check_chunk(file: _OpenFile, group: int, at: int) -> Iterator[Problem]:
    """Compare a column chunk with its metadata, statistics and page indexes.

    Raises an error that `_readable` turns into a problem if pages or values cannot be read.
    """
    rows, chunk = file.footer.row_groups[group].rows, file.footer.row_groups[group].chunks[at]
    column, order = file.footer.columns[at], file.orders[at]
    pages = walk(file.source.read(chunk.start, chunk.size_bytes), column.flat, chunk.values)
    file.pages += len(pages.data)
    yield from _readable(_check_metadata(chunk, pages))
    leaves = file.reader.read(group, at)
    if leaves.rows != rows or leaves.entries[-1] != chunk.values:
        yield f"{leaves.rows} rows and {leaves.entries[-1]} values were read of {rows} and {chunk.values}"
        return
    extremes = None if order is None else extremes_of(column.element, order)(leaves.values)
    if column.flat:
        nans = count_nans(leaves.values) if column.element.type in (FLOAT, DOUBLE) else 0
        facts = ColumnFacts(column, leaves.rows, leaves.nulls, nans, order is not None, extremes)
        file.facts.setdefault(at, []).append(facts)
    if column.element.field_id == ROW_ID:
        file.row_ids.append(leaves.values)
    yield from _readable(_check_statistics(column, chunk, leaves, order, extremes))
    yield from _check_indexes(file, at, chunk, pages, leaves)


def _check_metadata(chunk: Chunk, pages: Pages) -> Iterator[str]:
    """Compare ColumnMetaData with the page headers; raises `DamagedFile`."""
    dictionary = [] if pages.dictionary is None else [pages.dictionary]
    all_pages = [*dictionary, *pages.data]
    raw_size_bytes = sum(page.raw_size_bytes for page in all_pages)
    is_at = "dictionary_page_offset is {}, " + ("it is at {}" if dictionary else "there is no dictionary")
    yield from _wrong(
        ("total_uncompressed_size is {}, pages have {}", chunk.raw_size_bytes, raw_size_bytes),
        (is_at, chunk.dictionary_offset, chunk.start if dictionary else 0),
    )
    for first in pages.data[:1]:
        first_at = chunk.start + first.at
        yield from _wrong(("data_page_offset is {}, the first page is at {}", chunk.data_offset, first_at))
    if missing := {page.encoding for page in pages.data} - chunk.encodings:
        yield f"encodings lack {sorted(missing)}"
    if ids.ColumnMetaData.ENCODING_STATS in chunk.metadata:
        claimed = _claimed_encodings(chunk)
        counted = all_pages if any(kind == DICTIONARY_PAGE for kind, _ in claimed) else pages.data
        real = Counter((_kind(page.type), page.encoding) for page in counted)
        if claimed != real:
            yield f"encoding_stats are {_described(claimed)}; pages are {_described(real)}"
    coded = [page.encoding in DICTIONARY_ENCODINGS for page in pages.data]
    if late := [number for number, (before, now) in enumerate(pairwise(coded), 1) if now and not before]:
        yield f"page {late[0]} is coded by a dictionary and follows one of another encoding"
    if any(coded) and not dictionary:
        yield "pages are coded by a dictionary, there is none"


def _claimed_encodings(chunk: Chunk) -> Counter[tuple[int, int]]:
    claimed: Counter[tuple[int, int]] = Counter()
    for fields in structs_of(chunk.metadata, ids.ColumnMetaData.ENCODING_STATS):
        kind = _kind(required_integer(fields, ids.PageEncodingStats.PAGE_TYPE))
        encoding = required_integer(fields, ids.PageEncodingStats.ENCODING)
        claimed[kind, encoding] += required_integer(fields, ids.PageEncodingStats.COUNT)
    return claimed


def _kind(page_type: int) -> int:
    """Return the type of a page; pyarrow counts data pages of both versions as version 1."""
    return DATA_PAGE if page_type == DATA_PAGE_V2 else page_type


def _described(counts: Counter[tuple[int, int]]) -> str:
    names = {DATA_PAGE: "data", DICTIONARY_PAGE: "dictionary"}
    return ", ".join(f"{n} {names.get(kind, kind)} in encoding {e}" for (kind, e), n in sorted(counts.items()))


def _check_statistics(
    column: Column, chunk: Chunk, leaves: Leaves, order: Order | None, extremes: Extremes | None
) -> Iterator[Problem]:
    """Compare Statistics of a chunk with its values; raises `DamagedFile`.

    Bounds are compared if they have a known order. The number of distinct values is not compared.
    """
    known, element = ids.Statistics, column.element
    null_count = integer(chunk.statistics, known.NULL_COUNT)
    yield from _wrong(("statistics have null_count {}, there are {}", null_count, leaves.nulls))
    if order is None:
        return
    exact = [boolean(chunk.statistics, field) for field in (known.IS_MIN_VALUE_EXACT, known.IS_MAX_VALUE_EXACT)]
    bounds = [binary(chunk.statistics, field) for field in (known.MIN_VALUE, known.MAX_VALUE)]
    yield from _check_bounds("{}_value", bounds, order, extremes, exact)
    if (element.type or 0) <= DOUBLE and not is_unsigned(element, order):  # numbers, including booleans
        old_bounds = [binary(chunk.statistics, field) for field in (known.MIN, known.MAX)]
        yield from _check_bounds("{}", old_bounds, order, extremes)


def _check_bounds(
    words: str,
    bounds: Sequence[bytes | None],
    order: Order,
    extremes: Extremes | None,
    exact: Sequence[bool | None] = (None, None),
) -> Iterator[Problem]:
    """Compare a stored lower and upper bound with the least and greatest value.

    `extremes` is None if there are only nulls and NaN. `exact` bounds claim to be values.
    """
    for end, raw in enumerate(bounds):
        if raw is None:
            continue
        name, key = words.format(("min", "max")[end]), order(raw)
        if key is None:
            yield f"{name} {raw!r} is no value of the type"
        elif key != key:
            yield NanBound(f"{name} is NaN")
        elif extremes is not None:
            value, extreme = extremes[end], ("least", "greatest")[end]
            if (min, max)[end]((key, value), key=_rank) is not key:
                yield f"{name} is {key!r}, the {extreme} value {value!r}"
            elif exact[end] and key != value:
                yield f"{name} {key!r} is called exact, the {extreme} value is {value!r}"


def _rank(key: Any) -> tuple[Any, float]:
    """Return a key that orders -0.0 before 0.0."""
    return key, math.copysign(1.0, key) if isinstance(key, float) else 0.0


def _check_indexes(file: _OpenFile, at: int, chunk: Chunk, pages: Pages, leaves: Leaves) -> Iterator[Problem]:
    offset_index, column_index = chunk.offset_index, chunk.column_index
    positions = np.cumsum([0, *(page.values for page in pages.data)])
    # every row has an entry, so each position is found once
    rows = np.searchsorted(leaves.entries, positions)
    within = np.flatnonzero(leaves.entries[rows] != positions).tolist()
    if within:
        # only v1 pages without an index may begin within a row
        if offset_index or column_index or pages.data[within[0]].rows is not None:
            yield f"page {within[0]} begins within a row"
        return
    starts = rows.tolist()
    for number, (page, (first, end)) in enumerate(zip(pages.data, pairwise(starts), strict=True)):
        yield from _wrong((f"page {number} has num_rows {{}}, there are {{}}", page.rows, end - first))
    if offset_index:
        yield from _readable(_check_offset_index(file.source.read(*offset_index), chunk, pages, starts, leaves))
    elif column_index:
        yield "it has a column index without an offset index"
    if column_index:
        raw, element = file.source.read(*column_index), file.footer.columns[at].element
        find = None if (order := file.orders[at]) is None else extremes_of(element, order)
        yield from _readable(_check_column_index(raw, order, find, starts, leaves))


def _check_offset_index(raw: bytes, chunk: Chunk, pages: Pages, starts: Sequence[int], leaves: Leaves) -> Iterator[str]:
    """Compare an OffsetIndex with the pages; raises `CopyRefused` if it cannot be read."""
    locations, _ = read_offset_index(raw)
    if len(locations) != len(pages.data):
        yield f"the offset index has {len(locations)} pages of {len(pages.data)}"
        return
    names = ("offset", "compressed_page_size", "first_row_index")
    for number, (location, page) in enumerate(zip(locations, pages.data, strict=True)):
        truth = (chunk.start + page.at, page.size_bytes, starts[number])
        for name, claim, real in zip(names, location, truth, strict=True):
            yield from _wrong((f"the offset index has {name} {{}} of page {number}, it is {{}}", claim, real))


def _check_column_index(
    raw: bytes, order: Order | None, find: Any, starts: Sequence[int], leaves: Leaves
) -> Iterator[Problem]:
    """Compare a ColumnIndex with the values of each page; raises `DamagedFile`.

    Histograms of levels are not compared. Bounds are compared if they have a known order, by which `find` finds
    extremes.
    """
    index, pages = read_column_index(raw), len(starts) - 1
    lists = {name: found for name, found in index._asdict().items() if isinstance(found, list)}
    words = "the column index has {} %s of {}"
    if wrong := [*_wrong(*((words % name, len(found), pages) for name, found in lists.items()))]:
        yield from wrong
        return
    for number, (first, end) in enumerate(pairwise(starts)):
        nulls, is_null = leaves.nulls_of(first, end), index.null_pages[number]
        values = int(leaves.entries[end] - leaves.entries[first]) - nulls
        if is_null != (values == 0):
            yield f"the column index has page {number} as {'null' if values else 'not null'}, it has {values} values"
        claimed = index.null_counts and index.null_counts[number]
        yield from _wrong((f"the column index has null_count {{}} of page {number}, there are {{}}", claimed, nulls))
        if order is not None and not is_null:
            bounds = (index.min_values[number], index.max_values[number])
            extremes = find(leaves.of_rows(first, end))
            yield from _check_bounds(f"the column index's {{}} of page {number}", bounds, order, extremes)
    if index.boundary_order is None:
        raise DamagedFile("a column index without a boundary order")
    name = {1: "ascending", 2: "descending"}.get(index.boundary_order)
    if order is None or name is None:
        return
    for bound, stored in (("min", index.min_values), ("max", index.max_values)):
        keys = [order(value) for value, is_null in zip(stored, index.null_pages, strict=True) if not is_null]
        # a bound that is no value, or NaN, is reported with its page
        is_known = all(key is not None and key == key for key in keys)
        if is_known and keys != sorted(keys, reverse=name == "descending"):
            yield f"the column index's {bound} values are not {name}, as its boundary order requires"
