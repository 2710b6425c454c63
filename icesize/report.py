"""What happened in one call, as data: the same dictionary in Python, in JSON and behind the log line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from icesize.markup import card
from icesize.units import format_bytes


@dataclass(frozen=True)
class Report:
    """Outcome of a micro-batch or a maintenance call.

    `operations` and `snapshot_ids` go together (empty: nothing was committed). `rows` were added. `rows_deleted` had
    been deleted before and are in no file of the table's newest snapshot any more. Bytes are those of data files:
    `bytes_written` all new ones, of which `bytes_decoded` were decoded and encoded again by merges and `bytes_copied`
    moved as they were, `pages_copied` counting pages that were moved one by one into larger row groups;
    `decoded_because` counts merged files that were decoded, by the reason why their bytes were not copied
    (`icesize.parquet.format.refusals.Refusal`). `bytes_ingested` hold the new rows, which were expected to take
    `bytes_predicted` (None where nothing was known of them). `writer_skew` is the most of those bytes that one writer
    had over their mean, idle writers counted; None where no rows were written, or names of files do not tell their
    writers. `small_files_max` is the largest number of mergeable small files that a touched partition holds now,
    `delete_files_max` the most delete files that are to be read with one file of these partitions. `seconds` per phase
    and `total`. `skipped` counts files by reason, `held_back` names partitions whose small files must not be merged,
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
    snapshot_ids: tuple[int, ...] = ()
    operations: tuple[str, ...] = ()
    rows: int = 0
    rows_deleted: int = 0
    files_added: int = 0
    files_removed: int = 0
    bytes_ingested: int = 0
    bytes_predicted: int | None = None
    writer_skew: float | None = None
    bytes_written: int = 0
    bytes_copied: int = 0
    bytes_decoded: int = 0
    pages_copied: int = 0
    small_files_max: int = 0
    delete_files_max: int = 0
    partitions_touched: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    decoded_because: dict[str, int] = field(default_factory=dict)
    held_back: dict[str, int] = field(default_factory=dict)
    conflicts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    already_committed: bool = False
    merge_lag_batches: int | None = None
    clustering: dict[str, Any] | None = None
    rows_before: int | None = None
    rows_after: int | None = None

    @classmethod
    def together(cls, reports: Sequence[Report]) -> Report:
        """Of one call that committed in rounds: what they did in sum, and what the last of them left.

        A partition counts for each round that touched it.
        """
        phases = dict.fromkeys(phase for report in reports for phase in report.seconds)
        because = sum((Counter(report.decoded_because) for report in reports), Counter[str]())
        return replace(
            reports[-1],
            snapshot_ids=tuple(snapshot_id for report in reports for snapshot_id in report.snapshot_ids),
            operations=tuple(operation for report in reports for operation in report.operations),
            rows_deleted=sum(report.rows_deleted for report in reports),
            files_added=sum(report.files_added for report in reports),
            files_removed=sum(report.files_removed for report in reports),
            bytes_written=sum(report.bytes_written for report in reports),
            bytes_copied=sum(report.bytes_copied for report in reports),
            bytes_decoded=sum(report.bytes_decoded for report in reports),
            pages_copied=sum(report.pages_copied for report in reports),
            partitions_touched=sum(report.partitions_touched for report in reports),
            seconds={phase: round(sum(r.seconds.get(phase, 0.0) for r in reports), 4) for phase in phases},
            decoded_because=dict(because),
            clustering=_clustered_together(reports),
            conflicts=tuple(conflict for report in reports for conflict in report.conflicts),
            notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
        )

    @property
    def write_amplification(self) -> float | None:
        """W: bytes written per byte ingested; None when nothing was ingested."""
        return self.bytes_written / self.bytes_ingested if self.bytes_ingested else None

    def to_dict(self) -> dict[str, Any]:
        """Stable keys, JSON-ready values, ids of snapshots as texts; later releases may add keys, never rename them."""
        data = with_text_ids(asdict(self))
        data["write_amplification"] = self.write_amplification
        return data

    def __str__(self) -> str:
        if self.already_committed:
            return f"batch {self.batch_id} already committed to {self.table}"
        head = f"batch {self.batch_id}: " if self.batch_id is not None else ""
        if not self.snapshot_ids:
            what, where = ("nothing was committed", "to") if self.conflicts else ("nothing to do", "in")
            return (f"{head}{what}" if head else f"{what} {where} {self.table}") + self._tail()
        parts = [f"{head}{self._rows()}", f"files +{self.files_added} -{self.files_removed}"]
        if self.write_amplification is not None:
            parts.append(f"W {self.write_amplification:.2f}")
        if self.rows_after is None:  # a restored partition is not looked at again
            parts.append(f"most small files {self.small_files_max}")
        if self.delete_files_max:
            parts.append(f"most delete files {self.delete_files_max}")
        return "  ".join((*parts, f"{self.seconds.get('total', 0.0):.2f} s")) + self._tail()

    def _rows(self) -> str:
        if self.rows_after is not None:
            return f"rows {self.rows_before or 0:,} -> {self.rows_after:,}"
        if self.rows or self.batch_id is not None:
            return f"{self.rows:,} rows"
        return f"{self.rows_deleted:,} deleted rows left out" if self.rows_deleted else "rows unchanged"

    def _repr_html_(self) -> str:
        head = f"batch {self.batch_id} of {self.table}" if self.batch_id is not None else self.table
        if self.already_committed:
            return card(f"{head}: committed already", sentences=self.notes)
        amplification = self.write_amplification
        facts = (
            ("snapshots", ", ".join(f"{i} {o}" for i, o in zip(self.snapshot_ids, self.operations, strict=True))),
            ("rows", f"{self.rows:,}" if self.rows else ""),
            ("deleted rows left out", f"{self.rows_deleted:,}" if self.rows_deleted else ""),
            (
                "rows of the partition",
                "" if self.rows_after is None else f"{self.rows_before or 0:,} -> {self.rows_after:,}",
            ),
            ("files", f"+{self.files_added:,} -{self.files_removed:,}"),
            ("written", format_bytes(self.bytes_written)),
            ("W", "" if amplification is None else f"{amplification:.2f}"),
            ("most small files", f"{self.small_files_max:,}"),
            ("seconds", f"{self.seconds.get('total', 0.0):.2f}"),
        )
        planned = bool(self.partitions_touched)  # the report of a dry run
        nothing = [] if self.snapshot_ids else ["this would be committed" if planned else "nothing was committed"]
        phases = [(name, f"{seconds:.2f}") for name, seconds in self.seconds.items() if name != "total"]
        sentences = [*nothing, *self.notes, *self.conflicts]
        shown = facts if self.snapshot_ids or planned else ()
        return card(head, shown, rows=[("phase", "seconds"), *phases], sentences=sentences)

    def _tail(self) -> str:
        words = [f"{reason} {n}" for reason, n in sorted(self.skipped.items()) if reason in _WORTH_A_LINE]
        if self.held_back:
            words.append(f"{sum(self.held_back.values())} ineligible files in {len(self.held_back)} partitions")
        return "".join("  " + w for w in (*self.notes, *words, *self.conflicts))


def _clustered_together(reports: Sequence[Report]) -> dict[str, Any] | None:
    """What queries open before the first round and after the last one, and what all have written."""
    rounds = [report.clustering for report in reports if report.clustering]
    if not rounds:
        return None
    new_bytes = sum(one["new_bytes"] for one in rounds)
    amplification = round(sum(report.bytes_written for report in reports) / new_bytes, 3) if new_bytes else None
    return {**rounds[-1], "before": rounds[0]["before"], "new_bytes": new_bytes, "amplification": amplification}


_WORTH_A_LINE = ("OVER_BUDGET", "CONTESTED")


def with_text_ids(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same with snapshot ids (keys that begin with `snapshot_id`) as texts: they have 63 bits, of which jq and
    JavaScript keep 53 in a number, and a rounded id names no snapshot."""
    return {key: _text(value) if key.startswith("snapshot_id") else value for key, value in data.items()}


def _text(value: Any) -> Any:
    return tuple(map(_text, value)) if isinstance(value, tuple) else None if value is None else str(value)
