"""Deletes that are remembered on a branch of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.planning.files import PartitionKey
from icesize.planning.retention.ancestry import TOMBSTONE_BRANCH
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.row_delta import Sourced
from icesize.table.records.summary import CommitKind


@dataclass(frozen=True)
class MoveTombstones(Sourced):
    """Add files of tombstones to their branch, and remove others. Rows of the table do not change."""

    kind = CommitKind.TOMBSTONES
    ref: ClassVar[str | None] = TOMBSTONE_BRANCH

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot | None:
        """List the files under a partition of NULLs, because tombstones of one file are of many partitions."""
        if not self.files and not self.changes.removed:
            return None
        spec = builder.metadata.spec()
        anywhere = PartitionKey(spec.spec_id, (None,) * len(spec.fields))
        files = [replace(file, partition=anywhere) for file in self.files]
        split = builder.split(self.changes.removed)
        operation = Operation.OVERWRITE if self.changes.removed else Operation.APPEND
        builder.keep_newest_only()
        return builder.exchange(operation, split, files, summary)
