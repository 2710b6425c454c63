"""The versioning half of the facade: history, restore, expiry and cleanup of one table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from icesize.clock import Environment
from icesize.errors import EngineUnavailable, TableError
from icesize.maintenance.restore import plan_restore, restore
from icesize.maintenance.rewrite_manifests import ManifestReport, rewrite_manifests
from icesize.planning.files import PartitionKey
from icesize.report import Report
from icesize.table.catalog.access_errors import readable
from icesize.table.cleanup.expiry import ExpiryReport, expire
from icesize.table.cleanup.orphans import DEFAULT_OLDER_THAN_MS, OrphanReport, OrphanSearch
from icesize.table.cleanup.retention_inputs import ExpireOptions
from icesize.table.state import versions as history
from icesize.table.state.handle import Current, TableHandle
from icesize.table.state.naming import find_partition, known_snapshot, snapshot_as_of
from icesize.table.state.partition_changes import ChangeReader
from icesize.table.storage.bulk_delete import MAX_CONCURRENT_DELETES, deleter

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

Partition = Mapping[str, Any]
"""Partition field -> value exactly as `inspect` prints it: `{"hour": "h191"}`; `{}` for an unpartitioned table."""
Progress = Callable[[int, int], None]
Outcome = TypeVar("Outcome")


class _Loader:
    """Loads a table again and again, and deletes with the credentials that came with it last."""

    def __init__(self, handle: TableHandle) -> None:
        self._handle = handle
        self._table: Table | None = None

    def load(self) -> Table:
        self._table = self._handle.load().table
        return self._table

    def delete(self, location: str) -> None:
        deleter((self._table or self.load()).io)(location)


class VersionedTable:
    """A table whose partitions have versions: their content after each commit that touched them."""

    def __init__(self, spark: SparkSession | None, handle: TableHandle, environment: Environment) -> None:
        self._spark = spark
        self._handle = handle
        self._environment = environment
        self._lock = threading.RLock()
        self._changes = ChangeReader()

    @property
    def name(self) -> str:
        """`catalog.namespace.table`."""
        return self._handle.name

    def versions(self, partition: Partition | None = None) -> list[history.Version]:
        """Versions of a partition, newest first; of every partition when none is given.

        What one icesize commit did is one version, named by its last snapshot. Only what the table still keeps is
        here. Raises TableError for a partition that never had files.
        """
        return self._versions(self._handle.load(self._environment), partition)[1]

    def read_version(
        self, partition: Partition, snapshot_id: int | str | None = None, *, as_of: datetime | int | None = None
    ) -> DataFrame:
        """The rows of a partition at a snapshot, or as of a time (naive: UTC; or milliseconds since 1970).

        The columns are those of the table now. Raises TableError for a snapshot that the table does not have and for a
        partition that never had files, UnsupportedTable when deletes are pending there.
        """
        if self._spark is None:
            raise EngineUnavailable("Cannot read a version: it needs Spark; open the table with a session")
        if (snapshot_id is None) == (as_of is None):
            raise ValueError("Cannot read a version: give either 'snapshot_id' or 'as_of'")
        from icesize.spark.engine.read_version import read_version

        current = self._handle.load(self._environment)
        metadata = current.table.metadata
        if as_of is not None:
            snapshot_id = snapshot_as_of(metadata, as_of)
        version = known_snapshot(metadata, snapshot_id or 0)
        return read_version(self._spark, current, self._key(current, partition), version.snapshot_id)

    def restore(self, partition: Partition, snapshot_id: int | str, *, dry_run: bool = False) -> Report:
        """Make a partition what it was at a snapshot, in one `overwrite` commit.

        Files that it has no more are copied byte for byte, in threads of this process, to new names; the report says
        how many rows the partition has before and after. With `dry_run` nothing is changed, and the report says what
        would be. Streaming readers of the table stop at an overwrite. The ledger of batches is not rolled back: the
        report names the streams whose later rows are gone from the partition. Raises TableError when the version cannot
        be had any more, CommitConflict when the partition changes meanwhile.
        """
        with self._lock:
            current = self._handle.load(self._environment)
            snapshot_id = known_snapshot(current.table.metadata, snapshot_id).snapshot_id
            key = self._key(current, partition)
            if dry_run:
                return plan_restore(current, key, snapshot_id, self._environment)
            return self._seen(restore(self._handle, current, key, snapshot_id, self._environment))

    def expire_snapshots(
        self,
        keep_versions: int | None = None,
        older_than: datetime | timedelta | None = None,
        retain_last: int | None = None,
        dry_run: bool = False,
        *,
        readers: Sequence[str] = (),
        force: bool = False,
        max_concurrent_deletes: int = MAX_CONCURRENT_DELETES,
        progress: Progress = lambda done, total: None,
    ) -> ExpiryReport:
        """Remove snapshots that no rule keeps, and the files that only they needed.

        Without arguments the table's own rules hold: `history.expire.*`, and `keep-versions` of the policy. Branches,
        tags, the newest append (streaming readers stand there) and what `readers` (checkpoint folders) have not read
        always stay. `keep_versions` keeps the newest versions of each partition besides what is young: only an explicit
        `older_than`, a point in time or an age, goes below the table's own age. Raises what
        `icesize.table.cleanup.expiry.expire` does.
        """
        options = ExpireOptions(keep_versions, older_than, retain_last, tuple(readers), force)
        with self._lock:
            return self._seen(
                expire(
                    self._handle, options, self._environment, dry_run=dry_run,
                    max_concurrent_deletes=max_concurrent_deletes, progress=progress,
                )
            )  # fmt: skip

    def remove_orphan_files(
        self,
        older_than: timedelta = timedelta(milliseconds=DEFAULT_OLDER_THAN_MS),
        dry_run: bool = True,
        *,
        max_concurrent_deletes: int = MAX_CONCURRENT_DELETES,
        progress: Callable[[int], None] = lambda done: None,
    ) -> OrphanReport:
        """Find files below the table's location that nothing refers to, and with `dry_run=False` delete them.

        Files younger than `older_than` (at least 24 hours) may be of a batch under way and stay. Raises TableError
        when metadata of another table lies in the location, or when it cannot be listed whole.
        """
        with self._lock:
            loader = _Loader(self._handle)
            search = OrphanSearch(
                self.name, loader.load, loader.delete, self._environment,
                max_concurrent_deletes=max_concurrent_deletes, progress=progress,
            )  # fmt: skip
            return search.run(older_than // timedelta(milliseconds=1), dry_run)

    def rewrite_manifests(self) -> ManifestReport:
        """Write many small manifests together, in one REPLACE commit that leaves every file as it is."""
        with self._lock:
            return self._seen(rewrite_manifests(self._handle, self._handle.load(self._environment), self._environment))

    def _versions(
        self, current: Current, partition: Partition | None
    ) -> tuple[PartitionKey | None, list[history.Version]]:
        with readable(current.name):
            found = history.versions(current.table.metadata, current.table.io, self._changes)
        if partition is None:
            return None, found
        key = find_partition(current.table.metadata, {v.key for v in found}, partition)
        return key, [v for v in found if v.key == key]

    def _key(self, current: Current, partition: Partition) -> PartitionKey:
        key, _ = self._versions(current, partition)
        if key is None:
            raise TableError("Cannot find a partition: none was named")
        return key

    def _seen(self, report: Outcome) -> Outcome:
        """The report, after Spark was made to see what was committed."""
        if self._spark is not None:
            from icesize.spark.engine import session

            session.refresh(self._spark, self._handle.name, self._handle.spark_conf)
        return report
