"""The commits of `main`, from snapshot summaries: batches, merges, and commits of other writers.

The snapshots of one icesize commit (an APPEND and the REPLACE on top of it) share its run id and count as one commit.
Only the table's metadata is read, no manifest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.errors import BatchError
from icesize.planning.retention.ancestry import SnapshotFact, is_one_commit
from icesize.results import Result, keys
from icesize.table.catalog.history import (
    fact_of,
    is_ours,
    known_history,
    number_of,
    operation_of,
    summary_count,
    summary_of,
)
from icesize.table.records import ledger
from icesize.table.records.summary import (
    BYTES_INGESTED,
    CLUSTERED_BY,
    KIND,
    LEDGER,
    SECONDS,
    SMALL_FILES_MAX,
    CommitKind,
)


@dataclass(frozen=True)
class Commit:
    """One commit of `main`: its snapshots, newest first."""

    snapshots: list[Snapshot]

    @property
    def last(self) -> Snapshot:
        """The newest snapshot, which shows the whole commit."""
        return self.snapshots[0]

    @property
    def is_ours(self) -> bool:
        """True if icesize made the commit."""
        return is_ours(self.last)

    @property
    def operation(self) -> str:
        """The operations of its snapshots, oldest first: `append+replace`."""
        return "+".join(s.summary.operation.value for s in reversed(self.snapshots) if s.summary)

    @property
    def batch(self) -> tuple[str | None, int | None]:
        """Stream id and batch id; None for both if there are none, or if another release wrote them in another form."""
        value = summary_of(self.last, LEDGER)
        try:
            entry = ledger.parse(value) if value else None
        except BatchError:
            entry = None
        return (entry.stream_id, entry.batch_id) if entry else (None, None)


def commit_runs(history: Iterable[Snapshot]) -> list[list[Commit]]:
    """Split a history, newest first, into commits, and into runs where snapshots have expired."""
    runs: list[list[Commit]] = []
    child: SnapshotFact | None = None
    for snapshot in history:
        parent = fact_of(snapshot)
        if child is None or child.parent_id != parent.snapshot_id:
            runs.append([Commit([snapshot])])
        elif is_one_commit(parent, child):
            runs[-1][-1].snapshots.append(snapshot)
        else:
            runs[-1].append(Commit([snapshot]))
        child = parent
    return runs


def commits_of(metadata: TableMetadata) -> list[Commit]:
    """Return the commits of `main`, newest first."""
    return [commit for run in commit_runs(known_history(metadata)) for commit in run]


@dataclass(frozen=True)
class PastCommit(Result):
    """One commit of `main`, from the summaries of its snapshots. A value that they do not record is None.

    Attributes:
        snapshot_ids: Its snapshots, oldest first.
        timestamp_ms: The time of its newest snapshot, in milliseconds since 1970.
        kind: A value of CommitKind.
        operation: The operations of its snapshots, oldest first: `append+replace`.
        stream_id: The stream of its micro-batch.
        batch_id: The number of its micro-batch.
        writer: The engine of another writer.
        rows: Rows added. Rows that were only rewritten do not count.
        rows_deleted: Rows that left the data files. Rows that were only rewritten do not count.
        files_added: Data files added. Includes files that the commit's first snapshot adds and its second one removes.
        files_removed: Data files removed, counted in the same way.
        delete_files_added: Delete files added.
        delete_files_removed: Delete files removed.
        bytes_ingested: Bytes of the new rows.
        bytes_written: Bytes of all new data files.
        amplification_so_far: Write amplification of all commits from the oldest one that the table keeps to this one.
            Commits that do not record the bytes they ingested are left out.
        small_files_max: The most mergeable small files in one touched partition after the commit.
        total_files: Data files of the table after the commit.
        total_delete_files: Delete files of the table after the commit.
        total_bytes: Bytes of the table's files after the commit.
        total_rows: Rows in the table's data files after the commit.
        seconds: Seconds that icesize spent before the commit.
    """

    snapshot_ids: tuple[int, ...]
    timestamp_ms: int
    kind: str
    operation: str
    stream_id: str | None = None
    batch_id: int | None = None
    writer: str | None = None
    rows: int | None = None
    rows_deleted: int | None = None
    files_added: int | None = None
    files_removed: int | None = None
    delete_files_added: int | None = None
    delete_files_removed: int | None = None
    bytes_ingested: int | None = None
    bytes_written: int | None = None
    amplification_so_far: float | None = None
    small_files_max: int | None = None
    total_files: int | None = None
    total_delete_files: int | None = None
    total_bytes: int | None = None
    total_rows: int | None = None
    seconds: float | None = None

    KEYS = keys("write_amplification")

    @property
    def write_amplification(self) -> float | None:
        """Bytes written per byte ingested; None if nothing was ingested, or if the bytes are not recorded."""
        return self.bytes_written / self.bytes_ingested if self.bytes_ingested and self.bytes_written else None

    @property
    def author(self) -> str:
        """The writer of the commit: `clicks batch 17`, `icesize`, `spark 4.1.4`; empty if it is not recorded."""
        if self.stream_id is not None:
            return f"{self.stream_id} batch {self.batch_id}"
        return (self.writer or "") if self.kind == CommitKind.OTHER.value else "icesize"


@dataclass(frozen=True)
class History(Result):
    """The newest commits of `main`, newest first.

    Attributes:
        table: The full name of the table.
        commits: The listed commits.
        commits_kept: The number of all commits that the table still keeps.
        since_ms: The time of the oldest of them, in milliseconds since 1970; None if there is none.
    """

    table: str
    commits: tuple[PastCommit, ...]
    commits_kept: int = 0
    since_ms: int | None = None

    KEYS = keys("write_amplification", "seconds_per_batch")

    @property
    def write_amplification(self) -> float | None:
        """Bytes written per byte ingested, by all writers, over all commits that the table keeps.

        Commits that do not record the bytes they ingested are left out.
        """
        return self.commits[0].amplification_so_far if self.commits else None

    @property
    def batches(self) -> list[PastCommit]:
        """The listed commits with new rows through icesize, newest first."""
        return [commit for commit in self.commits if CommitKind(commit.kind).brings_rows]

    @property
    def seconds_per_batch(self) -> float | None:
        """Median of the seconds that icesize spent on a listed batch before its commit; None if none is recorded."""
        known = [batch.seconds for batch in self.batches if batch.seconds is not None]
        return median(known) if known else None


def history_of(metadata: TableMetadata, table: str, limit: int | None = None) -> History:
    """Return the newest `limit` commits of `main`; None returns all that the table keeps.

    Raises ValueError for a limit below 1.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"'limit' ({limit}) must be >= 1: leave it out for all commits")
    past_commits, ingested, written = list[PastCommit](), 0, 0
    for commit in reversed(commits_of(metadata)):
        past = _past_commit(commit)
        if past.bytes_ingested is not None and past.bytes_written is not None:
            ingested, written = ingested + past.bytes_ingested, written + past.bytes_written
        past_commits.append(replace(past, amplification_so_far=written / ingested if ingested else None))
    oldest_ms = past_commits[0].timestamp_ms if past_commits else None
    return History(table, tuple(islice(reversed(past_commits), limit)), len(past_commits), oldest_ms)


