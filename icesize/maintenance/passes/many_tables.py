"""One bounded pass over the tables of a catalog: each table by `maintain.Pass`, those with most benefit per byte first.

Nothing is recorded between passes and no table is locked. A pass that was killed needs no repair, and several
maintainers may work at once: each loads a table before it works on it, and the commits decide.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from threading import Event, Lock

from pyiceberg.table import Table

from icesize.concurrency import TABLES_AT_ONCE, Ahead
from icesize.environment import Environment
from icesize.errors import CommitStateUnknown, TableNotFound
from icesize.events import Progress
from icesize.maintenance.passes.maintain import STEPS, MaintenanceReport, Pass
from icesize.maintenance.passes.survey import CatalogTables, survey_and_merges
from icesize.maintenance.rounds import Budget
from icesize.maintenance.table_context import Engine, InThisProcess, TableContext
from icesize.parquet.format.refusals import log_if_internal
from icesize.planning.insight.health import TableSurvey
from icesize.planning.plan import MergeTask
from icesize.planning.shared_budget import DueMerge, choose, order_of
from icesize.policy import SizePolicy
from icesize.results import Result, keys
from icesize.storage.locations import is_object_store
from icesize.table.catalog.access_errors import said
from icesize.table.catalog.opening import responds, with_timeout
from icesize.table.catalog.tables import Name, NotLoaded, in_turn
from icesize.table.cleanup.may_delete import CatalogOwners, identity_of_table, shared
from icesize.table.manifests.store import ManifestStore, Memory
from icesize.table.state.concurrent_writers import optimizer_of, other_compactors
from icesize.table.state.handle import TableHandle

LOG = logging.getLogger("icesize")

STEP = "tables"
"""The name of a pass over tables in `Progress`, which counts tables."""
SLEEP_SECONDS = 0.5
"""Most seconds between two looks whether a service is to stop."""
KEPT_BYTES = 256 * 2**20
"""Memory for the facts of tables on which no work is going on.

What the ranking of the tables has read is kept for the work, as far as it fits. A table with 1,000,000 files, or with
70,000 snapshots, takes 1.5 GB while work is going on.
"""
MOST_TIME = 0.25
"""Share of the seconds that are left which one table may use while others wait for its threads."""
LIGHT_BYTES, LIGHT_METADATA_BYTES = 64 * 2**20, 4 * 2**20
"""Most bytes of a light table to rewrite, and of its metadata."""
LIGHT_AT_ONCE = 4
"""Light tables in object stores that are maintained in place of one other: they mostly wait for requests.

