"""The facade: one table, with a method for each operation on its files, and `maintain`, a pass over many tables.

`engine_of` chooses the engine: Spark or this process. The methods of `SizedTable` look up the snapshots and partitions
that a caller names, and call the package that does the work. All rules about files are in these packages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from icesize.concurrency import IO_THREADS, TABLES_AT_ONCE
from icesize.environment import Environment, Stopwatch
from icesize.errors import EngineUnavailable
from icesize.events import JobFinished
from icesize.maintenance.jobs import compaction
from icesize.maintenance.rounds import Budget, Duration, Size
from icesize.maintenance.table_context import Engine, InThisProcess, TableContext
from icesize.planning.files import MAIN, PartitionKey
from icesize.policy import SizePolicy
from icesize.report import Report
from icesize.table.catalog import opening
from icesize.table.catalog.access_errors import readable
from icesize.table.commit import batch_commit
from icesize.table.records import ledger
from icesize.table.state.handle import Current, PolicyArgument, TableHandle
from icesize.table.state.naming import find_partition, known_snapshot, snapshot_as_of

# each call imports its own dependencies: importing all of them takes as long as compacting a small table
if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import DataFrame, SparkSession

    from icesize.maintenance.jobs.clustering import Columns
    from icesize.maintenance.jobs.dangling_deletes import DanglingReport
    from icesize.maintenance.jobs.keys import KeyReport
    from icesize.maintenance.jobs.rewrite_deletes import DeletesReport
    from icesize.maintenance.jobs.rewrite_manifests import ManifestReport
    from icesize.maintenance.passes.maintain import MaintenancePlan, MaintenanceReport
    from icesize.maintenance.passes.many_tables import ManyTablesPlan, ManyTablesReport
    from icesize.maintenance.verify.checkup import Check
    from icesize.maintenance.verify.repair import RepairReport
    from icesize.maintenance.verify.verification import Verification
    from icesize.planning.insight.inspection import Inspection
    from icesize.planning.merging.simulation import PolicyComparison
    from icesize.planning.plan import Plan
    from icesize.presentation.overview import Overview
    from icesize.spark.stream.options import SinkOptions
    from icesize.spark.stream.process_state import TableSource
    from icesize.spark.stream.sink import Sink
    from icesize.table.cleanup.expiry import ExpiryReport
    from icesize.table.cleanup.orphans import OrphanReport
    from icesize.table.cluster_settings import ForgottenClusterBy
    from icesize.table.commit.metadata_change import MetadataChange
    from icesize.table.past.commits import History
    from icesize.table.past.versions import Version
    from icesize.table.state.where import Where
    from icesize.table.storage.inventory import Inventory
    from icesize.table.upserts.settings import ColumnNames, UpsertOptions

Partition = Mapping[str, Any] | str
"""Partition field -> value: `{"hour": "h191"}`, `{}` for an unpartitioned table; or a label as `inspect` prints it.

