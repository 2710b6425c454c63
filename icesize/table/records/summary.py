"""What a snapshot summary says: of files and rows under Iceberg's names, of the commit under ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.planning.files import DeleteFile, FileFact

RUN_ID = "icesize.run-id"
"""Snapshot summary key that identifies one change through all its attempts."""
LEDGER = "icesize.ledger"
"""Snapshot summary key: the ledger entry of the batch that was committed, for people and for `versions`."""
BASE_ID = "icesize.base-snapshot-id"
"""Snapshot summary key of a merge: the snapshot that was planned on; what came after it was not considered."""
SECONDS = "icesize.seconds"
"""Snapshot summary key of a batch or of merges: what was spent on them before the commit, in seconds."""
SMALL_FILES_MAX = "icesize.small-files-max"
"""Snapshot summary key: the largest number of mergeable small files that a touched partition holds after the commit, as
in the report; left out where some of its merges were lost."""
BYTES_INGESTED = "icesize.bytes-ingested"
"""Snapshot summary key of an overwrite that holds new rows beside older ones: the bytes of the new ones."""
CLUSTERED_BY = "icesize.clustered-by"
"""Snapshot summary key of a pass of clustering: the columns, separated by commas."""
RESTORED_ID = "icesize.restored-snapshot-id"
"""Snapshot summary key of a restore: the snapshot whose version the partition has again."""


def counts(
    added: Sequence[NewDataFile | FileFact],
    removed: Sequence[FileFact] = (),
    deletes: Sequence[DeleteFile] = (),
    new_deletes: Sequence[NewDeleteFile] = (),
) -> dict[str, str]:
    """What one snapshot adds and removes, with the `deletes` that it removes and `new_deletes`; what there is none of
    is left out."""
    numbers = {
        "added-data-files": len(added),
        "added-records": sum(f.rows for f in added),
        "added-files-size": sum(f.size_bytes for f in (*added, *new_deletes)),
        **_delete_counts("added", new_deletes),
        "deleted-data-files": len(removed),
        "deleted-records": sum(f.rows for f in removed),
        "removed-files-size": sum(f.size_bytes for f in removed) + sum(d.size_bytes for d in deletes),
        **_delete_counts("removed", deletes),
        "changed-partition-count": len({f.partition for f in (*added, *removed, *deletes, *new_deletes)}),
    }
    return {k: str(v) for k, v in numbers.items() if v}


def _delete_counts(change: str, deletes: Sequence[DeleteFile | NewDeleteFile]) -> dict[str, int]:
    numbers = {f"{change}-delete-files": len(deletes)}
    for kind, by_equality in (("position", False), ("equality", True)):
        files = [d for d in deletes if bool(d.equality_ids) == by_equality]
        numbers |= {f"{change}-{kind}-delete-files": len(files), f"{change}-{kind}-deletes": sum(d.rows for d in files)}
    return numbers


# Iceberg's running totals, and what a snapshot adds to each and takes from it.
_TOTALS = {
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-delete-files": ("added-delete-files", "removed-delete-files"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}


def with_totals(operation: Operation, facts: Mapping[str, str], parent: Snapshot | None) -> Summary:
    """A summary with running totals, which begin with the first snapshot of a table.

    A total that the parent does not have, or not as a number, is not known and left out, as Iceberg's own writer does;
    so is one that would be negative.
    """
    before: Mapping[str, str] = dict.fromkeys(_TOTALS, "0")
    if parent is not None:
        before = parent.summary.additional_properties if parent.summary else {}
    totals = dict[str, str]()
    for name, (added, removed) in _TOTALS.items():
        try:
            total = int(before[name]) + int(facts.get(added, 0)) - int(facts.get(removed, 0))
        except (KeyError, ValueError):
            continue
        if total >= 0:
            totals[name] = str(total)
    return Summary(operation, **{**facts, **totals})
