"""Deletes that are remembered on a branch of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.parquet.files.data_file import NewDataFile
from icesize.planning.files import PartitionKey
from icesize.planning.retention.ancestry import TOMBSTONE_BRANCH
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import Step
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.records.summary import CommitKind

BRANCH = TOMBSTONE_BRANCH


@dataclass(frozen=True)
class TombstoneChanges:
    """Files of tombstones for one state of the branch: new ones, and the paths of those that go."""

    files: tuple[NewDataFile, ...] = ()
    removed: tuple[str, ...] = ()


class TombstoneSource(Protocol):
    """Writes files of tombstones for the states of the table that a commit is tried on."""

    @property
    def written(self) -> Sequence[NewDataFile]:
        """All files that were written so far, for any state."""

    def at(self, state: Loaded) -> TombstoneChanges:
        """Return the changes for a state; write files that are missing."""


@dataclass(frozen=True)
class MoveTombstones(Step):
    """Add files of tombstones to their branch, and remove others. Rows of the table do not change."""

    kind = CommitKind.TOMBSTONES
    ref: ClassVar[str | None] = BRANCH
    source: TombstoneSource
    changes: TombstoneChanges = TombstoneChanges()

    @property
    def files(self) -> tuple[NewDataFile, ...]:
        return self.changes.files

    @property
    def possible(self) -> Collection[str]:
        return {file.path for file in self.source.written}

    def adapt(self, state: Loaded) -> MoveTombstones:
        return replace(self, changes=self.source.at(state))

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot | None:
        """List the files under a partition of NULLs, because tombstones of one file are of many partitions."""
        if not self.changes.files and not self.changes.removed:
            return None
        spec = builder.metadata.spec()
        anywhere = PartitionKey(spec.spec_id, (None,) * len(spec.fields))
        files = [replace(file, partition=anywhere) for file in self.files]
        split = builder.split(self.changes.removed)
        operation = Operation.OVERWRITE if self.changes.removed else Operation.APPEND
        builder.keep_newest_only()
        return builder.exchange(operation, split, files, summary)

    def visible(self, live: Collection[str]) -> MoveTombstones:
        return replace(self, changes=TombstoneChanges(tuple(f for f in self.source.written if f.path in live)))
