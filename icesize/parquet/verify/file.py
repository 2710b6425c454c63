"""Reads a Parquet file completely and compares what it says about itself with what it has.

`python -m icesize.parquet.verify FILE...` prints a line per problem and ends with 1 if there is one. Any writer's file
can be verified; the memory of one column of one row group is needed.

Not compared: numbers of distinct values, sorting columns, statistics and null counts in page headers, histograms of
levels but for their sums and ends, bounds of types without a known order. Of bloom filters those of split blocks with
xxHash are known (parquet-format/BloomFilter.md), and there are no others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from icesize.parquet.format.fields import (
    BloomFilterHeader,
    ColumnIndex,
    ColumnMetaData,
    ColumnOrder,
    FileMetaData,
    PageEncodingStats,
    SizeStatistics,
    Statistics,
)
from icesize.parquet.format.fields import RowGroup as RowGroupIds
from icesize.parquet.format.footer import Chunk, Footer, RowGroup, read_footer
from icesize.parquet.format.page_index import read_offset_index
from icesize.parquet.format.pages import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DICTIONARY_ENCODINGS,
    DICTIONARY_PAGE,
    Page,
    Pages,
    walk,
)
from icesize.parquet.format.refusals import CopyRefused, DamagedFile
from icesize.parquet.format.schema import BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY, INT32, INT64, Column
from icesize.parquet.format.sources import Source
from icesize.parquet.format.statistics import Order, order_of
from icesize.parquet.format.thrift import (
    BOOLEAN_FALSE,
    BOOLEAN_TRUE,
    LIST,
    Fields,
    binaries_of,
    binary,
    boolean,
    integer,
    integers_of,
    raw_of,
    read_list_header,
    read_struct,
    required_integer,
    struct_of,
    structs_of,
)
from icesize.parquet.verify.values import Extremes, Leaves, ValueReader, extremes_of, is_unsigned

MOST_PROBLEMS = 20
"""Told of one column chunk; a damaged one may have one for each page."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found: `problems` begin with the file's name and the place; bounds of `unchecked` columns have no order
    that is known.

    `row_groups` are those with rows, `pages` the data pages that could be found.
    """

    problems: tuple[str, ...]
    unchecked: tuple[str, ...] = ()
    row_groups: int = 0
    rows: int = 0
    pages: int = 0


def verify(source: Source, name: str) -> Verification:
    """Verify one file; `name` stands before each problem. Raises `OSError` when not even its end can be read."""
    try:
        footer = read_footer(source)
    except CopyRefused as error:
        return Verification((f"{name}: footer: {error}",))
    problems = list(_told(name, "footer", _check_footer(source, footer)))
    try:
        reader = ValueReader(source.stream(), footer)
    except DAMAGE as error:
        return Verification((*problems, f"{name}: footer: values {unreadable(error)}"))
    file = OpenFile(source, footer, _ordered(footer), reader)
    with closing(reader):
        for group in range(len(footer.row_groups)):
            problems += _check_group(file, name, group)
    columns = zip(footer.columns, file.ordered, strict=True)
    unchecked = tuple(".".join(c.path) for c, ordered in columns if not ordered or order_of(c.element) is None)
    return Verification(tuple(problems), unchecked, len(footer.row_groups), footer.rows, file.pages)


def _check_group(file: OpenFile, name: str, number: int) -> Iterator[str]:
    place, group = f"row group {number}", file.footer.row_groups[number]
    yield from _told(name, place, _check_sizes(group))
    for at, column in enumerate(file.footer.columns):
        problems = check_chunk(file, number, at)
        yield from _told(name, f"{place}, column {'.'.join(column.path)!r}", problems)


def _told(name: str, place: str, problems: Iterable[str]) -> Iterator[str]:
    found = readable(problems)
    yield from (f"{name}: {place}: {problem}" for problem in islice(found, MOST_PROBLEMS))
    if next(found, None) is not None:
        yield f"{name}: {place}: further problems are left out"


def _check_footer(source: Source, footer: Footer) -> Iterator[str]:
    """pyarrow must read the same from the footer, the schema included."""
    orders = structs_of(footer.fields, FileMetaData.COLUMN_ORDERS)
    if orders and len(orders) != len(footer.columns):
        yield f"column_orders has {len(orders)} entries for {len(footer.columns)} columns"
    with source.stream() as stream, pq.ParquetFile(stream) as file:
        metadata = file.metadata
        if metadata.num_rows != footer.rows or metadata.num_columns != len(footer.columns):
            yield f"pyarrow sees {metadata.num_rows} rows of {metadata.num_columns} columns"


def _check_sizes(group: RowGroup) -> Iterator[str]:
    """Sums over the columns, and where readers split the file."""
    raw_size_bytes = sum(c.raw_size_bytes for c in group.chunks)
    claims = {
        "total_byte_size": (RowGroupIds.TOTAL_BYTE_SIZE, raw_size_bytes),
        "total_compressed_size": (RowGroupIds.TOTAL_COMPRESSED_SIZE, group.size_bytes),
        "file_offset": (RowGroupIds.FILE_OFFSET, min(chunk.start for chunk in group.chunks)),
    }
    for claim, (field_id, real) in claims.items():
        found = integer(group.fields, field_id)
        if found is not None and found != real:
            yield f"{claim} is {found}, it should be {real}"


def _ordered(footer: Footer) -> list[bool]:
    """Whether bounds of each column are ordered as its type defines; files that do not say so are taken to mean it."""
    try:
        orders = structs_of(footer.fields, FileMetaData.COLUMN_ORDERS)
    except DamagedFile:  # which is told of the footer
        return [False] * len(footer.columns)
    if len(orders) != len(footer.columns):
        return [True] * len(footer.columns)
    return [ColumnOrder.TYPE_ORDER in order for order in orders]


DAMAGE = (CopyRefused, pa.ArrowException, OSError)
"""What our own readers and pyarrow raise for bytes that cannot be what they should be."""


@dataclass(slots=True)
class OpenFile:
    """A file that is verified; `ordered` says of each column whether its bounds are ordered as its type defines.

    `pages` counts the data pages that were found.
    """

    source: Source
    footer: Footer
    ordered: Sequence[bool]
    reader: ValueReader
    pages: int = 0


def readable(problems: Iterable[str]) -> Iterator[str]:
    """The problems that a check finds, the last one that it could not read on."""
    try:
        yield from problems
    except DAMAGE as error:
        yield unreadable(error)


def unreadable(error: Exception) -> str:
    """The problem that an exception of `DAMAGE` tells of."""
    first, *_ = str(error).strip().splitlines() or [type(error).__name__]
    return f"cannot be read: {first}"


def check_chunk(file: OpenFile, group: int, at: int) -> Iterator[str]:
    """Compare a column chunk with its metadata, statistics, page indexes and bloom filter.

    Raises what `readable` turns into a problem when pages or values cannot be read.
    """
    column, chunk = file.footer.columns[at], file.footer.row_groups[group].chunks[at]
    pages = walk(file.source.read(chunk.start, chunk.size_bytes), column.flat, chunk.values)
    file.pages += len(pages.data)
    yield from readable(check_metadata(chunk, pages))
    leaves = file.reader.read(group, at)
    rows = file.footer.row_groups[group].rows
    if leaves.rows != rows or leaves.entries[-1] != chunk.values:
        yield f"{leaves.rows} rows and {leaves.entries[-1]} values were read of {rows} and {chunk.values}"
        return
    yield from readable(check_statistics(column, chunk, leaves, file.ordered[at]))
    yield from readable(check_size_statistics(column, chunk, leaves))
    yield from _check_indexes(file, at, chunk, pages.data, leaves)
    yield from readable(check_bloom_filter(file.source, file.footer.start, chunk, leaves))


def _check_indexes(file: OpenFile, at: int, chunk: Chunk, pages: Sequence[Page], leaves: Leaves) -> Iterator[str]:
    starts, within = row_starts(pages, leaves)
    offset_index, column_index = chunk.offset_index, chunk.column_index
    if within:
        # only v1 pages without an index may
        if offset_index or column_index or pages[within[0]].rows is not None:
            yield f"page {within[0]} begins within a row"
        return
    yield from check_page_rows(pages, starts)
    if offset_index:
        raw = file.source.read(*offset_index)
        yield from readable(check_offset_index(raw, chunk, pages, starts, leaves))
    if column_index and not offset_index:
        yield "it has a column index without an offset index"
    if column_index:
        raw_bounds = file.source.read(*column_index)
        yield from readable(check_column_index(raw_bounds, file.footer.columns[at], starts, leaves, file.ordered[at]))


_ORDERS = {1: "ascending", 2: "descending"}
"""Boundary orders that promise something."""


def check_metadata(chunk: Chunk, pages: Pages) -> Iterator[str]:
    """Compare ColumnMetaData with what page headers say; raises `DamagedFile`."""
    raw_size_bytes = sum(page.raw_size_bytes for page in _all(pages))
    claimed = chunk.raw_size_bytes
    if claimed != raw_size_bytes:
        yield f"total_uncompressed_size is {claimed}, pages have {raw_size_bytes}"
    yield from _check_offsets(chunk, pages)
    yield from _check_encodings(chunk, pages)
    yield from _check_dictionary_order(pages)


def row_starts(pages: Sequence[Page], leaves: Leaves) -> tuple[list[int], list[int]]:
    """First row of each page, with the number of rows at the end; and the pages that begin within a row.

    The pages have all values of the chunk.
    """
    positions = np.cumsum([0, *(page.values for page in pages)])
    # rows without entries do not exist: each position is found once
    rows = np.searchsorted(leaves.entries, positions)
    within = np.flatnonzero(leaves.entries[rows] != positions)
    return rows.tolist(), within.tolist()


def check_page_rows(pages: Sequence[Page], starts: Sequence[int]) -> Iterator[str]:
    """Compare the numbers of rows in page headers with the values' own."""
    for number, page in enumerate(pages):
        rows = starts[number + 1] - starts[number]
        if page.rows is not None and page.rows != rows:
            yield f"page {number} has num_rows {page.rows}, there are {rows}"


