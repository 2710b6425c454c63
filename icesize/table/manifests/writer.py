"""One stream of data manifests: entries of one encoding in, files and their descriptions out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Literal, cast

from pydantic_core import to_json
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
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
from pyiceberg.types import IcebergType, NestedField, StringType, StructType, UnknownType
from pyiceberg.utils.properties import property_as_int
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from icesize.errors import UnsupportedTable
from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.files.metrics import widened
from icesize.table.manifests.avro_container import BLOCK_BYTES, ContainerWriter
from icesize.table.manifests.avro_decode import AvroSchema, inlined, structure
from icesize.table.manifests.avro_encode import writer
from icesize.table.manifests.entries import ADDED, DATA, DELETED, EXISTING, DataFileSchema, Entry
from icesize.table.manifests.partition_records import PARTITION, Fitted, fit

FormatVersion = Literal[1, 2]


class Target:
    """Where manifests go and what they share: the table, the snapshot that writes them, the partition spec."""

    def __init__(
        self, io: FileIO, metadata: TableMetadata, snapshot_id: int, spec_id: int, new_path: Callable[[], str]
    ) -> None:
        self.io, self.snapshot_id, self.new_path = io, snapshot_id, new_path
        self.version = cast(FormatVersion, metadata.format_version)
        self.spec = metadata.specs()[spec_id]
        self.partition_type = self.spec.partition_type(metadata.schema())
        self.header = _header(metadata, self.spec)
        default = TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT
        self.max_bytes = (
            property_as_int(metadata.properties, TableProperties.MANIFEST_TARGET_SIZE_BYTES, default) or default
        )

    @cached_property
    def own_schema(self) -> DataFileSchema:
        """How Java encodes data files of this spec: partition values optional, and room for a referenced file.

        PyIceberg's own differs in both; entries of manifests by Java, the most common ones, can then be copied next
        to new files.
        """
        return _own_schema(self.version, self.partition_type)


def _header(metadata: TableMetadata, spec: PartitionSpec) -> dict[str, str]:
    header = {
        "schema": metadata.schema().model_dump_json(),
        "schema-id": str(metadata.current_schema_id),
        "partition-spec": to_json(spec.fields).decode(),
        "partition-spec-id": str(spec.spec_id),
        "format-version": str(metadata.format_version),
    }
    return {**header, "content": "data"} if metadata.format_version > 1 else header


def _own_schema(version: FormatVersion, partition_type: StructType) -> DataFileSchema:
    optional = [NestedField(f.field_id, f.name, f.field_type, required=False) for f in partition_type.fields]
    fields = list(data_file_with_partition(StructType(*optional), version).fields)
    if version > 1:
        fields.append(NestedField(143, "referenced_data_file", StringType(), required=False))
    entry = Schema(NestedField(2, "data_file", StructType(*fields), required=True))
    avro: Any = AvroSchemaConversion().iceberg_to_avro(entry, schema_name="manifest_entry")
    record = inlined(_with_plain_nulls(avro["fields"][0]["type"]))
    return DataFileSchema(structure(record), record)


def _with_plain_nulls(record: Any) -> Any:
    """PyIceberg makes a union of null and null, which is not Avro, of a partition field whose column was dropped."""
    for field in record["fields"]:
        if field["field-id"] == PARTITION:
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


class ManifestStreams:
    """The data manifests of a target: as few streams as the encodings of their entries allow."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._fitted: dict[str, Fitted] = {}
        self._streams: dict[str, ManifestStream] = {}

    def copy(self, entry: Entry, status: int) -> None:
        """Append a file that is or was in the table, as `ManifestStream.copy` says."""
        fitted = self._fit(entry.schema)
        self._stream(fitted.schema).copy(entry, status, fitted.data(entry))

    def add(self, files: Iterable[WrittenFile], beside: Counter[DataFileSchema]) -> None:
        """Append files that are new to the table, next to as many as possible of the entries counted by `beside`.

        One manifest less results, whatever those are encoded by, but only where new partition values have a place.
        """
        there: Counter[DataFileSchema] = Counter()
        for schema, entries in beside.items():
            fitted = self._fit(schema)
            there[fitted.schema] += entries if fitted.is_current else 0
        fullest = max(+there, key=there.__getitem__, default=self._target.own_schema)
        for schema in beside:
            self._stream(self._fit(schema).schema)
        self._stream(fullest).add(files)

    def finish(self) -> list[ManifestFile]:
        """Everything that was appended, on storage."""
        return [manifest for stream in self._streams.values() for manifest in stream.finish()]

    def _fit(self, schema: DataFileSchema) -> Fitted:
        known = self._fitted.get(schema.key)
        if known is None:
            known = self._fitted[schema.key] = fit(schema, self._target.own_schema)
        return known

    def _stream(self, schema: DataFileSchema) -> ManifestStream:
        stream = self._streams.get(schema.key)
        if stream is None:
            stream = self._streams[schema.key] = ManifestStream(self._target, schema)
        return stream


_Header = tuple[int, int | None, int | None, int | None]
"""Of an entry: status, snapshot id, data sequence number and file sequence number."""


