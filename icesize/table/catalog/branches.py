"""Branches of a table: which one commits go to, and the table as its readers see it."""

from __future__ import annotations

from copy import copy

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import SnapshotLogEntry

from icesize.errors import TableError
from icesize.planning.files import MAIN
from icesize.planning.retention.ancestry import TOMBSTONE_BRANCH
from icesize.table.catalog.history import known_ancestors


def on_branch(table: Table, branch: str, name: str) -> Table:
    """Return a table as readers of a branch see it: the branch's head is current, and its history is the table's.

    Whatever reads the current snapshot then reads the branch. Refs stay unchanged. Commits name the branch themselves.
    Raises TableError if the table has no branch of this name that rows belong to; it always has `main`.
    """
    if branch == MAIN:
        return table
    metadata = table.metadata
    _check(metadata, branch, name)
    line = [SnapshotLogEntry(snapshot_id=s.snapshot_id, timestamp_ms=s.timestamp_ms)
            for s in known_ancestors(metadata, branch)]  # fmt: skip
    shown = copy(table)
    current = {"current_snapshot_id": metadata.refs[branch].snapshot_id, "snapshot_log": line[::-1]}
    shown.metadata = metadata.model_copy(update=current)
    return shown


def _check(metadata: TableMetadata, branch: str, table: str) -> None:
    ref = metadata.refs.get(branch)
    if ref and ref.snapshot_ref_type == SnapshotRefType.BRANCH and branch != TOMBSTONE_BRANCH:
        return
    if ref is None:
        why = f"there is none. Create it: ALTER TABLE {table} CREATE BRANCH `{branch}`"
    elif branch == TOMBSTONE_BRANCH:
        why = "it has the deletes that upserts remember. Name another branch"
    else:
        why = "it is a tag. Name a branch"
    raise TableError(f"Cannot use branch '{branch}' of '{table}': {why}", table=table, branch=branch)
