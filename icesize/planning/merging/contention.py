"""Pauses of merges while other writers change rows of the same partitions.

If a merge commits during a DELETE, UPDATE or MERGE of another writer, it replaces files that the statement is about to
change. The statement then fails after all its work. The table shows only statements that have committed, not those that
run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from icesize.planning.files import PartitionKey

K = TypeVar("K", bound=Hashable)

QUIET_MS = 10 * 60_000
"""Milliseconds without a change by others after which a partition is merged again: jobs that change rows all the time
come every few seconds or minutes, those that come once an hour leave time enough."""

COOLDOWN_MS = 20 * 60_000
"""Milliseconds after which a partition that is never quiet is merged once anyway, so that its small files do not
grow without end: of the statements of a job that runs one each minute that costs one in twenty at most."""

SIGHT_MS = COOLDOWN_MS + QUIET_MS
"""Milliseconds after which a change makes no difference any more."""


@dataclass(frozen=True, slots=True)
class CommittedChange:
    """One commit: its time, and the partitions whose files it changed."""

    timestamp_ms: int
    partitions: frozenset[PartitionKey]


def contended(concurrent_writers: Iterable[CommittedChange], now_ms: int) -> dict[PartitionKey, int]:
    """Return the partitions that others changed within `QUIET_MS`, with the time when these changes began.

    Times that are far from `now_ms` in either direction are not recent, because clocks differ and can jump.
    """
    times: dict[PartitionKey, list[int]] = defaultdict(list)
    for change in concurrent_writers:
        for key in change.partitions:
            times[key].append(change.timestamp_ms)
    began = {key: _began(known_ms, now_ms) for key, known_ms in times.items()}
    return {key: time_ms for key, time_ms in began.items() if time_ms is not None}


def _began(known_ms: list[int], now_ms: int) -> int | None:
    """Return the first of the changes that follow each other within `QUIET_MS` until now; None if it is quiet."""
    recent = [time_ms for time_ms in known_ms if abs(now_ms - time_ms) < QUIET_MS]
    if not recent:
        return None
    began = min(recent)
    for time_ms in sorted((t for t in known_ms if t < began), reverse=True):
        if began - time_ms >= QUIET_MS:
            break
        began = time_ms
    return began


def waiting_since(since: Mapping[PartitionKey, int], merges: Iterable[CommittedChange]) -> dict[PartitionKey, int]:
    """Return the time since when each contested partition is paused; a merge by icesize (`merges`) restarts it."""
    waiting = dict(since)
    for merge in merges:
        for key in merge.partitions & waiting.keys():
            waiting[key] = max(waiting[key], merge.timestamp_ms)
    return waiting


def contested(waiting: Mapping[PartitionKey, int], now_ms: int) -> frozenset[PartitionKey]:
    """Return the paused partitions whose time is not over."""
    return frozenset(key for key, since_ms in waiting.items() if abs(now_ms - since_ms) < COOLDOWN_MS)


MAX_PAUSE_BATCHES = 32
"""Batches between two tries at a partition that others rewrite all the time."""


class BackOff(Generic[K]):
    """Pauses of partitions, or of other keys of work, counted in batches; pure state without a clock."""

    def __init__(self) -> None:
        self._batch = 0
        self._strikes: dict[K, int] = {}
        self._until: dict[K, int] = {}

    def next_batch(self) -> frozenset[K]:
        """Begin a batch and return the keys whose work it must leave.

        A key is forgotten when its pause has been over for as long as the longest pause.
        """
        self._batch += 1
        self.succeeded([key for key, until in self._until.items() if until + MAX_PAUSE_BATCHES < self._batch])
        return frozenset(key for key, until in self._until.items() if until >= self._batch)

    def lost(self, keys: Iterable[K]) -> None:
        """Pause these keys: their work lost to another writer, or failed."""
        for key in set(keys):
            strikes = self._strikes[key] = self._strikes.get(key, 0) + 1
            self._until[key] = self._batch + min(2 ** (strikes - 1), MAX_PAUSE_BATCHES)

    def succeeded(self, keys: Iterable[K]) -> None:
        """End the pause of these keys: their work was committed."""
        for key in set(keys):
            self._strikes.pop(key, None)
            self._until.pop(key, None)
