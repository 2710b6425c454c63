"""The merges of a batch, running beside its write job, and stopped in time."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, cast

import pyspark
from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

from icesize.clock import Environment, WorkLimits
from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import MergeFailure, Results
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.rewriting.forecast import work_bytes
from icesize.parquet.rewriting.merge import merge
from icesize.parquet.rewriting.threads import merge_in_threads
from icesize.planning.plan import MergeGroup
from icesize.spark.engine import session
from icesize.spark.engine.jobs import ALL_CORES, Cores, balanced, run_bins
from icesize.spark.engine.worker import RewriteGroups

CANCEL_AGAIN_SECONDS = 1.0
"""Between two calls to cancel jobs, should one have been on its way to the scheduler."""


BeforeJob = Callable[[SparkSession, threading.Event], None]
"""Called when a Spark job of merges is about to start, with the event that cancels it."""


def at_once(spark: SparkSession, cancelled: threading.Event) -> None:
    """Nothing is waited for before a job of merges."""


def run_merges(
    spark: SparkSession | None,
    groups: Mapping[int, MergeGroup],
    settings: WriteSettings,
    prefix: str,
    *,
    limits: WorkLimits,
    results: Results | None = None,
    cancelled: threading.Event | None = None,
    progress: Callable[[int], None] = lambda size_bytes: None,
    before_job: BeforeJob = at_once,
    cores: Cores = ALL_CORES,
) -> Results:
    """Small groups in threads of this process, the others as one Spark job: the result of each, by its number.

    `results` is filled as groups finish, so that a caller knows them even when the job is stopped. Groups that were not
    begun when it was `cancelled` have none. `progress` hears the bytes of each finished group, from several threads.
    """
    results = {} if results is None else results
    cancelled = cancelled or threading.Event()
    of_spark = work_for_spark(groups, settings, limits) if spark is not None else {}
    small = {number: group for number, group in groups.items() if number not in of_spark}
    merge_in_threads(
        small, settings, prefix, results=results, cancelled=cancelled, progress=progress, threads=cores.threads
    )
    if spark is not None and of_spark and not cancelled.is_set():
        large = {number: groups[number] for number in sorted(of_spark)}
        before_job(spark, cancelled)
        tasks = cores.tasks or session.parallelism(spark)
        bins = balanced(large, lambda group: work_bytes(group.inputs, settings), tasks)
        job = RewriteGroups(bins, settings, dict.fromkeys(large, prefix), merge)
        results |= results_of(lambda: run_bins(spark, job, "merge files"), large, cancelled)
        for group in large.values():
            progress(group.size_bytes)
    return results


def work_for_spark(groups: Mapping[int, MergeGroup], settings: WriteSettings, limits: WorkLimits) -> dict[int, int]:
    """The groups that Spark tasks merge, by number, and the work of each (`work_bytes`). Groups of little work are the
    driver's, the smallest first, as long as what it copies is not more than `WorkLimits.driver_copy_bytes`.
    """
    large, copied = dict[int, int](), 0
    for number, group in sorted(groups.items(), key=lambda item: item[1].size_bytes):
        work = work_bytes(group.inputs, settings)
        is_copied = work < group.size_bytes
        copied += group.size_bytes if is_copied else 0
        if work > limits.driver_merge_bytes or (is_copied and copied > limits.driver_copy_bytes):
            large[number] = work
    return large


def results_of(job: Callable[[], Results], groups: Iterable[int], cancelled: threading.Event) -> Results:
    """What a job makes of these groups. One that fails takes its own groups with it, not those that are done."""
    try:
        return job()
    except RewriteFailed as error:
        return {} if cancelled.is_set() else dict.fromkeys(groups, MergeFailure(str(error)))


@dataclass(eq=False)
class MergeRun:
    """Merges in a thread of their own. `finish` waits for them up to a deadline, then stops and joins the thread."""

    spark: SparkSession
    groups: Mapping[int, MergeGroup]
    settings: WriteSettings
    prefix: str
    _: KW_ONLY
    limits: WorkLimits
    before_job: BeforeJob = at_once
    cores: Cores = ALL_CORES
    _cancelled: threading.Event = field(default_factory=threading.Event, init=False)
    _results: Results = field(default_factory=dict, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._tag = f"icesize-merge-{self.prefix}-{uuid.uuid4()}"

    def start(self) -> MergeRun:
        """Begin; does nothing when there is nothing to merge."""
        if self.groups:
            target = _carrying_over(self.spark, self._work)
            self._thread = threading.Thread(target=target, name="icesize-merges", daemon=True)
            self._thread.start()
        return self

    def _work(self) -> None:
        if not session.is_connect(self.spark):
            self.spark.sparkContext.addJobTag(self._tag)
        try:
            run_merges(
                self.spark, self.groups, self.settings, self.prefix, limits=self.limits, results=self._results,
                cancelled=self._cancelled, before_job=self.before_job, cores=self.cores,
            )  # fmt: skip
        except Exception as error:  # merging is optional: the append goes on, the report names this
            if not self._cancelled.is_set():
                self._results |= dict.fromkeys(self.groups.keys() - self._results.keys(), MergeFailure(str(error)))

    def finish(self, timeout_seconds: float | None) -> Results:
        """Results by number; none of merges that a deadline, if there is one, kept from beginning."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)
            self.stop()
        return self._results

    def stop(self) -> None:
        """Stop what has not begun, wait for what has. Safe to call twice."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        while thread.is_alive():
            self._cancelled.set()
            if not session.is_connect(self.spark):
                self.spark.sparkContext.cancelJobsWithTag(self._tag)
            thread.join(CANCEL_AGAIN_SECONDS)


def finish_all(runs: Sequence[MergeRun], timeout_seconds: float | None, environment: Environment) -> Results:
    """Results of several runs, one after the other, all within one time."""
    until = None if timeout_seconds is None else environment.monotonic() + timeout_seconds
    results: Results = {}
    for run in runs:
        results |= run.finish(None if until is None else max(0.0, until - environment.monotonic()))
    return results


@contextmanager
def stopping(runs: Sequence[MergeRun]) -> Iterator[None]:
    """No run that is in the list by then works on when the block is left."""
    try:
        yield
    finally:
        for run in runs:
            run.stop()


def _carrying_over(spark: SparkSession, work: Callable[[], None]) -> Callable[[], None]:
    """`work` under the local properties of this thread (the query, the scheduler pool): in Spark each has its own."""
    if int(pyspark.__version__.split(".")[0]) < 4 and not session.is_connect(spark):
        return cast("Callable[[], None]", inheritable_thread_target(work))
    wrap: Any = inheritable_thread_target(spark)
    # without pinned threads Spark returns its argument
    return work if wrap is spark else cast("Callable[[], None]", wrap(work))
