"""Manifest entries as bytes that can be copied into another manifest, with the fields that planning needs.

Each entry is read by the schema of its writer, and its statistics are skipped. Readers that copy no entry use `facts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile

from icesize.planning.files import FileId
from icesize.table.manifests.avro_container import read_records
from icesize.table.manifests.avro_values import (
    AvroSchema,
    check_ids,
    fields_reader,
    projected,
    record_fields,
    skipper,
    structure,
    writer,
)
from icesize.table.manifests.manifest_lists import PartitionFields, first_row_id_of, partition_fields_of

EXISTING, ADDED, DELETED = 0, 1, 2
"""Values of `Entry.status`."""
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
"""Contents of a file in its manifest entry."""


@dataclass(frozen=True, slots=True)
class DataFileSchema:
    """The Avro record of data files in a manifest; two are equal if bytes can be copied between their manifests."""

    key: str = field(repr=False)
    avro: AvroSchema = field(compare=False, repr=False)

    def place(self, field_id: int) -> int:
        """Return the index of the field with this Iceberg field id."""
        return next(i for i, each in enumerate(self.avro["fields"]) if each.get("field-id") == field_id)


@dataclass(slots=True)
class Entry:
    """One file of a manifest, with sequence numbers, snapshot id and row ids inherited by Iceberg's specification.

    `sequence_number` is the *data* sequence number, 0 in format v1. `values` are the stored partition values, in the
    order of the partition spec, None for a field that the manifest does not have. `encrypted` is True if the file has
    key metadata. `first_row_id` is that of `FileFact`, and `stored_row_id` the one in `data`. `content_offset` is set
    for deletion vectors. `data` is the encoded `data_file` record, which `schema` describes.
    """

    status: int
    snapshot_id: int | None
    sequence_number: int | None
    file_sequence_number: int | None
    path: str
    file_format: str
    values: tuple[Any, ...]
    rows: int
    size_bytes: int
    encrypted: bool
    stored_row_id: int | None
    content_offset: int | None
    data: bytes
    schema: DataFileSchema
    first_row_id: int | None = None

    @property
    def id(self) -> FileId:
        """A value that no other live entry of a table has, unless a file is listed twice."""
        return self.path if self.content_offset is None else (self.path, self.content_offset)


def read_entries(io: FileIO, manifest: ManifestFile, *, live_only: bool = True) -> Iterator[Entry]:
    """Yield the entries of one manifest in their order; `live_only` leaves out entries of status DELETED.

    Raises `TableError` for a damaged manifest, and what `io` raises for a missing one.
    """
    sequence_number, snapshot_id = manifest.sequence_number, manifest.added_snapshot_id
    next_row_id = first_row_id_of(manifest)
    fields = partition_fields_of(manifest)
    for entry in read_records(io, manifest.manifest_path, lambda schema: _compiled(schema, fields)):
        if next_row_id is not None:
            entry.first_row_id = entry.stored_row_id
            if entry.stored_row_id is None and entry.status != DELETED:
                entry.first_row_id = next_row_id
                next_row_id += entry.rows
        if entry.status != DELETED or not live_only:
            # most entries inherit nothing: icesize and Java write all three numbers of an entry that they keep
            if entry.snapshot_id is None or entry.sequence_number is None or entry.file_sequence_number is None:
                _carry_over(entry, sequence_number, snapshot_id)
            yield entry


def entries_in(manifest: ManifestFile) -> int:
    """Return the number of entries, deleted ones included; 0 if the manifest list does not have it."""
    counts = manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count
    return sum(count or 0 for count in counts)


def _with_partitions(fields: Sequence[dict[str, Any]], partition_fields: PartitionFields) -> list[dict[str, Any]]:
    """Return the fields of a data file, whose partition values are read in this order."""
    return [
        {**field, "type": projected(field["type"], partition_fields)} if field.get("field-id") == _PARTITION else field
        for field in fields
    ]


def under_new_path(entry: Entry, path: str) -> Entry:
    """Return the entry for a byte-for-byte copy of a file at `path`.

    The new entry has all facts of the file. It has no snapshot id, no sequence numbers and no row ids, so that it
    inherits those of the commit that adds the copy.
    """
    kind = entry.schema.avro["fields"][entry.schema.place(_FILE_PATH)]["type"]
    data = with_other_value(entry.schema, _FILE_PATH, kind)(entry.data, path)
    return replace(
        entry, status=ADDED, snapshot_id=None, sequence_number=None, file_sequence_number=None, path=path, data=data,
        first_row_id=None,
    )  # fmt: skip


def with_other_value(schema: DataFileSchema, field_id: int, kind: AvroSchema) -> Callable[[bytes, Any], bytes]:
    """Return a function that replaces one field of an encoded data file by a value of type `kind`.

    All other bytes are copied.
    """
    at, fields = schema.place(field_id), schema.avro["fields"]
    skip_before = skipper({"type": "record", "fields": fields[:at]})
    skip, write = skipper(fields[at]["type"]), writer(kind)

    def written(data: bytes, value: Any) -> bytes:
        decoder = new_decoder(data)
        skip_before(decoder)
        out = bytearray(data[: decoder.tell()])
        skip(decoder)
        write(out, value)
        return bytes(out + data[decoder.tell() :])

    return written


def _carry_over(entry: Entry, sequence_number: int, snapshot_id: int | None) -> None:
    if entry.snapshot_id is None:
        entry.snapshot_id = snapshot_id
    if entry.status == ADDED or sequence_number == 0:
        if entry.sequence_number is None:
            entry.sequence_number = sequence_number
        if entry.file_sequence_number is None:
            entry.file_sequence_number = sequence_number


# Index of each manifest field in a row of facts and among the first arguments of Entry, by Iceberg field id. Key
# metadata is read into the index of `encrypted`.
PLACES = {0: 0, 1: 1, 3: 2, 4: 3, 100: 4, 101: 5, 102: 6, 103: 7, 104: 8, 131: 9, 142: 10, 144: 11}
FIRST_ROW_ID = 142
"""Iceberg's field id of the first row id of a data file."""
_STATUS, _DATA_FILE, _FILE_PATH, _PARTITION = 0, 2, 100, 102
_REQUIRED = (_FILE_PATH, 101, _PARTITION, 103, 104)
"""Field ids of what each data file has."""


