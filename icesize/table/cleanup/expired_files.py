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

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from icesize import failpoints
from icesize.table.catalog.history import read_metadata_file
from icesize.table.catalog.locations import FOLDER_PROPERTIES, is_addressable, is_inside, normalised
from icesize.table.cleanup.journal import JOURNAL, LOST_REFS, Expired, Journal, expired_before, lost_refs
from icesize.table.manifests.entries import ADDED
from icesize.table.manifests.facts import read_facts
from icesize.table.manifests.lists import read_list
from icesize.table.storage.bulk_delete import FILES_BETWEEN_CHECKS, delete_all, deleter
from icesize.table.storage.reachable import READERS, Reachable

Listed = TypeVar("Listed")

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

    def listed(expired: Expired) -> list[ManifestFile] | None:
        manifests = read_list(io, expired.manifest_list)
        return _what_is_left(m for m in manifests if m.manifest_path not in to_read and m.manifest_path not in kept)

    with ThreadPoolExecutor(READERS) as pool:
        for expired, manifests in zip(due, pool.map(listed, due), strict=True):
            if manifests is None:
                continue
            base = expired.parent_id is None or expired.parent_id not in ids
            for manifest in manifests:
                found.by_kind["manifests"][manifest.manifest_path] = manifest.manifest_length
                if base or manifest.added_snapshot_id == expired.snapshot_id:
                    to_read.setdefault(manifest.manifest_path, (manifest, base))
            found.by_kind["manifest_lists"][expired.manifest_list] = 0
        for entries in pool.map(lambda each: _what_is_left(_files(io, *each)), to_read.values()):
            for kind, path, size_bytes in entries or ():
                found.by_kind[kind][path] = size_bytes
    found.by_kind["other_files"].update(dict.fromkeys(journal.files, 0))
    return found.where(lambda path: path not in kept)


def _files(io: FileIO, manifest: ManifestFile, whole: bool) -> Iterator[tuple[str, str, int]]:
    """Kind, location and bytes of the files in a manifest, or only of those that it ADDED."""
    facts = read_facts(io, manifest, changes_only=not whole)
    rows = facts.live if whole else np.flatnonzero(facts.columns.status == ADDED)
    kind = "data_files" if manifest.content == ManifestContent.DATA else "delete_files"
    sizes = facts.columns.size_bytes[rows].tolist()
    yield from ((kind, path, size_bytes) for path, size_bytes in zip(facts.paths(rows), sizes, strict=True))


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
    with ThreadPoolExecutor(READERS) as pool:
        while logged:
            # its log, oldest first; none when it is gone
            log = (read_metadata_file(io, logged[0]) or {}).get("metadata-log", ())
            older = [path for entry in log if normalised(path := str(entry["metadata-file"])) not in seen]
            seen |= {normalised(path) for path in older}
            there = pool.map(lambda path: io.new_input(path).exists(), older)
            logged = [path for path, exists in zip(older, there, strict=True) if exists]
            yield from logged


@dataclass
class Deletions:
    """What became of the files: deleted by kind, their bytes where the table knew them, and what was left alone.

    `expired_before` are snapshots of the journal that another expiry removed first.
    """

    expired_before: frozenset[int] = frozenset()
    deleted: dict[str, int] = field(default_factory=dict)
    bytes_deleted: int = 0
    outside: int = 0
    unaddressable: int = 0
    failed: tuple[str, ...] = ()
    first_failure: str = ""
    stopped: str = ""


def own_folders(table: Table) -> list[str]:
    """Where a table's files lie: its location, and the folders that its properties name for data and metadata."""
    properties = table.metadata.properties
    return [table.location(), *(properties[key] for key in FOLDER_PROPERTIES if key in properties)]


def due_files(table: Table, journal: Journal, kept: Reachable) -> tuple[Candidates, Deletions]:
    """Files to delete, and how many are left alone.

    Those outside of the table's folders may be somebody else's; by some names PyIceberg would delete another file.
    """
    ids = (s.snapshot_id for s in table.metadata.snapshots)
    found = candidates_of(journal, kept, ids, table.io)
    found.by_kind["metadata_files"].update(dict.fromkeys(old_metadata_files(table.metadata, table.io), 0))
    folders = own_folders(table)
    inside = found.where(lambda path: any(is_inside(path, folder) for folder in folders))
    due = inside.where(is_addressable)
    return due, Deletions(outside=len(found) - len(inside), unaddressable=len(inside) - len(due))


