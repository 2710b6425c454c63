"""Which way the bytes of each input file go: whole row groups, single pages, or decoded.

Pure: decides on footers that were read before. The thresholds were measured (docstrings of the constants); each costs
speed when it is wrong, never rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa
import pyarrow.parquet as pq

from icesize.parquet.copying.compatibility import check_file, column_orders
from icesize.parquet.files.metrics import leaves
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.chunk_checks import check_row_group
from icesize.parquet.format.fields import ColumnMetaData, PageEncodingStats
from icesize.parquet.format.footer import Chunk, Footer, RowGroup, read_footer
from icesize.parquet.format.pages import DATA_PAGES
from icesize.parquet.format.refusals import UNREADABLE, CopyRefused, Refusal
from icesize.parquet.format.schema import REPEATED, Element
from icesize.parquet.format.sources import BytesSource, Readable
from icesize.parquet.format.thrift import MalformedError, required_integer, structs_of
from icesize.parquet.ordering.sort_order import sorter_of
from icesize.planning.files import FileFact

GOOD_GROUP_BYTES = 8 * 2**20
"""Row groups from this size on are copied whole: smaller ones cost readers more than merging their pages does."""
GOOD_GROUP_ROWS = 100_000
"""Row groups with as many rows are copied whole, too, unless their chunks are below `LEAST_CHUNK_BYTES`: hundreds of
those in a file cost more in its footer than they hold, so their pages are joined."""
LEAST_CHUNK_BYTES = 16 * 2**10
"""Mean size of a column chunk from which on pages are copied: a chunk costs 0.1 ms in Python, and decoding it no more
where it is smaller."""
LEAST_PAGE_ROWS = 2_000
LEAST_PAGE_BYTES = 32 * 2**10
"""Pages must have as many rows, or as many bytes, on average: smaller ones make scans slower (1,000 rows per page cost
Spark 12 %)."""
LEAST_COPIED_BYTES = 256 * 2**10
"""A merge that could copy less than this is decoded as a whole: looking at footers costs 1-3 ms, as decoding this does
(three files of 211 KiB take 7 ms when they are copied, 15 ms when they are decoded)."""


class CopyStrategy(Enum):
    """What is done with a row group."""

    ROW_GROUPS = "splice"
    PAGES = "pages"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a table asks of its files: `schema` as our own writer writes it, `codec` (parquet.thrift) if the table names
    one, and the field ids of columns with bloom filters."""

    schema: tuple[Element, ...]
    codec: int | None = None
    bloom_filters: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Judged:
    """One input file: the lane of each of its row groups, or why all of it is decoded."""

    strategies: tuple[CopyStrategy, ...] = ()
    refused: CopyRefused | None = None


def is_tiny(size_bytes: int, rows: int, columns: int) -> bool:
    """Whether a file cannot be worth copying, by what its manifest entry says: no need to read its footer."""
    if rows >= GOOD_GROUP_ROWS:
        return False  # however few bytes: decoding so many rows takes longer than looking
    chunk_bytes = size_bytes / max(1, columns)
    return chunk_bytes < LEAST_CHUNK_BYTES or (rows < LEAST_PAGE_ROWS and chunk_bytes < LEAST_PAGE_BYTES)


def judge(footers: Sequence[Footer | CopyRefused], wanted: Wanted) -> list[Judged]:
    """The lanes of each file. Those that are copied may lie in one file: of differing schemas the one of most bytes is
    chosen, and of differing codecs among files whose pages are copied one by one.
    """
    judged = [Judged(refused=f.alone()) if isinstance(f, CopyRefused) else _alone(f, wanted) for f in footers]
    files = [(n, f) for n, f in enumerate(footers) if isinstance(f, Footer) and judged[n].refused is None]
    _keep_most(judged, files, lambda footer: (footer.meaning, column_orders(footer)), Refusal.SCHEMA_DIFFERS)
    paged = [(n, footer) for n, footer in files if CopyStrategy.PAGES in judged[n].strategies]
    _keep_most(judged, paged, _codecs, Refusal.CODEC)
    return judged


def _keep_most(
    judged: list[Judged], files: Sequence[tuple[int, Footer]], kind: Callable[[Footer], Hashable], code: Refusal
) -> None:
    """Refuse the files, by number, that are not of the kind that most bytes are of."""
    kinds = [kind(footer) for _, footer in files]
    sizes: defaultdict[Hashable, int] = defaultdict(int)
    for found, (_, footer) in zip(kinds, files, strict=True):
        sizes[found] += footer.start
    common = max(sizes, key=lambda found: sizes[found], default=None)
    for found, (number, _) in zip(kinds, files, strict=True):
        if found != common:
            judged[number] = Judged(refused=CopyRefused(code))


def _codecs(footer: Footer) -> frozenset[int]:
    return frozenset(chunk.codec for group in footer.row_groups for chunk in group.chunks)


def _alone(footer: Footer, wanted: Wanted) -> Judged:
    refused = _refusal(footer, wanted)
    return _strategies(footer, wanted) if refused is None else Judged(refused=refused.alone())


def _refusal(footer: Footer, wanted: Wanted) -> CopyRefused | None:
    try:
        check_file(footer)
    except CopyRefused as refused:
        return refused
    if not same_columns(footer.schema, wanted.schema):
        return CopyRefused(Refusal.SCHEMA_EVOLVED)
    chunks = [chunk for group in footer.row_groups for chunk in group.chunks]
    if wanted.codec is not None and any(chunk.codec != wanted.codec for chunk in chunks):
        return CopyRefused(Refusal.CODEC)
    return None


