"""Contents of partitions at a snapshot, changes by snapshots, and partitions that changed since the last merge.

The rows of recent commits by partition show the traffic of a table before this process has received any. Every manifest
is read once.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping
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
from icesize.planning.routing.traffic import PartitionWrites
from icesize.table.catalog.history import (
    head_snapshot,
    is_ours,
    known_ancestors,
    number_of,
    operation_of,
    summary_count,
    summary_of,
)
from icesize.table.manifests.entries import ADDED, DELETED
from icesize.table.manifests.file_columns import ManifestFacts
from icesize.table.manifests.manifest_lists import Specs, manifests_in, manifests_of
from icesize.table.manifests.store import ManifestStore
from icesize.table.records.summary import BASE_ID, SECONDS

_DAY_MS = 86_400_000
LEAST_HISTORY_MS = 600_000
"""History from which on an arrival rate is known: a load or a first try is shorter."""
_CHANGE_BYTES = 700
"""Approximate memory of one snapshot's change to one partition."""


class PartitionContents(NamedTuple):
    """Data files of a partition, and `identity`, a number that identifies the set of its files, including delete files.

    The number is valid in this process only: it is a sum of hashes of paths.
    """

    files: int = 0
    size_bytes: int = 0
    rows: int = 0
    identity: int = 0

    def plus(self, other: PartitionContents, sign: int = 1) -> PartitionContents:
        """Return the sum, or with `sign` -1 the difference."""
        return PartitionContents(*(a + sign * b for a, b in zip(self, other, strict=True)))


NOTHING = PartitionContents()


class PartitionChange(NamedTuple):
    """Change of one partition by one snapshot: the files that it ADDED and the files that it DELETED."""

    added: PartitionContents
    removed: PartitionContents

    @property
    def net(self) -> PartitionContents:
        """The partition's gain: added minus removed."""
        return self.added.plus(self.removed, -1)


def touched(
    store: ManifestStore, io: FileIO, snapshot: Snapshot, specs: Specs
) -> Mapping[PartitionKey, PartitionChange]:
    """Return the changes of a snapshot to each partition; empty if it only rewrote manifests.

    An equality delete of an unpartitioned spec counts only for that spec's single partition, although it applies to
    all.
    """

    def make() -> tuple[Mapping[PartitionKey, PartitionChange], int]:
        changes = _changes(store, io, snapshot, specs)
        return changes, len(changes) * _CHANGE_BYTES

    return store.get(snapshot.manifest_list, "changes", make)


def _changes(store: ManifestStore, io: FileIO, snapshot: Snapshot, specs: Specs) -> dict[PartitionKey, PartitionChange]:
    added: defaultdict[PartitionKey, PartitionContents] = defaultdict(PartitionContents)
    removed: defaultdict[PartitionKey, PartitionContents] = defaultdict(PartitionContents)
    for manifest in manifests_in(snapshot, io, specs):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        facts = store.changes(io, manifest)
        for total, status in ((added, ADDED), (removed, DELETED)):
            _add(total, _contents(facts, facts.changed_by(snapshot.snapshot_id, status)))
    return {key: PartitionChange(added.get(key, NOTHING), removed.get(key, NOTHING)) for key in {**added, **removed}}


def _contents(facts: ManifestFacts, rows: NDArray[np.intp]) -> dict[PartitionKey, PartitionContents]:
    identities: defaultdict[int, int] = defaultdict(int)
    for place, path in zip(facts.columns.partition[rows].tolist(), facts.paths(rows), strict=True):
        identities[place] += hash(path)
    is_data = facts.manifest.content == ManifestContent.DATA
    return {
        facts.keys[place]: PartitionContents(*(totals if is_data else (0, 0, 0)), identities[place])
        for place, totals in facts.totals(rows).items()
    }


def _add(total: defaultdict[PartitionKey, PartitionContents], more: Mapping[PartitionKey, PartitionContents]) -> None:
    for key, contents in more.items():
        total[key] = total[key].plus(contents)


def state_at(
    store: ManifestStore, io: FileIO, snapshot: Snapshot, specs: Specs, partition: PartitionKey | None
) -> dict[PartitionKey, PartitionContents]:
    """Return the contents of partitions at a snapshot: all of them, or only the given one."""
    total: defaultdict[PartitionKey, PartitionContents] = defaultdict(PartitionContents)
    for manifest in manifests_in(snapshot, io, specs):
        if partition is None or manifest.partition_spec_id == partition.spec_id:
            facts = store.facts(io, manifest)
            _add(total, _contents(facts, facts.live if partition is None else facts.in_partition(partition)))
    return dict(total)


def differing(
    now: Mapping[PartitionKey, PartitionContents], before: Mapping[PartitionKey, PartitionContents]
) -> set[PartitionKey]:
    """Return partitions with different contents in two states."""
    return {key for key in now.keys() | before.keys() if now.get(key, NOTHING) != before.get(key, NOTHING)}


