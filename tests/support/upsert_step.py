"""A kind of commit that icesize does not have: new rows together with equality deletes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.planning.files import PartitionKey
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import Base, Kept, Step
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.manifests.packing import Split
from icesize.table.records.summary import CommitKind


@dataclass(frozen=True)
class Upsert(Step):
    """Add files with rows, and delete files that hit older rows of their keys."""

    kind = CommitKind.APPEND
    files: tuple[NewDataFile, ...]
    deletes: tuple[NewDeleteFile, ...]

    @property
    def paths(self) -> Collection[str]:
        return {file.path for file in (*self.files, *self.deletes)}

    def validate(self, state: Loaded, base: Base, earlier: Sequence[Step]) -> Kept:
        base.check_fit(state)
        return Kept(self)

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot:
        builder.same_schema_and_spec()
        return builder.exchange(Operation.OVERWRITE, Split(), [*self.files, *self.deletes], summary)

    def summarize(self, base: Base) -> Mapping[str, str]:
        return {"test.upsert": str(len(self.deletes))}


def new_delete_file(file: DataFile, partition: PartitionKey) -> NewDeleteFile:
    """An equality delete file that PyIceberg's parts have written."""
    ids = tuple(file.equality_ids or ())
    return NewDeleteFile(file.file_path, file.file_size_in_bytes, file.record_count, partition, equality_ids=ids)
