"""What every job of maintenance works with: a table, the environment, and who moves the bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock, RLock
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from icesize.environment import Environment
from icesize.errors import RewriteFailed
from icesize.events import Progress
from icesize.report import Report
from icesize.table.commit.submit import commit_step
from icesize.table.state.handle import Current, TableHandle
from icesize.table.state.where import NO_MATCH, PartitionFilter, Where, partition_filter

if TYPE_CHECKING:
    from icesize.parquet.files.data_file import Results
    from icesize.parquet.files.settings import WriteSettings
    from icesize.parquet.files.uncommitted import Uncommitted
    from icesize.parquet.ordering.cluster_order import RowOrder
    from icesize.planning.files import Layout
    from icesize.planning.plan import MergeTask, Plan
    from icesize.table.commit.batch_commit import Outcome
    from icesize.table.commit.protocol import Step
    from icesize.table.commit.request import CommitOutcome

T = TypeVar("T")
P = ParamSpec("P")

Advance = Callable[[int], None]
"""Gets the number of bytes that are done in addition, from several threads: a whole group of files, or a part."""

MAX_REASONS = 3
"""Groups whose reasons an error tells: a storage that is full or away gives each of thousands the same."""


@dataclass(frozen=True)
class ClusterWork:
    """Groups whose rows are to be written in `order`, each under file names with its own prefix; both by number."""

    groups: Mapping[int, MergeTask]
    prefixes: Mapping[int, str]
    order: RowOrder
    settings: WriteSettings
    owner: Uncommitted


class Engine(Protocol):
    """Who rewrites files: threads of this process, or Spark. The result of each group is known by its number."""

    @property
    def most_bytes(self) -> int | None:
        """Bytes that it rewrites before they are committed; None for no bound."""

    def merge(
        self, groups: Mapping[int, MergeTask], settings: WriteSettings, owner: Uncommitted, advance: Advance
    ) -> Results:
        """Merge each group's files, into files that `owner` knows of."""

    def cluster(self, work: ClusterWork, advance: Advance) -> Results:
        """Write each group's rows in the order wanted."""

    def refresh(self, handle: TableHandle) -> None:
        """Make later queries of this engine see what was committed."""


@dataclass(frozen=True)
class InThisProcess:
    """The engine where there is no Spark: threads of this process."""

    most_bytes: int

    def merge(
        self, groups: Mapping[int, MergeTask], settings: WriteSettings, owner: Uncommitted, advance: Advance
    ) -> Results:
        from icesize.parquet.rewriting.threads import merge_in_threads  # with all ways to merge

        return merge_in_threads(groups, settings, owner, progress=advance)

    def cluster(self, work: ClusterWork, advance: Advance) -> Results:
        from icesize.parquet.rewriting.cluster import cluster_in_threads

        return cluster_in_threads(work.groups, work.prefixes, work.order, work.settings, work.owner, progress=advance)

    def refresh(self, handle: TableHandle) -> None:
        """Every query here loads the table by itself."""


@dataclass(frozen=True)
class Selection:
    """A loaded table and the partitions that a filter takes; `notes` are sentences about what it left out."""

    current: Current
    layout: Layout
    filter: PartitionFilter
    notes: tuple[str, ...] = ()

    def noted(self, plan: Plan) -> Plan:
        """The plan with what the table's settings and the filter make worth knowing, each sentence once."""
        return replace(plan, notes=tuple(dict.fromkeys((*self.current.warnings, *self.notes, *plan.notes))))


@dataclass(frozen=True)
class TableContext:
    """One table to maintain, with the engine that does it; `lock` is held by what changes the table."""

    handle: TableHandle
    environment: Environment
    engine: Engine
    lock: RLock = field(default_factory=RLock, compare=False, repr=False)

    def alone(self, job: Callable[Concatenate[TableContext, P], T], *args: P.args, **options: P.kwargs) -> T:
        """Run a job on this table while no other thread runs one; what looks at the table only does not wait."""
        with self.lock:
            return job(self, *args, **options)

    def load(self) -> Current:
        """The table now; a catalog that does not answer is asked again for a while."""
        return self.handle.load(self.environment)

    def select(self, where: Where = None, current: Current | None = None) -> Selection:
        """The partitions that match `where` as a whole, of the table as it is now or as `current` has it."""
        current = current or self.load()
        metadata, io = current.table.metadata, current.table.io
        chosen = partition_filter(metadata, where)
        layout, partly = chosen.select(self.handle.reader(current.policy).read(metadata, io, chosen.may_hold))
        notes = (f"{partly:,} partitions match the filter only in part and were left out",) if partly else ()
        if where is not None and not layout.partitions:
            notes = (NO_MATCH, *notes)
        return Selection(current, layout, chosen, notes)

    def commit(self, current: Current, step: Step, again: str, *, dry_run: bool) -> CommitOutcome:
        """Commit one step that adds no files, as `submit.commit_step`; later queries see it."""
        outcome = commit_step(self.handle, current, step, self.environment, again=again, dry_run=dry_run)
        return outcome if dry_run else self.refresh(outcome)

    def advance(self, step: str, total_bytes: int) -> Advance:
        """Return a function that sums the bytes that it gets, and sends each sum to the observer as `Progress`."""
        lock, done_bytes, observe = Lock(), 0, self.environment.observe
        if total_bytes:
            observe(Progress(step, 0, total_bytes))

        def advance(size_bytes: int) -> None:
            nonlocal done_bytes
            # the observer is called inside the lock, so that no sum overtakes a larger one
            with lock:
                done_bytes += size_bytes
                observe(Progress(step, done_bytes, total_bytes))

        return advance

    def affordable(self, budget_bytes: int) -> int:
        """What of a budget the engine rewrites at once."""
        return budget_bytes if self.engine.most_bytes is None else min(budget_bytes, self.engine.most_bytes)

    def refresh(self, report: T) -> T:
        """Return a report, after the engine was made to see what was committed."""
        self.engine.refresh(self.handle)
        return report

    def report(self, outcome: Outcome, what: str, changed: Sequence[str] = ()) -> Report:
        """The report of `what` was asked for; later queries see what was committed.

        Raises RewriteFailed when every merge failed: for who asked for this one thing a report of it would look as if
        there had been nothing to do. `changed` are sentences about what was done to the table before that, and stays.
        """
        if outcome.written and not outcome.written.merges.merged and (why := outcome.written.merges.failed):
            more = f"; and {len(why) - MAX_REASONS:,} more" if len(why) > MAX_REASONS else ""
            reasons = "; ".join((f"{'; '.join(why[:MAX_REASONS])}{more}", *changed))
            raise RewriteFailed(
                f"Cannot {what} '{self.handle.name}': every merge failed, its files stay as they were: {reasons}",
                table=self.handle.name,
                reasons=why,
            )
        return self.refresh(outcome.report) if outcome.commit.snapshot_ids else outcome.report
