"""Deletes by another engine with merge-on-read, without Spark or Java: each verb is one commit on `main` or a branch.

PyIceberg writes no delete files; they are put together from its parts. That Spark reads them is tested in
`integration/test_delete_files.py`.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    _dataframe_to_data_files,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType, StructType

from icesize.planning.files import PartitionKey
from icesize.table.records.summary import with_totals
from tests.support.tables import NOW_MS

_DATA_FILE, _EQUALITY_IDS = 2, 135
_PATH, _POSITION = 2147483546, 2147483545
_POSITIONS = Schema(
    NestedField(_PATH, "file_path", StringType(), True), NestedField(_POSITION, "pos", LongType(), True)
)


def delete_positions(
    table: Table,
    positions: Mapping[str, Sequence[int]],
    partition: PartitionKey | None = None,
    *,
    granularity: Literal["partition", "file"] = "partition",
    branch: str = "main",
) -> Table:
    """Delete rows of data files by their positions: in one delete file for all of them, or in one for each.

    The files are looked up for their partition, unless it is given, as for files that are gone.
    """
    table = table.catalog.load_table(table.name())
    apart = [positions] if granularity == "partition" else [{path: found} for path, found in positions.items()]
    return commit_row_delta(table, [position_deletes(table, each, partition) for each in apart], branch=branch)


def delete_equal(
    table: Table,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    partition: PartitionKey | None = None,
    *,
    files: int = 1,
    branch: str = "main",
) -> Table:
    """Delete the rows that equal one of `rows` in all columns (`s.a` of a struct, None equals null).

    In one partition; None stands for the current spec when that is unpartitioned, and hits every partition then. The
    rows are spread over as many delete files of one commit as `files` says.
    """
    table = table.catalog.load_table(table.name())
    apart = [rows[i::files] for i in range(files)]
    return commit_row_delta(table, [equality_deletes(table, columns, e, partition) for e in apart], branch=branch)


def upsert(table: Table, rows: pa.Table, keys: Sequence[str], *, branch: str = "main") -> Table:
    """Write rows in place of those with equal keys, as Flink does in one commit.

    In each partition that gets rows an equality delete hits the older ones, and position deletes those rows of the
    commit itself after which the same keys come again.
    """
    table = table.catalog.load_table(table.name())
    data, deletes = list(_dataframe_to_data_files(table.metadata, rows, table.io)), []
    for file in data:
        file.spec_id = table.spec().spec_id
        partition = PartitionKey.of(file.spec_id, _values(file))
        with table.io.new_input(file.file_path).open() as stream:
            found = [_at(row, keys) for row in pq.read_table(stream).to_pylist()]
        last = {key: position for position, key in enumerate(found)}
        deletes.append(equality_deletes(table, keys, list(last), partition))
        if again := sorted(set(range(len(found))) - set(last.values())):
            deletes.append(position_deletes(table, {file.file_path: again}, partition))
    return commit_row_delta(table, deletes, data, branch)


def position_deletes(
    table: Table, positions: Mapping[str, Sequence[int]], partition: PartitionKey | None = None
) -> DataFile:
    """A position delete file that is not committed; positions as they come, without being sorted or made unique.

    As Iceberg's writer does, paths are bounded and the data file is named only where it is one.
    """
    listed = [{"file_path": path, "pos": at} for path, found in positions.items() for at in found]
    partition = partition or _partition_of(table, next(iter(positions)))
    facts = _written(table, _POSITIONS, listed, {"write.metadata.metrics.default": "full"})
    if len(positions) > 1:
        facts = {key: value for key, value in facts.items() if not key.endswith("_bounds")}
    else:
        facts["referenced_data_file"] = next(iter(positions))
    return _file(DataFileContent.POSITION_DELETES, partition, facts)


def equality_deletes(
    table: Table, columns: Sequence[str], rows: Sequence[Sequence[object]], partition: PartitionKey | None = None
) -> DataFile:
    """An equality delete file that is not committed; see `delete_equal`."""
    if partition is None and not table.spec().is_unpartitioned():
        raise ValueError("deletes of a partitioned spec are those of one partition")
    schema = table.schema().select(*columns)
    ids = [schema.find_field(name).field_id for name in columns]
    facts = _written(table, schema, [_nested(columns, row) for row in rows], table.properties)
    partition = partition or PartitionKey(table.spec().spec_id)
    return _file(DataFileContent.EQUALITY_DELETES, partition, {**facts, "equality_ids": ids})


def commit_row_delta(
    table: Table, deletes: Iterable[DataFile], data: Iterable[DataFile] = (), branch: str = "main"
) -> Table:
    """Delete files, with data files if there are some, in one commit under the sequence number that comes next."""
    deletes, data, metadata = list(deletes), list(data), table.metadata
    snapshot_id, number = metadata.new_snapshot_id(), getattr(metadata, "last_sequence_number", 0) + 1
    parent = metadata.snapshot_by_name(branch)
    made = _manifests(table, snapshot_id, _DeleteManifestWriter, deletes)
    made += _manifests(table, snapshot_id, ManifestWriterV2, data)
    location = f"{table.location()}/metadata/snap-{snapshot_id}-1-{uuid.uuid4()}.avro"
    parent_id = parent.snapshot_id if parent else None
    with write_manifest_list(2, table.io.new_output(location), snapshot_id, parent_id, number, "deflate") as out:
        out.add_manifests([*made, *(parent.manifests(table.io) if parent else ())])
    what = (Operation.OVERWRITE if deletes else Operation.APPEND) if data else Operation.DELETE
    snapshot = Snapshot(
        **{
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": parent_id,
            "sequence-number": number,
            "timestamp-ms": max(NOW_MS, metadata.last_updated_ms, parent.timestamp_ms + 1 if parent else 0),
            "manifest-list": location,
            "summary": with_totals(what, _counts(deletes, data), parent),
            "schema-id": metadata.current_schema_id,
        }
    )
    ref = {"ref-name": branch, "type": SnapshotRefType.BRANCH, "snapshot-id": snapshot_id}
    unmoved = AssertRefSnapshotId(**{"ref": branch, "snapshot-id": parent_id})
    table.catalog.commit_table(table, (unmoved,), (AddSnapshotUpdate(snapshot=snapshot), SetSnapshotRefUpdate(**ref)))
    return table.catalog.load_table(table.name())


def live_deletes(table: Table, branch: str = "main") -> list[ManifestEntry]:
    """Delete files that the head of a branch lists, with the numbers that they have there."""
    head = table.metadata.snapshot_by_name(branch)
    manifests = [m for m in head.manifests(table.io) if m.content == ManifestContent.DELETES] if head else []
    return [entry for m in manifests for entry in m.fetch_manifest_entry(table.io)]


class _DeleteManifestWriter(ManifestWriterV2):
    """PyIceberg writes no delete files; the label of its manifests and a field stand in the way."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def _with_partition(self, format_version: Any) -> Schema:
        # Iceberg names the referenced file in version 2, too, and reads no equality ids that are long
        entry = super()._with_partition(3)
        fields = [_with_ints(f) if f.field_id == _EQUALITY_IDS else f for f in entry.find_type(_DATA_FILE).fields]
        file = NestedField(_DATA_FILE, "data_file", StructType(*fields), required=True)
        return Schema(*(file if f.field_id == _DATA_FILE else f for f in entry.fields))


