"""Commits through PyIceberg: icesize builds manifests and snapshots, and the catalog makes the compare-and-swap.

icesize does not use PyIceberg's transactions, for three reasons. Their retry stages a zombie's batch again on the newer
head. They delete the manifests of a visible commit if its request was repeated. Each access copies the whole metadata.

Each step of a request stages a snapshot on top of the one before. One request to the catalog adds all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from traceback import walk_tb

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError, NoSuchTableError, TooManyRequestsError
from pyiceberg.table import Table
from pyiceberg.table.update import SetPropertiesUpdate, update_table_metadata

from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE
from icesize.planning.files import MAIN
from icesize.table.catalog import opening
from icesize.table.catalog.access_errors import brief
from icesize.table.catalog.branches import on_branch
from icesize.table.catalog.hive import lock_holder
from icesize.table.catalog.metadata_files import superseded_metadata_files
from icesize.table.commit.documents import is_compressed, lossless
from icesize.table.commit.loaded import Loaded, Staged
from icesize.table.commit.protocol import (
    CatalogBusy,
    CommitLost,
    CommitRefused,
    CommitRequest,
    Step,
    StepDone,
)
from icesize.table.commit.snapshot_builder import SnapshotBuilder, remove
from icesize.table.manifests.store import ManifestStore
from icesize.table.records import recent_commits
from icesize.table.records.ledger import UNKNOWN
from icesize.table.records.recent_commits import with_commit
from icesize.table.records.summary import KIND, LEDGER, RUN_ID
from icesize.table.state.committed_batches import noted

_RIGHTS = (
    "Cannot commit to '{name}': the catalog refused it (403); the principal needs the right to commit to the table "
    "and to set its properties (in Polaris TABLE_WRITE_DATA and TABLE_WRITE_PROPERTIES), because the ledger of "
    "committed batches is a table property; nothing is visible"
)

_LOCKED = (
    "Cannot commit to '{name}': the Hive metastore does not release its lock of the table ({lock}); its owner seems to "
    "have died, or lost its connection. The metastore removes the lock after 'metastore.txn.timeout' (300 s by "
    "default), if its housekeeping runs; 'SHOW LOCKS' of Hive lists it. Nothing is visible; run it again when the lock "
    "is gone"
)

_MEANWHILE = (
    "older than last sequence number", "does not exist: [", "arraySize cannot be negative", "to unknown snapshot",
    "first-row-id is behind", "first row id smaller than", "first-row-id is null", "without first row id",
    "Writing V3 is not yet supported", "Sort-order with id",
)  # fmt: skip
"""Catalog messages that mean a concurrent change without calling it a conflict.

