"""The files that were written for a batch, and the outcome of their commit with its report: values, nothing is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from icesize.environment import rounded
from icesize.parquet.files.data_file import (
    Merged,
    MergeFailure,
    NewDataFile,
    Results,
    Rewritten,
    Written,
    decode_reasons,
)
from icesize.planning.file_sizes import is_small_file
from icesize.planning.files import FileFact, Layout, PartitionKey
from icesize.planning.merging.contention import BackOff
from icesize.planning.plan import MergeTask, Plan
from icesize.report import Report
from icesize.table.commit.attempted_steps import CommitOutcome
from icesize.table.commit.protocol import Step
from icesize.table.commit.steps.row_delta import RowDelta
from icesize.table.state.handle import Current


@dataclass(frozen=True)
class MergeResults:
    """Merged groups of a plan that may be committed, sentences about the `failed` ones, and notes.

    `internal_errors` are the sentences about groups that failed because of mistakes in icesize.
    """

    merged: tuple[Rewritten, ...] = ()
    failed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    internal_errors: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, groups: Mapping[int, MergeTask], results: Results, appended: Sequence[NewDataFile] = ()
    ) -> MergeResults:
        """Return the results of numbered groups.

        A failed group is dropped and reported. Groups without a result are counted.

        Files merged with `appended` files of the same commit get their sequence number at the commit. The number of the
        new rows is unknown before, and a smaller one would let other writers' deletes apply to them.
        """
        new = {file.path for file in appended}
        done, failed, internal = list[Rewritten](), list[str](), list[str]()
        for number, group in groups.items():
            result = results.get(number)
            if isinstance(result, MergeFailure):
                failed.append(f"merge of {len(group.inputs)} files in '{group.label}' dropped: {result.why}")
                internal += failed[-1:] if result.is_internal else []
            elif result is not None and any(file.path in new for file in result.inputs):
                done.append(replace(result, files=tuple(replace(f, sequence_number=None) for f in result.files)))
            elif result is not None:
                done.append(result)
        cancelled = len(groups) - len(done) - len(failed)
        stopped = (f"{cancelled} merges stopped at the deadline ('merge-deadline-ms')",) if cancelled else ()
        return cls(tuple(done), tuple(failed), stopped, tuple(internal))


@dataclass(frozen=True)
class WrittenBatch:
    """Files written for one state of a table and not visible yet: new rows, merges, or both.

    `plan` has the merges that were planned. The files of `rows` also hold the rows of absorbed older files, if any.
    `delta` adds the rows of upserts, with the deletes of those that they replace. `beside` are further steps.
    """

    current: Current
    layout: Layout
    plan: Plan
    merges: MergeResults = field(default_factory=MergeResults)
    rows: Written = field(default_factory=Written)
    delta: RowDelta | None = None
    beside: tuple[Step, ...] = ()

    def added(self, merged: Sequence[Merged]) -> list[NewDataFile]:
        """Return the data files that the commit of these merges adds."""
        return [*self.rows.files, *(file for group in merged for file in group.files)]

    def gone(self, merged: Sequence[Merged]) -> list[FileFact]:
        """Return the data files that the commit of these merges removes."""
        return [*self.rows.absorbed, *(file for group in merged for file in group.inputs)]

    def touched(self, merged: Sequence[Merged]) -> set[PartitionKey]:
        """Return the partitions that the commit of these merges changes."""
        return {file.partition for file in self.rows.files} | {group.inputs[0].partition for group in merged}

    def most_small_files(self, merged: Sequence[Merged]) -> int:
        """Return the largest number of mergeable small files in one of the touched partitions after the commit."""
        added, gone, limit = self.added(merged), self.gone(merged), self.layout.small_file_limit_bytes
        older = self.layout.partitions.some(self.touched(merged)).items()
        counts = incoming_files(added, limit)
        counts.update({key: sum(file.obstacle is None for file in facts.small) for key, facts in older})
        counts.subtract(file.partition for file in gone if is_small_file(file.size_bytes, limit))
        return max(counts.values(), default=0)

    @cached_property
    def bytes_ingested(self) -> int:
        """Bytes of the new rows. A file that also holds older rows counts with its partition's share of new rows."""
        older = Counter[PartitionKey]()
        for file in self.rows.absorbed:
            older[file.partition] += file.rows
        older.subtract(self.rows.deleted)
        size_bytes, rows = Counter[PartitionKey](), Counter[PartitionKey]()
        for written in self.rows.files:
            size_bytes[written.partition] += written.size_bytes
            rows[written.partition] += written.rows
        return sum(size if not older[p] else round(size * (1 - older[p] / rows[p])) for p, size in size_bytes.items())


