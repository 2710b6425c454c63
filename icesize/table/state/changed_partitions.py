"""Which partitions got new files since icesize last merged: what `after_batch` has to look at."""

from __future__ import annotations

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.planning.files import PartitionKey
from icesize.table.catalog.history import known_ancestors
from icesize.table.commit.summary import BASE_ID, RUN_ID
from icesize.table.manifests.entries import read_entries
from icesize.table.manifests.lists import manifests_of


def partitions_changed(metadata: TableMetadata, io: FileIO) -> set[PartitionKey] | None:
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
    return {
        PartitionKey(manifest.partition_spec_id, entry.values)
        for manifest in manifests_of(metadata.current_snapshot() if newer else None, io).data
        if manifest.added_snapshot_id in newer | ours
        for entry in read_entries(io, manifest)
        if entry.snapshot_id in newer
    }


def _planned_on(snapshot: Snapshot) -> str | None:
    """The id of the snapshot that a merge of ours was planned on, None for all other snapshots."""
    if snapshot.summary is None or snapshot.summary.operation != Operation.REPLACE:
        return None
    facts = snapshot.summary.additional_properties
    return facts.get(BASE_ID) if RUN_ID in facts else None
