"""A Parquet footer that icesize can write again: fields with offsets are parsed, all other bytes are kept."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple

from icesize.parquet.format.fields import ColumnChunk, ColumnMetaData, FileMetaData, KeyValue
from icesize.parquet.format.fields import RowGroup as RowGroupIds
from icesize.parquet.format.refusals import CopyRefused, DamagedFile, Refusal, damaged_as
from icesize.parquet.format.schema import Column, Element, columns_of, element_of
from icesize.parquet.format.sources import Readable
from icesize.parquet.format.thrift import (
    LIST,
    STRUCT,
    Bytes,
    Fields,
    binaries_field,
    binary,
    i32,
    i64,
    integer,
    integers_of,
    raw_of,
    read_struct,
    read_structs,
    required_integer,
    struct_of,
    structs_of,
)

MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"
_TAIL_BYTES = 64 * 2**10
"""Read at the end of a file; larger footers need a second read."""
_END_BYTES = 8
"""The footer's length and the magic word, after it."""

MOST_FOOTER_BYTES = 16 * 2**20
"""A parsed footer takes about 20 times its size in memory. 200 columns in 100 row groups have 2.3 MB."""


@dataclass(slots=True)
class Chunk:
    """One column chunk, from offset `start` to offset `end` of its file.

    `fields` are those of its ColumnChunk without the ColumnMetaData, and `metadata` are those of the ColumnMetaData.
    `values` also counts nulls. `codec` is the compression (parquet.thrift, CompressionCodec). The first data page
    begins at `data_offset`. The dictionary begins at `dictionary_offset`; the footer may have 0 there, always without a
    dictionary and for some writers also with one.
    """

    fields: Fields
    metadata: Fields
    start: int
    end: int
    values: int
    codec: int
    data_offset: int
    dictionary_offset: int

    @property
    def size_bytes(self) -> int:
        """Compressed bytes of the chunk, page headers included."""
        return self.end - self.start

    @property
    def raw_size_bytes(self) -> int:
        """Bytes of its pages before compression, from the footer."""
        return required_integer(self.metadata, ColumnMetaData.TOTAL_UNCOMPRESSED_SIZE)

    @property
    def encodings(self) -> set[int]:
        """Encodings of values and levels of all its pages."""
        return set(integers_of(self.metadata, ColumnMetaData.ENCODINGS))

    @property
    def statistics(self) -> Fields:
        """Its Statistics, empty if the footer has none."""
        return struct_of(self.metadata, ColumnMetaData.STATISTICS) or {}

    @property
    def size_statistics(self) -> Fields:
        """Its SizeStatistics, empty if the footer has none."""
        return struct_of(self.metadata, ColumnMetaData.SIZE_STATISTICS) or {}

    @property
    def offset_index(self) -> tuple[int, int] | None:
        """(offset, length) of its OffsetIndex, None without one."""
        return _range(self.fields, ColumnChunk.OFFSET_INDEX_OFFSET, ColumnChunk.OFFSET_INDEX_LENGTH)

    @property
    def column_index(self) -> tuple[int, int] | None:
        """(offset, length) of its ColumnIndex, None without one."""
        return _range(self.fields, ColumnChunk.COLUMN_INDEX_OFFSET, ColumnChunk.COLUMN_INDEX_LENGTH)

    @property
    def bloom_filter(self) -> tuple[int, int] | None:
        """(offset, length) of its bloom filter, None if the footer lacks one of the two."""
        return _range(self.metadata, ColumnMetaData.BLOOM_FILTER_OFFSET, ColumnMetaData.BLOOM_FILTER_LENGTH)


class StoredColumn(NamedTuple):
    """A leaf column, and its chunk in one row group."""

    column: Column
    chunk: Chunk


@dataclass(slots=True, eq=False)
class RowGroup:
    """One row group: its `fields` without the columns, its column chunks and its number of rows.

    `lineage` has the columns `_row_id` and `_last_updated_sequence_number` if they are not among the chunks, but the
    file stores them (`icesize.parquet.row_groups.footer_lineage`).
    """

    fields: Fields
    chunks: list[Chunk]
    rows: int
    lineage: tuple[StoredColumn | None, ...] = (None, None)

    @property
    def size_bytes(self) -> int:
        """Compressed bytes of its column chunks."""
        return sum(chunk.size_bytes for chunk in self.chunks)


