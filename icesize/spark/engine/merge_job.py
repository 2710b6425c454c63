"""The merges of a batch, running beside its write job, and stopped in time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import pyspark
from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

from icesize.clock import Environment
from icesize.errors import RewriteFailed
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.tasks import MergeOutcome, MergeTask
from icesize.parquet.rewriting.forecast import work_bytes
from icesize.parquet.rewriting.threads import Result, merge_in_threads
from icesize.planning.plan import MergeGroup
from icesize.spark.engine import session
from icesize.spark.engine.jobs import SparkMerges

T = TypeVar("T")

DRIVER_MERGE_BYTES = 8 * 2**20
"""Groups of no more work than decoding so many bytes are merged in the driver: a Spark job costs 0.15 s before it reads
a byte, in which the driver decodes and encodes about 10 MB, or copies 64."""

DRIVER_COPY_BYTES = 64 * 2**20
"""Bytes of all groups that are copied in the driver. Copying is Python, which two threads do not do any faster than one
(427 MB/s against 357, measured); Spark's tasks are processes."""

CANCEL_AGAIN_SECONDS = 1.0
"""Between two calls to cancel jobs, should one have been on its way to the scheduler."""


def run_merges(
    spark: SparkSession | None,
    tasks: Sequence[MergeTask],
    settings: WriteSettings,
    prefix: str,
    cancelled: threading.Event,
    progress: Callable[[int], None] = lambda size_bytes: None,
    results: list[Result] | None = None,
    before_job: Callable[[], None] = lambda: None,
    half_the_cores: bool = False,
    most_tasks: int | None = None,
) -> list[Result]:
    """Small groups in threads of this process, the others as one Spark job; results in the order of `tasks`.

    `results` (one None per task) is filled as groups finish, so that a caller knows them even when the job is stopped.
    `before_job` is called when a Spark job is about to start. With `half_the_cores` others find free ones at any time;
    `most_tasks` bounds the tasks of the Spark job.
    """
    large = sorted(work_for_spark(tasks, settings)) if spark is not None else []
    of_spark = frozenset(large)
    small = [i for i in range(len(tasks)) if i not in of_spark]
    results = [None] * len(tasks) if results is None else results
    done = merge_in_threads(
        [tasks[i] for i in small], settings, prefix, cancelled=cancelled, progress=progress,
        threads=threads_for(half_the_cores),
    )  # fmt: skip
    for i, result in zip(small, done, strict=True):
        results[i] = result
    if large and spark is not None and not cancelled.is_set():
        groups = [tasks[i] for i in large]
        before_job()
        job = SparkMerges(spark, most_tasks or slots_for(spark, half_the_cores))
        outcomes = results_of(lambda: job.run(groups, settings, prefix), len(groups), cancelled)
        for i, outcome in zip(large, outcomes, strict=True):
            results[i] = outcome
            progress(tasks[i].size_bytes)
    return results


def work_for_spark(groups: Sequence[MergeTask | MergeGroup], settings: WriteSettings) -> dict[int, int]:
    """The groups that Spark tasks merge, by position, and the work of each (`work_bytes`). Groups of little work are
    the driver's, the smallest first, as long as what it copies is not more than `DRIVER_COPY_BYTES`.
    """
    work = [work_bytes(group.inputs, settings) for group in groups]
    large, copied = dict[int, int](), 0
    for i in sorted(range(len(groups)), key=lambda i: groups[i].size_bytes):
        is_copied = work[i] < groups[i].size_bytes
        copied += groups[i].size_bytes if is_copied else 0
        if work[i] > DRIVER_MERGE_BYTES or (is_copied and copied > DRIVER_COPY_BYTES):
            large[i] = work[i]
    return large


