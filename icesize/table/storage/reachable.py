"""Which files a state of the table refers to: through every snapshot, not only the newest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icesize.concurrency import concurrently
from icesize.table.catalog.locations import normalised
from icesize.table.manifests.facts import read_facts
from icesize.table.manifests.lists import read_list

READERS = 4
"""Manifests read at a time: hides the waiting of remote storage; decoding itself is done by one at a time."""


@dataclass
class Reachable:
    """Locations of all files that a table needs: data and delete files, manifests, manifest lists, statistics, metadata
    files that the newest one knows, and the version hint. Each is there in its `normalised` spelling.
    """

    _spelt: dict[str, str] = field(default_factory=dict)
    _read: set[str] = field(default_factory=set)

    def __contains__(self, location: str) -> bool:
        """Whether the table needs the file, however its location is spelt."""
        return normalised(location) in self._spelt

    def __iter__(self) -> Iterator[str]:
        return iter(self._spelt)

    def __len__(self) -> int:
        return len(self._spelt)

    def spelt(self, name: str) -> str:
        """How the table itself spells a normalised location."""
        return self._spelt.get(name, name)

    def add(self, metadata: TableMetadata, metadata_location: str, io: FileIO) -> None:
        """What one more state of the table needs, through each of its snapshots, and the metadata file itself.

        Files are read a few at a time, and what was read before not again. Raises TableError for a damaged manifest
        and what `io` raises for a missing one.
        """
        for statistics in (*metadata.statistics, *metadata.partition_statistics):
            self._add(statistics.statistics_path)
        for entry in metadata.metadata_log:
            self._add(entry.metadata_file)
        self._add(metadata_location)
        self._add(f"{metadata.location}/metadata/version-hint.text")
        self._add_snapshots([s for s in metadata.snapshots if s.manifest_list not in self._read], io)

    def _add_snapshots(self, new: Sequence[Snapshot], io: FileIO) -> None:
        found: dict[str, ManifestFile] = {}

        def listed(snapshot: Snapshot) -> list[ManifestFile]:
            manifests = read_list(io, snapshot.manifest_list)
            return [m for m in manifests if m.manifest_path not in self._read and m.manifest_path not in found]

        for manifests in concurrently(listed, new, READERS):
            found.update({manifest.manifest_path: manifest for manifest in manifests})
        for paths in concurrently(lambda manifest: read_facts(io, manifest).paths(), found.values(), READERS):
            for path in paths:
                self._add(path)
        read = [*found, *(snapshot.manifest_list for snapshot in new)]
        for path in read:
            self._add(path)
        self._read.update(read)

    def _add(self, location: str) -> None:
        self._spelt.setdefault(normalised(location), location)
