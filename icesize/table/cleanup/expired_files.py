"""Files that only expired snapshots needed, and their deletion.

Candidates come from the manifests of expired snapshots, without the files that a kept snapshot reaches. A manifest that
a kept snapshot still lists is not read, because its files are live. If the parent of an expired snapshot is known, only
the files that its manifests ADDED matter: the parent's manifests listed all others already. Manifests of icesize, and
many of other engines, list these files first, so most of a manifest need not be decoded. If the parent is gone, the
whole manifest is read. A file that this reasoning misses stays as an orphan. Reachability alone decides on candidates.

The deletion loads the table again before each thousand files, and it can be restarted. Data files go first, the files
that refer to them later, and the journal last, so the next run finishes a killed one. Files that cannot be deleted are
written into the journal and tried again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeVar

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from icesize.concurrency import concurrently
from icesize.environment import Environment
from icesize.events import Progress
from icesize.storage.locations import normalised
from icesize.storage.table_storage import Storage
from icesize.table.catalog.metadata_files import read_metadata_file
from icesize.table.cleanup.journal import JOURNAL, LOST_REFS, Expired, Journal, rivals_of
from icesize.table.cleanup.may_delete import NEEDED, Others, Owners, own_folders
from icesize.table.manifests.entries import ADDED
from icesize.table.manifests.file_columns import read_facts
from icesize.table.manifests.manifest_lists import read_list
from icesize.table.storage.bulk_delete import Deleter, Deletion, delete_all, deleter
from icesize.table.storage.identity import LocalFiles
from icesize.table.storage.reachable import READERS, Reachable

AnyListed = TypeVar("AnyListed")

KINDS = ("data_files", "delete_files", "manifests", "manifest_lists", "other_files", "metadata_files")
"""Kinds of files in the order of their deletion.

Files that refer to others go after them, so that the next expiry finds the rest after a crash.
"""

LISTING_PAYS = 12
"""Most metadata files that are looked up one by one: S3's price of a listing is that of 12 such requests."""

_SHARED = ("data_files", "delete_files")
"""Kinds of files that two tables may have in common. All others name the table's UUID."""

Candidates = dict[str, tuple[str, int]]
"""Files to delete unless something reaches them: location, as the table spells it, to kind and bytes."""


def candidates_of(journal: Journal, kept: Reachable, kept_ids: Iterable[int], io: FileIO) -> Candidates:
    """Return files of expired snapshots that `kept` does not reach. Files that an earlier run has deleted are skipped.

    Reads a few manifest lists and manifests at a time.
    """
    found: Candidates = {}
    ids = {e.snapshot_id for e in journal.expired} | set(kept_ids)
    due = [e for e in journal.expired if e.manifest_list not in kept]
    # manifests to read; True means the whole manifest, otherwise only the files that it ADDED
    to_read: dict[str, tuple[ManifestFile, bool]] = {}

    def listed(expired: Expired) -> list[ManifestFile] | None:
        manifests = read_list(io, expired.manifest_list, {})
        return _what_is_left(m for m in manifests if m.manifest_path not in to_read and m.manifest_path not in kept)

    for expired, manifests in zip(due, concurrently(listed, due, READERS, READERS), strict=True):
        if manifests is None:
            continue
        base = expired.parent_id is None or expired.parent_id not in ids
        for manifest in manifests:
            found[manifest.manifest_path] = "manifests", manifest.manifest_length
            if base or manifest.added_snapshot_id == expired.snapshot_id:
                to_read.setdefault(manifest.manifest_path, (manifest, base))
        found[expired.manifest_list] = "manifest_lists", 0
    for entries in concurrently(lambda each: _what_is_left(_files(io, *each)), to_read.values(), READERS, READERS):
        found.update(entries or ())
    others = dict.fromkeys(journal.files, ("other_files", 0))
    return {path: what for path, what in (others | found).items() if path not in kept}


