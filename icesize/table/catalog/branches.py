"""Branches of a table: which one commits go to, and the table as its readers see it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import SnapshotLogEntry

from icesize.errors import TableError
from icesize.planning.files import MAIN
from icesize.planning.retention.ancestry import TOMBSTONE_BRANCH
from icesize.table.catalog.history import known_ancestors

WAP_ENABLED, WAP_BRANCH = "write.wap.enabled", "spark.wap.branch"
WAP_ID = "spark.wap.id"
"""Write-audit-publish in Spark: the table's property, and the session's settings that then count."""


def has_wap(metadata: TableMetadata) -> bool:
    """Return whether sessions may redirect the commits of a table (write-audit-publish)."""
    return metadata.properties.get(WAP_ENABLED, "").lower() == "true"


def branch_of_session(metadata: TableMetadata, spark_conf: Mapping[str, str]) -> str | None:
    """Return the branch that a session of Spark redirects its commits to; None without one."""
    return spark_conf.get(WAP_BRANCH) or None if has_wap(metadata) else None


def on_branch(table: Table, branch: str, name: str, *, creates: bool = False) -> Table:
    """Return a table as readers of a branch see it: the branch's head is current, and its history is the table's.

    Whatever reads the current snapshot then reads the branch. Refs stay unchanged. Commits name the branch themselves.
    With `creates`, a branch that is missing is as `main` until its first commit. Raises TableError if the table has no
    branch of this name that rows belong to; it always has `main`.
    """
    metadata = table.metadata
    if branch == MAIN or (creates and branch not in metadata.refs):
        return table
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
