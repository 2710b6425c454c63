"""One pass of clustering beside the batches of a stream, and how the groups of any pass are run: small ones here,
larger ones in one Spark task each, the largest by all tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from icesize.environment import Environment, WorkLimits
from icesize.errors import ClusteringOff
from icesize.maintenance.clustering import ClusterScan, cluster_and_commit, wanted_by
from icesize.maintenance.table_context import ClusterWork
from icesize.parquet.files.data_file import Results
from icesize.planning.files import PartitionKey
from icesize.policy import SizePolicy
from icesize.spark.clustering.gather import cluster_alone
from icesize.spark.clustering.shuffle import FILES_PER_ASSIGNMENT, Shuffle
from icesize.spark.engine.jobs import ALL_CORES, Cores, GroupRewrite
from icesize.table.commit.batch_commit import Outcome
from icesize.table.state.handle import Current, TableHandle

LEAST_FILES = 4
"""Files of the target size that one pass after a batch may write at least: what is due has two or more of them, more
than the merges of a small batch may rewrite."""

UNEVEN = 1.5
"""A group with so many times the bytes that a slot has on average is divided: while its one task sorts, others would
wait. Dividing took 1.4 times the work of a task that read its files once for each of 3 parts (21.7 s of cores together
against 16.0), and takes more of one that reads them once."""


def inline_budget(policy: SizePolicy, batch_bytes: int) -> int:
    """Bytes that clustering may write after a batch: as much as its merges, and enough for something to be due unless
    the table's own `merge-budget-bytes` says otherwise."""
    budget = policy.budget_for(batch_bytes)
    return budget if policy.merge_budget_bytes is not None else max(budget, LEAST_FILES * policy.target_file_size_bytes)


def cluster_beside_stream(
    spark: SparkSession,
    handle: TableHandle,
    current: Current,
    environment: Environment,
    *,
    commit_lock: AbstractContextManager[object],
    budget_bytes: int,
    most_bytes: int,
    contested: Collection[PartitionKey] = (),
    cancelled: threading.Event | None = None,
    cores: Cores = ALL_CORES,
) -> Outcome | None:
    """Scan the table, plan, write, commit: what was done; None when nothing is due, an outcome without snapshots when
    it is too large.

    It never holds a batch up for longer than one commit: rows are moved while batches go on, and what they have
    appended meanwhile does not touch the files that were moved. Small files of partitions that still get rows are left
    to merges, which would take them away.

    `commit_lock` is held for the commit and may raise instead. `budget_bytes` bounds what is written, up to
    `most_bytes` where that pays for no set that is due. Raises whatever kept it from being done.
    """
    by = wanted_by(current)
    if by is None:
        why = "the table's property 'icesize.cluster.by' does not say by which columns; call cluster(by=[...]) once"
        raise ClusteringOff(f"Cannot cluster '{current.name}': {why}", table=current.name, why=why)
    layout = handle.reader(current.policy).read(current.table.metadata, current.table.io)
    scan = ClusterScan.at(handle, current, layout, by)
    recent = layout.recent(current.policy.cold_after_commits)
    plan = scan.round(budget_bytes, most_bytes, {*contested, *handle.contested(current, environment)}, recent)
    if not plan.is_due:
        return None
    runner = partial(run_clusters, spark, limits=environment.limits, cancelled=cancelled, cores=cores)
    return cluster_and_commit(handle, scan, plan, runner, environment, commit_lock=commit_lock)


def run_clusters(
    spark: SparkSession,
    work: ClusterWork,
    *,
    limits: WorkLimits,
    cancelled: threading.Event | None = None,
    progress: Callable[[int], None] = lambda size_bytes: None,
    cores: Cores = ALL_CORES,
) -> Results:
    """Write the rows of each group in order, to files under names with its prefix: the result of each, by its number.

    A group that fails leaves no file. `cancelled` is looked at between jobs: groups that are done by then have results,
    which the caller commits or discards; the others leave no file but those of tasks that were killed, which orphan
    cleanup finds. `progress` hears the bytes of each finished group, from several threads.

    When anything is raised, as `EngineUnavailable`, the owner of the work knows what there is to be removed.
    """
    groups, results, cancelled = work.groups, Results(), cancelled or threading.Event()
    rewrite = partial(cluster_alone, work.order)
    run = GroupRewrite(
        "cluster files", groups, work.settings, work.owner, work.prefixes, rewrite, results, progress, cancelled
    )
    here = [n for n in groups if groups[n].size_bytes <= limits.driver_merge_bytes]
    run.in_threads(here, cores.threads)
    slots = cores.slots(spark)
    apart = sorted(groups.keys() - {*here, *_uneven(work, slots, limits)})
    run.in_tasks(spark, {n: groups[n].size_bytes for n in apart}, slots)
    together = {n: groups[n] for n in sorted(groups.keys() - results.keys())}
    shuffle = Shuffle(spark, replace(work, groups=together), cores)
    run.by(lambda: shuffle.run(cancelled), together)
    return results


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
