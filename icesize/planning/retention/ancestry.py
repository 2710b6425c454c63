"""Snapshots and refs of a table as plain values, and the part of its history that `main` went through.

A snapshot that a version tag holds has lost its descendants to an earlier expiry, so its parents no longer say that it
was on `main`. The tag does: only snapshots of `main` ever get one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from icesize.planning.files import MAIN, PartitionKey

VERSION_TAG = "icesize-version-"
"""Prefix of our own tags, followed by the id of the snapshot that they hold for the sake of versions."""
TOMBSTONE_BRANCH = "icesize-tombstones"
"""The branch with the keys that batches of upserts have deleted."""
FOR_EVER_MS = 2**63 - 1
"""The maximum age of version tags and of the branch of tombstones.

Without it, `history.expire.max-ref-age-ms` would let expiry by any engine remove them.
"""


@dataclass(frozen=True, slots=True)
class SnapshotFact:
    """One snapshot of the table.

    `operation` is Iceberg's ("append", "replace", "overwrite", "delete"; "" if unknown). The snapshots of one icesize
    commit share `run_id`. `touched` are the partitions whose files the snapshot added or removed; only `keep_versions`
    needs it, and only for `history_of_main`. If its parent has expired, they are all partitions whose files differ from
    the snapshot before it in `history_of_main`: changes between the two count as its own. `sequence_number` orders
    snapshots whose parents are gone; 0, as in format v1, leaves that to `timestamp_ms`. `writers` are the programs that
    keep their progress in its summary.
    """

    snapshot_id: int
    parent_id: int | None
    timestamp_ms: int
    operation: str
    run_id: str | None = None
    touched: frozenset[PartitionKey] = frozenset()
    sequence_number: int = 0
    writers: tuple[str, ...] = ()

    @property
    def age_key(self) -> tuple[int, int, int]:
        """Sorts snapshots from the oldest to the newest."""
        return self.sequence_number, self.timestamp_ms, self.snapshot_id

    @property
    def is_first(self) -> bool:
        """Return whether the table certainly had no snapshot before it; in format v1 that is unknown."""
        # PyIceberg drops the id of a parent that expires, so that having none means little
        return self.parent_id is None and self.sequence_number == 1


@dataclass(frozen=True, slots=True)
class RefFact:
    """One branch or tag, with its own retention where it has some (milliseconds; None: the table's)."""

    name: str
    is_branch: bool
    snapshot_id: int
    max_ref_age_ms: int | None = None
    max_snapshot_age_ms: int | None = None
    min_snapshots_to_keep: int | None = None

    @property
    def holds_version(self) -> bool:
        """Return whether it is a version tag. A branch with such a name is not icesize's."""
        return not self.is_branch and self.name.startswith(VERSION_TAG)


def is_one_commit(parent: SnapshotFact, child: SnapshotFact) -> bool:
    """Return whether both are of one commit of icesize: a child on top of its parent, with one run id.

    A commit appends or overwrites, then merges on top.
    """
    return child.parent_id == parent.snapshot_id and child.run_id is not None and child.run_id == parent.run_id


def ancestors(table: Mapping[int, SnapshotFact], snapshot_id: int | None) -> Iterator[SnapshotFact]:
    """Yield the snapshot and its ancestors, newest first, up to the first that is not in `table`."""
    while snapshot_id is not None and snapshot_id in table:
        snapshot = table[snapshot_id]
        yield snapshot
        snapshot_id = snapshot.parent_id


def history_of_main(snapshots: Collection[SnapshotFact], refs: Collection[RefFact]) -> tuple[SnapshotFact, ...]:
    """Return the known history of `main`, as `history_behind` does."""
    return history_behind(next((ref.snapshot_id for ref in refs if ref.name == MAIN), None), snapshots, refs)


def history_behind(
    head: int | None, snapshots: Collection[SnapshotFact], refs: Collection[RefFact]
) -> tuple[SnapshotFact, ...]:
    """Return the known history of a snapshot, oldest first: its ancestors, and before them those of version tags.

    If a snapshot's parent is not the one before it, snapshots between the two have expired. A version tag on a snapshot
    that the branch has left (by a rollback, or because it was replaced) does not belong to it.
    """
    table = {snapshot.snapshot_id: snapshot for snapshot in snapshots}
    history = list(ancestors(table, head))
    known = {snapshot.snapshot_id for snapshot in history}
    held = {ref.snapshot_id for ref in refs if ref.holds_version and ref.snapshot_id in table} - known
    for newest in sorted((table[snapshot_id] for snapshot_id in held), key=lambda s: s.age_key, reverse=True):
        if newest.snapshot_id in known or not history or newest.age_key > history[-1].age_key:
            continue
        piece = list(ancestors(table, newest.snapshot_id))
        # a piece that ends in the history left it there
        if piece[-1].snapshot_id not in known:
            history += piece
            known.update(snapshot.snapshot_id for snapshot in piece)
    return tuple(reversed(history))
