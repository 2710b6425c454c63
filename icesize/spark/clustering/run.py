"""Runs the groups of a clustering: small ones here, larger ones in one Spark task each, the largest by all tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from icesize.maintenance.clustering import ClusterWork
from icesize.parquet.files.merge_result import MergeFailure, MergeResult, Results
from icesize.parquet.files.names import FileNames
from icesize.parquet.rewriting.threads import rewrite_in_threads
from icesize.parquet.writing.file_writer import remove_files
from icesize.planning.plan import MergeGroup
from icesize.spark.clustering.gather import ClusterGroups, Made, NeedsMany, cluster_alone
from icesize.spark.clustering.shuffle import FILES_OF_A_PLACE, Dividing
from icesize.spark.engine import session
from icesize.spark.engine.jobs import ALL_CORES, Cores, balanced, run_bins
from icesize.spark.engine.merge_job import DRIVER_MERGE_BYTES, results_of

UNEVEN = 1.5
"""A group with so many times the bytes that a slot has on average is divided: while its one task sorts, others would
wait. Dividing takes 1.4 times the work of sorting in one task by 3 passes (21.7 s of cores together against 16.0)."""

DIVIDED_BYTES = 64 * 2**20
"""Smaller groups are not divided for that: two jobs more, and a first and a last wave of tasks."""


def run_clusters(
    spark: SparkSession | None,
    work: ClusterWork,
    *,
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
    here = [n for n, group in work.groups.items() if spark is None or group.size_bytes <= DRIVER_MERGE_BYTES]
    run.in_threads(here, cores.threads)
    if spark is None:
        run.give_up_large()
        return run.results
    slots = cores.tasks or session.parallelism(spark)
    uneven = _uneven(work, slots)
    run.in_one_task_each(spark, sorted(work.groups.keys() - {*here, *uneven}), slots)
    run.divided(spark, sorted({*uneven, *run.too_large}), slots, cores)
    return run.results


def _uneven(work: ClusterWork, slots: int) -> list[int]:
    """Groups that would keep one task busy when all others are done."""
    most = max(DIVIDED_BYTES, UNEVEN * sum(group.size_bytes for group in work.groups.values()) / slots)
    return [
        number
        for number, group in work.groups.items()
        # `cluster` refuses files of another spec
        if group.size_bytes > most
        and group.outputs >= 2 * FILES_OF_A_PLACE
        and group.partition.spec_id == work.settings.spec_id
    ]


@dataclass(frozen=True)
class _Run:
    """The groups, their `results` so far, and those that were found to be more than one task can sort."""

    work: ClusterWork
    cancelled: threading.Event
    progress: Callable[[int], None]
    results: Results = field(default_factory=dict)
    too_large: dict[int, NeedsMany] = field(default_factory=dict)

    def in_threads(self, numbers: Iterable[int], threads: int | None) -> None:
        """Cluster these groups in this process."""
        work = self.work

        def rewrite(number: int, group: MergeGroup) -> MergeResult | NeedsMany:
            return cluster_alone(group, work.order, work.settings, FileNames(work.prefixes[number], number, 0))

        groups = {number: work.groups[number] for number in numbers}
        rewrite_in_threads(groups, rewrite, self._keep, cancelled=self.cancelled, threads=threads)

    def in_one_task_each(self, spark: SparkSession, numbers: Sequence[int], slots: int) -> None:
        """Cluster these groups in one Spark job."""
        if not numbers or self.cancelled.is_set():
            return
        work = self.work
        bins = balanced({number: work.groups[number] for number in numbers}, lambda group: group.size_bytes, slots)
        function = ClusterGroups(bins, work.settings, work.prefixes, work.order)
        self._keep_all(
            results_of(
                lambda: run_bins(spark, len(bins), function, work.settings, "cluster files"), numbers, self.cancelled
            )
        )

    def divided(self, spark: SparkSession, numbers: Sequence[int], slots: int, cores: Cores) -> None:
        """Cluster these groups by all tasks together."""
        if not numbers or self.cancelled.is_set():
            return
        work = self.work
        groups = {number: work.groups[number] for number in numbers}
        job = Dividing(spark, groups, work.prefixes, work.order, work.settings, slots, cores.tasks is not None)

        def run() -> Results:
            return {number: self._result(groups[number], made) for number, made in job.run(self.cancelled).items()}

        self._keep_all(results_of(run, numbers, self.cancelled))

    def give_up_large(self) -> None:
        """There is no Spark to divide them."""
        for number, found in self.too_large.items():
            self._keep(number, MergeFailure(f"{found.why}; open the table with a Spark session"))

    def _keep_all(self, results: Mapping[int, MergeResult | MergeFailure | NeedsMany]) -> None:
        for number, result in results.items():
            self._keep(number, result)

    def _keep(self, number: int, result: MergeResult | MergeFailure | NeedsMany) -> None:
        if isinstance(result, NeedsMany):
            self.too_large[number] = result
            return
        self.results[number] = result
        self.progress(self.work.groups[number].size_bytes)

    def _result(self, group: MergeGroup, made: Sequence[Made]) -> MergeResult | MergeFailure:
        """One group's, put together of its places."""
        files = [file for place in made if not isinstance(place, MergeFailure) for file in place]
        failed = next((place for place in made if isinstance(place, MergeFailure)), None)
        rows = sum(file.rows for file in files)
        if failed is None and rows != group.rows:
            failed = MergeFailure(f"Cannot cluster: {group.rows} rows went in and {rows} came out, report this")
        if failed is not None:
            remove_files(self.work.settings.storage, files)
            return failed
        return MergeResult(group.inputs, tuple(files), group.size_bytes)
