"""Commits one batch exactly once: plan, run, commit.

Merges are optional in every step. A merge that fails, is late or conflicts with another writer is dropped, and the rows
are committed without it. A commit that conflicts is retried with the same files. The batch starts again only if its
files have become useless. Either they contain rows of older files that another writer has changed, or the table has
changed so that it could not read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import DataFrame

from icesize import failpoints
from icesize.environment import Stopwatch
from icesize.errors import CommitConflict, RewriteFailed
from icesize.parquet.files.uncommitted import Uncommitted, uncommitted
from icesize.parquet.rewriting.absorb import NOTHING
from icesize.spark.engine import session
from icesize.spark.engine.jobs import Cores
from icesize.spark.engine.merge_job import MergeRun
from icesize.spark.stream.batch_plan import Batch, BatchPlan, plan
from icesize.spark.stream.options import SinkOptions
from icesize.spark.stream.process_state import TableSource, TableState
from icesize.spark.stream.upsert_batch import creation_explained, refuse_append
from icesize.table.commit.attempted_steps import CommitOutcome
from icesize.table.commit.batch_commit import (
    BatchOutcome,
    CommitContext,
    MergeResults,
    WrittenBatch,
    commit_written,
    outcome_of,
    remember,
)
from icesize.table.commit.protocol import ConcurrentChange
from icesize.table.records.ledger import LedgerEntry, file_prefix, is_done
from icesize.table.state.concurrent_writers import rolled_back
from icesize.table.state.handle import Current

OVERWRITES = 3
"""Conflicts with other writers after which the rows are written once more, and only appended."""


def commit_batch(
    df: DataFrame, source: TableSource, options: SinkOptions, ledger: LedgerEntry | None, state: TableState
) -> BatchOutcome:
    """Write and commit one batch, exactly once; `ledger` is None for rows without a stream.

    Raises the errors in `docs/promises.md`. No row is visible then; after CommitStateUnknown, all may be visible.
    """
    with state.lock:
        failpoints.reach("batch-started")
        spark, watch = df.sparkSession, Stopwatch(options.environment)
        handle = state.open(spark, source)
        absorbs = options.placement == "absorb"
        run_id, pausing = options.environment.new_id(), state.backoff.next_batch()
        with _kept(df, if_dear=absorbs and not options.stream_safe) as is_kept:
            outcome = _until_it_lands(
                Batch(df, source, options, ledger, state, handle, watch, run_id, pausing, is_kept, absorbs)
            )
        if outcome.commit.snapshot_ids or outcome.commit.already_committed:
            state.refresh(spark)
        return outcome


@contextmanager
def _kept(df: DataFrame, *, if_dear: bool) -> Iterator[bool]:
    """Persist a batch that must be counted, and so is read twice, if it is expensive to read again."""
    if not if_dear or session.is_cheap_to_read_again(df):
        yield False
        return
    df.persist()
    try:
        yield True
    finally:
        df.unpersist()


def _until_it_lands(batch: Batch) -> BatchOutcome:
    """Attempt the batch until it is committed; restart it if its files become useless, at last without older files."""
    for _ in range(OVERWRITES):
        try:
            return _once(batch)
        except ConcurrentChange as lost:
            batch.state.backoff.lost(lost.partitions)
            batch = batch.after(f"the batch was written again: {lost}")
        except RewriteFailed as error:
            if not batch.overwrites or "column" not in error.facts:
                raise
            # a value of older rows would change, which is detected only when they are written with the new ones
            batch = replace(batch, absorbs=False).after(f"nothing was absorbed: {error}")
    if batch.absorbs:
        batch = replace(batch, absorbs=False).after(f"nothing was absorbed: others came first {OVERWRITES} times")
    try:
        return _once(batch)
    except ConcurrentChange as lost:
        name = batch.handle.name
        raise CommitConflict(
            f"Cannot append to '{name}': the table was changed {OVERWRITES + 1} times while the batch was written, "
            f"last: {lost}; nothing was committed",
            table=name,
        ) from lost


def _once(batch: Batch) -> BatchOutcome:
    with creation_explained(batch.df, batch.handle.name):
        current = batch.handle.load(batch.options.environment)
    current.check_same(batch.source.table_uuid, "append to")
    entry, metadata = batch.ledger, current.table.metadata
    undone = rolled_back(metadata, entry) if entry else ()
    if entry and is_done(metadata.properties, entry, batch.options.accept_new_checkpoint):
        committed_before = CommitOutcome(already_committed=True)
        return outcome_of(current, committed_before, None, {}, undone, batch_id=entry.batch_id)
    refuse_append(current, batch.options)
    planned = plan(batch, current)
    if planned is None:
        return _nothing(batch, current)
    storage = planned.fitted.settings.storage
    with uncommitted(storage, file_prefix(batch.run_id, entry), batch.options.environment) as (owner, environment):
        written = run(planned, owner)
        if written is None:
            return _nothing(batch, current)
        how = CommitContext(
            batch.run_id, environment, batch.watch, batch.state.commit_lock, entry,
            batch.options.accept_new_checkpoint,
        )  # fmt: skip
        outcome = commit_written(written, batch.handle, how)
    return _learned(planned, written, replace(outcome, conflicts=(*batch.conflicts, *outcome.conflicts)), undone)


def run(planned: BatchPlan, owner: Uncommitted) -> WrittenBatch | None:
    """Write the rows and merge; return None if the batch has no rows. No work continues after the return.

    Merges are optional: one that fails or is late is dropped. Raises SchemaMismatch or RewriteFailed for the rows.
    """
    batch, settings, write_plan = planned.fitted.batch, planned.fitted.settings, planned.write_plan
    with MergeRun(batch.spark, settings, owner, batch.options.environment) as merging:
        # these merges start together with the write
        begun = dict(enumerate(planned.begun.merges if planned.begun else ()))
        before_job = session.wait_for_a_job if write_plan.fetched is None else None
        merging.start(begun, before_job, Cores(tasks=write_plan.merge_tasks))
        absorption = planned.begun.absorption if planned.begun else NOTHING
        rows = write_plan.write(planned.rows, settings, owner, absorption)
        deadline_seconds = planned.merge_deadline_seconds(batch.watch.lap("write"))
        if rows.new_rows == 0:
            return None
        decision = planned.decide(rows.files)
        numbers = {group: number for number, group in begun.items()}
        groups = {numbers.setdefault(group, len(numbers)): group for group in decision.merges}
        merging.start({number: group for number, group in groups.items() if number not in begun})
        merges = MergeResults.of(groups, merging.finish(deadline_seconds), rows.files)
        batch.watch.lap("merge_wait")
    return WrittenBatch(planned.fitted.current, planned.fitted.layout, decision.plan, merges, rows)


def _nothing(batch: Batch, current: Current) -> BatchOutcome:
    return outcome_of(current, CommitOutcome(), None, batch.watch.seconds, (), batch_id=batch.batch_id)


def _learned(planned: BatchPlan, written: WrittenBatch, commit: CommitOutcome, undone: tuple[str, ...]) -> BatchOutcome:
    """Return the outcome of a committed batch; remember its statistics, from which the next batches are planned."""
    batch = planned.fitted.batch
    seen = batch.state.learned.compare(planned.write_plan, written.rows, written.bytes_ingested)
    failed = (f"small files stay beside the new rows: {each.why}" for each in written.rows.failed)
    outcome = outcome_of(
        written.current, commit, written, batch.watch.seconds,
        (*written.current.warnings, *undone, *failed, *seen.notes),
        batch_id=batch.batch_id, bytes_predicted=seen.bytes_predicted, writer_skew=seen.writer_skew,
    )  # fmt: skip
    remember(batch.state.backoff, outcome)
    return outcome
