"""Whether a partition can be what it was at an older snapshot, and what has to change for it. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icesize.errors import TableError, UnsupportedTable
from icesize.planning.layout import PartitionKey
from icesize.planning.words import count_words
from icesize.table.deletes import DeleteIndex
from icesize.table.manifests import Entry, read_entries
from icesize.table.partitions import known_snapshot
from icesize.table.reader import Labels
from icesize.table.request import brief

_EXISTS_THREADS = 16


@dataclass(frozen=True)
class Difference:
    """What the head has more and less than the version."""

    version: Snapshot
    removed: tuple[Entry, ...]
    readded: tuple[Entry, ...]

    def same_as(self, other: Difference) -> bool:
        """Whether both make the same of the partition: it has not changed in between."""
        return self._identities() == other._identities()

    def _identities(self) -> tuple[Counter[_Identity], Counter[_Identity]]:
        return Counter(map(_identity, self.removed)), Counter(map(_identity, self.readded))


_Identity = tuple[str, int | None]


def _identity(entry: Entry) -> _Identity:
    """A file and its data sequence number, which decides on the deletes that apply to it."""
    return entry.path, entry.sequence_number


def _surplus(entries: Iterable[Entry], others: Iterable[Entry]) -> tuple[Entry, ...]:
    """Entries that the others do not have; a table may list one file twice."""
    left = Counter(map(_identity, others))
    surplus = []
    for entry in entries:
        if left[_identity(entry)] > 0:
            left[_identity(entry)] -= 1
        else:
            surplus.append(entry)
    return tuple(surplus)


class Restoration:
    """What restoring one partition means on some state of the table, and whether it may be done.

    Manifests never change, so each is read once, however many states are looked at.
    """

    def __init__(self, table_name: str, partition: PartitionKey, snapshot_id: int) -> None:
        self._name = table_name
        self.partition, self.snapshot_id = partition, snapshot_id
        self._known: dict[str, list[Entry]] = {}

    def label(self, table: Table) -> str:
        """The partition as people write it."""
        return f"'{Labels(table.metadata).of(self.partition)}'" if self.partition.values else "the partition"

    def difference(self, table: Table) -> Difference:
        """What has to change; raises TableError or UnsupportedTable when that must not be done."""
        metadata = table.metadata
        version, head = known_snapshot(metadata, self.snapshot_id), metadata.current_snapshot()
        if self.partition.spec_id != metadata.default_spec_id:
            raise UnsupportedTable(
                f"{self.cannot(table)}: the partition is of spec {self.partition.spec_id}, the table's current "
                f"partition spec is {metadata.default_spec_id}; its newer rows may lie in other partitions",
                table=self._name,
            )
        then, now = self._files(table.io, version), self._files(table.io, head) if head else []
        if not then:
            raise TableError(
                f"{self.cannot(table)}: it had no files there; it did not exist yet, or was empty", table=self._name
            )
        self._check_specs(table, version, head)
        self._check_deletes(table, version, head)
        self._check_files(table, then)
        return Difference(version, removed=_surplus(now, then), readded=_surplus(then, now))

    def cannot(self, table: Table) -> str:
        """How the message of a refusal begins."""
        return f"Cannot restore {self.label(table)} of '{self._name}' to snapshot {self.snapshot_id}"

    def _files(self, io: FileIO, snapshot: Snapshot) -> list[Entry]:
        files = []
        for manifest in snapshot.manifests(io):
            if manifest.content == ManifestContent.DATA and manifest.partition_spec_id == self.partition.spec_id:
                known = self._known.get(manifest.manifest_path)
                if known is None:
                    entries = read_entries(io, manifest)
                    known = [e for e in entries if PartitionKey(manifest.partition_spec_id, e.values) == self.partition]
                    self._known[manifest.manifest_path] = known
                files += known
        return files

    def _deletes(self, io: FileIO, snapshot: Snapshot) -> set[_Identity]:
        """Delete files that may apply to files of the partition."""
        manifests = [m for m in snapshot.manifests(io) if m.content == ManifestContent.DELETES]
        index = DeleteIndex.of(io, manifests)
        return {_identity(e) for e in (*index.by_partition.get(self.partition, ()), *index.everywhere)}

    def _check_specs(self, table: Table, version: Snapshot, head: Snapshot | None) -> None:
        """Files of other specs are the same: rows of the partition may have moved between them and it."""
        then, now = self._of_other_specs(table.io, version), self._of_other_specs(table.io, head) if head else {}
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

    def _of_other_specs(self, io: FileIO, snapshot: Snapshot) -> dict[str, ManifestFile]:
        """Data manifests of other partition specs, by path."""
        return {
            manifest.manifest_path: manifest
            for manifest in snapshot.manifests(io)
            if manifest.content == ManifestContent.DATA and manifest.partition_spec_id != self.partition.spec_id
        }

    def _check_deletes(self, table: Table, version: Snapshot, head: Snapshot | None) -> None:
        then, now = self._deletes(table.io, version), self._deletes(table.io, head) if head else set()
        if then == now:
            return
        gone, new = len(then - now), len(now - then)
        why = []
        if gone:
            words = count_words(gone, "delete file")
            why.append(f"{words} that applied then {_verb(gone)} gone, so deleted rows could come back")
        if new:
            words = count_words(new, "delete file")
            why.append(f"{words} {_verb(new)} newer and could hide rows that were there")
        raise TableError(
            f"{self.cannot(table)}: deletes would apply differently: {'; '.join(why)}. "
            "Read that version and write the rows again instead",
            table=self._name,
        )

    def _check_files(self, table: Table, files: Sequence[Entry]) -> None:
        """Every file of the version is on storage."""
        paths = sorted({entry.path for entry in files})
        with ThreadPoolExecutor(min(_EXISTS_THREADS, len(paths))) as pool:
            try:
                there = list(pool.map(lambda path: table.io.new_input(path).exists(), paths))
            except Exception as error:  # of whatever storage it is
                raise TableError(
                    f"{self.cannot(table)}: storage does not tell whether its files exist ({brief(error)})",
                    table=self._name,
                ) from error
        missing = [path for path, exists in zip(paths, there, strict=True) if not exists]
        if missing:
            others = f" and {len(missing) - 1} more of its {len(paths)} files are" if len(missing) > 1 else " is"
            raise TableError(f"{self.cannot(table)}: {missing[0]}{others} gone", table=self._name, missing=missing)


def _verb(count: int) -> str:
    return "are" if count != 1 else "is"
