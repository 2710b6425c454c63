"""Files of an older snapshot in place of those of a partition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate

from icesize.errors import CommitConflict, TableError
from icesize.table.catalog import opening
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import Base, Kept, Step
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.absorb import Absorb
from icesize.table.past.restore_plan import Difference, Restoration
from icesize.table.records.summary import RESTORED_ID, CommitKind


@dataclass(frozen=True)
class Restore(Step):
    """Commit the files of `overwrite` as `planned` by `work`, and remove the tag that held the older snapshot.

    The plan is made again on each state that the step is tried on. Its result must be the same. `check` refuses a state
    in which keys would have several rows.
    """

    kind = CommitKind.RESTORE
    tag: str
    work: Restoration
    planned: Difference
    overwrite: Absorb
    check: Callable[[Loaded, Difference], object]

    @property
    def paths(self) -> Collection[str]:
        return self.overwrite.paths

    def validate(self, state: Loaded, base: Base, earlier: Sequence[Step]) -> Kept:
        """Raise the errors of `difference` on the state to commit to, and CommitConflict if its result has changed."""
        table, work = state.table, self.work
        opening.check_supported(table)
        if not work.difference(table).same_as(self.planned):
            raise CommitConflict(
                f"{work.cannot(table)}: another writer changed the partition during the restore; nothing was changed. "
                "Look at its versions, and restore again if you still want to",
                table=state.name,
            )
        self.check(state, self.planned)
        if self.tag not in table.metadata.refs:
            raise TableError(
                f"{work.cannot(table)}: another writer removed tag '{self.tag}', which held the snapshot; nothing was "
                "changed. Restore again",
                table=state.name,
            )
        return Kept(self)

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot:
        held = self.work.snapshot_id
        builder.requirements.append(AssertRefSnapshotId(ref=self.tag, snapshot_id=held))
        builder.updates.append(RemoveSnapshotRefUpdate(ref_name=self.tag))
        return self.overwrite.stage(builder, summary)

    def summarize(self, base: Base) -> Mapping[str, str]:
        return {RESTORED_ID: str(self.work.snapshot_id)}
