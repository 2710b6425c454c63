"""The check for conflicts: input files that other writers have changed since the plan must not be replaced."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.snapshots import Snapshot

from icesize.errors import RewriteFailed
from icesize.parquet.deletes.positions import paths_named
from icesize.planning.deletes.delete_reach import PENDING, PartitionDeletes, only_path, plain_path
from icesize.planning.files import DeleteFile, FileFact, FileId
from icesize.storage.locations import normalised
from icesize.storage.table_storage import Storage
from icesize.table.manifests.delete_index import DeleteIndex
from icesize.table.manifests.entries import ADDED
from icesize.table.manifests.manifest_lists import Manifests, manifests_in
from icesize.table.manifests.store import ManifestStore

BASE_EXPIRED = "the snapshot it was planned on has expired or is no longer part of the table's current history"
"""Reason to drop a step if the fate of its input files is unknown.

Sequence numbers order changes after a snapshot only among its descendants.
"""
_REMOVED = "another writer removed a file of it"
_DELETED = "another writer deleted rows of it"


@dataclass(frozen=True)
class ConflictCheck:
    """A comparison of the manifests at the head of a branch with those of the snapshot that a step was planned on.

    Attributes:
        io: The table's file access.
        store: Cache of manifest facts.
        specs: The table's partition specs by id.
        manifests: The manifests at the head.
        base: The snapshot that the step was planned on; None if the known history of the branch does not contain it.
    """

    io: FileIO
    store: ManifestStore
    specs: Mapping[int, PartitionSpec]
    manifests: Manifests
    base: Snapshot | None

    def lost(self, inputs: Collection[FileFact], beside_new: Collection[str]) -> dict[str, str]:
        """Return the input files that must not be replaced any more: path to reason.

        Args:
            inputs: Files that the base listed.
            beside_new: Paths of the inputs whose rows go into files that existing equality deletes do not reach.
        """
        by_path = {file.path: file for file in inputs}
        base, known = self.base, set[str]()
        try:
            known = {m.manifest_path for m in manifests_in(base, self.io, self.specs)}
        except FileNotFoundError:  # the base expired after the head was loaded
            base = None
        if base is None:
            return dict.fromkeys(by_path, BASE_EXPIRED)
        lost = dict.fromkeys(by_path.keys() - self._live(inputs), _REMOVED)
        again = (path for path in self._added_beside(known) if path in by_path)
        lost |= dict.fromkeys(again, "another writer listed a file of it again")
        left = [file for path, file in by_path.items() if path not in lost]
        newer = self._newly_deleted(left, base.sequence_number or 0, beside_new)
        return lost | dict.fromkeys(newer, _DELETED)

    def changed(
        self, inputs: Collection[FileFact], beside_new: Collection[str], planned_on: int, superseded: Collection[FileId]
    ) -> dict[str, str]:
        """Return the input files that must not be replaced any more, whatever the history was: path to reason.

        Each must be listed once, with the same numbers and the deletes that the plan knew. Only deletes that the new
        files are subject to as well may have come since: equality deletes above the number of the planned head.

        Args:
            inputs: Files that the head of the plan listed, with their deletes.
            beside_new: As in `lost`.
            planned_on: Sequence number of that head.
            superseded: Ids of delete files that earlier steps of the same commit remove.
        """
        now = defaultdict[str, list[FileFact]](list)
        for file in self.store.listed_files(self.io, self.manifests.data, {file.path for file in inputs}):
            now[normalised(file.path)].append(file)
        index = DeleteIndex.of(self.store, self.io, self.manifests.deletes, self.specs)
        lost, hit = dict[str, str](), defaultdict[DeleteFile, list[FileFact]](list)
        # all files of a partition share their deletes
        sharing = {id(file.deletes): file for file in inputs}
        planned = {
            number: (PartitionDeletes(file.deletes), file.delete_ids.union(superseded))
            for number, file in sharing.items()
        }
        for file in inputs:
            found = now[normalised(file.path)]
            if [(f.sequence_number, f.first_row_id) for f in found] != [(file.sequence_number, file.first_row_id)]:
                lost[file.path] = "another writer listed a file of it again" if found else _REMOVED
            deletes, known = planned[id(file.deletes)]
            applied = {delete.id for delete in deletes.applying(file) if delete.sequence_number < PENDING}
            applying = {delete.id: delete for delete in index.of_partition(file.partition).applying(file)}
            if applied - applying.keys():
                lost[file.path] = "another writer removed deletes of it"
            for delete in (applying[each] for each in applying.keys() - known):
                if not (delete.equality_ids and delete.sequence_number > planned_on and file.path not in beside_new):
                    hit[delete].append(file)
        deleted = (file.path for delete, files in hit.items() for file in self._really_hit(delete, files))
        return dict.fromkeys(deleted, _DELETED) | lost

    def _live(self, inputs: Collection[FileFact]) -> set[str]:
        """Return the paths of live input files.

        Manifests never change, so an input file is live if its manifest is still listed. The other manifests are
        searched for the remaining files.
        """
        listed, looked_at = {m.manifest_path for m in self.manifests.data}, {file.manifest_path for file in inputs}
        live = {file.path for file in inputs if file.manifest_path in listed}
        missing = {file.path for file in inputs} - live
        others = (m for m in self.manifests.data if missing and m.manifest_path not in looked_at)
        return live.union(missing.intersection(self.store.listed(self.io, others, missing)))

    def _added_beside(self, known: Collection[str]) -> Iterator[str]:
        """Yield files that manifests outside `known` list as new. They must not be removed while that listing stays."""
        for manifest in self.manifests.data:
            if manifest.manifest_path not in known:
                changes = self.store.changes(self.io, manifest)
                yield from changes.paths(changes.changed_by(manifest.added_snapshot_id, ADDED))

    def _newly_deleted(self, inputs: Sequence[FileFact], above: int, beside_new: Collection[str]) -> Iterator[str]:
        """Yield input files that deletes with a sequence number greater than `above` apply to.

        A merge would bring the deleted rows back. Position deletes always count. Equality deletes count only if the
        rows go into a file that such deletes do not reach (`icesize.planning.deletes.delete_reach`).
        """
        index = DeleteIndex.of(self.store, self.io, self.manifests.deletes, self.specs, above)
        hit: defaultdict[DeleteFile, list[FileFact]] = defaultdict(list)
        for file in inputs:
            for delete in index.of_partition(file.partition).applying(file):
                if file.path in beside_new or not delete.equality_ids:
                    hit[delete].append(file)
        return (file.path for delete, files in hit.items() for file in self._really_hit(delete, files))

    def _really_hit(self, delete: DeleteFile, files: Sequence[FileFact]) -> Sequence[FileFact]:
        """Return the files that the delete file names.

        Path bounds match too many files, and Iceberg omits them if a delete file names several.
        """
        if delete.equality_ids or only_path(delete) is not None:
            return files
        try:
            named = paths_named(delete, Storage.of(self.io), [file.path for file in files])
        except RewriteFailed:  # unreadable: assume that the delete file names all of them
            return files
        return [file for file in files if plain_path(file.path) in named]
