"""A Parquet file assembled from row groups made elsewhere."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from icesize import __version__
from icesize.parquet.format.fields import ColumnChunk, ColumnMetaData, FileMetaData, KeyValue, RowGroup
from icesize.parquet.format.footer import MAGIC, Footer, parse_footer
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.schema import Column
from icesize.parquet.format.thrift import (
    Bytes,
    Fields,
    bytes_field,
    i16,
    i32,
    i64,
    required_integer,
    struct_field,
    structs_field,
    write_struct,
)
from icesize.parquet.row_groups.compatibility import MOST_ROW_GROUPS, check_file, check_together
from icesize.parquet.row_groups.footer_lineage import footer_with_lineage

OWN_NAME = f"icesize version {__version__} (build copy)"
"""`created_by` of files whose parts are by several writers or newly encoded: readers trust the statistics of a writer
that they do not know."""


class Output(Protocol):
    """A binary stream, written from its beginning to its end.

    The memory of `data` is reused after `write` returns. Streams of files, and of pyarrow from version 17 on, have
    copied or written it by then.
    """

    def write(self, data: Bytes, /) -> object: ...


@dataclass(slots=True)
class ColumnPart:
    """One column chunk that was written: its ColumnChunk without offsets of indexes, and its ColumnMetaData.

    The other fields are written after all row groups. `offset_index` has the new offsets already.
    """

    fields: Fields
    metadata: Fields
    bloom_filter: bytes | None = None
    offset_index: bytes | None = None
    column_index: bytes | None = None

    @property
    def raw_size_bytes(self) -> int:
        """Bytes of its pages before compression."""
        return required_integer(self.metadata, ColumnMetaData.TOTAL_UNCOMPRESSED_SIZE)


@dataclass(slots=True)
class GroupPart:
    """One row group that was written, beginning at `start`: its RowGroup fields without columns, and its columns."""

    fields: Fields
    columns: list[ColumnPart]
    rows: int
    start: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Assembled:
    """A finished file: the offsets of its row groups, its raw FileMetaData (`footer`), and what is `parsed` from it."""

    size_bytes: int
    split_offsets: tuple[int, ...]
    footer: bytes
    parsed: Footer

    @property
    def end(self) -> bytes:
        """The last bytes of the file: the footer, and the bytes by which readers find its beginning."""
        return self.footer + struct.pack("<I", len(self.footer)) + MAGIC


class Assembly:
    """Writes a Parquet file to a stream at its beginning.

    Callers write the bytes of row groups with `write` and describe each row group with `add`; `finish` writes indexes
    and the footer.

    `footers` are those of all files that parts are taken from; the first one provides the schema. Raises `CopyRefused`
    before anything is written if these files must not be joined into one. With `adds_lineage`, each row group has the
    columns of the row lineage after those of the footers.
    """

    def __init__(self, out: Output, footers: Sequence[Footer], *, adds_lineage: bool = False) -> None:
        for footer in footers:
            check_file(footer)
        check_together(footers)
        self.position: int = 0
        self._out = out
        self._footers = list(footers)
        self._groups: list[GroupPart] = []
        self._adds_lineage = self._reencoded = adds_lineage
        self._room = bytearray()
        self.write(MAGIC)

    @property
    def columns(self) -> Sequence[Column]:
        return self._footers[0].columns

    def room(self, size_bytes: int) -> memoryview:
        """Return a buffer, valid until the next call: touching new memory costs more than copying."""
        if len(self._room) < size_bytes:
            self._room = bytearray()  # frees the old buffer before the new one is allocated
            self._room = bytearray(size_bytes + size_bytes // 8)
        return memoryview(self._room)[:size_bytes]

    def write(self, data: Bytes) -> None:
        count = self._out.write(data)
        if isinstance(count, int) and count != len(data):
            raise OSError(f"{count} of {len(data)} bytes were written")
        self.position += len(data)

    def add(self, group: GroupPart, *, reencoded: bool = False) -> None:
        """Describe the row group whose bytes were just written, and write its bloom filters after it.

        Bloom filters may be a MiB each, so they are not kept until the last row group. Raises `CopyRefused` if there
        are too many row groups.
        """
        if len(self._groups) == MOST_ROW_GROUPS:
            raise CopyRefused(Refusal.ROW_GROUPS, f"more than {MOST_ROW_GROUPS}")
        for column in group.columns:
            ids = ColumnMetaData.BLOOM_FILTER_OFFSET, ColumnMetaData.BLOOM_FILTER_LENGTH
            self._write_behind(column.bloom_filter, column.metadata, *ids)
            column.bloom_filter = None
        self._groups.append(group)
        self._reencoded = self._reencoded or reencoded

    def finish(self) -> Assembled:
        """Complete the file; raises `CopyRefused` if its footer contradicts itself, which is a bug."""
        self._write_indexes()
        raw = write_struct(self._file_metadata())
        size_bytes = self.position + len(raw) + 8
        splits = tuple(group.start for group in self._groups)
        # parsing the footer again checks ranges, counts and overlaps
        done = Assembled(size_bytes, splits, raw, parse_footer(raw, size_bytes))
        self.write(done.end)
        return done

    def _columns(self) -> Iterable[ColumnPart]:
        return (column for group in self._groups for column in group.columns)

    def _write_indexes(self) -> None:
        """Write column indexes, then offset indexes, in the layout of parquet-mr."""
        ids = ColumnChunk.COLUMN_INDEX_OFFSET, ColumnChunk.COLUMN_INDEX_LENGTH
        for column in self._columns():
            self._write_behind(column.column_index, column.fields, *ids)
        ids = ColumnChunk.OFFSET_INDEX_OFFSET, ColumnChunk.OFFSET_INDEX_LENGTH
        for column in self._columns():
            self._write_behind(column.offset_index, column.fields, *ids)

    def _write_behind(self, data: bytes | None, fields: Fields, offset_id: int, length_id: int) -> None:
        """Write the part of a column chunk that is stored outside of it, and record its position in `fields`."""
        if data is not None:
            fields |= {offset_id: i64(self.position), length_id: i32(len(data))}
            self.write(data)

    def _file_metadata(self) -> Fields:
        first = self._footers[0]
        fields = footer_with_lineage(first) if self._adds_lineage else dict(first.fields)
        version = FileMetaData.VERSION
        if any(footer.fields[version] != first.fields[version] for footer in self._footers):
            fields[version] = i32(1)  # the format recommends 1
        fields[FileMetaData.NUM_ROWS] = i64(sum(group.rows for group in self._groups))
        fields[FileMetaData.ROW_GROUPS] = structs_field(map(_row_group, range(MOST_ROW_GROUPS), self._groups))
        fields.pop(FileMetaData.KEY_VALUE_METADATA, None)
        if same := self._common_keys():
            pairs = (_pair(key, value) for key, value in same.items())
            fields[FileMetaData.KEY_VALUE_METADATA] = structs_field(pairs)
        fields[FileMetaData.CREATED_BY] = bytes_field(self._created_by().encode())
        return fields

    def _common_keys(self) -> dict[bytes, bytes | None]:
        """Return the metadata that all parts share; readers need none of them, and they may list all columns."""
        if self._adds_lineage:
            return {}
        first = self._footers[0].keys.items()
        return {k: v for k, v in first if all(k in f.keys and f.keys[k] == v for f in self._footers)}

    def _created_by(self) -> str:
        names = {footer.created_by for footer in self._footers}
        return names.pop() if len(names) == 1 and not self._reencoded else OWN_NAME


def _row_group(ordinal: int, group: GroupPart) -> Fields:
    columns = ({**column.fields, ColumnChunk.META_DATA: struct_field(column.metadata)} for column in group.columns)
    return {
        **group.fields,
        RowGroup.COLUMNS: structs_field(columns),
        RowGroup.NUM_ROWS: i64(group.rows),
        RowGroup.FILE_OFFSET: i64(group.start),
        RowGroup.TOTAL_COMPRESSED_SIZE: i64(group.size_bytes),
        RowGroup.ORDINAL: i16(ordinal),
    }


def _pair(key: bytes, value: bytes | None) -> Fields:
    fields: Fields = {KeyValue.KEY: bytes_field(key)}
    if value is not None:
        fields[KeyValue.VALUE] = bytes_field(value)
    return fields
