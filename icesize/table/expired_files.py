"""Which files only expired snapshots needed: candidates from their manifests, minus what any kept snapshot reaches.

A manifest that a kept snapshot still lists needs no look: its files live. Of the others, those of a snapshot whose
parent is known only matter for the files it ADDED, as everything else in them was in the parent's manifests already;
our manifests, and many of other engines, list these first, so most of a manifest need not be decoded. Where the parent
is gone the whole manifest is read. A file that this reasoning misses stays as an orphan; whether a candidate goes is
decided by reachability alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata

from icesize.table.entries import ADDED, read_changes, read_entries
from icesize.table.journal import Expired, Journal
from icesize.table.locations import normalised
from icesize.table.manifest_lists import read_new
from icesize.table.reachable import Reachable

KINDS = ("data_files", "delete_files", "manifests", "manifest_lists", "other_files", "metadata_files")
"""Kinds of files in the order in which they are deleted: what leads to others goes after them, so that an expiry that
was killed finds the rest again."""


@dataclass
class Candidates:
    """Files to be deleted unless something reaches them, as the table spells them: kind -> location -> bytes."""

    by_kind: dict[str, dict[str, int]] = field(default_factory=lambda: {kind: {} for kind in KINDS})

    def without(self, reachable: Reachable) -> Candidates:
        """Those that nothing reaches."""
        return Candidates(
            {kind: {p: n for p, n in files.items() if p not in reachable} for kind, files in self.by_kind.items()}
        )

    def __len__(self) -> int:
        return sum(len(files) for files in self.by_kind.values())


def candidates_of(journal: Journal, kept: Reachable, kept_ids: Iterable[int], io: FileIO) -> Candidates:
    """Files of expired snapshots that `kept` does not reach. What an earlier run has deleted is passed over."""
    found = Candidates()
    known = {e.snapshot_id for e in journal.expired} | set(kept_ids)
    seen: set[str] = set()

    def needs_no_look(manifest_path: str) -> bool:
        return manifest_path in seen or manifest_path in kept

    for expired in journal.expired:
        if expired.manifest_list in kept:
            continue
        for manifest in _manifests(expired, io, needs_no_look):
            path = manifest.manifest_path
            base = expired.parent_id is None or expired.parent_id not in known
            if base or manifest.added_snapshot_id == expired.snapshot_id:
                seen.add(path)
                _add_files(found, manifest, io, whole=base)
            found.by_kind["manifests"][path] = manifest.manifest_length
        found.by_kind["manifest_lists"][expired.manifest_list] = 0
    found.by_kind["other_files"].update(dict.fromkeys(journal.files, 0))
    return found.without(kept)


def _manifests(expired: Expired, io: FileIO, known: Callable[[str], bool]) -> list[ManifestFile]:
    try:
        return list(read_new(io, expired.manifest_list, known))
    except FileNotFoundError:
        return []


def _add_files(found: Candidates, manifest: ManifestFile, io: FileIO, *, whole: bool) -> None:
    if not whole and manifest.added_files_count == 0:
        return
    entries = read_entries(io, manifest, with_data=False) if whole else read_changes(io, manifest)
    try:
        for entry in entries:
            if whole or entry.status == ADDED:
                kind = "delete_files" if entry.content else "data_files"
                found.by_kind[kind][entry.path] = entry.size_bytes
    except FileNotFoundError:
        return  # manifests go after the files they list


def old_metadata_files(metadata: TableMetadata, io: FileIO) -> Iterator[str]:
    """Metadata files that have dropped out of the log, found by the logs of those that are still in it.

    Each log names the 100 before it (`write.metadata.previous-versions-max`), so the oldest one leads further back.
    """
    logged = [entry.metadata_file for entry in metadata.metadata_log]
    seen = {normalised(path) for path in logged}
    while logged:
        older = [path for path in _log_of(logged[0], io) if normalised(path) not in seen]
        seen |= {normalised(path) for path in older}
        logged = [path for path in older if io.new_input(path).exists()]
        yield from logged


def _log_of(metadata_file: str, io: FileIO) -> list[str]:
    """The log of an old metadata file, oldest first; empty when it cannot be read (gone, or compressed)."""
    try:
        with io.new_input(metadata_file).open() as stream:
            data = json.loads(stream.read())
        return [str(entry["metadata-file"]) for entry in data.get("metadata-log", ())]
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return []
