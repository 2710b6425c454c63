"""The life of a batch: load, plan, write, commit, report. Appended rows and upserts differ in plan and write only.

A commit that conflicts is retried with the same files. The batch starts again only if its files have become useless.
Either they contain rows of older files that another writer has changed, or the table has changed so that it could not
read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol

from icesize.errors import CommitConflict
from icesize.parquet.files.uncommitted import Uncommitted, uncommitted
from icesize.planning.files import MAIN
from icesize.table.commit.attempted_steps import CommitOutcome
from icesize.table.commit.batch_commit import Batch, commit_written
from icesize.table.commit.batch_report import BatchOutcome, WrittenBatch, outcome_of, remember
from icesize.table.commit.protocol import ConcurrentChange
from icesize.table.records.ledger import file_prefix
from icesize.table.state.committed_batches import is_committed
from icesize.table.state.concurrent_writers import rolled_back
from icesize.table.state.handle import Current

MOST_ATTEMPTS = 4
"""Times that a batch is planned, if other writers or a changed table make its files useless."""


class PlanAgain(Exception):
    """The batch cannot be written by its plan. The text is a sentence for its report."""


class PlannedBatch(Protocol):
    """A batch that was planned on the state `current` of the table."""

    @property
    def current(self) -> Current:
        """The state of the table, with the columns of the batch."""

    def write(self, owner: Uncommitted) -> WrittenBatch | None:
        """Write the files; return None if the batch has no rows. No work continues after the return.

        Raises PlanAgain, or SchemaMismatch and RewriteFailed for the rows.
        """

    def for_report(self, written: WrittenBatch) -> tuple[Sequence[str], dict[str, Any]]:
        """Return notes for the report of the committed batch, and its fields beyond those of all batches."""


class BatchRows(Protocol):
    """The rows of a batch. `verb` is what a table refuses if it refuses them."""

    verb: ClassVar[str]

    def plan(self, batch: Batch, current: Current) -> PlannedBatch | None:
        """Plan the batch on a state of the table; return None if it has no rows."""


def exactly_once(batch: Batch, rows: BatchRows) -> BatchOutcome:
    """Write and commit a batch, exactly once.

    Raises the errors in `docs/output.md`. No row is visible then; after CommitStateUnknown, all may be visible.
    """
    for _ in range(MOST_ATTEMPTS):
        try:
            outcome = _once(batch, rows)
        except PlanAgain as other:
            batch.conflicts.append(str(other))
        except ConcurrentChange as lost:
            batch.backoff.lost(lost.partitions)
            batch.conflicts.append(f"the batch was written again: {lost}")
        else:
            remember(batch.backoff, outcome)
            return outcome
    raise CommitConflict(
        f"Cannot {rows.verb} '{batch.handle.name}': the batch did not fit the table in {MOST_ATTEMPTS} attempts, last: "
        f"{batch.conflicts[-1]}; nothing was committed",
        table=batch.handle.name,
    )


def _once(batch: Batch, rows: BatchRows) -> BatchOutcome:
    current, entry = batch.handle.load(batch.environment), batch.ledger
    current.check_same(batch.table_uuid, rows.verb)
    metadata, batch_id = current.table.metadata, entry.batch_id if entry else None
    undone = rolled_back(metadata, entry) if entry and current.branch == MAIN else ()
    if entry and is_committed(metadata, current.branch, entry, batch.accept_new_checkpoint):
        return outcome_of(current, CommitOutcome(already_committed=True), None, {}, undone, batch_id=batch_id)
    planned = rows.plan(batch, current)
    if planned is None:
        return outcome_of(current, CommitOutcome(), None, batch.watch.seconds, undone, batch_id=batch_id)
    storage, prefix = planned.current.settings().storage, file_prefix(batch.run_id, entry)
    with uncommitted(storage, prefix, batch.environment) as (owner, environment):
        written = planned.write(owner)
        if written is None:
            return outcome_of(current, CommitOutcome(), None, batch.watch.seconds, undone, batch_id=batch_id)
        commit = commit_written(written, batch, owner, environment)
    notes, facts = planned.for_report(written)
    return outcome_of(
        written.current, replace(commit, conflicts=(*batch.conflicts, *commit.conflicts)), written,
        batch.watch.seconds, (*written.current.warnings, *undone, *notes), batch_id=batch_id, **facts,
    )  # fmt: skip