def check_offset_index(
    raw: bytes, chunk: Chunk, pages: Sequence[Page], starts: Sequence[int], leaves: Leaves
) -> Iterator[str]:
    """Compare an OffsetIndex with the pages; raises `CopyRefused` when it cannot be read."""
    locations, variable_bytes = read_offset_index(raw)
    if len(locations) != len(pages):
        yield f"the offset index has {len(locations)} pages of {len(pages)}"
        return
    for number, (location, page) in enumerate(zip(locations, pages, strict=True)):
        claims = {"offset": location.at, "compressed_page_size": location.size_bytes}
        claims["first_row_index"] = location.first_row
        truth = (chunk.start + page.at, page.size_bytes, starts[number])
        for (name, claim), real in zip(claims.items(), truth, strict=True):
            if claim != real:
                yield f"the offset index has {name} {claim} of page {number}, it is {real}"
    if variable_bytes is not None and chunk.type == BYTE_ARRAY:
        real_bytes = [byte_array_bytes(leaves.of_rows(*rows)) for rows in pairwise(starts)]
        if variable_bytes != real_bytes:
            yield "the offset index has wrong sizes of byte arrays"


def check_column_index(
    raw: bytes, column: Column, starts: Sequence[int], leaves: Leaves, ordered: bool
) -> Iterator[str]:
    """Compare a ColumnIndex with the values of each page; raises `DamagedFile`.

    Histograms of levels are not compared. Bounds are when the column is `ordered` as its type defines.
    """
    fields, end = read_struct(raw)
    if end != len(raw):
        raise DamagedFile("bytes follow the column index")
    pages = len(starts) - 1
    null_pages = _booleans_of(fields, ColumnIndex.NULL_PAGES)
    lists: dict[str, Sequence[object]] = {
        "null_pages": null_pages,
        "min_values": binaries_of(fields, ColumnIndex.MIN_VALUES),
        "max_values": binaries_of(fields, ColumnIndex.MAX_VALUES),
        "null_counts": range(pages) if (counts := _null_counts(fields)) is None else counts,
    }
    wrong = [
        f"the column index has {len(found)} {name} of {pages}" for name, found in lists.items() if len(found) != pages
    ]
    yield from wrong
    if wrong:
        return
    yield from _check_nulls(fields, null_pages, starts, leaves)
    if ordered:
        yield from _check_bounds(fields, column, starts, leaves)
        yield from _check_boundary_order(fields, column)


