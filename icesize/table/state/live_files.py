"""The live files of a table by partition, found in arrays.

Manifests never change, so their arrays stay in the store. Values for single files are made on first use:
a batch uses a few partitions of a table with a million files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icesize.parquet.files.properties import fits_partitions
from icesize.planning.file_sizes import is_small_file
from icesize.planning.files import FileFact, PartitionFacts, PartitionKey, SkipReason
from icesize.planning.merging.standing import PlainPartitions
from icesize.storage.locations import normalised
from icesize.table.catalog.history import head_snapshot
from icesize.table.manifests.delete_index import DeleteIndex, delete_index
from icesize.table.manifests.file_columns import ManifestFacts
from icesize.table.manifests.live_arrays import Listing, Rows
from icesize.table.manifests.manifest_lists import Manifests, first_row_id_of, manifests_of
from icesize.table.manifests.repeated_files import listed_twice
from icesize.table.manifests.store import ManifestStore, store_of
from icesize.table.state.commit_ages import CommitAges
from icesize.table.state.naming import Labels

Keep = Callable[[ManifestFile], bool]
"""Returns True if a manifest is to be read: pruning by the bounds of its partition values."""

FILE_BYTES = 450
"""Approximate memory of a file as a value."""


def every_manifest(manifest: ManifestFile) -> bool:
    """Return True: keep every manifest."""
    return True


def current_manifests(store: ManifestStore, metadata: TableMetadata, io: FileIO) -> Manifests:
    """Return the manifests of the current snapshot. The store begins a pass over this state of the table."""
    manifests = manifests_of(head_snapshot(metadata), io, metadata.specs())
    listed = (manifest.manifest_path for manifest in (*manifests.data, *manifests.deletes))
    store.follow({*listed, *(snapshot.manifest_list for snapshot in metadata.snapshots)})
    return manifests


def version_of(manifest: ManifestFile) -> tuple[str, int | None]:
    """Return what the facts of a manifest's files depend on: an upgrade to format v3 numbers the rows of older ones."""
    return manifest.manifest_path, first_row_id_of(manifest)


def is_nan(key: PartitionKey) -> bool:
    """Return True if a partition value is NaN, which equals no value."""
    return any(value != value for value in key.values)


@dataclass(frozen=True)
class Obstacles:
    """Reasons that files must not be rewritten now.

    They depend on the snapshot, so they are not cached per manifest. `unfit_specs` are old partition specs whose files
    icesize cannot write.
    """

    unfit_specs: frozenset[int]
    deletes: DeleteIndex
    listed_twice: frozenset[str]
    apply_deletes: bool = True
    has_row_ids: bool = False

    def concern(self, key: PartitionKey) -> bool:
        """Return True if a file of the partition may have deletes or an obstacle that its manifest does not show."""
        is_other = key.spec_id in self.unfit_specs or is_nan(key)
        return is_other or bool(self.listed_twice) or self.deletes.concerns(key)

    def noted(self, files: Sequence[FileFact], key: PartitionKey) -> tuple[FileFact, ...]:
        """Return the files of one partition in the same order, with their deletes and obstacles.

        A file with neither is the given object.
        """
        if self.has_row_ids:
            files = [f if f.first_row_id is not None else without_row_ids(f) for f in files]
        if key.spec_id in self.unfit_specs:
            files = [replace(f, obstacle=f.obstacle or SkipReason.OLD_SPEC) for f in files]
        if is_nan(key):
            # the partition value of such a file does not find its deletes either, one more reason to skip it
            return tuple(replace(f, obstacle=f.obstacle or SkipReason.NAN_PARTITION) for f in files)
        if not self.deletes.concerns(key) and not self.listed_twice:
            return tuple(files)
        return tuple(map(self._of, files))

    def _of(self, file: FileFact) -> FileFact:
        noted = self.deletes.noted(file)
        if noted.delete_files and not self.apply_deletes:
            noted = replace(noted, obstacle=SkipReason.HAS_DELETES)
        is_free = noted.obstacle in (None, SkipReason.OLD_SPEC)
        again = is_free and self.listed_twice and normalised(file.path) in self.listed_twice
        return replace(noted, obstacle=SkipReason.LISTED_TWICE) if again else noted


def unfit_specs(metadata: TableMetadata) -> frozenset[int]:
    """Return the old partition specs whose files icesize cannot write, for example without their source column.

    A table whose current spec is unfit is refused as a whole.
    """
    schema, specs = metadata.schema(), metadata.specs()
    return frozenset(
        i for i, spec in specs.items() if i != metadata.default_spec_id and not fits_partitions(spec, schema)
    )


def without_row_ids(file: FileFact) -> FileFact:
    """Return a file that must not be merged because its rows have no ids yet."""
    return replace(file, obstacle=file.obstacle or SkipReason.NO_ROW_IDS)


@dataclass(slots=True)
class _Found:
    """Counts of the files of one partition so far; `newest` is their largest stamp."""

    files: int = 0
    size_bytes: int = 0
    rows: int = 0
    newest: int = 0
    small: list[FileFact] = field(default_factory=list)
    large: list[FileFact] = field(default_factory=list)


