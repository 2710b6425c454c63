"""Writes manifests, and copies kept entries without decoding them.

Kept entries are copied as bytes under the Avro schema that they were written with. This is fast, and keeps statistics
that icesize cannot read. Only partition values are encoded again, if a column has been promoted since. A manifest's
header records the types of its partition values. Iceberg's promotions (int to long, float to double, a decimal of more
digits) change these types for new manifests only. Current values may therefore not fit an older manifest. The files of
one call go into as few manifests as their schemas allow.

In format v3, an entry that leaves its manifest takes the first row id along that it has there. Without it, readers
would number its rows again by the place in the new manifest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Literal, cast

from pydantic_core import to_json
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import (
    UNASSIGNED_SEQ,
    ManifestContent,
    ManifestFile,
    PartitionFieldSummary,
    data_file_with_partition,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType, IntegerType, ListType, NestedField, StringType, StructType, UnknownType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from icesize.errors import UnsupportedTable
from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.parquet.files.metrics import widened
from icesize.policy import property_number
from icesize.table.manifests.avro_container import ContainerWriter
from icesize.table.manifests.avro_values import AvroSchema, inlined, structure, writer
from icesize.table.manifests.entries import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    EXISTING,
    FIRST_ROW_ID,
    POSITION_DELETES,
    DataFileSchema,
    Entry,
    with_other_value,
)
from icesize.table.manifests.file_columns import EntryColumns, Row, row_of

FormatVersion = Literal[1, 2, 3]
_PARTITION = 102
"""Iceberg's field id of the partition values in a data file."""
_CONTENT, _EQUALITY_IDS = 134, 135
_ALWAYS = frozenset({_CONTENT, 100, 101, _PARTITION, 103, 104, 105})
"""Fields of which each new file has a value."""
_DELETED_FILE, _CONTENT_OFFSET, _CONTENT_SIZE = 143, 144, 145
_ROW_ID_FIELD: dict[str, Any] = {
    "name": "first_row_id", "type": ["null", "long"], "default": None, "field-id": FIRST_ROW_ID,
}  # fmt: skip
_PROMOTIONS = {("int", "long"), ("float", "double")}


class ManifestWriter:
    """Writes manifests of one partition spec and content in snapshot `snapshot_id`.

    `put` writes a file and returns its path. `facts` receives the facts of each manifest by its path, the same that
    `read_facts` would read. Raises `UnsupportedTable` for a format version above 3, and for delete files in format v1.
    """

    def __init__(
        self,
        put: Callable[[bytes], str],
        metadata: TableMetadata,
        snapshot_id: int,
        spec_id: int = 0,
        content: ManifestContent = ManifestContent.DATA,
        *,
        facts: dict[str, EntryColumns] | None = None,
    ) -> None:
        self.is_deletes: bool = content == ManifestContent.DELETES
        self.version: FormatVersion = metadata.format_version
        if self.version > 3 or (self.is_deletes and self.version < 2):
            what, supported = ("delete manifests", "v2 and v3") if self.is_deletes else ("manifests", "v1 to v3")
            raise UnsupportedTable(
                f"Cannot write {what} of Iceberg format v{self.version}: only {supported} are supported",
                format_version=self.version,
            )
        self.facts: dict[str, EntryColumns] = {} if facts is None else facts
        self.put: Callable[[bytes], str] = put
        self.snapshot_id: int = snapshot_id
        self.content: ManifestContent = content
        self.spec: PartitionSpec = metadata.specs()[spec_id]
        self.partition_type: StructType = self.spec.partition_type(metadata.schema())
        self.header: dict[str, str] = _header(metadata, self.spec, content)
        self.own_schema: DataFileSchema = _own_schema(self.version, self.partition_type, content)
        self.max_bytes: int = target_manifest_bytes(metadata)

    def write(
        self,
        *,
        added: Sequence[NewDataFile | NewDeleteFile] = (),
        copied: Sequence[Entry] = (),
        existing: Iterable[Entry] = (),
        deleted: Sequence[Entry] = (),
    ) -> list[ManifestFile]:
        """Write and return manifests of these files, which are of the writer's partition spec.

        `added` files become ADDED and keep a sequence number that they have. `copied` entries become ADDED too,
        described as the files that they are copies of (`under_new_path`). `existing` entries keep their snapshot and
        sequence numbers; `existing` may be an iterator if no files are added. `deleted` entries become DELETED by this
        snapshot. `encoded_list` assigns the sequence numbers of the returned manifests.

        One manifest results in most cases. More result in two cases: the encodings of the entries differ in more than
        partition types from before a promotion, or one manifest would exceed `commit.manifest.target-size-bytes`
        (Iceberg's default: 8 MiB). In each manifest, changes precede kept entries, so that a reader of changes only can
        stop early.

        Raises `UnsupportedTable` for entries that Iceberg could not read back, and ValueError for a file of another
        spec or with values that do not fit. Files written before an error stay in storage.
        """
        streams: dict[DataFileSchema, ManifestStream] = {}
        with_row_ids = self.version > 2 and not self.is_deletes
        fitted = cache(lambda schema: fit(schema, self.own_schema, with_row_ids=with_row_ids))

        def stream(schema: DataFileSchema) -> ManifestStream:
            return streams.get(schema) or streams.setdefault(schema, ManifestStream(self, schema))

        if added:
            beside = Counter(entry.schema for entry in chain(existing, deleted, copied))
            for schema in beside:
                stream(fitted(schema).schema)
            own = {field["field-id"] for field in self.own_schema.avro["fields"]}
            stream(_fullest(beside, fitted, own & _FIELDS[self.content].keys()) or self.own_schema).add(added)
        for status, entries in ((ADDED, copied), (DELETED, deleted), (EXISTING, existing)):
            for schema, run in groupby(entries, attrgetter("schema")):
                how = fitted(schema)
                copies = stream(how.schema)
                for entry in run:
                    copies.copy(entry, status, how.data(entry))
        return [manifest for each in streams.values() for manifest in each.finish()]