def _null_counts(fields: Fields) -> list[int] | None:
    return integers_of(fields, ColumnIndex.NULL_COUNTS) if ColumnIndex.NULL_COUNTS in fields else None


def _booleans_of(fields: Fields, field_id: int) -> list[bool]:
    data = raw_of(fields, field_id, LIST)
    count, kind, at = read_list_header(data, 0)
    if count and kind not in (BOOLEAN_TRUE, BOOLEAN_FALSE):
        raise DamagedFile(f"field {field_id} is not a list of booleans")
    return [byte == BOOLEAN_TRUE for byte in data[at : at + count]]


def _all(pages: Pages) -> list[Page]:
    return pages.data if pages.dictionary is None else [pages.dictionary, *pages.data]


def _check_offsets(chunk: Chunk, pages: Pages) -> Iterator[str]:
    claimed, data = chunk.dictionary_offset, chunk.data_offset
    if pages.dictionary is None and claimed:
        yield f"dictionary_page_offset is {claimed}, there is no dictionary"
    elif pages.dictionary is not None and claimed != chunk.start:
        yield f"dictionary_page_offset is {claimed}, it is at {chunk.start}"
    if pages.data and data != chunk.start + pages.data[0].at:
        yield f"data_page_offset is {data}, the first page is at {chunk.start + pages.data[0].at}"


