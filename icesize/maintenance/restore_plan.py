"""Whether a partition can be what it was at an older snapshot, and what has to change for it. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icesize.errors import TableError, UnsupportedTable
from icesize.planning.delete_reach import may_hit
from icesize.planning.files import DeleteFile, FileFact, PartitionKey, SkipReason
from icesize.table.catalog.access_errors import brief
from icesize.table.catalog.history import head_snapshot
from icesize.table.commit.batch_commit import missing_files
from icesize.table.manifests.delete_index import DeleteIndex
from icesize.table.manifests.entries import Entry, read_entries
from icesize.table.manifests.lists import manifests_of
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.naming import Labels, known_snapshot
from icesize.units import format_count

_Identity = tuple[str, int | None]

_WHY = {
    SkipReason.HAS_DELETES: "they are not Parquet",
    SkipReason.NOT_PARQUET: "the files are not Parquet",
    SkipReason.ENCRYPTED: "the files are encrypted",
}


@dataclass(frozen=True)
class Difference:
    """What has to go from the head, of which files of the version copies have to come, and which are `rewritten`: their
    deletes cannot apply to a new file, so they come back without the deleted rows. With the rows in all data files of
    the partition before and after, as far as that is known before deletes are read. `deletes` may apply in the
    partition now.

    Where a path would go and stay as well, as one that is listed twice and was once, all its listings go and those that
    stay are copied: engines that expire snapshots delete a file that any of them has removed.
    """

    version: Snapshot
    removed: tuple[FileFact, ...]
    copied: tuple[Entry, ...]
    rewritten: tuple[FileFact, ...]
    deletes: frozenset[_Identity]
    rows_before: int
    rows_after: int

    @property
    def brought_back(self) -> int:
        """Files of the version that come back, at most: one may have no row left."""
        return len(self.copied) + len(self.rewritten)

    def same_as(self, other: Difference) -> bool:
        """Whether both make the same of the partition: it has not changed in between."""
        mine, theirs = (
            (*(Counter(map(_identity, files)) for files in (each.removed, each.copied, each.rewritten)), each.deletes)
            for each in (self, other)
        )
        return mine == theirs


def _identity(file: Entry | DeleteFile | FileFact) -> _Identity:
    """A file and its data sequence number, which decides on the deletes that apply to it."""
    return file.path, file.sequence_number


def _parted(files: Iterable[FileFact], others: Iterable[FileFact]) -> tuple[list[FileFact], list[FileFact]]:
    """Files that the others have too, and those that they do not have; a table may list one file twice."""
    left = Counter(map(_identity, others))
    common, surplus = [], []
    for file in files:
        if left[_identity(file)] > 0:
            left[_identity(file)] -= 1
            common.append(file)
        else:
            surplus.append(file)
    return common, surplus


def _hits(deletes: Iterable[DeleteFile], file: FileFact) -> frozenset[_Identity]:
    """Those of the delete files that hit rows of a data file, or may."""
    return frozenset(_identity(delete) for delete in deletes if may_hit(delete, file))


class Restoration:
    """What restoring one partition means on some state of the table, and whether it may be done.

    The store reads each manifest once, however many states are looked at.
    """

    def __init__(self, table_name: str, partition: PartitionKey, snapshot_id: int) -> None:
        self._name = table_name
        self.partition: PartitionKey = partition
        self.snapshot_id: int = snapshot_id
        self.store: ManifestStore = ManifestStore()

    def label(self, table: Table) -> str:
        """The partition as people write it."""
        return f"'{Labels(table.metadata).of(self.partition)}'" if self.partition.values else "the partition"

    def difference(self, table: Table) -> Difference:
        """What has to change; raises TableError or UnsupportedTable when that must not be done."""
        metadata = table.metadata
        version, head = known_snapshot(metadata, self.snapshot_id), head_snapshot(metadata)
        if self.partition.spec_id != metadata.default_spec_id:
            raise UnsupportedTable(
                f"{self.cannot(table)}: the partition is of spec {self.partition.spec_id}, the table's current "
                f"partition spec is {metadata.default_spec_id}; its newer rows may lie in other partitions",
                table=self._name,
            )
        then, now = (self._files(table.io, snapshot) for snapshot in (version, head))
        if not then:
            raise TableError(
                f"{self.cannot(table)}: it had no files there; it did not exist yet, or was empty", table=self._name
            )
        self._check_specs(table, version, head)
        kept, gone = _parted(now, then)
        _, missing = _parted(then, now)
        index_then, index = (self._delete_index(table, snapshot) for snapshot in (version, head))
        deletes_then, deletes = (each.of_partition(self.partition).files for each in (index_then, index))
        paths = {file.path for file in gone}
        again = [f for f in kept if f.path in paths or _hits(deletes_then, f) != _hits(deletes, f)]
        removed, back = (*gone, *again), (*missing, *again)
        rewritten = tuple(index_then.noted(file) for file in back if _hits(deletes_then, file))
        self._check_rewritten(table, rewritten)
        self._check_other_listings(table, head, now, removed)
        applied = {path for file in back for path, _ in _hits(deletes_then, file)}
        self._check_files(table, {file.path for file in back} | applied)
        rows_before, rows_after = (sum(file.rows for file in files) for files in (now, then))
        rows_after -= sum(file.deleted_rows for file in rewritten)
        copied = self._entries(table.io, version, [file for file in back if not _hits(deletes_then, file)])
        return Difference(
            version, removed, copied, rewritten, frozenset(map(_identity, deletes)), rows_before, rows_after
        )

    def cannot(self, table: Table) -> str:
        """How the message of a refusal begins."""
        return f"Cannot restore {self.label(table)} of '{self._name}' to snapshot {self.snapshot_id}"

    def _files(self, io: FileIO, snapshot: Snapshot | None) -> list[FileFact]:
        data = (m for m in manifests_of(snapshot, io).data if m.partition_spec_id == self.partition.spec_id)
        listed = (self.store.facts(io, manifest) for manifest in data)
        return [file for facts in listed for file in facts.files(facts.in_partition(self.partition))]

    def _entries(self, io: FileIO, version: Snapshot, files: Sequence[FileFact]) -> tuple[Entry, ...]:
        """What the version's manifests say of these files, whole: a copy is described by the same bytes."""
        wanted, found = {file.path for file in files}, dict[str, Entry]()
        for manifest in manifests_of(version, io).data:
            spec_id = manifest.partition_spec_id
            if spec_id == self.partition.spec_id and not wanted.isdisjoint(self.store.facts(io, manifest).paths()):
                entries = (entry for entry in read_entries(io, manifest) if entry.path in wanted)
                found |= {e.path: e for e in entries if PartitionKey.of(spec_id, e.values) == self.partition}
        return tuple(found[file.path] for file in files)

    def _delete_index(self, table: Table, snapshot: Snapshot | None) -> DeleteIndex:
        manifests = manifests_of(snapshot, table.io).deletes
        return DeleteIndex.of(self.store, table.io, manifests, table.metadata.specs())

    def _check_specs(self, table: Table, version: Snapshot, head: Snapshot | None) -> None:
        """Files of other specs are the same: rows of the partition may have moved between them and it."""
        then, now = (self._of_other_specs(table.io, snapshot) for snapshot in (version, head))
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

    def _of_other_specs(self, io: FileIO, snapshot: Snapshot | None) -> dict[str, ManifestFile]:
        """Data manifests of other partition specs, by path."""
        data = manifests_of(snapshot, io).data
        return {m.manifest_path: m for m in data if m.partition_spec_id != self.partition.spec_id}

    def _check_rewritten(self, table: Table, files: Sequence[FileFact]) -> None:
        """The deletes that were pending on files that come back can be applied to them."""
        if bad := [file for file in files if file.obstacle is not None]:
            why = " or ".join(sorted({_WHY[file.obstacle] for file in bad if file.obstacle}))
            raise TableError(
                f"{self.cannot(table)}: deletes were pending on {format_count(len(bad), 'file')} of that version, and "
                f"{why}, so deleted rows could come back. Read that version and write the rows again instead",
                table=self._name,
            )

    def _check_other_listings(
        self, table: Table, head: Snapshot | None, now: Sequence[FileFact], removed: Sequence[FileFact]
    ) -> None:
        """No file that goes is listed in another partition, too: it would be removed and live."""
        listed = (self.store.facts(table.io, manifest).paths() for manifest in manifests_of(head, table.io).data)
        every = Counter(path for paths in listed for path in paths)
        beside = {path for path, count in Counter(file.path for file in now).items() if every[path] > count}
        if twice := sorted({file.path for file in removed} & beside):
            raise UnsupportedTable(
                f"{self.cannot(table)}: {twice[0]} is listed in another partition as well, where it has to stay",
                table=self._name,
            )

    def _check_files(self, table: Table, files: Collection[str]) -> None:
        """Every file to be read is on storage."""
        paths = sorted(files)
        try:
            gone = missing_files(table.io, paths)
        except Exception as error:  # of whatever storage it is
            raise TableError(
                f"{self.cannot(table)}: the storage does not report whether its files exist ({brief(error)})",
                table=self._name,
            ) from error
        if gone:
            others = f" and {len(gone) - 1} more of its {len(paths)} files are" if len(gone) > 1 else " is"
            raise TableError(f"{self.cannot(table)}: {gone[0]}{others} gone", table=self._name, missing=gone)
