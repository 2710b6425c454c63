"""The live files of a table by partition, read again and again: manifests never change, so each is read once.

What is made of a manifest is kept by its path: numbers for each partition, and values of those files that a reader
picks. Layouts, which count every partition, pick small files, and others where deletes are pending; clustering picks
all of them. Entries are streamed: only
what is picked takes memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Generic, TypeVar

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.planning.deletes import may_hit
from icesize.planning.files import FileFact, Layout, PartitionFacts, PartitionKey, SkipReason, distinct_zeros
from icesize.table.catalog.access_errors import readable
from icesize.table.catalog.history import head_of, head_snapshot, known_ancestors, operation_of
from icesize.table.manifests.delete_index import DeleteIndex, KnownDeletes
from icesize.table.manifests.entries import Entry, read_entries
from icesize.table.manifests.lists import manifests_of
from icesize.table.manifests.repeated_files import Listings
from icesize.table.state.naming import Labels

File = TypeVar("File")
Pick = Callable[[Entry, PartitionKey, str], File | None]
"""What is kept of an entry, given its partition and the path of its manifest; None when it is only counted."""
Keep = Callable[[ManifestFile], bool]
"""Whether a manifest is read at all: pruning by the bounds of its partition values."""


OLDEST = 1 << 60
"""Age, in commits, of a file whose snapshot the table no longer keeps and whose sequence number says nothing (v1)."""


class CommitAges:
    """How many commits that added rows came after a file: `since(stamp(sequence number, snapshot id))`.

    Merged files keep the newest sequence number of their inputs, so merging does not make a partition young again.
    Format v1 has no sequence numbers: there the timestamp of the file's snapshot stands for it. Expired snapshots
    cannot be counted; every commit of ours takes at most two sequence numbers, which gives a lower bound.
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

    def stamp(self, sequence_number: int | None, snapshot_id: int | None) -> int:
        """A number that orders files by the commit that brought their newest rows."""
        if self._numbered:
            return sequence_number or 0
        return self._time.get(snapshot_id or 0, 0)

    def since(self, stamp: int) -> int:
        """Commits that added rows after the one with this stamp."""
        counted = len(self._commits) - bisect_right(self._commits, stamp)
        if self._numbered:
            return max(counted, (self._head - stamp) // 2)
        return counted if stamp else OLDEST


@dataclass(slots=True)
class PartitionFiles(Generic[File]):
    """Files of one partition: counted, and those that were picked as values. `newest` is their largest age stamp."""

    key: PartitionKey
    files: int = 0
    size_bytes: int = 0
    rows: int = 0
    newest: int = 0
    picked: list[File] = field(default_factory=list)

    def add(self, other: PartitionFiles[File]) -> None:
        """Take in what another manifest has of the partition."""
        self.files += other.files
        self.size_bytes += other.size_bytes
        self.rows += other.rows
        self.newest = max(self.newest, other.newest)
        self.picked += other.picked


@dataclass(frozen=True)
class Live(Generic[File]):
    """The files of the current snapshot, also by the manifest that lists them. Not `complete`: some manifests were
    ruled out and not read. `delete_manifests` list delete files."""

    partitions: dict[PartitionKey, PartitionFiles[File]]
    manifests: list[tuple[ManifestFile, list[PartitionFiles[File]]]]
    obstacles: Obstacles
    ages: CommitAges
    complete: bool
    delete_manifests: int


class LiveFiles(Generic[File]):
    """Reads the live files of one table; losing it costs time, never correctness. One thread at a time may use it, and
    what it returns: its owner holds a lock for that.

    `fact_of` gives the facts of a file that was picked. Files with deletes pending must not be rewritten where a policy
    does not `apply_deletes`.
    """

    def __init__(self, fact_of: Callable[[File], FileFact], apply_deletes: bool = True) -> None:
        self._fact_of = fact_of
        self._apply_deletes = apply_deletes
        self._known: dict[str, list[PartitionFiles[File]]] = {}
        self._listings = Listings()
        self._format_version: int | None = None
        self._deletes = KnownDeletes()

    def read(self, metadata: TableMetadata, io: FileIO, pick: Pick[File], keep: Keep) -> Live[File]:
        """The files of the current snapshot; manifests that `keep` refuses are not read."""
        ages = CommitAges(metadata)
        if metadata.format_version != self._format_version:
            # what was read before the table was upgraded is stamped with times, not with sequence numbers
            self._forget_all_but(())
            self._format_version = metadata.format_version
        manifests = manifests_of(head_snapshot(metadata), io)
        kept = [manifest for manifest in manifests.data if keep(manifest)]
        read = [(manifest, self._of(io, manifest, ages, pick)) for manifest in kept]
        partitions: dict[PartitionKey, PartitionFiles[File]] = {}
        for _, inside in read:
            for some in inside:
                partitions.setdefault(some.key, PartitionFiles(some.key)).add(some)
        self._forget_all_but(manifests.data)
        deletes = self._deletes.index(io, manifests.deletes, metadata.specs())
        obstacles = Obstacles(metadata.default_spec_id, deletes, self._listings, self._apply_deletes)
        is_complete = len(kept) == len(manifests.data)
        return Live(partitions, read, obstacles, ages, is_complete, len(manifests.deletes))

    def _of(self, io: FileIO, manifest: ManifestFile, ages: CommitAges, pick: Pick[File]) -> list[PartitionFiles[File]]:
        known = self._known.get(manifest.manifest_path)
        if known is None:
            known = _by_partition(io, manifest, ages, pick)
            # counted first: an interrupt in between must not leave files that count less often than they are listed
            self._listings.add(self._paths(known))
            self._known[manifest.manifest_path] = known
        return known

    def _forget_all_but(self, manifests: Iterable[ManifestFile]) -> None:
        for path in self._known.keys() - {manifest.manifest_path for manifest in manifests}:
            self._listings.add(self._paths(self._known.pop(path)), -1)

    def _paths(self, partitions: list[PartitionFiles[File]]) -> Iterator[str]:
        return (self._fact_of(file).path for some in partitions for file in some.picked)


def _by_partition(io: FileIO, manifest: ManifestFile, ages: CommitAges, pick: Pick[File]) -> list[PartitionFiles[File]]:
    found: dict[tuple[object, ...], PartitionFiles[File]] = {}
    spec_id, path = manifest.partition_spec_id, manifest.manifest_path
    for entry in read_entries(io, manifest):
        values = distinct_zeros(entry.values)
        some = found.get(values)
        if some is None:
            some = found[values] = PartitionFiles(PartitionKey(spec_id, values))
        some.files += 1
        some.size_bytes += entry.size_bytes
        some.rows += entry.rows
        some.newest = max(some.newest, ages.stamp(entry.sequence_number, entry.snapshot_id))
        if (file := pick(entry, some.key, path)) is not None:
            some.picked.append(file)
    return list(found.values())


def fact_of(entry: Entry, key: PartitionKey, manifest_path: str) -> FileFact:
    """An entry as planning sees it; `obstacle` is why it can never be rewritten, whatever happens to the table."""
    obstacle = None
    if entry.encrypted:
        obstacle = SkipReason.ENCRYPTED
    elif entry.file_format != "PARQUET":
        obstacle = SkipReason.NOT_PARQUET
    number, added_by = entry.sequence_number or 0, entry.file_sequence_number or 0
    return FileFact(
        entry.path, entry.size_bytes, entry.rows, key, number, obstacle, manifest_path,
        # mostly equal: kept once
        file_sequence_number=number if number == added_by else added_by,
    )  # fmt: skip


@dataclass(frozen=True)
class Obstacles:
    """Why files must not be rewritten now. That depends on the snapshot, so it is not kept per manifest."""

    spec_id: int
    deletes: DeleteIndex
    listings: Listings
    apply_deletes: bool = True

    def noted(self, files: Sequence[FileFact], key: PartitionKey) -> tuple[FileFact, ...]:
        """The files of one partition, in their order, with the deletes of each and what hinders it; the given objects
        where there is nothing to note."""
        if key.spec_id != self.spec_id:
            return tuple(replace(f, obstacle=f.obstacle or SkipReason.OLD_SPEC) for f in files)
        if any(value != value for value in key.values):
            # its deletes are not found by its partition either, which is one more reason to leave it alone
            return tuple(replace(f, obstacle=f.obstacle or SkipReason.NAN_PARTITION) for f in files)
        if not self.deletes.concerns(key) and not self.listings:
            return tuple(files)
        return tuple(map(self._of, files))

    def _of(self, file: FileFact) -> FileFact:
        noted = with_deletes(file, self.deletes)
        if noted.delete_files and not self.apply_deletes:
            noted = replace(noted, obstacle=SkipReason.HAS_DELETES)
        again = noted.obstacle is None and file.path in self.listings
        return replace(noted, obstacle=SkipReason.LISTED_TWICE) if again else noted


def with_deletes(file: FileFact, index: DeleteIndex) -> FileFact:
    """The file with its deletes; those of a format that icesize does not read are an obstacle."""
    noted = index.noted(file)
    others = (delete for delete in noted.deletes if delete.file_format != "PARQUET")
    if any(may_hit(delete, file) for delete in others):
        return replace(noted, obstacle=SkipReason.HAS_DELETES)
    return noted


def files_at(metadata: TableMetadata, io: FileIO, snapshot: Snapshot, partition: PartitionKey) -> list[FileFact]:
    """The data files of a partition at a snapshot with the deletes that hit them; `obstacle` says why one cannot be
    read."""
    manifests = manifests_of(snapshot, io)
    deletes = DeleteIndex.of(io, manifests.deletes, metadata.specs())
    files = (
        fact_of(entry, partition, manifest.manifest_path)
        for manifest in manifests.data
        if manifest.partition_spec_id == partition.spec_id
        for entry in read_entries(io, manifest)
        if PartitionKey.of(manifest.partition_spec_id, entry.values) == partition
    )
    return [f if f.obstacle else with_deletes(f, deletes) for f in files]


class _LargeFiles:
    """Reads files at or above the small file limit of partitions that deletes concern; only these take memory.

    A manifest is read again when deletes concern more of its partitions than before.
    """

    def __init__(self, small_file_limit_bytes: int) -> None:
        self._limit_bytes = small_file_limit_bytes
        self._known: dict[str, tuple[frozenset[PartitionKey], list[FileFact]]] = {}
        self._listings = Listings()

    def read(self, io: FileIO, live: Live[FileFact]) -> dict[PartitionKey, tuple[FileFact, ...]]:
        """Those that some delete may hit, by partition, each with its deletes and what hinders it."""
        wanted = self._wanted(live) if live.obstacles.deletes else {}
        for path in self._known.keys() - wanted.keys():
            self._forget(path)
        found: defaultdict[PartitionKey, list[FileFact]] = defaultdict(list)
        for manifest, _ in live.manifests:
            if (keys := wanted.get(manifest.manifest_path)) is not None:
                for file in self._of(io, manifest, keys):
                    if file.partition.spec_id == live.obstacles.spec_id:
                        found[file.partition].append(file)
        obstacles = replace(live.obstacles, listings=self._listings)
        noted = {key: [f for f in obstacles.noted(files, key) if f.delete_files] for key, files in found.items()}
        return {key: tuple(files) for key, files in noted.items() if files}

    def _wanted(self, live: Live[FileFact]) -> dict[str, frozenset[PartitionKey]]:
        """Partitions by manifest. Of older specs all are wanted: one may list a file again."""
        obstacles = live.obstacles
        by_path = (
            (manifest.manifest_path, [some.key for some in inside if some.files > len(some.picked)])
            for manifest, inside in live.manifests
        )
        chosen = (
            (path, frozenset(k for k in keys if k.spec_id != obstacles.spec_id or obstacles.deletes.concerns(k)))
            for path, keys in by_path
        )
        return {path: keys for path, keys in chosen if keys}

    def _of(self, io: FileIO, manifest: ManifestFile, wanted: frozenset[PartitionKey]) -> list[FileFact]:
        path = manifest.manifest_path
        known, files = self._known.get(path, (frozenset(), []))
        if not wanted <= known:
            wanted |= known
            self._forget(path)
            files = [
                fact_of(entry, key, path)
                for entry in read_entries(io, manifest)
                if entry.size_bytes >= self._limit_bytes
                and (key := PartitionKey.of(manifest.partition_spec_id, entry.values)) in wanted
            ]
            self._listings.add(file.path for file in files)
            self._known[path] = wanted, files
        return files

    def _forget(self, path: str) -> None:
        if path in self._known:
            self._listings.add((file.path for file in self._known.pop(path)[1]), -1)


class LayoutReader:
    """Reads layouts of one table again and again; each manifest is read once while the small file limit stays.

    Losing it costs time, never correctness. Threads may share it: one reads at a time, and layouts never change.
    """

    def __init__(self, small_file_limit_bytes: int, apply_deletes: bool = True) -> None:
        self.small_file_limit_bytes = small_file_limit_bytes
        self._lock = Lock()
        self._files = LiveFiles[FileFact](lambda fact: fact, apply_deletes)
        self._large = _LargeFiles(small_file_limit_bytes)

    def read(self, metadata: TableMetadata, io: FileIO, keep: Keep = lambda manifest: True) -> Layout:
        """The layout of the current snapshot; manifests that `keep` refuses (pruning by bounds) are not read.

        Raises TableError when storage does not give them.
        """
        with self._lock:
            return self._read(metadata, io, keep)

    def _read(self, metadata: TableMetadata, io: FileIO, keep: Keep) -> Layout:
        def small(entry: Entry, key: PartitionKey, manifest_path: str) -> FileFact | None:
            return fact_of(entry, key, manifest_path) if entry.size_bytes < self.small_file_limit_bytes else None

        with readable(metadata.location):
            live = self._files.read(metadata, io, small, keep)
            large = self._large.read(io, live)
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
