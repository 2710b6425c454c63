"""The engine of a table that was opened with a session: merges and clusterings as Spark jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import SparkSession

from icesize.environment import WorkLimits
from icesize.maintenance.table_context import Advance, ClusterWork
from icesize.parquet.files.data_file import Results
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.rewriting.forecast import work_bytes
from icesize.parquet.rewriting.threads import merge_in_threads
from icesize.planning.plan import MergeTask
from icesize.spark.clustering.run import run_clusters
from icesize.spark.engine import session
from icesize.spark.engine.merge_job import run_merges
from icesize.table.state.handle import TableHandle


@dataclass(frozen=True)
class InSpark:
    """Rewrites files in Spark jobs, and small groups of files in the driver; it commits all of them at once."""

    spark: SparkSession
    limits: WorkLimits
    most_bytes: None = None

    @cached_property
    def spark_conf(self) -> Mapping[str, str]:
        """Settings of the session about catalogs and commits. They can hold credentials."""
        return session.settings_of(self.spark)

    def works_elsewhere(self, sizes: Sequence[int]) -> bool:
        """Return whether Spark tasks merge some groups of files of these sizes in bytes.

        Copying takes less work than the size shows: such groups may be merged in the driver nevertheless.
        """
        if session.is_local(self.spark) and sum(sizes) <= self.limits.local_work_bytes:
            return False
        return max(sizes, default=0) > self.limits.driver_merge_bytes

    def merge(
        self, groups: Mapping[int, MergeTask], settings: WriteSettings, owner: Uncommitted, advance: Advance
    ) -> Results:
        """Merge the files of each group into files that `owner` records.

        Spark has no batch to write then. On a local master, this process merges up to `local_work_bytes`.
        """
        work = sum(work_bytes(group.inputs, settings) for group in groups.values())
        if session.is_local(self.spark) and work <= self.limits.local_work_bytes:
            return merge_in_threads(groups, settings, owner, progress=advance)
        return run_merges(self.spark, groups, settings, owner, limits=self.limits, progress=advance)

    def cluster(self, work: ClusterWork, advance: Advance) -> Results:
        """Write the rows of each group in the requested order."""
        return run_clusters(self.spark, work, limits=self.limits, progress=advance)

    def refresh(self, handle: TableHandle) -> None:
        """Make later queries of the session see the commit."""
        session.refresh(self.spark, handle.name, handle.spark_conf)
