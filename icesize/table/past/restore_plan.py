"""Checks whether a partition can be restored to an older snapshot, and plans the changes. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icesize.errors import TableError, UnsupportedTable
from icesize.planning.deletes.delete_reach import PartitionDeletes
from icesize.planning.files import UNREADABLE, DeleteFile, FileFact, FileId, PartitionKey
from icesize.storage.table_storage import Storage
from icesize.table.catalog.access_errors import brief
from icesize.table.catalog.history import head_snapshot
from icesize.table.manifests.delete_index import delete_index
from icesize.table.manifests.entries import Entry, read_entries
from icesize.table.manifests.manifest_lists import manifests_of
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.live_files import files_at
from icesize.table.state.naming import Labels, known_snapshot
from icesize.units import format_count

_Identity = tuple[FileId, int | None]


@dataclass(frozen=True)
class Difference:
    """The changes of a restore: files to remove from the head, to copy from the version, and to rewrite.

    `then` are all files of the partition in the version, with the deletes that apply to them there.
    `rewritten` files have deletes that cannot apply to a new file, so they return without the deleted rows; or their
    rows have row ids (format v3), which a copy would not have.
    `rows_before` and `rows_after` are the rows in all data files of the partition, as far as known before deletes are
    read. `deletes` may apply in the partition now.

    A table may list a path twice that it listed once before, so that the path would be removed and stay. Then all its
    listings are removed, and those to keep are copied. Engines that expire snapshots delete a file that any listing
    removed.
    """

    version: Snapshot
    then: tuple[FileFact, ...]
    removed: tuple[FileFact, ...]
    copied: tuple[Entry, ...]
    rewritten: tuple[FileFact, ...]
    deletes: frozenset[_Identity]
    rows_before: int
    rows_after: int

    @property
    def brought_back(self) -> int:
        """The most files of the version that return; a rewritten one may have no row left."""
        return len(self.copied) + len(self.rewritten)

    def same_as(self, other: Difference) -> bool:
        """Return True if both have the same effect, so that the partition has not changed in between.

        Rows of rewritten files keep their row ids, which an upgrade to format v3 gives them.
        """
        mine, theirs = (
            (
                *(Counter(map(_identity, files)) for files in (each.removed, each.copied)),
                Counter((_identity(file), file.first_row_id) for file in each.rewritten),
                each.deletes,
            )
            for each in (self, other)
        )
        return mine == theirs


def _identity(file: Entry | DeleteFile | FileFact) -> _Identity:
    """Return the identity of a file and its data sequence number, which decides which deletes apply to it."""
    return file.id if isinstance(file, DeleteFile) else file.path, file.sequence_number


def _parted(files: Iterable[FileFact], others: Iterable[FileFact]) -> tuple[list[FileFact], list[FileFact]]:
    """Split files into those that are also in `others`, and the rest; a table may list one file twice."""
    left = Counter(map(_identity, others))
    common, surplus = [], []
    for file in files:
        if left[_identity(file)] > 0:
            left[_identity(file)] -= 1
            common.append(file)
        else:
            surplus.append(file)
    return common, surplus


def _with_row_ids(files: Iterable[FileFact], now: Iterable[FileFact]) -> tuple[FileFact, ...]:
    """Return the files; those that the table still has get the row ids that it has given them since the version."""
    ids = {file.path: file.first_row_id for file in now}
    return tuple(f if f.first_row_id is not None else replace(f, first_row_id=ids.get(f.path)) for f in files)


def _hits(deletes: PartitionDeletes, file: FileFact) -> frozenset[_Identity]:
    """Return the delete files that apply, or may apply, to a data file."""
    return frozenset(_identity(delete) for delete in deletes.applying(file))


class Restoration:
    """Plans the restore of one partition on states of the table, and checks that it is allowed."""

    def __init__(self, table_name: str, partition: PartitionKey, snapshot_id: int, store: ManifestStore) -> None:
        self._name = table_name
        self.partition: PartitionKey = partition
        self.snapshot_id: int = snapshot_id
        self.store: ManifestStore = store

    def label(self, table: Table) -> str:
        """Return the partition as messages print it."""
        return f"'{Labels(table.metadata).of(self.partition)}'" if self.partition.values else "the partition"

    def difference(self, table: Table) -> Difference:
        """Return the necessary changes; raise TableError or UnsupportedTable if they are not allowed."""
        metadata = table.metadata
        version, head = known_snapshot(metadata, self.snapshot_id), head_snapshot(metadata)
        if self.partition.spec_id != metadata.default_spec_id:
            raise UnsupportedTable(
                f"{self.cannot(table)}: the partition is of spec {self.partition.spec_id}, the table's current "
                f"partition spec is {metadata.default_spec_id}; its newer rows may lie in other partitions",
                table=self._name,
            )
        then, now = (
            files_at(metadata, table.io, snapshot, self.partition) if snapshot else [] for snapshot in (version, head)
        )
        if not then:
            raise TableError(
                f"{self.cannot(table)}: it had no files there; it did not exist yet, or was empty", table=self._name
            )
        self._check_specs(table, version, head)
        kept, missing = _parted(then, now)
        _, gone = _parted(now, then)
        deletes_then, deletes = (self._deletes(table, snapshot) for snapshot in (version, head))
        paths = {file.path for file in gone}
        again = [f for f in kept if f.path in paths or _hits(deletes_then, f) != _hits(deletes, f)]
        removed, back = (*gone, *again), _with_row_ids((*missing, *again), now)
        is_rewritten = [file.first_row_id is not None or bool(_hits(deletes_then, file)) for file in back]
        rewritten = tuple(compress(back, is_rewritten))
        self._check_rewritten(table, rewritten)
        self._check_other_listings(table, head, now, removed)
        applied = {delete.path for file in back for delete in deletes_then.applying(file)}
        self._check_files(table, {file.path for file in back} | applied)
        rows_before, rows_after = (sum(file.rows for file in files) for files in (now, then))
        rows_after -= sum(file.deleted_rows for file in rewritten)
        whole = [file for file, changes in zip(back, is_rewritten, strict=True) if not changes]
        copied = self._entries(table, version, whole)
        return Difference(
            version, tuple(then), removed, copied, rewritten, frozenset(map(_identity, deletes.files)), rows_before,
            rows_after,
        )  # fmt: skip

    def cannot(self, table: Table) -> str:
        """Return the beginning of the message of a rejection."""
        return f"Cannot restore {self.label(table)} of '{self._name}' to snapshot {self.snapshot_id}"

    def _entries(self, table: Table, version: Snapshot, files: Sequence[FileFact]) -> tuple[Entry, ...]:
        """Return the manifest entries of these files in the version, complete: a copy has the same bytes."""
        wanted, found, io = {file.path for file in files}, dict[str, Entry](), table.io
        for manifest in manifests_of(version, io, table.metadata.specs()).data:
            spec_id = manifest.partition_spec_id
            if spec_id == self.partition.spec_id and any(self.store.listed(io, [manifest], wanted)):
                entries = (entry for entry in read_entries(io, manifest) if entry.path in wanted)
                found |= {e.path: e for e in entries if PartitionKey.of(spec_id, e.values) == self.partition}
        return tuple(found[file.path] for file in files)

    def _deletes(self, table: Table, snapshot: Snapshot | None) -> PartitionDeletes:
        specs = table.metadata.specs()
        manifests = manifests_of(snapshot, table.io, specs).deletes
        index = delete_index(self.store, table.io, manifests, specs)
        return index.of_partition(self.partition)

    def _check_specs(self, table: Table, version: Snapshot, head: Snapshot | None) -> None:
        """Check that files of other specs are the same: rows may have moved between them and the partition."""
        then, now = (self._of_other_specs(table, snapshot) for snapshot in (version, head))
        old, new = (
            {
                _identity(file)
                for facts in (self.store.facts(table.io, some[path]) for path in some.keys() - others.keys())
                for file in facts.files(facts.live)
            }
            for some, others in ((then, now), (now, then))
        )
        if old != new:
            raise UnsupportedTable(
                f"{self.cannot(table)}: files of other partition specs have changed since, and rows of the partition "
                "may have moved between them and it. Read that version and write the rows again instead",
                table=self._name,
            )

    def _of_other_specs(self, table: Table, snapshot: Snapshot | None) -> dict[str, ManifestFile]:
        """Return the data manifests of other partition specs, by path."""
        data = manifests_of(snapshot, table.io, table.metadata.specs()).data
        return {m.manifest_path: m for m in data if m.partition_spec_id != self.partition.spec_id}

    def _check_rewritten(self, table: Table, files: Sequence[FileFact]) -> None:
        """Check that files that return without deleted rows, or with the row ids of their rows, can be read."""
        if bad := [file for file in files if file.obstacle is not None]:
            why = " or ".join(sorted({UNREADABLE[file.obstacle] for file in bad if file.obstacle}))
            problem, result = "deletes were pending on", "deleted rows could come back"
            if all(file.first_row_id is not None for file in bad):
                problem, result = "rows have row ids in", "copies would give other ids to their rows"
            raise TableError(
                f"{self.cannot(table)}: {problem} {format_count(len(bad), 'file')} of that version, and the files "
                f"{why}, so {result}. Read that version and write the rows again instead",
                table=self._name,
            )

    def _check_other_listings(
        self, table: Table, head: Snapshot | None, now: Sequence[FileFact], removed: Sequence[FileFact]
    ) -> None:
        """Check that no file to remove is listed in another partition: it would be removed and live."""
        here = Counter(file.path for file in now)
        data = manifests_of(head, table.io, table.metadata.specs()).data
        every = Counter(self.store.listed(table.io, data, here))
        beside = {path for path, count in here.items() if every[path] > count}
        if twice := sorted({file.path for file in removed} & beside):
            raise UnsupportedTable(
                f"{self.cannot(table)}: {twice[0]} is listed in another partition as well, where it has to stay",
                table=self._name,
            )

    def _check_files(self, table: Table, files: Collection[str]) -> None:
        """Check that every file to read exists in storage."""
        paths = sorted(files)
        try:
            gone = Storage.of(table.io).missing(paths)
        except Exception as error:  # storage libraries have no common error class
            raise TableError(
                f"{self.cannot(table)}: the storage does not report whether its files exist ({brief(error)})",
                table=self._name,
            ) from error
        if gone:
            others = f" and {len(gone) - 1} more of its {len(paths)} files are" if len(gone) > 1 else " is"
            raise TableError(f"{self.cannot(table)}: {gone[0]}{others} gone", table=self._name, missing=gone)