def _past_commit(commit: Commit) -> PastCommit:
    kind = _kind(commit)
    stream_id, batch_id = commit.batch
    facts = PastCommit(
        snapshot_ids=tuple(s.snapshot_id for s in reversed(commit.snapshots)),
        timestamp_ms=commit.last.timestamp_ms,
        kind=kind.value,
        operation=commit.operation,
        stream_id=stream_id,
        batch_id=batch_id,
    )
    if any(snapshot.summary is None for snapshot in commit.snapshots):
        return facts
    return replace(facts, **_changes(commit, kind), **_afterwards(commit.last))


def _kind(commit: Commit) -> CommitKind:
    """Return the kind of a commit: that of its first step, because merges are staged on top of new rows."""
    if not commit.is_ours:
        return CommitKind.OTHER
    recorded = summary_of(commit.snapshots[-1], KIND)
    kind = CommitKind(recorded) if recorded in list(CommitKind) else CommitKind.OTHER
    if kind == CommitKind.APPEND and summary_of(commit.last, LEDGER) is not None:
        return CommitKind.BATCH
    return CommitKind.CLUSTER if kind == CommitKind.MERGE and summary_of(commit.last, CLUSTERED_BY) else kind


def _changes(commit: Commit, kind: CommitKind) -> dict[str, Any]:
    """Return the changes of a commit: the sums over its snapshots."""
    # a REPLACE adds the rows of its input files, without the deleted ones: its net change is <= 0
    net = [
        (operation_of(s), summary_count(s, "added-records"), summary_count(s, "deleted-records"))
        for s in commit.snapshots
    ]
    rows = sum(added if op == Operation.APPEND else max(0, added - gone) for op, added, gone in net)
    return {
        "writer": None if commit.is_ours else _engine(commit.last),
        "rows": rows,
        "rows_deleted": sum(max(0, gone - added) for _, added, gone in net),
        "files_added": _sum(commit, "added-data-files"),
        "files_removed": _sum(commit, "deleted-data-files"),
        "delete_files_added": _sum(commit, "added-delete-files"),
        "delete_files_removed": _sum(commit, "removed-delete-files"),
        "bytes_written": _sum(commit, "added-files-size"),
        "bytes_ingested": _ingested(commit, kind),
    }


def _ingested(commit: Commit, kind: CommitKind) -> int | None:
    """Return the bytes of new rows.

    An overwrite of data files also contains older rows. Only icesize records how many of its bytes are new.
    """
    if kind != CommitKind.DELETES and any(operation_of(s) == Operation.OVERWRITE for s in commit.snapshots):
        return number_of(commit.last, BYTES_INGESTED)
    return sum(summary_count(s, "added-files-size") for s in commit.snapshots if operation_of(s) == Operation.APPEND)


def _afterwards(last: Snapshot) -> dict[str, Any]:
    """Return the totals of the table after a commit, and the seconds before it."""
    counts = {
        "small_files_max": SMALL_FILES_MAX,
        "total_files": "total-data-files",
        "total_delete_files": "total-delete-files",
        "total_bytes": "total-files-size",
        "total_rows": "total-records",
    }
    known = {name: number_of(last, key) for name, key in counts.items()}
    return {**known, "seconds": number_of(last, SECONDS, float)}


def _engine(snapshot: Snapshot) -> str | None:
    """Return the name and version of the engine, which Iceberg's Java library records."""
    words = (summary_of(snapshot, "engine-name"), summary_of(snapshot, "engine-version"))
    return " ".join(word for word in words if word) or None


def _sum(commit: Commit, *names: str) -> int:
    return sum(summary_count(snapshot, key) for snapshot in commit.snapshots for key in names)
