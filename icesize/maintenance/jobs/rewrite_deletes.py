"""Rewrites many delete files into few position delete files, or deletion vectors; data files do not change.

Each round of partitions is one commit, which changes no row and no data file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from icesize import failpoints
from icesize.concurrency import workers
from icesize.environment import Stopwatch, rounded
from icesize.maintenance.rounds import carried_out
from icesize.maintenance.table_context import TableContext
from icesize.parquet.deletes.position_files import write_position_deletes
from icesize.parquet.files.data_file import MergeFailure, RewrittenDeletes
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted, uncommitted
from icesize.parquet.rewriting.threads import rewrite_in_threads
from icesize.planning.deletes.delete_plan import DeleteRewrite, plan_delete_rewrites
from icesize.planning.files import PartitionKey
from icesize.results import JOINED, SUMMED, Result
from icesize.table.commit import batch_commit
from icesize.table.commit.attempted_steps import CommitOutcome
from icesize.table.commit.protocol import Base, CommitRequest
from icesize.table.commit.steps.rewrite_deletes import RewriteDeletes
from icesize.table.records.ledger import file_prefix
from icesize.table.state.handle import Current

_ROUND = 8
"""Bytes of data files in one round, in units of `WorkLimits.round_bytes`: few of these bytes are read, if any."""


@dataclass(frozen=True)
class DeletesReport(Result, job="rewrite deletes"):
    """Outcome of a rewrite of delete files.

    Attributes:
        table: The full name of the table.
        snapshot_ids: The snapshots that the call committed; empty if there was nothing to do, or if nothing was
            committed.
        operations: The operation of each of these snapshots.
        data_files: Data files whose deletes were rewritten. These files do not change. It is the only count of a dry
            run.
        files_removed: Delete files removed.
        files_added: Delete files that replaced them, or deletion vectors (format v3).
        rows: Deleted rows in the new delete files.
        bytes_written: Bytes of the new delete files.
        dry_run: True if the call only planned the rewrite.
        conflicts: Sentences about partitions that were dropped because of other writers.
        internal_errors: Sentences about partitions that were dropped because of a mistake in icesize, which is to be
            reported. The notes also contain them.
        notes: Sentences about partitions whose delete files cannot be rewritten, and warnings about the table's
            settings.
        seconds: Seconds of each phase, and `total`.
    """

    table: str = ""
    snapshot_ids: tuple[int, ...] = field(default=(), metadata=JOINED)
    operations: tuple[str, ...] = field(default=(), metadata=JOINED)
    data_files: int = field(default=0, metadata=SUMMED)
    files_removed: int = field(default=0, metadata=SUMMED)
    files_added: int = field(default=0, metadata=SUMMED)
    rows: int = field(default=0, metadata=SUMMED)
    bytes_written: int = field(default=0, metadata=SUMMED)
    dry_run: bool = False
    conflicts: tuple[str, ...] = field(default=(), metadata=JOINED)
    internal_errors: tuple[str, ...] = field(default=(), metadata=JOINED)
    notes: tuple[str, ...] = field(default=(), metadata=JOINED)
    seconds: dict[str, float] = field(default_factory=dict)


def rewrite_deletes(
    context: TableContext, *, dry_run: bool = False, only: Collection[PartitionKey] | None = None
) -> DeletesReport:
    """Rewrite delete files in every partition, or in those of `only`.

    A partition is rewritten if that is due, and costs less than a rewrite of its data files. A partition whose delete
    files cannot be read does not change. The report notes it, and also the work that remains after an error of a later
    round. Raises UnsupportedTable, TableError, CommitConflict (nothing is visible), or CommitStateUnknown with the
    attribute `report` of the rounds before.
    """
    watch = Stopwatch(context.environment)
    selection = context.select()
    current, planned = selection.current, plan_delete_rewrites(selection.layout, selection.current.policy)
    rewrites = [rewrite for rewrite in planned if only is None or rewrite.partition in only]
    base = Base(selection.layout.head)
    watch.lap("plan")
    failpoints.reach("planned")

    def run(some: Sequence[DeleteRewrite], is_first: bool) -> DeletesReport:
        # a later round may need new credentials of the catalog
        report = _round(context, current if is_first else context.load(), some, base, watch)
        return context.refresh(report) if report.snapshot_ids else report

    if dry_run:
        files = sum(len(each.files) for each in rewrites)
        report = DeletesReport(current.name, dry_run=True, data_files=files)
    elif rewrites:
        most_bytes = _ROUND * context.environment.limits.round_bytes
        report = carried_out(rewrites, most_bytes, run, DeletesReport.together, "partition")
    else:
        report = DeletesReport(current.name)
    return replace(report, notes=(*current.warnings, *report.notes), seconds=rounded(watch.seconds))


def _round(
    context: TableContext, current: Current, rewrites: Collection[DeleteRewrite], base: Base, watch: Stopwatch
) -> DeletesReport:
    settings, environment = current.settings(), context.environment
    run_id = environment.new_id()
    with uncommitted(settings.storage, file_prefix(run_id), environment) as (owner, telling):
        results = _written(dict(enumerate(rewrites)), settings, owner)
        watch.lap("read")
        failpoints.reach("files-written")
        done = tuple(each for each in results.values() if isinstance(each, RewrittenDeletes))
        failed = [each for each in results.values() if isinstance(each, MergeFailure)]
        report = DeletesReport(
            current.name,
            internal_errors=tuple(each.why for each in failed if each.is_internal),
            notes=tuple(each.why for each in failed),
        )
        if done:
            step = RewriteDeletes(done, {each.partition: each.label for each in rewrites})
            request = CommitRequest(current.uuid, run_id, base, (step,), again="doing it again is safe")
            outcome = batch_commit.commit_request(context.handle, current, request, telling)
            report = _counted(report, outcome)
            watch.lap("commit")
    return report


def _counted(report: DeletesReport, outcome: CommitOutcome) -> DeletesReport:
    step = RewriteDeletes(tuple(each for done in outcome.done_by(RewriteDeletes) for each in done.rewritten))
    return replace(
        report,
        snapshot_ids=outcome.snapshot_ids,
        operations=outcome.operations,
        data_files=sum(len(each.covered) for each in step.rewritten),
        files_removed=len(step.gone),
        files_added=len(step.files),
        rows=sum(file.rows for file in step.files),
        bytes_written=sum({file.path: file.size_bytes for file in step.files}.values()),  # vectors share files
        conflicts=outcome.conflicts,
    )


def _written(
    rewrites: Mapping[int, DeleteRewrite], settings: WriteSettings, owner: Uncommitted
) -> dict[int, RewrittenDeletes | MergeFailure]:
    """Return the result of each rewrite. A rewrite that fails does not stop the others."""
    found = dict[int, RewrittenDeletes | MergeFailure]()
    spare = workers() // len(rewrites)

    def work(number: int, rewrite: DeleteRewrite) -> RewrittenDeletes:
        return write_position_deletes(rewrite, settings, FileNames(owner.prefix, number, 0, owner), threads=spare)

    rewrite_in_threads(rewrites, work, found.__setitem__)
    return dict(sorted(found.items()))