def _fullest(
    beside: Counter[DataFileSchema], fitted: Callable[[DataFileSchema], Fitted], needed: set[int]
) -> DataFileSchema | None:
    """Return the most frequent encoding that fits new partition values and has the `needed` fields.

    New files are encoded in the same way, which saves one manifest. Its fields may be null, except those that each file
    has.
    """
    there: Counter[DataFileSchema] = Counter()
    for schema, entries in beside.items():
        optional = {field.get("field-id"): _without_null(field["type"])[1] for field in schema.avro["fields"]}
        is_open = all(takes_null or each in _ALWAYS for each, takes_null in optional.items())
        if fitted(schema).is_current and is_open and needed <= optional.keys():
            there[fitted(schema).schema] += entries
    return max(there, key=there.__getitem__, default=None)


def target_manifest_bytes(metadata: TableMetadata) -> int:
    """Return the target bytes of a manifest: `commit.manifest.target-size-bytes`. Raises PolicyError for odd text."""
    default = TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT
    return property_number(metadata.properties, TableProperties.MANIFEST_TARGET_SIZE_BYTES, default, least=1)


def _header(metadata: TableMetadata, spec: PartitionSpec, content: ManifestContent) -> dict[str, str]:
    header = {
        "schema": metadata.schema().model_dump_json(),
        "schema-id": str(metadata.current_schema_id),
        "partition-spec": to_json(spec.fields).decode(),
        "partition-spec-id": str(spec.spec_id),
        "format-version": str(metadata.format_version),
    }
    return {**header, "content": content.name.lower()} if metadata.format_version > 1 else header


def _own_schema(version: FormatVersion, partition_type: StructType, content: ManifestContent) -> DataFileSchema:
    """Return Java's encoding for files of this spec: optional partition values and a field for a referenced file.

    PyIceberg's own encoding differs in both. Most manifests come from Java, and with its encoding their entries can be
    copied next to new files. PyIceberg encodes the field ids of equality deletes as long; Java cannot read such delete
    manifests.
    """
    optional = [NestedField(f.field_id, f.name, f.field_type, required=False) for f in partition_type.fields]
    fields = list(data_file_with_partition(StructType(*optional), version).fields)
    if version == 2:
        fields.append(NestedField(143, "referenced_data_file", StringType(), required=False))
    if content == ManifestContent.DELETES:
        fields = [_with_ints(each) if each.field_id == _EQUALITY_IDS else each for each in fields]
    entry = Schema(NestedField(2, "data_file", StructType(*fields), required=True))
    avro: Any = AvroSchemaConversion().iceberg_to_avro(entry, schema_name="manifest_entry")
    record = inlined(_with_plain_nulls(avro["fields"][0]["type"]))
    return DataFileSchema(structure(record), record)


def _with_ints(ids: NestedField) -> NestedField:
    element = cast(ListType, ids.field_type).element_id
    kind = ListType(element, IntegerType(), element_required=True)
    return NestedField(ids.field_id, ids.name, kind, required=False)


def _with_plain_nulls(record: Any) -> Any:
    """Replace unions of null and null, which are not valid Avro, by null.

    PyIceberg creates such a union for a partition field whose column was dropped.
    """
    for field in record["fields"]:
        if field["field-id"] == _PARTITION:
            for value in field["type"]["fields"]:
                value["type"] = "null" if value["type"] == ["null", "null"] else value["type"]
    return record


