"""Commits to the table of a handle: files of a batch or of merges, with a report, single steps, and other changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from icesize import failpoints
from icesize.environment import Environment, Stopwatch, rounded
from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import (
    Merged,
    MergeFailure,
    NewDataFile,
    Results,
    Rewritten,
    Written,
    decode_reasons,
)
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.storage import missing_files
from icesize.parquet.files.uncommitted import Uncommitted, uncommitted
from icesize.planning.file_counts import is_small_file
from icesize.planning.files import MAIN, Layout, PartitionKey
from icesize.planning.merging.contention import BackOff
from icesize.planning.plan import MergeTask, Plan
from icesize.report import Report
from icesize.table.catalog.access_errors import readable
from icesize.table.commit.attempted_steps import CommitOutcome, commit_steps, steps_of, validated
from icesize.table.commit.attempts import Attempts, Change
from icesize.table.commit.input_metrics import with_carried_over_metrics
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import Base, CommitRequest, Committer, Step
from icesize.table.commit.pyiceberg_committer import PyIcebergCommitter
from icesize.table.commit.steps.row_delta import RowDelta
from icesize.table.manifests.repeated_files import check_listed_once
from icesize.table.records.ledger import LedgerEntry, file_prefix
from icesize.table.records.summary import BYTES_INGESTED, CLUSTERED_BY, SECONDS, SMALL_FILES_MAX
from icesize.table.state.handle import Current, TableHandle

T = TypeVar("T")

LONG_RUN_SECONDS = 12 * 3600
"""Half of the least age at which orphan cleanup, by icesize or Iceberg, removes a file.

A shorter run need not check its files. A commit that checks them has hours left for its attempts.
"""


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


@dataclass(eq=False)
class Batch:
    """A batch on its way into a table. The commit of merges alone is one without rows.

    Attributes:
        handle: The table.
        environment: Clock, ids and limits.
        watch: The clock of the batch.
        ledger: Its entry in the ledger; None for rows without a stream.
        accept_new_checkpoint: Let a new query of the stream start its own count.
        table_uuid: The table that was opened; None for any.
        lock: Held during the commit. Other users of the table in this process wait for it, and acquiring it may raise.
        backoff: The partitions whose merges recently conflicted with other writers.
        conflicts: Sentences about attempts that conflicted.
    """

    handle: TableHandle
    environment: Environment
    watch: Stopwatch
    ledger: LedgerEntry | None = None
    accept_new_checkpoint: bool = False
    table_uuid: str | None = None
    lock: AbstractContextManager[object] = field(default_factory=nullcontext)
    backoff: BackOff[PartitionKey] = field(default_factory=BackOff)
    conflicts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run_id = self.environment.new_id()
        self._pausing = self.backoff.next_batch()

    def contested(self, current: Current) -> frozenset[PartitionKey]:
        """Return the partitions in which no merge begins."""
        return self._pausing | self.handle.contested(current, self.environment)


def commit_written(written: WrittenBatch, batch: Batch, environment: Environment) -> CommitOutcome:
    """Make the files visible in one step. A commit that conflicted is retried with the same files.

    `environment` notifies the owner of the files about the commit.

    Raises the errors of `icesize.table.commit.attempted_steps.commit_steps`, including ConcurrentChange: then write
    the files again. Raises RewriteFailed if orphan cleanup has removed some of them.
    """
    current, appended = written.current, written.rows.files
    # reads manifests, so it runs before the lock makes other users of the table wait
    merged = with_carried_over_metrics(written.merges.merged, appended, current.table.io, current.settings)
    failpoints.reach("files-written")
    metadata = current.table.metadata
    request = CommitRequest(
        current.uuid, batch.run_id,
        Base(written.layout.head, metadata.schema(), metadata.spec(), metadata.format_version),
        (*steps_of(written.delta or appended, merged, written.rows.absorbed), *written.beside), batch.ledger,
        batch.accept_new_checkpoint,
    )  # fmt: skip
    check_still_there(batch.handle, sorted(request.paths()), batch.watch)
    request = replace(request, summary=_work_summary(written, merged, batch.watch.seconds["total"]))
    with batch.lock:
        outcome = commit_request(batch.handle, current, request, environment) if request.steps else CommitOutcome()
    batch.watch.lap("commit")
    return outcome


def commit_request(
    handle: TableHandle, current: Current, request: CommitRequest, environment: Environment
) -> CommitOutcome:
    """Make the steps of a request visible that was planned on `current`. Raises like `commit_steps`."""
    committer = _committer(handle, current, environment, request.base.head.ref)
    return commit_steps(request, committer, environment, current.deadline_seconds)


def _committer(handle: TableHandle, current: Current, environment: Environment, ref: str = MAIN) -> Committer:
    return PyIcebergCommitter(handle.catalog, current.table, environment.now_ms, ref, handle.store)


def commit_step(
    handle: TableHandle, current: Current, step: Step, environment: Environment, *, again: str, dry_run: bool = False
) -> CommitOutcome:
    """Commit one step that adds no files and depends only on the state that it is tried on.

    `again` is the advice of the request. A dry run returns the outcome without a write, and raises the same refusals.
    """
    request = CommitRequest(current.uuid, environment.new_id(), Base(current.head), (step,), again=again)
    if not dry_run:
        return commit_request(handle, current, request, environment)
    loaded = state_of(handle, current)
    kept, outcome = validated(request, loaded, CommitOutcome())
    return replace(outcome, done=_committer(handle, current, environment).stage(loaded, kept, dry_run=True)[1])


def change(handle: TableHandle, current: Current, wanted: Change[T], environment: Environment) -> T:
    """Commit a change to the table that `current` is a state of. Raises like `Attempts.run`."""
    committer = _committer(handle, current, environment)
    return Attempts(wanted, committer, environment, current.uuid, current.deadline_seconds).run()


def state_of(handle: TableHandle, current: Current) -> Loaded:
    """Return the table's state in `current` as a state to commit on."""
    return Loaded(current.table, store=handle.store)


