"""One pass of clustering over one table: scan, plan, run and commit, as `Maintenance` does, and what it has changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from pyiceberg.manifest import ManifestFile

from icesize.clock import Environment
from icesize.errors import UnsupportedTable
from icesize.maintenance.cluster_settings import resolve
from icesize.maintenance.compaction import Maintenance
from icesize.maintenance.reporting import Outcome
from icesize.parquet.files.data_file import MergeResult, Results
from icesize.parquet.files.names import FileNames, data_location, set_of, set_prefix
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.ordering.cluster_order import RowOrder
from icesize.planning.cluster_by import ClusterBy, ClusterFile
from icesize.planning.clustering.depth import by_column
from icesize.planning.clustering.planner import plan_clusters
from icesize.planning.files import Layout, PartitionKey
from icesize.planning.plan import MergeGroup, Plan
from icesize.table.commit.ledger import stream_hash
from icesize.table.state.cluster_reader import cluster_file_of
from icesize.table.state.handle import Current, TableHandle


@dataclass(frozen=True)
class ClusterWork:
    """Groups whose rows are to be written in `order`, each under file names with its own prefix; both by number."""

    groups: Mapping[int, MergeGroup]
    prefixes: Mapping[int, str]
    order: RowOrder
    settings: WriteSettings


ClusterRunner = Callable[[ClusterWork], Results]
"""Does such work; the result of each group, by its number."""

Files = Mapping[PartitionKey, Sequence[ClusterFile]]


def wanted_by(current: Current, columns: Sequence[str] | None = None, strategy: str | None = None) -> ClusterBy | None:
    """The layout that is wanted of a table, by arguments or its properties; None when nothing says by which columns.

    Raises what `icesize.maintenance.cluster_settings.resolve` raises.
    """
    return resolve(current.table.metadata, current.policy, columns, strategy, table=current.name)


@dataclass(frozen=True)
class ClusterScan:
    """What a pass plans on: the table now, and all data files of the partitions in `layout`."""

    current: Current
    layout: Layout
    by: ClusterBy
    files: Files

    @classmethod
    def at(
        cls,
        handle: TableHandle,
        current: Current,
        layout: Layout,
        by: ClusterBy,
        keep: Callable[[ManifestFile], bool] = lambda manifest: True,
    ) -> ClusterScan:
        """The files of the partitions of `layout`; manifests that `keep` refuses hold none of them.

        Raises TableError when storage does not give the manifests.
        """
        found = handle.cluster_reader(by).read(current.table.metadata, current.table.io, keep)
        return cls(current, layout, by, {key: found[key] for key in layout.partitions if key in found})

    def plan(
        self,
        budget_bytes: int | None = None,
        contested: Collection[PartitionKey] = (),
        leave_small: Collection[PartitionKey] = (),
    ) -> Plan:
        """What to do now; arguments as those of `plan_clusters`."""
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
        """What to do in one of several rounds: what the budget pays for, or, where it pays for nothing that is due, the
        least that more pays for, up to `most_bytes`. A set is written as a whole, and may be larger than a round.
        """
        plan = self.plan(budget_bytes, contested, leave_small)
        while plan.is_due and not plan.groups and budget_bytes < most_bytes:
            budget_bytes = min(2 * max(1, budget_bytes), most_bytes)
            plan = self.plan(budget_bytes, contested, leave_small)
        return plan

    def after(self, landed: Sequence[MergeResult]) -> Files:
        """The files once these groups have taken the place of their input files."""
        gone = {input_file.path for group in landed for input_file in group.inputs}
        files = {key: [file for file in old if file.fact.path not in gone] for key, old in self.files.items()}
        schema = self.current.table.metadata.schema()
        for group in landed:
            new = (cluster_file_of(file, self.by, schema) for file in group.files)
            files.setdefault(group.inputs[0].partition, []).extend(new)
        return files


@dataclass(frozen=True)
class ClusterPass:
    """A plan made on a scan, run by `runner`, committed as one REPLACE; other arguments are those of `Maintenance`."""

    handle: TableHandle
    scan: ClusterScan
    plan: Plan
    runner: ClusterRunner
    environment: Environment
    _: KW_ONLY
    notes: tuple[str, ...] = ()
    commit_lock: AbstractContextManager[object] = field(default_factory=nullcontext)

    def run(self) -> Outcome:
        """Cluster and commit; the outcome tells what queries opened before and open now.

        Raises TableError, CommitConflict, CommitStateUnknown or RewriteFailed.
        """
        outcome = Maintenance(
            self.handle, self.scan.current, self.scan.layout, self.plan, self._run, self.environment, self.notes,
            commit_lock=self.commit_lock,
        ).run()  # fmt: skip
        return replace(outcome, report=replace(outcome.report, clustering=self._told(outcome)))

    def _run(self, groups: Mapping[int, MergeGroup], settings: WriteSettings, prefix: str) -> Results:
        details = self.plan.clustering
        if details is None:
            raise AssertionError("a plan of another kind")
        # sets are told apart by it, those of one stream and batch too
        run = stream_hash(self.environment.new_id())
        by = self.scan.by
        prefixes = {number: set_prefix(by.key, run, number, full) for number, full in enumerate(details.full)}
        self._check_names(settings, groups[0].partition, prefixes[0])
        return self.runner(ClusterWork(groups, prefixes, RowOrder.of(by, settings), settings))

    def _check_names(self, settings: WriteSettings, partition: PartitionKey, prefix: str) -> None:
        """What was clustered is known by names of files: where they are lost it would be clustered for ever."""
        location = data_location(settings, partition, FileNames(prefix, 0, 0).next())
        if set_of(location) is None:
            raise UnsupportedTable(
                f"Cannot cluster '{self.scan.current.name}': its location provider ('write.py-location-provider.impl') "
                "changes the names of files, which tell what was clustered together",
                table=self.scan.current.name,
            )

    def _told(self, outcome: Outcome) -> dict[str, Any]:
        by, details, landed = self.scan.by, self.plan.clustering, outcome.commit.merged
        before = details.before if details else by_column(self.scan.files, by.columns)
        after = by_column(self.scan.after(landed), by.columns) if landed else before
        new = {file.fact.path for files in self.scan.files.values() for file in files if file.set_id is None}
        new_bytes = sum(v.size_bytes for group in landed for v in group.inputs if v.path in new)
        return {
            "columns": list(by.columns),
            "strategy": by.strategy,
            "before": {column: files_scanned.to_dict() for column, files_scanned in before.items()},
            "after": {column: files_scanned.to_dict() for column, files_scanned in after.items()},
            "new_bytes": new_bytes,
            "amplification": round(outcome.report.bytes_written / new_bytes, 3) if new_bytes else None,
        }
