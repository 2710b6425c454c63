"""Manifest lists: the manifests of a snapshot, read and written.

icesize decodes the lists itself. If a list ends too early, PyIceberg's compiled decoder reads past its end. The plain
decoder returns fewer manifests, and the next commit would lose the rows of the missing ones. Measured: 4.4 us per
manifest, the same as PyIceberg. It encodes them in 9 us per manifest, PyIceberg in 19 us, and knows their bytes
without a request to the storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    UNASSIGNED_SEQ,
    ManifestContent,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import TableVersion
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from icesize.table.manifests.avro_container import ContainerWriter, read_records
from icesize.table.manifests.avro_values import AvroSchema, Write, fields_reader, inlined, record_fields, writer

# Iceberg's ids of the fields of a ManifestFile, in PyIceberg's order; `_SUMMARY_FIELDS` are those of a
# PartitionFieldSummary.
_FIELDS = (500, 501, 502, 517, 515, 516, 503, 504, 505, 506, 512, 513, 514, 507, 519, 520)
_PLACES = {field_id: place for place, field_id in enumerate(_FIELDS)}
_CONTENT, _SUMMARIES, _FIRST_ROW_ID = _PLACES[517], _PLACES[507], _PLACES[520]
_NUMBERS = (_CONTENT, _PLACES[515], _PLACES[516])
"""Places of numbers that are 0 if they are missing or null, as in a list from before format v2."""
_BLANK = [None] * len(_FIELDS)
_SUMMARY_FIELDS = (509, 518, 510, 511)
_REQUIRED = (500, 501, 502)
_PARTITION_FIELDS = len(_FIELDS)
"""The place after those of `_FIELDS`, for `PartitionFields`."""
PartitionFields = tuple[int, ...] | None
"""Ids of partition fields, in the order of their values; None is the order in which a manifest stores them."""


Specs = Mapping[int, PartitionSpec]


class Manifests(NamedTuple):
    """The data manifests and the delete manifests of a snapshot, in their order."""

    data: list[ManifestFile]
    deletes: list[ManifestFile]


class EncodedList(NamedTuple):
    """A manifest list: its manifests with the values of the list, its bytes, and the row ids that it assigns."""

    manifests: list[ManifestFile]
    data: bytes
    row_ids: int


def manifests_in(snapshot: Snapshot | None, io: FileIO, specs: Specs) -> list[ManifestFile]:
    """Return the manifests that a snapshot lists, none without a snapshot. Raises what `read_list` raises."""
    return list(read_list(io, snapshot.manifest_list, specs)) if snapshot else []


def manifests_of(snapshot: Snapshot | None, io: FileIO, specs: Specs) -> Manifests:
    """Return the data manifests and the delete manifests of a snapshot. Raises what `read_list` raises."""
    found = Manifests([], [])
    for manifest in manifests_in(snapshot, io, specs):
        (found.data if manifest.content == ManifestContent.DATA else found.deletes).append(manifest)
    return found


def first_row_id_of(manifest: ManifestFile) -> int | None:
    """Return the `_row_id` from which the rows of a manifest's new files are numbered; None if they have none.

    PyIceberg's own manifest values lack this field of format v3.
    """
    return manifest[_FIRST_ROW_ID] if len(manifest) > _FIRST_ROW_ID else None


def partition_fields_of(manifest: ManifestFile) -> PartitionFields:
    """Return the order in which partition values of a manifest are read: that of its partition spec.

    Writers store the fields of a partition in any order. None for a manifest of icesize that no list was read for: it
    stores them in this order.
    """
    return manifest[_PARTITION_FIELDS] if len(manifest) > _PARTITION_FIELDS else None


def inherited_from(manifest: ManifestFile) -> tuple[int, int | None]:
    """Return what entries of a manifest may inherit from its list: the list of another snapshot may have other ids."""
    return manifest.sequence_number, first_row_id_of(manifest)


def read_list(io: FileIO, location: str, specs: Specs) -> Iterator[ManifestFile]:
    """Yield the manifests of a list.

    `specs` are the partition specs of the table, by which partition values are read. A caller that reads only paths has
    none; then there are no values. Raises TableError for a damaged list and what `io` raises for a missing one.
    """
    order = {spec_id: tuple(field.field_id for field in spec.fields) for spec_id, spec in specs.items()}
    for manifest in read_records(io, location, _compiled):
        manifest[_PARTITION_FIELDS] = order.get(manifest.partition_spec_id, ())
        yield manifest


def encoded_list(
    version: TableVersion,
    manifests: Sequence[ManifestFile],
    *,
    snapshot_id: int,
    parent_id: int | None,
    sequence_number: int,
    first_row_id: int = 0,
) -> EncodedList:
    """Return the manifest list of a snapshot in this format version; format v1 ignores `sequence_number`.

    The list assigns no row ids before format v3. The given manifests stay unchanged. Returned ones of this snapshot
    carry its sequence number, and row ids from `first_row_id` on. A second snapshot of the same commit needs them to
    list and read them.
    """
    listed = [_assigned(manifest, sequence_number if version > 1 else 0) for manifest in manifests]
    assigned = _number_rows(listed, first_row_id) if version > 2 else 0
    header = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
        "format-version": str(version),
    }
    if version > 1:
        header["sequence-number"] = str(sequence_number)
    if version > 2:
        header["first-row-id"] = str(first_row_id)
    schema, writes = _list_format(version)
    container = ContainerWriter(schema, header)
    for manifest in listed:
        record = bytearray()
        for place, write in writes:
            write(record, manifest[place])
        container.add(bytes(record))
    return EncodedList(listed, container.finish(), assigned)


def _number_rows(manifests: Sequence[ManifestFile], first_row_id: int) -> int:
    """Give first row ids to the data manifests that have none, and return the number of ids that are used up.

    A manifest of older files takes ids for all of its rows, although the files that have ids keep them (Iceberg
    specification, "First Row ID Assignment").
    """
    next_row_id = first_row_id
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA and manifest[_FIRST_ROW_ID] is None:
            manifest[_FIRST_ROW_ID] = next_row_id
            next_row_id += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
    return next_row_id - first_row_id


def _assigned(manifest: ManifestFile, sequence_number: int) -> ManifestFile:
    """Return a copy with sequence numbers, and with all fields of `_FIELDS`."""
    values = [manifest[i] for i in range(len(manifest))]
    copy = ManifestFile(*values, *[None] * (_PARTITION_FIELDS + 1 - len(values)))
    if copy.sequence_number == UNASSIGNED_SEQ:
        copy.sequence_number = sequence_number
    if copy.min_sequence_number == UNASSIGNED_SEQ:
        copy.min_sequence_number = sequence_number
    return copy


@cache
def _list_format(version: TableVersion) -> tuple[AvroSchema, list[tuple[int, Write]]]:
    """Return the schema of a list, and for each of its fields the place in a ManifestFile and the encoder."""
    avro: Any = AvroSchemaConversion().iceberg_to_avro(MANIFEST_LIST_FILE_SCHEMAS[version], schema_name="manifest_file")
    schema = inlined(avro)
    return schema, [(_PLACES[field["field-id"]], writer(field["type"])) for field in schema["fields"]]


@lru_cache(maxsize=64)
def _compiled(schema_json: str) -> Callable[[BinaryDecoder, bytes], ManifestFile]:
    fields = record_fields(schema_json, _REQUIRED)
    read, order = fields_reader(fields, _PLACES), _summary_order(fields)

    def manifest(decoder: BinaryDecoder, _: bytes) -> ManifestFile:
        row: list[Any] = _BLANK.copy()
        read(decoder, row)
        for place in _NUMBERS:
            row[place] = row[place] or 0
        row[_CONTENT] = ManifestContent(row[_CONTENT])
        if row[_SUMMARIES]:
            # Index -1 in `order` selects the appended None: the value of a field that the list does not have.
            row[_SUMMARIES] = [PartitionFieldSummary(*[(*each, None)[at] for at in order]) for each in row[_SUMMARIES]]
        return ManifestFile(*row, None)

    return manifest


def _summary_order(fields: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the index of each summary field in its record, -1 for a field that this list does not have."""
    kind = next((field["type"] for field in fields if field.get("field-id") == 507), None)
    array = next((each for each in kind or () if each != "null"), None) if isinstance(kind, list) else kind
    ids = [field.get("field-id") for field in array["items"]["fields"]] if array else []
    return [ids.index(each) if each in ids else -1 for each in _SUMMARY_FIELDS]
