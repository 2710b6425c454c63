"""New rows, and the deletes of the rows that they replace: written for each state that the step is tried on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pyiceberg.manifest import ManifestContent
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.parquet.deletes.positions import PATH_ID
from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.planning.deletes.delete_reach import PENDING
from icesize.planning.files import DeleteFile, FileId
from icesize.table.commit.compared_inputs import OwnDeletes
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import Base, Kept, Step
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.records.summary import CommitKind


@dataclass(frozen=True)
class RowChanges:
    """Files for one state of the table.

    Attributes:
        files: Data files with new rows.
        deletes: Position delete files or deletion vectors.
        replaced: Delete files of the state whose rows `deletes` also have.
        applied: The ids of `deletes` that apply to a data file, by its `plain_path`.
        removed: Paths of data files that go.
    """

    files: tuple[NewDataFile, ...] = ()
    deletes: tuple[NewDeleteFile, ...] = ()
    replaced: tuple[DeleteFile, ...] = ()
    applied: Mapping[str, frozenset[FileId]] = field(default_factory=dict)
    removed: tuple[str, ...] = ()


class RowSource(Protocol):
    """Writes the files of a step for the states of the table that its commit is tried on."""

    @property
    def written(self) -> Sequence[NewDataFile | NewDeleteFile]:
        """All files that were written so far, for any state."""

    def at(self, state: Loaded) -> RowChanges:
        """Return the changes for a state; write files that are missing. Files that still fit are used again.

        Raises ConcurrentChange if the batch must be planned again.
        """


@dataclass(frozen=True)
class Sourced(Step):
    """A step whose files depend on the state that it is tried on.

    Attributes:
        source: Returns the changes for a state.
        changes: The changes for the state that the step was adapted to last, or that it was planned on.
    """

    source: RowSource
    changes: RowChanges = RowChanges()

    @property
    def files(self) -> tuple[NewDataFile, ...]:
        return self.changes.files

    @property
    def deletes(self) -> tuple[NewDeleteFile, ...]:
        """The new delete files, each for data files that the state lists."""
        return self.changes.deletes

    @property
    def paths(self) -> Collection[str]:
        return {file.path for file in (*self.files, *self.deletes)}

    @property
    def possible(self) -> Collection[str]:
        return {file.path for file in self.source.written}

    def adapt(self, state: Loaded) -> Sourced:
        """Return the step with its changes for the state."""
        return replace(self, changes=self.source.at(state))

    def visible(self, live: Collection[str]) -> Sourced:
        files = [file for file in self.source.written if file.path in live]
        data = tuple(file for file in files if isinstance(file, NewDataFile))
        deletes = tuple(file for file in files if isinstance(file, NewDeleteFile))
        return replace(self, changes=RowChanges(data, deletes))


@dataclass(frozen=True)
class RowDelta(Sourced):
    """Add rows and delete others by position, in one snapshot.

    Which rows are deleted depends on the state: other writers may have rewritten their files, deleted them, or added
    rows of the same keys.
    """

    kind = CommitKind.APPEND

    def validate(self, state: Loaded, base: Base, earlier: Sequence[Step]) -> Kept:
        base.check_fit(state)
        return Kept(self)

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot | None:
        """Write entries of the new files, without the delete files that they replace; None without new files.

        The operation is `append` without deletes, and `delete` without rows: readers of streams rely on it.
        """
        if not self.paths:
            return None
        builder.same_schema_and_spec()
        operation = Operation.OVERWRITE if self.files else Operation.DELETE
        if not self.deletes:
            builder.fold()
            operation = Operation.APPEND
        gone = sorted((delete.id for delete in self.changes.replaced), key=str)
        split = builder.split(gone, ManifestContent.DELETES)
        return builder.exchange(operation, split, [*self.files, *self.deletes], summary)

    @property
    def own_deletes(self) -> OwnDeletes:
        """The deletes of data files as merges of the same request find them."""
        replaced = frozenset(delete.id for delete in self.changes.replaced)
        return OwnDeletes(replaced, pending(self.changes))


def pending(changes: RowChanges) -> dict[str, tuple[DeleteFile, ...]]:
    """Return the new delete files as merges of the same request read them, by the `plain_path` of their data file."""
    by_id = {}
    for file in changes.deletes:
        lowest, highest = (
            bounds.get(PATH_ID, b"").decode() or None for bounds in (file.lower_bounds, file.upper_bounds)
        )
        delete = DeleteFile(
            file.path, file.size_bytes, file.rows, file.partition, PENDING,
            "PARQUET" if file.content_offset is None else "PUFFIN",
            referenced_path=file.deletes_of, lowest_path=lowest, highest_path=highest,
            content_offset=file.content_offset, content_size_bytes=file.content_size_bytes,
        )  # fmt: skip
        by_id[delete.id] = delete
    return {path: tuple(by_id[each] for each in ids) for path, ids in changes.applied.items()}
