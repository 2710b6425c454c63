"""From a plan, written files and a commit to the Report of what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyiceberg.io import FileIO

from icesize.clock import rounded
from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.tasks import MergeOutcome
from icesize.planning.files import FileFact, Layout, PartitionKey
from icesize.planning.plan import MergeGroup, Plan
from icesize.report import Report
from icesize.table.commit.request import CommitOutcome, MergedGroup
from icesize.table.state.input_metrics import with_carried_over_metrics


@dataclass(frozen=True)
class MergeResults:
    """Which groups of a plan were merged and may be committed; of the others, which `failed` and why."""

    merged: tuple[MergedGroup, ...] = ()
    failed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bytes_copied: int = 0
    bytes_decoded: int = 0
    pages_copied: int = 0
    decoded_because: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        groups: Sequence[MergeGroup],
        results: Sequence[MergeOutcome | RewriteFailed | None],
        appended: Sequence[WrittenFile] = (),
    ) -> MergeResults:
        """Pair groups with what became of them; a failed group is dropped and named, a cancelled one counted.

        Files that were merged with `appended` ones of the same commit get their sequence number there: which one the
        new rows will have is not known before, and one that is too small would let deletes of others apply to them.
        """
        new = {file.path for file in appended}
        merged, failed, cancelled = [], [], 0
        for group, result in zip(groups, results, strict=True):
            if isinstance(result, RewriteFailed):
                failed.append(f"merge of {len(group.inputs)} files in '{group.label}' dropped: {result}")
            elif result is None:
                cancelled += 1
            else:
                inherits = any(input_file.path in new for input_file in group.inputs)
                outputs = (replace(f, sequence_number=None) if inherits else f for f in result.files)
                merged.append(MergedGroup(group.inputs, tuple(outputs)))
        stopped = (f"{cancelled} merges stopped at the deadline ('merge-deadline-ms')",) if cancelled else ()
        done = [result for result in results if isinstance(result, MergeOutcome)]
        codes = Counter[str]()
        for result in done:
            codes.update(result.decoded_because)
        return cls(
            tuple(merged),
            tuple(failed),
            stopped,
            sum(result.bytes_copied for result in done),
            sum(result.bytes_decoded for result in done),
            sum(result.pages_copied for result in done),
            dict(codes),
        )

    def completed(self, appended: Sequence[WrittenFile], io: FileIO, settings: WriteSettings) -> MergeResults:
        """The same with complete metrics for files that were copied, which takes reading manifests: before a commit
        keeps others waiting."""
        return replace(self, merged=with_carried_over_metrics(self.merged, appended, io, lambda: settings))

    def paths(self) -> list[str]:
        """Every file that the merges wrote."""
        return [f.path for g in self.merged for f in g.outputs]


def report_of(
    table: str,
    plan: Plan,
    layout: Layout,
    appended: Sequence[WrittenFile],
    merges: MergeResults,
    outcome: CommitOutcome,
    seconds: Mapping[str, float],
    notes: Iterable[str] = (),
    batch_id: int | None = None,
    absorbed: Sequence[FileFact] = (),
) -> Report:
    """The report of one commit. An outcome without snapshots reports what was planned and why nothing came of it.

    `appended` files hold the rows of `absorbed` ones too.
    """
    landed = outcome.merged
    outputs = [f for g in landed for f in g.outputs]
    written = sum(f.size_bytes for f in appended)
    touched = {f.partition for f in appended} | {g.inputs[0].partition for g in landed}
    return Report(
        table=table,
        batch_id=batch_id,
        snapshot_ids=outcome.snapshot_ids,
        operations=outcome.operations,
        rows=sum(f.rows for f in appended) - sum(f.rows for f in absorbed),
        files_added=len(appended) + len(outputs),
        files_removed=len(absorbed) + sum(len(g.inputs) for g in landed),
        bytes_ingested=_ingested(appended, absorbed),
        bytes_written=written + sum(f.size_bytes for f in outputs),
        bytes_copied=merges.bytes_copied,
        bytes_decoded=merges.bytes_decoded + sum(f.size_bytes for f in absorbed),
        pages_copied=merges.pages_copied,
        decoded_because=dict(merges.decoded_because),
        small_files_max=most_small_files(layout, touched, appended, landed, absorbed),
        partitions_touched=len(touched),
        seconds=rounded(seconds),
        skipped=dict(_skipped(plan)),
        held_back={o.label: sum(o.held_back.values()) for o in plan.held_back},
        conflicts=outcome.conflicts,
        # what failed is what somebody has to look after
        notes=tuple(dict.fromkeys((*merges.failed, *notes, *plan.notes, *merges.notes))),
        already_committed=outcome.already_committed,
    )


def _ingested(appended: Sequence[WrittenFile], absorbed: Sequence[FileFact]) -> int:
    """Bytes of the new rows: of files that hold older rows too, the share that their partition's new rows have."""
    older = Counter[PartitionKey]()
    for file in absorbed:
        older[file.partition] += file.rows
    size_bytes, rows = Counter[PartitionKey](), Counter[PartitionKey]()
    for written in appended:
        size_bytes[written.partition] += written.size_bytes
        rows[written.partition] += written.rows
    return sum(size if not older[p] else round(size * (1 - older[p] / rows[p])) for p, size in size_bytes.items())


def _skipped(plan: Plan) -> Counter[str]:
    counts: Counter[str] = Counter()
    for skip in plan.skipped:
        counts[skip.reason.value] += skip.files
    return counts


def most_small_files(
    layout: Layout,
    touched: Iterable[PartitionKey],
    appended: Sequence[WrittenFile],
    landed: Sequence[MergedGroup],
    absorbed: Sequence[FileFact] = (),
) -> int:
    """The largest number of mergeable small files that one of the touched partitions holds after the commit."""
    limit = layout.small_file_limit_bytes
    counts: Counter[PartitionKey] = Counter()
    for key in touched:
        facts = layout.partitions.get(key)
        counts[key] = sum(f.obstacle is None for f in facts.small) if facts else 0
    for file in (*appended, *(f for g in landed for f in g.outputs)):
        counts[file.partition] += file.size_bytes < limit
    for group in landed:
        counts[group.inputs[0].partition] -= sum(input_file.size_bytes < limit for input_file in group.inputs)
    for older in absorbed:
        counts[older.partition] -= 1
    return max(counts.values(), default=0)
