"""Reads a Parquet file completely and compares what it says about itself with what it has.

`python -m icesize.parquet.verify FILE...` prints a line per problem and ends with 1 if there is one. Any writer's file
can be verified; the memory of one column of one row group is needed.

Not compared: numbers of distinct values, sorting columns, statistics and null counts in page headers, histograms of
levels but for their sums and ends, bounds of types without a known order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

import pyarrow.parquet as pq

from icesize.parquet.format.fields import ColumnMetaData, ColumnOrder, FileMetaData
from icesize.parquet.format.fields import RowGroup as RowGroupIds
from icesize.parquet.format.footer import Chunk, Footer, RowGroup, read_footer
from icesize.parquet.format.refusals import CopyRefused
from icesize.parquet.format.sources import Source
from icesize.parquet.format.statistics import order_of
from icesize.parquet.format.thrift import integer, required_integer, structs_of
from icesize.parquet.verify.chunk import DAMAGE, OpenFile, check_chunk, readable, unreadable
from icesize.parquet.verify.values import ValueReader

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
        reader = ValueReader(source, footer)
    except DAMAGE as error:
        return Verification((*problems, f"{name}: footer: values {unreadable(error)}"))
    file = OpenFile(source, footer, _ordered(footer), reader)
    with closing(reader):
        for group in range(len(footer.row_groups)):
            problems += _check_group(file, name, group)
    return Verification(tuple(problems), _unchecked(file), len(footer.row_groups), footer.rows, file.pages)


def _check_group(file: OpenFile, name: str, number: int) -> Iterator[str]:
    place, group = f"row group {number}", file.footer.row_groups[number]
    yield from _told(name, place, _check_sizes(group))
    for at, column in enumerate(file.footer.columns):
        problems = check_chunk(file, number, at)
        yield from _told(name, f"{place}, column {'.'.join(column.path)!r}", problems)


def _told(name: str, place: str, problems: Iterable[str]) -> Iterator[str]:
    found = readable(lambda: problems)
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
    claims = {
        "total_byte_size": (RowGroupIds.TOTAL_BYTE_SIZE, sum(map(_raw_size_bytes, group.chunks))),
        "total_compressed_size": (RowGroupIds.TOTAL_COMPRESSED_SIZE, group.size_bytes),
        "file_offset": (RowGroupIds.FILE_OFFSET, min(chunk.start for chunk in group.chunks)),
    }
    for claim, (field_id, real) in claims.items():
        found = integer(group.fields, field_id)
        if found is not None and found != real:
            yield f"{claim} is {found}, it should be {real}"


def _raw_size_bytes(chunk: Chunk) -> int:
    return required_integer(chunk.metadata, ColumnMetaData.TOTAL_UNCOMPRESSED_SIZE)


def _ordered(footer: Footer) -> list[bool]:
    """Whether bounds of each column are ordered as its type defines; files that do not say so are taken to mean it."""
    orders = structs_of(footer.fields, FileMetaData.COLUMN_ORDERS)
    if len(orders) != len(footer.columns):
        return [True] * len(footer.columns)
    return [ColumnOrder.TYPE_ORDER in order for order in orders]


def _unchecked(file: OpenFile) -> tuple[str, ...]:
    columns = zip(file.footer.columns, file.ordered, strict=True)
    return tuple(".".join(c.path) for c, ordered in columns if not ordered or order_of(c.element) is None)
