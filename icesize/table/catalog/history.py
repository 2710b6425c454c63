"""The past of a table in its metadata: the snapshots of a branch, refs to others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.planning.files import Head
from icesize.planning.retention import ancestry
from icesize.planning.retention.ancestry import TOMBSTONE_BRANCH, RefFact, SnapshotFact
from icesize.table.records.summary import RUN_ID

Number = TypeVar("Number", int, float)


def known_history(metadata: TableMetadata) -> list[Snapshot]:
    """Return the known history of the current snapshot, newest first: its ancestors, then what version tags hold.

    If a snapshot's parent is not the next one, the snapshots between them have expired.
    """
    snapshots = {s.snapshot_id: s for s in metadata.snapshots}
    facts = [*map(fact_of, metadata.snapshots)]
    history = ancestry.history_behind(metadata.current_snapshot_id, facts, refs_of(metadata))
    return [snapshots[fact.snapshot_id] for fact in reversed(history)]


def fact_of(snapshot: Snapshot) -> SnapshotFact:
    """Return a snapshot as a plain value, without the partitions that it touched."""
    operation = snapshot.summary.operation.value if snapshot.summary else ""
    return SnapshotFact(
        snapshot.snapshot_id, snapshot.parent_snapshot_id, snapshot.timestamp_ms, operation,
        summary_of(snapshot, RUN_ID), sequence_number=snapshot.sequence_number or 0, writers=tuple(_writers(snapshot)),
    )  # fmt: skip


_KAFKA_OFFSETS = "kafka.connect.offsets."


def _writers(snapshot: Snapshot) -> Iterator[str]:
    """Yield the writers that keep their progress in the summary: Flink, Spark's own sink, and Kafka Connect."""
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    if "flink.max-committed-checkpoint-id" in summary:
        operator = summary.get("flink.operator-id")
        yield f"Flink job {summary.get('flink.job-id', '')}" + (f", operator {operator}" if operator else "")
    if "spark.sql.streaming.epochId" in summary:
        yield f"Spark query {summary.get('spark.sql.streaming.queryId', '')}"
    for key in summary:
        if key.startswith(_KAFKA_OFFSETS):
            yield f"Kafka Connect {key.removeprefix(_KAFKA_OFFSETS)}"


def age_of(snapshot: Snapshot) -> tuple[int, int]:
    """Return a key that orders snapshots of one branch from the oldest to the newest."""
    return snapshot.sequence_number or 0, snapshot.timestamp_ms


def head_snapshot(metadata: TableMetadata, ref: str | None = None) -> Snapshot | None:
    """Return the snapshot that a branch points to, without a name the current one; None for a branch without one.

    A branch that does not exist begins at the current snapshot, except that of tombstones.
    """
    branch = metadata.refs.get(ref or "")
    if branch is None:
        return None if ref == TOMBSTONE_BRANCH else metadata.current_snapshot()
    return metadata.snapshot_by_id(branch.snapshot_id)


def head_of(metadata: TableMetadata, ref: str | None = None) -> Head:
    """Return the head of a branch, without a name that of the current snapshot."""
    snapshot = head_snapshot(metadata, ref)
    return Head(snapshot.snapshot_id, snapshot.sequence_number or 0) if snapshot else Head()


NO_HISTORY = "the catalog shows the newest snapshot only; restore or read older ones by its own branches and tags"


def hides_history(metadata: TableMetadata) -> bool:
    """Return True if the catalog shows only the newest snapshot, without parent and log, as Nessie does."""
    if metadata.metadata_log or len(metadata.snapshots) > 1:
        return False
    head = metadata.current_snapshot()
    has_predecessors = head is not None and head.parent_snapshot_id is None and (head.sequence_number or 0) > 1
    return has_predecessors or "nessie.commit.id" in metadata.properties


def known_ancestors(metadata: TableMetadata, ref: str | None = None) -> Iterator[Snapshot]:
    """Yield the head of a branch, or the current snapshot, and its ancestors, newest first.

    The last one is the first whose parent has expired.
    """
    snapshots = {s.snapshot_id: s for s in metadata.snapshots}
    snapshot = head_snapshot(metadata, ref)
    while snapshot is not None:
        yield snapshot
        snapshot = snapshots.get(snapshot.parent_snapshot_id or -1)


def refs_of(metadata: TableMetadata) -> list[RefFact]:
    """Return branches and tags as plain values."""
    return [
        RefFact(
            name, ref.snapshot_ref_type == SnapshotRefType.BRANCH, ref.snapshot_id,
            ref.max_ref_age_ms, ref.max_snapshot_age_ms, ref.min_snapshots_to_keep,
        )
        for name, ref in metadata.refs.items()
    ]  # fmt: skip


def operation_of(snapshot: Snapshot) -> Operation | None:
    """Return the operation of a snapshot; None without a summary."""
    return snapshot.summary.operation if snapshot.summary else None


def summary_of(snapshot: Snapshot, key: str) -> str | None:
    """Return the value of a key in a snapshot's summary; None if it is missing."""
    return snapshot.summary.additional_properties.get(key) if snapshot.summary else None


def is_ours(snapshot: Snapshot) -> bool:
    """Return True if icesize made the snapshot."""
    return summary_of(snapshot, RUN_ID) is not None


def number_of(snapshot: Snapshot, key: str, parse: Callable[[str], Number] = int) -> Number | None:
    """Return the number of a key in a snapshot's summary; None if it is missing or not a number >= 0."""
    try:
        value = parse(summary_of(snapshot, key) or "")
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def summary_count(snapshot: Snapshot, key: str) -> int:
    """Return a count in a snapshot's summary; 0 if it is missing, because summaries omit zeros."""
    return number_of(snapshot, key) or 0