def _with_ints(field: NestedField) -> NestedField:
    ids = ListType(field.field_type.element_id, IntegerType(), element_required=True)
    return NestedField(field.field_id, field.name, ids, required=False)


def _manifests(
    table: Table, snapshot_id: int, writer: Callable[..., ManifestWriterV2], files: Iterable[DataFile]
) -> list[ManifestFile]:
    """One for each spec."""
    by_spec = defaultdict[int, list[DataFile]](list)
    for file in files:
        by_spec[file.spec_id].append(file)
    made = []
    for spec_id, some in by_spec.items():
        out = table.io.new_output(f"{table.location()}/metadata/{uuid.uuid4()}-m0.avro")
        with writer(table.specs()[spec_id], table.schema(), out, snapshot_id, "deflate") as manifest:
            for file in some:
                entry = {"status": ManifestEntryStatus.ADDED, "snapshot_id": snapshot_id, "data_file": file}
                manifest.add_entry(ManifestEntry.from_args(**entry))
        made.append(manifest.to_manifest_file())
    return made


def _written(
    table: Table, schema: Schema, rows: Sequence[Mapping[str, object]], properties: Mapping[str, str]
) -> dict[str, Any]:
    """Rows as a Parquet file of the table; what a manifest says of it."""
    path = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet"
    with table.io.new_output(path).create() as stream:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema_to_pyarrow(schema)), stream)
    file = table.io.new_input(path)
    with file.open() as stream:
        footer = pq.read_metadata(stream)
    plan = compute_statistics_plan(schema, dict(properties))
    told = data_file_statistics_from_parquet_metadata(footer, plan, parquet_path_to_id_mapping(schema))
    return {"file_path": path, "file_size_in_bytes": len(file), **told.to_serialized_dict()}


def _file(content: DataFileContent, partition: PartitionKey, facts: Mapping[str, Any]) -> DataFile:
    always = {"content": content, "file_format": FileFormat.PARQUET, "partition": Record(*partition.values)}
    file = DataFile.from_args(_table_format_version=3, **always, **facts)
    file.spec_id = partition.spec_id
    return file


def _counts(deletes: Sequence[DataFile], data: Sequence[DataFile]) -> dict[str, str]:
    """As Iceberg has it, the size of what was added is that of delete files, too."""
    by_position = [file for file in deletes if file.content == DataFileContent.POSITION_DELETES]
    by_value = [file for file in deletes if file.content == DataFileContent.EQUALITY_DELETES]
    numbers = {
        "added-data-files": len(data),
        "added-records": sum(file.record_count for file in data),
        "added-delete-files": len(deletes),
        "added-position-delete-files": len(by_position),
        "added-position-deletes": sum(file.record_count for file in by_position),
        "added-equality-delete-files": len(by_value),
        "added-equality-deletes": sum(file.record_count for file in by_value),
        "added-files-size": sum(file.file_size_in_bytes for file in (*deletes, *data)),
        "changed-partition-count": len({(file.spec_id, _values(file)) for file in (*deletes, *data)}),
    }
    return {key: str(value) for key, value in numbers.items() if value}


def _partition_of(table: Table, path: str) -> PartitionKey:
    for snapshot in reversed(table.metadata.snapshots):
        for manifest in snapshot.manifests(table.io):
            for entry in manifest.fetch_manifest_entry(table.io):
                if entry.data_file.file_path == path:
                    return PartitionKey.of(manifest.partition_spec_id, _values(entry.data_file))
    raise LookupError(f"no snapshot has {path}: the partition has to be given")


def _values(file: DataFile) -> tuple[object, ...]:
    return tuple(file.partition[i] for i in range(len(file.partition)))


def _nested(columns: Sequence[str], row: Sequence[object]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in zip(columns, row, strict=True):
        *parents, leaf = name.split(".")
        inner = out
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[leaf] = value
    return out


def _at(row: Mapping[str, Any], columns: Sequence[str]) -> tuple[object, ...]:
    """The values of columns, those of a struct that is null being null."""
    values = []
    for name in columns:
        value: Any = row
        for part in name.split("."):
            value = None if value is None else value[part]
        values.append(value)
    return tuple(values)
