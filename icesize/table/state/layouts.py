"""Layouts of a table: read from its manifests, and kept from one state of the table to the next."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata

from icesize.concurrency import concurrently
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE
from icesize.planning.files import Layout, MakeFacts, PartitionFacts, PartitionKey, Partitions
from icesize.planning.merging.standing import Standing
from icesize.planning.overlay import Overlay
from icesize.policy import SizePolicy
from icesize.storage.locations import is_object_store
from icesize.table.catalog.access_errors import readable
from icesize.table.catalog.history import head_of
from icesize.table.manifests.delete_index import DeleteIndex, delete_index
from icesize.table.manifests.entries import entries_in
from icesize.table.manifests.live_arrays import difference, repeated_numbers
from icesize.table.manifests.manifest_lists import Manifests
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.commit_ages import CommitAges
from icesize.table.state.live_files import (
    FILE_BYTES,
    Keep,
    LiveFiles,
    Obstacles,
    current_manifests,
    every_manifest,
    is_nan,
    unfit_specs,
    version_of,
)
from icesize.table.state.naming import Labels

_KEPT_BYTES = 250
"""Memory of a partition in a kept layout, about."""
_FACTS_BYTES = 600
"""Memory of the facts of a partition with its label, without those of its files, about."""


@dataclass(frozen=True)
class KeptLayout:
    """The partitions of a table at one state, kept to find those of the next state.

    Each state may follow any other one: also an earlier one, after a rollback.

    Attributes:
        live: The files.
        newest: For each partition, the stamp of its newest rows.
        standing: The summary for plans, if a policy is known.
        is_exact: True if each file is listed once and each partition key equals itself. Otherwise, the layout is made
            again each time, because a file then also depends on manifests that did not change.
    """

    live: LiveFiles
    newest: Overlay[PartitionKey, int]
    standing: Standing | None
    is_exact: bool = True

    @classmethod
    def of(cls, live: LiveFiles, policy: SizePolicy | None) -> KeptLayout:
        """Return the layout with all of its partitions."""
        is_exact = not repeated_numbers(live.listings.values()).size
        if not is_exact:
            live = live.noting_repeated()
        plain, other_keys = live.counted()
        others = live.facts_of(other_keys)
        newest = dict(zip(plain.keys, plain.newest.tolist(), strict=True))
        newest |= {key: facts.newest for key, facts in others.items()}
        standing = Standing.of_counts(plain, others.values(), policy) if policy else None
        return cls(live, Overlay(newest), standing, is_exact and not any(map(is_nan, other_keys)))

    @property
    def held_bytes(self) -> int:
        """Approximate memory in bytes, without the listings, which the store counts."""
        return len(self.newest) * _KEPT_BYTES

    def updated(self, live: LiveFiles) -> KeptLayout | None:
        """Return the layout of another state; None if it must be made again."""
        before, after = self.live.listings, live.listings
        new = [listing for version, listing in after.items() if version not in before]
        changes = difference([listing for version, listing in before.items() if version not in after], new)
        deletes = _other_deletes(self.live.obstacles.deletes, live.obstacles.deletes)
        if not self.is_exact or changes is None or deletes is None or not live.ages.follow(self.live.ages):
            return None
        keys, kept = changes.keys | deletes, (listing for version, listing in after.items() if version in before)
        if any(map(is_nan, keys)) or any(listing.lists(changes.numbers) for listing in kept):
            return None
        old, facts = self.live.facts_of(keys), live.facts_of(keys)
        newest = self.newest.changed({key: facts[key].newest if key in facts else None for key in keys})
        standing = self.standing and self.standing.changed(old.values(), facts.values())
        return KeptLayout(live, newest, standing)


def _other_deletes(before: DeleteIndex, after: DeleteIndex) -> set[PartitionKey] | None:
    """Return the partitions that other delete files concern than before; None if all partitions are."""
    if before is after:
        return set()
    if before.everywhere != after.everywhere:
        return None
    old, new = before.by_partition, after.by_partition
    return {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}


_MOST_ENTRIES = 2_000_000
"""Entries that are read ahead. The facts of many more do not fit into the store, and would be read twice."""


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

        If all manifests are read, the layout is made from the last one: only partitions that changed are counted again.
        A layout that is known has all partitions, whatever `keep` refuses.

        Raises TableError if manifests cannot be read.
        """
        with readable(metadata.location):
            manifests, ages = current_manifests(self.store, metadata, io), CommitAges(metadata)
            chosen = Manifests([manifest for manifest in manifests.data if keep(manifest)], manifests.deletes)
            version = frozenset(map(version_of, (*manifests.data, *manifests.deletes))), ages.known
            known = self.store.known("", self._kind(metadata), version)
            complete = len(chosen.data) == len(manifests.data) or known is not None
            if complete:
                chosen = manifests
                kept, make = self._kept(metadata, io, manifests, ages, version)
            else:
                kept = KeptLayout.of(self._live(metadata, io, chosen, ages), None)
                make = kept.live.facts_of
        return Layout(
            head_of(metadata), metadata.default_spec_id, self.small_file_limit_bytes, Partitions(kept.newest, make),
            complete, len(chosen.data) + len(chosen.deletes), ages.since, ages.now, kept.standing,
        )  # fmt: skip

    def _kind(self, metadata: TableMetadata) -> tuple[Hashable, ...]:
        """Return what the layout of a state depends on, beside the state."""
        unfit, version = unfit_specs(metadata), metadata.format_version
        return "layout", self.small_file_limit_bytes, self.apply_deletes, unfit, version, self.policy

    def _kept(
        self, metadata: TableMetadata, io: FileIO, manifests: Manifests, ages: CommitAges, version: Hashable
    ) -> tuple[KeptLayout, MakeFacts]:
        """Return the layout, made from the last one, and what makes the facts of its partitions.

        The store keeps the facts of all partitions once they were used.
        """

        def evolved(before: KeptLayout | None) -> tuple[KeptLayout, int]:
            live = self._live(metadata, io, manifests, ages)
            after = (before and before.updated(live)) or KeptLayout.of(live, self.policy)
            return after, after.held_bytes

        def every(_: object) -> tuple[Mapping[PartitionKey, PartitionFacts], int]:
            facts = kept.live.facts_of()
            files = sum(len(each.small) + len(each.large) for each in facts.values())
            return facts, files * FILE_BYTES + len(facts) * _FACTS_BYTES

        def make(keys: Collection[PartitionKey] | None) -> Mapping[PartitionKey, PartitionFacts]:
            if keys is not None:
                return kept.live.facts_of(keys)
            return self.store.evolve(("partitions", *kind[1:-1]), version, every)

        kind = self._kind(metadata)
        kept = self.store.evolve(kind, version, evolved)
        return kept, make

    def _live(self, metadata: TableMetadata, io: FileIO, manifests: Manifests, ages: CommitAges) -> LiveFiles:
        if is_object_store(metadata.location):
            # local files are read faster one by one, because decoding them holds Python's lock
            self._read_together(io, [*manifests.data, *manifests.deletes])
        deletes = delete_index(self.store, io, manifests.deletes, metadata.specs())
        return LiveFiles(
            {version_of(manifest): self.store.listing(io, manifest) for manifest in manifests.data},
            Obstacles(
                unfit_specs(metadata), deletes, frozenset(), self.apply_deletes,
                metadata.format_version >= FIRST_WITH_LINEAGE,
            ),
            ages, Labels(metadata), self.small_file_limit_bytes,
        )  # fmt: skip

    def _read_together(self, io: FileIO, manifests: Sequence[ManifestFile]) -> None:
        """Read manifests that are not in the store at the same time, to wait for the storage once."""
        unread = self.store.unread(manifests)
        if len(unread) > 1 and sum(map(entries_in, unread)) <= _MOST_ENTRIES:
            for _ in concurrently(partial(self.store.facts, io), unread):
                pass
