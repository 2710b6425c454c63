"""Commits to the table of a handle: files of a batch or of merges, single steps, and other changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from icesize import failpoints
from icesize.environment import Environment, Stopwatch
from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import (
    Merged,
    Results,
)
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted, uncommitted
from icesize.planning.files import PartitionKey
from icesize.planning.merging.contention import BackOff
from icesize.planning.plan import MergeTask
from icesize.storage.table_storage import Storage
from icesize.table.catalog.access_errors import readable
from icesize.table.commit.attempted_steps import CommitOutcome, commit_steps, steps_of, validated
from icesize.table.commit.attempts import Attempts, Change
from icesize.table.commit.batch_report import BatchOutcome, MergeResults, WrittenBatch, outcome_of
from icesize.table.commit.carried_deletes import CarriedDeletes
from icesize.table.commit.input_metrics import with_carried_over_metrics
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import Base, CommitRequest, Committer, Step
from icesize.table.commit.pyiceberg_committer import PyIcebergCommitter
from icesize.table.manifests.repeated_files import check_listed_once
from icesize.table.records.ledger import LedgerEntry, file_prefix
from icesize.table.records.summary import BYTES_INGESTED, CLUSTERED_BY, SECONDS, SMALL_FILES_MAX
from icesize.table.state.handle import Current, TableHandle

T = TypeVar("T")

LONG_RUN_SECONDS = 12 * 3600
"""Half of the least age at which orphan cleanup, by icesize or Iceberg, removes a file.

A shorter run need not check its files. A commit that checks them has hours left for its attempts.
"""
_ADDS_AGAIN = "only if there is none, append the rows again: without 'stream_id' and 'batch_id', each call adds them"


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
        backoff: The partitions whose merges recently conflicted with other writers.
        conflicts: Sentences about attempts that conflicted.
    """

    handle: TableHandle
    environment: Environment
    watch: Stopwatch
    ledger: LedgerEntry | None = None
    accept_new_checkpoint: bool = False
    table_uuid: str | None = None
    backoff: BackOff[PartitionKey] = field(default_factory=BackOff)
    conflicts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run_id = self.environment.new_id()
        self._pausing = self.backoff.next_batch()

    def contested(self, current: Current) -> frozenset[PartitionKey]:
        """Return the partitions in which no merge begins."""
        return self._pausing | self.handle.contested(current, self.environment)


def commit_written(written: WrittenBatch, batch: Batch, owner: Uncommitted, environment: Environment) -> CommitOutcome:
    """Make the files visible in one step. A commit that conflicted is retried with the same files.

    `environment` notifies the `owner` of the files about the commit.

    Raises the errors of `icesize.table.commit.attempted_steps.commit_steps`, including ConcurrentChange: then write
    the files again. Raises RewriteFailed if orphan cleanup has removed some of them.
    """
    current, appended = written.current, written.rows.files
    # reads manifests, so it runs before the lock makes other users of the table wait
    merged = with_carried_over_metrics(written.merges.merged, appended, current.table.io, current.settings)
    failpoints.reach("files-written")
    metadata = current.table.metadata
    carrier = CarriedDeletes(current.settings, FileNames(owner.prefix, 0, 0, owner))
    request = CommitRequest(
        current.uuid, batch.run_id,
        Base(written.layout.head, metadata.schema(), metadata.spec(), metadata.format_version),
        (*steps_of(written.delta or appended, merged, written.rows.absorbed, carrier), *written.beside),
        batch.ledger, batch.accept_new_checkpoint,
    )  # fmt: skip
    check_still_there(batch.handle, sorted(request.paths()), batch.watch)
    request = replace(request, summary=_work_summary(written, merged, batch.watch.seconds["total"]))
    if appended and batch.ledger is None and written.delta is None:
        request = replace(request, again=_ADDS_AGAIN)
    outcome = commit_request(batch.handle, current, request, environment) if request.steps else CommitOutcome()
    batch.watch.lap("commit")
    return outcome


def commit_request(
    handle: TableHandle, current: Current, request: CommitRequest, environment: Environment
) -> CommitOutcome:
    """Make the steps of a request visible that was planned on `current`. Raises like `commit_steps`."""
    committer = _committer(handle, current, environment)
    return commit_steps(request, committer, environment, current.deadline_seconds, handle.commit_lock)


def _committer(handle: TableHandle, current: Current, environment: Environment) -> Committer:
    return PyIcebergCommitter(
        handle.catalog, current.table, environment.now_ms, current.branch, handle.store, current.creates_branch
    )


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
    uuid, deadline_seconds = current.uuid, current.deadline_seconds
    return Attempts(wanted, committer, environment, uuid, deadline_seconds, handle.commit_lock).run()


def state_of(handle: TableHandle, current: Current) -> Loaded:
    """Return the table's state in `current` as a state to commit on."""
    return Loaded(current.table, current.branch, handle.store)


def _work_summary(written: WrittenBatch, merged: Sequence[Merged], seconds: float) -> dict[str, str]:
    """Return facts about the work for snapshot summaries, beyond files, bytes and rows.

    `icesize.table.past.commits` reads them.
    """
    facts = {SECONDS: f"{seconds:.3f}", SMALL_FILES_MAX: str(written.most_small_files(merged))}
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
) -> BatchOutcome:
    """Run a plan made on a loaded state of one table with `runner`, and commit the results as one REPLACE.

    `prefix` starts the file names (None: derived from the run).

    Raises TableError, CommitConflict, CommitStateUnknown or RewriteFailed.
    """
    batch = Batch(handle, environment, Stopwatch(environment))
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
            committed = commit_written(written, batch, owner, telling)
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
        gone = Storage.of(handle.load().table.io).missing(paths)
    if gone:
        hours = watch.seconds["total"] / 3600
        raise RewriteFailed(
            f"Cannot commit to '{table}': {len(gone)} of {len(paths)} new files are gone, for example {gone[0]}. This "
            f"run took {hours:.0f} h, and an orphan cleanup deleted them: set its 'older-than' to more than that. "
            "Nothing is visible; run it again",
            table=table,
            gone=tuple(gone),
        )
