"""The merges of a batch, which run beside its write job and stop in time."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Any, cast

import pyspark
from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

from icesize.concurrency import Ahead
from icesize.environment import Environment, WorkLimits
from icesize.parquet.files.data_file import MergeFailure, Results
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.format.refusals import log_if_internal
from icesize.parquet.rewriting.forecast import work_bytes
from icesize.parquet.rewriting.merge import merge
from icesize.planning.plan import MergeTask
from icesize.spark.engine import session
from icesize.spark.engine.jobs import ALL_CORES, IN_TURN, Cores, GroupRewrite

CANCEL_AGAIN_SECONDS = 1.0
"""Seconds between two calls to cancel jobs: the first call misses a job that is still on its way to the scheduler."""

BeforeJob = Callable[[SparkSession, threading.Event], None]
"""Called before a Spark job of merges starts, with the event that cancels the job."""


def run_merges(
    spark: SparkSession,
    groups: Mapping[int, MergeTask],
    settings: WriteSettings,
    owner: Uncommitted,
    *,
    limits: WorkLimits,
    results: Results | None = None,
    cancelled: threading.Event | None = None,
    progress: Callable[[int], None] = lambda size_bytes: None,
    before_job: BeforeJob | None = None,
    cores: Cores = ALL_CORES,
) -> Results:
    """Merge small groups in threads of this process and the others as one Spark job; return each result by number.

    Both happen at the same time, or one after the other, as `cores` has it.

    `results` is filled as groups finish, so that the caller has them even if the job is stopped. A group that had not
    begun when `cancelled` was set has no result. `progress` receives the bytes of each finished group; several threads
    call it.
    """
    results, cancelled = {} if results is None else results, cancelled or threading.Event()
    prefixes = dict.fromkeys(groups, owner.prefix)
    run = GroupRewrite("merge files", groups, settings, owner, prefixes, merge, results, progress, cancelled)
    of_spark = work_for_spark(groups, settings, limits)
    in_threads = partial(run.in_threads, [number for number in groups if number not in of_spark], cores.threads)

    def in_tasks() -> None:
        if of_spark and not cancelled.is_set():
            if before_job is not None:
                before_job(spark, cancelled)
            run.in_tasks(spark, dict(sorted(of_spark.items())), cores.slots(spark))

    if cores.at_once and of_spark:
        _beside(in_tasks, in_threads, cancelled)
    else:
        in_threads()
        in_tasks()
    return results


def _beside(job: Callable[[], None], work: Callable[[], None], cancelled: threading.Event) -> None:
    """Run `work` in a thread while `job` runs in this one; an error of the job cancels the work."""
    with closing(Ahead(1)) as ahead:
        beside = ahead.map(lambda call: call(), [work])
        try:
            job()
        except BaseException:
            cancelled.set()
            raise
        list(beside)


def work_for_spark(groups: Mapping[int, MergeTask], settings: WriteSettings, limits: WorkLimits) -> dict[int, int]:
    """Return the groups that Spark tasks merge, by number, with the work of each (`work_bytes`).

    Groups of little work stay in the driver. If they are copied, they stay, the smallest first, only up to a total of
    `WorkLimits.driver_copy_bytes`.
    """
    large, copied = dict[int, int](), 0
    for number, group in sorted(groups.items(), key=lambda item: item[1].size_bytes):
        work = group.size_bytes if group.moves else work_bytes(group.inputs, settings)
        is_copied = work < group.size_bytes
        copied += group.size_bytes if is_copied else 0
        if work > limits.driver_merge_bytes or (is_copied and copied > limits.driver_copy_bytes):
            large[number] = work
    return large


class MergeRun:
    """Merges of a batch in threads of their own; no thread still works after the `with` block."""

    def __init__(
        self, spark: SparkSession, settings: WriteSettings, owner: Uncommitted, environment: Environment
    ) -> None:
        self._spark, self._settings, self._owner, self._environment = spark, settings, owner, environment
        self._tag = f"icesize-merge-{owner.prefix}-{uuid.uuid4()}"
        self._cancelled = threading.Event()
        self._results: Results = {}
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> MergeRun:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(
        self, groups: Mapping[int, MergeTask], before_job: BeforeJob | None = None, cores: Cores = IN_TURN
    ) -> None:
        """Start merging these groups as well; their numbers must be new."""
        if groups:
            target = _carrying_over(self._spark, partial(self._work, groups, before_job, cores))
            self._threads.append(threading.Thread(target=target, name="icesize-merges", daemon=True))
            self._threads[-1].start()

    def _work(self, groups: Mapping[int, MergeTask], before_job: BeforeJob | None, cores: Cores) -> None:
        if not session.is_connect(self._spark):
            self._spark.sparkContext.addJobTag(self._tag)
        try:
            run_merges(
                self._spark, groups, self._settings, self._owner, limits=self._environment.limits,
                results=self._results, cancelled=self._cancelled, before_job=before_job, cores=cores,
            )  # fmt: skip
        except Exception as error:  # merging is optional: the append continues, the report has the error
            if not self._cancelled.is_set():
                failure = MergeFailure(str(error), log_if_internal("the merges beside a batch", error))
                self._results |= dict.fromkeys(groups.keys() - self._results.keys(), failure)

    def finish(self, timeout_seconds: float | None) -> Results:
        """Return results by number; a merge that had not begun at the deadline has none.

        `timeout_seconds` None means no deadline.
        """
        clock = self._environment.monotonic
        until = None if timeout_seconds is None else clock() + timeout_seconds
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - clock()))
        self.stop()
        return self._results

    def stop(self) -> None:
        """Cancel merges that have not begun, and wait for the others. Safe to call twice."""
        for thread in self._threads:
            while thread.is_alive():
                self._cancelled.set()
                if not session.is_connect(self._spark):
                    self._spark.sparkContext.cancelJobsWithTag(self._tag)
                thread.join(CANCEL_AGAIN_SECONDS)


def _carrying_over(spark: SparkSession, work: Callable[[], None]) -> Callable[[], None]:
    """Return `work`, bound to the local properties of this thread (the query, the scheduler pool).

    Spark keeps these properties per thread.
    """
    if int(pyspark.__version__.split(".")[0]) < 4 and not session.is_connect(spark):
        return cast("Callable[[], None]", inheritable_thread_target(work))
    wrap: Any = inheritable_thread_target(spark)
    # Without pinned threads, Spark returns its argument.
    return work if wrap is spark else cast("Callable[[], None]", wrap(work))
