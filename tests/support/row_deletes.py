"""Row-level deletes by another engine: PyIceberg writes none, so they are put together from its parts."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.typedef import Record
from pyiceberg.types import StringType

from icesize.parquet.files.data_file import WrittenFile
from icesize.planning.files import FileFact
from tests.support.tables import NOW_MS, local


class _DeleteManifestWriter(ManifestWriterV2):
    """PyIceberg writes no delete files; only the label of its manifests stands in the way."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_rows(catalog: Catalog, input_file: FileFact | WrittenFile, positions: Sequence[int] = (0,)) -> Table:
    """Commit a position delete of some rows of a file, as an engine with merge-on-read does."""
    table = catalog.load_table("db.t")
    rows = pa.table(
        {"file_path": [input_file.path] * len(positions), "pos": pa.array(positions, pa.int64())},
        schema=pa.schema(
            [
                pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
                pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
            ]
        ),
    )
    bound = to_bytes(StringType(), input_file.path)
    bounds = {"lower_bounds": {2147483546: bound}, "upper_bounds": {2147483546: bound}}
    return _commit_deletes(catalog, table, rows, input_file, DataFileContent.POSITION_DELETES, bounds)


def delete_ids(catalog: Catalog, like: FileFact | WrittenFile, ids: Sequence[int]) -> Table:
    """Commit an equality delete on `id`, in the partition of a file."""
    table = catalog.load_table("db.t")
    column = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    rows = pa.table({"id": list(ids)}, schema=pa.schema([column]))
    return _commit_deletes(catalog, table, rows, like, DataFileContent.EQUALITY_DELETES, {"equality_ids": [1]})


def _commit_deletes(
    catalog: Catalog,
    table: Table,
    rows: pa.Table,
    like: FileFact | WrittenFile,
    content: DataFileContent,
    others: dict[str, Any],
) -> Table:
    number, metadata = uuid.uuid4().hex, table.metadata
    path = f"{table.location()}/data/deletes-{number}.parquet"
    pq.write_table(rows, local(path))
    file = DataFile.from_args(
        **{
            "content": content,
            "file_path": path,
            "file_format": FileFormat.PARQUET,
            "partition": Record(*like.partition.values),
            "record_count": rows.num_rows,
            "file_size_in_bytes": local(path).stat().st_size,
            "equality_ids": None,
            "key_metadata": None,
            **others,
        }
    )
    head = metadata.current_snapshot()
    assert head is not None
    snapshot_id = metadata.new_snapshot_id()
    manifest = f"{table.location()}/metadata/deletes-{number}.avro"
    spec = metadata.specs()[like.partition.spec_id]
    with _DeleteManifestWriter(spec, table.schema(), table.io.new_output(manifest), snapshot_id, "deflate") as writer:
        entry: dict[str, Any] = {"status": ManifestEntryStatus.ADDED, "snapshot_id": snapshot_id, "data_file": file}
        writer.add_entry(ManifestEntry.from_args(**entry))
    sequence_number = getattr(metadata, "last_sequence_number", 0) + 1
    location = f"{table.location()}/metadata/snap-{snapshot_id}-test.avro"
    with write_manifest_list(
        2, table.io.new_output(location), snapshot_id, head.snapshot_id, sequence_number, "deflate"
    ) as out:
        out.add_manifests([writer.to_manifest_file(), *head.manifests(table.io)])
    facts = head.summary.additional_properties if head.summary else {}
    totals = {k: v for k, v in facts.items() if k.startswith("total-")}
    snapshot = Snapshot(
        **{
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": head.snapshot_id,
            "sequence-number": sequence_number,
            "timestamp-ms": max(NOW_MS, head.timestamp_ms + 1, metadata.last_updated_ms),
            "manifest-list": location,
            "summary": Summary(Operation.DELETE, **totals),
            "schema-id": metadata.current_schema_id,
        }
    )
    _move_main(catalog, table, snapshot, head.snapshot_id)
    return catalog.load_table("db.t")


def _move_main(catalog: Catalog, table: Table, snapshot: Snapshot, head_id: int) -> None:
    main = {"ref-name": "main", "type": SnapshotRefType.BRANCH, "snapshot-id": snapshot.snapshot_id}
    requirement = AssertRefSnapshotId(**{"ref": "main", "snapshot-id": head_id})
    catalog.commit_table(table, (requirement,), (AddSnapshotUpdate(snapshot=snapshot), SetSnapshotRefUpdate(**main)))