def _check_encodings(chunk: Chunk, pages: Pages) -> Iterator[str]:
    missing = {page.encoding for page in pages.data} - chunk.encodings
    if missing:
        yield f"encodings lack {sorted(missing)}"
    if ColumnMetaData.ENCODING_STATS not in chunk.metadata:
        return
    claimed: Counter[tuple[int, int]] = Counter()
    for fields in structs_of(chunk.metadata, ColumnMetaData.ENCODING_STATS):
        kind = _kind(required_integer(fields, PageEncodingStats.PAGE_TYPE))
        encoding = required_integer(fields, PageEncodingStats.ENCODING)
        claimed[kind, encoding] += required_integer(fields, PageEncodingStats.COUNT)
    has_dictionary = any(kind == DICTIONARY_PAGE for kind, _ in claimed)
    counted = _all(pages) if has_dictionary else pages.data
    real = Counter((_kind(page.type), page.encoding) for page in counted)
    if claimed != real:
        yield f"encoding_stats are {_readable(claimed)}; pages are {_readable(real)}"


def _kind(page_type: int) -> int:
    """pyarrow counts data pages of both versions as those of the first."""
    return DATA_PAGE if page_type == DATA_PAGE_V2 else page_type


def _readable(counts: Counter[tuple[int, int]]) -> str:
    names = {DATA_PAGE: "data", DICTIONARY_PAGE: "dictionary"}
    return ", ".join(f"{n} {names.get(kind, kind)} in encoding {e}" for (kind, e), n in sorted(counts.items()))


def _check_dictionary_order(pages: Pages) -> Iterator[str]:
    coded = [page.encoding in DICTIONARY_ENCODINGS for page in pages.data]
    late = [number for number in range(1, len(coded)) if coded[number] and not coded[number - 1]]
    if late:
        yield f"page {late[0]} is coded by a dictionary and follows one of another encoding"
    if any(coded) and pages.dictionary is None:
        yield "pages are coded by a dictionary, there is none"


def _check_nulls(fields: Fields, null_pages: Sequence[bool], starts: Sequence[int], leaves: Leaves) -> Iterator[str]:
    claims = _null_counts(fields)
    for number, (first, end) in enumerate(pairwise(starts)):
        nulls = leaves.nulls_of(first, end)
        values = int(leaves.entries[end] - leaves.entries[first]) - nulls
        if null_pages[number] != (values == 0):
            yield f"the column index has page {number} as {'null' if values else 'not null'}, it has {values} values"
        if claims is not None and claims[number] != nulls:
            yield f"the column index has null_count {claims[number]} of page {number}, there are {nulls}"


def _bounds(fields: Fields) -> Iterator[tuple[int, bytes, bytes]]:
    """Number, min and max of the pages that are not null."""
    lows, highs = binaries_of(fields, ColumnIndex.MIN_VALUES), binaries_of(fields, ColumnIndex.MAX_VALUES)
    both = zip(_booleans_of(fields, ColumnIndex.NULL_PAGES), lows, highs, strict=True)
    return ((number, low, high) for number, (null, low, high) in enumerate(both) if not null)


