"""Leaves partitions alone in which other writers keep taking the files that we merge.

Merging one partition without pause starves the row-level jobs of others (7 of 16 failed in a trial): each lost merge
doubles the number of batches before the next try, up to a bound, and a merge that lands forgives.
"""

from __future__ import annotations

from collections.abc import Iterable

from icesize.planning.layout import PartitionKey

MAX_PAUSE_BATCHES = 32
"""Batches between two tries at a partition that others rewrite all the time."""


class BackOff:
    """Counts batches; pure state, no clock."""

    def __init__(self) -> None:
        self._batch = 0
        self._strikes: dict[PartitionKey, int] = {}
        self._until: dict[PartitionKey, int] = {}

    def next_batch(self) -> frozenset[PartitionKey]:
        """Begin a batch; returns the partitions that it must not merge."""
        self._batch += 1
        return frozenset(key for key, until in self._until.items() if until >= self._batch)

    def lost(self, partitions: Iterable[PartitionKey]) -> None:
        """Merges in these partitions lost to another writer."""
        for key in set(partitions):
            strikes = self._strikes[key] = self._strikes.get(key, 0) + 1
            self._until[key] = self._batch + min(2 ** (strikes - 1), MAX_PAUSE_BATCHES)

    def landed(self, partitions: Iterable[PartitionKey]) -> None:
        """Merges in these partitions were committed."""
        for key in set(partitions):
            self._strikes.pop(key, None)
            self._until.pop(key, None)
