"""What partitions hold at a snapshot, what snapshots changed in them, and which ones changed since the last merge.

Every manifest is read once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.planning.files import PartitionKey
from icesize.table.catalog.history import known_ancestors, operation_of, summary_of
from icesize.table.commit.summary import BASE_ID, RUN_ID
from icesize.table.manifests.entries import DELETED, Entry, read_changes, read_entries
from icesize.table.manifests.lists import manifests_of, read_new


class Contents(NamedTuple):
    """Data files of a partition, and `identity`, a number that stands for the set of its files, deletes included.

    Holds in this process only: it is a sum of hashes of paths.
    """

    files: int = 0
    size_bytes: int = 0
    rows: int = 0
    identity: int = 0

    def plus(self, other: Contents, sign: int = 1) -> Contents:
        """The sum, or with `sign` -1 the difference."""
        return Contents(*(a + sign * b for a, b in zip(self, other, strict=True)))


class PartitionChange(NamedTuple):
    """What one snapshot did to one partition: the files that it ADDED and those that it DELETED."""

    added: Contents
    removed: Contents

    @property
    def net(self) -> Contents:
        """What the partition has more than before."""
        return self.added.plus(self.removed, -1)


def _counted(entries: Iterable[tuple[PartitionKey, Entry]]) -> dict[PartitionKey, PartitionChange]:
    totals: dict[PartitionKey, tuple[list[int], list[int]]] = defaultdict(lambda: ([0, 0, 0, 0], [0, 0, 0, 0]))
    for key, entry in entries:
        total = totals[key][entry.status == DELETED]
        if not entry.content:
            total[0] += 1
            total[1] += entry.size_bytes
            total[2] += entry.rows
        total[3] += hash(entry.path)
    return {key: PartitionChange(Contents(*added), Contents(*removed)) for key, (added, removed) in totals.items()}


class ChangeReader:
    """Reads what snapshots of one table changed, each once; a manifest that some manifest list has named is passed over
    in the others. Losing it costs time only. Not shared between threads.
    """

    def __init__(self) -> None:
        self._known: dict[int, Mapping[PartitionKey, PartitionChange]] = {}
        self._listed: set[str] = set()
        self._added_by: dict[int | None, list[ManifestFile]] = defaultdict(list)

    def touched(
        self, metadata: TableMetadata, io: FileIO, snapshot: Snapshot
    ) -> Mapping[PartitionKey, PartitionChange]:
        """What a snapshot added to and removed from each partition; empty when it only wrote manifests anew.

        An equality delete of an unpartitioned spec counts for that spec's only partition, whatever else it hits.
        """
        changes = self._known.get(snapshot.snapshot_id)
        if changes is None:
            changes = self._known[snapshot.snapshot_id] = self._read(io, snapshot)
            if len(self._known) > len(metadata.snapshots):
                kept = {s.snapshot_id for s in metadata.snapshots}
                self._known = {i: known for i, known in self._known.items() if i in kept}
                self._listed.clear()
                self._added_by.clear()
        return changes

    def _read(self, io: FileIO, snapshot: Snapshot) -> Mapping[PartitionKey, PartitionChange]:
        for manifest in read_new(io, snapshot.manifest_list, self._listed.__contains__):
            self._listed.add(manifest.manifest_path)
            self._added_by[manifest.added_snapshot_id].append(manifest)
        changes = _counted(
            (PartitionKey.of(manifest.partition_spec_id, entry.values), entry)
            for manifest in self._added_by[snapshot.snapshot_id]
            for entry in read_changes(io, manifest)
            if entry.snapshot_id == snapshot.snapshot_id
        )
        del self._added_by[snapshot.snapshot_id]
        return changes


class States:
    """What partitions hold at a snapshot; a manifest that several of them share is read once."""

    def __init__(self, io: FileIO, partition: PartitionKey | None) -> None:
        self._io, self._partition = io, partition
        self._known: dict[str, dict[PartitionKey, Contents]] = {}

    def at(self, snapshot: Snapshot) -> dict[PartitionKey, Contents]:
        total: dict[PartitionKey, Contents] = defaultdict(Contents)
        for manifest in snapshot.manifests(self._io):
            if self._partition is None or manifest.partition_spec_id == self._partition.spec_id:
                for key, contents in self._of(manifest).items():
                    total[key] = total[key].plus(contents)
        return dict(total)

    def _of(self, manifest: ManifestFile) -> dict[PartitionKey, Contents]:
        known = self._known.get(manifest.manifest_path)
        if known is None:
            entries = (
                (PartitionKey.of(manifest.partition_spec_id, entry.values), entry)
                for entry in read_entries(self._io, manifest)
            )
            counted = _counted(each for each in entries if self._partition in (None, each[0]))
            known = self._known[manifest.manifest_path] = {key: change.added for key, change in counted.items()}
        return known


def partitions_changed(metadata: TableMetadata, io: FileIO) -> set[PartitionKey] | None:
    """Partitions with files added by others since the newest REPLACE snapshot of ours was *planned*.

    What others committed between that plan and its commit was not considered by it. A REPLACE of ours that names no
    planning base only wrote manifests anew and merged nothing. None means all partitions: there is no such snapshot,
    or it, or one that came after its plan, has expired. Stateless, so it holds after a restart.
    """
    newer: set[int] = set()
    ours: set[int] = set()
    base: str | None = None
    for snapshot in known_ancestors(metadata):
        if base is None and (base := _planned_on(snapshot)) is not None:
            ours.add(snapshot.snapshot_id)
        else:
            newer.add(snapshot.snapshot_id)
        if base is not None and str(snapshot.parent_snapshot_id) == base:
            break
    else:
        return None
    # a REPLACE that writes manifests anew, as ours does, copies entries of others, which keep their snapshot ids
    return {
        PartitionKey.of(manifest.partition_spec_id, entry.values)
        for manifest in manifests_of(metadata.current_snapshot() if newer else None, io).data
        if manifest.added_snapshot_id in newer | ours
        for entry in read_entries(io, manifest)
        if entry.snapshot_id in newer
    }


def _planned_on(snapshot: Snapshot) -> str | None:
    """The id of the snapshot that a merge of ours was planned on, None for all other snapshots."""
    is_ours = operation_of(snapshot) == Operation.REPLACE and summary_of(snapshot, RUN_ID) is not None
    return summary_of(snapshot, BASE_ID) if is_ours else None
