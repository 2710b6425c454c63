"""One pass of clustering beside the batches of a stream, in the thread of a batch or in the background.

It never holds a batch up for longer than one commit: rows are moved while batches go on, and what they have appended
meanwhile does not touch the files that were moved. Small files of partitions that still get rows are left to merges,
which would take them away.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager

from icesize.clock import Environment
from icesize.errors import ClusteringOff
from icesize.maintenance.batch_commit import Outcome
from icesize.maintenance.clustering import ClusterRunner, ClusterScan, cluster_and_commit, wanted_by
from icesize.planning.files import PartitionKey
from icesize.policy import SizePolicy
from icesize.table.state.handle import Current, TableHandle

LEAST_FILES = 4
"""Files of the target size that one pass after a batch may write at least: what is due has two or more of them, more
than the merges of a small batch may rewrite."""


def inline_budget(policy: SizePolicy, batch_bytes: int) -> int:
    """Bytes that clustering may write after a batch: as much as its merges, and enough for something to be due unless
    the table's own `merge-budget-bytes` says otherwise."""
    budget = policy.budget_for(batch_bytes)
    return budget if policy.merge_budget_bytes is not None else max(budget, LEAST_FILES * policy.target_file_size_bytes)


def cluster_beside_stream(
    handle: TableHandle,
    current: Current,
    runner: ClusterRunner,
    environment: Environment,
    *,
    commit_lock: AbstractContextManager[object],
    budget_bytes: int,
    most_bytes: int,
    contested: Collection[PartitionKey] = (),
) -> Outcome | None:
    """Scan the table, plan, write, commit: what was done; None when nothing is due, an outcome without snapshots when
    it is too large.

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
    return cluster_and_commit(handle, scan, plan, runner, environment, commit_lock=commit_lock)
