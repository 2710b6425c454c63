"""What the last commits put into each partition: the traffic of a table before this process has seen any of it."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from icesize.errors import TableError
from icesize.planning.files import PartitionKey
from icesize.planning.routing.expected_rows import Seen
from icesize.table.catalog.history import summary_of
from icesize.table.commit.request import RUN_ID
from icesize.table.manifests.entries import read_changes
from icesize.table.manifests.lists import read_new
from icesize.table.state.partition_changes import PartitionChange

MOST_PARTITIONS = 10_000
"""Partitions of one commit that are told of, those with the most rows."""

_ADDING = (Operation.APPEND, Operation.OVERWRITE)


def recent_appends(metadata: TableMetadata, io: FileIO, most: int = 8) -> list[dict[PartitionKey, Seen]]:
    """The rows that each of the newest `most` commits of `main` added, by partition of the current spec, oldest first.

    Commits that added no rows, or none of this spec, are left out. An overwrite of ours rewrites older rows along with
    new ones: there only what a partition has more than before counts. Read are the manifests that those commits wrote
    themselves. The search ends where snapshots have expired and at files that cannot be read: less is known then.
    """
    adding = (s for s in ancestors_of(metadata.current_snapshot(), metadata) if _adds(s))
    reader = _Reader(io, metadata.default_spec_id)
    found: list[dict[PartitionKey, Seen]] = []
    try:
        for _, snapshot in zip(range(most), adding, strict=False):
            if seen := _heaviest(reader.changes(snapshot), _is_ours(snapshot)):
                found.append(seen)
    except (OSError, TableError):
        return found[::-1]
    return found[::-1]


def _adds(snapshot: Snapshot) -> bool:
    added = summary_of(snapshot, "added-records")
    return snapshot.summary is not None and snapshot.summary.operation in _ADDING and added != "0"


def _is_ours(snapshot: Snapshot) -> bool:
    return summary_of(snapshot, RUN_ID) is not None


class _Reader:
    """Reads what snapshots changed, newest first; what a newer manifest list named is passed over in older ones."""

    def __init__(self, io: FileIO, spec_id: int) -> None:
        self._io, self._spec_id = io, spec_id
        self._known: set[str] = set()
        self._added_by: dict[int | None, list[ManifestFile]] = defaultdict(list)

    def changes(self, snapshot: Snapshot) -> dict[PartitionKey, PartitionChange]:
        changes: dict[PartitionKey, PartitionChange] = defaultdict(PartitionChange)
        for manifest in self._manifests(snapshot):
            for entry in read_changes(self._io, manifest):
                if entry.snapshot_id == snapshot.snapshot_id:
                    changes[PartitionKey(self._spec_id, entry.values)].count(entry)
        return changes

    def _manifests(self, snapshot: Snapshot) -> Iterator[ManifestFile]:
        for manifest in read_new(self._io, snapshot.manifest_list, self._known.__contains__):
            self._known.add(manifest.manifest_path)
            self._added_by[manifest.added_snapshot_id].append(manifest)
        return filter(self._concerns, self._added_by.pop(snapshot.snapshot_id, []))

    def _concerns(self, manifest: ManifestFile) -> bool:
        return manifest.content == ManifestContent.DATA and manifest.partition_spec_id == self._spec_id


def _heaviest(changes: dict[PartitionKey, PartitionChange], ours: bool) -> dict[PartitionKey, Seen]:
    return dict(heapq.nlargest(MOST_PARTITIONS, _seen(changes, ours), key=lambda item: item[1].rows))


def _seen(changes: dict[PartitionKey, PartitionChange], ours: bool) -> Iterable[tuple[PartitionKey, Seen]]:
    for key, change in changes.items():
        rows = change.rows_added - (change.rows_removed if ours else 0)
        if rows > 0:
            # old rows that were written again are about as large as the new ones among them
            size_bytes = change.size_bytes_added * rows // change.rows_added
            yield key, Seen(rows, size_bytes, change.files_added)


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
