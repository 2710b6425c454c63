"""The same rows in other files, group by group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.parquet.files.data_file import Merged, NewDataFile
from icesize.planning.deletes.delete_reach import PENDING, may_hit, plain_path
from icesize.planning.files import FileFact, FileId
from icesize.table.commit.conflicts import BASE_EXPIRED
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import Base, Kept, Step
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.remove_dangling_deletes import split_dangling
from icesize.table.commit.steps.row_delta import RowChanges, RowDelta
from icesize.table.records.summary import BASE_ID, CommitKind

OTHER_DELETES = "the batch deletes other rows of it than were known when the merge began"


@dataclass(frozen=True)
class Merge(Step):
    """Replace files with others that hold the same rows. A group is dropped if its input files have changed.

    Earlier steps of the same request may have added input files. No other writer can have changed those. Earlier steps
    may also add deletes of input files, which the merge must have applied, and no others.
    """

    kind = CommitKind.MERGE
    groups: tuple[Merged, ...]
    essential: ClassVar[bool] = False

    @property
    def files(self) -> tuple[NewDataFile, ...]:
        return tuple(file for group in self.groups for file in group.files)

    @property
    def inputs(self) -> tuple[FileFact, ...]:
        return tuple(file for group in self.groups for file in group.inputs)

    def validate(self, state: Loaded, base: Base, earlier: Sequence[Step]) -> Kept:
        if (outdated := base.outdated(state)) is not None:
            return Kept(None, (self.dropped(outdated),))
        # every merged file in a partition with new rows gets the number of the new rows
        new = {path for step in earlier for path in step.paths}
        with_new = {file.partition for file in self.inputs if file.path in new}
        beside_new = {file.path for file in self.inputs if file.partition in with_new}
        older = [file for file in self.inputs if file.path not in new]
        changes = next((step.changes for step in earlier if isinstance(step, RowDelta)), RowChanges())
        lost = state.lost_inputs(base.head, older, beside_new, {delete.id for delete in changes.replaced})
        added = frozenset[FileId]().union(*changes.applied.values())
        lost |= {f.path: OTHER_DELETES for f in older if not _has_applied(f, changes.applied, added)}
        reasons = [next((lost[f.path] for f in group.inputs if f.path in lost), None) for group in self.groups]
        dropped = [(group, why) for group, why in zip(self.groups, reasons, strict=True) if why is not None]
        return Kept(
            self._with(group for group, why in zip(self.groups, reasons, strict=True) if why is None),
            tuple(Merge((group,)).dropped(why) for group, why in dropped),
            tuple(group.inputs[0].partition for group, why in dropped if why != BASE_EXPIRED),
        )

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot:
        """Write entries of the new files. Remove the input files, and delete files that apply to nothing after that.

        Raises LookupError for an input file that is not live.
        """
        builder.same_schema_and_spec()
        named = defaultdict[str, frozenset[str]](frozenset)
        for group in self.groups:
            for path, paths in group.named.items():
                named[path] |= paths
        found_in = {file.manifest_path for file in self.inputs}
        split, added = builder.split([f.path for f in self.inputs], first=found_in), self._renumbered(builder)
        split_dangling(builder, split, {file.partition for file in self.inputs}, added, named)
        return builder.exchange(Operation.REPLACE, split, added, summary)

    def summarize(self, base: Base) -> Mapping[str, str]:
        return {} if base.head.snapshot_id is None else {BASE_ID: str(base.head.snapshot_id)}

    def dropped(self, why: str) -> str:
        return f"merge of {len(self.inputs)} files dropped: {why}"

    def visible(self, live: Collection[str]) -> Merge | None:
        return self._with(group for group in self.groups if any(file.path in live for file in group.files))

    def _with(self, groups: Iterable[Merged]) -> Merge | None:
        kept = tuple(groups)
        return Merge(kept) if kept else None

    def _renumbered(self, builder: SnapshotBuilder) -> Sequence[NewDataFile]:
        """Return the outputs, with the data sequence number of new files in partitions that earlier steps add files to.

        An equality delete applies to files with smaller numbers. All existing deletes are older than the new rows and
        must not reach them. With the number of the older input files, an output would be reached by a pending delete of
        the partition, which would remove the new rows. If all inputs are new, there is no older number at all.

        Rows that were deleted do not come back. The merge has applied deletes up to the planning base to the older
        inputs, and `validate` has found no newer ones. Later deletes have greater numbers and apply to the whole
        output. The partition also looks as young as its newest rows.
        """
        numbers = {file.partition: builder.new[file.path] for file in self.inputs if file.path in builder.new}
        return [replace(f, sequence_number=numbers.get(f.partition, f.sequence_number)) for f in self.files]


def _has_applied(file: FileFact, applied: Mapping[str, frozenset[FileId]], added: frozenset[FileId]) -> bool:
    """Return whether a merge has applied the deletes of an input file that the batch adds, and no others.

    By its bounds, one of the `added` delete files may name the input, and have no row of it.
    """
    own = applied.get(plain_path(file.path), frozenset())
    merged = {each.id for each in file.deletes if each.sequence_number == PENDING and may_hit(each, file)}
    return own <= merged <= added