_ENTRY_FIELDS: dict[FormatVersion, list[dict[str, Any]]] = {
    1: [
        {"name": "status", "type": "int", "field-id": 0},
        {"name": "snapshot_id", "type": "long", "field-id": 1},
    ],
    2: [
        {"name": "status", "type": "int", "field-id": 0},
        {"name": "snapshot_id", "type": ["null", "long"], "default": None, "field-id": 1},
        {"name": "sequence_number", "type": ["null", "long"], "default": None, "field-id": 3},
        {"name": "file_sequence_number", "type": ["null", "long"], "default": None, "field-id": 4},
    ],
}
_ENTRY_FIELDS[3] = _ENTRY_FIELDS[2]


_Header = tuple[int, int | None, int | None, int | None]
"""Fields of an entry: status, snapshot id, data sequence number and file sequence number."""


@lru_cache(maxsize=1024)
def _encoded(version: FormatVersion, header: _Header) -> bytes:
    """Return the encoded fields before the data file; a snapshot needs few distinct headers, so they are cached."""
    out = bytearray()
    for field, value in zip(_ENTRY_FIELDS[version], header, strict=False):
        writer(field["type"])(out, value)
    return bytes(out)


class ManifestStream:
    """Writes manifests for entries whose data files are encoded by `schema`; starts a new manifest if one is full."""

    def __init__(self, target: ManifestWriter, schema: DataFileSchema) -> None:
        self._target, self._schema = target, schema
        self._decoded = row_of(schema.avro, target.is_deletes)
        wrapper = {"name": "data_file", "type": schema.avro, "field-id": 2}
        self._avro = {"type": "record", "name": "manifest_entry", "fields": [*_ENTRY_FIELDS[target.version], wrapper]}
        self._done: list[ManifestFile] = []
        self._begin()

    def _begin(self) -> None:
        self._file = ContainerWriter(self._avro, self._target.header)
        self._files, self._rows = [0, 0, 0], [0, 0, 0]
        self._facts: list[Row] = []
        self._lowest_sequence: int | None = None
        self._values: set[tuple[Any, ...]] = set()

    def copy(self, entry: Entry, status: int, data: bytes) -> None:
        """Append an entry that another manifest described before.

        An EXISTING entry stays unchanged, and a DELETED one is deleted by this snapshot. An ADDED one is a copy of a
        file, and inherits the sequence number of this snapshot. `data` is the data file, encoded by this stream's
        schema. Raises UnsupportedTable for an EXISTING or DELETED entry of format v2 without a sequence number.
        """
        if entry.sequence_number is None and status != ADDED and self._target.version > 1:
            raise UnsupportedTable(
                f"Cannot keep '{entry.path}': its manifest entry has no sequence number, so it is not valid Iceberg",
                path=entry.path,
            )
        snapshot_id = entry.snapshot_id if status == EXISTING else self._target.snapshot_id
        header = status, snapshot_id, entry.sequence_number, entry.file_sequence_number
        self._add(header, entry.rows, entry.values, data, entry)

    def add(self, files: Iterable[NewDataFile | NewDeleteFile]) -> None:
        """Append files that are new to the table.

        Raises ValueError for a file of another partition spec and for values that the schema cannot encode.
        """
        encode = _encoder(self._schema.avro, _FIELDS[self._target.content])
        for file in files:
            if file.partition.spec_id != self._target.spec.spec_id:
                raise ValueError(
                    f"'{file.path}' is of partition spec {file.partition.spec_id}, "
                    f"the manifest of spec {self._target.spec.spec_id}"
                )
            data = bytearray()
            encode(data, file)
            header = ADDED, self._target.snapshot_id, file.sequence_number, None
            self._add(header, file.rows, file.partition.values, bytes(data))

    def _add(
        self, header: _Header, rows: int, values: tuple[Any, ...], data: bytes, entry: Entry | None = None
    ) -> None:
        self._file.add(_encoded(self._target.version, header), data)
        stored = header if self._target.version > 1 else (*header[:2], None, None)
        self._facts.append((*stored, *self._file_facts(data, entry)))
        status, _, sequence, _ = header
        self._files[status] += 1
        self._rows[status] += rows
        self._values.add(values)
        lowest = self._lowest_sequence
        if status != DELETED and sequence is not None and (lowest is None or sequence < lowest):
            self._lowest_sequence = sequence
        if self._file.is_full(self._target.max_bytes):
            self._end()

    def _file_facts(self, data: bytes, entry: Entry | None) -> Row:
        """Return the facts of a data file or delete file as a reader of the manifest gets them.

        An entry that is copied without a change has them already. Values of other entries can change: Avro stores
        floating-point numbers of a column's width.
        """
        if entry is None or data is not entry.data or self._target.is_deletes:
            return self._decoded(data)
        key = b"" if entry.encrypted else None
        return entry.path, entry.file_format, entry.values, entry.rows, entry.size_bytes, key, entry.stored_row_id, None

    def finish(self) -> list[ManifestFile]:
        """Write what is left and return all manifests of this stream."""
        if any(self._files):
            self._end()
        return self._done

    def _end(self) -> None:
        target, data = self._target, self._file.finish()
        path = target.put(data)
        target.facts[path] = EntryColumns.of(target.spec.spec_id, self._facts, target.is_deletes)
        lowest = UNASSIGNED_SEQ if self._lowest_sequence is None else self._lowest_sequence
        self._done.append(
            ManifestFile.from_args(
                manifest_path=path,
                manifest_length=len(data),
                partition_spec_id=target.spec.spec_id,
                content=target.content,
                sequence_number=UNASSIGNED_SEQ,
                min_sequence_number=lowest,
                added_snapshot_id=target.snapshot_id,
                added_files_count=self._files[ADDED],
                existing_files_count=self._files[EXISTING],
                deleted_files_count=self._files[DELETED],
                added_rows_count=self._rows[ADDED],
                existing_rows_count=self._rows[EXISTING],
                deleted_rows_count=self._rows[DELETED],
                partitions=_summaries(target.partition_type, self._values),
                key_metadata=None,
            )
        )
        self._begin()