def partitions_changed(metadata: TableMetadata, io: FileIO, store: ManifestStore) -> set[PartitionKey] | None:
    """Return partitions with files from other writers since the plan of icesize's newest REPLACE snapshot.

    The plan did not consider changes that other writers committed between it and its commit. A REPLACE of icesize
    without a planning base only rewrote manifests and merged nothing. None means all partitions: there is no such
    snapshot, or it, or one after its plan, has expired. The function keeps no state, so its result is valid after a
    restart.
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
    # a REPLACE that rewrites manifests, as icesize's does, copies entries of other snapshots with their snapshot ids
    changed: set[PartitionKey] = set()
    for manifest in manifests_of(head_snapshot(metadata) if newer else None, io, metadata.specs()).data:
        if manifest.added_snapshot_id in newer | ours:
            facts = store.facts(io, manifest)
            rows = facts.live[np.isin(facts.snapshot_ids[facts.live], [*newer])]
            changed.update(facts.keys[place] for place in np.unique(facts.columns.partition[rows]).tolist())
    return changed


def _planned_on(snapshot: Snapshot) -> str | None:
    """Return the id of the snapshot that a merge of icesize was planned on; None for all other snapshots."""
    merged = is_ours(snapshot) and operation_of(snapshot) == Operation.REPLACE
    return summary_of(snapshot, BASE_ID) if merged else None


def _adding(metadata: TableMetadata) -> Iterator[Snapshot]:
    """Yield the snapshots that added rows, newest first."""
    operations = (Operation.APPEND, Operation.OVERWRITE)
    newest = (s for s in known_ancestors(metadata) if operation_of(s) in operations)
    return (s for s in newest if summary_of(s, "added-records") != "0")


def recent_appends(
    metadata: TableMetadata, io: FileIO, store: ManifestStore, most_commits: int = 8, most_partitions: int = 10_000
) -> list[dict[PartitionKey, PartitionWrites]]:
    """Return the rows that each of the newest commits of `main` added, by partition of the current spec, oldest first.

    A commit with more than `most_partitions` keeps the partitions with the most rows. Commits without added rows in
    this spec are left out. An overwrite of icesize rewrites older rows along with new ones, so only a partition's gain
    in rows counts. The function reads the manifests that those commits wrote. It stops at expired snapshots and at
    unreadable files, and returns fewer commits then.
    """
    appends: list[dict[PartitionKey, PartitionWrites]] = []
    with suppress(OSError, TableError):
        for snapshot in islice(_adding(metadata), most_commits):
            changes, ours = touched(store, io, snapshot, metadata.specs()), is_ours(snapshot)
            added = (
                (key, seen)
                for key, change in changes.items()
                if key.spec_id == metadata.default_spec_id and (seen := _seen(change, ours))
            )
            if heaviest := heapq.nlargest(most_partitions, added, key=lambda item: item[1].rows):
                appends.append(dict(heaviest))
    return appends[::-1]


def _seen(change: PartitionChange, ours: bool) -> PartitionWrites | None:
    rows = change.added.rows - (change.removed.rows if ours else 0)
    if rows <= 0:
        return None
    # rewritten old rows are about as large as the new rows beside them
    return PartitionWrites(rows, change.added.size_bytes * rows // change.added.rows, change.added.files)


def bytes_per_partition_and_day(metadata: TableMetadata) -> float | None:
    """Return the bytes of new files per partition in the last day of the history; None if the history is too short.

    Summaries count the partitions that a snapshot changed, but do not name them. The largest number counts for
    the whole day.
    """
    history = list(known_ancestors(metadata))
    if not history or history[0].timestamp_ms - history[-1].timestamp_ms < _DAY_MS:
        return None
    since_ms = history[0].timestamp_ms - _DAY_MS
    day = [s for s in history if s.timestamp_ms > since_ms and operation_of(s) == Operation.APPEND]
    partitions = max((summary_count(s, "changed-partition-count") for s in day), default=0)
    return sum(summary_count(s, "added-files-size") for s in day) / max(1, partitions) if day else None


def arrivals_of(metadata: TableMetadata, most_batches: int = 100) -> Arrivals | None:
    """Return the arrival rate of rows, from summaries of the newest APPEND snapshots.

    None means that the history is too short.
    """
    history = list(known_ancestors(metadata))
    adding = (s for s in history if operation_of(s) == Operation.APPEND)
    newest = list(islice((s for s in adding if summary_count(s, "added-files-size")), most_batches))
    if len(newest) < 2 or history[0].timestamp_ms - history[-1].timestamp_ms < LEAST_HISTORY_MS:
        return None
    partitions = sum(max(1, summary_count(s, "changed-partition-count")) for s in newest)
    spent = [seconds for s in newest if (seconds := number_of(s, SECONDS, float)) is not None]
    return Arrivals(
        batches=len(newest),
        partition_bytes=sum(summary_count(s, "added-files-size") for s in newest) / partitions,
        seconds_between=median((new.timestamp_ms - old.timestamp_ms) / 1000 for new, old in pairwise(newest)),
        seconds_per_batch=median(spent) if spent else None,
        is_ours=any(map(is_ours, newest)),
    )
