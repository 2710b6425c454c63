"""Which files only expired snapshots needed: candidates from their manifests, minus what any kept snapshot reaches.

A manifest that a kept snapshot still lists needs no look: its files live. Of the others, those of a snapshot whose
parent is known only matter for the files it ADDED, as everything else in them was in the parent's manifests already;
our manifests, and many of other engines, list these first, so most of a manifest need not be decoded. Where the parent
is gone the whole manifest is read. A file that this reasoning misses stays as an orphan; whether a candidate goes is
decided by reachability alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata

from icesize.table.catalog.locations import normalised
from icesize.table.catalog.metadata_files import read_metadata_file
from icesize.table.cleanup.journal import Expired, Journal
from icesize.table.manifests.entries import ADDED, read_changes, read_entries
from icesize.table.manifests.lists import read_new
from icesize.table.storage.reachable import READERS, Reachable

KINDS = ("data_files", "delete_files", "manifests", "manifest_lists", "other_files", "metadata_files")
"""Kinds of files in the order in which they are deleted: what leads to others goes after them, so that an expiry that
was killed finds the rest again."""


@dataclass
class Candidates:
    """Files to be deleted unless something reaches them, as the table spells them: kind -> location -> bytes."""

    by_kind: dict[str, dict[str, int]] = field(default_factory=lambda: {kind: {} for kind in KINDS})

    def where(self, wanted: Callable[[str], bool]) -> Candidates:
        """Those whose location is wanted."""
        return Candidates({kind: {p: n for p, n in files.items() if wanted(p)} for kind, files in self.by_kind.items()})

    def __len__(self) -> int:
        return sum(len(files) for files in self.by_kind.values())


def candidates_of(journal: Journal, kept: Reachable, kept_ids: Iterable[int], io: FileIO) -> Candidates:
    """Files of expired snapshots that `kept` does not reach. What an earlier run has deleted is passed over.

    Manifest lists and manifests are read a few at a time.
    """
    found = Candidates()
    ids = {e.snapshot_id for e in journal.expired} | set(kept_ids)
    due = [e for e in journal.expired if e.manifest_list not in kept]
    # manifests to be read, and whether whole
    to_read: dict[str, tuple[ManifestFile, bool]] = {}

    def listed(expired: Expired) -> list[ManifestFile]:
        return _manifests(expired, io, lambda path: path in to_read or path in kept)

    with ThreadPoolExecutor(READERS) as pool:
        for expired, manifests in zip(due, pool.map(listed, due), strict=True):
            base = expired.parent_id is None or expired.parent_id not in ids
            for manifest in manifests:
                found.by_kind["manifests"][manifest.manifest_path] = manifest.manifest_length
                if base or manifest.added_snapshot_id == expired.snapshot_id:
                    to_read.setdefault(manifest.manifest_path, (manifest, base))
            found.by_kind["manifest_lists"][expired.manifest_list] = 0
        for entries in pool.map(lambda each: _files(io, *each), to_read.values()):
            for kind, path, size_bytes in entries:
                found.by_kind[kind][path] = size_bytes
    found.by_kind["other_files"].update(dict.fromkeys(journal.files, 0))
    return found.where(lambda path: path not in kept)


def _manifests(expired: Expired, io: FileIO, known: Callable[[str], bool]) -> list[ManifestFile]:
    try:
        return list(read_new(io, expired.manifest_list, known))
    except FileNotFoundError:
        return []


def _files(io: FileIO, manifest: ManifestFile, whole: bool) -> list[tuple[str, str, int]]:
    """Kind, location and bytes of the files in a manifest, or only of those that it ADDED."""
    if not whole and manifest.added_files_count == 0:
        return []
    entries = read_entries(io, manifest) if whole else read_changes(io, manifest)
    try:
        return [
            ("delete_files" if entry.content else "data_files", entry.path, entry.size_bytes)
            for entry in entries
            if whole or entry.status == ADDED
        ]
    except FileNotFoundError:
        return []  # manifests go after the files they list


def old_metadata_files(metadata: TableMetadata, io: FileIO) -> Iterator[str]:
    """Metadata files that have dropped out of the log, found by the logs of those that are still in it.

    Each log names the 100 before it (`write.metadata.previous-versions-max`), so the oldest one leads further back.
    """
    logged = [entry.metadata_file for entry in metadata.metadata_log]
    seen = {normalised(path) for path in logged}
    with ThreadPoolExecutor(READERS) as pool:
        while logged:
            older = [path for path in _log_of(logged[0], io) if normalised(path) not in seen]
            seen |= {normalised(path) for path in older}
            there = pool.map(lambda path: io.new_input(path).exists(), older)
            logged = [path for path, exists in zip(older, there, strict=True) if exists]
            yield from logged


def _log_of(metadata_file: str, io: FileIO) -> list[str]:
    """The log of an old metadata file, oldest first; empty when it is gone. Raises TableError for a damaged one."""
    data = read_metadata_file(io, metadata_file) or {}
    return [str(entry["metadata-file"]) for entry in data.get("metadata-log", ())]
