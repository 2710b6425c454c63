"""Clusters a table: by arguments of a call, by its properties, or one round of a pass.

Each way scans the table, plans, runs, commits with `icesize.table.commit.batch_commit.rewrite`, and reports the change
for queries.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyiceberg.manifest import ManifestFile

from icesize.environment import Environment
from icesize.errors import ClusteringOff, TableError, UnsupportedTable
from icesize.events import Planned
from icesize.maintenance.rounds import Budget, RoundsEnd, as_they_are, carried_out, noting_rounds
from icesize.maintenance.table_context import Advance, ClusterWork, Selection, TableContext, lacks_row_ids
from icesize.parquet.files.data_file import Merged, Results
from icesize.parquet.files.names import FileNames, data_location, set_of, set_prefix
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.ordering.cluster_order import RowOrder
from icesize.planning.cluster_by import ClusterBy, ClusterFile
from icesize.planning.clustering.depth import by_column
from icesize.planning.clustering.planner import plan_clusters
from icesize.planning.files import Layout, PartitionKey
from icesize.planning.plan import MergeTask, Plan
from icesize.report import Report
from icesize.table.cluster_settings import keep_cluster_by, resolve
from icesize.table.commit import batch_commit
from icesize.table.commit.batch_commit import rewrite
from icesize.table.commit.batch_report import BatchOutcome, WrittenBatch
from icesize.table.records.ledger import stream_hash
from icesize.table.state.cluster_reader import cluster_file_of
from icesize.table.state.handle import Current, TableHandle
from icesize.table.state.where import Where

ClusterRunner = Callable[[ClusterWork], Results]
"""Does the work of a pass; returns the result of each group, keyed by its number."""

FilesByPartition = Mapping[PartitionKey, Sequence[ClusterFile]]
Columns = Sequence[str] | None


@dataclass(frozen=True)
class ClusterRequest:
    """The arguments of one call: the columns (None: those that the table stores), strategy, filter and budget."""

    by: Columns = None
    strategy: str | None = None
    where: Where = None
    budget_bytes: int | None = None

    @classmethod
    def of(cls, by: Columns, strategy: str | None, where: Where, budget: Budget) -> ClusterRequest:
        """Return the request of a caller; an iterator of names is read only once."""
        return cls(by if by is None or isinstance(by, str) else tuple(by), strategy, where, budget.size_bytes)


@dataclass(frozen=True)
class ClusterScan:
    """The basis of a plan: the current table, and all data files of the partitions in `layout`."""

    current: Current
    layout: Layout
    by: ClusterBy
    files: FilesByPartition

    @classmethod
    def at(
        cls,
        handle: TableHandle,
        current: Current,
        layout: Layout,
        by: ClusterBy,
        keep: Callable[[ManifestFile], bool] = lambda manifest: True,
    ) -> ClusterScan:
        """Read the files of the partitions in `layout`; manifests that `keep` rejects contain none of them.

        Raises TableError if storage does not return a manifest.
        """
        found = handle.cluster_reader(by, current.policy).read(current.table.metadata, current.table.io, keep)
        return cls(current, layout, by, {key: found[key] for key in layout.partitions if key in found})

    def plan(
        self,
        budget_bytes: int | None = None,
        contested: Collection[PartitionKey] = (),
        leave_small: Collection[PartitionKey] = (),
    ) -> Plan:
        """Return the plan for the current state; arguments are those of `plan_clusters`."""
        return plan_clusters(
            self.layout, self.files, self.by, self.current.policy,
            budget_bytes=budget_bytes, contested=contested, leave_small=leave_small,
        )  # fmt: skip

    def round(
        self,
        budget_bytes: int,
        most_bytes: int,
        contested: Collection[PartitionKey] = (),
        leave_small: Collection[PartitionKey] = (),
    ) -> Plan:
        """Return the plan of one of several rounds.

        It contains the due work that fits into `budget_bytes`. If none fits, it contains the least work that fits into
        a larger budget, up to `most_bytes`. A set is written as a whole, so it may be larger than a round.
        """
        plan = self.plan(budget_bytes, contested, leave_small)
        while plan.is_due and not plan.groups and budget_bytes < most_bytes:
            budget_bytes = min(2 * max(1, budget_bytes), most_bytes)
            plan = self.plan(budget_bytes, contested, leave_small)
        return plan

    def part_of(self, whole: Plan, groups: Sequence[MergeTask]) -> tuple[Plan, tuple[str, ...]]:
        """Return the part of an earlier plan with these groups, for the current state, as `as_they_are` does."""
        plan, lost = as_they_are(whole, groups, self.layout, (f.fact for files in self.files.values() for f in files))
        if plan.clustering is None:
            raise AssertionError("a plan of another kind")
        full = tuple(group.size_bytes >= self.by.sealed_set_bytes for group in plan.groups)
        now = replace(plan.clustering, by=self.by, full=full, before=by_column(self.files, self.by.columns))
        return replace(plan, clustering=now), lost

    def after(self, committed: Sequence[Merged]) -> FilesByPartition:
        """Return the files after these groups have replaced their input files."""
        gone = {input_file.path for group in committed for input_file in group.inputs}
        files = {key: [file for file in old if file.fact.path not in gone] for key, old in self.files.items()}
        schema = self.current.table.metadata.schema()
        for group in committed:
            new = (cluster_file_of(file, self.by, schema) for file in group.files)
            files.setdefault(group.inputs[0].partition, []).extend(new)
        return files


def cluster_and_commit(
    handle: TableHandle,
    scan: ClusterScan,
    plan: Plan,
    runner: ClusterRunner,
    environment: Environment,
) -> BatchOutcome:
    """Run the plan of a scan with `runner` and commit it as one REPLACE; return the files opened before and after.

    Raises TableError, CommitConflict, CommitStateUnknown or RewriteFailed.
    """

    def run(groups: Mapping[int, MergeTask], settings: WriteSettings, owner: Uncommitted) -> Results:
        details = plan.clustering
        if details is None:
            raise AssertionError("a plan of another kind")
        # a new id for each run, so that sets of one stream and batch also have different names
        run_hash = stream_hash(environment.new_id())
        prefixes = {n: set_prefix(scan.by.key, run_hash, n, full) for n, full in enumerate(details.full)}
        _check_names(scan.current, settings, groups[0].partition, prefixes[0])
        return runner(ClusterWork(groups, prefixes, RowOrder.of(scan.by, settings), settings, owner))

    planned = WrittenBatch(scan.current, scan.layout, plan)
    outcome = rewrite(handle, planned, run, environment)
    return replace(outcome, report=replace(outcome.report, clustering=_summary(scan, plan, outcome)))


def _check_names(current: Current, settings: WriteSettings, partition: PartitionKey, prefix: str) -> None:
    """Raise UnsupportedTable if the location provider changes file names.

    File names identify clustered sets. Without them, icesize would cluster the same files in every pass.
    """
    location = data_location(settings, partition, FileNames(prefix, 0, 0).next())
    if set_of(location) is None:
        raise UnsupportedTable(
            f"Cannot cluster '{current.name}': its location provider ('write.py-location-provider.impl') "
            "changes the names of files, but icesize records the clustered sets in these names",
            table=current.name,
        )


def _summary(scan: ClusterScan, plan: Plan, outcome: BatchOutcome) -> dict[str, Any]:
    by, details, committed = scan.by, plan.clustering, outcome.commit.merged
    before = details.before if details else by_column(scan.files, by.columns)
    after = by_column(scan.after(committed), by.columns) if committed else before
    new = {file.fact.path for files in scan.files.values() for file in files if file.set_id is None}
    new_bytes = sum(v.size_bytes for group in committed for v in group.inputs if v.path in new)
    return {
        "columns": list(by.columns),
        "strategy": by.strategy,
        "before": {column: files_scanned.to_dict() for column, files_scanned in before.items()},
        "after": {column: files_scanned.to_dict() for column, files_scanned in after.items()},
        "new_bytes": new_bytes,
        "amplification": round(outcome.report.bytes_written / new_bytes, 3) if new_bytes else None,
    }


def plan_clustering(context: TableContext, request: ClusterRequest) -> Plan | None:
    """Return the plan of `cluster`; None if neither the request nor the table names columns."""
    found = _scan(context, request)
    return None if found is None else found[0].noted(found[1].plan(request.budget_bytes))


def cluster(context: TableContext, request: ClusterRequest) -> Report:
    """Store the columns in the table and order its rows by them; reject an invalid request before storing anything.

    If the work exceeds the bytes that the engine rewrites before one commit, it runs in rounds with a commit each; a
    set is written as a whole. The rounds end early if another writer changed the partition spec or the clustering
    columns, or if a later round fails. Then the report notes the remaining work. Raises the errors of `compact`.
    """
    most_bytes = context.engine.most_bytes
    scan, whole = _planned(context, request)
    planned = noting_rounds(whole, most_bytes)
    context.environment.observe(Planned(lambda: planned))
    advance = context.advance("clustering", whole.bytes_to_write)
    keep = keep_cluster_by(scan.by, context.environment.new_id())
    kept = batch_commit.change(context.handle, scan.current, keep, context.environment)
    if kept.stored:
        scan, whole = _planned(context, replace(request, by=None, strategy=None))
    whole = noting_rounds(replace(whole, notes=(*kept.sentences, *whole.notes)), most_bytes)

    def run(groups: Sequence[MergeTask], is_first: bool) -> Report:
        now = scan if is_first else again()
        plan, lost = now.part_of(whole, groups)
        report = _report(context, now, plan, advance, kept.sentences)
        return replace(report, conflicts=(*lost, *report.conflicts))

    def again() -> ClusterScan:
        try:
            found = _scan(context, ClusterRequest(where=request.where))
        except ClusteringOff:
            found = None
        if found is None or (found[1].by.key, found[1].layout.spec_id) != (scan.by.key, scan.layout.spec_id):
            raise RoundsEnd("another writer changed the partition spec, or by what the table is clustered")
        return found[1]

    return carried_out(whole.groups, most_bytes, run, Report.together)


def cluster_round(context: TableContext, bytes_left: int | None, damaged: Collection[PartitionKey]) -> Report | None:
    """Cluster the work that fits into a round; return None if nothing is due, or the table is not clustered.

    If none fits, cluster the least work that fits into `bytes_left` (None: no limit), because a set is written as a
    whole. If work is due but too large, the report has no snapshots. The `damaged` partitions are skipped, and those
    that other writers change constantly.
    """
    found = _scan(context, ClusterRequest(), damaged, numbered=True)
    if found is None:
        return None
    selection, scan = found
    contested = context.handle.contested(scan.current, context.environment)
    most_bytes = sys.maxsize if bytes_left is None else bytes_left
    plan = selection.noted(scan.round(context.round_bytes(bytes_left), most_bytes, contested))
    return _report(context, scan, plan, context.advance("clustering", plan.bytes_to_write)) if plan.is_due else None


def _planned(context: TableContext, request: ClusterRequest) -> tuple[ClusterScan, Plan]:
    found = _scan(context, request, numbered=True)
    if found is None:
        raise TableError(
            f"Cannot cluster '{context.handle.name}': neither the argument 'by' nor the table's property "
            "'icesize.cluster.by' names columns",
            table=context.handle.name,
        )
    return found[1], found[0].noted(found[1].plan(request.budget_bytes))


def _scan(
    context: TableContext, request: ClusterRequest, damaged: Collection[PartitionKey] = (), *, numbered: bool = False
) -> tuple[Selection, ClusterScan] | None:
    """Return the selected partitions without the `damaged` ones, and their files.

    If they have to be `numbered`, rows without ids get some. Returns None if neither request nor table names columns.
    """
    current = context.load()
    by = resolve(current.table.metadata, current.policy, request.by, request.strategy, table=current.name)
    if by is None:
        return None
    if numbered and lacks_row_ids(current):
        current = context.numbered()
    selection = context.select(request.where, current).without(damaged)
    return selection, ClusterScan.at(context.handle, current, selection.layout, by, selection.filter.may_hold)


def _report(
    context: TableContext, scan: ClusterScan, plan: Plan, advance: Advance, changed: Sequence[str] = ()
) -> Report:
    runner = partial(context.engine.cluster, advance=advance)
    outcome = cluster_and_commit(context.handle, scan, plan, runner, context.environment)
    return context.report(outcome, "cluster", changed)
