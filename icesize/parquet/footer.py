"""A Parquet footer, read so that it can be written again: what holds offsets is parsed, all else kept as it is."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cached_property

from icesize.parquet.footer_schema import Column, Element, columns_of, element_of
from icesize.parquet.refusal import CopyRefused, Refusal
from icesize.parquet.source import Source
from icesize.parquet.thrift import LIST, STRUCT, Bytes, Fields, MalformedError, read_struct, read_structs
from icesize.parquet.thrift_fields import binary, integer, raw_of, required_integer, structs_of

MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"
_TAIL_BYTES = 64 * 2**10
"""Read at the end of a file; larger footers need a second read."""
_END_BYTES = 8
"""The footer's length and the magic word, after it."""

_KNOWN_FIELDS = {"FileMetaData": 9, "RowGroup": 7, "ColumnChunk": 9, "ColumnMetaData": 17}
"""Highest field of the structs that hold absolute offsets (parquet.thrift of format 2.12): a higher one may be an
offset, too."""


@dataclass(slots=True)
class Chunk:
    """One column chunk, from `start` to `end` in its file: its ColumnChunk without the ColumnMetaData, and that."""

    fields: Fields
    metadata: Fields
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Compressed bytes, page headers included."""
        return self.end - self.start

    @property
    def values(self) -> int:
        """Values, nulls included."""
        return required_integer(self.metadata, 5)

    @property
    def codec(self) -> int:
        """Compression (parquet.thrift, CompressionCodec)."""
        return required_integer(self.metadata, 4)

    @property
    def offset_index(self) -> tuple[int, int] | None:
        """(offset, length) of its OffsetIndex."""
        return _range(self.fields, 4, 5)

    @property
    def column_index(self) -> tuple[int, int] | None:
        """(offset, length) of its ColumnIndex."""
        return _range(self.fields, 6, 7)

    @property
    def bloom_filter(self) -> tuple[int, int] | None:
        """(offset, length) of its bloom filter; None when one of them is not known."""
        return _range(self.metadata, 14, 15)


@dataclass(slots=True)
class RowGroup:
    """One row group: its fields without the columns, and these."""

    fields: Fields
    chunks: list[Chunk]
    rows: int

    @property
    def size_bytes(self) -> int:
        """Compressed bytes of its column chunks."""
        return sum(chunk.size_bytes for chunk in self.chunks)


@dataclass
class Footer:
    """One file: `fields` are those of FileMetaData without row groups, `start` is where the footer begins.

    `keys` are the key-value metadata. Zero-row groups, which hold nothing and may have senseless offsets, are left out.
    """

    fields: Fields
    row_groups: list[RowGroup]
    start: int
    size_bytes: int
    schema: tuple[Element, ...]
    columns: list[Column]
    keys: dict[bytes, bytes | None] = field(default_factory=dict)
    created_by: str = ""

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return sum(group.rows for group in self.row_groups)

    @cached_property
    def meaning(self) -> tuple[object, ...]:
        """Equal for files whose row groups may lie in one file; the root's name means nothing."""
        return tuple(element.meaning for element in self.schema[1:])