30 tables of 8 small files at 30 ms a request, on two cores: 11.5 s with 2 tables at once, 7.6 s with 8; with nothing
due, 6.5 s and 3.7 s.
"""
_LEFT_OUT = {"view": "it is a view", "other format": "it is no Iceberg table"}


@dataclass(frozen=True)
class TableShare:
    """The benefit of maintenance for one table, and the merges that the budget pays for.

    Attributes:
        survey: What all due work would bring, and its cost.
        merges: Number of merges that the budget pays for.
        files_saved: Files and delete files that a scan opens less after these merges.
        bytes_to_write: Bytes that these merges rewrite.
        bytes_contested: Bytes of the due merges in contested partitions. A later pass does them.
    """

    survey: TableSurvey
    merges: int
    files_saved: int
    bytes_to_write: int
    bytes_contested: int = 0

    KEYS = keys("bytes_left", "usd", table="survey.table")

    @property
    def bytes_left(self) -> int:
        """Bytes of the due merges that the budget does not pay for."""
        return self.survey.bytes_to_write - self.bytes_to_write - self.bytes_contested

    @property
    def usd(self) -> float | None:
        """The price of the work: that of all due work, by the share of bytes; None for a table on local disks."""
        due = self.survey
        return due.usd and round(due.usd * (self.bytes_to_write / due.bytes_to_write if due.bytes_to_write else 1), 6)


@dataclass(frozen=True)
class ManyTablesPlan(Result):
    """The state of several tables, and the merges that a budget pays for; nothing was changed.

    Attributes:
        pattern: The pattern that selects the tables.
        failed: Table -> reason, for tables that could not be read, or of which no file may be deleted, because another
            table has the same UUID or location.
        tables: The tables that need work, those with most benefit per byte first.
        idle: Number of tables that need nothing.
        left_alone: Table -> service that maintains it.
        skipped: Name -> reason, for views, tables that are no Iceberg tables, and tables that icesize does not support.
        notes: Sentences about namespaces that cannot be listed, and about other compactors.
    """

    pattern: str = ""
    failed: dict[str, str] = field(default_factory=dict)
    tables: tuple[TableShare, ...] = ()
    idle: int = 0
    left_alone: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    KEYS = keys("files_saved", "bytes_to_write", "bytes_left", "bytes_contested", "usd")

    @property
    def files_saved(self) -> int:
        """Files and delete files that scans open less after the merges within the budget."""
        return sum(share.files_saved for share in self.tables)

    @property
    def bytes_to_write(self) -> int:
        """Bytes that the merges within the budget rewrite."""
        return sum(share.bytes_to_write for share in self.tables)

    @property
    def bytes_left(self) -> int:
        """Bytes of the merges that the budget does not pay for."""
        return sum(share.bytes_left for share in self.tables)

    @property
    def bytes_contested(self) -> int:
        """Bytes of the merges in partitions that other writers changed a moment ago."""
        return sum(share.bytes_contested for share in self.tables)

    @property
    def usd(self) -> float | None:
        """The price of the work; None if all tables are on local disks."""
        prices = [share.usd for share in self.tables if share.usd is not None]
        return round(sum(prices), 6) if prices else None


@dataclass(frozen=True)
class ManyTablesReport(Result):
    """The result of one pass over several tables.

    Attributes:
        pattern: The pattern that selects the tables.
        failed: Table -> reason, for tables that could not be read, and tables of which a step failed.
        tables: The reports of the tables that changed or failed, in the order of the work.
        idle: Number of tables that needed nothing.
        not_started: Tables that the pass did not reach: in its time, or before the catalog ceased to respond. The next
            pass begins with the most urgent ones.
        plan: The state of the tables before the pass, and the merges that the budget paid for.
        seconds: Seconds of the pass.
    """

    pattern: str = ""
    failed: dict[str, str] = field(default_factory=dict)
    tables: tuple[MaintenanceReport, ...] = ()
    idle: int = 0
    not_started: tuple[str, ...] = ()
    plan: ManyTablesPlan = field(default_factory=ManyTablesPlan)
    seconds: float = 0.0

    KEYS = keys("bytes_rewritten")

    @property
    def succeeded(self) -> bool:
        """True if no table failed."""
        return not self.failed

    @property
    def bytes_rewritten(self) -> int:
        """Bytes of data files that the pass wrote."""
        return sum(report.bytes_rewritten for report in self.tables)


@dataclass(frozen=True)
class _Due:
    """A table to work on, its merges that are due, and the bytes of those that wait for another writer.

    `identity` is its UUID and its location. `paid` are the merges that the budget pays for.
    """

    identifier: Name
    survey: TableSurvey
    jobs: tuple[DueMerge, ...]
    bytes_contested: int
    notes: tuple[str, ...]
    identity: tuple[str, str]
    paid: list[DueMerge] = field(default_factory=list)

    @property
    def paid_bytes(self) -> int:
        return sum(job.size_bytes for job in self.paid)

    @property
    def is_light(self) -> bool:
        """True if the table mostly waits for requests to an object store, and takes little memory."""
        survey = self.survey
        metadata_bytes = survey.metadata_bytes + survey.manifest_bytes
        is_small = survey.bytes_to_write <= LIGHT_BYTES and metadata_bytes <= LIGHT_METADATA_BYTES
        return is_small and is_object_store(self.identity[1])

    @property
    def share(self) -> TableShare:
        """The effect of maintenance, with the merges that the budget pays for."""
        saved = sum(int(job.benefit) for job in self.paid)
        return TableShare(self.survey, len(self.paid), saved, self.paid_bytes, self.bytes_contested)


@dataclass(frozen=True)
class _Theirs:
    """A table that another service maintains."""

    name: str
    service: str


@dataclass
class _Unspent:
    """Bytes of the budget that no planned merge uses. One table at a time may spend them, for example to cluster."""

    size_bytes: int
    _lock: Lock = field(default_factory=Lock, repr=False)

    @contextmanager
    def taken(self) -> Iterator[_Unspent]:
        """Yield all bytes, of which the block takes what it spends; put the rest back."""
        with self._lock:
            mine, self.size_bytes = _Unspent(self.size_bytes), 0
        try:
            yield mine
        finally:
            with self._lock:
                self.size_bytes += mine.size_bytes


@dataclass(frozen=True)
class ManyTables:
    """One pass over the tables of a catalog.

    Attributes:
        tables: The tables, with the clock, the limits, the observer, and a policy for all of them.
        threads: Most tables that are maintained at the same time, and most of those whose files the engine rewrites
            elsewhere; of light ones, `LIGHT_AT_ONCE` times as many.
        take_over: True to also work on tables that another service maintains.
        engine: Rewrites files; None for threads of this process.
    """

    tables: CatalogTables
    threads: int = TABLES_AT_ONCE
    take_over: bool = False
    engine: Engine | None = None
    _memory: Memory = field(default_factory=Memory, init=False, repr=False, compare=False)
    _stores: dict[str, ManifestStore] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def _others(self) -> CatalogOwners:
        return CatalogOwners(self.tables.catalog)

    @cached_property
    def _engine(self) -> Engine:
        return self.engine or InThisProcess(self.tables.environment.limits.bytes_without_spark)

    def plan(self, budget: Budget) -> ManyTablesPlan:
        """Return the merges that are due and those that the budget pays for. Only metadata is read.

        Raises an error if the catalog cannot list its tables.
        """
        return self._planned(budget)[0]

    def run(self, budget: Budget) -> ManyTablesReport:
        """Maintain the tables within a budget. The report contains every error of a table.

        Raises an error if the catalog cannot list its tables.
        """
        environment, began = self.tables.environment, self.tables.environment.monotonic()
        is_down, is_interrupted, outer = Event(), Event(), budget
        budget = replace(budget, is_stopped=lambda: is_interrupted.is_set() or outer.is_stopped())
        is_late = budget.started(environment)
        plan, due = self._planned(budget)
        ranked = order_of({name: one.survey.seconds_saved_per_gib for name, one in due.items()}, environment.new_id())
        queues = self._queues(ranked, due)
        order = [name for _, names in queues for name in names]
        ends = {names[-1] for _, names in queues if names}
        unspent = _Unspent((budget.size_bytes or 0) - plan.bytes_to_write)

        def maintain(name: str) -> MaintenanceReport | str | None:
            if is_late() or is_down.is_set():
                return None
            left = budget.after(environment.monotonic() - began)
            if left.seconds is not None and name not in ends:
                left = replace(left, seconds=MOST_TIME * left.seconds)
            result = self._maintained(due[name], left, unspent)
            if (isinstance(result, str) or result.failed) and not responds(self.tables.catalog):
                is_down.set()
            return result

        results = dict[str, MaintenanceReport | str | None]()
        with ExitStack() as stack:
            aheads = [stack.enter_context(closing(Ahead(at_once))) for at_once, _ in queues]
            maps = [
                ahead.map(maintain, names, len(names) + 1) for ahead, (_, names) in zip(aheads, queues, strict=True)
            ]
            try:
                for name, result in zip(order, chain(*maps), strict=True):
                    results[name] = result
                    environment.observe(Progress(STEP, len(results), len(order), "table"))
            except BaseException:
                # the threads are waited for, and must not go on with whole passes
                is_interrupted.set()
                raise
        reports = [result for result in results.values() if isinstance(result, MaintenanceReport)]
        waiting = {share.survey.table for share in plan.tables if share.bytes_left or share.bytes_contested}
        broken = {name: result for name, result in results.items() if isinstance(result, str)}
        return ManyTablesReport(
            str(self.tables.pattern),
            plan.failed | broken | {report.table: _why(report) for report in reports if not report.succeeded},
            tuple(report for report in reports if report.is_changed or not report.succeeded),
            sum(report.succeeded and not report.is_changed and report.table not in waiting for report in reports),
            tuple(name for name, result in results.items() if result is None),
            plan,
            round(environment.monotonic() - began, 4),
        )

    def _queues(self, ranked: Sequence[str], due: Mapping[str, _Due]) -> list[tuple[int, list[str]]]:
        """Return the tables in queues, each with the number of threads that maintain its tables; 0 for this thread.

        Tables that wait, for requests or for other processes, leave the turns of a queue to tables that compute here.
        """
        if self.threads == 1 or in_turn(self.tables.catalog):
            return [(0, [*ranked])]
        threads = self.threads
        here, light, elsewhere = queues = [(n, list[str]()) for n in (threads, LIGHT_AT_ONCE * threads, threads)]
        for name in ranked:
            is_elsewhere = self._engine.works_elsewhere([job.size_bytes for job in due[name].paid])
            queue = elsewhere if is_elsewhere else light if due[name].is_light else here
            queue[1].append(name)
        return queues

    def _planned(self, budget: Budget) -> tuple[ManyTablesPlan, dict[str, _Due]]:
        """Return the plan, and the tables to work on by their names."""
        SizePolicy.resolve({}, self.tables.policy)  # an error in it concerns all tables
        with_timeout(self.tables.catalog)
        seen, doubts = self.tables.look_at_each(partial(self._look, budget.size_bytes), self._store)
        if not seen and (doubts or self.tables.pattern.has_wildcards):
            # a scheduler must learn of a misspelled name, which would be maintained never
            why = f" ({'; '.join(doubts)})" if doubts else ""
            name = str(self.tables.pattern)
            raise TableNotFound(f"Cannot maintain '{name}': it selects no table{why}", pattern=name)
        due_tables = [one for one in seen if isinstance(one, _Due)]
        due_tables.sort(key=lambda one: -one.survey.seconds_saved_per_gib)
        due = {one.survey.table: one for one in due_tables}
        for job in choose((job for one in due_tables for job in one.jobs), budget.size_bytes):
            due[job.table].paid.append(job)
        shares = [one.share for one in due_tables if one.survey.seconds_saved > 0]
        lost = [one for one in seen if isinstance(one, NotLoaded)]
        plan = ManyTablesPlan(
            str(self.tables.pattern),
            {self._name(one): one.why for one in lost if one.kind == "unreadable"}
            | shared({name: one.identity for name, one in due.items()}),
            tuple(shares),
            len(due_tables) - len(shares),
            {one.name: one.service for one in seen if isinstance(one, _Theirs)},
            {self._name(one): _LEFT_OUT.get(one.kind, one.why) for one in lost if one.kind != "unreadable"},
            (*doubts, *(note for one in due_tables for note in one.notes)),
        )
        return plan, due

    def _look(self, most_bytes: int | None, context: TableContext, table: Table) -> _Due | _Theirs:
        name, metadata = context.handle.name, table.metadata
        if not self.take_over and (service := optimizer_of(metadata, self.tables.catalog)):
            return _Theirs(name, service)
        context = self._context(context.handle.identifier)  # whose session may refuse the table
        survey, plan = survey_and_merges(context, table, most_bytes)
        self._memory.shrink(KEPT_BYTES)
        # a survey counts contested partitions, but a pass does not merge them
        contested = context.handle.contested(context.handle.current(table), context.environment)
        groups = [group for group in plan.groups if group.partition not in contested]
        jobs = tuple(DueMerge(name, group.partition, _files_saved(group), group.size_bytes) for group in groups)
        bytes_contested = plan.bytes_to_write - sum(group.size_bytes for group in groups)
        notes = *other_compactors(metadata, name), *(f"{name}: {note}" for note in plan.notes)
        return _Due(context.handle.identifier, survey, jobs, bytes_contested, notes, identity_of_table(table))

    def _name(self, one: NotLoaded) -> str:
        return ".".join((self.tables.catalog.name, *one.name))

    def _maintained(self, due: _Due, budget: Budget, unspent: _Unspent) -> MaintenanceReport | str:
        """Return the report of one table, or the error that ended its pass before it committed."""
        unpaid = {job.partition for job in due.jobs}.difference(job.partition for job in due.paid)
        with unspent.taken() as spare:
            if budget.size_bytes is not None:
                budget = replace(budget, size_bytes=due.paid_bytes + spare.size_bytes)
            try:
                report = Pass(self._context(due.identifier), budget, {"merges": frozenset(unpaid)}).run(STEPS)
            except Exception as error:  # a table must not end the pass
                if not log_if_internal("maintain", error):
                    LOG.warning("maintain %s: the rest is left", due.survey.table, exc_info=error)
                if not (isinstance(error, CommitStateUnknown) and isinstance(error.report, MaintenanceReport)):
                    return said(error)
                report = error.report
            finally:
                self._memory.shrink(KEPT_BYTES)
            spare.size_bytes -= max(0, report.bytes_rewritten - due.paid_bytes)
            return report

    def _store(self, table_uuid: str) -> ManifestStore:
        return self._stores.setdefault(table_uuid, ManifestStore(self._memory, table_uuid))

    def _context(self, identifier: Name) -> TableContext:
        """Return the context of one table. Its progress is not observed, because several tables have theirs at once."""
        tables, environment = self.tables, self.tables.environment
        observe = environment.observe
        quiet = replace(environment, observe=lambda event: isinstance(event, Progress) or observe(event))
        handle = TableHandle(tables.catalog, identifier, tables.policy, self._engine.spark_conf, stores=self._store)
        return TableContext(handle, quiet, self._engine, others=self._others)


def watch(
    run: Callable[[], object], interval_seconds: float, environment: Environment, is_stopped: Callable[[], bool]
) -> None:
    """Call `run` again and again until `is_stopped` returns True.

    The calls begin `interval_seconds` apart; after a longer one, the next begins at once.
    """
    while not is_stopped():
        until = environment.monotonic() + interval_seconds
        run()
        # short waits, because a signal does not end one
        while not is_stopped() and (left := until - environment.monotonic()) > 0:
            environment.sleep(min(left, SLEEP_SECONDS))


def _files_saved(group: MergeTask) -> int:
    """Return the files that a scan spares after a merge; at least 1, for rows that are read and then left out."""
    return max(1, len(group.inputs) - group.outputs + group.avoidable_deletes)


def _why(report: MaintenanceReport) -> str:
    """Return the reasons why a pass over one table did not succeed."""
    steps = [f"{step}: {why}" for step, why in report.failed.items()]
    return "; ".join(steps or ["expiry: some files could not be deleted"])
