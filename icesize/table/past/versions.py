"""Versions of partitions: the state that readers of `main` saw of each partition after each commit that changed it.

Only the manifests that snapshots added are read, never all manifests of each snapshot. The newest state is counted
once; older states follow from it by subtracting changes. A state is counted again only at a gap, where snapshots have
expired.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from icesize.planning.files import PartitionKey
from icesize.results import Result, keys
from icesize.table.catalog.history import known_history
from icesize.table.manifests.manifest_lists import Specs
from icesize.table.manifests.store import ManifestStore
from icesize.table.past.commits import Commit, commit_runs
from icesize.table.state.naming import Labels
from icesize.table.state.partition_changes import NOTHING, PartitionContents, differing, state_at, touched


@dataclass(frozen=True)
class Version(Result):
    """The state of a partition after one commit, readable at `snapshot_id`.

    If the commit of the version has expired, the id, time and operation are those of the oldest snapshot that still
    contains the version. Then `stream_id` and `batch_id` are None.

    Attributes:
        partition: Field names and values, as `inspect` prints them; None is NULL.
        label: The same as one string.
        key: The stored values.
        snapshot_id: The last snapshot of the commit.
        timestamp_ms: The time of the commit, in milliseconds since 1970.
        operation: The operations of its snapshots, oldest first: `append+replace`.
        files: Data files of the partition.
        size_bytes: Bytes of these files.
        rows: Rows in these files.
        stream_id: The stream of the commit's micro-batch; None if it has none.
        batch_id: The number of this micro-batch.
        current: True if readers of the table see this version now.
    """

    partition: dict[str, str | None]
    label: str
    key: PartitionKey
    snapshot_id: int
    timestamp_ms: int
    operation: str
    files: int
    size_bytes: int
    rows: int
    stream_id: str | None = None
    batch_id: int | None = None
    current: bool = False

    KEYS = keys(key=None)


def versions(
    metadata: TableMetadata, io: FileIO, store: ManifestStore, partition: PartitionKey | None = None
) -> list[Version]:
    """Return the versions that the table still keeps, newest first, then by label.

    With `partition`, only its versions are returned. Snapshots of one icesize commit are one version. Each partition
    that readers see has at least one version. A partition that is empty now has a version without files at the commit
    that emptied it.
    """
    listing, specs = _Listing(Labels(metadata)), metadata.specs()
    history = known_history(metadata)
    runs = commit_runs(history)
    contents = state_at(store, io, runs[0][0].last, specs, partition) if runs else {}
    for run, older in zip_longest(runs, runs[1:]):
        for commit in run:
            net = _net(commit, io, store, specs, partition)
            listing.add(commit, {key: contents.get(key, NOTHING) for key in net}, *commit.batch)
            if commit is not run[-1]:
                contents.update((key, contents.get(key, NOTHING).plus(change, -1)) for key, change in net.items())
        if older and metadata.format_version > 2:
            # replaced vectors of a shared file are in no manifest as deleted (`SnapshotBuilder`): changes lack them
            contents = state_at(store, io, run[-1].last, specs, partition)
        # a snapshot without a parent need not be the first: some catalogs drop the id of an expired parent
        below = state_at(store, io, older[0].last, specs, partition) if older else {}
        # across a gap, an expired commit made the differences, unless the commit after the gap touched them
        listing.add(run[-1], {key: contents.get(key, NOTHING) for key in differing(contents, below) - net.keys()})
        contents = below
    places = {snapshot.snapshot_id: place for place, snapshot in enumerate(history)}
    return sorted(listing.versions, key=lambda v: (places[v.snapshot_id], v.label, v.key.spec_id))


def _net(
    commit: Commit, io: FileIO, store: ManifestStore, specs: Specs, partition: PartitionKey | None
) -> dict[PartitionKey, PartitionContents]:
    """Return the net change of each partition that a commit touched."""
    total: dict[PartitionKey, PartitionContents] = defaultdict(PartitionContents)
    for snapshot in commit.snapshots:
        for key, change in touched(store, io, snapshot, specs).items():
            if partition in (None, key):
                total[key] = total[key].plus(change.net)
    return dict(total)


@dataclass
class _Listing:
    """The versions found so far, newest first."""

    labels: Labels
    versions: list[Version] = field(default_factory=list)
    _names: dict[PartitionKey, tuple[str, dict[str, str | None]]] = field(default_factory=dict)

    def add(
        self,
        commit: Commit,
        contents: Mapping[PartitionKey, PartitionContents],
        stream_id: str | None = None,
        batch_id: int | None = None,
    ) -> None:
        """Add the versions of partitions at a commit that made them.

        Without a batch, the commit may only show versions that an expired commit made.
        """
        # commits come newest first, so the first version of a partition is the one that readers see now
        new = contents.keys() - self._names.keys()
        for key in new:
            self._names[key] = self.labels.of(key), self.labels.values(key)
        for key, (files, size_bytes, rows, _) in contents.items():
            label, values = self._names[key]
            self.versions.append(
                Version(
                    values, label, key, commit.last.snapshot_id, commit.last.timestamp_ms, commit.operation,
                    files, size_bytes, rows, stream_id, batch_id, key in new,
                )
            )  # fmt: skip
