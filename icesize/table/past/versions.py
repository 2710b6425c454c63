"""Versions of partitions: what readers of `main` saw of each after every commit that touched it.

Read from the manifests that snapshots added, never from all of every snapshot: the newest state is counted once, older
ones follow by taking changes back. Only behind a gap, where snapshots have expired, a state is counted anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import ClassVar

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from icesize.planning.files import PartitionKey
from icesize.results import Keys, Result, keys
from icesize.table.catalog.history import main_history
from icesize.table.manifests.store import ManifestStore
from icesize.table.past.commits import Commit, runs_of
from icesize.table.state.naming import Labels
from icesize.table.state.partition_changes import NOTHING, Contents, differing, state_at, touched


@dataclass(frozen=True)
class Version(Result):
    """What a partition was after one commit, readable at `snapshot_id`, the commit's last snapshot.

    `partition` are names and values as `inspect` prints them (None: NULL), `label` the same in one word, `key` the
    stored values. `timestamp_ms` is the commit's time, `operation` what its snapshots did, oldest first
    (`append+replace`), `stream_id` and `batch_id` name its micro-batch. `files`, `size_bytes` and `rows` are totals of
    the partition's data files. `current`: readers of the table see it now.

    The commit that made it may have expired. Then the oldest snapshot stands for it that still shows it, with its own
    time and operation, and without a batch.
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

    KEYS: ClassVar[Keys] = keys(key=None)


def versions(
    metadata: TableMetadata, io: FileIO, store: ManifestStore, partition: PartitionKey | None = None
) -> list[Version]:
    """The versions that the table still keeps of one partition, or of all of them, newest first, then by label.

    Snapshots of one icesize commit are one version. Every partition that readers see has at least one; one that is
    empty now has a version without files where that became so.
    """
    listing = _Listing(Labels(metadata))
    history = main_history(metadata)
    runs = runs_of(history)
    contents = state_at(store, io, runs[0][0].last, partition) if runs else {}
    for run, older in zip_longest(runs, runs[1:]):
        for commit in run:
            net = _net(commit, io, store, partition)
            listing.add(commit, {key: contents.get(key, NOTHING) for key in net}, *commit.batch)
            if commit is not run[-1]:
                contents.update((key, contents.get(key, NOTHING).plus(change, -1)) for key, change in net.items())
        # having no parent does not make it the first: some catalogs drop the id of a parent that expires
        below = state_at(store, io, older[0].last, partition) if older else {}
        # behind a gap an expired commit made what differs, unless the one after it touched that
        listing.add(run[-1], {key: contents.get(key, NOTHING) for key in differing(contents, below) - net.keys()})
        contents = below
    places = {snapshot.snapshot_id: place for place, snapshot in enumerate(history)}
    return sorted(listing.versions, key=lambda v: (places[v.snapshot_id], v.label, v.key.spec_id))


def _net(
    commit: Commit, io: FileIO, store: ManifestStore, partition: PartitionKey | None
) -> dict[PartitionKey, Contents]:
    """The partitions that a commit touched, with what each has more than before."""
    total: dict[PartitionKey, Contents] = defaultdict(Contents)
    for snapshot in commit.snapshots:
        for key, change in touched(store, io, snapshot).items():
            if partition in (None, key):
                total[key] = total[key].plus(change.net)
    return dict(total)


@dataclass
class _Listing:
    """Versions as they are found, newest first."""

    labels: Labels
    versions: list[Version] = field(default_factory=list)
    _names: dict[PartitionKey, tuple[str, dict[str, str | None]]] = field(default_factory=dict)

    def add(
        self,
        commit: Commit,
        contents: Mapping[PartitionKey, Contents],
        stream_id: str | None = None,
        batch_id: int | None = None,
    ) -> None:
        """The partitions' versions that a commit made, or only showed, which has no batch then."""
        # the first one found of a partition is what its readers see: everything later left it alone
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
