"""What a table held at some of its commits: files, small files and delete files of each partition.

Manifests that several snapshots list are read once, and of a large table fewer snapshots are looked at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icesize.errors import TableError
from icesize.planning.files import PartitionKey
from icesize.planning.inspection import size_bounds
from icesize.planning.trends import Counts, PastState, evenly
from icesize.table.catalog.history import main_history
from icesize.table.manifests.entries import DATA, read_entries
from icesize.table.manifests.lists import read_new
from icesize.table.state.commits import History, runs_of
from icesize.table.state.naming import Labels

MOST_SNAPSHOTS = 48
"""States that are looked at: as many columns as a picture on a phone shows."""
MOST_ENTRIES = 2_000_000
"""Manifest entries that are read for them, about: 40 seconds of work."""


def chosen_snapshots(
    metadata: TableMetadata, history: History, most_snapshots: int = MOST_SNAPSHOTS, most_entries: int = MOST_ENTRIES
) -> list[Snapshot]:
    """Snapshots of `main` as its readers saw them after its commits, oldest first, evenly chosen with both ends.

    There are fewer of a table that has held many files: each of their manifests may be its own.
    """
    shown = [commit.last for run in runs_of(main_history(metadata)) for commit in run][::-1]
    most_files = max(((c.total_files or 0) + (c.total_delete_files or 0) for c in history.commits), default=0)
    return evenly(shown, min(most_snapshots, max(2, most_entries // max(1, most_files))))


def past_states(
    metadata: TableMetadata, io: FileIO, snapshots: Sequence[Snapshot], limit_bytes: int
) -> tuple[list[PastState], int]:
    """The table at these snapshots, and how many of them storage does not give any more.

    Small files are those below `limit_bytes`, whatever the limit was then.
    """
    reader = _Reader(io, size_bounds(limit_bytes), Labels(metadata))
    states, unreadable = list[PastState](), 0
    for snapshot in snapshots:
        try:
            states.append(reader.at(snapshot))
        except (OSError, TableError):
            unreadable += 1
    return states, unreadable


@dataclass
class _Tally:
    """What one manifest lists."""

    partitions: dict[PartitionKey, Counts] = field(default_factory=dict)
    sizes: Counter[int] = field(default_factory=Counter)


class _Reader:
    """Counts of manifests, each read once."""

    def __init__(self, io: FileIO, bounds: Sequence[int], labels: Labels) -> None:
        self._io, self._bounds, self._labels = io, bounds, labels
        self._known: dict[str, _Tally] = {}
        self._names: dict[PartitionKey, str] = {}

    def at(self, snapshot: Snapshot) -> PastState:
        partitions: defaultdict[str, Counts] = defaultdict(Counts)
        sizes = Counter[int]()
        for manifest in read_new(self._io, snapshot.manifest_list, lambda path: False):
            tally = self._known.get(manifest.manifest_path) or self._read(manifest)
            sizes.update(tally.sizes)
            for key, counts in tally.partitions.items():
                name = self._name(key)
                partitions[name] = partitions[name].plus(counts)
        by_class = tuple(sizes[i] for i in range(len(self._bounds) + 1))
        return PastState(snapshot.snapshot_id, snapshot.timestamp_ms, dict(partitions), by_class)

    def _read(self, manifest: ManifestFile) -> _Tally:
        found: defaultdict[PartitionKey, list[int]] = defaultdict(lambda: [0, 0, 0])
        sizes = Counter[int]()
        for entry in read_entries(self._io, manifest):
            counts = found[PartitionKey.of(manifest.partition_spec_id, entry.values)]
            if entry.content != DATA:
                counts[2] += 1
                continue
            size_class = bisect_right(self._bounds, entry.size_bytes)
            sizes[size_class] += 1
            counts[0] += 1
            counts[1] += size_class < len(self._bounds)
        tally = _Tally({key: Counts(*counts) for key, counts in found.items()}, sizes)
        self._known[manifest.manifest_path] = tally
        return tally

    def _name(self, key: PartitionKey) -> str:
        known = self._names.get(key)
        if known is None:
            known = self._names[key] = self._labels.of(key)
        return known