def _summaries(partition_type: StructType, values: set[tuple[Any, ...]]) -> list[PartitionFieldSummary]:
    """Return the bounds of each partition field from distinct values.

    A field whose column was dropped has no bounds: its type is unknown, and no query can filter by it.
    """
    return [
        PartitionFieldSummary(True, False, None, None)
        if isinstance(field.field_type, UnknownType)
        else _summary(field.field_type, {each[i] for each in values})
        for i, field in enumerate(partition_type.fields)
    ]


def _summary(kind: IcebergType, values: set[Any]) -> PartitionFieldSummary:
    """Return the summary of one partition field.

    A bound of zero is widened to -0.0 or 0.0, because a set holds one of the two zeros for both.
    """
    present = [value for value in values if value is not None]
    ordered = [value for value in present if value == value]  # without NaN
    has_null, has_nan = len(present) < len(values), len(ordered) < len(present)
    if not ordered:
        return PartitionFieldSummary(has_null, has_nan, None, None)
    lowest, highest = widened(min(ordered), -0.0), widened(max(ordered), 0.0)
    return PartitionFieldSummary(has_null, has_nan, to_bytes(kind, lowest), to_bytes(kind, highest))  # type: ignore[arg-type]


_Get = Callable[[Any], Any]
# Format v1 requires this field, and no reader uses it. Java and PyIceberg write the same number.
_BLOCK_SIZE_IN_BYTES = 64 * 1024 * 1024

_DATA_FIELDS: Mapping[int, _Get] = {
    _CONTENT: lambda file: DATA,
    100: lambda file: file.path,
    101: lambda file: "PARQUET",
    _PARTITION: lambda file: file.partition.values,
    103: lambda file: file.rows,
    104: lambda file: file.size_bytes,
    105: lambda file: _BLOCK_SIZE_IN_BYTES,
    108: lambda file: file.column_sizes,
    109: lambda file: file.value_counts,
    110: lambda file: file.null_value_counts,
    137: lambda file: file.nan_value_counts,
    125: lambda file: file.lower_bounds,
    128: lambda file: file.upper_bounds,
    132: lambda file: file.split_offsets or None,
    140: lambda file: file.sort_order_id,
}
_FIELDS: Mapping[ManifestContent, Mapping[int, _Get]] = {
    ManifestContent.DATA: _DATA_FIELDS,
    ManifestContent.DELETES: {
        **_DATA_FIELDS,
        _CONTENT: lambda file: EQUALITY_DELETES if file.equality_ids else POSITION_DELETES,
        101: lambda file: "PARQUET" if file.content_offset is None else "PUFFIN",
        _EQUALITY_IDS: lambda file: file.equality_ids or None,
        _DELETED_FILE: lambda file: file.deletes_of,
        _CONTENT_OFFSET: lambda file: file.content_offset,
        _CONTENT_SIZE: lambda file: file.content_size_bytes,
    },
}


