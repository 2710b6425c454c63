"""The live files of a table by partition. Manifests never change, so repeated reads read each one once.

The store caches values built from a manifest: counts for each partition, and objects for the files that a reader picks.
Layouts count every partition, and pick small files and files with pending deletes. Clustering picks all files. The
facts of other files stay columns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.planning.files import FileFact, Layout, PartitionFacts, PartitionKey, SkipReason
from icesize.planning.merging.standing import Standing
from icesize.planning.overlay import Overlay
from icesize.policy import SizePolicy
from icesize.table.catalog.access_errors import readable
from icesize.table.catalog.history import head_of, head_snapshot, known_ancestors, operation_of
from icesize.table.catalog.locations import normalised
from icesize.table.manifests.delete_index import DeleteIndex, delete_index
from icesize.table.manifests.facts import ManifestFacts
from icesize.table.manifests.lists import Manifests, manifests_of
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

_FACTS_BYTES = 600
"""Memory of a partition in a kept layout, with its label and its place in the mapping, about."""

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
            return [some.newest for some in inside.partitions.values()]
        facts = store.facts(io, manifest)
        ids, places = np.unique(facts.snapshot_ids[facts.live], return_inverse=True)
        times = np.array([self._time.get(snapshot_id, 0) for snapshot_id in ids.tolist()], np.int64)
        newest = np.zeros(len(facts.keys), np.int64)
        np.maximum.at(newest, facts.columns.partition[facts.live], times[places])
        stamps = dict(zip(facts.keys, newest.tolist(), strict=True))
        return [stamps[key] for key in inside.partitions]

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

    partitions: dict[PartitionKey, PartitionFiles[File]]
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
        follow(self.store, metadata, manifests)
        kept = [manifest for manifest in manifests.data if keep(manifest)]
        read = [(manifest, self.of(io, manifest)) for manifest in kept]
        partitions: dict[PartitionKey, PartitionFiles[File]] = {}
        for manifest, inside in read:
            for some, newest in zip(
                inside.partitions.values(), ages.newest(self.store, io, manifest, inside), strict=True
            ):
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
            [(manifest, list(inside.partitions.values())) for manifest, inside in read],
            Obstacles(metadata.default_spec_id, deletes, twice, self.apply_deletes),
            ages,
            len(kept) == len(manifests.data),
            len(manifests.deletes),
        )

    def of(self, io: FileIO, manifest: ManifestFile) -> _Inside[File]:
        """Return the live files of one manifest."""

        def make() -> tuple[_Inside[File], int]:
            facts, rows, files = self.pick(io, manifest)
            inside = _Inside(_by_partition(facts, rows, files), PathNumbers.of(map(self.fact_of, files)))
            return inside, len(files) * self.file_bytes + len(inside.partitions) * _PARTITION_BYTES

        return self.store.get(manifest.manifest_path, self.kind, make, manifest.sequence_number)


def follow(store: ManifestStore, metadata: TableMetadata, manifests: Manifests) -> None:
    """Begin a pass of the store over the state of the table with these manifests."""
    listed = (manifest.manifest_path for manifest in (*manifests.data, *manifests.deletes))
    store.follow({*listed, *(snapshot.manifest_list for snapshot in metadata.snapshots)})


def _by_partition(
    facts: ManifestFacts, rows: NDArray[np.intp], files: Sequence[File]
) -> dict[PartitionKey, PartitionFiles[File]]:
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
    return {some.key: some for some in found.values()}


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


def every_manifest(manifest: ManifestFile) -> bool:
    """Return True: keep every manifest."""
    return True


@dataclass(frozen=True)
class KeptLayout:
    """The partitions of a table without deletes, kept from one state of the table to the next.

    It depends on the manifests of the table alone, so it may be made from that of any other state: also of a later one,
    after a rollback.

    Attributes:
        insides: Path of a manifest -> its live files.
        numbers: Numbers of the paths of all small files, in ascending order.
        partitions: The partitions.
        standing: The summary for plans, if a policy is known.
        is_exact: Whether each small file is listed once and each partition key equals itself. If not, the partitions
            are made anew each time, because a file then also depends on manifests that did not change.
    """

    insides: Mapping[str, _Inside[FileFact]]
    numbers: NDArray[np.int64]
    partitions: Overlay[PartitionKey, PartitionFacts]
    standing: Standing | None
    is_exact: bool = True

    @classmethod
    def of(
        cls,
        insides: Mapping[str, _Inside[FileFact]],
        partitions: Mapping[PartitionKey, PartitionFacts],
        spec_id: int,
        policy: SizePolicy | None,
    ) -> KeptLayout:
        """Return the layout with all of its partitions."""
        numbers = np.sort(_numbers(insides.values()))
        standing = Standing.of(partitions.values(), spec_id, policy) if policy else None
        is_exact = not _has_equal(numbers) and not any(map(_is_nan, partitions))
        return cls(insides, numbers, Overlay(partitions), standing, is_exact)

    @property
    def held_bytes(self) -> int:
        """Approximate memory in bytes."""
        return len(self.partitions) * _FACTS_BYTES + self.numbers.nbytes

    def updated(self, insides: Mapping[str, _Inside[FileFact]], labels: Labels, spec_id: int) -> KeptLayout | None:
        """Return the layout of these manifests; None if it is to be made anew."""
        gone = [inside for path, inside in self.insides.items() if path not in insides]
        new = [inside for path, inside in insides.items() if path not in self.insides]
        numbers = self._numbers(gone, new) if self.is_exact else None
        keys = _changed(gone, new)
        if numbers is None or any(map(_is_nan, keys)):
            return None
        changes = dict[PartitionKey, PartitionFacts | None]()
        before, after = list[PartitionFacts](), list[PartitionFacts]()
        for key in keys:
            old = self.partitions.get(key)
            facts = changes[key] = _facts(key, insides.values(), old.label if old else labels.of(key), spec_id)
            # files that only lie in another manifest change no plan
            if not (old and facts and _alike(old, facts)):
                before += [old] if old else []
                after += [facts] if facts else []
        standing = self.standing.changed(before, after) if self.standing else None
        return KeptLayout(insides, numbers, self.partitions.changed(changes), standing)

    def _numbers(self, gone: Sequence[_Inside[FileFact]], new: Sequence[_Inside[FileFact]]) -> NDArray[np.int64] | None:
        """Return the numbers of all small files; None if a file is listed twice, or seems to be."""
        kept = np.delete(self.numbers, np.searchsorted(self.numbers, _numbers(gone)))
        added = np.sort(_numbers(new))
        places = np.searchsorted(kept, added)
        is_there = kept[np.minimum(places, kept.size - 1)] == added if kept.size else np.zeros(added.size, np.bool_)
        return None if _has_equal(added) or is_there.any() else np.insert(kept, places, added)


def _numbers(insides: Iterable[_Inside[FileFact]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *(inside.numbers.numbers for inside in insides)])


def _has_equal(ascending: NDArray[np.int64]) -> bool:
    return bool((ascending[1:] == ascending[:-1]).any())


def _is_nan(key: PartitionKey) -> bool:
    return any(value != value for value in key.values)


def _changed(gone: Sequence[_Inside[FileFact]], new: Sequence[_Inside[FileFact]]) -> list[PartitionKey]:
    """Return the partitions with other files than before.

    A manifest that is written again has most of its files as before. Partitions without small files in it are equal if
    their sums and stamps are. A small file is a value with the path of its manifest, so that it changes with that.
    """

    def sums(insides: Sequence[_Inside[FileFact]], key: PartitionKey) -> tuple[int, int, int, int]:
        total = _total(key, insides)
        return total.files, total.size_bytes, total.rows, total.newest

    def has_small(key: PartitionKey) -> bool:
        return any(some.picked for inside in (*gone, *new) if (some := inside.partitions.get(key)))

    keys = dict.fromkeys(key for inside in (*gone, *new) for key in inside.partitions)
    return [key for key in keys if has_small(key) or sums(gone, key) != sums(new, key)]


def _total(key: PartitionKey, insides: Iterable[_Inside[FileFact]]) -> PartitionFiles[FileFact]:
    total = PartitionFiles[FileFact](key)
    for inside in insides:
        if some := inside.partitions.get(key):
            total.add(some, some.newest)
    return total


def _alike(one: PartitionFacts, other: PartitionFacts) -> bool:
    """Return whether two states of a partition differ in the manifests of their files only."""

    def facts(some: PartitionFacts) -> tuple[object, ...]:
        return some.files, some.size_bytes, some.rows, some.newest, {file.path for file in some.small}

    return facts(one) == facts(other)


def _facts(key: PartitionKey, insides: Iterable[_Inside[FileFact]], label: str, spec_id: int) -> PartitionFacts | None:
    """Return the facts of a partition without deletes; None if it has no files."""
    total = _total(key, insides)
    if not total.files:
        return None
    obstacle = None if key.spec_id == spec_id else SkipReason.OLD_SPEC
    small = (f if obstacle is None else replace(f, obstacle=f.obstacle or obstacle) for f in total.picked)
    return PartitionFacts(key, label, total.files, total.size_bytes, total.rows, tuple(small), total.newest)


@dataclass(frozen=True)
class LayoutReader:
    """Reads layouts of one table repeatedly. Each manifest is read once, as long as the store has room.

    Threads may share a reader, and its store with other readers. Layouts never change.
    """

    small_file_limit_bytes: int
    apply_deletes: bool = True
    store: ManifestStore = field(default_factory=ManifestStore, compare=False, repr=False)
    policy: SizePolicy | None = None

    def read(self, metadata: TableMetadata, io: FileIO, keep: Keep = every_manifest) -> Layout:
        """Return the layout of the current snapshot; manifests that `keep` refuses (pruning by bounds) are not read.

        Without deletes and `keep`, the partitions of the last layout are used again, but for those that changed. In
        format v1 all are made anew, because an expiry changes the ages of files there.

        Raises TableError if manifests cannot be read.
        """
        with readable(metadata.location):
            manifests = manifests_of(head_snapshot(metadata), io)
            if keep is every_manifest and not manifests.deletes and metadata.format_version > 1:
                return self._updated(metadata, io, manifests)
            live = self._live.read(metadata, io, keep)
            large = self._large(io, live)
        return self._layout(metadata, live, large)

    @property
    def _live(self) -> LiveFiles[FileFact]:
        return LiveFiles[FileFact](
            self.store, ("small", self.small_file_limit_bytes), self._small, lambda file: file, FILE_BYTES,
            self.apply_deletes,
        )  # fmt: skip

    def _updated(self, metadata: TableMetadata, io: FileIO, manifests: Manifests) -> Layout:
        """Return the layout of a table without deletes, made from the last one."""
        follow(self.store, metadata, manifests)
        labels, live = Labels(metadata), self._live
        spec_id, paths = metadata.default_spec_id, frozenset(manifest.manifest_path for manifest in manifests.data)

        def make(before: KeptLayout | None) -> tuple[KeptLayout, int]:
            insides = {manifest.manifest_path: live.of(io, manifest) for manifest in manifests.data}
            after = before and before.updated(insides, labels, spec_id)
            if after is None:
                whole = self._layout(metadata, live.read(metadata, io, every_manifest), {})
                after = KeptLayout.of(insides, whole.partitions, spec_id, self.policy)
            return after, after.held_bytes

        kind = ("layout", self.small_file_limit_bytes, spec_id, self.policy)
        kept = self.store.evolve(kind, paths, make)
        return Layout(
            head_of(metadata), spec_id, self.small_file_limit_bytes, kept.partitions, manifests=len(manifests.data),
            commits_since=CommitAges(metadata).since, standing=kept.standing,
        )  # fmt: skip

    def _layout(
        self, metadata: TableMetadata, live: Live[FileFact], large: Mapping[PartitionKey, tuple[FileFact, ...]]
    ) -> Layout:
        labels = Labels(metadata)
        return Layout(
            head=head_of(metadata),
            spec_id=metadata.default_spec_id,
            small_file_limit_bytes=self.small_file_limit_bytes,
            partitions={
                key: PartitionFacts(
                    key, labels.of(key), some.files, some.size_bytes, some.rows,
                    live.obstacles.noted(some.picked, key),
                    some.newest,
                    large.get(key, ()),
                )
                for key, some in live.partitions.items()
            },
            complete=live.complete,
            manifests=len(live.manifests) + live.delete_manifests,
            commits_since=live.ages.since,
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
