"""Which files a state of the table refers to: through every snapshot, not only the newest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icesize.table.catalog.locations import normalised
from icesize.table.manifests.entries import read_entries
from icesize.table.manifests.lists import read_new

READERS = 4
"""Manifests read at a time: hides the waiting of remote storage; decoding itself is done by one at a time."""


@dataclass
class Reachable:
    """Files that a table needs, by kind, in their `normalised` spelling.

    `data` are data and delete files, `lists` manifest lists, `statistics` those of tables and partitions, `metadata`
    the metadata files that the newest one knows and the version hint.
    """

    data: set[str] = field(default_factory=set)
    manifests: set[str] = field(default_factory=set)
    lists: set[str] = field(default_factory=set)
    statistics: set[str] = field(default_factory=set)
    metadata: set[str] = field(default_factory=set)
    _spelt: dict[str, str] = field(default_factory=dict)
    _read: set[str] = field(default_factory=set)

    def __contains__(self, location: str) -> bool:
        """Whether the table needs the file, however its location is spelt."""
        name = normalised(location)
        return any(name in kind for kind in self._kinds())

    def __iter__(self) -> Iterator[str]:
        """Every location in its normalised spelling, those first that only others lead to."""
        for kind in self._kinds():
            yield from kind

    def __len__(self) -> int:
        return sum(len(kind) for kind in self._kinds())

    def spelt(self, name: str) -> str:
        """How the table itself spells a location that is in one of the sets."""
        return self._spelt.get(name, name)

    def add_snapshots(self, snapshots: Iterable[Snapshot], io: FileIO) -> None:
        """What more snapshots need; files are read a few at a time, and manifests that were read before not again.

        Raises TableError for a damaged manifest and what `io` raises for a missing one.
        """
        new = [s for s in snapshots if normalised(s.manifest_list) not in self.lists]
        found: dict[str, ManifestFile] = {}

        def listed(snapshot: Snapshot) -> list[ManifestFile]:
            return list(read_new(io, snapshot.manifest_list, lambda path: path in self._read or path in found))

        with ThreadPoolExecutor(READERS) as pool:
            for manifests in pool.map(listed, new):
                found.update({manifest.manifest_path: manifest for manifest in manifests})
            for paths in pool.map(lambda manifest: _paths(io, manifest), found.values()):
                for path in paths:
                    self._add(self.data, path)
        for path in found:
            self._add(self.manifests, path)
        for snapshot in new:
            self._add(self.lists, snapshot.manifest_list)
        self._read.update(found)

    def add_metadata(self, metadata: TableMetadata, metadata_location: str) -> None:
        """What a metadata file names besides snapshots, and itself."""
        for statistics in (*metadata.statistics, *metadata.partition_statistics):
            self._add(self.statistics, statistics.statistics_path)
        for entry in metadata.metadata_log:
            self._add(self.metadata, entry.metadata_file)
        self._add(self.metadata, metadata_location)
        self._add(self.metadata, f"{metadata.location}/metadata/version-hint.text")

    def _add(self, kind: set[str], location: str) -> None:
        name = normalised(location)
        kind.add(name)
        if name != location:
            self._spelt.setdefault(name, location)

    def _kinds(self) -> tuple[set[str], ...]:
        return self.data, self.manifests, self.lists, self.statistics, self.metadata


def _paths(io: FileIO, manifest: ManifestFile) -> list[str]:
    return [entry.path for entry in read_entries(io, manifest)]


def read_reachable(metadata: TableMetadata, metadata_location: str, io: FileIO) -> Reachable:
    """Everything that a table state needs, each manifest list and manifest read once.

    Raises TableError for a damaged manifest and what `io` raises for a missing one.
    """
    found = Reachable()
    found.add_metadata(metadata, metadata_location)
    found.add_snapshots(metadata.snapshots, io)
    return found
