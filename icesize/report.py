"""The outcome of one call, as data: the same dictionary in Python, in JSON and behind the log line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from icesize.results import ADDED_UP, JOINED, JOINED_ONCE, SUMMED, Result, keys, together_by


def _clustered(rounds: Sequence[Report], name: str) -> dict[str, Any] | None:
    """Combine the clustering of all rounds: `before` of the first, `after` of the last, and the total bytes."""
    done = [report.clustering for report in rounds if report.clustering]
    if not done:
        return None
    new_bytes = sum(one["new_bytes"] for one in done)
    amplification = round(sum(report.bytes_written for report in rounds) / new_bytes, 3) if new_bytes else None
    return {**done[-1], "before": done[0]["before"], "new_bytes": new_bytes, "amplification": amplification}


@dataclass(frozen=True)
class Report(Result):
    """Outcome of a micro-batch or a maintenance call. All bytes but `metadata_bytes_written` are bytes of data files.

    Attributes:
        table: The full name of the table.
        batch_id: Spark's number of the micro-batch; None for maintenance.
        snapshot_ids: The snapshots that the call committed; empty if it committed nothing.
        operations: The operation of each of these snapshots: `append`, `replace` or `overwrite`.
        rows: Rows added.
        rows_deleted: Rows that other writers had deleted, and that this call removed from the data files.
        files_added: Data files that the commits added.
        files_removed: Data files that the commits removed.
        bytes_ingested: Bytes of the new rows.
        bytes_predicted: Bytes predicted for the new rows; None if nothing was known about them.
        writer_skew: The most new bytes of one writer, divided by the mean of all writers, idle ones included. None if
            no rows were written, or if the names of files do not identify their writers.
        bytes_written: Bytes of all new files.
        bytes_copied: Bytes that merges copied without decoding.
        bytes_decoded: Bytes that merges decoded and encoded again.
        metadata_bytes_written: Bytes of the manifests and manifest lists that the commits added.
        pages_copied: Pages that merges copied one by one into larger row groups.
        small_files_max: The largest number of mergeable small files in a touched partition after the call.
        delete_files_max: The most delete files that apply to one data file of these partitions.
        partitions_touched: Partitions that received rows or merges.
        seconds: Seconds of each phase, and `total`.
        skipped: The number of unchanged files, by reason.
        decode_reasons: The number of merged files that were decoded, by the reason why their bytes were not copied
            (`icesize.parquet.format.refusals.Refusal`).
        ineligible: Partitions with small files that must not be merged, and the number of these files.
        conflicts: Sentences about changes that were dropped because of other writers.
        internal_errors: Sentences about merges that were dropped because of a mistake in icesize, which is to be
            reported. The `notes` also contain them, and the log has the traceback.
        notes: Sentences about everything else to know; failed merges first.
        already_committed: True if the table contained the batch before this call.
        merge_lag_batches: Batches committed by this process that no finished run of background merges has covered; None
            if merges do not run in the background.
        clustering: After a clustering: `columns`; `strategy`; the files that queries by each column open `before` and
            `after` (`icesize.planning.plan.FilesScanned`); `new_bytes`, which were not clustered before; and
            `amplification`, bytes written per new byte. None after other calls.
        upsert: After a batch of upserts: the number of `events`, of `keys` with an event, and of keys that were `late`,
            `updated`, `deleted` and `doubled`, which had several rows. None after other calls.
        rows_before: Rows in the partition's data files before a restore, deleted rows of kept files included.
        rows_after: The same number after a restore.
    """

    table: str = ""
    batch_id: int | None = None
    snapshot_ids: tuple[int, ...] = field(default=(), metadata=JOINED)
    operations: tuple[str, ...] = field(default=(), metadata=JOINED)
    rows: int = 0
    rows_deleted: int = field(default=0, metadata=SUMMED)
    files_added: int = field(default=0, metadata=SUMMED)
    files_removed: int = field(default=0, metadata=SUMMED)
    bytes_ingested: int = 0
    bytes_predicted: int | None = None
    writer_skew: float | None = None
    bytes_written: int = field(default=0, metadata=SUMMED)
    bytes_copied: int = field(default=0, metadata=SUMMED)
    bytes_decoded: int = field(default=0, metadata=SUMMED)
    metadata_bytes_written: int = field(default=0, metadata=SUMMED)
    pages_copied: int = field(default=0, metadata=SUMMED)
    small_files_max: int = 0
    delete_files_max: int = 0
    partitions_touched: int = field(default=0, metadata=SUMMED)
    seconds: dict[str, float] = field(default_factory=dict, metadata=ADDED_UP)
    skipped: dict[str, int] = field(default_factory=dict)
    decode_reasons: dict[str, int] = field(default_factory=dict, metadata=ADDED_UP)
    ineligible: dict[str, int] = field(default_factory=dict)
    conflicts: tuple[str, ...] = field(default=(), metadata=JOINED)
    internal_errors: tuple[str, ...] = field(default=(), metadata=JOINED)
    notes: tuple[str, ...] = field(default=(), metadata=JOINED_ONCE)
    already_committed: bool = False
    merge_lag_batches: int | None = None
    clustering: dict[str, Any] | None = field(default=None, metadata=together_by(_clustered))
    upsert: dict[str, int] | None = None
    rows_before: int | None = None
    rows_after: int | None = None

    KEYS = keys("write_amplification")

    @property
    def job(self) -> str:
        """The job that returned it, in metrics."""
        if self.batch_id is not None or self.rows:
            return "batch"
        if self.rows_after is not None:
            return "restore"
        return "cluster" if self.clustering else "merge"

    @property
    def write_amplification(self) -> float | None:
        """Bytes written per byte ingested; None if nothing was ingested."""
        return self.bytes_written / self.bytes_ingested if self.bytes_ingested else None
