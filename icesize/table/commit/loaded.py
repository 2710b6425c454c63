"""One state of a table that a commit is tried on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID, TableRequirement, TableUpdate

from icesize.planning.files import MAIN, FileFact, Head
from icesize.table.catalog.history import head_of, head_snapshot, hides_history, known_ancestors, summary_of
from icesize.table.commit.compared_inputs import NO_OWN_DELETES, InputChange, InputCheck, OwnDeletes
from icesize.table.commit.schema_fit import misfit, misfit_spec
from icesize.table.manifests.file_columns import EntryColumns
from icesize.table.manifests.manifest_lists import Manifests, manifests_of
from icesize.table.manifests.store import ManifestStore
from icesize.table.records.ledger import LedgerEntry
from icesize.table.records.recent_commits import follows, recent_commits
from icesize.table.records.summary import RUN_ID
from icesize.table.state.committed_batches import is_committed


@dataclass(frozen=True)
class Staged:
    """One attempt, still invisible: requirements and updates for the catalog, as its REST protocol defines them.

    `written` are the metadata files of the attempt. `facts` are the facts of its manifests by path.
    """

    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    written: tuple[str, ...] = ()
    facts: Mapping[str, EntryColumns] = field(default_factory=dict, repr=False)

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        """Ids of the snapshots that the attempt adds, oldest first."""
        return tuple(snapshot.snapshot_id for snapshot in self._snapshots)

    @property
    def summaries(self) -> tuple[dict[str, str], ...]:
        """Summaries of these snapshots, each with its operation."""
        given = (snapshot.summary for snapshot in self._snapshots)
        return tuple(
            {"operation": each.operation.value, **each.additional_properties} if each else {} for each in given
        )

    @property
    def _snapshots(self) -> Iterator[Snapshot]:
        return (update.snapshot for update in self.updates if isinstance(update, AddSnapshotUpdate))


@dataclass(frozen=True)
class Loaded:
    """One state of a table as readers of one of its branches see it; `store` caches its manifests."""

    table: Table
    ref: str = MAIN
    store: ManifestStore = field(default_factory=ManifestStore, compare=False, repr=False)

    @property
    def uuid(self) -> str:
        return str(self.table.metadata.table_uuid)

    @property
    def name(self) -> str:
        return ".".join(self.table.name())

    @property
    def head(self) -> Head:
        return head_of(self.table.metadata, self.ref)

    @property
    def format_version(self) -> int:
        return self.table.metadata.format_version

    @property
    def schema_id(self) -> int:
        return self.table.metadata.current_schema_id

    @property
    def spec_id(self) -> int:
        return self.table.metadata.default_spec_id

    @property
    def properties(self) -> Mapping[str, str]:
        return self.table.metadata.properties

    @property
    def hides_history(self) -> bool:
        """True if the catalog shows only the newest snapshot."""
        return hides_history(self.table.metadata)

    @cached_property
    def manifests(self) -> Manifests:
        """The manifests at the head of the branch."""
        return self._manifests_of(self.ref)

    @property
    def has_deletes(self) -> bool:
        """True if the branch has delete files."""
        return bool(self.manifests.deletes)

    def _manifests_of(self, ref: str) -> Manifests:
        metadata = self.table.metadata
        return manifests_of(head_snapshot(metadata, ref), self.table.io, metadata.specs())

    def staged(
        self,
        updates: Iterable[TableUpdate],
        *requirements: TableRequirement,
        written: Iterable[str] = (),
        facts: Mapping[str, EntryColumns] | None = None,
    ) -> Staged:
        """Return updates of this table. The catalog rejects them if the table was dropped and recreated."""
        same_table = AssertTableUUID(uuid=self.table.metadata.table_uuid)
        return Staged((same_table, *requirements), tuple(updates), tuple(written), facts or {})

    def has_batch(self, entry: LedgerEntry, accept_new_checkpoint: bool = False) -> bool:
        """Return True if a batch is in the branch already, False if it is next. Raises what `is_committed` raises."""
        return is_committed(self.table.metadata, self.ref, entry, accept_new_checkpoint)

    def snapshots_of(self, run_id: str) -> list[int]:
        """Return the ids of snapshots with this run id, oldest first."""
        shown = [s.snapshot_id for s in self.table.metadata.snapshots if summary_of(s, RUN_ID) == run_id]
        recorded = recent_commits(self.properties) if self.hides_history else {}
        return [*recorded.get(run_id, shown)]

    def live(self, paths: Collection[str], refs: Iterable[str] = ()) -> set[str]:
        """Return those of the paths that the head of the branch lists, or the head of another one of these branches."""
        heads = [self.manifests, *map(self._manifests_of, refs)]
        manifests = (manifest for each in heads for manifest in (*each.data, *each.deletes))
        return set(paths).intersection(self.store.listed(self.table.io, manifests, paths))

    def misfit(self, schema: Schema, spec: PartitionSpec) -> str | None:
        """Return the reason that files of this schema and spec cannot be read in this state; None if they can."""
        metadata = self.table.metadata
        return misfit(schema, metadata.schema()) or misfit_spec(spec, metadata.specs())

    def changed_inputs(
        self, base: Head, inputs: Collection[FileFact], own: OwnDeletes = NO_OWN_DELETES
    ) -> dict[str, InputChange]:
        """Return the changes of the input files since the base, by path, for those that have changed: `InputCheck`."""
        if not inputs or (self.head.snapshot_id == base.snapshot_id and not own):
            return {}
        metadata = self.table.metadata
        snapshot = None if base.snapshot_id is None else metadata.snapshot_by_id(base.snapshot_id)
        check = InputCheck(self.table.io, self.store, metadata.specs(), self.manifests, snapshot, own)
        return check.changes(inputs)

    def has_left(self, base: Head) -> bool:
        """Return True if the branch shows its history, and the earlier head is not in it."""
        ancestors = known_ancestors(self.table.metadata, self.ref)
        return not self.hides_history and all(each.snapshot_id != base.snapshot_id for each in ancestors)

    def later_than(self, before: Loaded) -> bool:
        """Return True if a value that a commit on `before` asserts has certainly changed since.

        A stale response proves nothing. Sequence numbers, schemas, specs and the format version only grow, on every
        branch. In format v1 the history decides. Changes without a snapshot (refs, expiry) show in the log of older
        metadata files, if the catalog keeps one.
        """
        new, old = _counters(self.table.metadata), _counters(before.table.metadata)
        if self._has_grown_since(before):
            return not self.hides_commits_on(before)
        # at most, the branch was moved to a snapshot that the older of the two responses shows as well
        if any(n > o for n, o in zip(new, old, strict=True)):
            return True
        return before.table.metadata_location in {entry.metadata_file for entry in self.table.metadata.metadata_log}

    def hides_commits_on(self, before: Loaded) -> bool:
        """Return True if a commit on an earlier state may have been made, and cannot be seen any more.

        The first later commit has expired, or the catalog does not show it. A commit that is shown, or is missing among
        the recorded ones, proves which one it was.
        """
        if not self._has_grown_since(before):
            return False
        if before.hides_history and follows(recent_commits(self.properties), recent_commits(before.properties)):
            return False
        number, snapshots = _counters(before.table.metadata)[0], self.table.metadata.snapshots
        if self.format_version > 1:
            return all(s.sequence_number != number + 1 for s in snapshots)
        return all(s.parent_snapshot_id != before.head.snapshot_id for s in snapshots)

    def _has_grown_since(self, before: Loaded) -> bool:
        new, old = _counters(self.table.metadata)[0], _counters(before.table.metadata)[0]
        return self.head.snapshot_id != before.head.snapshot_id and (new != old or not new)


def _counters(metadata: TableMetadata) -> tuple[int, ...]:
    number = getattr(metadata, "last_sequence_number", 0)
    return number, len(metadata.schemas), len(metadata.partition_specs), metadata.format_version
