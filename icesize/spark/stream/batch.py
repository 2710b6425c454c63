"""Commits one batch of a session exactly once, appended or upserted: plan, run, commit.

Merges are optional in every step. A merge that fails, is late or conflicts with another writer is dropped, and the rows
are committed without it.
"""

from __future__ import annotations

from contextlib import ExitStack

from pyspark.sql import DataFrame

from icesize import failpoints
from icesize.environment import Stopwatch
from icesize.errors import TableNotFound
from icesize.spark.engine import columns
from icesize.spark.stream.batch_plan import appended_rows
from icesize.spark.stream.options import SinkOptions
from icesize.spark.stream.process_state import TableSource, TableState
from icesize.spark.stream.upsert_batch import upserts
from icesize.table.commit.batch_commit import Batch
from icesize.table.commit.batch_life import exactly_once
from icesize.table.commit.batch_report import BatchOutcome
from icesize.table.records.ledger import LedgerEntry


def commit_batch(
    df: DataFrame, source: TableSource, options: SinkOptions, ledger: LedgerEntry | None, state: TableState
) -> BatchOutcome:
    """Write and commit one batch, exactly once; `ledger` is None for rows without a stream.

    Raises the errors in `docs/output.md`. No row is visible then; after CommitStateUnknown, all may be visible.
    """
    with state.lock, ExitStack() as cached:
        failpoints.reach("batch-started")
        spark, watch = df.sparkSession, Stopwatch(options.environment)
        batch = Batch(
            state.open(spark, source), options.environment, watch, ledger, options.accept_new_checkpoint,
            source.table_uuid, state.backoff,
        )  # fmt: skip
        make = appended_rows if options.upsert is None else upserts
        try:
            outcome = exactly_once(batch, make(df, options, state, cached))
        except TableNotFound as error:
            statement = columns.create_table(batch.handle.name, df.schema)
            raise TableNotFound(f"{error}; create it first: {statement}", table=batch.handle.name) from error
        if outcome.commit.snapshot_ids or outcome.commit.already_committed:
            state.refresh(spark)
        return outcome