A value has its type (None is NULL) or is a string. In a string field the string is the value itself; in other fields it
is the value as `inspect` prints it. In a label, `p=null` is NULL and `p="null"` is the string.
"""
Files = str | Path | Sequence[str | Path]
"""A file on the local disk, or several of them."""
Answer = TypeVar("Answer")


def open(
    spark: SparkSession | None,
    name: str,
    *,
    catalog: Catalog | None = None,
    policy: PolicyArgument = None,
    environment: Environment | None = None,
    branch: str = MAIN,
) -> SizedTable:
    """Open a table whose files icesize keeps well sized.

    Args:
        spark: The session to work with. With None, icesize works without Spark: it rewrites files in this process, and
            cannot append rows or read versions.
        name: The name of the table, `catalog.namespace.table`. With `catalog`, `namespace.table` is enough.
        catalog: A PyIceberg catalog. None opens the catalog from the session's `spark.sql.catalog.<catalog>.*`, or from
            PyIceberg's configuration.
        policy: A SizePolicy or a mapping of its keys. Each given key overrides the table's own properties.
        environment: The clock, limits, observer and cache directory of this process; None uses the defaults.
        branch: The branch that all calls read and commit to. It must exist. Expiry and orphan removal concern the
            whole table.

    Returns:
        The table. Each of its calls loads the newest state.

    Raises:
        TableNotFound: The catalog, namespace or table does not exist.
        UnsupportedTable: The table uses a format, type or feature that icesize does not handle.
        TableError: The table has no such branch, or it cannot be loaded.
        PolicyError: The policy is invalid.
    """
    return SizedTable(spark, name, catalog, policy, environment or Environment(), branch)


@overload
def maintain(
    pattern: str, budget_bytes: Size = ..., budget_seconds: Duration = ..., *, spark: SparkSession | None = ...,
    catalog: Catalog | None = ..., policy: PolicyArgument = ..., concurrency: int = ..., take_over: bool = ...,
    dry_run: Literal[False] = ..., environment: Environment | None = ..., is_chosen: Callable[[str], bool] = ...,
) -> ManyTablesReport: ...  # fmt: skip
@overload
def maintain(
    pattern: str, budget_bytes: Size = ..., budget_seconds: Duration = ..., *, spark: SparkSession | None = ...,
    catalog: Catalog | None = ..., policy: PolicyArgument = ..., concurrency: int = ..., take_over: bool = ...,
    dry_run: Literal[True], environment: Environment | None = ..., is_chosen: Callable[[str], bool] = ...,
) -> ManyTablesPlan: ...  # fmt: skip
def maintain(
    pattern: str,
    budget_bytes: Size = None,
    budget_seconds: Duration = None,
    *,
    spark: SparkSession | None = None,
    catalog: Catalog | None = None,
    policy: PolicyArgument = None,
    concurrency: int = TABLES_AT_ONCE,
    take_over: bool = False,
    dry_run: bool = False,
    environment: Environment | None = None,
    is_chosen: Callable[[str], bool] = lambda name: True,
) -> ManyTablesReport | ManyTablesPlan:
    """Run one bounded pass over the tables of a catalog.

    Tables to which maintenance brings most per byte come first. A table that fails does not stop the others.
    `icesize.toml` is not read: it belongs to the command.

    With Spark, its tasks rewrite large groups of files. At the same time, this process maintains tables whose groups
    are small. If tasks fail, their groups fail, and the tables are in `failed` of the report.

    Args:
        pattern: The catalog, a namespace in it, or a pattern: `lake`, `lake.db`, `lake.db.events_*`.
        budget_bytes: The most bytes that merges and clustering rewrite in all tables together, as a number or a string
            such as "20GiB"; None for no limit.
        budget_seconds: The seconds after which no work begins, as a number or a string such as "25m"; None for no
            limit.
        spark: The session whose tasks rewrite large groups of files; None to work in this process alone.
        catalog: A PyIceberg catalog. None opens the catalog of that name from the session's
            `spark.sql.catalog.<catalog>.*`, or from PyIceberg's configuration.
        policy: A SizePolicy or a mapping of its keys. Each given key overrides the properties of every table.
        concurrency: How many tables to maintain at the same time. From 2 on, icesize also maintains up to four times
            this number of small tables in an object store, and with Spark this number of tables with large groups.
        take_over: True to also maintain tables that another service maintains.
        dry_run: Change nothing. Return the state of the tables, and the merges that the budget pays for.
        environment: The clock, the limits and the observer; None uses the defaults.
        is_chosen: Called with the full name of each table that the pattern selects; False leaves it out.

    Returns:
        The report of the pass with every error of a table, or the plan of a dry run.

    Raises:
        ArgumentError: The pattern is malformed, or begins with the name of another catalog.
        PolicyError: The policy is invalid.
        TableNotFound: The catalog is not configured, or a pattern selects no table. A table that is missing under its
            plain name is in `failed` of the result.
        TableError: The catalog cannot be opened, or cannot list its tables.
        ValueError: A budget is negative or malformed, or `concurrency` is below 1.
        KeyboardInterrupt: It ends the pass after the current commits.
    """
    from icesize.maintenance.passes.many_tables import ManyTables
    from icesize.maintenance.passes.survey import CatalogTables
    from icesize.table.catalog.tables import TablePattern, catalog_of

    selected, budget = TablePattern.of(pattern), Budget.of(budget_bytes, budget_seconds)
    if not isinstance(concurrency, int) or concurrency < 1:
        raise ValueError(f"'concurrency' ({concurrency!r}) must be a whole number >= 1")
    environment = environment or Environment()
    engine = engine_of(spark, environment)
    chosen = catalog_of(selected, catalog, engine.spark_conf)
    with closing(chosen) if catalog is None else nullcontext():
        tables = CatalogTables(chosen, selected, environment, policy, is_chosen)
        several = ManyTables(tables, concurrency, take_over, engine)
        return several.plan(budget) if dry_run else several.run(budget)


def engine_of(
    spark: SparkSession | None, environment: Environment, conf: Mapping[str, str] = MappingProxyType({})
) -> Engine:
    """Return the engine of a session, or without one that of this process; `conf` are then settings of Spark."""
    if spark is None:
        return InThisProcess(environment.limits.bytes_without_spark, conf)
    from icesize.spark.clustering.in_spark import InSpark

    return InSpark(spark, environment.limits)


class SizedTable:
    """One Iceberg table and the operations on its files.

    Each call loads the table again, so that schema, properties and credentials are current. Any thread may call it.
    Maintenance calls of one object wait for each other. Batches (`append`, sinks) and calls that only read do not wait
    for them: the rows of a batch are committed in any case, and a merge whose files another commit replaced is dropped.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        name: str,
        catalog: Catalog | None,
        policy: PolicyArgument,
        environment: Environment,
        branch: str = MAIN,
    ) -> None:
        if spark is None:
            self._source: TableSource | None = None
            self._handle = _handle_without_spark(name, catalog, policy, branch)
            # load now, so that wrong names and settings fail here and not in the first call
            self._handle.load()
        else:
            from icesize.spark.stream import process_state

            given = process_state.remember_catalog(catalog) if catalog is not None else None
            source = process_state.identified(spark, process_state.TableSource(name, policy, given, branch=branch))
            # this reference keeps the state: the process drops states without references
            self._state = process_state.table_state(source)
            self._handle = self._state.open(spark, source)
            self._source = source
        self._spark = spark
        self._environment = environment
        self._context = TableContext(self._handle, environment, engine_of(spark, environment))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def name(self) -> str:
        """The full name of the table: `catalog.namespace.table`."""
        return self._handle.name

    @property
    def policy(self) -> SizePolicy:
        """The current policy: argument, table property, Iceberg's own property, default."""
        return self._handle.load(self._environment).policy

    def inspect(
        self,
        where: Where = None,
        *,
        filters: Sequence[str] = (),
        price_per_1000_requests: float | None = None,
    ) -> Inspection:
        """Return the sizes of the table's files, and what they cost each scan.

        Args:
            where: A filter over columns or partition fields, such as `hour >= 'h06'`. It selects the partitions whose
                rows all match; None selects all.
            filters: Filters of your queries, such as "user_id = 7". Repeat a filter once for each use. The result
                shows the number of files that each filter opens, and the columns to cluster by. icesize reads the
                bounds of all files for that. Without filters, the advice on columns comes from bounds alone, and only
                for tables of up to 10,000 files.
            price_per_1000_requests: The price of 1,000 GET requests in the object store, in USD. The default is the
                price of Amazon S3; a table on local disks or HDFS has no price.

        Returns:
            The state of the files, and advice.

        Raises:
            ArgumentError: A filter is malformed, or names a column that the table does not have.
        """
        from icesize.maintenance.passes.inspecting import inspect_files

        return inspect_files(self._context, where, filters, price_per_1000_requests)

    def plan(self, where: Where = None, budget_bytes: Size = None, *, into_current_spec: bool = False) -> Plan:
        """Preview `compact`: return its plan, with a forecast of the bytes that it would copy and decode.

        Args:
            where: A filter that selects partitions, as in `inspect`.
            budget_bytes: The most bytes to rewrite, as in `compact`.
            into_current_spec: True to preview the moves of `compact`. Merges are previewed if there are none.

        Returns:
            The files to merge and the files to keep, each with a reason.

        Raises:
            ArgumentError: The filter is malformed, or names a column that the table does not have.
            ValueError: The budget is negative or malformed.
        """
        size_bytes = Budget.of(budget_bytes).size_bytes
        return compaction.plan_compaction(self._context, where, size_bytes, into_current_spec=into_current_spec)

    def compare_policies(self, *policies: Mapping[str, object]) -> PolicyComparison:
        """Compare the cost of recent batches under other policies.

        The planner replays the newest 500 batches that the table still keeps. It starts with an empty table, once for
        the current policy and once for each of `policies`. A batch is any commit that added rows to `main`, with the
        bytes that its manifests record for each partition.

        Args:
            *policies: Mappings of policy keys to other values, such as `{"max-small-files": 4}`. All other keys keep
                their current values.

        Returns:
            The files and the bytes written under each policy.

        Raises:
            PolicyError: A key or a value is invalid.
        """
        from icesize.maintenance.passes.inspecting import compare_policies

        return compare_policies(self._context, policies)

    def compact(
        self,
        where: Where = None,
        budget_bytes: Size = None,
        budget_seconds: Duration = None,
        *,
        into_current_spec: bool = False,
    ) -> Report:
        """Merge the small files of every partition into as few files as possible.

        With Spark, all merges are one REPLACE commit, unless `budget_seconds` is set. Without Spark, they are committed
        in rounds of about 1 GiB, so that an interrupt keeps the finished rounds.

        Args:
            where: A filter that selects partitions, as in `inspect`.
            budget_bytes: The most bytes to rewrite, as a number or a string such as "20GiB"; None for no limit. Merges
                that save a scan the most per byte come first.
            budget_seconds: The seconds after which no further round begins, as a number or a string such as "25m"; None
                for no limit. With this limit, merges are committed in rounds of at most about 2 GiB.
            into_current_spec: True to move the rows of files of old partition specs into partitions of the current spec
                first. These files are rewritten whatever their size.

        Returns:
            The report. Merges that failed are its first notes.

        Raises:
            RewriteFailed: Every merge failed.
            CommitConflict: Other writers committed first until the deadline.
            CommitStateUnknown: The outcome of a commit is unknown; the attribute `report` has the rounds committed
                before.
            ArgumentError: The filter is malformed, or names a column that the table does not have.
            ValueError: A budget is negative or malformed.

        Examples:
            >>> table = icesize.open(None, "lake.db.events")
            >>> report = table.compact("hour >= 'h06'", budget_bytes="20GiB")
            >>> report.files_removed, report.files_added
            (96, 6)
        """
        budget = Budget.of(budget_bytes, budget_seconds)
        return self._context.alone(compaction.compact, where, budget, into_current_spec=into_current_spec)

    def doctor(self) -> tuple[Check, ...]:
        """Check whether icesize can work on the table: load it, read, write and delete.

        The checks write a small file beside the metadata and one beside the data, and delete both. The table does not
        change.

        Returns:
            One Check per subject. If the table cannot be loaded, it is the only one.
        """
        from icesize.maintenance.verify.checkup import check_up

        return tuple(check_up(self._handle, self._environment))

    def verify(
        self,
        *,
        deep: bool = False,
        current: bool = False,
        inventory: Files = (),
        resume: str | Path | None = None,
    ) -> Verification:
        """Verify that the metadata of the table agree with each other, with the storage, and with the files.

        The call reads the metadata file, the manifest list and all manifests again, and the footers of Puffin files
        with deletion vectors (format v3). One listing shows whether every file that a kept snapshot names is there,
        with its size. The call changes nothing and needs read access only.

        Args:
            deep: Also read all Parquet files: compare their rows with the manifests, and with their own footers, page
                indexes and checksums. In format v3, compare the ids of live rows.
            current: Check only the files of the newest snapshot.
            inventory: Files of an inventory of the storage to use instead of a listing: Parquet or CSV with the columns
                path (or bucket and key), size and time. Files that it lacks are looked up.
            resume: A local file that holds the paths of verified files. Another call with `deep` skips them.

        Returns:
            The findings, each with the rule, the severity, the file and what to do. A table without an error
            `is_valid`. If the storage cannot be listed, a note gives the reason.

        Raises:
            TableNotFound: The table does not exist.
            ArgumentError: The inventory cannot be read, or `resume` is a file of another table.
            TableError: The storage does not respond.
            UnsupportedTable: The format version is not supported.
        """
        from icesize.maintenance.verify.verification import Scope, verify_kept
        from icesize.table.storage.listing import list_files

        lister = _inventory(inventory)
        scope = Scope(lister or list_files, lister is not None, current, deep, Path(resume) if resume else None)
        return verify_kept(self._context, scope)

    def repair(self, *, deep: bool = False, lost_files: int | None = None, dry_run: bool = False) -> RepairReport:
        """Repair what `verify` finds in the newest snapshot, if the cause is certain, one commit for each kind.

        Entries of data files are removed if neither the listing nor a direct look has the files, but has others of the
        same directory. A file that is listed twice is listed once. Dangling delete files are removed. Wrong sizes,
        counts, bounds and totals are corrected. A rollback to the snapshot before a repair takes it back.

        Args:
            deep: Read all Parquet files, to find wrong counts and bounds in their entries.
            lost_files: The exact number of missing data files, as a dry run names it. It confirms that they are lost,
                although a whole directory lacks its files, or more than a tenth of the table's files or rows.
            dry_run: Change nothing; return the report that the call would produce.

        Returns:
            The repairs, the rows of missing files by partition, and the findings that are refused, with the reasons.

        Raises:
            TableError: The table cannot be read.
            CommitConflict: Other writers committed first until the deadline; repairs before that are visible.
            CommitStateUnknown: The outcome of a commit is unknown.
        """
        from icesize.maintenance.verify.repair import repair

        return self._context.alone(repair, deep=deep, lost_files=lost_files, dry_run=dry_run)

    def after_batch(self) -> Report:
        """Merge the files that are due after another writer's batch.

        The merges cover the partitions that changed since icesize last merged.

        Returns:
            The report.

        Raises:
            RewriteFailed: Every merge failed.
            CommitConflict: Other writers committed first until the deadline.
            CommitStateUnknown: The outcome of a commit is unknown.
        """
        return self._context.alone(compaction.merge_changed)

    def plan_after_batch(self) -> Plan:
        """Preview `after_batch`: return its plan."""
        return compaction.plan_changed(self._context)

    def maintain(self, budget_bytes: Size = None, budget_seconds: Duration = None) -> MaintenanceReport:
        """Run one bounded pass of all maintenance.

        The attributes of `MaintenanceReport` are the steps, in their order. Merges begin with cold partitions. The
        table is clustered only if its properties name columns. Snapshots expire by the table's own rules. Orphan files
        are only counted. The next pass continues where this one stopped. A step that fails is in the report, and the
        other steps still run.

        Args:
            budget_bytes: The most bytes that merges and clustering rewrite, as a number or a string such as "20GiB";
                None for no limit.
            budget_seconds: The seconds after which no step begins, as a number or a string such as "25m"; None for no
                limit. No round of merges or clustering begins after 70 % of them.

        Returns:
            The report of each step.

        Raises:
            CommitStateUnknown: The outcome of a commit is unknown; the attribute `report`, if set, has the steps
                before.
            ValueError: A budget is negative or malformed.

        Examples:
            >>> table = icesize.open(None, "lake.db.events")
            >>> report = table.maintain(budget_bytes="20GiB", budget_seconds="25m")
            >>> report.succeeded
            True
        """
        from icesize.maintenance.passes.maintain import STEPS, Pass

        return Pass(self._context, Budget.of(budget_bytes, budget_seconds)).run(STEPS)

    def plan_maintenance(self, budget_bytes: Size = None) -> MaintenancePlan:
        """Preview `maintain`: return the effect of each step on the table in its current state.

        Args:
            budget_bytes: The most bytes that merges and clustering rewrite, as in `maintain`.

        Raises:
            ValueError: The budget is negative or malformed.
        """
        from icesize.maintenance.passes.maintain import plan_pass

        return plan_pass(self._context, Budget.of(budget_bytes).size_bytes)

    def cluster(
        self, by: Columns = None, strategy: str | None = None, where: Where = None, budget_bytes: Size = None
    ) -> Report:
        """Order the rows of each partition by columns, so that queries open few files.

        With Spark, the result is one REPLACE commit. Without Spark, it is committed in rounds of about 1 GiB, so that
        an interrupt keeps the finished rounds. Partitions in order stay unchanged.

        Files that one clustering wrote together are a set. Newer files stay unclustered until they have a fifth of the
        bytes of a set. Then icesize rewrites both together, so that each byte is rewritten few times.

        Args:
            by: The columns. The table's properties store them, so you pass them only once. None uses the stored
                columns.
            strategy: "sort": queries that filter by the first column gain most. "zorder" or "hilbert": queries that
                filter by any of up to four columns gain equally. The table's properties store it; "sort" is also stored
                as Iceberg's sort order. None uses the stored strategy, or "sort".
            where: A filter that selects partitions, as in `inspect`.
            budget_bytes: The most bytes to rewrite, as a number or a string such as "20GiB"; None for no limit.
                Rewrites that save queries the most files per byte come first.

        Returns:
            The report.

        Raises:
            TableError: A column cannot be used for clustering, or neither `by` nor the table names columns.
            PolicyError: A strategy or a property has an invalid value.
            RewriteFailed: The rewrite of every partition failed.
            CommitConflict: Other writers committed first until the deadline.
            CommitStateUnknown: The outcome of a commit is unknown; the attribute `report` has the rounds committed
                before.
            ValueError: The budget is negative or malformed.
        """
        from icesize.maintenance.jobs import clustering

        request = clustering.ClusterRequest.of(by, strategy, where, Budget.of(budget_bytes))
        return self._context.alone(clustering.cluster, request)

    def plan_clustering(
        self, by: Columns = None, strategy: str | None = None, where: Where = None, budget_bytes: Size = None
    ) -> Plan | None:
        """Preview `cluster`: return its plan, or None if neither `by` nor the table names columns.

        Args:
            by: The columns, as in `cluster`.
            strategy: The order, as in `cluster`.
            where: A filter that selects partitions, as in `inspect`.
            budget_bytes: The most bytes to rewrite, as in `compact`.

        Raises:
            TableError: A column cannot be used for clustering.
            PolicyError: A strategy or a property has an invalid value.
        """
        from icesize.maintenance.jobs import clustering

        return clustering.plan_clustering(
            self._context, clustering.ClusterRequest.of(by, strategy, where, Budget.of(budget_bytes))
        )

    def forget_clustering(self, *, dry_run: bool = False) -> ForgottenClusterBy:
        """Remove the clustering settings that `cluster` stored in the table.

        These settings are the columns and the strategy in its properties, and the sort order if a sort set it. Files do
        not change, and icesize no longer clusters the table.

        Args:
            dry_run: Change nothing; return the settings that the call would remove.

        Returns:
            The removed settings.

        Raises:
            TableError: The table stores no clustering columns.
            CommitConflict: Other writers committed first until the deadline; nothing changed.
            CommitStateUnknown: The outcome of the commit is unknown.
        """
        from icesize.table.cluster_settings import forget_cluster_by

        return self._change(forget_cluster_by(self._environment.new_id()), dry_run)

    def append(
        self,
        df: DataFrame,
        stream_id: str | None = None,
        batch_id: int | None = None,
        *,
        allow_duplicate_keys: bool = False,
    ) -> Report:
        """Append a DataFrame in few, well-sized files, and merge the files that become due, in one commit.

        Args:
            df: The rows. Columns match by name.
            stream_id: The name of a stream in the ledger. With `stream_id` and `batch_id`, repeated calls append the
                rows once. Without both, each call appends them.
            batch_id: The number of the batch in the stream, from 0 on.
            allow_duplicate_keys: Whether rows are appended to a table with a key, as in `sink`.

        Returns:
            The report of the commit.

        Raises:
            ValueError: Only one of `stream_id` and `batch_id` is given.
            EngineUnavailable: The table was opened without a session.
            TableError: The table has a key, and `allow_duplicate_keys` is False.
            BatchError: The batch must not be committed, for example because its columns do not fit the table.
            CommitConflict: Other writers committed first until the deadline.
            CommitStateUnknown: The outcome of the commit is unknown. Without `stream_id` and `batch_id`, check
                `history` first: a repeated call may add the rows twice.
        """
        entry = _entry("append", stream_id, batch_id)
        _, source = self._in_spark("append")
        from icesize.spark.stream.options import SinkOptions

        options = SinkOptions(allow_duplicate_keys=allow_duplicate_keys, environment=self._environment)
        return self._once(df, source, options, entry)

    def upsert(
        self,
        rows: DataFrame | pa.Table,
        key: ColumnNames = None,
        order_by: ColumnNames = None,
        delete_when: str | None = None,
        *,
        except_columns: ColumnNames = None,
        ties: str | None = None,
        null_key: str = "error",
        tombstones: float | str | None = None,
        stream_id: str | None = None,
        batch_id: int | None = None,
    ) -> Report:
        """Upsert rows: each replaces the row of its key, or deletes it, or is new; all in one commit.

        The first call stores key, order, ties and the condition for deletes in the table, for all writers. Later calls
        may leave them out.

        Args:
            rows: A DataFrame, or an Arrow table, which needs no session. Columns match by name.
            key: The columns that identify a row, as in `sink`, like the next six arguments.
            order_by: The columns by which a later row is recognized.
            delete_when: The condition that makes a row a delete.
            except_columns: Columns that are not written.
            ties: What to do with different rows of one key and order.
            null_key: What to do with rows whose key has a NULL.
            tombstones: How long to remember deletes.
            stream_id: The name of a stream in the ledger, as in `append`.
            batch_id: The number of the batch in the stream, as in `append`.

        Returns:
            The report of the commit, with `upsert`.

        Raises:
            ValueError: An argument has none of the values above, or only one of `stream_id` and `batch_id` is given.
            EngineUnavailable: `rows` is a DataFrame, and the table was opened without a session.
            TableError: An argument differs from what the table stores, or names no column.
            UnsupportedTable: The table has format version 1, or a column whose type cannot be a key.
            ArgumentError: The condition for deletes cannot be read.
            BatchError: The rows must not be committed, for example because two of them have one key and no order.
            CommitConflict: Other writers committed first until the deadline.
            CommitStateUnknown: The outcome of the commit is unknown.

        Examples:
            >>> table = icesize.open(None, "lake.db.accounts")
            >>> changes = pa.table({"id": [1, 2], "balance": [70, None], "op": ["u", "d"]})
            >>> report = table.upsert(changes, key="id", delete_when="op = 'd'", except_columns="op")
            >>> report.upsert["updated"], report.upsert["deleted"]
            (1, 1)
        """
        entry = _entry("upsert", stream_id, batch_id)
        import pyarrow as pa

        from icesize.table.upserts.settings import UpsertOptions

        wanted = UpsertOptions(key, order_by, delete_when, ties, tombstones, except_columns, null_key, lookup="scan")
        if isinstance(rows, pa.Table):
            return self._upsert_here(rows, wanted, entry)
        _, source = self._in_spark("upsert a DataFrame")
        from icesize.spark.stream.options import SinkOptions

        options = SinkOptions(upsert=wanted, environment=self._environment)
        return self._once(rows, source, options, entry)

    def _upsert_here(self, rows: pa.Table, wanted: UpsertOptions, entry: ledger.LedgerEntry | None) -> Report:
        """Upsert an Arrow table in this process."""
        from icesize.table.commit.batch_commit import Batch
        from icesize.table.commit.batch_life import exactly_once
        from icesize.table.upserts.arrow_events import EventsOfRows
        from icesize.table.upserts.batch import Upserts

        environment, events = self._environment, EventsOfRows(rows, wanted.unwritten)
        upserts = Upserts(wanted, events.fetch, skip_null_keys=wanted.null_key == "skip")
        outcome = exactly_once(Batch(self._handle, environment, Stopwatch(environment), entry), upserts)
        environment.notify(JobFinished(self.name, outcome.report))
        return self._context.refresh(outcome.report) if outcome.commit.snapshot_ids else outcome.report

    def _once(
        self, df: DataFrame, source: TableSource, options: SinkOptions, entry: ledger.LedgerEntry | None
    ) -> Report:
        """Commit a DataFrame, as a batch of a stream if it has a name."""
        from icesize.spark.stream.batch import commit_batch
        from icesize.spark.stream.process_state import table_state
        from icesize.spark.stream.sink import Sink

        if entry is not None:
            return Sink(source, entry.stream_id, replace(options, query_id=entry.query_id)).run(df, entry.batch_id)
        report = commit_batch(df, source, options, None, table_state(source)).report
        self._environment.notify(JobFinished(self.name, report))
        return report

    def sink(
        self,
        stream_id: str,
        *,
        mode: str = "append",
        key: ColumnNames = None,
        order_by: ColumnNames = None,
        delete_when: str | None = None,
        except_columns: ColumnNames = None,
        ties: str | None = None,
        null_key: str = "error",
        tombstones: float | str | None = None,
        lookup: str = "auto",
        index_bytes: Size = None,
        index_dir: str | None = None,
        placement: str = "append",
        stream_safe: bool = True,
        merge: str = "inline",
        statistics: str = "auto",
        write_tasks: int | None = None,
        schema_evolution: str = "refuse",
        accept_new_checkpoint: bool = False,
        expire_every: int | None = None,
        query_id: str | None = None,
        listener: Callable[[Report], object] | None = None,
        cluster: str = "off",
        allow_duplicate_keys: bool = False,
    ) -> Sink:
        """Return the function for `foreachBatch` that commits each micro-batch exactly once.

        Args:
            stream_id: The name of the stream in this table. It identifies batches that Spark delivers again.
            mode: "append" adds all rows. "upsert" replaces or deletes the row of each key; Spark cannot read such a
                table as a stream.

        Args: Upserts, with `mode="upsert"`
            key: The columns that identify a row; None for the key that the table stores, or for its identifier fields.
            order_by: The columns by which a later row of a key is recognized. Without them, a later batch replaces the
                rows of earlier ones. Two streams into one table need them.
            delete_when: The condition that makes a row a delete: comparisons of columns with literals, such as
                "op = 'd'", joined by `and`, `or` and `not`, or the name of a column of booleans. NULL is no delete.
            except_columns: Columns that are not written, such as `op`.
            ties: What to do with different rows of one key that have the same order. "error": the batch fails.
                "last_delete": a delete wins. "max_row": a delete wins, or else the greatest row.
            null_key: What to do with a NULL in a key. "error": the batch fails. "skip": the row is left out.
            tombstones: How long to remember deletes, such as "2 days" or a number of seconds, so that an older event
                that arrives later does not bring the row back. The table stores this time, and it needs `order_by`.
                None: the stored time, or deletes are not remembered.
            lookup: How to find the rows of a key. "auto": by maps of keys on the local disk; icesize reads the key
                columns of files that have no map yet. "scan": by reading key columns in each batch.
            index_bytes: The most bytes of maps on disk, as a number or a string such as "20GiB"; None for a quarter of
                the free disk.
            index_dir: A local directory for maps that is kept between runs; None for a temporary one of Spark.

        Args: Writes
            placement: "append" writes new rows into few new files and merges older small files. "absorb" writes new
                rows together with the partition's small file.
            stream_safe: False (only with "absorb") writes rows once, in `overwrite` snapshots, at which stream readers
                stop.
            statistics: How to determine the rows per partition before the write. "exact": count them in one more pass
                over the partition columns. "recent": predict them from recent batches, at first from the table's
                history. "auto": count them only if the batch is cheap to read again, and only until predictions are as
                good.
            write_tasks: The number of Spark tasks that write a batch; None derives it from the bytes of the batch and
                the cores.
            schema_evolution: What to do with columns that the table lacks. "refuse": the batch fails. "add": icesize
                adds them to the table.
            allow_duplicate_keys: True appends rows to a table with a key, and does not look for older rows of their
                keys.

        Args: Maintenance
            merge: When to merge small files. "inline": in the commit of the batch. "async": beside the batches, in
                separate commits. "off": never in the sink.
            cluster: When to cluster by the table's `icesize.cluster.by`, in separate commits. "inline": after the
                batch, limited to the bytes that its merges may rewrite. Unless `merge-budget-bytes` is set, that limit
                is at least four files of the target size. "async": beside the batches. "off": never in the sink.
            expire_every: Expire snapshots by the table's own rules each time this number of batch ids has passed; None
                never expires. Ids count, not calls: a query that restarts for each batch also expires snapshots.

        Args: The query
            accept_new_checkpoint: True accepts batches of another query under the same `stream_id`, and batches after
                others that were thrown away with their branch.
            query_id: The id of the query, if Spark does not provide it. Spark Connect needs it: a text that changes
                with the checkpoint. None uses Spark's id, or the `stream_id` outside of a query.
            listener: Called with the report of each batch. It is also called with the report of each commit in the
                background, from another thread and with `batch_id` None.

        Returns:
            The sink. Pass it to Spark's `foreachBatch`, or call it with a DataFrame and a batch id.

        Raises:
            EngineUnavailable: The table was opened without a session. Or, on Spark Connect, it was opened with a
                catalog object that holds credentials: icesize never sends credentials to a server.
            BatchError: The session is one of Spark Connect, and `query_id` is None.
            ValueError: An argument has none of the values above, or cannot be combined with another.

        Examples:
            >>> table = icesize.open(spark, "lake.db.orders")
            >>> sink = table.sink("orders", mode="upsert", key="id", order_by="changed_at", delete_when="op = 'd'")
            >>> writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
            >>> query = writer.trigger(processingTime="30 seconds").start()
        """
        spark, source = self._in_spark("sink")
        from icesize.spark.stream.options import SinkOptions
        from icesize.spark.stream.process_state import for_its_server
        from icesize.spark.stream.sink import Sink
        from icesize.table.upserts.settings import options_of_mode

        upsert = options_of_mode(
            mode, key=key, order_by=order_by, delete_when=delete_when, except_columns=except_columns, ties=ties,
            null_key=null_key, tombstones=tombstones, lookup=lookup, index_bytes=index_bytes, index_dir=index_dir,
        )  # fmt: skip
        options = SinkOptions(
            upsert=upsert,
            allow_duplicate_keys=allow_duplicate_keys, placement=placement, stream_safe=stream_safe,
            merge=merge, statistics=statistics, write_tasks=write_tasks, schema_evolution=schema_evolution,
            accept_new_checkpoint=accept_new_checkpoint, expire_every=expire_every, query_id=query_id,
            listener=listener, cluster=cluster, environment=self._environment,
        )  # fmt: skip
        sink = Sink(for_its_server(spark, source), stream_id, options)
        sink.query_id_in(spark)
        return sink

    def streams(self) -> list[ledger.LedgerEntry]:
        """Return the streams that have committed to the table, each with its newest batch."""
        return ledger.entries(self._handle.load().table.metadata.properties)

    def forget_stream(self, stream_id: str, *, dry_run: bool = False) -> ledger.LedgerEntry:
        """Remove a stream from the ledger, so that its next batch is accepted from any query, with any id.

        Args:
            stream_id: The name of the stream.
            dry_run: Change nothing; return the entry that the call would remove.

        Returns:
            The removed entry.

        Raises:
            TableError: The ledger has no such stream.
            CommitConflict: Other writers committed first until the deadline; nothing changed.
            CommitStateUnknown: The outcome of the commit is unknown.
        """
        from icesize.table.commit.metadata_change import forget_stream

        return self._change(forget_stream(self.name, stream_id, self._environment.new_id()), dry_run)

    def versions(self, partition: Partition | None = None) -> list[Version]:
        """Return the versions of a partition that the table still keeps, newest first.

        One icesize commit is one version, with the id of its last snapshot.

        Args:
            partition: A mapping of partition fields to values, or a label as `inspect` prints it; None for every
                partition.

        Raises:
            TableError: The partition never had files.
        """
        current = self._handle.load(self._environment)
        found = self._versions(current)
        if partition is None:
            return found
        key = find_partition(current.table.metadata, {v.key for v in found}, partition)
        return [v for v in found if v.key == key]

    def history(self, limit: int | None = None) -> History:
        """Return the commits of `main` that the table still keeps, newest first.

        The values are read from snapshot summaries. The list contains batches, merges and commits of other writers.

        Args:
            limit: The number of newest commits to list; None for all.

        Raises:
            ValueError: The limit is below 1.
        """
        from icesize.table.past.commits import history_of

        current = self._handle.load(self._environment)
        return history_of(current.table.metadata, current.name, limit)

    def report(self, since: int | str | None = None) -> Overview:
        """Return a page about the whole table, with charts.

        The page shows:

        - files by size, now and after `compact`; with `since`, at that snapshot and now
        - small files and delete files of the partitions, at up to 48 commits
        - write amplification and seconds of the batches
        - the plan, and advice with commands to copy

        Save it with `.write("report.html")` or `.write("report.png")`, or call `.to_html()`. Drawing needs matplotlib
        (the extra `report`); this call does not.

        Args:
            since: The id of the snapshot to compare with; None compares with the result of `compact`.

        Raises:
            TableError: The table does not have the snapshot.
        """
        from icesize.presentation.gather import gather

        return gather(self._context, since)

    def read_version(
        self, partition: Partition, snapshot_id: int | str | None = None, *, as_of: datetime | int | None = None
    ) -> DataFrame:
        """Read the rows of a partition at a snapshot or a time, with the table's current columns.

        Args:
            partition: A mapping of partition fields to values, or a label as `inspect` prints it.
            snapshot_id: The snapshot. Give either `snapshot_id` or `as_of`.
            as_of: A datetime (without a zone: UTC), or milliseconds since 1970.

        Returns:
            A Spark DataFrame.

        Raises:
            EngineUnavailable: The table was opened without a session.
            TableError: The table does not have the snapshot, or the partition never had files.
            UnsupportedTable: Deletes are pending in that version.
            ValueError: Both or neither of `snapshot_id` and `as_of` are given.
        """
        spark, _ = self._in_spark("read a version")
        from icesize.spark.engine.read_version import read_version

        current = self._handle.load(self._environment)
        version = _version("read", current, snapshot_id, as_of)
        return read_version(spark, current, self._key(current, partition), version.snapshot_id)

    def restore(
        self,
        partition: Partition,
        snapshot_id: int | str | None = None,
        *,
        as_of: datetime | int | None = None,
        dry_run: bool = False,
    ) -> Report:
        """Restore a partition to a snapshot or a time, in one `overwrite` commit.

        Files that the partition no longer has are copied byte for byte to new names, in threads of this process. Stream
        readers of the table stop at an overwrite. The ledger is not rolled back: the report names the streams whose
        later rows are gone from the partition.

        Args:
            partition: The partition, as in `read_version`.
            snapshot_id: The snapshot, as in `read_version`.
            as_of: The time, as in `read_version`.
            dry_run: Change nothing; return the report that the call would produce.

        Returns:
            The report, with the rows of the partition before and after.

        Raises:
            TableError: The version is no longer available: its snapshot or one of its files is gone, or its deletes
                cannot be applied.
            UnsupportedTable: The partition spec has changed since.
            RewriteFailed: A file could not be copied or rewritten.
            CommitConflict: Another writer changed the partition during the restore; nothing changed.
            CommitStateUnknown: The outcome of the commit is unknown.
            ValueError: Both or neither of `snapshot_id` and `as_of` are given.

        Examples:
            >>> table = icesize.open(None, "lake.db.events")
            >>> newest, earlier, *_ = table.versions({"hour": "h07"})
            >>> report = table.restore({"hour": "h07"}, earlier.snapshot_id)
            >>> report.operations
            ('overwrite',)
        """
        from icesize.maintenance.jobs.restore import restore

        def job(context: TableContext, *, dry_run: bool) -> Report:
            current = context.load()
            version = _version("restore", current, snapshot_id, as_of)
            return restore(context, current, self._key(current, partition), version.snapshot_id, dry_run=dry_run)

        return self._context.alone(job, dry_run=dry_run)

    def expire_snapshots(
        self,
        keep_versions: int | None = None,
        older_than: datetime | timedelta | None = None,
        retain_last: int | None = None,
        dry_run: bool = False,
        *,
        readers: Sequence[str] = (),
        force: bool = False,
        max_concurrent_deletes: int = IO_THREADS,
    ) -> ExpiryReport:
        """Remove the snapshots that no rule keeps, and the files that only they need.

        Without arguments, the table's own rules apply: `history.expire.*` and the policy key `keep-versions`. A
        snapshot stays if any rule keeps it. Branches, tags and the newest append (the position of stream readers)
        always stay.

        Args:
            keep_versions: The number of newest versions of each partition to keep, in addition to young snapshots. None
                uses the table's number, unless `older_than` or `retain_last` is given.
            older_than: A point in time (without a zone: UTC) or an age. Only older snapshots expire. None uses the
                table's `history.expire.max-snapshot-age-ms`. Only `older_than` can expire younger snapshots.
            retain_last: The number of newest snapshots of each branch to keep. None uses the table's
                `history.expire.min-snapshots-to-keep`.
            dry_run: Change nothing; return the report that the call would produce.
            readers: Checkpoint directories of streaming queries that read this table. Snapshots that they have not read
                stay.
            force: Expire even if the position of a reader cannot be kept.
            max_concurrent_deletes: The number of delete requests to storage that run at the same time.

        Returns:
            The expired snapshots, the rules that keep the others, and the deleted files.

        Raises:
            UnsupportedTable: `gc.enabled` is false.
            PolicyError: A rule has an invalid value.
            TableError: A reader's position cannot be kept, or another name in the catalog has the same UUID or place.
            CommitConflict: Other writers committed first until the deadline; nothing expired.
            CommitStateUnknown: The outcome of the commit is unknown; no file was deleted.
        """
        from icesize.table.cleanup.expiry import expire
        from icesize.table.cleanup.retention_inputs import ExpireOptions

        options = ExpireOptions(keep_versions, older_than, retain_last, tuple(readers), force)

        def job(context: TableContext, *, dry_run: bool) -> ExpiryReport:
            report = expire(
                self._handle, options, self._environment,
                dry_run=dry_run, max_concurrent_deletes=max_concurrent_deletes,
            )  # fmt: skip
            return context.refresh(report)

        return self._context.alone(job, dry_run=dry_run)

    def remove_orphan_files(
        self,
        older_than: timedelta | None = None,
        dry_run: bool = True,
        *,
        trust_location: bool = False,
        inventory: Files = (),
        max_concurrent_deletes: int = IO_THREADS,
    ) -> OrphanReport:
        """Find the files below the table's location that no metadata refers to, and delete them if `dry_run` is False.

        Younger files stay, because a running batch may need them. Files that other tables of the catalog refer to also
        stay. If one of these tables cannot be read, only files with icesize's own names count as orphans.

        Args:
            older_than: The minimum age of an orphan file, at least 24 hours; None is Iceberg's default of three days.
                Leftover files of batches that are committed are orphans after 24 hours, even if `older_than` is longer.
            dry_run: Find the files and delete none.
            trust_location: True asserts that no other table has files in this location; icesize then loads no other
                table.
            inventory: Files of an inventory of the storage to use instead of a listing: Parquet or CSV with the columns
                path (or bucket and key), size and time. Ages count from its newest file.
            max_concurrent_deletes: The number of deletes at the same time, as in `expire_snapshots`.

        Returns:
            The files found and deleted.

        Raises:
            ArgumentError: The inventory cannot be read.
            TableError: Another name in the catalog has the same UUID or location, or the listing fails.
            UnsupportedTable: `gc.enabled` is false.
            PolicyError: `older_than` is below 24 hours.
        """
        from icesize.table.cleanup.orphans import ORPHANS_OLDER_THAN_MS, OrphanSearch

        older_than_ms = ORPHANS_OLDER_THAN_MS if older_than is None else older_than // timedelta(milliseconds=1)

        def job(context: TableContext, *, dry_run: bool) -> OrphanReport:
            search = OrphanSearch(
                self.name, lambda: self._handle.load().table, self._environment,
                max_concurrent_deletes=max_concurrent_deletes, inventory=_inventory(inventory),
            )  # fmt: skip
            return search.run(older_than_ms, dry_run, trust_location=trust_location)

        return self._context.alone(job, dry_run=dry_run)

    def rewrite_deletes(self, *, dry_run: bool = False) -> DeletesReport:
        """Rewrite the deletes of a data file into one position delete file.

        This happens if more than `max-delete-files` apply to the data file, and rewriting the data file would cost
        more. The new file replaces position deletes and equality deletes. To convert equality deletes, icesize reads
        the key columns of the data file.

        Args:
            dry_run: Change nothing; return a report that only counts the data files.

        Returns:
            The report. Its notes list partitions whose delete files cannot be read.

        Raises:
            CommitConflict: Other writers committed first until the deadline; nothing changed.
            CommitStateUnknown: The outcome of a commit is unknown; the attribute `report` has the rounds committed
                before.
        """
        from icesize.maintenance.jobs.rewrite_deletes import rewrite_deletes

        return self._context.alone(rewrite_deletes, dry_run=dry_run)

    def remove_dangling_deletes(self, *, dry_run: bool = False) -> DanglingReport:
        """Remove delete files that apply to no live data file, in one REPLACE commit; data files do not change.

        Args:
            dry_run: Change nothing; return the report that the call would produce.

        Raises:
            CommitConflict: Other writers committed first until the deadline; nothing changed.
            CommitStateUnknown: The outcome of the commit is unknown.
        """
        from icesize.maintenance.jobs.dangling_deletes import remove_dangling_deletes

        return self._context.alone(remove_dangling_deletes, dry_run=dry_run)

    def rewrite_manifests(self, *, dry_run: bool = False) -> ManifestReport:
        """Merge small manifests, in one REPLACE commit; data files and delete files do not change.

        Args:
            dry_run: Change nothing; return the report that the call would produce.

        Raises:
            CommitConflict: Other writers committed first until the deadline; nothing changed.
            CommitStateUnknown: The outcome of the commit is unknown.
        """
        from icesize.maintenance.jobs.rewrite_manifests import rewrite_manifests

        return self._context.alone(rewrite_manifests, dry_run=dry_run)

    def deduplicate(self, key: ColumnNames = None, order_by: ColumnNames = None, *, dry_run: bool = False) -> KeyReport:
        """Delete all rows of each key but the newest, by position, in one commit.

        Do this before the first upsert into a table whose keys are not unique, or after another writer has added rows
        of known keys. Rows that are deleted already do not count, whatever kind of delete file deletes them.

        Args:
            key: The columns that identify a row; None for the key that the table stores, or for its identifier fields.
            order_by: The columns by which the newest row of a key is recognized; NULL is the oldest. None for the
                stored order; without one, the row of the newest commit stays.
            dry_run: Change nothing; return the report that the call would produce.

        Returns:
            The report, with the numbers of keys and rows.

        Raises:
            TableError: A column does not exist, or no key is known.
            UnsupportedTable: The table has format version 1, or a file that icesize cannot read.
            RewriteFailed: A file is damaged.
            CommitConflict: Other writers committed first until the deadline; nothing changed.
            CommitStateUnknown: The outcome of the commit is unknown.
        """
        from icesize.maintenance.jobs.keys import deduplicate
        from icesize.table.upserts.settings import WantedRule

        return self._context.alone(deduplicate, WantedRule(key, order_by), dry_run=dry_run)

    def rekey(
        self,
        key: ColumnNames = None,
        order_by: ColumnNames = None,
        delete_when: str | None = None,
        ties: str | None = None,
        tombstones: float | str | None = None,
        *,
        dry_run: bool = False,
    ) -> KeyReport:
        """Change the key of the table, or the other parts of the rule that all writers follow; files do not change.

        If the key changes, icesize reads the key columns of all files and checks that each key has one row. Streams
        that name the earlier rule stop at their next batch. Remembered deletes (`tombstones`) stay if the key has the
        same columns, and the order only gains or loses columns at its end. Otherwise they are forgotten, with a note.

        Args:
            key: The columns that identify a row; None keeps the stored key.
            order_by: The columns by which a later row is recognized; None keeps the stored ones, `()` removes them.
            delete_when: The condition that makes a row a delete; None keeps the stored one, `""` removes it.
            ties: What to do with different rows of one key and order; None keeps the stored answer.
            tombstones: How long to remember deletes, in seconds or as `"2 days"`; None keeps the stored time.
            dry_run: Change nothing; return the report that the call would produce.

        Returns:
            The report, with what changed.

        Raises:
            TableError: Several rows have one key, or a column does not exist.
            UnsupportedTable: A column has a type that cannot be a key, or icesize cannot read a file.
            RewriteFailed: A file is damaged.
            CommitConflict: Other writers committed first until the deadline; nothing changed.
            CommitStateUnknown: The outcome of the commit is unknown.
            ValueError: `ties` has none of its values, or `tombstones` is no time.
        """
        from icesize.maintenance.jobs.keys import rekey
        from icesize.table.upserts.settings import WantedRule

        return self._context.alone(rekey, WantedRule(key, order_by, delete_when, ties, tombstones), dry_run=dry_run)

    def _versions(self, current: Current) -> list[Version]:
        from icesize.table.past.versions import versions

        with readable(current.name):
            return versions(current.table.metadata, current.table.io, self._handle.store)

    def _key(self, current: Current, partition: Partition) -> PartitionKey:
        return find_partition(current.table.metadata, {v.key for v in self._versions(current)}, partition)

    def _change(self, change: MetadataChange[Answer], dry_run: bool) -> Answer:
        with self._context.lock:
            current = self._handle.load()
            if dry_run:
                return change.build(batch_commit.state_of(self._handle, current))[1]
            return batch_commit.change(self._handle, current, change, self._environment)

    def _in_spark(self, what: str) -> tuple[SparkSession, TableSource]:
        if self._spark is None or self._source is None:
            raise EngineUnavailable(f"Cannot {what}: it needs Spark; open the table with a session")
        return self._spark, self._source


