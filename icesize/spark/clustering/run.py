"""Runs the groups of a clustering: small ones here, larger ones in one Spark task each, the largest by all tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from icesize.errors import RewriteFailed
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.tasks import MergeOutcome, MergeTask
from icesize.parquet.ordering.cluster_order import RowOrder
from icesize.parquet.rewriting.threads import Result, rewrite_in_threads
from icesize.parquet.writing.file_writer import remove_files
from icesize.spark.clustering.gather import ClusterGroups, Made, NeedsMany, cluster_alone
from icesize.spark.clustering.shuffle import FILES_OF_A_PLACE, Dividing
from icesize.spark.engine.jobs import balanced, run_bins
from icesize.spark.engine.merge_job import DRIVER_MERGE_BYTES, discard, results_of, slots_for, threads_for

UNEVEN = 1.5
"""A group with so many times the bytes that a slot has on average is divided: while its one task sorts, others would
wait. Dividing takes 1.4 times the work of sorting in one task by 3 passes (21.7 s of cores together against 16.0)."""

DIVIDED_BYTES = 64 * 2**20
"""Smaller groups are not divided for that: two jobs more, and a first and a last wave of tasks."""


def run_clusters(
    spark: SparkSession | None,
    tasks: Sequence[MergeTask],
    prefixes: Sequence[str],
    order: RowOrder,
    settings: WriteSettings,
    cancelled: threading.Event,
    progress: Callable[[int], None] = lambda size_bytes: None,
    half_the_cores: bool = False,
) -> list[Result]:
    """Write the rows of each task in `order`, to files under names with its prefix; results in the order of `tasks`.

    A group that fails is its own `RewriteFailed` and leaves no file; without Spark that is any one too large to be
    sorted here. `cancelled` is looked at between jobs: groups that are done by then are results, which the caller
    commits or discards; the others are None and leave no file but those of tasks that were killed, which orphan cleanup
    finds. `progress` hears the bytes of each finished group, from several threads. With `half_the_cores` others find
    free ones at any time.

    When anything is raised, as `EngineUnavailable`, the files of all groups are removed.
    """
    run = _Run(tasks, prefixes, order, settings, cancelled, progress, [None] * len(tasks))
    here = [i for i, task in enumerate(tasks) if spark is None or task.size_bytes <= DRIVER_MERGE_BYTES]
    try:
        run.in_threads(here, threads_for(half_the_cores))
        if spark is None:
            run.give_up_large()
        else:
            slots = slots_for(spark, half_the_cores)
            uneven = _uneven(run, slots)
            apart = sorted({*range(len(tasks))} - {*here, *uneven})
            run.in_one_task_each(spark, apart, slots)
            run.divided(spark, sorted([*uneven, *run.too_large()]), slots, half_the_cores)
    except BaseException:
        discard(run.results, settings)
        raise
    return run.results


def _uneven(run: _Run, slots: int) -> list[int]:
    """Groups that would keep one task busy when all others are done."""
    most = max(DIVIDED_BYTES, UNEVEN * sum(task.size_bytes for task in run.tasks) / slots)
    return [
        i
        for i, task in enumerate(run.tasks)
        # `cluster` refuses files of another spec
        if task.size_bytes > most
        and task.outputs >= 2 * FILES_OF_A_PLACE
        and task.partition.spec_id == run.settings.spec_id
    ]


@dataclass(frozen=True)
class _Run:
    """The groups by number, and `results` so far."""

    tasks: Sequence[MergeTask]
    prefixes: Sequence[str]
    order: RowOrder
    settings: WriteSettings
    cancelled: threading.Event
    progress: Callable[[int], None]
    results: list[Result]

    def in_threads(self, groups: Sequence[int], threads: int | None) -> None:
        """Cluster these groups in this process."""

        def rewrite(number: int, task: MergeTask) -> MergeOutcome:
            names = FileNames(self.prefixes[groups[number]], number, 0)
            try:
                outcome = cluster_alone(task, self.order, self.settings, names)
            except NeedsMany:
                raise  # it is not finished yet
            except BaseException:
                self.progress(task.size_bytes)
                raise
            self.progress(task.size_bytes)
            return outcome

        tasks = [self.tasks[i] for i in groups]
        done = rewrite_in_threads(tasks, rewrite, self.settings, cancelled=self.cancelled, threads=threads)
        self._put(groups, done)

    def in_one_task_each(self, spark: SparkSession, groups: Sequence[int], slots: int) -> None:
        """Cluster these groups in one Spark job."""
        if not groups or self.cancelled.is_set():
            return
        tasks = [self.tasks[i] for i in groups]
        bins = balanced(tasks, [task.size_bytes for task in tasks], slots)
        work = ClusterGroups(bins, self.settings, tuple(self.prefixes[i] for i in groups), self.order)
        self._put(
            groups, results_of(lambda: run_bins(spark, len(bins), work, "cluster files"), len(groups), self.cancelled)
        )
        self._tell(groups)

    def divided(self, spark: SparkSession, groups: Sequence[int], slots: int, sparing: bool) -> None:
        """Cluster these groups by all tasks together."""
        self._put(groups, [None] * len(groups))
        if not groups or self.cancelled.is_set():
            return
        chosen = {i: self.tasks[i] for i in groups}
        prefixes = {i: self.prefixes[i] for i in groups}
        job = Dividing(spark, chosen, prefixes, self.order, self.settings, slots, sparing)

        def work() -> list[Result]:
            made = job.run(self.cancelled)
            return [self._outcome(self.tasks[i], made[i]) if i in made else None for i in groups]

        self._put(groups, results_of(work, len(groups), self.cancelled))
        self._tell(groups)

    def too_large(self) -> list[int]:
        """Groups that were found to be more than one task can sort."""
        return [i for i, result in enumerate(self.results) if isinstance(result, NeedsMany)]

    def give_up_large(self) -> None:
        """There is no Spark to divide them."""
        for i in self.too_large():
            self.progress(self.tasks[i].size_bytes)
            self.results[i] = RewriteFailed(f"{self.results[i]}; open the table with a Spark session", path=None)

    def _put(self, groups: Sequence[int], results: Sequence[Result]) -> None:
        for i, result in zip(groups, results, strict=True):
            if isinstance(result, MergeOutcome):
                self.settings.storage.note(file.path for file in result.files)
            self.results[i] = result

    def _tell(self, groups: Sequence[int]) -> None:
        for i in groups:
            if self.results[i] is not None and not isinstance(self.results[i], NeedsMany):
                self.progress(self.tasks[i].size_bytes)

    def _outcome(self, task: MergeTask, made: Sequence[Made]) -> MergeOutcome | RewriteFailed:
        """One group's, put together of its places."""
        files = [file for place in made if not isinstance(place, RewriteFailed) for file in place]
        failed = next((place for place in made if isinstance(place, RewriteFailed)), None)
        rows = sum(file.rows for file in files)
        if failed is None and rows != task.rows:
            failed = RewriteFailed(
                f"Cannot cluster: {task.rows} rows went in and {rows} came out, report this", path=None
            )
        if failed is not None:
            remove_files(self.settings.storage, files)
            return failed
        return MergeOutcome(tuple(files), task.size_bytes, task.rows, rows, task.size_bytes)