@dataclass(eq=False)
class Footer:
    """The footer of one file: `fields` are those of FileMetaData without row groups, `start` is the footer's offset.

    `keys` is the key-value metadata. `row_groups` omits groups without rows, because they hold nothing and may have
    senseless offsets. `strict` names the columns whose pages have no definition levels although `schema` has them as
    optional; in that case, `schema` is the schema of another file.
    """

    fields: Fields
    row_groups: list[RowGroup]
    start: int
    schema: tuple[Element, ...]
    columns: tuple[Column, ...]
    keys: dict[bytes, bytes | None] = field(default_factory=dict)
    created_by: str = ""
    strict: frozenset[str] = frozenset()

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.row_groups)

    @property
    def meaning(self) -> tuple[Element, ...]:
        """A value that is equal for files whose row groups may lie in one file; the root's name has no meaning."""
        return self.schema[1:]


def read_footer(source: Readable) -> Footer:
    """Read the footer with one read, or two for a large one.

    Raises `CopyRefused` with the code of the defect, and `OSError` if the file cannot be read.
    """
    size = source.size_bytes
    if size < 12:
        raise CopyRefused(Refusal.NOT_PARQUET, f"{size} bytes")
    tail = source.read(max(0, size - _TAIL_BYTES), min(size, _TAIL_BYTES))
    if tail[-4:] == _ENCRYPTED_MAGIC:
        raise CopyRefused(Refusal.ENCRYPTED)
    if tail[-4:] != MAGIC:
        raise CopyRefused(Refusal.NOT_PARQUET)
    (length,) = struct.unpack("<I", tail[-_END_BYTES:-4])
    if length + 12 > size:
        raise CopyRefused(Refusal.CORRUPT_FOOTER, f"{length} bytes in a file of {size}")
    if length > MOST_FOOTER_BYTES:
        raise CopyRefused(Refusal.LARGE_FOOTER, f"{length} bytes")
    if length + _END_BYTES > len(tail):
        tail = source.read(size - _END_BYTES - length, length + _END_BYTES)
    return parse_footer(tail[len(tail) - _END_BYTES - length : len(tail) - _END_BYTES], size)


@damaged_as(Refusal.CORRUPT_FOOTER)
def parse_footer(raw: bytes, size_bytes: int) -> Footer:
    """Parse the footer of a file of `size_bytes`, and check that its parts lie in the file and add up.

    Raises `CopyRefused`.
    """
    fields, end = read_struct(raw, 0, {FileMetaData.ROW_GROUPS: (LIST, partial(read_structs, parser=_read_group))})
    if FileMetaData.ENCRYPTION_ALGORITHM in fields or FileMetaData.FOOTER_SIGNING_KEY_METADATA in fields:
        # the footer itself is plain: a signature follows it, and columns are encrypted
        raise CopyRefused(Refusal.ENCRYPTED)
    if end != len(raw):
        raise DamagedFile("bytes follow the footer")
    FileMetaData.check(fields)
    required_integer(fields, FileMetaData.VERSION)
    schema, columns = _schema(bytes(raw_of(fields, FileMetaData.SCHEMA, LIST)))
    groups: list[RowGroup] = raw_of(fields, FileMetaData.ROW_GROUPS, LIST)
    del fields[FileMetaData.ROW_GROUPS]
    if sum(group.rows for group in groups) != required_integer(fields, FileMetaData.NUM_ROWS):
        raise DamagedFile("row groups do not have the rows of the file")
    groups = [group for group in groups if group.rows]
    _check_columns(groups, columns)
    start = size_bytes - _END_BYTES - len(raw)
    _check_ranges(groups, start)
    keys = {
        binary(pair, KeyValue.KEY) or b"": binary(pair, KeyValue.VALUE)
        for pair in structs_of(fields, FileMetaData.KEY_VALUE_METADATA)
    }
    created_by = (binary(fields, FileMetaData.CREATED_BY) or b"").decode("utf-8", "replace")
    return Footer(fields, groups, start, schema, columns, keys, created_by)


@lru_cache(64)
def _schema(raw: bytes) -> tuple[tuple[Element, ...], tuple[Column, ...]]:
    """Return elements and leaf columns; cached because most files of a table have the same schema."""
    schema = tuple(read_structs(raw, 0, _read_element)[0])
    return schema, tuple(columns_of(schema))


def _read_element(data: Bytes, at: int) -> tuple[Element, int]:
    """Read one schema element; elements are checked one by one, so that the first of many empty structs raises."""
    fields, end = read_struct(data, at)
    return element_of(fields), end