def _check_bounds(fields: Fields, column: Column, starts: Sequence[int], leaves: Leaves) -> Iterator[str]:
    order, find = order_of(column.element), extremes_of(column.element)
    if order is None or find is None:
        return
    for number, low, high in _bounds(fields):
        extremes = find(leaves.of_rows(starts[number], starts[number + 1]))
        yield from check_bound(Bound(f"the column index's min of page {number}", low, True), order, extremes)
        yield from check_bound(Bound(f"the column index's max of page {number}", high, False), order, extremes)


def _check_boundary_order(fields: Fields, column: Column) -> Iterator[str]:
    name, order = _ORDERS.get(required_integer(fields, ColumnIndex.BOUNDARY_ORDER)), order_of(column.element)
    if name is None or order is None:
        return
    for number, keys in enumerate(zip(*((order(low), order(high)) for _, low, high in _bounds(fields)), strict=True)):
        expected = _sorted(keys, name == "descending")
        if expected is not None and list(keys) != expected:
            yield f"the column index's {('min', 'max')[number]} values are not {name}, as its boundary order says"


def _sorted(keys: Sequence[Any], descending: bool) -> list[Any] | None:
    """None where some are no values or NaN, which is reported elsewhere."""
    return None if any(key is None or key != key for key in keys) else sorted(keys, reverse=descending)


_NUMBERS = range(6)
"""Physical types that are numbers, booleans among them."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound as it is stored; `exact` is the claim that a value equals it."""

    name: str
    raw: bytes
    is_lower: bool
    exact: bool = False


def check_statistics(column: Column, chunk: Chunk, leaves: Leaves, ordered: bool) -> Iterator[str]:
    """Compare Statistics of a chunk with its values; raises `DamagedFile`.

    Bounds are compared when the column is `ordered` as its type defines. The number of distinct values is not.
    """
    fields = chunk.statistics
    nulls = integer(fields, Statistics.NULL_COUNT)
    if nulls is not None and nulls != leaves.nulls:
        yield f"statistics have null_count {nulls}, there are {leaves.nulls}"
    order, find = order_of(column.element), extremes_of(column.element)
    bounds = list(_bounds_of(column, fields))
    if order is None or find is None or not ordered or not bounds:
        return
    extremes = find(leaves.values)
    for bound in bounds:
        yield from check_bound(bound, order, extremes)


def check_bound(bound: Bound, order: Order, extremes: Extremes | None) -> Iterator[str]:
    """Compare a bound with the least and greatest of its values, None when there are none but nulls and NaN."""
    key = order(bound.raw)
    if key is None:
        yield f"{bound.name} {bound.raw!r} is no value of the type"
    elif key != key:
        yield f"{bound.name} is NaN"
    elif extremes is not None:
        value = extremes[0] if bound.is_lower else extremes[1]
        within = _rank(key) <= _rank(value) if bound.is_lower else _rank(key) >= _rank(value)
        extreme = "least" if bound.is_lower else "greatest"
        if not within:
            yield f"{bound.name} is {key!r}, the {extreme} value {value!r}"
        elif bound.exact and key != value:
            yield f"{bound.name} {key!r} is called exact, the {extreme} value is {value!r}"


def check_size_statistics(column: Column, chunk: Chunk, leaves: Leaves) -> Iterator[str]:
    """Compare SizeStatistics with the values; raises `DamagedFile`.

    Of histograms of levels only sums, the number of rows and the number of values are compared.
    """
    fields = chunk.size_statistics
    claimed = integer(fields, SizeStatistics.UNENCODED_BYTE_ARRAY_DATA_BYTES)
    if (
        claimed is not None
        and column.element.type == BYTE_ARRAY
        and claimed != (real := byte_array_bytes(leaves.values))
    ):
        yield f"size statistics have {claimed} bytes of byte arrays, there are {real}"
    repetition = integers_of(fields, SizeStatistics.REPETITION_LEVEL_HISTOGRAM)
    definition = integers_of(fields, SizeStatistics.DEFINITION_LEVEL_HISTOGRAM)
    entries = int(leaves.entries[-1])
    for name, histogram in (("repetition", repetition), ("definition", definition)):
        if histogram and sum(histogram) != entries:
            yield f"the histogram of {name} levels has {sum(histogram)} entries of {entries}"
    if repetition and repetition[0] != leaves.rows:
        yield f"the histogram of repetition levels has {repetition[0]} rows of {leaves.rows}"
    if definition and definition[-1] != entries - leaves.nulls:
        yield f"the histogram of definition levels has {definition[-1]} values of {entries - leaves.nulls}"


