"""Deletes what an expiry made unreachable, in bunches, looking at the table anew before each.

Restartable: data files go first and what leads to them after, the journal last, so that a run that was killed is
finished by the next. What cannot be deleted is written into the journal and tried again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from pyiceberg.table import Table

from icesize import failpoints
from icesize.table.expired_files import Candidates, candidates_of, old_metadata_files
from icesize.table.journal import Journal
from icesize.table.locations import FOLDER_PROPERTIES, is_inside
from icesize.table.lost_refs import lost_refs
from icesize.table.reachable import Reachable, read_reachable
from icesize.table.sweep import deleter, is_missing, sweep

BUNCH = 1_000
"""Files between two looks at the table, as in Iceberg's bulk deletes."""


_LOST = (
    "while snapshots were being expired somebody made {} on one of them, and the catalog removed both: no file was "
    "deleted, so an older metadata file still leads to the snapshot; orphan cleanup removes what nobody wants back"
)


@dataclass
class Deletions:
    """What became of the files: deleted by kind, their bytes where the table knew them, and what was left alone."""

    deleted: dict[str, int] = field(default_factory=dict)
    bytes_deleted: int = 0
    outside: int = 0
    failed: tuple[str, ...] = ()
    first_failure: str = ""
    stopped: str = ""


def own_folders(table: Table) -> list[str]:
    """Where a table's files lie: its location, and the folders that its properties name for data and metadata."""
    properties = table.metadata.properties
    return [table.location(), *(properties[key] for key in FOLDER_PROPERTIES if key in properties)]


def due_files(table: Table, journal: Journal, kept: Reachable) -> tuple[Candidates, int]:
    """Files to delete, and how many lie outside of the table's folders: they may be somebody else's and stay."""
    ids = (s.snapshot_id for s in table.metadata.snapshots)
    found = candidates_of(journal, kept, ids, table.io)
    found.by_kind["metadata_files"].update(dict.fromkeys(old_metadata_files(table.metadata, table.io), 0))
    folders = own_folders(table)
    inside = Candidates(
        {
            kind: {path: size for path, size in files.items() if any(is_inside(path, f) for f in folders)}
            for kind, files in found.by_kind.items()
        }
    )
    return inside, len(found) - len(inside)


@dataclass
class Sweeper:
    """Deletes the files of one journal. `reload` gives the table as it is now; `progress` hears how many of
    all files were tried so far, and how many there are."""

    reload: Callable[[], Table]
    max_concurrent_deletes: int
    progress: Callable[[int, int], None]
    _total: int = 0

    def run(self, journal: Journal, journal_location: str | None, others: Iterable[str] = ()) -> Deletions:
        """Delete what nothing reaches, then the journal and `others`, which attempts left that did not land.

        Raises when the table's own files cannot be read.
        """
        table = self.reload()
        swept = Deletions()
        if why := _not_yet(table, journal):
            swept.stopped = why
            return swept
        if journal_location is not None and (lost := lost_refs(table, journal, journal_location)):
            swept.stopped = _LOST.format(", ".join(lost))
            # for good: the next expiry must not delete them either
            sweep([journal_location], deleter(table.io), 1)
            return swept
        kept = read_reachable(table.metadata, table.metadata_location, table.io)
        due, swept.outside = due_files(table, journal, kept)
        self._total = len(due)
        for kind, files in due.by_kind.items():
            for bunch in _bunches(files):
                failpoints.reach("before-delete")
                if not self._still_the_table(journal, kept, swept):
                    return swept
                self._delete(table, kind, {p: n for p, n in bunch.items() if p not in kept}, swept)
        self._close(table, journal, journal_location, swept)
        sweep((path for path in others if path != journal_location), deleter(table.io), 1)
        return swept

    def _still_the_table(self, journal: Journal, kept: Reachable, swept: Deletions) -> bool:
        """Look again: what has become reachable since stays."""
        table = self.reload()
        if str(table.metadata.table_uuid) != journal.table_uuid:
            swept.stopped = "the table was dropped and created again meanwhile: the rest was left alone"
            return False
        kept.add_snapshots(table.metadata.snapshots, table.io)
        kept.add_metadata(table.metadata, table.metadata_location)
        return True

    def _delete(self, table: Table, kind: str, files: dict[str, int], swept: Deletions) -> None:
        delete = deleter(table.io)
        failed: list[str] = []

        def delete_one(path: str) -> None:
            try:
                delete(path)
            except Exception as error:
                if not is_missing(error):
                    failed.append(path)
                raise

        tried = sum(swept.deleted.values()) + len(swept.failed)
        result = sweep(
            files, delete_one, self.max_concurrent_deletes, lambda done: self.progress(tried + done, self._total)
        )
        swept.deleted[kind] = swept.deleted.get(kind, 0) + result.deleted
        swept.bytes_deleted += sum(files.values()) - sum(files[path] for path in failed)
        swept.failed += tuple(sorted(failed))
        swept.first_failure = swept.first_failure or result.first_failure

    def _close(self, table: Table, journal: Journal, location: str | None, swept: Deletions) -> None:
        if location is None:
            return
        if swept.failed:
            Journal(journal.table_uuid, files=swept.failed).write(table.io, location)
        else:
            sweep([location], deleter(table.io), 1)


def _not_yet(table: Table, journal: Journal) -> str:
    """Why nothing of this journal may be deleted from what the catalog shows; empty when all is well."""
    if str(table.metadata.table_uuid) != journal.table_uuid:
        return "the table was dropped and created again: nothing was deleted"
    expired = {each.snapshot_id for each in journal.expired}
    if any(snapshot.snapshot_id in expired for snapshot in table.metadata.snapshots):
        return "the catalog still shows snapshots that have expired: nothing was deleted, the next expiry goes on"
    return ""


def _bunches(files: dict[str, int]) -> Iterator[dict[str, int]]:
    items = iter(files.items())
    while bunch := dict(itertools.islice(items, BUNCH)):
        yield bunch
