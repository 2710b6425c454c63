"""What partitions hold at a snapshot, what snapshots changed in them, and which ones changed since the last merge; what
the last commits put into each is the traffic of a table before this process has seen any of it.

Every manifest is read once.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice, pairwise
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.errors import TableError
from icesize.planning.advice.merging import Arrivals
from icesize.planning.files import PartitionKey
from icesize.planning.routing.expected_rows import PartitionWrites
from icesize.table.catalog.history import (
    count_of,
    head_snapshot,
    is_ours,
    known_ancestors,
    number_of,
    operation_of,
    summary_of,
)
from icesize.table.manifests.entries import ADDED, DELETED
from icesize.table.manifests.facts import ManifestFacts
from icesize.table.manifests.lists import manifests_in, manifests_of
from icesize.table.manifests.store import ManifestStore
from icesize.table.records.summary import BASE_ID, SECONDS

_DAY_MS = 86_400_000
_CHANGE_BYTES = 700
"""Memory of what a snapshot did to one partition, about."""


class Contents(NamedTuple):
    """Data files of a partition, and `identity`, a number that stands for the set of its files, deletes included.

    Holds in this process only: it is a sum of hashes of paths.
    """

    files: int = 0
    size_bytes: int = 0
    rows: int = 0
    identity: int = 0

    def plus(self, other: Contents, sign: int = 1) -> Contents:
        """The sum, or with `sign` -1 the difference."""
        return Contents(*(a + sign * b for a, b in zip(self, other, strict=True)))


NOTHING = Contents()


class PartitionChange(NamedTuple):
    """What one snapshot did to one partition: the files that it ADDED and those that it DELETED."""

    added: Contents
    removed: Contents

    @property
    def net(self) -> Contents:
        """What the partition has more than before."""
        return self.added.plus(self.removed, -1)


def touched(store: ManifestStore, io: FileIO, snapshot: Snapshot) -> Mapping[PartitionKey, PartitionChange]:
    """Return what a snapshot added to and removed from each partition; empty if it only wrote manifests again.

    An equality delete of an unpartitioned spec counts for that spec's only partition, whatever else it applies to.
    """

    def make() -> tuple[Mapping[PartitionKey, PartitionChange], int]:
        changes = _changes(store, io, snapshot)
        return changes, len(changes) * _CHANGE_BYTES

    return store.get(snapshot.manifest_list, "changes", make)


def _changes(store: ManifestStore, io: FileIO, snapshot: Snapshot) -> dict[PartitionKey, PartitionChange]:
    added: defaultdict[PartitionKey, Contents] = defaultdict(Contents)
    removed: defaultdict[PartitionKey, Contents] = defaultdict(Contents)
    for manifest in manifests_in(snapshot, io):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        facts = store.changes(io, manifest)
        for total, status in ((added, ADDED), (removed, DELETED)):
            _add(total, _contents(facts, facts.changed_by(snapshot.snapshot_id, status)))
    return {key: PartitionChange(added.get(key, NOTHING), removed.get(key, NOTHING)) for key in {**added, **removed}}


def _contents(facts: ManifestFacts, rows: NDArray[np.intp]) -> dict[PartitionKey, Contents]:
    identities: defaultdict[int, int] = defaultdict(int)
    for place, path in zip(facts.columns.partition[rows].tolist(), facts.paths(rows), strict=True):
        identities[place] += hash(path)
    is_data = facts.manifest.content == ManifestContent.DATA
    return {
        facts.keys[place]: Contents(*(totals if is_data else (0, 0, 0)), identities[place])
        for place, totals in facts.totals(rows).items()
    }


def _add(total: defaultdict[PartitionKey, Contents], more: Mapping[PartitionKey, Contents]) -> None:
    for key, contents in more.items():
        total[key] = total[key].plus(contents)


def state_at(
    store: ManifestStore, io: FileIO, snapshot: Snapshot, partition: PartitionKey | None
) -> dict[PartitionKey, Contents]:
    """Return what partitions hold at a snapshot, all of them or only the given one."""
    total: defaultdict[PartitionKey, Contents] = defaultdict(Contents)
    for manifest in manifests_in(snapshot, io):
        if partition is None or manifest.partition_spec_id == partition.spec_id:
            facts = store.facts(io, manifest)
            _add(total, _contents(facts, facts.live if partition is None else facts.in_partition(partition)))
    return dict(total)


def differing(now: Mapping[PartitionKey, Contents], before: Mapping[PartitionKey, Contents]) -> set[PartitionKey]:
    """Partitions that are not the same in two states."""
    return {key for key in now.keys() | before.keys() if now.get(key, NOTHING) != before.get(key, NOTHING)}


def partitions_changed(metadata: TableMetadata, io: FileIO, store: ManifestStore) -> set[PartitionKey] | None:
    """Partitions with files added by others since the newest REPLACE snapshot of ours was *planned*.

    What others committed between that plan and its commit was not considered by it. A REPLACE of ours that names no
    planning base only wrote manifests anew and merged nothing. None means all partitions: there is no such snapshot,
    or it, or one that came after its plan, has expired. Stateless, so it holds after a restart.
    """
    newer: set[int] = set()
    ours: set[int] = set()
    base: str | None = None
    for snapshot in known_ancestors(metadata):
        if base is None and (base := _planned_on(snapshot)) is not None:
            ours.add(snapshot.snapshot_id)
        else:
            newer.add(snapshot.snapshot_id)
        if base is not None and str(snapshot.parent_snapshot_id) == base:
            break
    else:
        return None
    # a REPLACE that writes manifests anew, as ours does, copies entries of others, which keep their snapshot ids
    changed: set[PartitionKey] = set()
    for manifest in manifests_of(head_snapshot(metadata) if newer else None, io).data:
        if manifest.added_snapshot_id in newer | ours:
            facts = store.facts(io, manifest)
            rows = facts.live[np.isin(facts.snapshot_ids[facts.live], [*newer])]
            changed.update(facts.keys[place] for place in np.unique(facts.columns.partition[rows]).tolist())
    return changed


def _planned_on(snapshot: Snapshot) -> str | None:
    """The id of the snapshot that a merge of ours was planned on, None for all other snapshots."""
    merged = is_ours(snapshot) and operation_of(snapshot) == Operation.REPLACE
    return summary_of(snapshot, BASE_ID) if merged else None


def recent_appends(
    metadata: TableMetadata,
    io: FileIO,
    store: ManifestStore,
    most_commits: int = 8,
    most_partitions: int = 10_000,
) -> list[dict[PartitionKey, PartitionWrites]]:
    """The rows that each of the newest commits of `main` added, by partition of the current spec, oldest first.

    Of a commit with more than `most_partitions`, those with the most rows. Commits that added no rows, or none of this
    spec, are left out. An overwrite of ours rewrites older rows along with new ones: there only what a partition has
    more than before counts. Read are the manifests that those commits wrote themselves. The search ends where snapshots
    have expired and at files that cannot be read: less is known then.
    """
    operations = (Operation.APPEND, Operation.OVERWRITE)
    newest = (s for s in known_ancestors(metadata) if operation_of(s) in operations)
    adding = (s for s in newest if summary_of(s, "added-records") != "0")
    found: list[dict[PartitionKey, PartitionWrites]] = []
    with suppress(OSError, TableError):
        for _, snapshot in zip(range(most_commits), adding, strict=False):
            changes, ours = touched(store, io, snapshot), is_ours(snapshot)
            added = (
                (key, seen)
                for key, change in changes.items()
                if key.spec_id == metadata.default_spec_id and (seen := _seen(change, ours))
            )
            if heaviest := heapq.nlargest(most_partitions, added, key=lambda item: item[1].rows):
                found.append(dict(heaviest))
    return found[::-1]


def _seen(change: PartitionChange, ours: bool) -> PartitionWrites | None:
    rows = change.added.rows - (change.removed.rows if ours else 0)
    if rows <= 0:
        return None
    # old rows that were written again are about as large as the new ones among them
    return PartitionWrites(rows, change.added.size_bytes * rows // change.added.rows, change.added.files)


def bytes_per_partition_and_day(metadata: TableMetadata) -> float | None:
    """Bytes of new files that a partition got in the last day of the history, None when the history is too short.

    Summaries tell how many partitions a snapshot changed, not which; the largest number stands for all of the day.
    """
    history = list(known_ancestors(metadata))
    if not history or history[0].timestamp_ms - history[-1].timestamp_ms < _DAY_MS:
        return None
    since_ms = history[0].timestamp_ms - _DAY_MS
    day = [s for s in history if s.timestamp_ms > since_ms and operation_of(s) == Operation.APPEND]
    partitions = max((count_of(s, "changed-partition-count") for s in day), default=0)
    return sum(count_of(s, "added-files-size") for s in day) / max(1, partitions) if day else None


def arrivals_of(metadata: TableMetadata, most_batches: int = 100) -> Arrivals | None:
    """How rows came in the newest APPEND snapshots, as their summaries tell; None where there are not two of them."""
    adding = (s for s in known_ancestors(metadata) if operation_of(s) == Operation.APPEND)
    newest = list(islice((s for s in adding if count_of(s, "added-files-size")), most_batches))
    if len(newest) < 2:
        return None
    partitions = sum(max(1, count_of(s, "changed-partition-count")) for s in newest)
    spent = [seconds for s in newest if (seconds := number_of(s, SECONDS, float)) is not None]
    return Arrivals(
        batches=len(newest),
        partition_bytes=sum(count_of(s, "added-files-size") for s in newest) / partitions,
        seconds_between=median((new.timestamp_ms - old.timestamp_ms) / 1000 for new, old in pairwise(newest)),
        seconds_per_batch=median(spent) if spent else None,
        is_ours=any(map(is_ours, newest)),
    )
