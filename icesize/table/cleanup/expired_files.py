"""Which files only expired snapshots needed, and their deletion.

They are candidates from the manifests of these, minus what any kept snapshot reaches. A manifest that a kept snapshot
still lists needs no look: its files live. Of the others, those of a snapshot whose parent is known only matter for the
files it ADDED, as everything else in them was in the parent's manifests already; our manifests, and many of other
engines, list these first, so most of a manifest need not be decoded. Where the parent is gone the whole manifest is
read. A file that this reasoning misses stays as an orphan; whether a candidate goes is decided by reachability alone.

Deleting looks at the table anew before each thousand files, and is restartable: data files go first and what leads to
them after, the journal last, so that a run that was killed is finished by the next. What cannot be deleted is written
into the journal and tried again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from icesize.concurrency import concurrently
from icesize.environment import MAX_CONCURRENT_DELETES
from icesize.table.catalog.history import read_metadata_file
from icesize.table.catalog.locations import FOLDER_PROPERTIES, is_addressable, is_inside, normalised
from icesize.table.cleanup.deletion import Deletion
from icesize.table.cleanup.journal import JOURNAL, LOST_REFS, Expired, Journal, rivals_of
from icesize.table.manifests.entries import ADDED
from icesize.table.manifests.facts import read_facts
from icesize.table.manifests.lists import read_list
from icesize.table.storage.bulk_delete import FILES_BETWEEN_CHECKS, delete_all, deleter
from icesize.table.storage.reachable import READERS, Reachable

Listed = TypeVar("Listed")

KINDS = ("data_files", "delete_files", "manifests", "manifest_lists", "other_files", "metadata_files")
"""Kinds of files in the order in which they are deleted: what leads to others goes after them, so that an expiry that
was killed finds the rest again."""


Candidates = dict[str, tuple[str, int]]
"""Files to be deleted unless something reaches them: location, as the table spells it -> kind and bytes."""


def candidates_of(journal: Journal, kept: Reachable, kept_ids: Iterable[int], io: FileIO) -> Candidates:
    """Files of expired snapshots that `kept` does not reach. What an earlier run has deleted is passed over.

    Manifest lists and manifests are read a few at a time.
    """
    found: Candidates = {}
    ids = {e.snapshot_id for e in journal.expired} | set(kept_ids)
    due = [e for e in journal.expired if e.manifest_list not in kept]
    # manifests to be read, and whether whole
    to_read: dict[str, tuple[ManifestFile, bool]] = {}

    def listed(expired: Expired) -> list[ManifestFile] | None:
        manifests = read_list(io, expired.manifest_list)
        return _what_is_left(m for m in manifests if m.manifest_path not in to_read and m.manifest_path not in kept)

    for expired, manifests in zip(due, concurrently(listed, due, READERS), strict=True):
        if manifests is None:
            continue
        base = expired.parent_id is None or expired.parent_id not in ids
        for manifest in manifests:
            found[manifest.manifest_path] = "manifests", manifest.manifest_length
            if base or manifest.added_snapshot_id == expired.snapshot_id:
                to_read.setdefault(manifest.manifest_path, (manifest, base))
        found[expired.manifest_list] = "manifest_lists", 0
    for entries in concurrently(lambda each: _what_is_left(_files(io, *each)), to_read.values(), READERS):
        found.update(entries or ())
    others = dict.fromkeys(journal.files, ("other_files", 0))
    return {path: what for path, what in (others | found).items() if path not in kept}


def _files(io: FileIO, manifest: ManifestFile, whole: bool) -> Iterator[tuple[str, tuple[str, int]]]:
    """Location, kind and bytes of the files in a manifest, or only of those that it ADDED."""
    facts = read_facts(io, manifest, changes_only=not whole)
    rows = facts.live if whole else np.flatnonzero(facts.columns.status == ADDED)
    kind = "data_files" if manifest.content == ManifestContent.DATA else "delete_files"
    sizes = facts.columns.size_bytes[rows].tolist()
    yield from ((path, (kind, size_bytes)) for path, size_bytes in zip(facts.paths(rows), sizes, strict=True))


def _what_is_left(listed: Iterable[Listed]) -> list[Listed] | None:
    """None for a list or manifest that an earlier run has deleted: they go after the files that they list."""
    try:
        return list(listed)
    except FileNotFoundError:
        return None


def old_metadata_files(metadata: TableMetadata, io: FileIO) -> Iterator[str]:
    """Metadata files that have dropped out of the log, found by the logs of those that are still in it.

    Each log names the 100 before it (`write.metadata.previous-versions-max`), so the oldest one leads further back.
    Raises TableError for a damaged file.
    """
    logged = [entry.metadata_file for entry in metadata.metadata_log]
    seen = {normalised(path) for path in logged}
    while logged:
        # its log, oldest first; none when it is gone
        log = (read_metadata_file(io, logged[0]) or {}).get("metadata-log", ())
        older = [path for entry in log if normalised(path := str(entry["metadata-file"])) not in seen]
        seen |= {normalised(path) for path in older}
        there = concurrently(lambda path: io.new_input(path).exists(), older)
        logged = [path for path, exists in zip(older, there, strict=True) if exists]
        yield from logged


@dataclass
class Deletions:
    """What became of the files: deleted by kind, their bytes where the table knew them, and what was left alone.

    `expired_before` are snapshots of the journal that another expiry removed first.
    """

    expired_before: frozenset[int] = frozenset()
    deleted: Counter[str] = field(default_factory=Counter)
    bytes_deleted: int = 0
    outside: int = 0
    unaddressable: int = 0
    failed: tuple[str, ...] = ()
    first_failure: str = ""
    stopped: str = ""

    def count(self, files: Collection[tuple[str, int]]) -> None:
        """Take files of these kinds and bytes for deleted."""
        self.deleted.update(kind for kind, _ in files)
        self.bytes_deleted += sum(size_bytes for _, size_bytes in files)


def own_folders(table: Table) -> list[str]:
    """Where a table's files lie: its location, and the folders that its properties name for data and metadata."""
    properties = table.metadata.properties
    return [table.location(), *(properties[key] for key in FOLDER_PROPERTIES if key in properties)]