@dataclass(frozen=True)
class LiveFiles:
    """All that the facts of partitions depend on.

    Attributes:
        listings: The data manifests by location and first row id.
        obstacles: Reasons why files stay, and the delete files.
        ages: Ages of files.
        labels: Names of partitions.
        small_file_limit_bytes: Files below this size are small.
    """

    listings: Mapping[tuple[str, int | None], Listing]
    obstacles: Obstacles
    ages: CommitAges
    labels: Labels
    small_file_limit_bytes: int

    def noting_repeated(self) -> LiveFiles:
        """Return these files, with an obstacle for those that are listed twice."""
        return replace(self, obstacles=replace(self.obstacles, listed_twice=listed_twice(self.listings.values())))

    def facts_of(self, keys: Collection[PartitionKey] | None = None) -> dict[PartitionKey, PartitionFacts]:
        """Return the facts of those of the partitions that have files, or of all partitions."""
        wanted = defaultdict[int, dict[tuple[object, ...], PartitionKey]](dict)
        for key in keys or ():
            wanted[key.spec_id][key.values] = key
        found = defaultdict[PartitionKey, _Found](_Found)
        for listing in self.listings.values():
            of_spec = None if keys is None else wanted[listing.facts.manifest.partition_spec_id]
            if listed := listing.of_partitions(of_spec):
                self._add(listing.facts, listed, found)
        return {key: self._facts(key, some) for key, some in found.items()}

    def _add(self, facts: ManifestFacts, listed: Rows, found: defaultdict[PartitionKey, _Found]) -> None:
        columns, rows, starts = facts.columns, listed.rows, listed.starts
        sizes, counts = (each[rows].astype(np.int64) for each in (columns.size_bytes, columns.rows))
        sums = (np.add.reduceat(each, starts).tolist() for each in (sizes, counts))
        newest = np.maximum.reduceat(self.ages.stamps(facts, rows), starts).tolist()
        is_small = is_small_file(sizes, self.small_file_limit_bytes)
        small = _divided(facts, listed, is_small)
        large = _divided(facts, listed, ~is_small & np.repeat(self._may_have_deletes(listed.keys), listed.counts))
        for key, files, size_bytes, records, stamp, of_small, of_large in zip(
            listed.keys, listed.counts.tolist(), *sums, newest, small, large, strict=True
        ):
            total = found[key]
            total.files += files
            total.size_bytes += size_bytes
            total.rows += records
            total.newest = max(total.newest, stamp)
            total.small += of_small
            total.large += of_large

    def _may_have_deletes(self, keys: Sequence[PartitionKey]) -> NDArray[np.bool_]:
        deletes = self.obstacles.deletes
        if not deletes:
            return np.zeros(len(keys), np.bool_)
        return np.array([deletes.concerns(key) for key in keys])

    def _facts(self, key: PartitionKey, found: _Found) -> PartitionFacts:
        noted = self.obstacles.noted
        return PartitionFacts(
            key, self.labels.of(key), found.files, found.size_bytes, found.rows, noted(found.small, key), found.newest,
            tuple(file for file in noted(found.large, key) if file.delete_files),
        )  # fmt: skip

    def counted(self) -> tuple[PlainPartitions, list[PartitionKey]]:
        """Return the counts of plain partitions, without a value for any file, and the other partitions."""
        ids = dict[PartitionKey, int]()
        places = [
            np.array([ids.setdefault(key, len(ids)) for key in listing.facts.keys], np.intp)
            for listing in self.listings.values()
        ]
        files, small, newest, before, odd = (np.zeros(len(ids), np.int64) for _ in range(5))
        numbered = list[tuple[NDArray[np.intp], NDArray[np.int64]]]()
        for listing, numbers in zip(self.listings.values(), places, strict=True):
            facts, rows = listing.facts, listing.facts.live
            at = numbers[facts.columns.partition[rows]]
            is_small = is_small_file(facts.columns.size_bytes[rows], self.small_file_limit_bytes)
            at_small = at[is_small]
            files += np.bincount(at, minlength=len(ids))
            small += np.bincount(at_small, minlength=len(ids))
            np.maximum.at(newest, at, self.ages.stamps(facts, rows))
            np.maximum.at(odd, at_small, facts.columns.obstacles[rows][is_small])
            if self.obstacles.has_row_ids and first_row_id_of(facts.manifest) is None:
                odd[at] = 1
            numbered.append((at_small, facts.sequence_numbers[rows][is_small].astype(np.int64)))
        for at, numbers in numbered:
            is_older = numbers < newest[at]
            np.maximum.at(before, at[is_older], numbers[is_older])
        keys, concern = list(ids), self.obstacles.concern
        has_files = np.flatnonzero(files).tolist()
        others = [place for place in has_files if odd[place] or concern(keys[place])]
        plain = np.setdiff1d(has_files, others).astype(np.intp)
        counts = PlainPartitions(
            [keys[place] for place in plain.tolist()],
            files[plain], small[plain], newest[plain], before[plain], self.labels.of,
        )  # fmt: skip
        return counts, [keys[place] for place in others]


def _divided(facts: ManifestFacts, listed: Rows, chosen: NDArray[np.bool_]) -> list[list[FileFact]]:
    """Return the chosen rows as values, by partition."""
    files = facts.files(listed.rows[chosen])
    ends = np.cumsum(np.add.reduceat(chosen, listed.starts, dtype=np.intp)).tolist()
    return [files[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def files_at(metadata: TableMetadata, io: FileIO, snapshot: Snapshot, partition: PartitionKey) -> list[FileFact]:
    """Return the data files of a partition at a snapshot, with the deletes that apply to them.

    `obstacle` is the reason that a file cannot be read.
    """
    store, specs = store_of(str(metadata.table_uuid)), metadata.specs()
    manifests = manifests_of(snapshot, io, specs)
    deletes = delete_index(store, io, manifests.deletes, specs)
    listed = (
        store.facts(io, manifest) for manifest in manifests.data if manifest.partition_spec_id == partition.spec_id
    )
    files = (file for facts in listed for file in facts.files(facts.in_partition(partition)))
    return [f if f.obstacle else deletes.noted(f) for f in files]
