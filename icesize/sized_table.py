"""The facade: one table, and everything that can be done to its files. Wires the rooms, decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from icesize.environment import MAX_CONCURRENT_DELETES, ORPHANS_OLDER_THAN_MS, Environment, WorkLimits
from icesize.errors import EngineUnavailable, TableError
from icesize.maintenance import compaction
from icesize.maintenance.rounds import Budget
from icesize.maintenance.table_context import InThisProcess, TableContext
from icesize.planning.advice.merging import advise
from icesize.planning.files import PartitionKey
from icesize.planning.merging.planner import plan_merges
from icesize.planning.merging.simulation import MOST_BATCHES, compare
from icesize.planning.scan_cost import PRICE_PER_1000_REQUESTS
from icesize.policy import SizePolicy
from icesize.report import Report
from icesize.results import Advice
from icesize.table.catalog import opening
from icesize.table.catalog.access_errors import readable
from icesize.table.catalog.locations import is_object_store
from icesize.table.commit import submit
from icesize.table.records import ledger
from icesize.table.state.handle import Current, PolicyArgument, TableHandle
from icesize.table.state.naming import Labels, find_partition, known_snapshot, snapshot_as_of
from icesize.table.state.partition_changes import (
    arrivals_of,
    bytes_per_partition_and_day,
    recent_appends,
)

# what one call needs is imported by it: importing everything takes as long as compacting a small table
if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import DataFrame, SparkSession

    from icesize.maintenance.checkup import Check
    from icesize.maintenance.clustering import Columns
    from icesize.maintenance.dangling_deletes import DanglingReport
    from icesize.maintenance.full_pass import MaintenancePlan, MaintenanceReport
    from icesize.maintenance.rewrite_deletes import DeletesReport
    from icesize.maintenance.rewrite_manifests import ManifestReport
    from icesize.maintenance.table_context import Advance, ClusterWork, Selection
    from icesize.parquet.files.data_file import Results
    from icesize.parquet.files.settings import WriteSettings
    from icesize.parquet.files.uncommitted import Uncommitted
    from icesize.planning.filters import FilterUse
    from icesize.planning.inspection import Inspection
    from icesize.planning.merging.simulation import PolicyComparison
    from icesize.planning.plan import MergeTask, Plan
    from icesize.presentation.overview import Overview
    from icesize.spark.stream.process_state import TableSource
    from icesize.spark.stream.sink import Sink
    from icesize.table.cleanup.expiry import ExpiryReport
    from icesize.table.cleanup.orphans import OrphanReport
    from icesize.table.commit.cluster_settings import ForgottenClusterBy
    from icesize.table.commit.metadata_change import MetadataChange
    from icesize.table.past.commits import History
    from icesize.table.past.versions import Version
    from icesize.table.state.where import Where

Partition = Mapping[str, Any] | str
"""Partition field -> value: `{"hour": "h191"}`, `{}` for an unpartitioned table; or a label as `inspect` prints it.