def _read_group(data: Bytes, at: int) -> tuple[RowGroup, int]:
    fields, end = read_struct(data, at, {RowGroupIds.COLUMNS: (LIST, partial(read_structs, parser=_read_chunk))})
    RowGroupIds.check(fields)
    rows = required_integer(fields, RowGroupIds.NUM_ROWS)
    if min(rows, required_integer(fields, RowGroupIds.TOTAL_BYTE_SIZE)) < 0:
        raise DamagedFile("a row group has a negative number of rows or bytes")
    chunks: list[Chunk] = raw_of(fields, RowGroupIds.COLUMNS, LIST)
    del fields[RowGroupIds.COLUMNS]
    return RowGroup(fields, chunks, rows), end


_IN_CHUNK = {ColumnChunk.META_DATA: (STRUCT, read_struct)}


def _read_chunk(data: Bytes, at: int) -> tuple[Chunk, int]:
    fields, end = read_struct(data, at, _IN_CHUNK)
    ColumnChunk.check(fields)
    if ColumnChunk.CRYPTO_METADATA in fields or ColumnChunk.ENCRYPTED_COLUMN_METADATA in fields:
        raise CopyRefused(Refusal.ENCRYPTED)
    if binary(fields, ColumnChunk.FILE_PATH):
        raise CopyRefused(Refusal.EXTERNAL_FILE)
    metadata: Fields = raw_of(fields, ColumnChunk.META_DATA, STRUCT)
    del fields[ColumnChunk.META_DATA]
    ColumnMetaData.check(metadata)
    if ColumnMetaData.INDEX_PAGE_OFFSET in metadata:
        raise CopyRefused(Refusal.INDEX_PAGE)
    size_bytes = required_integer(metadata, ColumnMetaData.TOTAL_COMPRESSED_SIZE)
    codec = required_integer(metadata, ColumnMetaData.CODEC)
    values = required_integer(metadata, ColumnMetaData.NUM_VALUES)
    if min(size_bytes, codec, values, required_integer(metadata, ColumnMetaData.TOTAL_UNCOMPRESSED_SIZE)) < 0:
        raise DamagedFile("a column chunk has a negative size")
    data_at = required_integer(metadata, ColumnMetaData.DATA_PAGE_OFFSET)
    dictionary_at = integer(metadata, ColumnMetaData.DICTIONARY_PAGE_OFFSET) or 0
    start = dictionary_at if 0 < dictionary_at < data_at else data_at
    return Chunk(fields, metadata, start, start + size_bytes, values, codec, data_at, dictionary_at), end


def _check_columns(groups: Sequence[RowGroup], columns: Sequence[Column]) -> None:
    """Check that each row group has the schema's columns in order, and that flat columns have one value per row."""
    expected = [(*_identity(column), column.flat) for column in columns]
    for group in groups:
        if len(group.chunks) != len(columns):
            raise DamagedFile(f"a row group has {len(group.chunks)} columns of {len(columns)}")
        values = i64(group.rows)
        for chunk, (path, kind, flat) in zip(group.chunks, expected, strict=True):
            metadata = chunk.metadata
            own = metadata.get(ColumnMetaData.PATH_IN_SCHEMA), metadata.get(ColumnMetaData.TYPE)
            if own != (path, kind) or (flat and metadata[ColumnMetaData.NUM_VALUES] != values):
                raise DamagedFile("a column chunk is not of its column in the schema")


def _identity(column: Column) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
    """Return the fields `path_in_schema` and `type` that chunks of a column have."""
    return binaries_field(name.encode() for name in column.path), i32(column.element.type or 0)


def _check_ranges(groups: Sequence[RowGroup], footer_start: int) -> None:
    """Check that chunks, indexes and bloom filters lie between magic bytes and footer, and do not overlap."""
    last = len(MAGIC)
    for start, end in sorted(part for group in groups for chunk in group.chunks for part in _parts(chunk)):
        if start < last or end > footer_start:
            raise CopyRefused(Refusal.CORRUPT_FOOTER, f"bytes {start}-{end}, after {last}, before {footer_start}")
        last = end


def _parts(chunk: Chunk) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the chunk, its indexes and its bloom filter."""
    if chunk.dictionary_offset > chunk.data_offset or chunk.data_offset >= chunk.end:
        raise DamagedFile("a dictionary lies behind its data, or data behind their chunk")
    yield chunk.start, chunk.end
    for part in (chunk.offset_index, chunk.column_index, chunk.bloom_filter):
        if part is not None:
            yield part[0], sum(part)


def _range(fields: Fields, offset_id: int, length_id: int) -> tuple[int, int] | None:
    if offset_id not in fields or length_id not in fields:
        return None
    offset, length = required_integer(fields, offset_id), required_integer(fields, length_id)
    if offset < 0 or length < 0:
        raise DamagedFile("a negative offset or length")
    return (offset, length) if offset and length else None
