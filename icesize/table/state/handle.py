"""One table to work on again and again: each `load` gives its state now, with the policy that holds for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from icesize.clock import Environment
from icesize.errors import IcesizeError
from icesize.parquet.files.settings import WriteSettings
from icesize.planning.cluster_by import ClusterBy, unknown_properties
from icesize.planning.files import MAIN, Head, PartitionKey
from icesize.policy import SizePolicy
from icesize.redaction import scrub
from icesize.table.catalog import opening
from icesize.table.catalog.access_errors import brief, may_pass
from icesize.table.catalog.history import head_of
from icesize.table.commit.commit_steps import commit_steps, validated
from icesize.table.commit.metadata_change import MetadataChange
from icesize.table.commit.protocol import Base, CommitRequest, Committer, Loaded, Step
from icesize.table.commit.pyiceberg_committer import committer_of
from icesize.table.commit.request import CommitOutcome
from icesize.table.commit.retry import Change, commit_change
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.cluster_reader import ClusterReader
from icesize.table.state.concurrent_writers import ConcurrentWriters, other_compactors
from icesize.table.state.live_files import LayoutReader

LOG = logging.getLogger("icesize")

T = TypeVar("T")
PolicyArgument = SizePolicy | Mapping[str, object] | None


@dataclass(frozen=True)
class Current:
    """A table as the catalog has it now, its policy, and sentences about settings that look wrong."""

    table: Table
    name: str
    policy: SizePolicy
    warnings: tuple[str, ...]

    @property
    def uuid(self) -> str:
        """The table's UUID, which a table that was dropped and created again does not share."""
        return str(self.table.metadata.table_uuid)

    @property
    def head(self) -> Head:
        """What `main` points to."""
        return head_of(self.table.metadata)

    def settings(self, bytes_per_row: float | None = None) -> WriteSettings:
        """How files are written; UnsupportedTable when the table asks for what they cannot honour."""
        return WriteSettings.of(
            self.table.metadata,
            self.table.io.properties,
            self.policy.target_file_size_bytes,
            bytes_per_row,
            small_file_limit_bytes=self.policy.small_file_limit_bytes,
            merge_by_copying=self.policy.merge_by_copying,
            vended=self.table.config,
        )


@dataclass
class TableHandle:
    """Catalog and name of a table. `spark_conf` is looked at for settings that icesize must refuse (WAP).

    `concurrent_writers` remembers what others do to the table, `store` what its manifests say. `spark_conf` can hold
    credentials and is not printed.
    """

    catalog: Catalog
    identifier: tuple[str, ...]
    policy: PolicyArgument = None
    spark_conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    store: ManifestStore = field(default_factory=ManifestStore, repr=False)
    concurrent_writers: ConcurrentWriters = field(init=False)
    _deadline_ms: int = 600_000

    def __post_init__(self) -> None:
        opening.guard(self.catalog)
        self.concurrent_writers = ConcurrentWriters(self.store)

    @property
    def name(self) -> str:
        """`catalog.namespace.table`."""
        return ".".join((self.catalog.name, *self.identifier))

    def load(self, cooldown: Environment | None = None) -> Current:
        """The table now: schema, spec, properties and vended credentials are fresh.

        With `cooldown` a catalog that does not answer is asked again until `commit-deadline-ms`, as commits do.

        Raises TableNotFound, UnsupportedTable, TableError when the catalog does not answer, and PolicyError for
        settings that contradict each other.
        """
        try:
            table = self._load() if cooldown is None else self._ask_again(cooldown)
        except IcesizeError:
            raise
        except Exception as error:  # of whatever the catalog is reached by
            raise opening.load_failed(self.name, error) from scrub(error)
        self.store.serve(str(table.metadata.table_uuid))
        opening.check_supported(table, self.spark_conf)
        policy, warnings = SizePolicy.resolve(table.metadata.properties, self.policy)
        self._deadline_ms = policy.commit_deadline_ms
        warnings += [*unknown_properties(table.metadata.properties), *other_compactors(table.metadata, self.name)]
        return Current(table, self.name, policy, tuple(warnings))

    def _load(self) -> Table:
        return opening.load(self.catalog, self.identifier)

    def _ask_again(self, cooldown: Environment) -> Table:
        until = cooldown.monotonic() + self._deadline_ms / 1000

        def told(state: RetryCallState) -> None:
            error = state.outcome and state.outcome.exception()
            LOG.warning("%s cannot be loaded now (%s); asking again", self.name, brief(error) if error else "")

        again = Retrying(
            retry=retry_if_exception(may_pass),
            stop=lambda state: cooldown.monotonic() > until,
            wait=wait_random_exponential(multiplier=0.5, max=10),
            sleep=cooldown.sleep,
            before_sleep=told,
            reraise=True,
        )
        return again(self._load)

    def contested(self, current: Current, environment: Environment) -> frozenset[PartitionKey]:
        """Partitions in which other writers change rows all the time: merging there would make their jobs fail."""
        return self.concurrent_writers.contested(current.table.metadata, current.table.io, environment.now_ms())

    def reader(self, policy: SizePolicy) -> LayoutReader:
        """The reader of this table's layouts."""
        return LayoutReader(policy.small_file_limit_bytes, policy.apply_deletes, self.store)

    def cluster_reader(self, by: ClusterBy, policy: SizePolicy) -> ClusterReader:
        """The reader of the files that are clustered by these columns."""
        return ClusterReader(by, policy.apply_deletes, self.store)

    def commit(self, current: Current, request: CommitRequest, environment: Environment) -> CommitOutcome:
        """Make the steps of a request visible that was planned on `current`; raises as `commit_steps`."""
        committer = self._committer(current, environment, request.base.head.ref)
        return commit_steps(request, committer, environment, _deadline_seconds(current))

    def would_commit(self, current: Current, request: CommitRequest, environment: Environment) -> CommitOutcome:
        """What a request would come to that brings no data files; nothing is written. Raises what it refuses with."""
        committer = self._committer(current, environment, request.base.head.ref)
        loaded = committer.state_of(current.table)
        kept, outcome = validated(request, loaded)
        return replace(outcome, done=committer.stage(loaded, kept, dry_run=True).done)

    def commit_step(
        self, current: Current, step: Step, environment: Environment, *, again: str, dry_run: bool = False
    ) -> CommitOutcome:
        """Commit one step that brings no files and goes by whatever state it is tried on; `again` as in the request."""
        request = CommitRequest(current.uuid, environment.new_id(), Base(current.head), (step,), again=again)
        commit = self.would_commit if dry_run else self.commit
        return commit(current, request, environment)

    def change(self, current: Current, change: Change[T], environment: Environment) -> T:
        """Commit a change to the table that `current` is a state of; raises as `commit_change`."""
        committer = self._committer(current, environment)
        return commit_change(change, committer, environment, current.uuid, _deadline_seconds(current))

    def would_change(self, current: Current, change: MetadataChange[T], environment: Environment) -> T:
        """What a change of metadata would come to; nothing is committed. Raises what it refuses with."""
        return change.build(self.state_of(current, environment))[1]

    def state_of(self, current: Current, environment: Environment) -> Loaded:
        """The table as `current` has it, as a state to commit on."""
        return self._committer(current, environment).state_of(current.table)

    def _committer(self, current: Current, environment: Environment, ref: str = MAIN) -> Committer:
        return committer_of(self.catalog, current.table, environment.now_ms, ref, self.store)


def _deadline_seconds(current: Current) -> float:
    return current.policy.commit_deadline_ms / 1000