def read_footer(source: Source) -> Footer:
    """Read the footer with one read, two for a large one.

    Raises `CopyRefused` with the code of what is wrong with it, `OSError` when the file cannot be read.
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
    if length + _END_BYTES > len(tail):
        tail = source.read(size - _END_BYTES - length, length + _END_BYTES)
    return parse_footer(tail[len(tail) - _END_BYTES - length : len(tail) - _END_BYTES], size)


def parse_footer(raw: bytes, size_bytes: int) -> Footer:
    """Parse the footer of a file of `size_bytes` and check that its parts lie in the file and add up.

    Raises `CopyRefused`.
    """
    try:
        return _parse(raw, size_bytes)
    except MalformedError as error:
        raise CopyRefused(Refusal.CORRUPT_FOOTER, str(error)) from error


def _parse(raw: bytes, size_bytes: int) -> Footer:
    fields, end = read_struct(raw, 0, {4: (LIST, _read_groups)})
    if 8 in fields or 9 in fields:  # not encrypted itself: a signature follows, and columns are
        raise CopyRefused(Refusal.ENCRYPTED)
    if end != len(raw):
        raise MalformedError("bytes follow the footer")
    _check_known(fields, "FileMetaData")
    required_integer(fields, 1)
    schema = tuple(element_of(element) for element in structs_of(fields, 2))
    columns = columns_of(schema)
    groups = [_group(group, len(columns)) for group in raw_of(fields, 4, LIST)]
    start = size_bytes - _END_BYTES - len(raw)
    if sum(group.rows for group in groups) != required_integer(fields, 3):
        raise MalformedError("row groups do not have the rows of the file")
    groups = [group for group in groups if group.rows]
    _check_ranges(groups, start)
    rest = {k: v for k, v in fields.items() if k != 4}
    keys = {binary(pair, 1) or b"": binary(pair, 2) for pair in structs_of(fields, 5)}
    created_by = (binary(fields, 6) or b"").decode("utf-8", "replace")
    return Footer(rest, groups, start, size_bytes, schema, columns, keys, created_by)


def _read_groups(data: Bytes, at: int) -> tuple[list[Fields], int]:
    return read_structs(data, at, {1: (LIST, _read_chunks)})


def _read_chunks(data: Bytes, at: int) -> tuple[list[Fields], int]:
    return read_structs(data, at, {3: (STRUCT, read_struct)})


def _group(fields: Fields, columns: int) -> RowGroup:
    _check_known(fields, "RowGroup")
    rows = required_integer(fields, 3)
    if rows < 0:
        raise MalformedError("a row group has a negative number of rows")
    chunks = [_chunk(chunk, rows) for chunk in raw_of(fields, 1, LIST)]
    if len(chunks) != columns:
        raise MalformedError(f"a row group has {len(chunks)} columns of {columns}")
    return RowGroup({k: v for k, v in fields.items() if k != 1}, chunks, rows)


def _chunk(fields: Fields, rows: int) -> Chunk:
    _check_known(fields, "ColumnChunk")
    if 8 in fields or 9 in fields:
        raise CopyRefused(Refusal.ENCRYPTED)
    if binary(fields, 1):
        raise CopyRefused(Refusal.EXTERNAL_FILE)
    metadata: Fields = raw_of(fields, 3, STRUCT)
    _check_known(metadata, "ColumnMetaData")
    if 10 in metadata:
        raise CopyRefused(Refusal.INDEX_PAGE)
    data, dictionary = required_integer(metadata, 9), integer(metadata, 11) or 0
    if dictionary > data and rows:
        raise CopyRefused(Refusal.CORRUPT_FOOTER, "a dictionary lies behind its data")
    start = dictionary if 0 < dictionary < data else data
    end = start + required_integer(metadata, 7)
    for number in (1, 4, 5, 6):
        if required_integer(metadata, number) < 0:
            raise MalformedError(f"a column chunk has a negative field {number}")
    integer(fields, 2)
    return Chunk({k: v for k, v in fields.items() if k != 3}, metadata, start, end)


def _check_known(fields: Fields, name: str) -> None:
    unknown = [field_id for field_id in fields if field_id > _KNOWN_FIELDS[name]]
    if unknown:
        raise CopyRefused(Refusal.UNKNOWN_FIELD, f"{name} has fields {unknown}")


def _check_ranges(groups: list[RowGroup], footer_start: int) -> None:
    """Chunks lie between the first magic word and the footer, none over another, and their indexes lie there too."""
    last = len(MAGIC)
    for chunk in sorted((c for group in groups for c in group.chunks), key=lambda c: (c.start, c.end)):
        if chunk.start < last or chunk.end < chunk.start or chunk.end > footer_start:
            raise CopyRefused(
                Refusal.CORRUPT_FOOTER, f"a chunk at {chunk.start}-{chunk.end}, after {last}, before {footer_start}"
            )
        last = chunk.end
        for part in (chunk.offset_index, chunk.column_index, chunk.bloom_filter):
            if part is not None and sum(part) > footer_start:
                raise CopyRefused(Refusal.CORRUPT_FOOTER, f"an index or bloom filter at {part}, outside the file")


def _range(fields: Fields, offset_id: int, length_id: int) -> tuple[int, int] | None:
    offset, length = integer(fields, offset_id) or 0, integer(fields, length_id) or 0
    if offset < 0 or length < 0:
        raise MalformedError("a negative offset or length")
    return (offset, length) if offset and length else None
