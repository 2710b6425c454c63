"""The context of every maintenance job: a table, the environment, and the engine that rewrites files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock, RLock
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from icesize.environment import Environment
from icesize.errors import RewriteFailed
from icesize.events import JobFinished, Progress
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE
from icesize.report import Report
from icesize.results import Result
from icesize.table.catalog.history import head_snapshot
from icesize.table.commit.batch_commit import commit_step
from icesize.table.commit.steps.number_rows import NumberRows
from icesize.table.state.handle import Current, TableHandle
from icesize.table.state.where import NO_MATCH, PartitionFilter, Where, partition_filter

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile

    from icesize.parquet.files.data_file import Results
    from icesize.parquet.files.settings import WriteSettings
    from icesize.parquet.files.uncommitted import Uncommitted
    from icesize.parquet.ordering.cluster_order import RowOrder
    from icesize.planning.files import Layout, PartitionKey
    from icesize.planning.plan import MergeTask, Plan
    from icesize.table.cleanup.may_delete import CatalogOwners
    from icesize.table.commit.attempted_steps import CommitOutcome
    from icesize.table.commit.batch_report import BatchOutcome
    from icesize.table.commit.protocol import Step

T = TypeVar("T")
P = ParamSpec("P")

Advance = Callable[[int], None]
"""Called with the bytes of a plan that are done: of a whole group of files, or of a part of it. Threads may call it."""


MAX_REASONS = 3
"""Groups whose reasons an error message lists. If storage is full or unavailable, thousands have the same reason."""


@dataclass(frozen=True)
class ClusterWork:
    """Groups of files whose rows are written in `order`; each group has its own prefix of file names.

    `groups` and `prefixes` are keyed by the number of the group.
    """

    groups: Mapping[int, MergeTask]
    prefixes: Mapping[int, str]
    order: RowOrder
    settings: WriteSettings
    owner: Uncommitted


class Engine(Protocol):
    """Rewrites files, in threads of this process or in Spark. Results are keyed by the number of their group."""

    @property
    def most_bytes(self) -> int | None:
        """Bytes that the engine rewrites before they are committed; None for no limit."""

    @property
    def spark_conf(self) -> Mapping[str, str]:
        """Settings of Spark about catalogs and commits. They can hold credentials."""

    def works_elsewhere(self, sizes: Sequence[int]) -> bool:
        """Return whether other processes merge some groups of files of these sizes in bytes, while this one waits."""

    def merge(
        self, groups: Mapping[int, MergeTask], settings: WriteSettings, owner: Uncommitted, advance: Advance
    ) -> Results:
        """Merge the files of each group into files that `owner` records."""

    def cluster(self, work: ClusterWork, advance: Advance) -> Results:
        """Write the rows of each group in the requested order."""

    def refresh(self, handle: TableHandle) -> None:
        """Make later queries of this engine see the commit."""


@dataclass(frozen=True)
class InThisProcess:
    """The engine without Spark: threads of this process."""

    most_bytes: int
    spark_conf: Mapping[str, str] = field(default_factory=dict, repr=False)

    def works_elsewhere(self, sizes: Sequence[int]) -> bool:
        """Return False."""
        return False

    def merge(
        self, groups: Mapping[int, MergeTask], settings: WriteSettings, owner: Uncommitted, advance: Advance
    ) -> Results:
        from icesize.parquet.rewriting.threads import merge_in_threads  # slow: imports all ways to merge

        return merge_in_threads(groups, settings, owner, progress=advance)

    def cluster(self, work: ClusterWork, advance: Advance) -> Results:
        from icesize.parquet.rewriting.cluster import cluster_in_threads

        return cluster_in_threads(work.groups, work.prefixes, work.order, work.settings, work.owner, progress=advance)

    def refresh(self, handle: TableHandle) -> None:
        """Do nothing: each query in this process loads the table itself."""


@dataclass(frozen=True)
class Selection:
    """A loaded table and the partitions that a filter selects; `notes` are sentences about omitted ones."""

    current: Current
    layout: Layout
    filter: PartitionFilter
    notes: tuple[str, ...] = ()

    def without(self, partitions: Collection[PartitionKey]) -> Selection:
        """Return the selection without these partitions."""
        return replace(self, layout=self.layout.with_partitions(dict.fromkeys(partitions))) if partitions else self

    def noted(self, plan: Plan) -> Plan:
        """Return the plan with the notes of the table's settings and of the filter, without duplicates."""
        return replace(plan, notes=tuple(dict.fromkeys((*self.current.warnings, *self.notes, *plan.notes))))


EVERY_SIZE = 1 << 62
"""A limit below which every file is."""


def _is_old(may_hold: Callable[[ManifestFile], bool], current_spec_id: int, manifest: ManifestFile) -> bool:
    return manifest.partition_spec_id != current_spec_id and may_hold(manifest)


def lacks_row_ids(current: Current) -> bool:
    """Return whether the table was upgraded to format v3 and has had no commit since."""
    metadata = current.table.metadata
    head = head_snapshot(metadata) if metadata.format_version >= FIRST_WITH_LINEAGE else None
    return head is not None and head.first_row_id is None


REUSED_SECONDS = 60.0
"""Age up to which a job begins with a state that the job before it loaded."""


