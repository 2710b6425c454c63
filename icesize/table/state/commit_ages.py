"""How old the rows of files are, counted in commits that added rows."""

from __future__ import annotations

from bisect import bisect_right

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

OLDEST = 1 << 60
"""Age, in commits, of a file whose snapshot the table no longer keeps and whose sequence number says nothing (v1)."""


class CommitAges:
    """How many commits that added rows came after a file: `since(stamp(sequence number, snapshot id))`.

    Merged files keep the newest sequence number of their inputs, so merging does not make a partition young again.
    Format v1 has no sequence numbers: there the timestamp of the file's snapshot stands for it. Expired snapshots
    cannot be counted; every commit of ours takes at most two sequence numbers, which gives a lower bound.
    """

    def __init__(self, metadata: TableMetadata) -> None:
        head = metadata.current_snapshot()
        history: list[Snapshot] = list(ancestors_of(head, metadata))
        self._numbered = metadata.format_version > 1
        self._time = {s.snapshot_id: s.timestamp_ms for s in history}
        self._head = (head.sequence_number or 0) if head else 0
        self._commits = sorted(
            (s.sequence_number or 0) if self._numbered else s.timestamp_ms
            for s in history
            if s.summary is None or s.summary.operation != Operation.REPLACE
        )

    def stamp(self, sequence_number: int | None, snapshot_id: int | None) -> int:
        """A number that orders files by the commit that brought their newest rows."""
        if self._numbered:
            return sequence_number or 0
        return self._time.get(snapshot_id or 0, 0)

    def since(self, stamp: int) -> int:
        """Commits that added rows after the one with this stamp."""
        counted = len(self._commits) - bisect_right(self._commits, stamp)
        if self._numbered:
            return max(counted, (self._head - stamp) // 2)
        return counted if stamp else OLDEST
