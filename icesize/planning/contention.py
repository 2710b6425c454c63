"""Where merging waits because other writers change rows of the same partitions.

A merge that lands while somebody's DELETE, UPDATE or MERGE runs takes the files away that the statement is about to
change, and the statement fails after all its work. Nothing in the table tells of that, only of those that landed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from icesize.planning.layout import PartitionKey

QUIET_MS = 10 * 60_000
"""Milliseconds without a change by others after which a partition is merged again: jobs that change rows all the time
come every few seconds or minutes, those that come once an hour leave time enough."""

PATIENCE_MS = 20 * 60_000
"""Milliseconds after which a partition that is never quiet is merged once all the same, so that its small files do not
grow without end: of the statements of a job that runs one each minute that costs one in twenty at most."""


@dataclass(frozen=True, slots=True)
class Change:
    """One commit, by its time, and the partitions whose files it changed."""

    timestamp_ms: int
    partitions: frozenset[PartitionKey]


def restless(rivals: Iterable[Change], now_ms: int) -> dict[PartitionKey, int]:
    """Partitions that others changed within `QUIET_MS`, each with the time of the first change that is known.

    Times far from `now_ms` on either side are not recent: clocks differ, and some jump.
    """
    first: dict[PartitionKey, int] = {}
    recent: set[PartitionKey] = set()
    for change in rivals:
        if abs(now_ms - change.timestamp_ms) < QUIET_MS:
            recent |= change.partitions
        for key in change.partitions:
            first[key] = min(first.get(key, change.timestamp_ms), change.timestamp_ms)
    return {key: first[key] for key in recent}


def waiting_since(since: Mapping[PartitionKey, int], merges: Iterable[Change]) -> dict[PartitionKey, int]:
    """From when on each restless partition is left alone: a merge of ours (`merges`) begins that time anew."""
    waiting = dict(since)
    for merge in merges:
        for key in merge.partitions & waiting.keys():
            waiting[key] = max(waiting[key], merge.timestamp_ms)
    return waiting


def contested(waiting: Mapping[PartitionKey, int], now_ms: int) -> frozenset[PartitionKey]:
    """Of the partitions that are left alone, those whose time is not up."""
    return frozenset(key for key, since_ms in waiting.items() if abs(now_ms - since_ms) < PATIENCE_MS)
