"""New files that also hold the rows of older ones, which the step removes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.parquet.files.data_file import NewDataFile
from icesize.planning.files import FileFact, PartitionKey
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import Base, ConcurrentChange, Kept, Step
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.remove_dangling_deletes import split_dangling
from icesize.table.manifests.entries import Entry
from icesize.table.records.summary import CommitKind


@dataclass(frozen=True)
class Absorb(Step):
    """Add files that hold new rows and the rows of the `removed` files.

    The removed files must be unchanged. The step is essential, because no other files hold the new rows.

    `copied` are entries for files of older snapshots, in the table's current spec.
    """

    kind = CommitKind.APPEND
    removed: tuple[FileFact, ...]
    files: tuple[NewDataFile, ...]
    copied: tuple[Entry, ...] = ()

    @property
    def paths(self) -> Collection[str]:
        return {*(file.path for file in self.files), *(entry.path for entry in self.copied)}

    def validate(self, state: Loaded, base: Base, earlier: Sequence[Step]) -> Kept:
        base.check_fit(state)
        if (why := base.outdated(state)) is not None:
            raise ConcurrentChange(why, _partitions(self.removed))
        # the new files get the number of the new rows, which no existing delete reaches
        changed = state.changed_inputs(base.head, self.removed)
        if lost := [file for file in self.removed if file.path in changed]:
            raise ConcurrentChange(changed[lost[0].path].why, _partitions(lost))
        return Kept(self)

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot:
        """Write new files with the number of this snapshot: no delete may be pending on a file that holds its rows.

        Deletion vectors of the removed files go with them, as Iceberg demands, whatever files come instead.
        """
        builder.same_schema_and_spec()
        fresh = [replace(file, sequence_number=None) for file in self.files]
        split = builder.split([file.path for file in self.removed])
        partitions = {file.partition for file in self.removed} | {file.partition for file in fresh}
        split_dangling(builder, split, partitions, fresh, {})
        return builder.exchange(Operation.OVERWRITE, split, fresh, summary, self.copied)


def _partitions(files: Collection[FileFact]) -> tuple[PartitionKey, ...]:
    return tuple(dict.fromkeys(file.partition for file in files))
