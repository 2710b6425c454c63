"""Ages of files in commits, which decide the partitions that are cold."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from icesize.planning.retention.ancestry import TOMBSTONE_BRANCH
from icesize.table.catalog.history import known_ancestors, operation_of
from icesize.table.manifests.file_columns import ManifestFacts

OLDEST = 1 << 60
"""Age, in commits, of a file whose snapshot has expired and whose sequence number is unknown (format v1)."""


class CommitAges:
    """Ages of files: the number of commits that added rows after a file is `since(stamp)`; see `stamps`.

    Merged files keep the newest sequence number of their inputs, so a merge does not make a partition young again.
    Format v1 has no sequence numbers, so the timestamp of the file's snapshot is used. Expired snapshots cannot be
    counted. Every commit of icesize uses at most two sequence numbers, or three if it remembers deletes, which gives a
    lower bound.

    Attributes:
        now: The stamp of files of the newest commit.
    """

    def __init__(self, metadata: TableMetadata) -> None:
        history = list(known_ancestors(metadata))
        self._numbered = metadata.format_version > 1
        self._time = {s.snapshot_id: s.timestamp_ms for s in history}
        self._oldest = min(self._time.values(), default=0)
        self._numbers_of_commit = 3 if TOMBSTONE_BRANCH in metadata.refs else 2
        self._head = (history[0].sequence_number or 0) if history else 0
        self.now: int = self._head if self._numbered else max(self._time.values(), default=0)
        self._commits = sorted(
            (s.sequence_number or 0) if self._numbered else s.timestamp_ms
            for s in history
            if operation_of(s) != Operation.REPLACE
        )

    def stamps(self, facts: ManifestFacts, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the age stamps of files of a manifest."""
        if self._numbered:
            return facts.sequence_numbers[rows].astype(np.int64)
        ids, places = np.unique(facts.snapshot_ids[rows], return_inverse=True)
        return np.array([self._time.get(snapshot_id, 0) for snapshot_id in ids.tolist()], np.int64)[places]

    @property
    def known(self) -> frozenset[int]:
        """The facts that stamps depend on beside the manifests: in format v1 the known snapshots, in others nothing."""
        return frozenset() if self._numbered else frozenset(self._time)

    def follow(self, before: CommitAges) -> bool:
        """Return whether the stamps of an earlier state are those of now.

        In format v1 they are not after snapshots expired or after a rollback: files of these lost their time.
        """
        return before.known <= self.known

    def since(self, stamp: int) -> int:
        """Return the number of commits that added rows after the one with this stamp."""
        counted = len(self._commits) - bisect_right(self._commits, stamp)
        if self._numbered:
            return max(counted, (self._head - stamp) // self._numbers_of_commit)
        return counted if stamp and stamp >= self._oldest else OLDEST
