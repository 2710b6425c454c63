"""The live files of a table by partition. Manifests never change, so repeated reads read each one once.

The store caches values built from a manifest: counts for each partition, and objects for the files that a reader picks.
Layouts count every partition, and pick small files and files with pending deletes. Clustering picks all files. The
facts of other files stay columns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.planning.files import FileFact, Layout, PartitionFacts, PartitionKey, SkipReason
from icesize.table.catalog.access_errors import readable
from icesize.table.catalog.history import head_of, head_snapshot, known_ancestors, operation_of
from icesize.table.catalog.locations import normalised
from icesize.table.manifests.delete_index import DeleteIndex, delete_index
from icesize.table.manifests.facts import ManifestFacts
from icesize.table.manifests.lists import manifests_of
from icesize.table.manifests.repeated_files import PathNumbers, listed_twice
from icesize.table.manifests.store import ManifestStore, store_of
from icesize.table.state.naming import Labels

File = TypeVar("File")
Keep = Callable[[ManifestFile], bool]
"""Returns True if a manifest is to be read: pruning by the bounds of its partition values."""
Picked: TypeAlias = tuple[ManifestFacts, NDArray[np.intp], list[File]]
"""Facts of a manifest, the rows that a reader picks, and the values built from them."""

FILE_BYTES = 450
"""Approximate memory of a file as a value."""
_PARTITION_BYTES = 150

OLDEST = 1 << 60
"""Age, in commits, of a file whose snapshot has expired and whose sequence number is unknown (format v1)."""


class CommitAges:
    """Ages of files: the number of commits that added rows after a file is `since(newest(manifest))`.

    Merged files keep the newest sequence number of their inputs, so a merge does not make a partition young again.
    Format v1 has no sequence numbers, so the timestamp of the file's snapshot is used. Expired snapshots cannot be
    counted. Every commit of icesize uses at most two sequence numbers, which gives a lower bound.
    """

    def __init__(self, metadata: TableMetadata) -> None:
        history = list(known_ancestors(metadata))
        self._numbered = metadata.format_version > 1
        self._time = {s.snapshot_id: s.timestamp_ms for s in history}
        self._head = (history[0].sequence_number or 0) if history else 0
        self._commits = sorted(
            (s.sequence_number or 0) if self._numbered else s.timestamp_ms
            for s in history
            if operation_of(s) != Operation.REPLACE
        )

    def newest(self, store: ManifestStore, io: FileIO, manifest: ManifestFile, inside: _Inside[Any]) -> list[int]:
        """Return age stamps of a manifest's partitions: numbers that order files by the commit of their newest rows."""
        if self._numbered:
            return [some.newest for some in inside.partitions]
        facts = store.facts(io, manifest)
        ids, places = np.unique(facts.snapshot_ids[facts.live], return_inverse=True)
        times = np.array([self._time.get(snapshot_id, 0) for snapshot_id in ids.tolist()], np.int64)
        newest = np.zeros(len(facts.keys), np.int64)
        np.maximum.at(newest, facts.columns.partition[facts.live], times[places])
        stamps = dict(zip(facts.keys, newest.tolist(), strict=True))
        return [stamps[some.key] for some in inside.partitions]

    def since(self, stamp: int) -> int:
        """Return the number of commits that added rows after the one with this stamp."""
        counted = len(self._commits) - bisect_right(self._commits, stamp)
        if self._numbered:
            return max(counted, (self._head - stamp) // 2)
        return counted if stamp else OLDEST


@dataclass(slots=True)
class PartitionFiles(Generic[File]):
    """Counts of the files of one partition, and the picked files as values. `newest` is their largest age stamp."""

    key: PartitionKey
    files: int = 0
    size_bytes: int = 0
    rows: int = 0
    newest: int = 0
    picked: list[File] = field(default_factory=list)

    def add(self, other: PartitionFiles[File], newest: int) -> None:
        """Add the files of another manifest; `newest` is the age stamp of its newest file."""
        self.files += other.files
        self.size_bytes += other.size_bytes
        self.rows += other.rows
        self.newest = max(self.newest, newest)
        self.picked += other.picked


@dataclass(frozen=True, slots=True)
class _Inside(Generic[File]):
    """The live files of one manifest by partition, with the largest sequence number as `newest`.

    `numbers` are hashes of the picked files' paths; they find files that are listed twice.
    """

    partitions: list[PartitionFiles[File]]
    numbers: PathNumbers


@dataclass(frozen=True)
class Live(Generic[File]):
    """The files of the current snapshot, by partition and by the manifest that lists them.

    `complete` is False if pruned manifests were not read. `delete_manifests` is the number of manifests that list
    delete files.
    """

    partitions: dict[PartitionKey, PartitionFiles[File]]
    manifests: list[tuple[ManifestFile, list[PartitionFiles[File]]]]
    obstacles: Obstacles
    ages: CommitAges
    complete: bool
    delete_manifests: int


@dataclass(frozen=True)
class LiveFiles(Generic[File]):
    """The live files of a table, from the store.

    Attributes:
        store: Caches the values built from each manifest.
        kind: Name of the picked files in the cache.
        pick: Reads the facts of a manifest, with the picked rows and the values built from them.
        fact_of: Returns the facts of a value.
        file_bytes: Approximate memory of a value.
        apply_deletes: True if files with pending deletes may be rewritten.
    """

    store: ManifestStore
    kind: Hashable
    pick: Callable[[FileIO, ManifestFile], Picked[File]]
    fact_of: Callable[[File], FileFact]
    file_bytes: int
    apply_deletes: bool = True

    def read(self, metadata: TableMetadata, io: FileIO, keep: Keep) -> Live[File]:
        """Return the files of the current snapshot. Manifests that `keep` rejects are not read."""
        ages = CommitAges(metadata)
        manifests = manifests_of(head_snapshot(metadata), io)
        listed = (manifest.manifest_path for manifest in (*manifests.data, *manifests.deletes))
        self.store.follow({*listed, *(snapshot.manifest_list for snapshot in metadata.snapshots)})
        kept = [manifest for manifest in manifests.data if keep(manifest)]
        read = [(manifest, self._of(io, manifest)) for manifest in kept]
        partitions: dict[PartitionKey, PartitionFiles[File]] = {}
        for manifest, inside in read:
            for some, newest in zip(inside.partitions, ages.newest(self.store, io, manifest, inside), strict=True):
                if (total := partitions.get(some.key)) is None:
                    total = partitions[some.key] = PartitionFiles(some.key)
                total.add(some, newest)
        twice = self.store.together(
            (manifest.manifest_path for manifest in kept), ("listed twice", self.kind),
            lambda: (listed_twice([inside.numbers for _, inside in read]), 0),
        )  # fmt: skip
        deletes = delete_index(self.store, io, manifests.deletes, metadata.specs())
        return Live(
            partitions,
            [(manifest, inside.partitions) for manifest, inside in read],
            Obstacles(metadata.default_spec_id, deletes, twice, self.apply_deletes),
            ages,
            len(kept) == len(manifests.data),
            len(manifests.deletes),
        )

    def _of(self, io: FileIO, manifest: ManifestFile) -> _Inside[File]:
        def make() -> tuple[_Inside[File], int]:
            facts, rows, files = self.pick(io, manifest)
            inside = _Inside(_by_partition(facts, rows, files), PathNumbers.of(map(self.fact_of, files)))
            return inside, len(files) * self.file_bytes + len(inside.partitions) * _PARTITION_BYTES

        return self.store.get(manifest.manifest_path, self.kind, make, manifest.sequence_number)


def _by_partition(facts: ManifestFacts, rows: NDArray[np.intp], files: Sequence[File]) -> list[PartitionFiles[File]]:
    columns, live = facts.columns, facts.live
    newest = np.zeros(len(facts.keys), np.int64)
    np.maximum.at(newest, columns.partition[live], facts.sequence_numbers[live])
    numbers = newest.tolist()
    found: dict[int, PartitionFiles[File]] = {
        place: PartitionFiles(facts.keys[place], *totals, numbers[place])
        for place, totals in facts.totals(live).items()
    }
    for place, file in zip(columns.partition[rows].tolist(), files, strict=True):
        found[place].picked.append(file)
    return list(found.values())


@dataclass(frozen=True)
class Obstacles:
    """Reasons that files must not be rewritten now.

    They depend on the snapshot, so they are not cached per manifest.
    """

    spec_id: int
    deletes: DeleteIndex
    listed_twice: frozenset[str]
    apply_deletes: bool = True

    def noted(self, files: Sequence[FileFact], key: PartitionKey) -> tuple[FileFact, ...]:
        """Return the files of one partition in the same order, with their deletes and obstacles.

        A file with neither is the given object.
        """
        if key.spec_id != self.spec_id:
            return tuple(replace(f, obstacle=f.obstacle or SkipReason.OLD_SPEC) for f in files)
        if any(value != value for value in key.values):
            # the partition value of such a file does not find its deletes either, one more reason to skip it
            return tuple(replace(f, obstacle=f.obstacle or SkipReason.NAN_PARTITION) for f in files)
        if not self.deletes.concerns(key) and not self.listed_twice:
            return tuple(files)
        return tuple(map(self._of, files))

    def _of(self, file: FileFact) -> FileFact:
        noted = self.deletes.noted(file)
        if noted.delete_files and not self.apply_deletes:
            noted = replace(noted, obstacle=SkipReason.HAS_DELETES)
        again = noted.obstacle is None and self.listed_twice and normalised(file.path) in self.listed_twice
        return replace(noted, obstacle=SkipReason.LISTED_TWICE) if again else noted


def files_at(metadata: TableMetadata, io: FileIO, snapshot: Snapshot, partition: PartitionKey) -> list[FileFact]:
    """Return the data files of a partition at a snapshot, with the deletes that apply to them.

    `obstacle` is the reason that a file cannot be read.
    """
    store, manifests = store_of(str(metadata.table_uuid)), manifests_of(snapshot, io)
    deletes = delete_index(store, io, manifests.deletes, metadata.specs())
    listed = (
        store.facts(io, manifest) for manifest in manifests.data if manifest.partition_spec_id == partition.spec_id
    )
    files = (file for facts in listed for file in facts.files(facts.in_partition(partition)))
    return [f if f.obstacle else deletes.noted(f) for f in files]


@dataclass(frozen=True)
class LayoutReader:
    """Reads layouts of one table repeatedly. Each manifest is read once, as long as the store has room.

    Threads may share a reader, and its store with other readers. Layouts never change.
    """

    small_file_limit_bytes: int
    apply_deletes: bool = True
    store: ManifestStore = field(default_factory=ManifestStore, compare=False, repr=False)

    def read(self, metadata: TableMetadata, io: FileIO, keep: Keep = lambda manifest: True) -> Layout:
        """Return the layout of the current snapshot. Manifests that `keep` rejects (pruning by bounds) are not read.

        Raises TableError if manifests cannot be read.
        """
        small = LiveFiles[FileFact](
            self.store, ("small", self.small_file_limit_bytes), self._small, lambda file: file, FILE_BYTES,
            self.apply_deletes,
        )  # fmt: skip
        with readable(metadata.location):
            live = small.read(metadata, io, keep)
            large = self._large(io, live)
        labels = Labels(metadata)
        return Layout(
            head=head_of(metadata),
            spec_id=metadata.default_spec_id,
            small_file_limit_bytes=self.small_file_limit_bytes,
            partitions={
                key: PartitionFacts(
                    key, labels.of(key), some.files, some.size_bytes, some.rows,
                    live.obstacles.noted(some.picked, key),
                    live.ages.since(some.newest),
                    large.get(key, ()),
                )
                for key, some in live.partitions.items()
            },
            complete=live.complete,
            manifests=len(live.manifests) + live.delete_manifests,
        )  # fmt: skip

    def _small(self, io: FileIO, manifest: ManifestFile) -> Picked[FileFact]:
        facts = self.store.facts(io, manifest)
        rows = facts.live[facts.columns.size_bytes[facts.live] < self.small_file_limit_bytes]
        return facts, rows, facts.files(rows)

    def _large(self, io: FileIO, live: Live[FileFact]) -> dict[PartitionKey, tuple[FileFact, ...]]:
        """Return large files that deletes may apply to, with these deletes and obstacles, by partition."""
        if not live.obstacles.deletes:
            return {}
        read = [self._large_of(io, manifest, keys) for manifest, keys in _concerned(live)]
        found: defaultdict[PartitionKey, list[FileFact]] = defaultdict(list)
        for file in (file for large in read for file in large.files):
            if file.partition.spec_id == live.obstacles.spec_id:
                found[file.partition].append(file)
        obstacles = replace(live.obstacles, listed_twice=listed_twice(read))
        noted = {key: [f for f in obstacles.noted(files, key) if f.delete_files] for key, files in found.items()}
        return {key: tuple(files) for key, files in noted.items() if files}

    def _large_of(self, io: FileIO, manifest: ManifestFile, keys: frozenset[PartitionKey]) -> PathNumbers:
        def make() -> tuple[PathNumbers, int]:
            facts = self.store.facts(io, manifest)
            wanted = np.array([key in keys for key in facts.keys], np.bool_)
            is_large = facts.columns.size_bytes[facts.live] >= self.small_file_limit_bytes
            files = facts.files(facts.live[is_large & wanted[facts.columns.partition[facts.live]]])
            return PathNumbers.of(files), len(files) * FILE_BYTES

        return self.store.get(manifest.manifest_path, ("large", self.small_file_limit_bytes), make, keys)


def _concerned(live: Live[FileFact]) -> Iterator[tuple[ManifestFile, frozenset[PartitionKey]]]:
    """Yield manifests with large files in partitions that have deletes.

    Every partition of an older spec counts, because its manifest may list a file again.
    """
    obstacles = live.obstacles
    for manifest, inside in live.manifests:
        keys = (some.key for some in inside if some.files > len(some.picked))
        wanted = frozenset(k for k in keys if k.spec_id != obstacles.spec_id or obstacles.deletes.concerns(k))
        if wanted:
            yield manifest, wanted