def threads_for(half_the_cores: bool) -> int | None:
    """Threads of this process for a rewrite; None: as many as are useful."""
    return max(1, (os.cpu_count() or 2) // 2) if half_the_cores else None


def slots_for(spark: SparkSession, half_the_cores: bool) -> int:
    """Tasks of a rewrite that run at one time."""
    return max(1, session.parallelism(spark) // (2 if half_the_cores else 1))


def results_of(job: Callable[[], Sequence[T]], groups: int, cancelled: threading.Event) -> Sequence[T | Result]:
    """What a job makes of so many groups. One that fails takes its own groups with it, not those that are done."""
    try:
        return job()
    except RewriteFailed as error:
        return [None if cancelled.is_set() else error] * groups


class MergeRun:
    """Merges in a thread of their own. `finish` waits for them up to a deadline, then stops and joins the thread."""

    def __init__(
        self,
        spark: SparkSession,
        tasks: Sequence[MergeTask],
        settings: WriteSettings,
        prefix: str,
        beside_write_job: bool = False,
        most_tasks: int | None = None,
    ) -> None:
        self._spark = spark
        self._most_tasks = most_tasks
        self._beside_write_job = beside_write_job
        self._tasks = tasks
        self._settings = settings
        self._prefix = prefix
        self._cancelled = threading.Event()
        self._results: list[Result] = [None] * len(tasks)
        self._failure: Exception | None = None
        self._tag = f"icesize-merge-{prefix}-{id(self):x}"
        self._thread: threading.Thread | None = None

    def start(self) -> MergeRun:
        """Begin; does nothing when there is nothing to merge."""
        if self._tasks:
            target = _carrying_over(self._spark, self._work)
            self._thread = threading.Thread(target=target, name="icesize-merges", daemon=True)
            self._thread.start()
        return self

    def _work(self) -> None:
        if not session.is_connect(self._spark):
            self._spark.sparkContext.addJobTag(self._tag)
        try:
            run_merges(
                self._spark, self._tasks, self._settings, self._prefix, self._cancelled,
                results=self._results, before_job=self._let_the_write_start, most_tasks=self._most_tasks,
            )  # fmt: skip
        except Exception as error:  # merging is optional: the append goes on, the report names this
            self._failure = error

    def _let_the_write_start(self) -> None:
        if self._beside_write_job:
            session.wait_for_a_job(self._spark, self._cancelled)

    def finish(self, timeout_seconds: float | None) -> list[MergeOutcome | RewriteFailed | None]:
        """Results in the order of the tasks; None for merges that a deadline, if there is one, kept from beginning."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)
            self.stop()
        if self._failure is None or self._cancelled.is_set():
            return self._results
        failed = RewriteFailed(str(self._failure))
        return [failed if result is None else result for result in self._results]

    def stop(self) -> None:
        """Stop what has not begun, wait for what has. Safe to call twice."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        while thread.is_alive():
            self._cancelled.set()
            if not session.is_connect(self._spark):
                self._spark.sparkContext.cancelJobsWithTag(self._tag)
            thread.join(CANCEL_AGAIN_SECONDS)


def finish_all(runs: Sequence[MergeRun], timeout_seconds: float | None, environment: Environment) -> list[Result]:
    """Results of several runs, one after the other, all within one time."""
    until = None if timeout_seconds is None else environment.monotonic() + timeout_seconds
    results: list[Result] = []
    for run in runs:
        results += run.finish(None if until is None else max(0.0, until - environment.monotonic()))
    return results


def in_order(
    started: Sequence[MergeGroup], results: Sequence[Result], wanted: Sequence[MergeGroup], settings: WriteSettings
) -> list[Result]:
    """The results of the `wanted` groups; what was made of others that were `started` is removed."""
    of_group = {id(group): result for group, result in zip(started, results, strict=True)}
    found = [of_group.pop(id(group)) for group in wanted]
    discard(list(of_group.values()), settings)
    return found


@contextmanager
def stopping(runs: Sequence[MergeRun]) -> Iterator[None]:
    """No run that is in the list by then works on when the block is left."""
    try:
        yield
    finally:
        stop_all(runs)


def stop_all(runs: Sequence[MergeRun]) -> None:
    """Stop what has not begun in any of them, wait for what has."""
    for run in runs:
        run.stop()


def discard(results: Sequence[Result], settings: WriteSettings) -> None:
    """Remove what merges wrote that nobody will commit."""
    for result in results:
        if isinstance(result, MergeOutcome):
            for file in result.files:
                settings.storage.delete(file.path)


def _carrying_over(spark: SparkSession, work: Callable[[], None]) -> Callable[[], None]:
    """`work` under the local properties of this thread (the query, the scheduler pool): in Spark each has its own."""
    if int(pyspark.__version__.split(".")[0]) < 4 and not session.is_connect(spark):
        return cast("Callable[[], None]", inheritable_thread_target(work))
    wrap: Any = inheritable_thread_target(spark)
    # without pinned threads Spark returns its argument
    return work if wrap is spark else cast("Callable[[], None]", wrap(work))
