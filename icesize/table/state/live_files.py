"""The live files of a table by partition. Manifests never change, so repeated reads read each one once.

The store caches values built from a manifest: counts for each partition, and objects for the files that a reader picks.
Layouts count every partition, and pick small files and files with pending deletes. Clustering picks all files. The
facts of other files stay columns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, ItemsView, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field, replace
from functools import cached_property
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
from icesize.table.manifests.listing import Listing, Rows, difference, has_equal
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
        self._oldest = min(self._time.values(), default=0)
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
        newest = np.zeros(len(facts.keys), np.int64)
        np.maximum.at(newest, facts.columns.partition[facts.live], self.stamps(facts, facts.live))
        stamps = dict(zip(facts.keys, newest.tolist(), strict=True))
        return [stamps[key] for key in inside.partitions]

    def stamps(self, facts: ManifestFacts, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the age stamps of files of a manifest."""
        if self._numbered:
            return facts.sequence_numbers[rows].astype(np.int64)
        ids, places = np.unique(facts.snapshot_ids[rows], return_inverse=True)
        return np.array([self._time.get(snapshot_id, 0) for snapshot_id in ids.tolist()], np.int64)[places]

    @property
    def known(self) -> frozenset[int]:
        """What stamps depend on beside the manifests: in format v1 the known snapshots, in others nothing."""
        return frozenset() if self._numbered else frozenset(self._time)

    def follow(self, before: CommitAges) -> bool:
        """Return whether stamps of an earlier state give the right ages now.

        In format v1 the stamps of expired snapshots do. They are older than all known snapshots, which `since` sees.
        After a rollback they are not, and with clocks that went back they may be not.
        """
        lost = [before._time[snapshot_id] for snapshot_id in before.known - self.known]
        is_later = not before.known or next(iter(before._time)) in self._time
        return is_later and max(lost, default=-1) < self._oldest

    def since(self, stamp: int) -> int:
        """Return the number of commits that added rows after the one with this stamp."""
        counted = len(self._commits) - bisect_right(self._commits, stamp)
        if self._numbered:
            return max(counted, (self._head - stamp) // 2)
        return counted if stamp and stamp >= self._oldest else OLDEST


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
class _State:
    """All that the facts of partitions depend on: the manifests of a table, and `obstacles` with its delete files."""

    listings: Mapping[str, Listing]
    obstacles: Obstacles
    ages: CommitAges
    labels: Labels
    small_file_limit_bytes: int

    def lists(self, facts: PartitionFacts) -> bool:
        """Return whether the manifests that files of a partition name are those of this state."""
        return all(file.manifest_path in self.listings for file in (*facts.small, *facts.large))

    def facts_of(self, keys: Collection[PartitionKey]) -> dict[PartitionKey, PartitionFacts]:
        """Return the facts of those of the partitions that have files."""
        wanted = defaultdict[int, dict[tuple[object, ...], PartitionKey]](dict)
        for key in keys:
            wanted[key.spec_id][key.values] = key
        totals = {key: PartitionFiles[FileFact](key) for key in keys}
        large = defaultdict[PartitionKey, list[FileFact]](list)
        for listing in self.listings.values():
            of_spec = wanted.get(listing.facts.manifest.partition_spec_id)
            if not of_spec or of_spec.keys().isdisjoint(listing.places.keys()):
                continue
            if listed := listing.of_partitions(of_spec):
                self._add(listing.facts, listed, totals, large)
        return {key: self._facts(total, large[key]) for key, total in totals.items() if total.files}

    def _add(
        self,
        facts: ManifestFacts,
        listed: Rows,
        totals: Mapping[PartitionKey, PartitionFiles[FileFact]],
        large: Mapping[PartitionKey, list[FileFact]],
    ) -> None:
        columns, rows = facts.columns, listed.rows
        sizes, counts = (each[rows].astype(np.int64) for each in (columns.size_bytes, columns.rows))
        sums = (np.add.reduceat(each, listed.starts).tolist() for each in (sizes, counts))
        newest = np.maximum.reduceat(self.ages.stamps(facts, rows), listed.starts).tolist()
        for key, files, size_bytes, records, stamp in zip(
            listed.keys, listed.counts.tolist(), *sums, newest, strict=True
        ):
            totals[key].add(PartitionFiles(key, files, size_bytes, records), stamp)
        is_small = sizes < self.small_file_limit_bytes
        for file in facts.files(rows[is_small]):
            totals[file.partition].picked.append(file)
        if self.obstacles.deletes:
            spec_id, concerns = self.obstacles.spec_id, self.obstacles.deletes.concerns
            concerned = np.array([key.spec_id == spec_id and concerns(key) for key in listed.keys])
            for file in facts.files(rows[~is_small & np.repeat(concerned, listed.counts)]):
                large[file.partition].append(file)

    def _facts(self, total: PartitionFiles[FileFact], large: Sequence[FileFact]) -> PartitionFacts:
        key, noted = total.key, self.obstacles.noted
        return PartitionFacts(
            key, self.labels.of(key), total.files, total.size_bytes, total.rows, noted(total.picked, key), total.newest,
            tuple(file for file in noted(large, key) if file.delete_files),
        )  # fmt: skip


class _Partitions(Mapping[PartitionKey, PartitionFacts]):
    """Kept partitions. If a file lies in another manifest since, its partition is made again when it is asked for."""

    def __init__(self, kept: Overlay[PartitionKey, PartitionFacts], state: _State) -> None:
        self._kept, self._state = kept, state
        self._again: dict[PartitionKey, PartitionFacts] = {}

    def __getitem__(self, key: PartitionKey) -> PartitionFacts:
        facts = self._kept[key]
        if self._state.lists(facts):
            return facts
        if key not in self._again:
            self._again |= self._state.facts_of([key])
        return self._again[key]

    def made_again(self) -> dict[PartitionKey, PartitionFacts]:
        """Return the partitions that were made again so far."""
        return self._again.copy()

    def __iter__(self) -> Iterator[PartitionKey]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def items(self) -> ItemsView[PartitionKey, PartitionFacts]:
        """Return all partitions; those that have to be made again are made together, which takes less time."""
        moved = (key for key, facts in self._kept.items() if not self._state.lists(facts))
        self._again |= self._state.facts_of([key for key in moved if key not in self._again])
        return super().items()

    def values(self) -> ValuesView[PartitionFacts]:
        """Return the facts of all partitions, like `items`."""
        self.items()
        return super().values()


@dataclass(frozen=True)
class KeptLayout:
    """The partitions of a table, kept from one state of the table to the next.

    Each state may follow any other one: also an earlier one, after a rollback.

    Attributes:
        state: The state of the table.
        kept: The partitions. The manifest that a file names may be one of an earlier state.
        standing: The summary for plans, if a policy is known.
        is_exact: Whether each file is listed once and each partition key equals itself. If not, the partitions are made
            anew each time, because a file then also depends on manifests that did not change.
    """

    state: _State
    kept: Overlay[PartitionKey, PartitionFacts]
    standing: Standing | None
    is_exact: bool = True

    @classmethod
    def of(
        cls, state: _State, partitions: Mapping[PartitionKey, PartitionFacts], policy: SizePolicy | None
    ) -> KeptLayout:
        """Return the layout with all of its partitions."""
        numbers = [np.empty(0, np.int64), *(listing.numbers for listing in state.listings.values())]
        standing = Standing.of(partitions.values(), state.obstacles.spec_id, policy) if policy else None
        is_exact = not has_equal(np.sort(np.concatenate(numbers))) and not any(map(_is_nan, partitions))
        return cls(state, Overlay(partitions), standing, is_exact)

    @cached_property
    def partitions(self) -> _Partitions:
        """The partitions, as the manifests of the state list them."""
        return _Partitions(self.kept, self.state)

    @property
    def held_bytes(self) -> int:
        """Approximate memory in bytes."""
        return len(self.kept) * _FACTS_BYTES

    def updated(self, state: _State) -> KeptLayout | None:
        """Return the layout of another state; None if it is to be made anew."""
        before, after = self.state.listings, state.listings
        new = [listing for path, listing in after.items() if path not in before]
        changes = difference([listing for path, listing in before.items() if path not in after], new)
        deletes = _other_deletes(self.state.obstacles.deletes, state.obstacles.deletes)
        if not self.is_exact or changes is None or deletes is None or not state.ages.follow(self.state.ages):
            return None
        keys, kept = changes.keys | deletes, (listing for path, listing in after.items() if path in before)
        if any(map(_is_nan, keys)) or any(listing.lists(changes.numbers) for listing in kept):
            return None
        facts = state.facts_of(keys)
        old = [known for key in keys if (known := self.kept.get(key))]
        standing = self.standing.changed(old, facts.values()) if self.standing else None
        # partitions that were made again for their manifests stay so, or each layout would make them again
        changed = {**self.partitions.made_again(), **{key: facts.get(key) for key in keys}}
        return KeptLayout(state, self.kept.changed(changed), standing)


def _is_nan(key: PartitionKey) -> bool:
    return any(value != value for value in key.values)


def _other_deletes(before: DeleteIndex, after: DeleteIndex) -> set[PartitionKey] | None:
    """Return the partitions that other delete files concern than before; None if all partitions are."""
    if before is after:
        return set()
    if before.everywhere != after.everywhere:
        return None
    old, new = before.by_partition, after.by_partition
    return {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}


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

        Without `keep`, the partitions of the last layout are used again, but for those that changed.

        Raises TableError if manifests cannot be read.
        """
        with readable(metadata.location):
            if keep is every_manifest:
                return self._updated(metadata, io)
            return self._whole(metadata, io, keep)

    def _whole(self, metadata: TableMetadata, io: FileIO, keep: Keep) -> Layout:
        live = self._live.read(metadata, io, keep)
        return self._layout(metadata, live, self._large(io, live))

    @property
    def _live(self) -> LiveFiles[FileFact]:
        return LiveFiles[FileFact](
            self.store, ("small", self.small_file_limit_bytes), self._small, lambda file: file, FILE_BYTES,
            self.apply_deletes,
        )  # fmt: skip

    def _updated(self, metadata: TableMetadata, io: FileIO) -> Layout:
        """Return the layout, made from the last one."""
        manifests, ages = manifests_of(head_snapshot(metadata), io), CommitAges(metadata)
        follow(self.store, metadata, manifests)
        spec_id = metadata.default_spec_id

        def make(before: KeptLayout | None) -> tuple[KeptLayout, int]:
            deletes = delete_index(self.store, io, manifests.deletes, metadata.specs())
            state = _State(
                {manifest.manifest_path: self._listing(io, manifest) for manifest in manifests.data},
                Obstacles(spec_id, deletes, frozenset(), self.apply_deletes),
                ages, Labels(metadata), self.small_file_limit_bytes,
            )  # fmt: skip
            after = before and before.updated(state)
            if after is None:
                after = KeptLayout.of(state, self._whole(metadata, io, every_manifest).partitions, self.policy)
            return after, after.held_bytes

        paths = frozenset(manifest.manifest_path for manifest in (*manifests.data, *manifests.deletes))
        kind = (
            "layout", self.small_file_limit_bytes, self.apply_deletes, spec_id, metadata.format_version, self.policy
        )  # fmt: skip
        kept = self.store.evolve(kind, (paths, ages.known), make)
        return Layout(
            head_of(metadata), spec_id, self.small_file_limit_bytes, kept.partitions,
            manifests=len(manifests.data) + len(manifests.deletes), commits_since=ages.since, standing=kept.standing,
        )  # fmt: skip

    def _listing(self, io: FileIO, manifest: ManifestFile) -> Listing:
        def make() -> tuple[Listing, int]:
            listing = Listing.of(self.store.facts(io, manifest))
            return listing, listing.held_bytes

        return self.store.get(manifest.manifest_path, "listing", make, manifest.sequence_number)

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
