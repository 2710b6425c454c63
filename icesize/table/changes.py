"""Which partitions got new files since icesize last merged: what `after_batch` has to look at."""

from __future__ import annotations

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, ancestors_of

from icesize.planning.layout import PartitionKey
from icesize.table.manifests import ADDED, read_entries
from icesize.table.request import RUN_ID


def partitions_changed(metadata: TableMetadata, io: FileIO) -> set[PartitionKey] | None:
    """Partitions with files added by others since the newest REPLACE snapshot of ours.

    None means all of them: there is no such snapshot, or it has expired. Stateless, so it holds after a restart.
    """
    newer: set[int] = set()
    for snapshot in ancestors_of(metadata.current_snapshot(), metadata):
        summary = snapshot.summary
        if summary and summary.operation == Operation.REPLACE and RUN_ID in summary.additional_properties:
            break
        newer.add(snapshot.snapshot_id)
    else:
        return None
    head = metadata.current_snapshot()
    manifests = head.manifests(io) if head and newer else []
    return {
        PartitionKey(manifest.partition_spec_id, entry.values)
        for manifest in manifests
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id in newer
        for entry in read_entries(io, manifest, with_data=False)
        if entry.status == ADDED or entry.snapshot_id in newer
    }
