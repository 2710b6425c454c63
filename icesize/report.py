"""What happened in one call, as data: the same dictionary in Python, in JSON and behind the log line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from icesize.results import ADDED_UP, JOINED, JOINED_ONCE, SUMMED, Keys, Result, keys, together_by


def _clustered(rounds: Sequence[Report], name: str) -> dict[str, Any] | None:
    """Return what queries opened before the first round and open after the last one, and what all have written."""
    done = [report.clustering for report in rounds if report.clustering]
    if not done:
        return None
    new_bytes = sum(one["new_bytes"] for one in done)
    amplification = round(sum(report.bytes_written for report in rounds) / new_bytes, 3) if new_bytes else None
    return {**done[-1], "before": done[0]["before"], "new_bytes": new_bytes, "amplification": amplification}


@dataclass(frozen=True)
class Report(Result):
    """Outcome of a micro-batch or a maintenance call.

    `operations` and `snapshot_ids` go together (empty: nothing was committed). `rows` were added. `rows_deleted` had
    been deleted before and are in no file of the table's newest snapshot any more. Bytes are those of data files:
    `bytes_written` all new ones, of which `bytes_decoded` were decoded and encoded again by merges and `bytes_copied`
    moved as they were, `pages_copied` counting pages that were moved one by one into larger row groups;
    `decode_reasons` counts merged files that were decoded, by the reason why their bytes were not copied
    (`icesize.parquet.format.refusals.Refusal`). `bytes_ingested` hold the new rows, which were expected to take
    `bytes_predicted` (None where nothing was known of them). `writer_skew` is the most of those bytes that one writer
    had over their mean, idle writers counted; None where no rows were written, or names of files do not tell their
    writers. `small_files_max` is the largest number of mergeable small files that a touched partition holds now,
    `delete_files_max` the most delete files that are to be read with one file of these partitions. `seconds` per phase
    and `total`. `skipped` counts files by reason, `ineligible` names partitions whose small files must not be merged,
    `conflicts` are sentences about what was lost to other writers, `notes` about everything else worth knowing: merges
    that failed come first. `already_committed`: the batch was in the table before this call.
    `merge_lag_batches` counts batches committed by this process that no finished run of merges in the background has
    looked at; None where merges are not made in the background. `clustering` is there after a pass of clustering:
    `columns`, `strategy`, what queries by each column open `before` and `after` (`icesize.planning.plan.FilesScanned`),
    `new_bytes` that were not clustered before, and `amplification`, bytes written per new byte. `rows_before` and
    `rows_after` are there after a restore: the rows in the partition's data files, also those that are deleted from a
    file that stays.
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
    pages_copied: int = field(default=0, metadata=SUMMED)
    small_files_max: int = 0
    delete_files_max: int = 0
    partitions_touched: int = field(default=0, metadata=SUMMED)
    seconds: dict[str, float] = field(default_factory=dict, metadata=ADDED_UP)
    skipped: dict[str, int] = field(default_factory=dict)
    decode_reasons: dict[str, int] = field(default_factory=dict, metadata=ADDED_UP)
    ineligible: dict[str, int] = field(default_factory=dict)
    conflicts: tuple[str, ...] = field(default=(), metadata=JOINED)
    notes: tuple[str, ...] = field(default=(), metadata=JOINED_ONCE)
    already_committed: bool = False
    merge_lag_batches: int | None = None
    clustering: dict[str, Any] | None = field(default=None, metadata=together_by(_clustered))
    rows_before: int | None = None
    rows_after: int | None = None

    KEYS: ClassVar[Keys] = keys("write_amplification")

    @property
    def write_amplification(self) -> float | None:
        """W: bytes written per byte ingested; None when nothing was ingested."""
        return self.bytes_written / self.bytes_ingested if self.bytes_ingested else None
