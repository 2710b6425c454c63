"""What is done beside the batches of a stream: merges and clustering, committed in a moment when no batch does."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType

from pyspark.sql import SparkSession

from icesize import failpoints
from icesize.clock import Environment
from icesize.errors import TableError
from icesize.maintenance.batch_commit import remember
from icesize.maintenance.compaction import Maintenance
from icesize.maintenance.reporting import Outcome
from icesize.parquet.files.merge_result import Results
from icesize.parquet.files.settings import WriteSettings
from icesize.planning.files import Layout, PartitionKey
from icesize.planning.merging.contention import BackOff
from icesize.planning.merging.planner import plan_merges
from icesize.planning.plan import MergeGroup, Plan
from icesize.report import Report
from icesize.spark.clustering.beside_stream import ClusterRun
from icesize.spark.engine.jobs import Cores
from icesize.spark.engine.merge_job import run_merges
from icesize.table.state.handle import Current, TableHandle


class Stopped(Exception):
    """The run was stopped, or Spark was: it ends without a commit and without its files."""


@dataclass(frozen=True)
class Trigger:
    """What a batch hands over: whose cores and table, how files are named, who wants to know, and what is to be done.

    `handle` is the batch's: only names and settings are taken from it. `refresh` makes Spark see a commit, `tell` hears
    the report of each run that did something; both are called in the thread of the merges.
    """

    spark: SparkSession
    handle: TableHandle
    table_uuid: str | None
    prefix: str
    environment: Environment
    refresh: Callable[[], object]
    tell: Callable[[Report], object]
    pool: str | None = None
    merge: bool = True
    cluster: bool = False


@dataclass(frozen=True)
class Kind:
    """What one look at the table is for. `stand_in` is the table as a whole where partitions back off."""

    name: str
    stand_in: PartitionKey
    run: Callable[[Run], Outcome | None]

    def looks_for(self, trigger: Trigger) -> bool:
        """Whether it is this look after which batches count as looked at."""
        return self is MERGE or not trigger.merge


@dataclass(frozen=True)
class Turn:
    """One turn of the thread: `batches` were committed when it began, `size_bytes` came with those not looked at yet.

    `tag` is that of its Spark jobs; `kinds` and `expire` say what is to be done.
    """

    trigger: Trigger
    tag: str
    batches: int
    size_bytes: int
    contested: frozenset[PartitionKey]
    kinds: tuple[Kind, ...]
    expire: bool
    cancelled: threading.Event

    def stopped(self) -> bool:
        """Whether nothing that this turn makes may become visible any more."""
        return self.cancelled.is_set() or is_gone(self.trigger.spark)


@dataclass(frozen=True)
class Run:
    """One look at the table: plan, merge, commit."""

    turn: Turn
    handle: TableHandle
    backoff: BackOff
    commit_lock: threading.Lock

    def merge(self) -> Outcome:
        """What was done. Raises Stopped, or whatever kept it from being done."""
        trigger = self.turn.trigger
        current = self._begin("merges", "merge in")
        layout = self.handle.reader(current.policy).read(current.table.metadata, current.table.io)
        if self.turn.stopped():
            raise Stopped
        lock, environment = self._lock()
        outcome = Maintenance(
            self.handle, current, layout, self._plan(current, layout), self._run_merges, environment,
            prefix=trigger.prefix, commit_lock=lock,
        ).run()  # fmt: skip
        remember(self.backoff, outcome)
        return outcome

    def cluster(self) -> Outcome | None:
        """The same for clustering; None when nothing was due."""
        current = self._begin("clustering", "cluster")
        lock, environment = self._lock()
        outcome = ClusterRun(
            self.turn.trigger.spark, self.handle, environment, commit_lock=lock,
            budget_bytes=environment.limits.round_bytes, most_bytes=sys.maxsize,
            contested=self.turn.contested, cancelled=self.turn.cancelled, cores=Cores.half(self.turn.trigger.spark),
        ).run(current)  # fmt: skip
        if outcome is not None:
            remember(self.backoff, outcome)
        return outcome

    def _begin(self, what: str, verb: str) -> Current:
        failpoints.reach("background")
        trigger = self.turn.trigger
        self._take_cores(what)
        current = self.handle.load(replace(trigger.environment, sleep=self._wait))
        if trigger.table_uuid not in (None, current.uuid):
            raise TableError(f"Cannot {verb} '{current.name}': the table was dropped and created again")
        return current

    def _wait(self, seconds: float) -> None:
        """For a catalog that does not answer; raises Stopped where somebody waits for this to end."""
        if not self.turn.stopped():
            self.turn.trigger.environment.sleep(seconds)
        if self.turn.stopped():
            raise Stopped

    def _lock(self) -> tuple[_CommitLock, Environment]:
        trigger = self.turn.trigger
        lock = _CommitLock(self.commit_lock, self.turn.stopped, trigger.environment.sleep)
        # between two attempts a batch may commit
        return lock, replace(trigger.environment, sleep=lock.pause)

    def _plan(self, current: Current, layout: Layout) -> Plan:
        policy = current.policy
        return plan_merges(
            layout, policy, incoming={}, touched=layout.recent(policy.cold_after_commits),
            budget_bytes=policy.budget_for(self.turn.size_bytes),
            contested=self.turn.contested | self.handle.contested(current, self.turn.trigger.environment),
        )  # fmt: skip

    def _take_cores(self, what: str) -> None:
        """Jobs of this thread get a tag and a description of their own and, where there are pools, that of the query.

        They are not in the query's job group: a query that ends does not take them along.
        """
        trigger = self.turn.trigger
        context = trigger.spark.sparkContext
        context.addJobTag(self.turn.tag)
        context.setJobDescription(f"icesize: {what} of {trigger.handle.name} in the background")
        if trigger.pool is not None:
            context.setLocalProperty("spark.scheduler.pool", trigger.pool)

    def _run_merges(self, groups: Mapping[int, MergeGroup], settings: WriteSettings, prefix: str) -> Results:
        spark, limits = self.turn.trigger.spark, self.turn.trigger.environment.limits
        return run_merges(
            spark, groups, settings, prefix, limits=limits, cancelled=self.turn.cancelled, cores=Cores.half(spark)
        )


MERGE, CLUSTER = Kind("merge", PartitionKey(-1), Run.merge), Kind("clustering", PartitionKey(-2), Run.cluster)
"""No partition spec has these numbers. Clustering that fails, as where the table does not say by what, must not hold
merges back."""


class _CommitLock:
    """The commit of a run: not while a batch commits, and not once the run was stopped."""

    def __init__(self, lock: threading.Lock, stopped: Callable[[], bool], sleep: Callable[[float], None]) -> None:
        self._lock = lock
        self._stopped = stopped
        self._sleep = sleep

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._stopped():
            self._lock.release()
            raise Stopped

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def pause(self, seconds: float) -> None:
        """Wait for another attempt, batches going first; not at all when somebody waits for the run to stop."""
        self._lock.release()
        try:
            if not self._stopped():
                self._sleep(seconds)
        finally:
            self._lock.acquire()


def is_gone(spark: SparkSession) -> bool:
    """Whether the Spark application has ended."""
    try:
        context = spark.sparkContext._jsc
        return context is None or bool(context.sc().isStopped())
    except Exception:
        return True  # nobody answers
