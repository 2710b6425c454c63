"""States of a table at some of its commits: files, small files and delete files of each partition.

Manifests that several snapshots list are read once. A large table shows fewer snapshots.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icesize.errors import TableError
from icesize.planning.files import PartitionKey
from icesize.planning.insight.inspection import size_bounds
from icesize.planning.insight.trends import FileCounts, PastState, evenly
from icesize.table.manifests.manifest_lists import manifests_in
from icesize.table.manifests.store import ManifestStore, store_of
from icesize.table.past.commits import History, commits_of
from icesize.table.state.naming import Labels

MOST_SNAPSHOTS = 48
"""The most states to read: as many columns as a chart on a phone shows."""
MOST_ENTRIES = 2_000_000
"""The most manifest entries to read for them, about: 40 seconds of work."""
_COUNTS_BYTES = 350
"""Memory of the counts of one partition of a manifest, about."""


def chosen_snapshots(
    metadata: TableMetadata, history: History, most_snapshots: int = MOST_SNAPSHOTS, most_entries: int = MOST_ENTRIES
) -> list[Snapshot]:
    """Return snapshots of `main` as its readers saw them after its commits, oldest first.

    They are evenly spaced and include the first and the last. A table that held many files gets fewer of them, because
    each may have its own manifests.
    """
    shown = [commit.last for commit in reversed(commits_of(metadata))]
    most_files = max(((c.total_files or 0) + (c.total_delete_files or 0) for c in history.commits), default=0)
    return evenly(shown, min(most_snapshots, max(2, most_entries // max(1, most_files))))


def past_states(
    metadata: TableMetadata, io: FileIO, snapshots: Sequence[Snapshot], limit_bytes: int
) -> tuple[list[PastState], int]:
    """Return the states of the table at these snapshots, and the number of snapshots that storage no longer has.

    Small files are files below `limit_bytes`, even if the limit was different then.
    """
    specs = metadata.specs()
    store, bounds, label = store_of(str(metadata.table_uuid)), size_bounds(limit_bytes), cache(Labels(metadata).of)

    def tally(manifest: ManifestFile) -> _Tally:
        make = partial(_tally, store, io, manifest, bounds)
        return store.get(manifest.manifest_path, ("tally", limit_bytes), make)

    states, unreadable = list[PastState](), 0
    for snapshot in snapshots:
        try:
            tallies = [tally(manifest) for manifest in manifests_in(snapshot, io, specs)]
        except (OSError, TableError):
            unreadable += 1
        else:
            states.append(_state(snapshot, tallies, label, len(bounds) + 1))
    return states, unreadable


class _Tally(NamedTuple):
    """The files of one manifest: counts of its partitions, and numbers of data files by size class."""

    partitions: dict[PartitionKey, FileCounts]
    sizes: Counter[int]


def _state(
    snapshot: Snapshot, tallies: Iterable[_Tally], label: Callable[[PartitionKey], str], classes: int
) -> PastState:
    partitions: defaultdict[str, FileCounts] = defaultdict(FileCounts)
    sizes = Counter[int]()
    for tally in tallies:
        sizes.update(tally.sizes)
        for key, counts in tally.partitions.items():
            name = label(key)
            partitions[name] = partitions[name].plus(counts)
    by_class = tuple(sizes[i] for i in range(classes))
    return PastState(snapshot.snapshot_id, snapshot.timestamp_ms, dict(partitions), by_class)


def _tally(store: ManifestStore, io: FileIO, manifest: ManifestFile, bounds: Sequence[int]) -> tuple[_Tally, int]:
    facts = store.facts(io, manifest)
    totals, sizes = facts.totals(facts.live), Counter[int]()
    if manifest.content == ManifestContent.DATA:
        classes = np.searchsorted(bounds, facts.columns.size_bytes[facts.live], side="right")
        sizes.update(classes.tolist())
        small = facts.totals(facts.live[classes < len(bounds)])
        counted = {p: FileCounts(files, small[p][0] if p in small else 0) for p, (files, *_) in totals.items()}
    else:
        counted = {p: FileCounts(0, 0, files) for p, (files, *_) in totals.items()}
    tally = _Tally({facts.keys[p]: counts for p, counts in counted.items()}, sizes)
    return tally, len(counted) * _COUNTS_BYTES