A value is typed (None is NULL), or text: in a field of texts the value itself, in others as `inspect` prints it. In a
label `p=null` is NULL, `p="null"` the text.
"""
Size = int | str | None
"""A number of bytes, or text such as "20GiB"; None is no bound."""
Duration = float | str | None
"""Seconds, or text such as "25m"; None is no bound."""
Outcome = TypeVar("Outcome")


def open(
    spark: SparkSession | None,
    name: str,
    *,
    catalog: Catalog | None = None,
    policy: PolicyArgument = None,
    environment: Environment | None = None,
) -> SizedTable:
    """A table whose files are to be kept well sized.

    `name` is `catalog.namespace.table`; the catalog comes from the session's `spark.sql.catalog.<catalog>.*`, from
    PyIceberg's configuration, or is the PyIceberg `catalog` object given (then `namespace.table` will do). Without
    Spark (`None`) nothing can be appended or read, and files are rewritten in this process. `policy` is a
    SizePolicy or a mapping of its keys; it wins over the table's own properties, key by key.

    Raises TableNotFound, UnsupportedTable or PolicyError.
    """
    return SizedTable(spark, name, catalog, policy, environment or Environment())


class SizedTable:
    """One Iceberg table. Every call loads it anew, so schema, properties and credentials are those of the moment.

    Any thread may call it. Calls that change files wait for each other, those that only look do not.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        name: str,
        catalog: Catalog | None,
        policy: PolicyArgument,
        environment: Environment,
    ) -> None:
        if spark is None:
            self._source: TableSource | None = None
            self._handle = _handle_without_spark(name, catalog, policy)
            # wrong names and settings are told here, not by the first call
            self._handle.load()
        else:
            from icesize.spark.stream import process_state

            token = process_state.remember_catalog(catalog) if catalog is not None else None
            source = process_state.identified(spark, process_state.TableSource(name, policy, token))
            # kept, as states that nothing refers to may be forgotten
            self._state = process_state.state_of(source, None)
            self._handle = self._state.open(spark, source)
            self._source = source
        self._spark = spark
        self._environment = environment
        limits = environment.limits
        engine = InThisProcess(limits.bytes_without_spark) if spark is None else _InSpark(spark, limits)
        self._context = TableContext(self._handle, environment, engine)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def name(self) -> str:
        """`catalog.namespace.table`."""
        return self._handle.name

    @property
    def policy(self) -> SizePolicy:
        """The policy that holds now: argument over table properties over Iceberg's properties over defaults."""
        return self._handle.load(self._environment).policy

    def inspect(
        self,
        where: Where = None,
        *,
        filters: Sequence[str] = (),
        price_per_1000_requests: float | None = None,
    ) -> Inspection:
        """How well sized the files are, and what they cost each scan; `where` limits it to partitions that match as a
        whole.

        `filters` are those of queries, each as often as it is asked: how many files each opens, which needs the bounds
        of all of them, and by which columns to cluster; without them what bounds alone tell of that, of up to 10,000
        files. `price_per_1000_requests` is what the object store charges for 1,000 GET requests, in USD. The default is
        the price of Amazon S3; a table on local disks or HDFS has none.
        """
        selection = self._context.select(where)
        if not filters:
            return self._inspected(selection, price_per_1000_requests)
        uses, recommended = self._filters_asked(selection, filters, where)
        return replace(self._inspected(selection, price_per_1000_requests, recommended), filters=uses)

    def _filters_asked(
        self, selection: Selection, filters: Sequence[str], where: Where
    ) -> tuple[tuple[FilterUse, ...], tuple[Advice, ...]]:
        """The files that each filter opens, and by which columns to cluster for them."""
        from icesize.maintenance.clustering import ClusterRequest, plan_clustering
        from icesize.planning.cluster_by import HILBERT, SORT
        from icesize.planning.filters import columns_to_cluster, recommend
        from icesize.table.state.filter_scan import filters_asked, partition_columns

        table, layout = selection.current.table, selection.layout
        uses = filters_asked(table.metadata, table.io, filters, layout.partitions.keys(), self._handle.store)
        columns = columns_to_cluster(uses, partition_columns(table.metadata))
        if not columns:
            return uses, ()
        try:
            plan = plan_clustering(self._context, ClusterRequest(columns, HILBERT if len(columns) > 1 else SORT, where))
        except TableError as error:
            return uses, (Advice(str(error)),)
        return uses, recommend(selection.current.name, layout.files, uses, columns, plan) if plan else ()

    def _inspected(
        self,
        selection: Selection,
        price_per_1000_requests: float | None = None,
        recommended: tuple[Advice, ...] | None = None,
    ) -> Inspection:
        """The inspection; by which columns to cluster is worked out where it is not `recommended`."""
        from icesize.planning.inspection import inspect as inspect_layout
        from icesize.table.state.column_advice import columns_advised

        if recommended is None:
            recommended = columns_advised(selection.current, selection.layout, selection.filter.may_hold)
        metadata = selection.current.table.metadata
        labels = Labels(metadata)
        if price_per_1000_requests is None and is_object_store(metadata.location):
            price_per_1000_requests = PRICE_PER_1000_REQUESTS
        return inspect_layout(
            selection.layout,
            selection.current.policy,
            {key: labels.values(key) for key in selection.layout.partitions},
            plan_merges(selection.layout, selection.current.policy),
            table=selection.current.name,
            bytes_per_partition_and_day=bytes_per_partition_and_day(metadata),
            notes=(*selection.current.warnings, *selection.notes),
            price_per_1000_requests=price_per_1000_requests,
            recommended=(*advise(arrivals_of(metadata), selection.current.policy), *recommended),
        )

    def plan(self, where: Where = None, budget_bytes: Size = None) -> Plan:
        """`compact` as a dry run: what it would do now, with a forecast of what it would copy and decode."""
        return self.compact(where, budget_bytes, dry_run=True)

    def compare_policies(self, *policies: Mapping[str, object]) -> PolicyComparison:
        """What the rows that came would have cost under other policies: the newest 500 batches that the table still
        keeps are replayed through the planner, from an empty table, under the present policy and under each of
        `policies`, which change some of its keys: `{"max-small-files": 4}`.

        Batches are whatever added rows to `main`, with as many bytes in each partition as its manifests say. Raises
        PolicyError.
        """
        current = self._handle.load(self._environment)
        present = current.policy
        others = {", ".join(f"{k} {v}" for k, v in keys.items()): present.changed(keys) for keys in policies}
        appends = recent_appends(current.table.metadata, current.table.io, self._handle.store, MOST_BATCHES)
        batches = [{key: seen.size_bytes for key, seen in append.items()} for append in appends]
        return compare(current.name, batches, {"current": present, **others})

    @overload
    def compact(
        self,
        where: Where = ...,
        budget_bytes: Size = ...,
        budget_seconds: Duration = ...,
        *,
        dry_run: Literal[False] = ...,
    ) -> Report: ...
    @overload
    def compact(
        self, where: Where = ..., budget_bytes: Size = ..., budget_seconds: Duration = ..., *, dry_run: Literal[True]
    ) -> Plan: ...
    def compact(
        self,
        where: Where = None,
        budget_bytes: Size = None,
        budget_seconds: Duration = None,
        *,
        dry_run: bool = False,
    ) -> Report | Plan:
        """Merge the small files of every partition to as few as possible, in one REPLACE commit; without Spark in
        rounds of about 1 GiB, each with a commit, so an interrupt keeps what was done before.

        `budget_bytes` bounds what is rewritten, what pays most first; with `budget_seconds` merges are committed in
        rounds of about 2 GiB, of which none begins later. With `dry_run` nothing is changed, and the result is the
        plan. Merges that failed are the first of the report's notes. Raises RewriteFailed when every one did.
        """
        budget = Budget.of(budget_bytes, budget_seconds)
        if dry_run:
            return compaction.plan_compaction(self._context.select(where), budget.size_bytes)
        return self._context.alone(compaction.compact, where, budget)

    def check_up(self) -> tuple[Check, ...]:
        """Whether icesize can work on the table: its catalog, reading, writing, deleting.

        A small file is written beside the metadata and one beside the data, and both are deleted again; the table stays
        as it is.
        """
        from icesize.maintenance.checkup import check_up

        return tuple(check_up(self._handle, self._environment))

    doctor = check_up

    @overload
    def after_batch(self, *, dry_run: Literal[False] = ...) -> Report: ...
    @overload
    def after_batch(self, *, dry_run: Literal[True]) -> Plan: ...
    def after_batch(self, *, dry_run: bool = False) -> Report | Plan:
        """Another writer has appended: merge what is due in the partitions changed since icesize last merged.

        With `dry_run` nothing is changed, and the result is the plan. Raises what `compact` raises.
        """
        return compaction.plan_changed(self._context) if dry_run else self._context.alone(compaction.merge_changed)

    @overload
    def maintain(
        self, budget_bytes: Size = ..., budget_seconds: Duration = ..., *, dry_run: Literal[False] = ...
    ) -> MaintenanceReport: ...
    @overload
    def maintain(
        self, budget_bytes: Size = ..., budget_seconds: Duration = ..., *, dry_run: Literal[True]
    ) -> MaintenancePlan: ...
    def maintain(
        self,
        budget_bytes: Size = None,
        budget_seconds: Duration = None,
        *,
        dry_run: bool = False,
    ) -> MaintenanceReport | MaintenancePlan:
        """One bounded pass of all maintenance: cold partitions, compaction, many delete files into few, those that hit
        nothing, manifests, expiry by the table's own rules, and a dry run of orphan cleanup.

        `budget_bytes` (a number, or text such as "20GiB") bounds what merges rewrite, `budget_seconds` (a number, or
        "25m") when a step may begin. What one pass leaves the next goes on with. With `dry_run` nothing is changed, and
        the result is what each step would do with the table as it is now. A step that fails is named in the report and
        the others run; raises CommitStateUnknown.
        """
        from icesize.maintenance.full_pass import STEPS, Pass, plan_pass

        budget = Budget.of(budget_bytes, budget_seconds)
        if dry_run:
            return plan_pass(self._context, budget.size_bytes)
        return Pass(self._context, budget).run(STEPS)

    def plan_maintenance(self, budget_bytes: Size = None) -> MaintenancePlan:
        """`maintain` as a dry run: what each step would do with the table as it is now."""
        return self.maintain(budget_bytes, dry_run=True)

    def plan_merge_rounds(self, budget_bytes: Size = None) -> Plan:
        """What the merges of `maintain` would do now; changes nothing."""
        return compaction.plan_rounds(self._context, Budget.of(budget_bytes).size_bytes)

    @overload
    def cluster(
        self, by: Columns = ..., strategy: str | None = ..., where: Where = ..., budget_bytes: Size = ..., *,
        dry_run: Literal[False] = ...,
    ) -> Report: ...  # fmt: skip
    @overload
    def cluster(
        self, by: Columns = ..., strategy: str | None = ..., where: Where = ..., budget_bytes: Size = ..., *,
        dry_run: Literal[True],
    ) -> Plan: ...  # fmt: skip
    def cluster(
        self,
        by: Columns = None,
        strategy: str | None = None,
        where: Where = None,
        budget_bytes: Size = None,
        *,
        dry_run: bool = False,
    ) -> Report | Plan:
        """Lay rows out by the columns `by`, partition by partition, in one REPLACE commit; without Spark in rounds of
        about 1 GiB, each with a commit, so an interrupt keeps what was done before.

        `strategy`: "sort" (the first column's queries profit most), "zorder" or "hilbert" (those of up to four columns
        alike). Both are remembered in the table's properties, a sort also as Iceberg's sort order, and are needed only
        the first time. Partitions that are in order are left alone, and new files until they have a fifth of the bytes
        of those that they are to join; with `budget_bytes` what pays most comes first. With `dry_run` nothing is
        changed or remembered, and the result is the plan.

        Raises TableError for columns that cannot be clustered by, PolicyError for a property that says nonsense,
        and RewriteFailed when every partition failed.
        """
        from icesize.maintenance import clustering

        request = clustering.ClusterRequest.of(by, strategy, where, Budget.of(budget_bytes))
        if dry_run:
            return clustering.plan(self._context, request)
        return self._context.alone(clustering.cluster, request)

    def plan_clustering(
        self, by: Columns = None, strategy: str | None = None, where: Where = None, budget_bytes: Size = None
    ) -> Plan | None:
        """`cluster` as a dry run; None when neither `by` nor the table says by which columns."""
        from icesize.maintenance import clustering

        return clustering.plan_clustering(
            self._context, clustering.ClusterRequest.of(by, strategy, where, Budget.of(budget_bytes))
        )

    def forget_clustering(self, *, dry_run: bool = False) -> ForgottenClusterBy:
        """Take back what `cluster` has stored in the table: columns and strategy in its properties, and the sort order
        where a sort has set it. Files stay as they are, and nobody clusters them any more. With `dry_run` nothing is
        changed.

        Raises TableError for a table that does not say by what it is clustered.
        """
        from icesize.table.commit.cluster_settings import forget_cluster_by

        return self._change(forget_cluster_by(self._environment.new_id()), dry_run)

    def append(self, df: DataFrame, stream_id: str | None = None, batch_id: int | None = None) -> Report:
        """Append a DataFrame in few, well-sized files, and merge what that makes due, in one commit.

        With `stream_id` and `batch_id` it is done once however often it is called; without, each call appends.
        """
        if (stream_id is None) != (batch_id is None):
            raise ValueError("Cannot append: 'stream_id' and 'batch_id' are given together or not at all")
        _, source = self._in_spark("append")
        from icesize.spark.stream.batch import commit_batch
        from icesize.spark.stream.options import SinkOptions
        from icesize.spark.stream.process_state import state_of
        from icesize.spark.stream.sink import Sink

        if stream_id is not None and batch_id is not None:
            return Sink(source, stream_id, environment=self._environment, query_id=stream_id).run(df, batch_id)
        return commit_batch(df, source, SinkOptions(environment=self._environment), None, state_of(source, None)).report

    def sink(
        self,
        stream_id: str,
        *,
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
    ) -> Sink:
        """Make the function for `foreachBatch`.

        Args:
            stream_id: Name of the stream in this table, by which replayed batches are known.
            placement: "append": new rows become few files, older small files are merged; "absorb": new rows end up in
                the partition's small file.
            stream_safe: False, with "absorb" only: rows are written once, in snapshots that end stream readers.
            merge: "inline": in the commit of the batch; "async": beside the batches, with commits of its own; "off".
            statistics: How rows per partition are known before they are written. "exact": counted; "recent": expected
                from the last batches; "auto": counted only where reading the batch again is cheap.
            write_tasks: Spark tasks that write a batch; None: by its bytes and the cores.
            schema_evolution: Columns that the table lacks: "refuse" the batch, or "add" them.
            accept_new_checkpoint: True takes batches of another query under the same `stream_id`.
            expire_every: Number of batch ids after which snapshots expire by the table's own rules; None: never.
            query_id: Id of the query, where Spark does not say it; None: by Spark, or else the `stream_id`.
            listener: Called with the report of each batch, and of each commit in the background.
            cluster: Lay rows out by the table's `icesize.cluster.by`. "inline": after the batch; "async": beside the
                batches; "off".

        Raises:
            EngineUnavailable: There is no session; or, on Spark Connect, the table was opened with a catalog object
                that holds credentials: the sink is sent to the server, they must not be.
            ValueError: An argument is not one of the above, or does not go with another.
        """
        spark, source = self._in_spark("sink")
        from icesize.spark.stream.process_state import for_its_server
        from icesize.spark.stream.sink import Sink

        return Sink(
            source=for_its_server(spark, source), stream_id=stream_id, placement=placement, stream_safe=stream_safe,
            merge=merge, statistics=statistics, write_tasks=write_tasks, schema_evolution=schema_evolution,
            accept_new_checkpoint=accept_new_checkpoint, expire_every=expire_every, query_id=query_id,
            listener=listener, cluster=cluster, environment=self._environment,
        )  # fmt: skip

    def streams(self) -> list[ledger.LedgerEntry]:
        """The streams that have committed to the table, each with its newest batch."""
        return ledger.entries(self._handle.load().table.metadata.properties)

    def forget_stream(self, stream_id: str, *, dry_run: bool = False) -> ledger.LedgerEntry:
        """Remove a stream from the ledger: its next batch is taken whatever its query and id. Gives the entry that
        went, or would go with `dry_run`.

        Raises TableError for an unknown stream, CommitConflict (nothing landed) or CommitStateUnknown.
        """
        from icesize.table.commit.metadata_change import forget_stream

        return self._change(forget_stream(self.name, stream_id, self._environment.new_id()), dry_run)

    def versions(self, partition: Partition | None = None) -> list[Version]:
        """Versions of a partition, newest first; of every partition when none is given.

        What one icesize commit did is one version, named by its last snapshot. Only what the table still keeps is
        here. Raises TableError for a partition that never had files.
        """
        current = self._handle.load(self._environment)
        found = self._versions(current)
        if partition is None:
            return found
        key = find_partition(current.table.metadata, {v.key for v in found}, partition)
        return [v for v in found if v.key == key]

    def history(self, limit: int | None = None) -> History:
        """What was committed to `main`, newest first, as the summaries of its snapshots tell: batches of streams with
        their files, bytes, W and seconds, merges, and what others did; the newest `limit` commits, or all.

        Only what the table still keeps is here. Raises ValueError for a limit below 1.
        """
        from icesize.table.past.commits import history_of

        current = self._handle.load(self._environment)
        return history_of(current.table.metadata, current.name, limit)

    def overview(self, since: int | str | None = None) -> Overview:
        """The whole table on one page, to be looked at: `.write("report.html")`, `.write("report.png")`, `.to_html()`.

        Its files by size now and as `compact` would leave them, or at the snapshot `since` and now; small files and
        delete files of its partitions at up to 48 of its commits; W and seconds of its batches; the plan; advice with
        commands to copy. Drawing needs matplotlib (`pip install 'icesize[report]'`); this call does not. Raises
        TableError for a snapshot that the table does not have.
        """
        from icesize.presentation.gather import gather

        selection = self._context.select()
        with readable(selection.current.name):
            return gather(selection, self._inspected(selection), since, self._environment.now_ms())

    report = overview

    def read_version(
        self, partition: Partition, snapshot_id: int | str | None = None, *, as_of: datetime | int | None = None
    ) -> DataFrame:
        """The rows of a partition at a snapshot, or as of a time (naive: UTC; or milliseconds since 1970).

        The columns are those of the table now. Raises TableError for a snapshot that the table does not have and for a
        partition that never had files, UnsupportedTable when deletes are pending there.
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
        """Make a partition what it was at a snapshot, or as of a time (naive: UTC; or milliseconds since 1970), in one
        `overwrite` commit.

        Files that it has no more are copied byte for byte, in threads of this process, to new names; the report says
        how many rows the partition has before and after. With `dry_run` nothing is changed, and the report says what
        would be. Streaming readers of the table stop at an overwrite. The ledger of batches is not rolled back: the
        report names the streams whose later rows are gone from the partition. Raises TableError when the version cannot
        be had any more, CommitConflict when the partition changes meanwhile.
        """
        from icesize.maintenance.restore import restore

        with self._context.lock:
            current = self._context.load()
            version = _version("restore", current, snapshot_id, as_of)
            return restore(self._context, current, self._key(current, partition), version.snapshot_id, dry_run=dry_run)

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
    ) -> ExpiryReport:
        """Remove snapshots that no rule keeps, and the files that only they needed.

        Without arguments the table's own rules hold: `history.expire.*`, and `keep-versions` of the policy. Branches,
        tags, the newest append (streaming readers stand there) and what `readers` (checkpoint folders) have not read
        always stay. `keep_versions` keeps the newest versions of each partition besides what is young: only an explicit
        `older_than`, a point in time or an age, goes below the table's own age. Raises what
        `icesize.table.cleanup.expiry.expire` does.
        """
        from icesize.table.cleanup.expiry import expire
        from icesize.table.cleanup.retention_inputs import ExpireOptions

        options = ExpireOptions(keep_versions, older_than, retain_last, tuple(readers), force)
        with self._context.lock:
            report = expire(
                self._handle, options, self._environment,
                dry_run=dry_run, max_concurrent_deletes=max_concurrent_deletes,
            )  # fmt: skip
            return self._context.refresh(report)

    def remove_orphan_files(
        self,
        older_than: timedelta = timedelta(milliseconds=ORPHANS_OLDER_THAN_MS),
        dry_run: bool = True,
        *,
        trust_location: bool = False,
        max_concurrent_deletes: int = MAX_CONCURRENT_DELETES,
    ) -> OrphanReport:
        """Find files below the table's location that nothing refers to, and with `dry_run=False` delete them.

        Files younger than `older_than` (at least 24 hours) may be of a batch under way and stay, and so does what other
        tables of the catalog refer to. If one of these cannot be read, only files with icesize's own names are orphans,
        unless `trust_location`: then no other table is loaded, because no other has files here. Raises TableError when
        metadata of another table lies in the location, or when it cannot be listed whole.
        """
        from icesize.table.cleanup.orphans import OrphanSearch

        with self._context.lock:
            search = OrphanSearch(
                self.name, lambda: self._handle.load().table, self._environment,
                max_concurrent_deletes=max_concurrent_deletes,
            )  # fmt: skip
            return search.run(older_than // timedelta(milliseconds=1), dry_run, trust_location=trust_location)

    def rewrite_deletes(self, *, dry_run: bool = False) -> DeletesReport:
        """Name the deleted rows of data files anew by position, in one delete file for each, where more than
        `max-delete-files` are to be read with one and that is cheaper than to write it again.

        Takes the place of position and equality deletes, of which key columns are read. Raises CommitConflict (nothing
        landed) or CommitStateUnknown; a partition whose delete files cannot be read is in the report.
        """
        from icesize.maintenance.rewrite_deletes import rewrite_deletes

        return self._context.alone(rewrite_deletes, dry_run=dry_run)

    def remove_dangling_deletes(self, *, dry_run: bool = False) -> DanglingReport:
        """Remove delete files that hit no live data file any more, in one REPLACE commit that leaves every data file as
        it is."""
        from icesize.maintenance.dangling_deletes import remove_dangling_deletes

        return self._context.alone(remove_dangling_deletes, dry_run=dry_run)

    def rewrite_manifests(self, *, dry_run: bool = False) -> ManifestReport:
        """Write many small manifests together, in one REPLACE commit that leaves every file as it is."""
        from icesize.maintenance.rewrite_manifests import rewrite_manifests

        return self._context.alone(rewrite_manifests, dry_run=dry_run)

    def _versions(self, current: Current) -> list[Version]:
        from icesize.table.past.versions import versions

        with readable(current.name):
            return versions(current.table.metadata, current.table.io, self._handle.store)

    def _key(self, current: Current, partition: Partition) -> PartitionKey:
        return find_partition(current.table.metadata, {v.key for v in self._versions(current)}, partition)

    def _change(self, change: MetadataChange[Outcome], dry_run: bool) -> Outcome:
        with self._context.lock:
            current = self._handle.load()
            commit = submit.dry_run_of_change if dry_run else submit.change
            return commit(self._handle, current, change, self._environment)

    def _in_spark(self, what: str) -> tuple[SparkSession, TableSource]:
        if self._spark is None or self._source is None:
            raise EngineUnavailable(f"Cannot {what}: it needs Spark; open the table with a session")
        return self._spark, self._source


@dataclass(frozen=True)
class _InSpark:
    """The engine of a table that was opened with a session."""

    spark: SparkSession
    limits: WorkLimits
    most_bytes: None = None

    def merge(
        self, groups: Mapping[int, MergeTask], settings: WriteSettings, owner: Uncommitted, advance: Advance
    ) -> Results:
        from icesize.spark.engine.merge_job import run_merges

        return run_merges(self.spark, groups, settings, owner, limits=self.limits, progress=advance)

    def cluster(self, work: ClusterWork, advance: Advance) -> Results:
        from icesize.spark.clustering.run import run_clusters

        return run_clusters(self.spark, work, limits=self.limits, progress=advance)

    def refresh(self, handle: TableHandle) -> None:
        from icesize.spark.engine import session

        session.refresh(self.spark, handle.name, handle.spark_conf)


def _handle_without_spark(name: str, catalog: Catalog | None, policy: PolicyArgument) -> TableHandle:
    if catalog is not None:
        return TableHandle(opening.with_timeout(catalog), opening.namespace_and_table(catalog, name), policy)
    catalog_name, identifier = opening.split_name(name)
    return TableHandle(opening.open_catalog(catalog_name), identifier, policy)


def _version(what: str, current: Current, snapshot_id: int | str | None, as_of: datetime | int | None) -> Snapshot:
    """The snapshot that a version is named by, itself or by a time."""
    if (snapshot_id is None) == (as_of is None):
        raise ValueError(f"Cannot {what} a version: give either 'snapshot_id' or 'as_of'")
    metadata = current.table.metadata
    return known_snapshot(metadata, snapshot_as_of(metadata, as_of) if as_of is not None else snapshot_id or 0)
