"""Changes that others have made to the input files of a step since these were read.

States are compared, not histories. A file is the same if it is listed once, with the numbers that it had. Its
deletes are those that apply to it now, and those that did when it was read. The snapshot that a step was planned on
may have expired, or be on another branch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.snapshots import Snapshot
from pyroaring import BitMap

from icesize.errors import RewriteFailed
from icesize.parquet.deletes.deleted_rows import rows_named
from icesize.planning.deletes.delete_reach import PENDING, PartitionDeletes, plain_path
from icesize.planning.files import DeleteFile, FileFact, FileId, PartitionKey
from icesize.storage.locations import normalised
from icesize.storage.table_storage import Storage
from icesize.table.manifests.delete_index import DeleteIndex, read_deletes
from icesize.table.manifests.manifest_lists import Manifests, manifests_in
from icesize.table.manifests.store import ManifestStore

REMOVED = "another writer removed a file of it"
DELETED = "another writer deleted rows of it"
LISTED_AGAIN = "another writer listed a file of it again"
DELETES_REMOVED = "another writer removed deletes of it"


@dataclass(frozen=True)
class InputChange:
    """The state of an input file, if it differs from what was known when the file was read.

    Attributes:
        why: The change in words.
        is_live: The state lists the file.
        can_be_followed: False for a change that only a new plan can respect.
        equality_number: The least sequence number of the unknown equality deletes that apply to the file.
        deleted: Rows that position deletes and vectors delete: unknown ones, or all if some deletes were lost.
        lost_positions: Position deletes that applied to the file do not any more; others may have the same rows.
        lost_equality: Equality deletes that applied to the file do not any more.
    """

    why: str
    is_live: bool = True
    can_be_followed: bool = True
    equality_number: int | None = None
    deleted: BitMap = field(default_factory=BitMap)
    lost_positions: bool = False
    lost_equality: bool = False


@dataclass(frozen=True)
class OwnDeletes:
    """Deletes of earlier steps of the same commit: delete files that they remove, and new ones by `plain_path`."""

    replaced: frozenset[FileId] = frozenset()
    new: Mapping[str, tuple[DeleteFile, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.replaced or self.new)


NO_OWN_DELETES = OwnDeletes()


@dataclass(frozen=True)
class InputCheck:
    """A comparison of input files, as a plan knew them, with the head of a branch after earlier steps of the commit.

    Attributes:
        io: The table's file access.
        store: Cache of manifest facts.
        specs: The table's partition specs by id.
        manifests: The manifests at the head.
        base: The snapshot that the files were read in; None if it has expired. Its manifests are not read again.
        own: What earlier steps change.
    """

    io: FileIO
    store: ManifestStore
    specs: Mapping[int, PartitionSpec]
    manifests: Manifests
    base: Snapshot | None
    own: OwnDeletes = NO_OWN_DELETES
    _made: dict[tuple[PartitionKey, int], tuple[PartitionDeletes, PartitionDeletes]] = field(default_factory=dict)

    def changes(self, inputs: Collection[FileFact]) -> dict[str, InputChange]:
        """Return the changes of those input files that have changed, by path. Reads the delete files that are new."""
        found, unclear = dict[str, InputChange](), dict[FileFact, tuple[InputChange, Sequence[DeleteFile]]]()
        listings = self._listings(inputs)
        for file in inputs:
            numbers = listings.get(normalised(file.path), [])
            if not numbers:
                found[file.path] = InputChange(REMOVED, is_live=False)
            elif numbers != [_numbers(file)]:
                found[file.path] = InputChange(LISTED_AGAIN, can_be_followed=False)
            elif (change := self._of_deletes(file)) is not None:
                unclear[file] = change
        return found | self._with_rows(unclear)

    def _listings(self, inputs: Collection[FileFact]) -> Mapping[str, list[tuple[int, int | None]]]:
        """Return the numbers in each live entry of an input file. Manifests of the base are known."""
        listed, known = {m.manifest_path for m in self.manifests.data}, self._known
        seen = {file.manifest_path for file in inputs} if known is None else known.keys()
        found = defaultdict[str, list[tuple[int, int | None]]](list)
        for file in inputs:
            if file.manifest_path in listed:
                found[normalised(file.path)].append(_numbers(file))
        others = [manifest for manifest in self.manifests.data if manifest.manifest_path not in seen]
        for file in self.store.listed_files(self.io, others, {file.path for file in inputs}):
            found[normalised(file.path)].append(_numbers(file))
        return found

    @cached_property
    def _known(self) -> dict[str, ManifestFile] | None:
        """The manifests of the base; None if it has expired."""
        if self.base is None:
            return None
        try:
            return {manifest.manifest_path: manifest for manifest in manifests_in(self.base, self.io, self.specs)}
        except FileNotFoundError:  # it expired after the head was loaded
            return None

    @cached_property
    def _new_deletes(self) -> DeleteIndex:
        """The deletes of manifests that the base lacks."""
        manifests = (m for m in self.manifests.deletes if self._known is None or m.manifest_path not in self._known)
        return DeleteIndex.of(self.store, self.io, manifests, self.specs)

    @cached_property
    def _gone_deletes(self) -> frozenset[FileId]:
        """The deletes of manifests that only the base has."""
        listed, known = {m.manifest_path for m in self.manifests.deletes}, self._known or {}
        gone = [m for m in known.values() if m.content == ManifestContent.DELETES and m.manifest_path not in listed]
        return frozenset(delete.id for manifest in gone for delete in read_deletes(self.store, self.io, manifest))

    def _of_deletes(self, file: FileFact) -> tuple[InputChange, Sequence[DeleteFile]] | None:
        """Return the change of the deletes of a live file, and the delete files whose rows count; None without any."""
        known, listed = self._partition_deletes(file)
        own = self.own.new.get(plain_path(file.path), ())
        if known is listed and not own:
            return None
        before, now = {each.id: each for each in known.applying(file)}, listed.applying(file)
        if own:  # beside a vector, readers ignore position deletes
            now = [*(each for each in now if each.equality_ids or not any(d.is_vector for d in own)), *own]
        new, ids = [each for each in now if each.id not in before], {each.id for each in now}
        lost = [each for each in before.values() if each.id not in ids]
        if not (new or lost):
            return None
        change = InputChange(
            DELETED if new else DELETES_REMOVED,
            equality_number=min((each.sequence_number for each in new if each.equality_ids), default=None),
            lost_positions=any(not each.equality_ids for each in lost),
            lost_equality=any(each.equality_ids for each in lost),
        )
        return change, [each for each in (now if lost else new) if not each.equality_ids]

    def _partition_deletes(self, file: FileFact) -> tuple[PartitionDeletes, PartitionDeletes]:
        """Return the deletes of a file's partition that were known, and those that the state lists; once if equal."""
        key = file.partition, id(file.deletes)
        if key not in self._made:
            known, index = {each.id: each for each in file.deletes}, self._new_deletes
            added = {each.id: each for each in index.of_partition(file.partition).files}
            gone = known.keys() - added.keys() if self._known is None else known.keys() & self._gone_deletes
            gone = {*gone, *(known.keys() | added.keys()) & self.own.replaced}
            gone |= {each.id for each in known.values() if each.sequence_number == PENDING}
            before = PartitionDeletes(file.deletes)
            listed = [each for each in (known | added).values() if each.id not in gone]
            is_same = len(listed) == len(known) and not gone and not added.keys() - known.keys()
            self._made[key] = before, before if is_same else PartitionDeletes(listed)
        return self._made[key]

    def _with_rows(
        self, unclear: Mapping[FileFact, tuple[InputChange, Sequence[DeleteFile]]]
    ) -> dict[str, InputChange]:
        """Return the changes with the rows of the delete files; a file of which none of these names a row is the same.

        The bounds of paths match too many files, and Iceberg omits them if a delete file names several.
        """
        try:
            rows = rows_named({file: deletes for file, (_, deletes) in unclear.items()}, Storage.of(self.io))
        except RewriteFailed:  # unreadable: any row of them may be deleted
            return {file.path: replace(change, can_be_followed=False) for file, (change, _) in unclear.items()}
        changes = {file.path: replace(change, deleted=rows[file.path]) for file, (change, _) in unclear.items()}
        return {path: change for path, change in changes.items() if change != InputChange(DELETED)}


def _numbers(file: FileFact) -> tuple[int, int | None]:
    return file.sequence_number, file.first_row_id