Another branch was committed to (all branches share sequence numbers and row ids), or a snapshot that was to be expired
or tagged is gone. For an expiry, PyIceberg lists the remaining snapshots, and Iceberg's Java library computes a
negative list size. Or the table was upgraded to format v3, which PyIceberg does not write, and which requires row ids.
Or another writer added a sort order with the same id.
"""

_MAY_HAVE_LANDED = (408, 409)
"""Responses of class 4xx after which the commit may be visible."""


@dataclass(eq=False)
class PyIcebergCommitter:
    """Format versions 1 to 3, any catalog that PyIceberg opens, with or without Spark; one branch of a table.

    `clock_ms` returns milliseconds since 1970 for snapshot timestamps. `store` caches manifests. `creates` lets
    the first commit create the branch, at the head of `main`.
    """

    catalog: Catalog
    table: Table
    clock_ms: Callable[[], int]
    ref: str = MAIN
    store: ManifestStore = field(default_factory=ManifestStore)
    creates: bool = False
    _lock_holder: str = field(default="", init=False)

    @property
    def name(self) -> str:
        return ".".join((self.catalog.name, *self.table.name()))

    def load(self) -> Loaded:
        self.table = opening.load_table(self.catalog, self.table.name())
        return Loaded(on_branch(self.table, self.ref, self.name, creates=self.creates), self.ref, self.store)

    def stage(
        self, loaded: Loaded, request: CommitRequest, *, dry_run: bool = False
    ) -> tuple[Staged, tuple[StepDone, ...]]:
        opening.check_supported(loaded.table)
        builders = dict[str, SnapshotBuilder]()
        with ExitStack() as failing:
            done = list[StepDone]()
            for step in request.steps:
                builder = _builder(builders, step.ref or self.ref, loaded, self.clock_ms(), dry_run, failing)
                if (each := _done(step, builder, request)) is not None:
                    done.append(each)
        entry, every = request.ledger, tuple(builders.values())
        if entry and done:
            snapshots = ((each.snapshot_id or 0, each.sequence_number) for each in done if each.step.ref is None)
            entry = noted(loaded.table.metadata, loaded.ref, entry, next(snapshots, UNKNOWN))
            every[0].updates.append(SetPropertiesUpdate(updates={entry.key: entry.to_json()}))
        if done and loaded.hides_history:
            ids = [each.snapshot_id for each in done if each.snapshot_id is not None]
            recorded = with_commit(loaded.properties, request.run_id, ids)
            every[0].updates.append(SetPropertiesUpdate(updates={recent_commits.KEY: recorded}))
        updates = [update for builder in every for update in builder.made_visible()]
        requirements = [requirement for builder in every for requirement in builder.requirements]
        written = [path for builder in every for path in builder.written]
        facts = {path: columns for builder in every for path, columns in builder.facts.items()}
        return loaded.staged(updates, *requirements, written=written, facts=facts), tuple(done)

    def commit(self, loaded: Loaded, staged: Staged) -> None:
        """Make one compare-and-swap, without a retry. The store keeps the facts of a visible commit's manifests.

        Definite rejections become CommitLost or CommitRefused. Any other error passes through and means: outcome
        unknown.
        """
        try:
            self._swap(loaded, staged)
        except CommitRefused:
            raise
        except CommitFailedException as error:
            if " lock for " in str(error):
                raise self._locked(loaded, error) from error
            raise CommitLost(brief(error)) from error
        except TooManyRequestsError as error:
            raise CatalogBusy(brief(error)) from error
        except ForbiddenError as error:
            raise CommitRefused(_RIGHTS.format(name=loaded.name)) from error
        except Exception as error:
            # status of the response that caused an error of PyIceberg's REST client; 0 without a response
            status = int(getattr(getattr(error.__cause__, "response", None), "status_code", 0))
            by_client = 400 <= status < 500 and status not in _MAY_HAVE_LANDED
            definite = isinstance(error, NoSuchTableError) or by_client or _is_of_model(error)
            if any(text in str(error) for text in _MEANWHILE) and (
                definite or type(error) in (ValueError, NotImplementedError)
            ):
                raise CommitLost(brief(error)) from error
            if definite:
                refused = f"Cannot commit to '{loaded.name}': the catalog refused it ({brief(error)})"
                raise CommitRefused(refused) from error
            raise
        for path, columns in staged.facts.items():
            loaded.store.remember(path, columns)

    def _swap(self, loaded: Loaded, staged: Staged) -> None:
        metadata = loaded.table.metadata
        plain = loaded.format_version < FIRST_WITH_LINEAGE and not is_compressed(metadata)
        catalog = opening.with_storage(self.catalog)
        catalog = catalog if plain else lossless(catalog)
        committed = catalog.commit_table(loaded.table, staged.requirements, staged.updates)
        if isinstance(self.catalog, MetastoreCatalog):  # servers of REST catalogs do this themselves
            remove(loaded.table.io, superseded_metadata_files(metadata, committed.metadata))

    def _locked(self, loaded: Loaded, error: CommitFailedException) -> CommitLost | CommitRefused:
        """Return the rejection of a commit that waited in vain for the lock of a Hive metastore.

        Other writers hold it for moments. One that holds it while two attempts wait has died. A metastore that does not
        show the holder may have had another one each time.
        """
        before, self._lock_holder = self._lock_holder, lock_holder(self.catalog, loaded.table.name())
        if not before or before != self._lock_holder:
            return CatalogBusy(brief(error))
        return CommitRefused(_LOCKED.format(name=loaded.name, lock=before))

    def discard(self, staged: Staged) -> None:
        """Remove the metadata files of an attempt that certainly failed."""
        remove(self.table.io, staged.written)


def _is_of_model(error: Exception) -> bool:
    """Return True if PyIceberg's model of metadata refused an update: in this process, before anything was written."""
    places = (frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__))
    return isinstance(error, ValueError) and update_table_metadata.__module__ in places


def _builder(
    builders: dict[str, SnapshotBuilder], ref: str, loaded: Loaded, now_ms: int, dry_run: bool, failing: ExitStack
) -> SnapshotBuilder:
    """Return the builder of a branch, whose numbers follow those of the branch that was staged on last.

    An error inside `failing` removes its files.
    """
    last = next(reversed(builders.values()), None)
    if ref not in builders:
        builder = SnapshotBuilder(loaded.table, now_ms, loaded.store, ref=ref, dry_run=dry_run)
        builders[ref] = failing.enter_context(builder)
    builder = builders[ref]
    if last is not None and last is not builder:
        builder.follow(last)
    return builder


def _done(step: Step, builder: SnapshotBuilder, request: CommitRequest) -> StepDone | None:
    summary = {**request.summary, RUN_ID: request.run_id, KIND: step.kind.value, **step.summarize(request.base)}
    if request.ledger and step.ref is None:
        summary[LEDGER] = request.ledger.to_json()
    before = builder.written_bytes
    snapshot = step.stage(builder, summary)
    if snapshot is None or snapshot.summary is None:
        return None
    operation, facts = snapshot.summary.operation.value, snapshot.summary.additional_properties
    written_bytes, number = builder.written_bytes - before, snapshot.sequence_number or 0
    return StepDone(step, snapshot.snapshot_id, operation, facts, written_bytes, number)