def _work_summary(written: WrittenBatch, merged: Sequence[Merged], seconds: float) -> dict[str, str]:
    """Return facts about the work for snapshot summaries, beyond files, bytes and rows.

    `icesize.table.past.commits` reads them.
    """
    small_files_max = _most_small_files(written, _touched(written, merged), merged)
    facts = {SECONDS: f"{seconds:.3f}", SMALL_FILES_MAX: str(small_files_max)}
    if written.rows.absorbed:
        facts[BYTES_INGESTED] = str(written.bytes_ingested)
    if written.plan.clustering and not written.rows.files:
        facts[CLUSTERED_BY] = ",".join(written.plan.clustering.by.columns)
    return facts


Runner = Callable[[Mapping[int, MergeTask], WriteSettings, Uncommitted], Results]
"""Rewrites groups, given by number, under file names with a prefix. Returns the result of each by its number."""


def rewrite(
    handle: TableHandle,
    planned: WrittenBatch,
    runner: Runner,
    environment: Environment,
    *,
    prefix: str | None = None,
    commit_lock: AbstractContextManager[object] | None = None,
) -> BatchOutcome:
    """Run a plan made on a loaded state of one table with `runner`, and commit the results as one REPLACE.

    `prefix` starts the file names (None: derived from the run). `commit_lock` is the lock of `Batch`; if it raises, the
    files are removed.

    Raises TableError, CommitConflict, CommitStateUnknown or RewriteFailed.
    """
    batch = Batch(handle, environment, Stopwatch(environment), lock=commit_lock or nullcontext())
    failpoints.reach("planned")
    current, written, committed = planned.current, planned, CommitOutcome()
    if groups := dict(enumerate(planned.plan.groups)):
        if not planned.layout.complete:
            # manifests without selected partitions were not read, and one of them may list an input file again
            inputs = [file.path for group in groups.values() for file in group.inputs]
            with readable(current.name):
                check_listed_once(handle.store, current.table, inputs)
        settings = current.settings()
        with uncommitted(settings.storage, prefix or file_prefix(batch.run_id), environment) as (owner, telling):
            results = runner(groups, settings, owner)
            batch.watch.lap("merge")
            written = replace(planned, merges=MergeResults.of(groups, results))
            committed = commit_written(written, batch, telling)
    return outcome_of(current, committed, written, batch.watch.seconds, current.warnings)


