"""Entries of a snapshot summary: files and rows under Iceberg's keys, the commit under icesize's keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.planning.files import DeleteFile, FileFact

RUN_ID = "icesize.run-id"
"""Snapshot summary key that identifies one change through all its attempts."""
KIND = "icesize.kind"
"""Snapshot summary key: the kind of the step that made the snapshot, a value of `CommitKind`."""
LEDGER = "icesize.ledger"
"""Snapshot summary key: the ledger entry of the committed batch, for users and for `versions`."""
BASE_ID = "icesize.base-snapshot-id"
"""Snapshot summary key of a merge: the snapshot that it was planned on; the plan did not consider later ones."""
SECONDS = "icesize.seconds"
"""Snapshot summary key of a batch or of merges: seconds of work before the commit."""
SMALL_FILES_MAX = "icesize.small-files-max"
"""Snapshot summary key: the most mergeable small files of a touched partition after the commit, as in the report.

It is omitted if some merges of the commit were dropped.
"""
BYTES_INGESTED = "icesize.bytes-ingested"
"""Snapshot summary key of an overwrite with new and older rows: the bytes of the new rows."""
CLUSTERED_BY = "icesize.clustered-by"
"""Snapshot summary key of a clustering pass: the columns, separated by commas."""
RESTORED_ID = "icesize.restored-snapshot-id"
"""Snapshot summary key of a restore: the snapshot whose version of the partition was restored."""


class CommitKind(str, Enum):
    """The purpose of a commit."""

    BATCH = "batch"
    """New rows of a stream through icesize, with the merges that became due."""
    APPEND = "append"
    """New rows through icesize without a stream."""
    MERGE = "merge"
    """A merge of files by icesize without new rows."""
    CLUSTER = "cluster"
    """A clustering by icesize: rows ordered for queries."""
    DELETES = "deletes"
    """A rewrite of delete files by icesize, or a removal of those that apply to nothing. Data files stay."""
    MANIFESTS = "manifests"
    """A rewrite of manifests by icesize."""
    ROW_IDS = "row-ids"
    """Row ids, by icesize, for the rows of a table that was upgraded to format v3. Files stay."""
    TOMBSTONES = "tombstones"
    """Deletes of a batch of upserts, remembered on a branch of their own. Rows of the table do not change."""
    RULE = "rule"
    """Another rule of upserts, by icesize. Files stay."""
    REPAIR = "repair"
    """A repair of metadata by icesize. Rows of missing files, and second listings of rows, go."""
    RESTORE = "restore"
    """A restore of a partition by icesize."""
    OTHER = "other"
    """A commit of another writer."""

    @property
    def brings_rows(self) -> bool:
        """True if icesize added new rows."""
        return self in (CommitKind.BATCH, CommitKind.APPEND)


def counts(
    added: Sequence[NewDataFile | FileFact],
    removed: Sequence[FileFact] = (),
    deletes: Sequence[DeleteFile] = (),
    new_deletes: Sequence[NewDeleteFile] = (),
) -> dict[str, str]:
    """Return the counts of one snapshot; zeros are omitted.

    `deletes` are delete files that it removes, `new_deletes` those that it adds.
    """
    numbers = {
        "added-data-files": len(added),
        "added-records": sum(f.rows for f in added),
        "added-files-size": sum(f.size_bytes for f in added) + sum(d.content_bytes for d in new_deletes),
        **_delete_counts("added", new_deletes),
        "deleted-data-files": len(removed),
        "deleted-records": sum(f.rows for f in removed),
        "removed-files-size": sum(f.size_bytes for f in removed) + sum(d.content_bytes for d in deletes),
        **_delete_counts("removed", deletes),
        "changed-partition-count": len({f.partition for f in (*added, *removed, *deletes, *new_deletes)}),
    }
    return {k: str(v) for k, v in numbers.items() if v}


def _delete_counts(change: str, deletes: Sequence[DeleteFile | NewDeleteFile]) -> dict[str, int]:
    vectors = sum(d.content_offset is not None for d in deletes)
    numbers = {f"{change}-delete-files": len(deletes), f"{change}-dvs": vectors}
    for kind, by_equality in (("position", False), ("equality", True)):
        files = [d for d in deletes if bool(d.equality_ids) == by_equality]
        numbers |= {f"{change}-{kind}-delete-files": len(files), f"{change}-{kind}-deletes": sum(d.rows for d in files)}
    numbers[f"{change}-position-delete-files"] -= vectors
    return numbers


TOTALS = {
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-delete-files": ("added-delete-files", "removed-delete-files"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}
"""Iceberg's running totals, and the counts of a snapshot that are added to and subtracted from each."""


def with_totals(
    operation: Operation, facts: Mapping[str, str], parent: Snapshot | None, counted: Mapping[str, int] | None = None
) -> Summary:
    """Return a summary with running totals, which begin with the first snapshot of a table.

    With `counted` totals, those of the parent do not count. If the parent lacks a total, or has no number for it, the
    total is unknown and omitted, as in Iceberg's own writer. A negative total is also omitted.
    """
    before: Mapping[str, str] = dict.fromkeys(TOTALS, "0")
    if counted is not None:
        return Summary(operation, **{**facts, **{name: str(total) for name, total in counted.items()}})
    if parent is not None:
        before = parent.summary.additional_properties if parent.summary else {}
    totals = dict[str, str]()
    for name, (added, removed) in TOTALS.items():
        try:
            total = int(before[name]) + int(facts.get(added, 0)) - int(facts.get(removed, 0))
        except (KeyError, ValueError):
            continue
        if total >= 0:
            totals[name] = str(total)
    return Summary(operation, **{**facts, **totals})
