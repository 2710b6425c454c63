"""How fast a table grows, from its snapshots: what advice about the target size is based on."""

from __future__ import annotations

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

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
    day = [s for s in history if head.timestamp_ms - s.timestamp_ms < DAY_MS and _appends(s)]
    partitions = max((_number(s, "changed-partition-count") for s in day), default=0)
    return sum(_number(s, "added-files-size") for s in day) / max(1, partitions) if day else None


def _appends(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND


def _number(snapshot: Snapshot, key: str) -> int:
    return int(snapshot.summary.additional_properties.get(key, "0")) if snapshot.summary else 0