def _handle_without_spark(name: str, catalog: Catalog | None, policy: PolicyArgument, branch: str) -> TableHandle:
    if catalog is not None:
        identifier = opening.namespace_and_table(catalog, name)
        return TableHandle(opening.with_timeout(catalog), identifier, policy, branch=branch)
    catalog_name, identifier = opening.split_name(name)
    return TableHandle(opening.open_catalog(catalog_name), identifier, policy, branch=branch)


def _inventory(files: Files) -> Inventory | None:
    from icesize.table.storage.inventory import Inventory

    paths = (files,) if isinstance(files, (str, Path)) else files
    return Inventory(tuple(map(str, paths))) if paths else None


def _entry(what: str, stream_id: str | None, batch_id: int | None) -> ledger.LedgerEntry | None:
    """Return the entry of a batch that its caller names; None for one without a name, which each call commits."""
    if (stream_id is None) != (batch_id is None):
        raise ValueError(f"Cannot {what}: 'stream_id' and 'batch_id' are given together or not at all")
    if stream_id is None or batch_id is None:
        return None
    ledger.check_names(stream_id, batch_id)
    return ledger.LedgerEntry(stream_id, stream_id, batch_id)


def _version(what: str, current: Current, snapshot_id: int | str | None, as_of: datetime | int | None) -> Snapshot:
    """Return the snapshot that `snapshot_id` or `as_of` names."""
    if (snapshot_id is None) == (as_of is None):
        raise ValueError(f"Cannot {what} a version: give either 'snapshot_id' or 'as_of'")
    metadata = current.table.metadata
    return known_snapshot(metadata, snapshot_as_of(metadata, as_of) if as_of is not None else snapshot_id or 0)
