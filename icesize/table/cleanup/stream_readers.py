"""Streaming readers of a table, as their checkpoints tell: what each still needs, and what that means here."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import ancestors_of

from icesize.errors import TableError
from icesize.table.cleanup.checkpoints import NOTHING_READ, Reader


def positions_in(metadata: TableMetadata, readers: Sequence[Reader], force: bool) -> tuple[set[int], list[str]]:
    """Snapshots of the table that readers stand on; sentences about readers that were given up by `force`.

    A query may read several tables, so ids that this table does not have may be another's, but not all of them. Raises
    TableError for a reader none of whose positions the table has: what it needs cannot be kept.
    """
    ids = {s.snapshot_id for s in metadata.snapshots}
    history = list(ancestors_of(metadata.current_snapshot(), metadata))
    found: set[int] = set()
    notes: list[str] = []
    for reader in readers:
        wanted = set(reader.positions)
        if NOTHING_READ in wanted:
            # it begins at the oldest snapshot of main
            wanted |= {snapshot.snapshot_id for snapshot in history[-1:]}
        if wanted & ids:
            found |= wanted & ids
        elif force:
            notes.append(f"the reader {reader.path} was given up by force: the table does not have its position")
        else:
            raise TableError(_lost(reader), path=reader.path, snapshot_ids=reader.positions)
    return found, notes


def _lost(reader: Reader) -> str:
    where = ", ".join(map(str, reader.positions)) or "nowhere: it has read no Iceberg table yet"
    return (
        f"Cannot expire snapshots: the reader {reader.path} stands at {where}, which this table does not have (expired "
        "already, or it reads another table), so what it needs cannot be kept; leave it out, or go on without it by "
        "force"
    )


def stranded(readers: Sequence[Reader], expired: Collection[int]) -> list[str]:
    """Sentences about readers whose first snapshot goes: one trigger of Spark's asks for it again at each start."""
    return [
        f"the reader {reader.path} began at a snapshot that has expired: under Trigger.AvailableNow Iceberg looks it "
        "up at every start and fails; other triggers go on"
        for reader in readers
        if set(reader.beginnings) & set(expired)
    ]
