"""Removes delete files that apply to no live data file, in one REPLACE that changes no row and no data file.

Merges remove the delete files that dangle after them. Engines that rewrite or drop data files mostly leave theirs, and
every scan that plans with them reads their entries.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from icesize.concurrency import concurrently
from icesize.environment import Stopwatch, rounded
from icesize.errors import RewriteFailed
from icesize.maintenance.table_context import TableContext
from icesize.parquet.deletes.positions import paths_named
from icesize.planning.files import DeleteFile
from icesize.results import OneCommit
from icesize.storage.table_storage import Storage
from icesize.table.commit.steps.remove_dangling_deletes import RemoveDanglingDeletes
from icesize.units import format_count

LOG = logging.getLogger("icesize")


@dataclass(frozen=True)
class DanglingReport(OneCommit, job="dangling deletes"):
    """Outcome of a removal of dangling delete files.

    Attributes:
        table: The full name of the table.
        snapshot_ids: The snapshot of the commit; empty if there were no such files, or after a dry run.
        delete_files: Delete files removed, or found by a dry run. Removed files stay in storage until the older
            snapshots have expired.
        bytes: Bytes of these files.
        dry_run: True after a dry run that found such files.
        notes: Sentences about files that could not be checked, and warnings about the table's settings.
        seconds: Seconds of each phase, and `total`.
    """

    table: str = ""
    snapshot_ids: tuple[int, ...] = ()
    delete_files: int = 0
    bytes: int = 0
    dry_run: bool = False
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)


def remove_dangling_deletes(context: TableContext, *, dry_run: bool = False) -> DanglingReport:
    """Remove every delete file that applies to no live data file, in one commit of metadata only.

    Position delete files that may name several data files are read to check this. A file that cannot be read stays, and
    the report notes it. Raises UnsupportedTable, TableError, CommitConflict (nothing is visible) or CommitStateUnknown.
    """
    current, watch = context.load(), Stopwatch(context.environment)
    storage, unread = Storage.of(current.table.io), list[DeleteFile]()

    @cache  # read each file once, even if the commit takes several attempts
    def named(delete: DeleteFile) -> frozenset[str] | None:
        try:
            return paths_named(delete, storage)
        except RewriteFailed as error:
            LOG.info("%s", error)
            unread.append(delete)
            return None

    def names(deletes: Sequence[DeleteFile]) -> dict[str, frozenset[str]]:
        found = zip(deletes, concurrently(named, deletes), strict=True)
        return {delete.path: paths for delete, paths in found if paths is not None}

    step = RemoveDanglingDeletes(names)
    outcome = context.commit(current, step, "removing such files again is safe", dry_run=dry_run)
    watch.lap("commit")
    facts = outcome.done[0].facts if outcome.done else {}
    unknown = f"{format_count(len(unread), 'position delete file')} could not be read"
    notes = (f"{unknown}: such a file goes only if all data files are newer",) if unread else ()
    return DanglingReport(
        current.name,
        () if dry_run else outcome.snapshot_ids,
        int(facts.get("removed-delete-files", 0)),
        int(facts.get("removed-files-size", 0)),
        dry_run=dry_run and bool(outcome.done),
        notes=(*current.warnings, *notes),
        seconds=rounded(watch.seconds),
    )