def due_files(table: Table, journal: Journal, kept: Reachable) -> tuple[Candidates, Deletions]:
    """Files to delete, and how many are left alone.

    Those outside of the table's folders may be somebody else's; by some names PyIceberg would delete another file.
    """
    found = candidates_of(journal, kept, (s.snapshot_id for s in table.metadata.snapshots), table.io)
    found |= dict.fromkeys(old_metadata_files(table.metadata, table.io), ("metadata_files", 0))
    folders = own_folders(table)
    inside = {path: what for path, what in found.items() if any(is_inside(path, folder) for folder in folders)}
    due = {path: what for path, what in inside.items() if is_addressable(path)}
    return due, Deletions(outside=len(found) - len(inside), unaddressable=len(inside) - len(due))


def delete_expired(
    reload: Callable[[], Table],
    journal: Journal,
    journal_location: str,
    others: Iterable[str] = (),
    *,
    progress: Callable[[int, int], object],
    max_concurrent_deletes: int = MAX_CONCURRENT_DELETES,
    files_between_checks: int = FILES_BETWEEN_CHECKS,
) -> Deletions:
    """Delete the files of a journal that nothing reaches, then the journal and `others`, of attempts that failed.

    `reload` gives the table as it is now; `progress` gets how many of all files were tried so far, and how many there
    are. Raises when the table's own files cannot be read.
    """
    table = reload()
    rivals = rivals_of(table, journal, journal_location)
    if why := _not_yet(table, journal, journal_location):
        return Deletions(rivals.expired, stopped=why)
    if rivals.lost_refs:
        # for good: the next expiry must not delete them either
        delete_all([journal_location], deleter(table.io), 1)
        return Deletions(rivals.expired, stopped=LOST_REFS.format(", ".join(rivals.lost_refs)))
    if rivals.expired and rivals.journal and (unfinished := Journal.read(table.io, rivals.journal)):
        # the other one stops where the table names this journal
        journal, others = journal.together_with(unfinished), (*others, rivals.journal)
        journal.write(table.io, journal_location)
    kept = Reachable()
    kept.add(table.metadata, table.metadata_location, table.io)
    due, deletions = due_files(table, journal, kept)
    deletions.expired_before = rivals.expired

    def look() -> tuple[Callable[[str], None], Callable[[str], bool]] | None:
        """What has become reachable since stays, and credentials are fresh."""
        nonlocal table
        table = reload()
        deletions.stopped = _not_yet(table, journal, journal_location)
        if deletions.stopped:
            return None
        kept.add(table.metadata, table.metadata_location, table.io)
        return deleter(table.io), kept.__contains__

    deletion = Deletion(look, len(due), progress, max_concurrent_deletes, files_between_checks)
    done = all(deletion.run([path for path, what in due.items() if what[0] == kind]) for kind in KINDS)
    failed = set(deletion.failed)
    deletions.count([due[path] for path in deletion.tried if path not in failed])
    deletions.failed, deletions.first_failure = deletion.failed, deletion.first_failure
    if not done:
        return deletions
    if deletions.failed:
        Journal(journal.table_uuid, files=deletions.failed).write(table.io, journal_location)
    else:
        delete_all([journal_location], deleter(table.io), 1)
    delete_all((path for path in others if path != journal_location), deleter(table.io), 1)
    return deletions


def _not_yet(table: Table, journal: Journal, location: str) -> str:
    """Why nothing of this journal may be deleted from what the catalog shows; empty when all is well.

    The table naming this journal proves that the state is not from before the expiry. A later expiry names its own,
    and has taken this one over.
    """
    if str(table.metadata.table_uuid) != journal.table_uuid:
        return "the table was dropped and recreated: no file of it was deleted"
    expired = {each.snapshot_id for each in journal.expired}
    shows_them = any(snapshot.snapshot_id in expired for snapshot in table.metadata.snapshots)
    if shows_them or table.metadata.properties.get(JOURNAL) != location:
        return "the catalog shows another state than that of this expiry: the next one deletes what is left"
    return ""