@dataclass(frozen=True)
class BatchOutcome:
    """Result of a batch, or of a pass of merges, and its report.

    `current` is the state that it was planned on. `written` is None if there was nothing to write.
    """

    current: Current
    commit: CommitOutcome
    written: WrittenBatch | None
    report: Report


def outcome_of(
    current: Current,
    commit: CommitOutcome,
    written: WrittenBatch | None,
    seconds: Mapping[str, float],
    notes: Sequence[str],
    **facts: Any,
) -> BatchOutcome:
    """Return the outcome of one commit. Without snapshots, the report has the plan and the reasons for no commit.

    Notes about failed merges come before `notes`, because they need attention. `facts` are fields of `Report`.
    """
    internal, notes = commit.internal_errors, (*commit.internal_errors, *notes)
    if written is not None:
        internal += written.merges.internal_errors
        internal += tuple(each.why for each in written.rows.failed if each.is_internal)
        notes = (*written.merges.failed, *notes, *written.plan.notes, *written.merges.notes)
        facts |= _facts(written, commit.merged)
    # remembered deletes are no change of the table's rows
    shown = replace(commit, done=tuple(each for each in commit.done if each.step.ref is None))
    report = Report(
        table=current.name,
        snapshot_ids=shown.snapshot_ids,
        operations=shown.operations,
        seconds=rounded(seconds),
        metadata_bytes_written=commit.metadata_bytes_written,
        conflicts=commit.conflicts,
        internal_errors=internal,
        notes=tuple(dict.fromkeys(notes)),
        already_committed=commit.already_committed,
        **facts,
    )
    return BatchOutcome(current, commit, written, report)


def _facts(written: WrittenBatch, committed: Sequence[Merged]) -> dict[str, Any]:
    """Return the report's fields about files."""
    added, gone, rows = written.added(committed), written.gone(committed), written.rows
    touched = written.touched(committed)
    return {
        "bytes_ingested": written.bytes_ingested,
        "bytes_written": sum(file.size_bytes for file in added),
        "rows": rows.new_rows,
        "rows_deleted": rows.rows_deleted + sum(group.rows_deleted for group in committed),
        "files_added": len(added),
        "files_removed": len(gone),
        **work_fields(written.merges.merged, sum(file.size_bytes for file in rows.absorbed)),
        "delete_files_max": _most_delete_files(written.layout, touched, gone),
        "small_files_max": written.most_small_files(committed),
        "partitions_touched": len(touched),
        "skipped": written.plan.skipped_by_reason,
        "ineligible": {o.label: sum(o.ineligible.values()) for o in written.plan.ineligible},
    }


def work_fields(rewritten: Sequence[Rewritten], more_bytes: int = 0) -> dict[str, Any]:
    """Return the report's fields about rewritten files; `more_bytes` were decoded in addition."""
    return {
        "bytes_copied": sum(group.bytes_copied for group in rewritten),
        "bytes_decoded": sum(group.bytes_decoded for group in rewritten) + more_bytes,
        "pages_copied": sum(group.pages_copied for group in rewritten),
        "decode_reasons": decode_reasons(rewritten),
    }


def _most_delete_files(layout: Layout, touched: Collection[PartitionKey], gone: Sequence[FileFact]) -> int:
    """Return the most delete files that one older, rewritable file of the touched partitions has after the commit."""
    paths = {file.path for file in gone}
    left = (f for facts in layout.partitions.some(touched).values() for f in facts.with_deletes if f.obstacle is None)
    return max((file.delete_files for file in left if file.path not in paths), default=0)


def incoming_files(files: Iterable[NewDataFile], small_file_limit_bytes: int) -> Counter[PartitionKey]:
    """Return the number of small ones among new files, in each of their partitions."""
    counts = Counter[PartitionKey]()
    for file in files:
        counts[file.partition] += is_small_file(file.size_bytes, small_file_limit_bytes)
    return counts


def remember(backoff: BackOff[PartitionKey], outcome: BatchOutcome) -> None:
    """Update the back-off: skip partitions with conflicts for some batches, and clear those that were merged."""
    backoff.lost(outcome.commit.contested)
    gone = outcome.written.gone(outcome.commit.merged) if outcome.written else ()
    backoff.succeeded(file.partition for file in gone)
