"""The same rows in other files, group by group."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.concurrency import concurrently
from icesize.parquet.files.data_file import Merged, NewDataFile, NewDeleteFile
from icesize.planning.files import FileFact
from icesize.table.commit.carried_deletes import CarriedDeletes
from icesize.table.commit.compared_inputs import DELETED, NO_OWN_DELETES
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.merge_despite_changes import Followed, follow
from icesize.table.commit.protocol import Base, Kept, Step
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.remove_dangling_deletes import split_dangling
from icesize.table.commit.steps.row_delta import RowDelta
from icesize.table.records.summary import BASE_ID, CommitKind


@dataclass(frozen=True)
class Merge(Step):
    """Replace files with others that hold the same rows, and follow what others did to the input files.

    Earlier steps of the same request may have added input files. No other writer can have changed those. Earlier steps
    may also delete rows of input files.

    Attributes:
        groups: The groups.
        carrier: Writes the deletes of rows that others have deleted; None if no group can follow such changes.
        followed: Each of the groups in the state that the step was validated on last.
        deletes: The delete files for that state.
    """

    kind = CommitKind.MERGE
    groups: tuple[Merged, ...]
    essential: ClassVar[bool] = False
    carrier: CarriedDeletes | None = field(default=None, compare=False)
    followed: tuple[Followed, ...] = field(default=(), compare=False)
    deletes: tuple[NewDeleteFile, ...] = field(default=(), compare=False)

    @property
    def files(self) -> tuple[NewDataFile, ...]:
        return tuple(file for group in self.groups for file in group.files)

    @property
    def paths(self) -> Collection[str]:
        return {file.path for file in (*self.files, *self.deletes)}

    @property
    def possible(self) -> Collection[str]:
        return {*self.paths, *(self.carrier.written if self.carrier else ())}

    @property
    def done(self) -> tuple[Merged, ...]:
        """The groups with those of their input files that the state lists."""
        return tuple(each.group for each in self.followed) or self.groups

    @property
    def inputs(self) -> tuple[FileFact, ...]:
        """The input files that the state lists."""
        return tuple(file for group in self.done for file in group.inputs)

    def validate(self, state: Loaded, base: Base, earlier: Sequence[Step]) -> Kept:
        if (outdated := base.outdated(state)) is not None:
            return Kept(None, (self.dropped(outdated),))
        # every merged file in a partition with new rows gets the number of the new rows
        new = {path for step in earlier for path in step.paths}
        inputs = [file for group in self.groups for file in group.inputs]
        with_new = {file.partition for file in inputs if file.path in new}
        own = next((step.own_deletes for step in earlier if isinstance(step, RowDelta)), NO_OWN_DELETES)
        changes = state.changed_inputs(base.head, [file for file in inputs if file.path not in new], own)
        has_deletes = state.has_deletes or bool(own.new)
        # rows that move to another spec get the number of the commit, too
        beside = [group.moves or group.inputs[0].partition in with_new for group in self.groups]
        found = [
            follow(group, changes, beside_new=beside_new, has_deletes=has_deletes)
            for group, beside_new in zip(self.groups, beside, strict=True)
        ]
        if self.carrier is None:
            found = [each if isinstance(each, str) or not each.dead else DELETED for each in found]
        pairs = list(zip(self.groups, found, strict=True))
        kept = [(group, each) for group, each in pairs if isinstance(each, Followed)]
        dropped = [(group, each) for group, each in pairs if isinstance(each, str)]
        groups, followed = tuple(group for group, _ in kept), tuple(each for _, each in kept)
        return Kept(
            replace(self, groups=groups, followed=followed, deletes=()) if kept else None,
            tuple(Merge((group,)).dropped(why) for group, why in dropped),
            tuple(group.inputs[0].partition for group, _ in dropped),
        )

    def adapt(self, state: Loaded) -> Merge:
        """Return the step with the deletes of rows that others have deleted."""
        dying = [each for each in self.followed if each.dead]
        if not dying or (carrier := self.carrier) is None:
            return self
        written = concurrently(lambda each: carrier.of(each.group.files, each.dead), dying)
        return replace(self, deletes=tuple(file for files in written for file in files))

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot:
        """Write entries of the new files. Remove the input files, and delete files that apply to nothing after that.

        Raises LookupError for an input file that is not live.
        """
        builder.same_schema_and_spec()
        named = {path: paths for group in self.groups for path, paths in group.named.items()}
        inputs, added = self.inputs, self._renumbered(builder)
        split = builder.split([f.path for f in inputs], first={file.manifest_path for file in inputs})
        split_dangling(builder, split, {file.partition for file in inputs}, added, named)
        return builder.exchange(Operation.REPLACE, split, [*added, *self.deletes], summary)

    def summarize(self, base: Base) -> Mapping[str, str]:
        return {} if base.head.snapshot_id is None else {BASE_ID: str(base.head.snapshot_id)}

    def dropped(self, why: str) -> str:
        return f"merge of {len(self.inputs)} files dropped: {why}"

    def visible(self, live: Collection[str]) -> Merge | None:
        groups = tuple(group for group in self.groups if any(file.path in live for file in group.files))
        written = self.carrier.written if self.carrier else {}
        deletes = tuple(file for path, file in written.items() if path in live)
        return replace(self, groups=groups, followed=(), deletes=deletes) if groups else None

    def _renumbered(self, builder: SnapshotBuilder) -> Sequence[NewDataFile]:
        """Return the outputs, with the data sequence number of new files in partitions that earlier steps add files to.

        An equality delete applies to files with smaller numbers. All existing deletes are older than the new rows and
        must not reach them. With the number of the older input files, an output would be reached by a pending delete of
        the partition, which would remove the new rows. If all inputs are new, there is no older number at all.

        Rows that were deleted do not come back. The merge has applied deletes up to the planning base to the older
        inputs, and follows newer position deletes. Later deletes have greater numbers and apply to the whole output.
        The partition also looks as young as its newest rows.
        """
        numbers = {file.partition: builder.new[file.path] for file in self.inputs if file.path in builder.new}
        return [replace(f, sequence_number=numbers.get(f.partition, f.sequence_number)) for f in self.files]