@dataclass
class Loads:
    """The states that a pass loads: a job that changed nothing leaves its state to the next job.

    Loading a table with 70,000 snapshots takes a second, and a pass with nothing to do would load it for each step.

    Attributes:
        ready: The state for the first `load` of the next job; None to load the table.
        newest: The state that the job loaded last.
        loaded_s: The monotonic time at which the newer of the two was loaded.
    """

    ready: Current | None = None
    newest: Current | None = None
    loaded_s: float = 0.0

    def load(self, handle: TableHandle, environment: Environment) -> Current:
        """Return the state that is ready, once and unless it is too old; otherwise load the table."""
        current, self.ready, self.newest = self.ready, None, None
        if current is None or environment.monotonic() - self.loaded_s > REUSED_SECONDS:
            current = None  # its memory is needed
            self.loaded_s = environment.monotonic()
            current = handle.load(environment)
        self.newest = current
        return current

    def job_ended(self, *, may_have_changed: bool) -> None:
        """Leave the state to the next job, unless this one may have changed the table."""
        self.ready, self.newest = None if may_have_changed else self.newest or self.ready, None


@dataclass(frozen=True)
class TableContext:
    """A table to maintain and the engine that does the work; calls that change the table hold `lock`.

    A pass over several tables gives `others`, which loads each table of the catalog once.
    """

    handle: TableHandle
    environment: Environment
    engine: Engine
    lock: RLock = field(default_factory=RLock, compare=False, repr=False)
    loads: Loads | None = field(default=None, compare=False, repr=False)
    others: CatalogOwners | None = field(default=None, compare=False, repr=False)

    def alone(self, job: Callable[Concatenate[TableContext, P], T], *args: P.args, **options: P.kwargs) -> T:
        """Run a job on this table while no other thread runs one; the observer gets its result, unless it is a dry run.

        Calls that only read the table do not wait.
        """
        with self.lock:
            result = job(self, *args, **options)
        if isinstance(result, Result) and not options.get("dry_run"):
            self.environment.notify(JobFinished(self.handle.name, result))
        return result

    def load(self) -> Current:
        """Return the current table; retry for a while if the catalog does not respond.

        With `loads`, the first call of a job may return the state that the job before it loaded.
        """
        return (self.loads or Loads()).load(self.handle, self.environment)

    def numbered(self) -> Current:
        """Return the current table, whose rows have ids.

        After an upgrade to format v3 they have none until the next commit. A commit that changes no file gives them.
        """
        current = self.load()
        if not lacks_row_ids(current):
            return current
        self.commit(current, NumberRows(), "giving row ids again is safe", dry_run=False)
        return self.load()

    def select(self, where: Where = None, current: Current | None = None, *, old_specs_only: bool = False) -> Selection:
        """Return the partitions whose rows all match `where`, of the table in `current` or in its newest state.

        With `old_specs_only`, they are those of old partition specs, and all of their files count as small.
        """
        current = current or self.load()
        metadata, io = current.table.metadata, current.table.io
        chosen = partition_filter(metadata, where)
        reader, keep = self.handle.reader(current.policy), chosen.may_hold
        if old_specs_only:
            reader = replace(reader, small_file_limit_bytes=EVERY_SIZE, policy=None)
            keep = partial(_is_old, chosen.may_hold, metadata.default_spec_id)
        layout, partly = chosen.select(reader.read(metadata, io, keep))
        notes = (f"{partly:,} partitions match the filter only in part and were left out",) if partly else ()
        if where is not None and not layout.partitions:
            notes = (NO_MATCH, *notes)
        return Selection(current, layout, chosen, notes)

    def commit(self, current: Current, step: Step, again: str, *, dry_run: bool) -> CommitOutcome:
        """Commit one step that adds no files, as `batch_commit.commit_step` does; make later queries see it."""
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
        """Return the bytes of a budget that the engine rewrites before one commit."""
        return budget_bytes if self.engine.most_bytes is None else min(budget_bytes, self.engine.most_bytes)

    def round_bytes(self, bytes_left: int | None = None) -> int:
        """Return the bytes of one of several rounds, of which `bytes_left` (None: no limit) are left for all."""
        limit = self.environment.limits.round_bytes
        return self.affordable(limit if bytes_left is None else min(limit, bytes_left))

    def refresh(self, report: T) -> T:
        """Make the engine see the commit; return the report."""
        self.engine.refresh(self.handle)
        return report

    def report(self, outcome: BatchOutcome, what: str, changed: Sequence[str] = ()) -> Report:
        """Return the report of the operation `what`, and make later queries see its commit.

        `changed` are sentences about earlier changes to the table, which stay. Raises RewriteFailed if every merge
        failed, because its report would look as if there had been nothing to do.
        """
        if outcome.written and not outcome.written.merges.merged and (why := outcome.written.merges.failed):
            more = f"; and {len(why) - MAX_REASONS:,} more" if len(why) > MAX_REASONS else ""
            reasons = "; ".join((f"{'; '.join(why[:MAX_REASONS])}{more}", *changed))
            raise RewriteFailed(
                f"Cannot {what} '{self.handle.name}': every merge failed, and its files are unchanged: {reasons}",
                table=self.handle.name,
                reasons=why,
                partitions=frozenset(group.partition for group in outcome.written.plan.groups),
            )
        return self.refresh(outcome.report) if outcome.commit.snapshot_ids else outcome.report
