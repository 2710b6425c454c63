"""The snapshots of a table's metadata: those that main went through, the refs that hold others, what a summary says."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.planning.retention import ancestry
from icesize.planning.retention.ancestry import RefFact, SnapshotFact


def main_history(metadata: TableMetadata) -> list[Snapshot]:
    """What is known of the history of `main`, newest first: its ancestors, then what version tags hold of it.

    Where a snapshot's parent is not the next one, those between the two have expired.
    """
    snapshots = {s.snapshot_id: s for s in metadata.snapshots}
    facts = [
        SnapshotFact(s.snapshot_id, s.parent_snapshot_id, s.timestamp_ms, "", sequence_number=s.sequence_number or 0)
        for s in metadata.snapshots
    ]
    return [snapshots[fact.snapshot_id] for fact in reversed(ancestry.main_history(facts, refs_of(metadata)))]


def known_ancestors(metadata: TableMetadata) -> Iterator[Snapshot]:
    """The head of main and those it came from, newest first, up to the first whose parent has expired."""
    snapshots = {s.snapshot_id: s for s in metadata.snapshots}
    snapshot = snapshots.get(metadata.current_snapshot_id or -1)
    while snapshot is not None:
        yield snapshot
        snapshot = snapshots.get(snapshot.parent_snapshot_id or -1)


def refs_of(metadata: TableMetadata) -> list[RefFact]:
    """Branches and tags as plain values."""
    return [
        RefFact(
            name, ref.snapshot_ref_type == SnapshotRefType.BRANCH, ref.snapshot_id,
            ref.max_ref_age_ms, ref.max_snapshot_age_ms, ref.min_snapshots_to_keep,
        )
        for name, ref in metadata.refs.items()
    ]  # fmt: skip


def operation_of(snapshot: Snapshot) -> Operation | None:
    """What a snapshot did, as far as its summary tells."""
    return snapshot.summary.operation if snapshot.summary else None


def summary_of(snapshot: Snapshot, key: str) -> str | None:
    """What a snapshot's summary says under a key."""
    return snapshot.summary.additional_properties.get(key) if snapshot.summary else None