def check_still_there(handle: TableHandle, paths: Sequence[str], watch: Stopwatch) -> None:
    """Check that files written by a long run still exist; `watch` is the clock of the run.

    Raises RewriteFailed if one is gone: a commit that names it would make the table unreadable.
    """
    watch.lap("check")
    if watch.seconds["total"] < LONG_RUN_SECONDS:
        return
    table = handle.name
    with readable(table):
        # a new load, because the credentials that the files were written with have expired by now
        gone = missing_files(handle.load().table.io, paths)
    if gone:
        hours = watch.seconds["total"] / 3600
        raise RewriteFailed(
            f"Cannot commit to '{table}': {len(gone)} of {len(paths)} new files are gone, for example {gone[0]}. This "
            f"run took {hours:.0f} h, and an orphan cleanup deleted them: set its 'older-than' to more than that. "
            "Nothing is visible; run it again",
            table=table,
            gone=tuple(gone),
        )


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
    merged, appended, absorbed = written.merges.merged, written.rows.files, written.rows.absorbed
    touched = _touched(written, committed)
    return {
        "bytes_ingested": written.bytes_ingested,
        "bytes_written": sum(f.size_bytes for f in (*appended, *(f for g in committed for f in g.files))),
        "rows": written.rows.new_rows,
        "rows_deleted": written.rows.rows_deleted + sum(g.rows_deleted for g in committed),
        "files_added": len(appended) + sum(len(g.files) for g in committed),
        "files_removed": len(absorbed) + sum(len(g.inputs) for g in committed),
        **work_fields(merged, sum(f.size_bytes for f in absorbed)),
        "delete_files_max": _most_delete_files(written, touched, committed),
        "small_files_max": _most_small_files(written, touched, committed),
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


def _touched(written: WrittenBatch, committed: Sequence[Merged]) -> set[PartitionKey]:
    return {f.partition for f in written.rows.files} | {g.inputs[0].partition for g in committed}


def _most_small_files(written: WrittenBatch, touched: Iterable[PartitionKey], committed: Sequence[Merged]) -> int:
    """Return the largest number of mergeable small files in one of the touched partitions after the commit."""
    layout = written.layout
    limit = layout.small_file_limit_bytes
    counts: Counter[PartitionKey] = Counter(dict.fromkeys(touched, 0))
    for key, facts in layout.partitions.some(counts).items():
        counts[key] = sum(f.obstacle is None for f in facts.small)
    for file in (*written.rows.files, *(f for g in committed for f in g.files)):
        counts[file.partition] += is_small_file(file.size_bytes, limit)
    for group in committed:
        counts[group.inputs[0].partition] -= sum(is_small_file(older.size_bytes, limit) for older in group.inputs)
    for older in written.rows.absorbed:
        counts[older.partition] -= 1
    return max(counts.values(), default=0)


def _most_delete_files(written: WrittenBatch, touched: Iterable[PartitionKey], committed: Sequence[Merged]) -> int:
    """Return the most delete files that one older, rewritable file of the touched partitions has after the commit."""
    gone = {file.path for file in (*written.rows.absorbed, *(f for g in committed for f in g.inputs))}
    older = written.layout.partitions.some(touched).values()
    left = (f for facts in older for f in facts.with_deletes if f.obstacle is None and f.path not in gone)
    return max((file.delete_files for file in left), default=0)


def remember(backoff: BackOff[PartitionKey], outcome: BatchOutcome) -> None:
    """Update the back-off: skip partitions with conflicts for some batches, and clear those that were merged."""
    backoff.lost(outcome.commit.contested)
    absorbed = outcome.written.rows.absorbed if outcome.written else ()
    backoff.succeeded(file.partition for file in (*(f for g in outcome.commit.merged for f in g.inputs), *absorbed))
