"""What the last commits put into each partition: the traffic of a table before this process has seen any of it."""

from __future__ import annotations

import heapq

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from icesize.errors import TableError
from icesize.planning.files import PartitionKey
from icesize.planning.routing.expected_rows import Seen
from icesize.table.catalog.history import operation_of, summary_of
from icesize.table.commit.summary import RUN_ID
from icesize.table.state.partition_changes import ChangeReader, PartitionChange

_ADDING = (Operation.APPEND, Operation.OVERWRITE)


def recent_appends(
    metadata: TableMetadata, io: FileIO, most_commits: int = 8, most_partitions: int = 10_000
) -> list[dict[PartitionKey, Seen]]:
    """The rows that each of the newest commits of `main` added, by partition of the current spec, oldest first.

    Of a commit with more than `most_partitions`, those with the most rows. Commits that added no rows, or none of this
    spec, are left out. An overwrite of ours rewrites older rows along with new ones: there only what a partition has
    more than before counts. Read are the manifests that those commits wrote themselves. The search ends where snapshots
    have expired and at files that cannot be read: less is known then.
    """
    adding = (s for s in ancestors_of(metadata.current_snapshot(), metadata) if _adds(s))
    reader = ChangeReader()
    found: list[dict[PartitionKey, Seen]] = []
    try:
        for _, snapshot in zip(range(most_commits), adding, strict=False):
            changes, ours = reader.touched(metadata, io, snapshot), summary_of(snapshot, RUN_ID) is not None
            added = (
                (key, seen)
                for key, change in changes.items()
                if key.spec_id == metadata.default_spec_id and (seen := _seen(change, ours))
            )
            if heaviest := heapq.nlargest(most_partitions, added, key=lambda item: item[1].rows):
                found.append(dict(heaviest))
    except (OSError, TableError):
        return found[::-1]
    return found[::-1]


def _adds(snapshot: Snapshot) -> bool:
    return operation_of(snapshot) in _ADDING and summary_of(snapshot, "added-records") != "0"


def _seen(change: PartitionChange, ours: bool) -> Seen | None:
    rows = change.added.rows - (change.removed.rows if ours else 0)
    if rows <= 0:
        return None
    # old rows that were written again are about as large as the new ones among them
    return Seen(rows, change.added.size_bytes * rows // change.added.rows, change.added.files)


DAY_MS = 86_400_000


def bytes_per_partition_and_day(metadata: TableMetadata) -> float | None:
    """Bytes of new files that a partition got in the last day of the history, None when the history is too short.

    Summaries tell how many partitions a snapshot changed, not which; the largest number stands for all of the day.
    """
    head = metadata.current_snapshot()
    if head is None:
        return None
    history = list(ancestors_of(head, metadata))
    if head.timestamp_ms - history[-1].timestamp_ms < DAY_MS:
        return None
    day = [s for s in history if head.timestamp_ms - s.timestamp_ms < DAY_MS and operation_of(s) == Operation.APPEND]
    partitions = max((_number(s, "changed-partition-count") for s in day), default=0)
    return sum(_number(s, "added-files-size") for s in day) / max(1, partitions) if day else None


def _number(snapshot: Snapshot, key: str) -> int:
    return int(summary_of(snapshot, key) or 0)
