"""One pass of clustering beside the batches of a stream, in the thread of a batch or in the background.

It never holds a batch up for longer than one commit: rows are moved while batches go on, and what they have appended
meanwhile does not touch the files that were moved. Small files of partitions that still get rows are left to merges,
which would take them away.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass

from pyspark.sql import SparkSession

from icesize.clock import Environment
from icesize.errors import ClusteringOff
from icesize.maintenance.clustering import ClusterPass, ClusterScan, ClusterWork, wanted_by
from icesize.maintenance.reporting import Outcome
from icesize.parquet.files.merge_result import Results
from icesize.planning.files import PartitionKey
from icesize.policy import SizePolicy
from icesize.spark.clustering.run import run_clusters
from icesize.spark.engine.jobs import ALL_CORES, Cores
from icesize.table.state.handle import Current, TableHandle

LEAST_FILES = 4
"""Files of the target size that one pass after a batch may write at least: what is due has two or more of them, more
than the merges of a small batch may rewrite."""


def inline_budget(policy: SizePolicy, batch_bytes: int) -> int:
    """Bytes that clustering may write after a batch: as much as its merges, and enough for something to be due unless
    the table's own `merge-budget-bytes` says otherwise."""
    budget = policy.budget_for(batch_bytes)
    return budget if policy.merge_budget_bytes is not None else max(budget, LEAST_FILES * policy.target_file_size_bytes)


@dataclass(frozen=True)
class ClusterRun:
    """Scan the table, plan, write, commit. `commit_lock` is held for the commit and may raise instead.

    `budget_bytes` bounds what is written, up to `most_bytes` where that pays for no set that is due.
    """

    spark: SparkSession
    handle: TableHandle
    environment: Environment
    _: KW_ONLY
    commit_lock: AbstractContextManager[object]
    budget_bytes: int
    most_bytes: int
    contested: Collection[PartitionKey] = ()
    cancelled: threading.Event | None = None
    cores: Cores = ALL_CORES

    def run(self, current: Current) -> Outcome | None:
        """What was done; None when nothing is due, an outcome without snapshots when it is too large. Raises whatever
        kept it from being done.
        """
        metadata, io, policy = current.table.metadata, current.table.io, current.policy
        by = wanted_by(current)
        if by is None:
            why = "the table's property 'icesize.cluster.by' does not say by which columns; call cluster(by=[...]) once"
            raise ClusteringOff(f"Cannot cluster '{current.name}': {why}", table=current.name, why=why)
        layout = self.handle.reader(policy).read(metadata, io)
        scan = ClusterScan.at(self.handle, current, layout, by)
        recent = layout.recent(policy.cold_after_commits)
        contested = {*self.contested, *self.handle.contested(current, self.environment)}
        plan = scan.round(self.budget_bytes, self.most_bytes, contested, recent)
        if not plan.is_due:
            return None
        return ClusterPass(self.handle, scan, plan, self._move, self.environment, commit_lock=self.commit_lock).run()

    def _move(self, work: ClusterWork) -> Results:
        return run_clusters(
            self.spark, work, limits=self.environment.limits, cancelled=self.cancelled, cores=self.cores
        )
