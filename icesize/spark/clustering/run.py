"""Runs the groups of a clustering: small ones here, larger ones in one Spark task each, the largest by all tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark.sql import SparkSession

from icesize.clock import WorkLimits
from icesize.maintenance.table_context import ClusterWork
from icesize.parquet.files.data_file import MergeFailure, MergeResult, Results
from icesize.parquet.files.names import FileNames
from icesize.parquet.rewriting.threads import rewrite_in_threads
from icesize.planning.plan import MergeGroup
from icesize.spark.clustering.gather import TooLargeForOneTask, cluster_alone
from icesize.spark.clustering.shuffle import FILES_PER_ASSIGNMENT, Shuffle
from icesize.spark.engine import session
from icesize.spark.engine.jobs import ALL_CORES, Cores, balanced, run_bins
from icesize.spark.engine.merge_job import results_of
from icesize.spark.engine.worker import RewriteGroups

UNEVEN = 1.5
"""A group with so many times the bytes that a slot has on average is divided: while its one task sorts, others would
wait. Dividing takes 1.4 times the work of sorting in one task by 3 passes (21.7 s of cores together against 16.0)."""


def run_clusters(
    spark: SparkSession | None,
    work: ClusterWork,
    *,
    limits: WorkLimits,
    cancelled: threading.Event | None = None,
    progress: Callable[[int], None] = lambda size_bytes: None,
    cores: Cores = ALL_CORES,
) -> Results:
    """Write the rows of each group in order, to files under names with its prefix: the result of each, by its number.

    A group that fails leaves no file; without Spark that is any one too large to be sorted here. `cancelled` is looked
    at between jobs: groups that are done by then have results, which the caller commits or discards; the others leave
    no file but those of tasks that were killed, which orphan cleanup finds. `progress` hears the bytes of each finished
    group, from several threads.

    When anything is raised, as `EngineUnavailable`, the storage of the settings knows what there is to be removed.
    """
    run = _Run(work, cancelled or threading.Event(), progress)
    groups = work.groups
    here = [n for n in groups if spark is None or groups[n].size_bytes <= limits.driver_merge_bytes]
    run.in_threads(here, cores.threads)
    if spark is None:
        for number, found in run.too_large.items():
            run.keep(number, MergeFailure(f"{found.why}; open the table with a Spark session"))
        return run.results
    slots = cores.tasks or session.parallelism(spark)
    uneven = _uneven(work, slots, limits)
    run.in_one_task_each(spark, sorted(groups.keys() - {*here, *uneven}), slots)
    run.shuffled(spark, sorted({*uneven, *run.too_large}), cores)
    return run.results


def _uneven(work: ClusterWork, slots: int, limits: WorkLimits) -> list[int]:
    """Groups that would keep one task busy when all others are done."""
    most = max(limits.one_task_bytes, UNEVEN * sum(group.size_bytes for group in work.groups.values()) / slots)
    return [
        number
        for number, group in work.groups.items()
        # `cluster` refuses files of another spec
        if group.size_bytes > most
        and group.outputs >= 2 * FILES_PER_ASSIGNMENT
        and group.partition.spec_id == work.settings.spec_id
    ]


@dataclass(frozen=True)
class _Run:
    """The groups, their `results` so far, and those that were found to be more than one task can sort."""

    work: ClusterWork
    cancelled: threading.Event
    progress: Callable[[int], None]
    results: Results = field(default_factory=dict)
    too_large: dict[int, TooLargeForOneTask] = field(default_factory=dict)

    def in_threads(self, numbers: Iterable[int], threads: int | None) -> None:
        """Cluster these groups in this process."""
        work = self.work

        def rewrite(number: int, group: MergeGroup) -> MergeResult | TooLargeForOneTask:
            return cluster_alone(work.order, group, work.settings, FileNames(work.prefixes[number], number, 0))

        groups = {number: work.groups[number] for number in numbers}
        rewrite_in_threads(groups, rewrite, self.keep, cancelled=self.cancelled, threads=threads)

    def in_one_task_each(self, spark: SparkSession, numbers: Sequence[int], slots: int) -> None:
        """Cluster these groups in one Spark job."""
        if not numbers or self.cancelled.is_set():
            return
        work = self.work
        bins = balanced({number: work.groups[number] for number in numbers}, lambda group: group.size_bytes, slots)
        job = RewriteGroups(bins, work.settings, work.prefixes, partial(cluster_alone, work.order))
        self._keep_all(results_of(lambda: run_bins(spark, job, "cluster files"), numbers, self.cancelled))

    def shuffled(self, spark: SparkSession, numbers: Sequence[int], cores: Cores) -> None:
        """Cluster these groups by all tasks together."""
        if not numbers or self.cancelled.is_set():
            return
        groups = {number: self.work.groups[number] for number in numbers}
        job = Shuffle(spark, replace(self.work, groups=groups), cores)
        self._keep_all(results_of(lambda: job.run(self.cancelled), numbers, self.cancelled))

    def _keep_all(self, results: Mapping[int, MergeResult | MergeFailure | TooLargeForOneTask]) -> None:
        for number, result in results.items():
            self.keep(number, result)

    def keep(self, number: int, result: MergeResult | MergeFailure | TooLargeForOneTask) -> None:
        """What has become of a group."""
        if isinstance(result, TooLargeForOneTask):
            self.too_large[number] = result
            return
        self.results[number] = result
        self.progress(self.work.groups[number].size_bytes)
