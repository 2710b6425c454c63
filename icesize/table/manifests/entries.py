"""Manifest entries as bytes that can be copied into another manifest, with the fields that planning needs.

Each entry is read by the schema of its writer, and its statistics are skipped. Readers that copy no entry use `facts`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile

from icesize.table.manifests.avro_container import read_records
from icesize.table.manifests.avro_values import AvroSchema, fields_reader, inlined, skipper, structure, writer

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
        return next(i for i, each in enumerate(self.avro["fields"]) if each["field-id"] == field_id)


@dataclass(slots=True)
class Entry:
    """One file of a manifest, with sequence numbers and snapshot id inherited by Iceberg's specification.

    `sequence_number` is the *data* sequence number, 0 in format v1. `values` are the stored partition values, in
    spec-field order. `encrypted` is True if the file has key metadata. `data` is the encoded `data_file` record, which
    `schema` describes.
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
    data: bytes
    schema: DataFileSchema


def read_entries(io: FileIO, manifest: ManifestFile, *, live_only: bool = True) -> Iterator[Entry]:
    """Yield the entries of one manifest in their order; `live_only` leaves out entries of status DELETED.

    Raises `TableError` for a damaged manifest, and what `io` raises for a missing one.
    """
    sequence_number, snapshot_id = manifest.sequence_number, manifest.added_snapshot_id
    for entry in read_records(io, manifest.manifest_path, _compiled):
        if entry.status != DELETED or not live_only:
            # most entries inherit nothing: icesize and Java write all three numbers of an entry that they keep
            if entry.snapshot_id is None or entry.sequence_number is None or entry.file_sequence_number is None:
                _carry_over(entry, sequence_number, snapshot_id)
            yield entry


def under_new_path(entry: Entry, path: str) -> Entry:
    """Return the entry for a byte-for-byte copy of a file at `path`.

    The new entry has all facts of the file. It has no snapshot id and no sequence numbers, so that it inherits those of
    the commit that adds the copy.
    """
    kind = entry.schema.avro["fields"][entry.schema.place(_FILE_PATH)]["type"]
    data = with_other_value(entry.schema, _FILE_PATH, kind)(entry.data, path)
    return replace(
        entry, status=ADDED, snapshot_id=None, sequence_number=None, file_sequence_number=None, path=path, data=data
    )


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
PLACES = {0: 0, 1: 1, 3: 2, 4: 3, 100: 4, 101: 5, 102: 6, 103: 7, 104: 8, 131: 9}
_DATA_FILE = 2
_FILE_PATH = 100


@lru_cache(maxsize=64)
def _compiled(schema_json: str) -> Callable[[BinaryDecoder, bytes], Entry]:
    """Return the function that reads entries with this schema.

    The function is cached, because the manifests of a table share few schemas.
    """
    record, read_row = row_reader(schema_json, PLACES)
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
    schema_json: str, places: Mapping[int, int]
) -> tuple[AvroSchema, Callable[[BinaryDecoder, list[Any]], tuple[int, int]]]:
    """Return the data file record of a manifest's schema, and a function that reads an entry's fields into a row.

    The function returns the start and end position of the encoded data file.

    Args:
        schema_json: The schema of a manifest's header.
        places: The index in the row of each field to read, by Iceberg field id: fields of the entry and its data file.
    """
    fields = inlined(json.loads(schema_json))["fields"]
    at = next(i for i, field in enumerate(fields) if field["field-id"] == _DATA_FILE)
    record = fields[at]["type"]
    read_before, read_after = (fields_reader(some, places) for some in (fields[:at], fields[at + 1 :]))
    read_file = fields_reader(record["fields"], places)

    def read(decoder: BinaryDecoder, row: list[Any]) -> tuple[int, int]:
        read_before(decoder, row)
        start = decoder.tell()
        read_file(decoder, row)
        end = decoder.tell()
        read_after(decoder, row)
        return start, end

    return record, read


def entry_fields(schema_json: str) -> list[Mapping[str, Any]]:
    """Return the fields of a manifest's entries in their order, those of the data file among them."""
    fields = inlined(json.loads(schema_json))["fields"]
    at = next(i for i, field in enumerate(fields) if field["field-id"] == _DATA_FILE)
    return [*fields[:at], *fields[at]["type"]["fields"], *fields[at + 1 :]]