def same_columns(schema: Sequence[Element], wanted: Sequence[Element]) -> bool:
    """Whether a file has exactly these columns, by field id, with these types; names, and which values may be null, do
    not matter to Iceberg's readers."""
    return list(map(_column, schema[1:])) == list(map(_column, wanted[1:]))


def _column(element: Element) -> tuple[object, ...]:
    repeated = element.repetition == REPEATED
    return element.field_id, element.type, element.length, element.logical, element.children, repeated


def _strategies(footer: Footer, wanted: Wanted) -> Judged:
    try:
        for group in footer.row_groups:
            check_row_group(group, footer.columns)
        return _judge_groups(footer, wanted)
    except CopyRefused as refused:
        return Judged(refused=refused.alone())
    except MalformedError as error:
        return Judged(refused=CopyRefused(Refusal.CORRUPT_FOOTER, str(error)))


def _judge_groups(footer: Footer, wanted: Wanted) -> Judged:
    """A file whose bytes are mostly worth copying is copied as a whole, odd small row groups too."""
    if not footer.row_groups:
        return Judged(refused=CopyRefused(Refusal.TINY))
    pages = [_data_pages(group) for group in footer.row_groups]
    strategies = [_strategy_of(group, count) for group, count in zip(footer.row_groups, pages, strict=True)]
    worth = sum(
        g.size_bytes
        for g, strategy in zip(footer.row_groups, strategies, strict=True)
        if strategy is not CopyStrategy.DECODE
    )
    if 2 * worth < sum(group.size_bytes for group in footer.row_groups):
        return Judged(refused=CopyRefused(Refusal.TINY))
    copied = tuple(CopyStrategy.PAGES if strategy is CopyStrategy.DECODE else strategy for strategy in strategies)
    if wanted.bloom_filters and not _keeps_filters(footer, copied, wanted.bloom_filters):
        return Judged(refused=CopyRefused(Refusal.BLOOM_FILTER))
    return Judged(copied)


def _strategy_of(group: RowGroup, pages: int) -> CopyStrategy:
    columns = len(group.chunks)
    is_small = group.size_bytes < LEAST_CHUNK_BYTES * columns
    if group.size_bytes >= GOOD_GROUP_BYTES or (group.rows >= GOOD_GROUP_ROWS and not is_small):
        return CopyStrategy.ROW_GROUPS
    if is_small and group.rows < GOOD_GROUP_ROWS:
        return CopyStrategy.DECODE
    if group.rows * columns < LEAST_PAGE_ROWS * pages and group.size_bytes < LEAST_PAGE_BYTES * pages:
        return CopyStrategy.DECODE
    return CopyStrategy.PAGES


def _data_pages(group: RowGroup) -> int:
    """Data pages of all columns as the footer counts them; one for each column where it does not."""
    return sum(data_pages(chunk) for chunk in group.chunks)


def data_pages(chunk: Chunk) -> int:
    """The same of one column."""
    counts = structs_of(chunk.metadata, ColumnMetaData.ENCODING_STATS)
    of_data = [c for c in counts if required_integer(c, PageEncodingStats.PAGE_TYPE) in DATA_PAGES]
    return sum(required_integer(c, PageEncodingStats.COUNT) for c in of_data) or 1


def _keeps_filters(footer: Footer, strategies: Sequence[CopyStrategy], bloom_filters: frozenset[int]) -> bool:
    """Whether the copy has the bloom filters that the table asks for: pages that move get no new ones."""
    asked = [i for i, column in enumerate(footer.columns) if column.element.field_id in bloom_filters]
    if not asked:
        return True
    return all(strategy is CopyStrategy.ROW_GROUPS for strategy in strategies) and all(
        group.chunks[i].bloom_filter is not None for group in footer.row_groups for i in asked
    )


_CODECS = {"none": 0, "snappy": 1, "gzip": 2, "zstd": 6, "lz4": 7}
"""Names of `ParquetOptions.codec` -> CompressionCodec of parquet.thrift."""


_CODEC_PROPERTY = "write.parquet.compression-codec"


def forbidden(settings: WriteSettings) -> Refusal | None:
    """Why no merge of this table may copy anything; None when they may."""
    if not settings.merge_by_copying:
        return Refusal.COPYING_OFF
    return None if sorter_of(settings) is None else Refusal.SORTED


def likely_copied(files: Iterable[FileFact], settings: WriteSettings) -> list[FileFact]:
    """The files that are not too small to be worth a look at their footers, by their manifest entries."""
    columns = len(leaves(settings))
    return [file for file in files if not is_tiny(file.size_bytes, file.rows, columns)]


def footer_or_refusal(source: Readable) -> Footer | CopyRefused:
    """The footer of a file, or what is wrong with it, to be kept."""
    try:
        return read_footer(source)
    except CopyRefused as refused:
        return refused.alone()
    except UNREADABLE as error:
        return CopyRefused(Refusal.SHORT_READ, str(error))


def wanted_of(settings: WriteSettings) -> Wanted:
    """What the table asks of files, read from the footer that our own writer gives to one without rows."""
    sink = pa.BufferOutputStream()
    options = settings.parquet
    pq.write_table(settings.arrow_schema.empty_table(), sink, store_schema=False, store_decimal_as_integer=True)
    schema = read_footer(BytesSource(memoryview(sink.getvalue()))).schema
    codec = _CODECS[options.codec] if _CODEC_PROPERTY in settings.properties else None
    filters = frozenset(leaf.field_id for leaf in leaves(settings) if leaf.name in options.bloom_fpp)
    return Wanted(schema, codec, filters)
