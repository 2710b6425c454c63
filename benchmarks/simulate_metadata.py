"""The manifests of a simulated table by the rules of `SnapshotBuilder`, and the bytes of all metadata files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from icesize.planning.files import PartitionKey
from icesize.planning.merging.simulation import Exchange
from icesize.policy import DEFAULT_TARGET_BYTES, SMALL_FILE_RATIO
from icesize.table.manifests.packing import (
    ENOUGH_ENTRIES,
    MOST_COLD_ENTRIES,
    MOST_FOLDED_ENTRIES,
    MOST_HOT_ENTRIES,
)

MANIFEST_BYTES, ENTRY_BYTES = 4_800, 245
"""A manifest without entries, and each entry. Measured: 1 to 2,000 files with random statistics of 7 columns."""
LIST_BYTES, LISTED_BYTES = 1_790, 62
"""A manifest list without manifests, and each manifest in it. Measured: 1 to 100 manifests."""
METADATA_BYTES, SNAPSHOT_BYTES = 1_260, 940
"""A metadata file without snapshots, and each snapshot in it. Measured: 1 to 7 snapshots with a ledger."""
SNAPSHOTS_KEPT = 100
"""An expiry runs often enough that the table has about so many."""
MIN_TO_MERGE = 100
"""Iceberg's `commit.manifest.min-count-to-merge`."""
_MOST_LENGTH = 4 * 2**20
"""A longer manifest is not merged: half of Iceberg's `commit.manifest.target-size-bytes`."""

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Manifest:
    """Files of the live entries by number, and the number of all entries."""

    files: Ids
    entries: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return MANIFEST_BYTES + ENTRY_BYTES * self.entries


@dataclass(frozen=True)
class MetadataWrites:
    """Files that a commit reads and writes, and the bytes that it writes."""

    read: int
    written: int
    written_bytes: int


