"""One column chunk, read and compared with everything that its file says about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from icesize.parquet.format.footer import Chunk, Footer
from icesize.parquet.format.pages import Page, walk
from icesize.parquet.format.refusals import CopyRefused
from icesize.parquet.format.sources import Source
from icesize.parquet.format.thrift import MalformedError
from icesize.parquet.verify.bloom import check_bloom_filter
from icesize.parquet.verify.bounds import check_size_statistics, check_statistics
from icesize.parquet.verify.pages import (
    check_column_index,
    check_metadata,
    check_offset_index,
    check_page_rows,
    row_starts,
)
from icesize.parquet.verify.values import Leaves, ValueReader

DAMAGE = (CopyRefused, MalformedError, pa.ArrowException, OSError)
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


def readable(check: Callable[[], Iterable[str]]) -> Iterator[str]:
    """The problems that a check finds, the last one that it could not read on."""
    try:
        yield from check()
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
    yield from readable(lambda: check_metadata(chunk, pages))
    leaves = file.reader.read(group, at)
    rows = file.footer.row_groups[group].rows
    if leaves.rows != rows or leaves.entries[-1] != chunk.values:
        yield f"{leaves.rows} rows and {leaves.entries[-1]} values were read of {rows} and {chunk.values}"
        return
    yield from readable(lambda: check_statistics(column, chunk.statistics, leaves, file.ordered[at]))
    yield from readable(lambda: check_size_statistics(column, chunk.size_statistics, leaves))
    yield from _check_indexes(file, at, chunk, pages.data, leaves)
    yield from readable(lambda: check_bloom_filter(file.source, file.footer.start, chunk, leaves))


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
        yield from readable(lambda: check_offset_index(raw, chunk, pages, starts, leaves))
    if column_index and not offset_index:
        yield "it has a column index without an offset index"
    if column_index:
        raw_bounds = file.source.read(*column_index)
        yield from readable(
            lambda: check_column_index(raw_bounds, file.footer.columns[at], starts, leaves, file.ordered[at])
        )