def _encoder(
    record: AvroSchema, fields: Mapping[int, _Get]
) -> Callable[[bytearray, NewDataFile | NewDeleteFile], None]:
    """Return a function that encodes a new file by any manifest's data file schema; missing values become null."""
    steps = [(fields.get(field.get("field-id")), writer(field["type"])) for field in record["fields"]]

    def encode(out: bytearray, file: NewDataFile | NewDeleteFile) -> None:
        for get, write in steps:
            write(out, get(file) if get else None)

    return encode


@dataclass(frozen=True, slots=True)
class Fitted:
    """The way to write entries of one encoding: under `schema`, with the encoded data file that `data` returns.

    If `is_current`, the partition record of `schema` fits new values too.
    """

    schema: DataFileSchema
    is_current: bool
    data: Callable[[Entry], bytes]


def fit(schema: DataFileSchema, own: DataFileSchema, *, with_row_ids: bool = False) -> Fitted:
    """Return the way to write entries encoded by `schema` in a table that encodes new files by `own`.

    The fields of a partition get the order of the partition spec, and each takes its current type if that type fits
    every older value; all other bytes are copied. A field without a current type, for example of a dropped column,
    keeps its type and values. `with_row_ids`, each entry gets its first row id. Manifests that are older than format v3
    have no field for it in `schema`, so the field is added.
    """
    fitted = _fit_values(schema, own)
    return _with_row_ids(fitted) if with_row_ids else fitted


def _with_row_ids(fitted: Fitted) -> Fitted:
    fields, write = fitted.schema.avro["fields"], writer(_ROW_ID_FIELD["type"])
    kind = next((each["type"] for each in fields if each.get("field-id") == FIRST_ROW_ID), None)
    if kind is not None:
        changed = with_other_value(fitted.schema, FIRST_ROW_ID, kind)

        def renumbered(entry: Entry) -> bytes:
            data = fitted.data(entry)
            return data if entry.first_row_id == entry.stored_row_id else changed(data, entry.first_row_id)

        return replace(fitted, data=renumbered)
    avro = inlined({**fitted.schema.avro, "fields": [*fields, _ROW_ID_FIELD]})

    def numbered(entry: Entry) -> bytes:
        out = bytearray(fitted.data(entry))
        write(out, entry.first_row_id)
        return bytes(out)

    return replace(fitted, schema=DataFileSchema(structure(avro), avro), data=numbered)


def _fit_values(schema: DataFileSchema, own: DataFileSchema) -> Fitted:
    old, new = (each.avro["fields"][each.place(_PARTITION)]["type"] for each in (schema, own))
    record = _promoted(old, new)
    whole = [{**f, "type": record} if f.get("field-id") == _PARTITION else f for f in schema.avro["fields"]]
    avro = inlined({**schema.avro, "fields": whole})
    fitted = DataFileSchema(structure(avro), avro)
    is_current = structure(record) == structure(new)
    if fitted == schema:
        return Fitted(fitted, is_current, lambda entry: entry.data)
    written = with_other_value(schema, _PARTITION, record)
    return Fitted(fitted, is_current, lambda entry: written(entry.data, entry.values))


def _promoted(old: AvroSchema, new: AvroSchema) -> AvroSchema:
    before = {field.get("field-id"): field for field in old["fields"]}
    pairs = [(before.get(now["field-id"], now), now) for now in new["fields"]]
    return {**new, "fields": [now if _takes(now["type"], then["type"]) else then for then, now in pairs]}


def _takes(new: AvroSchema, old: AvroSchema) -> bool:
    """Return True if every value of the old type is the same value in the new type."""
    (old_type, old_null), (new_type, new_null) = _without_null(old), _without_null(new)
    if old_null and not new_null:
        return False
    if old_type is None or new_type is None:
        return old_type is None
    same = structure(old_type) == structure(new_type)
    return same or (_name(old_type), _name(new_type)) in _PROMOTIONS or _is_wider(new_type, old_type)


def _without_null(schema: AvroSchema) -> tuple[AvroSchema | None, bool]:
    """Return the type of values other than null, None if there is no such type, and True if null is allowed."""
    branches = schema if isinstance(schema, list) else [schema]
    there = [branch for branch in branches if branch != "null"]
    return (there[0] if there else None), len(there) < len(branches)


def _name(schema: AvroSchema) -> Any:
    return schema["type"] if isinstance(schema, dict) else schema


def _is_wider(new: AvroSchema, old: AvroSchema) -> bool:
    if any(_name(each) != "fixed" or each.get("logicalType") != "decimal" for each in (new, old)):
        return False
    return bool(new["size"] >= old["size"] and new.get("scale", 0) == old.get("scale", 0))
