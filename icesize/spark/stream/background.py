"""Merges and clustering of one stream beside its batches: `merge="async"`, `cluster="async"`.

Each committed batch *triggers* them. A thread runs while there is work. It loads the newest state with its own handle,
plans, merges and commits one REPLACE. If any batch triggered it during that cycle, it runs one more cycle for all of
them. Partitions with recent rows keep at most `max-small-files` small files; cold ones are merged to the fewest files.
An error here never fails a batch: the report of the next batch contains it.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakSet

from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from icesize import failpoints
from icesize.environment import Environment
from icesize.errors import IcesizeError
from icesize.events import CommitStarted
from icesize.parquet.format.refusals import log_if_internal
from icesize.planning.files import PartitionKey
from icesize.planning.merging.contention import BackOff
from icesize.planning.merging.groups import MergeBudget
from icesize.planning.merging.planner import Occasion, plan_merges
from icesize.report import Report
from icesize.spark.clustering.run import cluster_beside_stream
from icesize.spark.engine.jobs import Cores
from icesize.spark.engine.merge_job import CANCEL_AGAIN_SECONDS, run_merges
from icesize.table.catalog.access_errors import brief
from icesize.table.catalog.hive import is_hive
from icesize.table.cleanup.expiry import expire
from icesize.table.cleanup.retention_inputs import ExpireOptions
from icesize.table.cluster_settings import off_because
from icesize.table.commit.batch_commit import rewrite
from icesize.table.commit.batch_report import BatchOutcome, WrittenBatch, remember
from icesize.table.state.handle import Current, TableHandle
from icesize.units import format_count

LOG = logging.getLogger("icesize")

EXIT_SECONDS = 60.0
"""Longest wait for a run when the interpreter exits: the time limit of a call to a catalog that does not respond."""


class Stopped(Exception):
    """The run or Spark was stopped: the run ends without a commit, and its files are removed."""


MERGE, CLUSTER, EXPIRE = "merge", "clustering", "expiry"


@dataclass(frozen=True)
class Trigger:
    """The work that a batch passes to the background thread, with its table and its session.

    `handle` is that of the batch; only its names and settings are used. `refresh` makes Spark see a commit. `on_report`
    is called with the report of each run that did something. The background thread calls both. `tasks` are MERGE,
    CLUSTER or both.
    """

    spark: SparkSession
    handle: TableHandle
    table_uuid: str | None
    prefix: str
    environment: Environment
    refresh: Callable[[], object]
    on_report: Callable[[Report], object]
    pool: str | None = None
    tasks: tuple[str, ...] = (MERGE,)


@dataclass(frozen=True)
class Cycle:
    """One cycle of the thread, with the number of `batches` committed at its start.

    `size_bytes` are the bytes of the batches that no cycle has covered yet. `tag` is that of its Spark jobs. `tasks`
    run in this order, each with its own commit.
    """

    trigger: Trigger
    tag: str
    batches: int
    size_bytes: int
    contested: frozenset[PartitionKey]
    tasks: tuple[str, ...]
    cancelled: threading.Event

    def stopped(self) -> bool:
        """Return True if no result of this cycle may become visible any more."""
        return self.cancelled.is_set() or is_gone(self.trigger.spark)

    def merge(self, handle: TableHandle) -> BatchOutcome:
        """Run merges and return their outcome. Raises Stopped, or the error that prevented them."""
        trigger, spark, environment = self.trigger, self.trigger.spark, self.trigger.environment
        current = self._begin(handle, "merges", "merge in")
        policy = current.policy
        layout = handle.reader(policy).read(current.table.metadata, current.table.io)
        if self.stopped():
            raise Stopped
        plan = plan_merges(
            layout, policy, Occasion.BATCH, dict.fromkeys(layout.recent(policy.cold_after_commits), 0),
            budget=MergeBudget.of_batch(policy, self.size_bytes),
            contested=self.contested | handle.contested(current, environment),
        )  # fmt: skip
        runner = partial(
            run_merges, spark, limits=environment.limits, cancelled=self.cancelled, cores=Cores.half(spark)
        )
        planned = WrittenBatch(current, layout, plan)
        return rewrite(handle, planned, runner, self._environment, prefix=trigger.prefix)

    def cluster(self, handle: TableHandle) -> BatchOutcome | None:
        """Run one pass of clustering and return its outcome; None if nothing was due."""
        spark, environment = self.trigger.spark, self.trigger.environment
        current = self._begin(handle, "clustering", "cluster")
        return cluster_beside_stream(
            spark, handle, current, self._environment,
            budget_bytes=environment.limits.round_bytes, most_bytes=sys.maxsize, contested=self.contested,
            cancelled=self.cancelled, cores=Cores.half(spark),
        )  # fmt: skip

    def _begin(self, handle: TableHandle, what: str, verb: str) -> Current:
        """Return the current table; give the Spark jobs of this thread a tag, a description and the query's pool.

        The jobs are not in the query's job group, so that they continue when the query ends.
        """
        failpoints.reach("background")
        trigger, context = self.trigger, self.trigger.spark.sparkContext
        context.addJobTag(self.tag)
        context.setJobDescription(f"icesize: {what} of {trigger.handle.name} in the background")
        if trigger.pool is not None:
            context.setLocalProperty("spark.scheduler.pool", trigger.pool)
        current = handle.load(replace(trigger.environment, sleep=self._wait))
        current.check_same(trigger.table_uuid, verb)
        return current

    def _wait(self, seconds: float) -> None:
        """Wait for a catalog that does not respond; raise Stopped if this cycle must stop."""
        if not self.stopped():
            self.trigger.environment.sleep(seconds)
        if self.stopped():
            raise Stopped

    @property
    def _environment(self) -> Environment:
        """The environment of a run: it begins no commit after the cycle was stopped, and finishes one without waits."""

        def check(event: object) -> None:
            if isinstance(event, CommitStarted) and self.stopped():
                raise Stopped

        def pause(seconds: float) -> None:
            if not self.stopped():
                self.trigger.environment.sleep(seconds)

        return replace(self.trigger.environment, sleep=pause).also_observing(check)


def is_gone(spark: SparkSession) -> bool:
    """Return True if the Spark application has ended."""
    try:
        context = spark.sparkContext._jsc
        return context is None or bool(context.sc().isStopped())
    except Exception:
        return True  # the JVM does not respond


@dataclass(frozen=True)
class Backlog:
    """Committed batches, and the tasks that are due for them.

    `committed` counts the batches of this process, `begun` those before the start of the newest run, and `covered`
    those that a finished run has covered; all others have `size_bytes`. With `forced`, paused tasks also run.
    """

    committed: int = 0
    begun: int = 0
    covered: int = 0
    size_bytes: int = 0
    due: frozenset[str] = frozenset()
    forced: bool = False

    @property
    def lag(self) -> int:
        """Number of batches that no finished run has covered."""
        return self.committed - self.covered

    def plus(self, batches: int, size_bytes: int, due: Iterable[str]) -> Backlog:
        """Return the backlog after a commit."""
        committed, size_bytes = self.committed + batches, self.size_bytes + size_bytes
        return replace(self, committed=committed, size_bytes=size_bytes, due=self.due.union(due))

    def drained(self, tasks: Iterable[str]) -> Backlog:
        """Return the backlog with these tasks due, paused ones included, if a batch came after the newest run began."""
        return replace(self, due=self.due.union(tasks), forced=True) if self.committed > self.begun else self

    def next_tasks(self, tasks: Sequence[str], paused: Collection[str]) -> tuple[str, ...]:
        """Return the tasks of the next cycle, in this order."""
        return tuple(task for task in tasks if task in self.due and (self.forced or task not in paused))

    def taken(self, *, covers: bool) -> Backlog:
        """Return the backlog after a cycle began; `covers` is True if its run will cover all batches."""
        return replace(self.forgotten(), begun=self.committed if covers else self.begun)

    def forgotten(self) -> Backlog:
        """Return the backlog without due tasks; the batches stay uncovered."""
        return replace(self, due=frozenset(), forced=False)

    def failed(self) -> Backlog:
        """Return the backlog after a run failed: no run has begun for the batches that it was to cover."""
        return replace(self, begun=self.covered)

    def done(self, batches: int, size_bytes: int) -> Backlog:
        """Return the backlog after a run covered the batches that were committed at its start."""
        if self.covered == batches:
            return self
        return replace(self, covered=batches, size_bytes=self.size_bytes - size_bytes)


class Background:
    """The background runs of one stream in this process, at most one at a time. Threads except its own may call it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self._newest: Trigger | None = None
        self._backlog = Backlog()
        self._notes: list[str] = []
        self._report: Report | None = None
        self._backoff = BackOff[PartitionKey]()
        # each task pauses alone, so that failed clustering, for example of a table without columns, delays no merges
        self._pauses = BackOff[str]()
        self._handles: tuple[TableHandle, TableHandle] | None = None
        self._tag = f"icesize-background-{uuid.uuid4()}"
        _all.add(self)

    def trigger(self, trigger: Trigger, batches: int = 0, size_bytes: int = 0, expire: bool = False) -> int:
        """Start a cycle, now or after the current one; with `expire`, also expire snapshots after it.

        `batches` (0 or 1) is the number of batches just committed, with `size_bytes` bytes. Returns the number of
        batches committed in this process, this one included, that no finished run has covered.
        """
        with self._changed:
            self._newest = trigger
            due = (*trigger.tasks, EXPIRE) if expire else trigger.tasks
            self._backlog = self._backlog.plus(batches, size_bytes, due)
            self._start()
            return self._backlog.lag

    @property
    def lag(self) -> int:
        """Number of batches committed in this process that no finished run has covered."""
        with self._changed:
            return self._backlog.lag

    def take_notes(self) -> tuple[str, ...]:
        """Return the notes of the runs that ended since the last call, without duplicates."""
        with self._changed:
            notes = tuple(dict.fromkeys(self._notes))
            self._notes.clear()
            return notes

    def drain(self, timeout_seconds: float | None = None) -> Report | None:
        """Wait until a run has covered everything committed before this call; return the last run's report.

        Returns None if there was no run. Raises TimeoutError; the run then continues.
        """
        with self._changed:
            if self._newest is not None:
                before, self._backlog = self._backlog, self._backlog.drained(self._newest.tasks)
                if self._backlog is not before:
                    self._start()
            if not self._changed.wait_for(lambda: self._thread is None, timeout_seconds):
                raise TimeoutError(f"Cannot drain: merges in the background have not ended after {timeout_seconds} s")
            return self._report

    def stop(self, timeout_seconds: float = float("inf")) -> bool:
        """Stop the current run, remove its files, and forget its triggers; return True if it ended in time.

        A commit that is already running is finished. The next trigger starts a new run.
        """
        waited = 0.0
        while waited < timeout_seconds:
            with self._changed:
                thread, trigger = self._thread, self._newest
                self._backlog = self._backlog.forgotten()
                self._cancelled.set()
            if thread is None or trigger is None:
                return True
            try:
                trigger.spark.sparkContext.cancelJobsWithTag(self._tag)
            except Exception as error:  # Spark is gone, and its jobs with it
                LOG.debug("jobs were not cancelled: %s", type(error).__name__)
            thread.join(CANCEL_AGAIN_SECONDS)
            waited += CANCEL_AGAIN_SECONDS
        return False

    def _start(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._work, name="icesize-background", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._notes.append(f"background merge failed: {brief(error)}")
        else:
            # the new thread waits for the lock that is held here
            self._thread = thread

    def _work(self) -> None:
        try:
            while (cycle := self._next()) is not None:
                goes_on = True
                for task in cycle.tasks:
                    if task != EXPIRE:
                        goes_on = goes_on and self._run(cycle, task)
                    elif not cycle.stopped():
                        self._expire(cycle)
        finally:
            with self._changed:
                if self._thread is threading.current_thread():
                    self._thread = None
                    self._changed.notify_all()

    def _next(self) -> Cycle | None:
        """Return the next cycle; if there is none, return None and give up the thread."""
        with self._changed:
            if self._backlog.due and self._newest is not None:
                contested, paused, trigger = self._backoff.next_batch(), self._pauses.next_batch(), self._newest
                tasks = self._backlog.next_tasks((*trigger.tasks, EXPIRE), paused)
                now = self._backlog = self._backlog.taken(covers=trigger.tasks[0] in tasks)
                if tasks:
                    self._cancelled = threading.Event()
                    return Cycle(trigger, self._tag, now.begun, now.size_bytes, contested, tasks, self._cancelled)
            self._thread = None
            self._changed.notify_all()
            return None

    def _run(self, cycle: Cycle, task: str) -> bool:
        """Run one task; return True if another task may follow."""
        try:
            handle = self._own_handle(cycle.trigger)
            outcome = cycle.merge(handle) if task == MERGE else cycle.cluster(handle)
            if outcome is not None:
                if cycle.stopped() and not outcome.commit.snapshot_ids:
                    raise Stopped
                remember(self._backoff, outcome)
        except Exception as error:
            self._failed(cycle, task, error)
            return False
        self._pauses.succeeded([task])
        with self._changed:
            if task == cycle.trigger.tasks[0]:
                self._backlog = self._backlog.done(cycle.batches, cycle.size_bytes)
            if task == CLUSTER and outcome and outcome.commit.snapshot_ids and not cycle.cancelled.is_set():
                # the budget of one pass may leave files, which are due in the next
                self._backlog = self._backlog.plus(0, 0, [CLUSTER])
        if outcome is not None:
            self._done(cycle, task, outcome)
        return not cycle.stopped()

    def _done(self, cycle: Cycle, task: str, outcome: BatchOutcome) -> None:
        report = outcome.report
        said = (*report.conflicts, *(n for n in report.notes if n not in outcome.current.warnings))
        if report.snapshot_ids or said:
            LOG.info("%s: in the background: %s", report.table, report)
        self._reported(cycle, report, [f"background {task}: {sentence}" for sentence in said])

    def _expire(self, cycle: Cycle) -> None:
        trigger = cycle.trigger
        notes = expiry_notes(trigger.handle.name, lambda: self._own_handle(trigger), trigger.environment)
        with self._changed:
            self._notes += notes

    def _failed(self, cycle: Cycle, task: str, error: Exception) -> None:
        name = cycle.trigger.handle.name
        with self._changed:
            self._backlog = self._backlog.failed()
        if cycle.stopped():
            LOG.info("%s: %s in the background was stopped", name, task)
            return
        self._pauses.lost([task])
        why = off_because(error) if task == CLUSTER else None
        is_internal = why is None and log_if_internal(f"{task} in the background", error)
        if why is not None:
            LOG.warning("%s: clustering is off: %s", name, why)
        elif not is_internal:
            LOG.warning("%s: %s in the background failed, the batches are committed", name, task, exc_info=error)
        note = f"clustering is off: {why}" if why else f"background {task} failed: {brief(error)}"
        errors = (note,) if is_internal else ()
        self._reported(cycle, Report(table=name, notes=(note,), internal_errors=errors), [note])

    def _reported(self, cycle: Cycle, report: Report, notes: Sequence[str]) -> None:
        with self._changed:
            self._report = report
            self._notes += notes
        if report.snapshot_ids:
            cycle.trigger.refresh()
        if report.snapshot_ids or notes:
            cycle.trigger.on_report(report)

    def _own_handle(self, trigger: Trigger) -> TableHandle:
        """Return a handle for this thread alone; the cache of manifests is shared."""
        if self._handles is None or self._handles[0] is not trigger.handle:
            theirs = trigger.handle
            catalog = _for_another_thread(theirs.catalog)
            own = TableHandle(
                catalog, theirs.identifier, theirs.policy, theirs.spark_conf, commit_lock=theirs.commit_lock,
                branch=theirs.branch,
            )  # fmt: skip
            self._handles = (theirs, own)
        return self._handles[1]


_all: WeakSet[Background] = WeakSet()


@atexit.register
def _stop_all() -> None:
    """Stop all runs before the interpreter exits, while their files can still be removed."""
    for background in list(_all):
        if not background.stop(EXIT_SECONDS):
            LOG.warning("merges in the background did not end in time; orphan cleanup will find their files")


def expiry_notes(table: str, handle: Callable[[], TableHandle], environment: Environment) -> tuple[str, ...]:
    """Expire snapshots by the table's own rules, and return sentences about the outcome.

    An error does not affect the batch, which is committed.
    """
    try:
        report = expire(handle(), ExpireOptions(), environment)
    except Exception as error:
        if not log_if_internal("the expiry after a batch", error):
            traceback = not isinstance(error, IcesizeError)  # a refusal comes after each such batch
            LOG.warning("%s: snapshots were not expired, the batch is committed", table, exc_info=traceback)
        return (f"expiring snapshots failed: {brief(error)}",)
    expired, files = len(report.snapshot_ids_expired), format_count(sum(report.files_deleted.values()), "file")
    outcome = f"expired {expired:,} of {format_count(report.snapshots_before, 'snapshot')}, deleted {files}"
    return (outcome, *report.dropped_versions, *report.notes)


def _for_another_thread(catalog: Catalog) -> Catalog:
    """Return a catalog that this thread may use while another thread uses the given one.

    SQLAlchemy's engine, boto3's clients and the connections of an HTTP session support several threads. A Hive catalog
    has one Thrift connection, which each call opens and closes.
    """
    if is_hive(catalog):
        return type(catalog)(catalog.name, **catalog.properties)
    return catalog
