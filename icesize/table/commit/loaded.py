"""One state of a table that a commit is tried on, and the input files that it lost since the plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID, TableRequirement, TableUpdate

from icesize.errors import RewriteFailed
from icesize.parquet.deletes.positions import paths_named
from icesize.parquet.files.storage import Storage
from icesize.planning.delete_reach import may_hit, only_path, plain_path
from icesize.planning.files import MAIN, DeleteFile, FileFact, Head
from icesize.table.catalog.history import head_of, head_snapshot, known_ancestors, summary_of
from icesize.table.commit.schema_fit import misfit, misfit_spec
from icesize.table.manifests.delete_index import DeleteIndex
from icesize.table.manifests.entries import ADDED
from icesize.table.manifests.lists import Manifests, manifests_in, manifests_of
from icesize.table.manifests.store import ManifestStore
from icesize.table.records.summary import RUN_ID

BASE_EXPIRED = "the snapshot it was planned on has expired or is no longer part of the table's current history"
"""Reason to drop a step if the fate of its input files is unknown.

Sequence numbers order changes after a snapshot only among its descendants.
"""


@dataclass(frozen=True)
class Staged:
    """One attempt, still invisible: requirements and updates for the catalog, as its REST protocol defines them.

    `written` are the metadata files of the attempt.
    """

    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    written: tuple[str, ...] = ()

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        """Ids of the snapshots that the attempt adds, oldest first."""
        return tuple(each.snapshot.snapshot_id for each in self.updates if isinstance(each, AddSnapshotUpdate))


@dataclass(frozen=True)
class Loaded:
    """One state of a table and one of its branches; `store` caches its manifests."""

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
    def schema_id(self) -> int:
        return self.table.metadata.current_schema_id

    @property
    def spec_id(self) -> int:
        return self.table.metadata.default_spec_id

    @property
    def properties(self) -> Mapping[str, str]:
        return self.table.metadata.properties

    @cached_property
    def manifests(self) -> Manifests:
        """The manifests at the head of the branch."""
        return manifests_of(head_snapshot(self.table.metadata, self.ref), self.table.io)

    def staged(
        self, updates: Iterable[TableUpdate], *requirements: TableRequirement, written: Iterable[str] = ()
    ) -> Staged:
        """Return updates of this table. The catalog rejects them if the table was dropped and recreated."""
        same_table = AssertTableUUID(uuid=self.table.metadata.table_uuid)
        return Staged((same_table, *requirements), tuple(updates), tuple(written))

    def snapshots_of(self, run_id: str) -> list[int]:
        """Return the ids of snapshots with this run id, oldest first."""
        return [s.snapshot_id for s in self.table.metadata.snapshots if summary_of(s, RUN_ID) == run_id]

    def snapshot_of(self, base: Head) -> Snapshot | None:
        """Return the snapshot of an earlier head of the branch; None if the known history does not contain it."""
        ancestors = known_ancestors(self.table.metadata, self.ref)
        return next((s for s in ancestors if s.snapshot_id == base.snapshot_id), None)

    def live(self, paths: Collection[str]) -> set[str]:
        """Return the paths of data files that the head of the branch lists."""
        return set(self._listed(set(paths), self.manifests.data)) if paths else set()

    def misfit(self, schema: Schema, spec: PartitionSpec) -> str | None:
        """Return the reason that files of this schema and spec cannot be read in this state; None if they can."""
        metadata = self.table.metadata
        return misfit(schema, metadata.schema()) or misfit_spec(spec, metadata.specs())

    def lost_inputs(self, base: Head, inputs: Collection[FileFact], beside_new: Collection[str]) -> dict[str, str]:
        """Return the input files that must not be replaced any more: path to reason.

        Args:
            base: The head that the files were *planned* on.
            inputs: Files that the planning base listed.
            beside_new: Paths of the inputs whose rows go into files that existing equality deletes do not reach.
        """
        if not inputs or self.head.snapshot_id == base.snapshot_id:
            return {}
        by_path = {file.path: file for file in inputs}
        # a base proves nothing about the head if the branch has left it, or if it expired after this state was loaded
        snapshot = self.snapshot_of(base)
        try:
            known = {m.manifest_path for m in manifests_in(snapshot, self.table.io)}
        except FileNotFoundError:
            snapshot = None
        if snapshot is None:
            return dict.fromkeys(by_path, BASE_EXPIRED)
        lost = dict.fromkeys(by_path.keys() - self._live_inputs(inputs), "another writer removed a file of it")
        again = (path for path in self._added_beside(known) if path in by_path)
        lost |= dict.fromkeys(again, "another writer listed a file of it again")
        left = [file for path, file in by_path.items() if path not in lost]
        return lost | dict.fromkeys(self._newly_deleted(left, base, beside_new), "another writer deleted rows of it")

    def _live_inputs(self, inputs: Collection[FileFact]) -> set[str]:
        """Return the paths of live input files.

        Manifests never change, so an input file is live if its manifest is still listed. The other manifests are
        searched for the remaining files.
        """
        listed, looked_at = {m.manifest_path for m in self.manifests.data}, {file.manifest_path for file in inputs}
        live = {file.path for file in inputs if file.manifest_path in listed}
        missing = {file.path for file in inputs} - live
        others = (m for m in self.manifests.data if missing and m.manifest_path not in looked_at)
        return live.union(self._listed(missing, others))

    def _listed(self, paths: set[str], manifests: Iterable[ManifestFile]) -> Iterator[str]:
        for manifest in manifests:
            yield from paths.intersection(self.store.facts(self.table.io, manifest).paths())

    def _added_beside(self, known: Collection[str]) -> Iterator[str]:
        """Yield files that manifests outside `known` list as new. They must not be removed while that listing stays."""
        for manifest in self.manifests.data:
            if manifest.manifest_path not in known:
                changes = self.store.changes(self.table.io, manifest)
                yield from changes.paths(changes.changed_by(manifest.added_snapshot_id, ADDED))

    def _newly_deleted(self, inputs: Sequence[FileFact], base: Head, beside_new: Collection[str]) -> Iterator[str]:
        """Yield input files that deletes since the planning base apply to; a merge would bring their rows back.

        Position deletes always count. Equality deletes count only if the rows go into a file that such deletes do not
        reach (`icesize.planning.delete_reach`).
        """
        specs, above = self.table.metadata.specs(), base.sequence_number
        index = DeleteIndex.of(self.store, self.table.io, self.manifests.deletes, specs, above)
        hit: defaultdict[DeleteFile, list[FileFact]] = defaultdict(list)
        for file in inputs:
            for delete in index.of_partition(file.partition).files:
                if may_hit(delete, file) and (file.path in beside_new or not delete.equality_ids):
                    hit[delete].append(file)
        return (file.path for delete, files in hit.items() for file in self._really_hit(delete, files))

    def _really_hit(self, delete: DeleteFile, files: Sequence[FileFact]) -> Sequence[FileFact]:
        """Return the files that the delete file names.

        Path bounds match too many files, and Iceberg omits them if a delete file names several.
        """
        if delete.equality_ids or only_path(delete) is not None:
            return files
        try:
            named = paths_named(delete, Storage(self.table.io), [file.path for file in files])
        except RewriteFailed:  # unreadable: assume that the delete file names all of them
            return files
        return [file for file in files if plain_path(file.path) in named]

    def later_than(self, before: Loaded) -> bool:
        """Return True if a value that a commit on `before` asserts has certainly changed since.

        A stale response proves nothing. Sequence numbers, schemas and specs only grow, on every branch. In format v1
        the history decides. Changes without a snapshot (refs, expiry) show in the log of older metadata files, if the
        catalog keeps one.
        """
        new, old = _counters(self.table.metadata), _counters(before.table.metadata)
        if self.head.snapshot_id != before.head.snapshot_id and (new[0] != old[0] or not new[0]):
            # only if the first later commit is still known: an expired one may have been this attempt itself
            snapshots = self.table.metadata.snapshots
            if self.table.metadata.format_version > 1:
                return any(s.sequence_number == old[0] + 1 for s in snapshots)
            return any(s.parent_snapshot_id == before.head.snapshot_id for s in snapshots)
        # at most, the branch was moved to a snapshot that the older of the two responses shows as well
        if any(n > o for n, o in zip(new, old, strict=True)):
            return True
        return before.table.metadata_location in {entry.metadata_file for entry in self.table.metadata.metadata_log}


def _counters(metadata: TableMetadata) -> tuple[int, ...]:
    return getattr(metadata, "last_sequence_number", 0), len(metadata.schemas), len(metadata.partition_specs)
