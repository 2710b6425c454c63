"""A table to load repeatedly: each `load` returns its current state and its current policy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icesize.environment import Environment
from icesize.errors import IcesizeError, TableError
from icesize.parquet.files.settings import WriteSettings
from icesize.planning.cluster_by import ClusterBy, unknown_properties
from icesize.planning.files import MAIN, Head, PartitionKey
from icesize.planning.upsert_rule import UpsertRule, policy_in
from icesize.policy import RuledPolicy, SizePolicy
from icesize.redaction import scrub
from icesize.table.catalog import opening
from icesize.table.catalog.access_errors import asking_again
from icesize.table.catalog.branches import WAP_BRANCH, branch_of_session, on_branch
from icesize.table.catalog.history import head_of
from icesize.table.manifests.spill import spill_to
from icesize.table.manifests.store import ManifestStore, store_of
from icesize.table.state.cluster_reader import ClusterReader
from icesize.table.state.concurrent_writers import ConcurrentWriters, other_compactors
from icesize.table.state.layouts import LayoutReader

PolicyArgument = SizePolicy | RuledPolicy | Mapping[str, object] | None


@dataclass(frozen=True)
class Current:
    """The current state of a table in its catalog, its policy, and warnings about suspicious settings.

    The table is as readers of `branch` see it, which commits go to. The first commit may create it.
    """

    table: Table
    name: str
    policy: SizePolicy
    warnings: tuple[str, ...]
    branch: str = MAIN
    creates_branch: bool = False

    @property
    def uuid(self) -> str:
        """The table's UUID. A table that is dropped and recreated gets another one."""
        return str(self.table.metadata.table_uuid)

    @property
    def deadline_seconds(self) -> float:
        """Seconds during which a commit is retried: `commit-deadline-ms`."""
        return self.policy.commit_deadline_ms / 1000

    @property
    def head(self) -> Head:
        """Head of the branch."""
        return head_of(self.table.metadata, self.branch)

    def check_same(self, table_uuid: str | None, verb: str) -> None:
        """Raise TableError if another table has taken the name of the one with this UUID; with None, any table passes.

        `verb` is what cannot be done then.
        """
        if table_uuid not in (None, self.uuid):
            raise TableError(
                f"Cannot {verb} '{self.name}': the table was dropped and recreated after it was opened. To write to "
                "the new table, reopen it and restart the query",
                table=self.name,
            )

    def lacks_snapshots_of(self, earlier: Current) -> bool:
        """Return whether snapshots have expired since an earlier state."""
        kept = {snapshot.snapshot_id for snapshot in self.table.metadata.snapshots}
        return any(snapshot.snapshot_id not in kept for snapshot in earlier.table.metadata.snapshots)

    def settings(self) -> WriteSettings:
        """Return the settings of new files. Raises UnsupportedTable if the table requires unsupported ones.

        In a table with upserts, files have whole bounds of the key and of the order, by which batches rule files out.
        """
        return WriteSettings.of(
            self.table.metadata,
            self.table.io.properties,
            self.policy.target_file_size_bytes,
            small_file_limit_bytes=self.policy.small_file_limit_bytes,
            merge_by_copying=self.policy.merge_by_copying,
            vended=self.table.config,
            whole_bounds=self._columns_of_upserts,
        )

    @property
    def _columns_of_upserts(self) -> list[str]:
        rule = UpsertRule.of(self.table.metadata.properties)
        ids = () if rule is None else (*rule.key, *rule.order)
        return [field.name for field in self.table.metadata.schema().fields if field.field_id in ids]


@dataclass
class TableHandle:
    """Catalog and name of a table, and its branch, unless `spark_conf` names another one (write-audit-publish).

    `commit_lock` is held during each attempt of a commit, so that the commits of this process do not conflict.
    `concurrent_writers` remembers other writers' changes, and `store` caches manifests. Both are available after the
    first `load`. `spark_conf` can hold credentials and is not printed. `stores` returns the store of a table's UUID.
    """

    catalog: Catalog
    identifier: tuple[str, ...]
    policy: PolicyArgument = None
    spark_conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    stores: Callable[[str], ManifestStore] = field(default=store_of, repr=False)
    commit_lock: threading.Lock | None = field(default=None, repr=False)
    branch: str = MAIN
    store: ManifestStore = field(init=False, repr=False)
    concurrent_writers: ConcurrentWriters = field(init=False, default_factory=ConcurrentWriters)
    _deadline_ms: int = SizePolicy().commit_deadline_ms

    def __post_init__(self) -> None:
        opening.guard(self.catalog)

    @property
    def name(self) -> str:
        """`catalog.namespace.table`."""
        return ".".join((self.catalog.name, *self.identifier))

    def load(self, environment: Environment | None = None) -> Current:
        """Return the current state of the table, with fresh schema, spec, properties and vended credentials.

        With `environment`, a catalog that does not respond is retried until `commit-deadline-ms`, as in commits, and
        its `spill_directory` keeps facts of manifests.

        Raises TableNotFound, UnsupportedTable, TableError if the catalog does not respond, and PolicyError for
        contradictory settings.
        """
        try:
            table = self._load(environment)
        except IcesizeError:
            raise
        except Exception as error:  # each catalog client raises its own errors
            raise opening.load_failed(self.name, error) from scrub(error)
        return self.current(table, environment)

    def current(self, table: Table, environment: Environment | None = None) -> Current:
        """Return the state of this table that was loaded. Raises what `load` raises about tables and settings."""
        self.store = self.concurrent_writers.store = self.stores(str(table.metadata.table_uuid))
        opening.check_supported(table, self.spark_conf)
        of_session = branch_of_session(table.metadata, self.spark_conf)
        if of_session and self.branch not in (MAIN, of_session):
            raise TableError(
                f"Cannot use branch '{self.branch}' of '{self.name}': the session sets '{WAP_BRANCH}' to "
                f"'{of_session}'. Unset one of them",
                table=self.name,
            )
        branch = of_session or self.branch
        table = on_branch(table, branch, self.name, creates=of_session is not None)
        if environment and environment.spill_directory:
            self.store.spill = spill_to(environment.spill_directory, environment.limits.spill_bytes)
        policy, warnings = SizePolicy.resolve(table.metadata.properties, self.policy, self.name)
        policy = policy_in(table.metadata.properties, policy)
        self._deadline_ms = policy.commit_deadline_ms
        warnings += [*unknown_properties(table.metadata.properties), *other_compactors(table.metadata, self.name)]
        return Current(table, self.name, policy, tuple(warnings), branch, of_session is not None)

    def _load(self, environment: Environment | None) -> Table:
        if environment is None:
            return opening.load_table(self.catalog, self.identifier)
        again = asking_again(environment, self._deadline_ms / 1000, self.name)
        return again(opening.load_table, self.catalog, self.identifier)

    def contested(self, current: Current, environment: Environment) -> frozenset[PartitionKey]:
        """Return partitions in which other writers keep changing rows: merges there would make their jobs fail."""
        return self.concurrent_writers.contested(current.table.metadata, current.table.io, environment.now_ms())

    def reader(self, policy: SizePolicy) -> LayoutReader:
        """Return the reader of this table's layouts."""
        return LayoutReader(policy.small_file_limit_bytes, policy.apply_deletes, self.store, policy)

    def cluster_reader(self, by: ClusterBy, policy: SizePolicy) -> ClusterReader:
        """Return the reader of files clustered by these columns."""
        return ClusterReader(by, policy.apply_deletes, self.store)