def byte_array_bytes(values: Any) -> int:
    """Bytes of byte arrays as they would be without encoding, lengths left out."""
    return pc.sum(pc.binary_length(values)).as_py() or 0


def _bounds_of(column: Column, fields: Fields) -> Iterator[Bound]:
    lower_exact = bool(boolean(fields, Statistics.IS_MIN_VALUE_EXACT))
    upper_exact = bool(boolean(fields, Statistics.IS_MAX_VALUE_EXACT))
    if (raw := binary(fields, Statistics.MIN_VALUE)) is not None:
        yield Bound("min_value", raw, True, lower_exact)
    if (raw := binary(fields, Statistics.MAX_VALUE)) is not None:
        yield Bound("max_value", raw, False, upper_exact)
    if column.element.type in _NUMBERS and not is_unsigned(column.element):
        for name, field in (("min", Statistics.MIN), ("max", Statistics.MAX)):
            if (raw := binary(fields, field)) is not None:
                yield Bound(name, raw, field == Statistics.MIN)


def _rank(key: Any) -> tuple[Any, float]:
    """-0.0 before 0.0."""
    return key, math.copysign(1.0, key) if isinstance(key, float) else 0.0


_HEADER_BYTES = 128
"""More than a header can have."""
_BLOCK_BYTES = 32
_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], dtype=np.uint32
)


def check_bloom_filter(source: Source, footer_start: int, chunk: Chunk, leaves: Leaves) -> Iterator[str]:
    """Look up every value of integers and bytes in the filter; raises `DamagedFile`, `CopyRefused`."""
    offset = integer(chunk.metadata, ColumnMetaData.BLOOM_FILTER_OFFSET)
    if offset is None:
        return
    header, header_bytes = read_struct(source.read(offset, max(0, min(_HEADER_BYTES, footer_start - offset))))
    size_bytes = required_integer(header, BloomFilterHeader.NUM_BYTES)
    length = integer(chunk.metadata, ColumnMetaData.BLOOM_FILTER_LENGTH)
    if size_bytes <= 0 or size_bytes % _BLOCK_BYTES or offset + header_bytes + size_bytes > footer_start:
        yield f"the bloom filter has {size_bytes} bytes at {offset}"
    elif length is not None and length != header_bytes + size_bytes:
        yield f"bloom_filter_length is {length}, it has {header_bytes + size_bytes}"
    elif _is_known(header):
        bits = np.frombuffer(source.read(offset + header_bytes, size_bytes), dtype="<u4").reshape(-1, 8)
        missing = int((~_contains(bits, _hashes(leaves.values, chunk))).sum())
        if missing:
            yield f"the bloom filter lacks {missing} values"


def _is_known(header: Fields) -> bool:
    """Blocks, xxHash, no compression: the only ones there are."""
    fields = (BloomFilterHeader.ALGORITHM, BloomFilterHeader.HASH, BloomFilterHeader.COMPRESSION)
    unions = [struct_of(header, field_id) for field_id in fields]
    if any(union is None for union in unions):
        raise DamagedFile("a bloom filter without algorithm, hash or compression")
    return all(union is not None and 1 in union for union in unions)


def _hashes(values: Any, chunk: Chunk) -> npt.NDArray[np.uint64]:
    kind = chunk.type
    unique = pc.unique(values.drop_null())
    if kind in (INT32, INT64):
        width = 4 if kind == INT32 else 8
        data = unique.to_numpy().astype(f"<i{width}").tobytes()
        plain = [data[at : at + width] for at in range(0, len(data), width)]
    else:
        plain = unique.to_pylist() if kind in (BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY) else []
    return np.array([xxhash.xxh64_intdigest(value) for value in plain], dtype=np.uint64)


def _contains(blocks: npt.NDArray[np.uint32], hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    numbers = (hashes >> np.uint64(32)) * np.uint64(len(blocks)) >> np.uint64(32)
    keys = hashes.astype(np.uint32)  # the lower half
    masks = np.uint32(1) << ((keys[:, None] * _SALT) >> np.uint32(27))
    return np.asarray((blocks[numbers] & masks != 0).all(axis=1), dtype=np.bool_)
