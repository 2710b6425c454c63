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
from icesize.maintenance.batch_commit import missing_files
from icesize.planning.deletes import may_hit
from icesize.planning.files import DeleteFile, FileFact, PartitionKey, SkipReason
from icesize.table.catalog.access_errors import brief
from icesize.table.catalog.history import head_snapshot
from icesize.table.manifests.delete_index import DeleteIndex
from icesize.table.manifests.entries import Entry, read_entries
from icesize.table.manifests.lists import manifests_of
from icesize.table.state.live_files import fact_of, with_deletes
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
    removed: tuple[Entry, ...]
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


def _identity(entry: Entry | DeleteFile | FileFact) -> _Identity:
    """A file and its data sequence number, which decides on the deletes that apply to it."""
    return entry.path, entry.sequence_number


def _parted(entries: Iterable[Entry], others: Iterable[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Entries that the others have too, and those that they do not have; a table may list one file twice."""
    left = Counter(map(_identity, others))
    common, surplus = [], []
    for entry in entries:
        if left[_identity(entry)] > 0:
            left[_identity(entry)] -= 1
            common.append(entry)
        else:
            surplus.append(entry)
    return common, surplus


class Restoration:
    """What restoring one partition means on some state of the table, and whether it may be done.

    Manifests never change, so each is read once, however many states are looked at.
    """

    def __init__(self, table_name: str, partition: PartitionKey, snapshot_id: int) -> None:
        self._name = table_name
        self.partition: PartitionKey = partition
        self.snapshot_id: int = snapshot_id
        self._known: dict[str, list[Entry]] = {}
        self._manifest_of: dict[str, str] = {}
        self._listed_beside: dict[str, set[str]] = {}

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
        deletes_then, deletes = (_Deletes.of(table, snapshot, self.partition) for snapshot in (version, head))
        paths = {entry.path for entry in gone}
        again = [e for e in kept if e.path in paths or deletes_then.of_file(e) != deletes.of_file(e)]
        removed, back = (*gone, *again), (*missing, *again)
        copied = tuple(entry for entry in back if not deletes_then.of_file(entry))
        rewritten = tuple(self._noted(entry, deletes_then) for entry in back if deletes_then.of_file(entry))
        self._check_rewritten(table, rewritten)
        self._check_other_listings(table, head, now, removed)
        applied = {path for entry in back for path, _ in deletes_then.of_file(entry)}
        self._check_files(table, {entry.path for entry in back} | applied)
        rows_before, rows_after = (sum(entry.rows for entry in entries) for entries in (now, then))
        rows_after -= sum(file.deleted_rows for file in rewritten)
        return Difference(version, removed, copied, rewritten, deletes.identities, rows_before, rows_after)

    def cannot(self, table: Table) -> str:
        """How the message of a refusal begins."""
        return f"Cannot restore {self.label(table)} of '{self._name}' to snapshot {self.snapshot_id}"

    def _files(self, io: FileIO, snapshot: Snapshot | None) -> list[Entry]:
        files: list[Entry] = []
        spec_id = self.partition.spec_id
        for manifest in manifests_of(snapshot, io).data:
            if manifest.partition_spec_id == spec_id:
                known = self._known.get(manifest.manifest_path)
                if known is None:
                    entries = read_entries(io, manifest)
                    known = [e for e in entries if PartitionKey.of(spec_id, e.values) == self.partition]
                    self._known[manifest.manifest_path] = known
                    self._manifest_of |= dict.fromkeys((entry.path for entry in known), manifest.manifest_path)
                files += known
        return files

    def _check_specs(self, table: Table, version: Snapshot, head: Snapshot | None) -> None:
        """Files of other specs are the same: rows of the partition may have moved between them and it."""
        then, now = (self._of_other_specs(table.io, snapshot) for snapshot in (version, head))
        old, new = (
            {_identity(e) for path in some.keys() - others.keys() for e in read_entries(table.io, some[path])}
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

    def _noted(self, entry: Entry, deletes: _Deletes) -> FileFact:
        """A file as those that merge it need it, with its deletes."""
        return with_deletes(fact_of(entry, self.partition, self._manifest_of[entry.path]), deletes.index)

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
        self, table: Table, head: Snapshot | None, now: Sequence[Entry], removed: Sequence[Entry]
    ) -> None:
        """No file that goes is listed in another partition, too: it would be removed and live."""
        paths = {entry.path for entry in now}
        for manifest in manifests_of(head, table.io).data:
            location = manifest.manifest_path
            if location not in self._listed_beside:
                own = Counter(entry.path for entry in self._known.get(location, ()))
                every = Counter(entry.path for entry in read_entries(table.io, manifest) if entry.path in paths)
                self._listed_beside[location] = set(every - own)
        beside = set().union(*self._listed_beside.values())
        if twice := sorted({entry.path for entry in removed} & beside):
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
                f"{self.cannot(table)}: storage does not tell whether its files exist ({brief(error)})",
                table=self._name,
            ) from error
        if gone:
            others = f" and {len(gone) - 1} more of its {len(paths)} files are" if len(gone) > 1 else " is"
            raise TableError(f"{self.cannot(table)}: {gone[0]}{others} gone", table=self._name, missing=gone)


@dataclass(frozen=True)
class _Deletes:
    """Delete files that may apply to files of the partition at one snapshot."""

    partition: PartitionKey
    index: DeleteIndex

    @classmethod
    def of(cls, table: Table, snapshot: Snapshot | None, partition: PartitionKey) -> _Deletes:
        manifests = manifests_of(snapshot, table.io).deletes
        return cls(partition, DeleteIndex.of(table.io, manifests, table.metadata.specs()))

    @property
    def identities(self) -> frozenset[_Identity]:
        return frozenset(map(_identity, self.index.of_partition(self.partition).files))

    def of_file(self, entry: Entry) -> frozenset[_Identity]:
        """Those that hit rows of a data file, or may."""
        fact = fact_of(entry, self.partition, "")
        return frozenset(_identity(d) for d in self.index.of_partition(self.partition).files if may_hit(d, fact))