class ManifestStream:
    """Data manifests for entries whose data files are encoded by `schema`; a full one is followed by the next."""

    def __init__(self, target: Target, schema: DataFileSchema) -> None:
        self._target, self._schema = target, schema
        wrapper = {"name": "data_file", "type": schema.avro, "field-id": 2}
        self._avro = {"type": "record", "name": "manifest_entry", "fields": [*_ENTRY_FIELDS[target.version], wrapper]}
        self._headers: dict[_Header, bytes] = {}
        self._done: list[ManifestFile] = []
        self._begin()

    def _begin(self) -> None:
        self._file = ContainerWriter(self._avro, self._target.header)
        self._files, self._rows = [0, 0, 0], [0, 0, 0]
        self._lowest_sequence: int | None = None
        self._values: set[tuple[Any, ...]] = set()

    def copy(self, entry: Entry, status: int, data: bytes) -> None:
        """Append a file that was described before: EXISTING as it was, DELETED by this snapshot, or a copy of one that
        is ADDED by it, whose sequence number it inherits. `data` is its data file, encoded by this stream's schema.
        """
        if entry.sequence_number is None and status != ADDED and self._target.version > 1:
            raise UnsupportedTable(
                f"Cannot keep '{entry.path}': its manifest entry has no sequence number, so it is not valid Iceberg",
                path=entry.path,
            )
        snapshot_id = entry.snapshot_id if status == EXISTING else self._target.snapshot_id
        header = status, snapshot_id, entry.sequence_number, entry.file_sequence_number
        self._add(header, entry.rows, entry.values, data)

    def add(self, files: Iterable[WrittenFile]) -> None:
        """Append files that are new to the table. Raises ValueError for values that the schema has no place for."""
        encode = _encoder(self._schema.avro)
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

    def _encoded(self, header: _Header) -> bytes:
        """What comes before the data file; few distinct ones are needed, as there is one for each snapshot."""
        if (encoded := self._headers.get(header)) is None:
            fields = _ENTRY_FIELDS[self._target.version]
            out = bytearray()
            for field, value in zip(fields, header, strict=False):
                writer(field["type"])(out, value)
            encoded = self._headers[header] = bytes(out)
        return encoded

    def _add(self, header: _Header, rows: int, values: tuple[Any, ...], data: bytes) -> None:
        self._file.add(self._encoded(header), data)
        status, _, sequence, _ = header
        self._files[status] += 1
        self._rows[status] += rows
        self._values.add(values)
        lowest = self._lowest_sequence
        if status != DELETED and sequence is not None and (lowest is None or sequence < lowest):
            self._lowest_sequence = sequence
        # One more block must still fit, however badly it compresses.
        if self._file.size_bytes + BLOCK_BYTES > self._target.max_bytes and self._file.has_blocks:
            self._end()

    def finish(self) -> list[ManifestFile]:
        """Everything that was appended, on storage."""
        if any(self._files):
            self._end()
        return self._done

    def _end(self) -> None:
        target, data, path = self._target, self._file.finish(), self._target.new_path()
        with target.io.new_output(path).create(overwrite=True) as stream:
            stream.write(data)
        lowest = UNASSIGNED_SEQ if self._lowest_sequence is None else self._lowest_sequence
        self._done.append(
            ManifestFile.from_args(
                manifest_path=path,
                manifest_length=len(data),
                partition_spec_id=target.spec.spec_id,
                content=ManifestContent.DATA,
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
    """Bounds of each partition field from distinct values.

    A field whose column was dropped has no type to write bounds by, and nobody can filter by it: it gets none.
    """
    return [
        PartitionFieldSummary(True, False, None, None)
        if isinstance(field.field_type, UnknownType)
        else _summary(field.field_type, {each[i] for each in values})
        for i, field in enumerate(partition_type.fields)
    ]


def _summary(kind: IcebergType, values: set[Any]) -> PartitionFieldSummary:
    """Both zeros lie within bounds that are zero: a set holds one of them for both."""
    present = [value for value in values if value is not None]
    ordered = [value for value in present if value == value]  # without NaN
    has_null, has_nan = len(present) < len(values), len(ordered) < len(present)
    if not ordered:
        return PartitionFieldSummary(has_null, has_nan, None, None)
    lowest, highest = widened(min(ordered), -0.0), widened(max(ordered), 0.0)
    return PartitionFieldSummary(has_null, has_nan, to_bytes(kind, lowest), to_bytes(kind, highest))  # type: ignore[arg-type]


_Get = Callable[[WrittenFile], Any]
# Format v1 wants a number here that nobody reads; this is the one that Java and PyIceberg write.
_BLOCK_SIZE_IN_BYTES = 64 * 1024 * 1024

_FIELDS: Mapping[int, _Get] = {
    134: lambda file: DATA,
    100: lambda file: file.path,
    101: lambda file: "PARQUET",
    PARTITION: lambda file: file.partition.values,
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


def _nothing(_: WrittenFile) -> None:
    return None


def _encoder(record: AvroSchema) -> Callable[[bytearray, WrittenFile], None]:
    """A function that encodes a new file by any manifest's data file schema; what it does not have is null."""
    steps = [(_FIELDS.get(field["field-id"], _nothing), writer(field["type"])) for field in record["fields"]]

    def encode(out: bytearray, file: WrittenFile) -> None:
        for get, write in steps:
            write(out, get(file))

    return encode
