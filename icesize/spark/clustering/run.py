"""One pass of clustering beside the batches of a stream, and the execution of a pass.

Small groups are clustered in the driver, larger ones in one Spark task each, the largest by all tasks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from icesize.environment import Environment, WorkLimits
from icesize.errors import ClusteringOff
from icesize.maintenance.jobs.clustering import ClusterScan, cluster_and_commit
from icesize.maintenance.table_context import ClusterWork
from icesize.parquet.files.data_file import Results
from icesize.planning.files import PartitionKey
from icesize.policy import SizePolicy
from icesize.spark.clustering.gather import MOST_NUMBERED_ROWS, cluster_alone
from icesize.spark.clustering.shuffle import FILES_PER_ASSIGNMENT, Shuffle
from icesize.spark.engine.jobs import ALL_CORES, Cores, GroupRewrite
from icesize.table.cluster_settings import resolve
from icesize.table.commit.batch_report import BatchOutcome
from icesize.table.state.handle import Current, TableHandle

LEAST_FILES = 4
"""Files of the target size that one pass after a batch may always write.

A pass with work to do has two or more such files, which is more than the merges of a small batch may rewrite.
"""

UNEVEN = 1.5
"""A group with this many times the average bytes of a slot is divided: other tasks would wait while its one task sorts.

Dividing took 1.4 times the work of a task that read its files once for each of 3 parts: 21.7 s of all cores together,
against 16.0 s. Against a task that reads its files once, dividing costs even more.
"""


def inline_budget(policy: SizePolicy, batch_bytes: int) -> int:
    """Return the bytes that clustering may write after a batch.

    They are the budget of the batch's merges, and at least `LEAST_FILES` files, so that some set can be due. The
    minimum does not apply if the table sets its own `merge-budget-bytes`.
    """
    budget = policy.budget_for(batch_bytes)
    return budget if policy.merge_budget_bytes is not None else max(budget, LEAST_FILES * policy.target_file_size_bytes)


def cluster_beside_stream(
    spark: SparkSession,
    handle: TableHandle,
    current: Current,
    environment: Environment,
    *,
    budget_bytes: int,
    most_bytes: int,
    contested: Collection[PartitionKey] = (),
    cancelled: threading.Event | None = None,
    cores: Cores = ALL_CORES,
) -> BatchOutcome | None:
    """Scan the table, plan, write and commit one pass of clustering beside a stream; return its outcome.

    Returns None if nothing is due, and an outcome without snapshots if the work exceeds the budget.

    A pass never delays a batch for longer than one commit. Batches continue while rows are moved, and the files that
    they append are not among the moved files. Small files of partitions that still receive rows are left to merges,
    which would remove them during the pass.

    `budget_bytes` limits the bytes written; if it is too small for every set that is due, the limit is `most_bytes`.
    Raises the error that stopped the pass.
    """
    by = resolve(current.table.metadata, current.policy, table=current.name)
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
    return cluster_and_commit(handle, scan, plan, runner, environment)


def run_clusters(
    spark: SparkSession,
    work: ClusterWork,
    *,
    limits: WorkLimits,
    cancelled: threading.Event | None = None,
    progress: Callable[[int], None] = lambda size_bytes: None,
    cores: Cores = ALL_CORES,
) -> Results:
    """Write the rows of each group in order, to files whose names begin with its prefix; return each result by number.

    A group that fails leaves no file. `cancelled` is checked between jobs. Groups that are done by then have results,
    which the caller commits or discards. The others leave only the files of killed tasks, which orphan cleanup finds.
    `progress` receives the bytes of each finished group; several threads call it.

    If the function raises, for example `EngineUnavailable`, the owner of the work knows the files to remove.
    """
    groups, results, cancelled = work.groups, Results(), cancelled or threading.Event()
    rewrite = partial(cluster_alone, work.order, MOST_NUMBERED_ROWS // max(1, len(groups)))
    run = GroupRewrite(
        "cluster files", groups, work.settings, work.owner, work.prefixes, rewrite, results, progress, cancelled
    )
    here = [n for n in groups if groups[n].size_bytes <= limits.driver_merge_bytes]
    run.in_threads(here, cores.threads)
    slots = cores.slots(spark)
    apart = sorted(groups.keys() - {*here, *_uneven(work, slots, limits)})
    run.in_tasks(spark, {n: groups[n].size_bytes for n in apart}, slots)
    together = {n: groups[n] for n in sorted(groups.keys() - results.keys())}
    shuffle = Shuffle(spark, replace(work, groups=together, settings=work.settings.with_lineage), cores)
    run.by(lambda: shuffle.run(cancelled), together)
    return results


def _uneven(work: ClusterWork, slots: int, limits: WorkLimits) -> list[int]:
    """Return the groups that would keep one task busy after all others have finished."""
    most = max(limits.one_task_bytes, UNEVEN * sum(group.size_bytes for group in work.groups.values()) / slots)
    return [
        number
        for number, group in work.groups.items()
        # `cluster` refuses files of another spec, so their groups stay with it.
        if group.size_bytes > most
        and group.outputs >= 2 * FILES_PER_ASSIGNMENT
        and group.partition.spec_id == work.settings.spec_id
    ]
