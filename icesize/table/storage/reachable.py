"""Collects the files that a state of the table refers to, through every snapshot, not only the newest."""

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
"""Manifests read at a time: hides the latency of remote storage; they are decoded one at a time."""


@dataclass
class Reachable:
    """Locations of all files that a table needs, each in its `normalised` spelling.

    They are data and delete files, manifests, manifest lists, statistics, metadata files that the newest one lists, and
    the version hint.
    """

    _spelt: dict[str, str] = field(default_factory=dict)
    _read: set[str] = field(default_factory=set)

    def __contains__(self, location: str) -> bool:
        """Return True if the table needs the file, in any spelling of its location."""
        return normalised(location) in self._spelt

    def __iter__(self) -> Iterator[str]:
        return iter(self._spelt)

    def __len__(self) -> int:
        return len(self._spelt)

    def spelt(self, name: str) -> str:
        """Return the table's own spelling of a normalised location."""
        return self._spelt.get(name, name)

    def add(self, metadata: TableMetadata, metadata_location: str, io: FileIO) -> None:
        """Add the files of one more state of the table, through each of its snapshots, and the metadata file itself.

        Files are read a few at a time, and each file only once. Raises TableError for a damaged manifest, and the error
        of `io` for a missing one.
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