class Manifests:
    """The manifests of a table. A file is known by its path, which is its number.

    Args:
        tenants: Number of partitions of a day; values of partitions are a day and a number below it.
        min_to_merge: Iceberg's `commit.manifest.min-count-to-merge`.
        small_bytes: Files of fewer bytes are small, as in `ManifestPart.by_temperature`.
    """

    def __init__(
        self,
        tenants: int,
        min_to_merge: int = MIN_TO_MERGE,
        small_bytes: int = int(SMALL_FILE_RATIO * DEFAULT_TARGET_BYTES),
    ) -> None:
        self.manifests: dict[int, Manifest] = {}
        self._tenants, self._min_to_merge, self._small_bytes = tenants, min_to_merge, small_bytes
        self._sequence_number = self._next = 0
        # by the number of a file: rank of its partition, data sequence number, number of its manifest, bytes
        self._ranks, self._sequences, self._places, self._sizes = np.zeros((4, 1 << 16), np.int64)

    def commit(self, snapshots: Iterable[Sequence[Exchange]]) -> MetadataWrites:
        """Make these snapshots visible together; one without removed files is an append."""
        read, first, lists, list_bytes = 0, self._next, 0, 0
        for exchanges in snapshots:
            removed = _numbers(file.path for change in exchanges for file in change.inputs)
            # an append merges small manifests first, and writes one of its own
            touched = set(np.unique(self._places[removed]).tolist()) if removed.size else self._many_small()
            kept = self._taken(touched)
            if not removed.size:
                self._write(kept, kept[:0], removed)
                kept = kept[:0]
            self._write(kept[~np.isin(kept, removed)], self._added(exchanges), removed)
            self._sequence_number += 1
            read, lists = read + len(touched), lists + 1
            list_bytes += LIST_BYTES + LISTED_BYTES * len(self.manifests)
        new = [self.manifests[number].size_bytes for number in range(first, self._next) if number in self.manifests]
        rest_bytes = METADATA_BYTES + SNAPSHOT_BYTES * SNAPSHOTS_KEPT
        return MetadataWrites(read, len(new) + lists + 1, sum(new) + list_bytes + rest_bytes)

    def put(self, partitions: Sequence[tuple[PartitionKey, range]]) -> None:
        """Add files that have been in the table for long, by partition in their order, in manifests of cold entries."""
        files = np.concatenate([np.arange(numbers.start, numbers.stop) for _, numbers in partitions])
        self._hold(files)
        self._ranks[files] = np.repeat([self._rank(key) for key, _ in partitions], [len(n) for _, n in partitions])
        self._sequences[files], self._sizes[files] = 0, self._small_bytes
        for start in range(0, files.size, MOST_COLD_ENTRIES):
            self._list(files[start : start + MOST_COLD_ENTRIES], 0)

    def _many_small(self) -> set[int]:
        """Return the manifests that an append merges: as `SnapshotBuilder.fold`."""
        small = sorted(
            (manifest.files.size, number) for number, manifest in self.manifests.items()
            if manifest.files.size < ENOUGH_ENTRIES and manifest.size_bytes < _MOST_LENGTH
        )  # fmt: skip
        if len(small) < max(2, self._min_to_merge):
            return set()
        totals = accumulate(entries for entries, _ in small)
        return {number for (_, number), total in zip(small, totals, strict=True) if total <= MOST_FOLDED_ENTRIES}

    def _taken(self, numbers: set[int]) -> Ids:
        """Remove manifests, and return the files in them."""
        taken = [self.manifests.pop(number).files for number in sorted(numbers)]
        return np.concatenate([np.empty(0, np.int64), *taken])

    def _added(self, exchanges: Sequence[Exchange]) -> Ids:
        """Note partition and sequence number of the added files. Those that only hold older rows keep their number."""
        added = [file for change in exchanges for file in change.outputs]
        files = _numbers(file.path for file in added)
        self._hold(files)
        self._ranks[files] = [self._rank(file.partition) for file in added]
        self._sequences[files] = self._sequence_number + 1
        self._sizes[files] = [file.size_bytes for file in added]
        for change in exchanges:
            older = max((file.sequence_number for file in change.inputs), default=-1)
            if older >= change.outputs[0].sequence_number:
                outputs, inputs = (_numbers(file.path for file in some) for some in (change.outputs, change.inputs))
                self._sequences[outputs] = self._sequences[inputs].max()
        return files

    def _write(self, kept: Ids, added: Ids, removed: Ids) -> None:
        """Write manifests of kept, new and removed files: as `ManifestPart.by_temperature`."""
        changed = np.union1d(self._ranks[added], self._ranks[removed])
        is_small = self._sizes[kept] < self._small_bytes
        is_hot = is_small & np.isin(self._ranks[kept], changed)
        other = np.flatnonzero(is_small & ~is_hot)
        is_hot[other[np.argsort(-self._sequences[kept[other]], kind="stable")[:MOST_HOT_ENTRIES]]] = True
        cold = kept[~is_hot]
        if cold.size < ENOUGH_ENTRIES:
            self._list(np.concatenate([added, kept]), removed.size)
            return
        self._list(np.concatenate([added, kept[is_hot]]), removed.size)
        in_order = cold[np.argsort(self._ranks[cold], kind="stable")]
        manifests = -(-cold.size // MOST_COLD_ENTRIES)
        ends = [cold.size * number // manifests for number in range(manifests + 1)]
        for start, end in pairwise(ends):
            self._list(in_order[start:end], 0)

    def _list(self, files: Ids, removed: int) -> None:
        if files.size or removed:
            self.manifests[self._next] = Manifest(files, files.size + removed)
            self._places[files] = self._next
            self._next += 1

    def _rank(self, key: PartitionKey) -> int:
        day, tenant = key.values
        return int(str(day)) * self._tenants + int(str(tenant))

    def _hold(self, files: Ids) -> None:
        """Make the columns long enough."""
        missing = int(files.max(initial=0)) + 1 - self._places.size
        if missing > 0:
            more = max(missing, self._places.size)
            before = self._ranks, self._sequences, self._places, self._sizes
            self._ranks, self._sequences, self._places, self._sizes = (np.pad(each, (0, more)) for each in before)


def _numbers(paths: Iterable[str]) -> Ids:
    return np.fromiter(map(int, paths), np.int64)