def _files(io: FileIO, manifest: ManifestFile, whole: bool) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield location, kind and bytes of all live files in a manifest, or only of the files that it ADDED."""
    facts = read_facts(io, manifest, changes_only=not whole)
    rows = facts.live if whole else np.flatnonzero(facts.columns.status == ADDED)
    kind = "data_files" if manifest.content == ManifestContent.DATA else "delete_files"
    sizes = facts.columns.size_bytes[rows].tolist()
    yield from ((path, (kind, size_bytes)) for path, size_bytes in zip(facts.paths(rows), sizes, strict=True))


def _what_is_left(listed: Iterable[AnyListed]) -> list[AnyListed] | None:
    """Return the entries; None for a list or manifest that an earlier run has deleted, after the files in it."""
    try:
        return list(listed)
    except FileNotFoundError:
        return None


def old_metadata_files(metadata: TableMetadata, io: FileIO) -> Iterator[str]:
    """Yield metadata files that the log no longer names; the logs of older metadata files name them.

    Each log names the 100 before it (`write.metadata.previous-versions-max`), so the oldest one leads further back.
    Raises TableError for a damaged file.
    """
    logged = [entry.metadata_file for entry in metadata.metadata_log]
    seen = {normalised(path) for path in logged}
    while logged:
        # the log of the oldest known file, oldest entry first; empty if that file is gone
        log = (read_metadata_file(io, logged[0]) or {}).get("metadata-log", ())
        older = [path for entry in log if normalised(path := str(entry["metadata-file"])) not in seen]
        seen |= {normalised(path) for path in older}
        logged = _existing(older, Storage.of(io))
        yield from logged


def _existing(files: list[str], storage: Storage) -> list[str]:
    """Return the metadata files that exist: by a listing if there are many, which all lie in one object store's folder.

    Object stores list names in their order. Names of metadata files begin with a number of five digits, so those of
    few other files come before them.
    """
    folder = files[0].rpartition("/")[0] if files else ""
    in_folder = all(file.rpartition("/")[0] == folder for file in files)
    if len(files) > LISTING_PAYS and in_folder and storage.lists_in_order(folder):
        last = max(files)
        with suppress(OSError):  # the right to list may be missing
            listed = {each.location for each in takewhile(lambda each: each.location <= last, storage.list(folder))}
            return [file for file in files if file in listed]
    there = concurrently(storage.exists, files)
    return [file for file, exists in zip(files, there, strict=True) if exists]


@dataclass
class Deletions:
    """Outcome of a deletion: deleted files by kind, their bytes if the table knew them, and files that stay.

    `expired_before` are snapshots of the journal that another expiry removed first. `stay` counts files by the reason
    that keeps them, and `other_tables` names those that need some. `failures` has a sentence for each file that
    could not be deleted.
    """

    expired_before: frozenset[int] = frozenset()
    deleted: Counter[str] = field(default_factory=Counter)
    bytes_deleted: int = 0
    stay: Counter[str] = field(default_factory=Counter)
    other_tables: str = ""
    failures: Mapping[str, str] = field(default_factory=dict)
    stopped: str = ""

    def count(self, files: Collection[tuple[str, int]]) -> None:
        """Count files of these kinds and bytes as deleted."""
        self.deleted.update(kind for kind, _ in files)
        self.bytes_deleted += sum(size_bytes for _, size_bytes in files)


FindOthers = Callable[[Table], Others]
"""Returns the files of other tables, and is called only if a file is to be deleted."""


def due_files(
    table: Table, journal: Journal, kept: Reachable, find_others: FindOthers
) -> tuple[Candidates, Deletions, Owners]:
    """Return the files to delete, the counts of files that stay, and the owners that decided.

    Files outside of the table's directories may belong to another table. PyIceberg would read some names as other
    files.
    """
    found = candidates_of(journal, kept, (s.snapshot_id for s in table.metadata.snapshots), table.io)
    found |= dict.fromkeys(old_metadata_files(table.metadata, table.io), ("metadata_files", 0))
    owners = Owners(table.location(), kept, tuple(own_folders(table)), local=LocalFiles.of(table))
    if any(kind in _SHARED for kind, _ in found.values()):
        owners.others = find_others(table)
        owners.local.add(kept)
    reasons = {path: owners.why_stays(path) for path in found}
    due = {path: what for path, what in found.items() if not reasons[path]}
    stay = Counter(why for why in reasons.values() if why and why != NEEDED)
    return due, Deletions(stay=stay, other_tables=owners.others.named()), owners


@dataclass(frozen=True)
class ExpiryCleanup:
    """Deletes the files that only expired snapshots needed.

    `reload` returns the current table. The observer of the `environment` gets the number of files tried so far, and the
    number of all files.
    """

    reload: Callable[[], Table]
    find_others: FindOthers
    environment: Environment
    max_concurrent_deletes: int

    def run(self, journal: Journal, location: str, attempts: Iterable[str]) -> Deletions:
        """Delete the files of a journal that nothing reaches, then the journal, then those of failed `attempts`.

        Raises if the table's own files cannot be read.
        """
        table = self.reload()
        rivals = rivals_of(table, journal, location)
        if why := _not_yet(table, journal, location):
            return Deletions(rivals.expired, stopped=why)
        if rivals.lost_refs:
            # permanently: without the journal, the next expiry does not delete these files either
            delete_all([location], table.io, self.environment)
            return Deletions(rivals.expired, stopped=LOST_REFS.format(", ".join(rivals.lost_refs)))
        if rivals.expired and rivals.journal and (unfinished := Journal.read(table.io, rivals.journal)):
            # the other expiry stops when the table names this journal, so this one deletes its files
            journal, attempts = journal.together_with(unfinished), (*attempts, rivals.journal)
            journal.write(table.io, location)
        deletions = self._deleted(table, journal, location, [path for path in attempts if path != location])
        deletions.expired_before = rivals.expired
        return deletions

    def _deleted(self, table: Table, journal: Journal, location: str, other_journals: Sequence[str]) -> Deletions:
        kept = Reachable()
        kept.add(table.metadata, table.metadata_location, table.io)
        due, deletions, owners = due_files(table, journal, kept, self.find_others)

        def look() -> Deleter | None:
            """Load the table with fresh credentials. Files that have become reachable stay."""
            nonlocal table
            table = self.reload()
            deletions.stopped = _not_yet(table, journal, location)
            if deletions.stopped:
                return None
            kept.add(table.metadata, table.metadata_location, table.io)
            owners.local.add(kept)
            return deleter(table.io)

        def progress(done: int, total: int) -> None:
            self.environment.observe(Progress("expiry", done, total))

        deletion = Deletion(look, owners.why_stays, len(due), progress, self.max_concurrent_deletes, self.environment)
        done = all(deletion.run([path for path, what in due.items() if what[0] == kind]) for kind in KINDS)
        deletions.count([due[path] for path in deletion.tried if path not in deletion.failures])
        deletions.failures = deletion.failures
        if done:
            if deletions.failures:
                Journal(journal.table_uuid, files=tuple(deletions.failures)).write(table.io, location)
            else:
                delete_all([location], table.io, self.environment)
            delete_all(other_journals, table.io, self.environment)
        return deletions


def _not_yet(table: Table, journal: Journal, location: str) -> str:
    """Return the reason that the catalog's state forbids deletions for this journal; empty if they are safe.

    A table that names this journal is in a state after the expiry. A later expiry names its own journal, which includes
    this one.
    """
    if str(table.metadata.table_uuid) != journal.table_uuid:
        return "the table was dropped and recreated: no file of it was deleted"
    expired = {each.snapshot_id for each in journal.expired}
    shows_them = any(snapshot.snapshot_id in expired for snapshot in table.metadata.snapshots)
    if shows_them or table.metadata.properties.get(JOURNAL) != location:
        return "the catalog shows another state than that of this expiry: the next one deletes what is left"
    return ""
