"""Merging without new rows: the flow of a batch with nothing to write. Knows no Spark; who runs merges is passed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from icesize import failpoints
from icesize.clock import Environment, Stopwatch
from icesize.errors import RewriteFailed
from icesize.maintenance.batch_commit import CommitContext, commit
from icesize.maintenance.reporting import MergeResults, Outcome, WrittenBatch, outcome_of
from icesize.parquet.files.data_file import Results
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import uncommitted
from icesize.planning.files import Layout
from icesize.planning.plan import MergeGroup, Plan
from icesize.table.catalog.access_errors import readable
from icesize.table.commit.ledger import stream_hash
from icesize.table.commit.request import CommitOutcome
from icesize.table.manifests.repeated_files import check_listed_once
from icesize.table.state.handle import Current, TableHandle

Runner = Callable[[Mapping[int, MergeGroup], WriteSettings, str], Results]
"""Merges groups, given by number, under file names with a prefix; the result of each, by its number."""

REASONS_TOLD = 3
"""Groups whose reasons an error tells: a storage that is full or away gives each of thousands the same."""


@dataclass(frozen=True)
class Maintenance:
    """One pass over one table: a plan made on a loaded state, run by `runner`, committed as one REPLACE.

    `prefix` names the files (None: by the run). `commit_lock` is held for the commit: what shares the table with others
    of this process waits there, and may raise instead; then the files are removed.
    """

    handle: TableHandle
    current: Current
    layout: Layout
    plan: Plan
    runner: Runner
    environment: Environment = field(default_factory=Environment)
    notes: tuple[str, ...] = ()
    prefix: str | None = None
    commit_lock: AbstractContextManager[object] = field(default_factory=nullcontext)

    def run(self) -> Outcome:
        """Merge and commit. Raises TableError, CommitConflict, CommitStateUnknown or RewriteFailed."""
        watch, run_id = Stopwatch(self.environment), self.environment.new_id()
        failpoints.reach("planned")
        written, committed = WrittenBatch(self.current, self.layout, self.plan), CommitOutcome()
        if self.plan.groups:
            self._check_listed_once()
            settings = self.current.settings()
            groups = dict(enumerate(self.plan.groups))
            prefix = self.prefix or f"{stream_hash(run_id)}-0"
            with uncommitted(settings.storage, self.environment) as environment:
                merges = MergeResults.of(groups, self.runner(groups, settings, prefix))
                watch.lap("merge")
                written = replace(written, merges=merges)
                committed = commit(written, self.handle, CommitContext(run_id, environment, watch, self.commit_lock))
        return outcome_of(self.current, committed, written, watch.seconds, (*self.current.warnings, *self.notes))

    def _check_listed_once(self) -> None:
        """Manifests without partitions that matter were not read: one of these may list a file again."""
        if not self.layout.complete:
            table, inputs = self.current.table, [file.path for group in self.plan.groups for file in group.inputs]
            with readable(self.current.name):
                check_listed_once(table.io, table.metadata.current_snapshot(), inputs)


def check_any_merged(outcome: Outcome, what: str, changed: Sequence[str] = ()) -> None:
    """Raise RewriteFailed when every merge failed: for who asked for this one thing a report of it would look as if
    there had been nothing to do.

    `what` was asked for; `changed` are sentences about what was done to the table before that, and stays.
    """
    merges = outcome.written.merges if outcome.written else MergeResults()
    if merges.merged or not merges.failed:
        return
    why = merges.failed
    more = f"; and {len(why) - REASONS_TOLD:,} more" if len(why) > REASONS_TOLD else ""
    told = "; ".join((f"{'; '.join(why[:REASONS_TOLD])}{more}", *changed))
    raise RewriteFailed(
        f"Cannot {what} '{outcome.current.name}': every merge failed, its files stay as they were: {told}",
        table=outcome.current.name,
        reasons=why,
    )