@dataclass
class ExpiredFilesDeletion:
    """Deletes the files of one journal. `reload` gives the table as it is now; `progress` hears how many of
    all files were tried so far, and how many there are; the table is looked at before `files_between_checks` each."""

    reload: Callable[[], Table]
    max_concurrent_deletes: int
    progress: Callable[[int, int], object]
    files_between_checks: int = FILES_BETWEEN_CHECKS
    _total: int = 0

    def run(self, journal: Journal, journal_location: str, others: Iterable[str] = ()) -> Deletions:
        """Delete what nothing reaches, then the journal and `others`, which attempts left that did not land.

        Raises when the table's own files cannot be read.
        """
        table = self.reload()
        before, other = expired_before(table, journal, journal_location)
        if why := _not_yet(table, journal, journal_location):
            return Deletions(before, stopped=why)
        if lost := lost_refs(table, journal, journal_location):
            # for good: the next expiry must not delete them either
            delete_all([journal_location], deleter(table.io), 1)
            return Deletions(before, stopped=LOST_REFS.format(", ".join(lost)))
        if before and other and (unfinished := Journal.read(table.io, other)):
            # the other one stops where the table names this journal
            journal, others = journal.together_with(unfinished), (*others, other)
            journal.write(table.io, journal_location)
        kept = Reachable()
        kept.add(table.metadata, table.metadata_location, table.io)
        due, deletions = due_files(table, journal, kept)
        deletions.expired_before = before
        self._total = len(due)
        for kind, files in due.by_kind.items():
            for batch in _batches(files, self.files_between_checks):
                failpoints.reach("before-delete")
                # again: what has become reachable since stays, and credentials are fresh
                table = self.reload()
                if why := _not_yet(table, journal, journal_location):
                    deletions.stopped = why
                    return deletions
                kept.add(table.metadata, table.metadata_location, table.io)
                self._delete(table, kind, {p: n for p, n in batch.items() if p not in kept}, deletions)
        if deletions.failed:
            Journal(journal.table_uuid, files=deletions.failed).write(table.io, journal_location)
        else:
            delete_all([journal_location], deleter(table.io), 1)
        delete_all((path for path in others if path != journal_location), deleter(table.io), 1)
        return deletions

    def forget(self, journals: Collection[str]) -> None:
        """Remove journals of attempts that have not landed."""
        if journals:
            delete_all(journals, deleter(self.reload().io), 1)

    def _delete(self, table: Table, kind: str, files: dict[str, int], deletions: Deletions) -> None:
        tried = sum(deletions.deleted.values()) + len(deletions.failed)
        result = delete_all(
            files, deleter(table.io), self.max_concurrent_deletes, lambda done: self.progress(done, self._total), tried
        )
        deletions.deleted[kind] = deletions.deleted.get(kind, 0) + result.count
        deletions.bytes_deleted += sum(files.values()) - sum(files[path] for path in result.failed)
        deletions.failed += tuple(sorted(result.failed))
        deletions.first_failure = deletions.first_failure or result.first_failure


def _not_yet(table: Table, journal: Journal, location: str) -> str:
    """Why nothing of this journal may be deleted from what the catalog shows; empty when all is well.

    The table naming this journal proves that the state is not from before the expiry. A later expiry names its own,
    and has taken this one over.
    """
    if str(table.metadata.table_uuid) != journal.table_uuid:
        return "the table was dropped and created again: no file of it was deleted"
    expired = {each.snapshot_id for each in journal.expired}
    shows_them = any(snapshot.snapshot_id in expired for snapshot in table.metadata.snapshots)
    if shows_them or table.metadata.properties.get(JOURNAL) != location:
        return "the catalog shows another state than that of this expiry: the next one deletes what is left"
    return ""


def _batches(files: dict[str, int], size: int) -> Iterator[dict[str, int]]:
    items = iter(files.items())
    while batch := dict(itertools.islice(items, size)):
        yield batch