@lru_cache(maxsize=64)
def _compiled(schema_json: str, partition_fields: PartitionFields) -> Callable[[BinaryDecoder, bytes], Entry]:
    """Return the function that reads entries with this schema.

    The function is cached, because the manifests of a table share few schemas.
    """
    record, read_row = row_reader(schema_json, PLACES, partition_fields)
    schema = DataFileSchema(structure(record), record)

    def read(decoder: BinaryDecoder, buffer: bytes) -> Entry:
        row: list[Any] = [None] * len(PLACES)
        start, end = read_row(decoder, row)
        row[5] = row[5].upper()
        row[9] = row[9] is not None
        row += buffer[start:end], schema
        return Entry(*row)

    return read


def row_reader(
    schema_json: str, places: Mapping[int, int], partition_fields: PartitionFields
) -> tuple[AvroSchema, Callable[[BinaryDecoder, list[Any]], tuple[int, int]]]:
    """Return the data file record of a manifest's schema, and a function that reads an entry's fields into a row.

    The function returns the start and end position of the encoded data file.

    Args:
        schema_json: The schema of a manifest's header.
        places: The index in the row of each field to read, by Iceberg field id: fields of the entry and its data file.
        partition_fields: The order of the partition values.

    Raises ValueError if a field is missing that each manifest has.
    """
    fields = record_fields(schema_json, (_STATUS, _DATA_FILE))
    at = next(i for i, field in enumerate(fields) if field.get("field-id") == _DATA_FILE)
    record = fields[at]["type"]
    check_ids([field.get("field-id") for field in record["fields"]], _REQUIRED)
    read_before, read_after = (fields_reader(some, places) for some in (fields[:at], fields[at + 1 :]))
    read_file = fields_reader(_with_partitions(record["fields"], partition_fields), places)

    def read(decoder: BinaryDecoder, row: list[Any]) -> tuple[int, int]:
        read_before(decoder, row)
        start = decoder.tell()
        read_file(decoder, row)
        end = decoder.tell()
        read_after(decoder, row)
        return start, end

    return record, read
