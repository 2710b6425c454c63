"""Deletes what an expiry made unreachable, a number of files at a time, looking at the table anew before each.

Restartable: data files go first and what leads to them after, the journal last, so that a run that was killed is
finished by the next. What cannot be deleted is written into the journal and tried again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from pyiceberg.table import Table

from icesize import failpoints
from icesize.table.catalog.locations import FOLDER_PROPERTIES, is_addressable, is_inside
from icesize.table.cleanup.expired_files import Candidates, candidates_of, old_metadata_files
from icesize.table.cleanup.journal import JOURNAL, Journal
from icesize.table.cleanup.lost_refs import LOST_REFS, lost_refs
from icesize.table.storage.bulk_delete import FILES_BETWEEN_CHECKS, delete_all, deleter
from icesize.table.storage.reachable import Reachable, read_reachable


@dataclass
class Deletions:
    """What became of the files: deleted by kind, their bytes where the table knew them, and what was left alone."""

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
    progress: Callable[[int, int], None]
    files_between_checks: int = FILES_BETWEEN_CHECKS
    _total: int = 0

    def run(self, journal: Journal, journal_location: str, others: Iterable[str] = ()) -> Deletions:
        """Delete what nothing reaches, then the journal and `others`, which attempts left that did not land.

        Raises when the table's own files cannot be read.
        """
        table = self.reload()
        if why := _not_yet(table, journal, journal_location):
            return Deletions(stopped=why)
        if lost := lost_refs(table, journal, journal_location):
            # for good: the next expiry must not delete them either
            delete_all([journal_location], deleter(table.io), 1)
            return Deletions(stopped=LOST_REFS.format(", ".join(lost)))
        kept = read_reachable(table.metadata, table.metadata_location, table.io)
        due, deletions = due_files(table, journal, kept)
        self._total = len(due)
        for kind, files in due.by_kind.items():
            for batch in _batches(files, self.files_between_checks):
                failpoints.reach("before-delete")
                # again: what has become reachable since stays, and credentials are fresh
                table = self.reload()
                if why := _not_yet(table, journal, journal_location):
                    deletions.stopped = why
                    return deletions
                kept.add_snapshots(table.metadata.snapshots, table.io)
                kept.add_metadata(table.metadata, table.metadata_location)
                self._delete(table, kind, {p: n for p, n in batch.items() if p not in kept}, deletions)
        self._close(table, journal, journal_location, deletions)
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

    def _close(self, table: Table, journal: Journal, location: str, deletions: Deletions) -> None:
        if deletions.failed:
            Journal(journal.table_uuid, files=deletions.failed).write(table.io, location)
        else:
            delete_all([location], deleter(table.io), 1)


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
