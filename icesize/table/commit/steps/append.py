"""New rows in new files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.parquet.files.data_file import NewDataFile
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import Base, Kept, Step
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.manifests.packing import Split
from icesize.table.records.summary import CommitKind


@dataclass(frozen=True)
class Append(Step):
    """Add files. No change of another writer removes them, but the table must be able to read them."""

    kind = CommitKind.APPEND
    files: tuple[NewDataFile, ...]

    def validate(self, state: Loaded, base: Base, earlier: Sequence[Step]) -> Kept:
        base.check_fit(state)
        return Kept(self)

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot:
        """Write one manifest for each spec. The other manifests stay, or are merged if there are too many."""
        builder.same_schema_and_spec()
        builder.fold()
        return builder.exchange(Operation.APPEND, Split(), self.files, summary)
