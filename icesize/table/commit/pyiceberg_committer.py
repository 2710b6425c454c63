"""Commits through PyIceberg: manifests and snapshots are ours, the compare-and-swap is the catalog's.

PyIceberg's transactions are not used: their retry re-stages a zombie's batch on the newer head, they delete the
manifests of a commit that landed behind a repeated request, and each access copies the whole metadata. Staged here is
an APPEND snapshot with the new files, on top of it a REPLACE with the merged ones, and one metadata update for both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError, NoSuchTableError, TooManyRequestsError
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertTableUUID, SetPropertiesUpdate, TableRequirement, TableUpdate

from icesize.errors import RewriteFailed
from icesize.parquet.deletes.positions import paths_named
from icesize.parquet.files.storage import Storage
from icesize.planning.delete_reach import may_hit, only_path, plain_path
from icesize.planning.files import MAIN, DeleteFile, FileFact, Head
from icesize.table.catalog import opening
from icesize.table.catalog.access_errors import brief
from icesize.table.catalog.history import head_of, head_snapshot, known_ancestors, summary_of
from icesize.table.commit.protocol import (
    BASE_EXPIRED,
    CatalogBusy,
    CommitLost,
    CommitRefused,
    CommitRequest,
    Committer,
    Loaded,
    Staged,
    Step,
    StepDone,
)
from icesize.table.commit.schema_fit import misfit, misfit_spec
from icesize.table.commit.snapshot_builder import SnapshotBuilder, remove
from icesize.table.manifests.delete_index import DeleteIndex
from icesize.table.manifests.entries import ADDED
from icesize.table.manifests.facts import ManifestFacts
from icesize.table.manifests.lists import Manifests, manifests_in, manifests_of
from icesize.table.manifests.store import ManifestStore
from icesize.table.records.summary import LEDGER, RUN_ID

_RIGHTS = (
    "Cannot commit to '{name}': the catalog refused it (403); the principal needs the right to commit to the table "
    "and to set its properties (in Polaris TABLE_WRITE_DATA and TABLE_WRITE_PROPERTIES), because the ledger of "
    "committed batches is a table property; nothing is visible"
)

_MEANWHILE = (
    "older than last sequence number", "does not exist: [", "arraySize cannot be negative", "to unknown snapshot",
)  # fmt: skip
"""Texts of catalogs that mean, without calling it a conflict, that the table has changed.

Another branch was committed to (all branches share sequence numbers), or a snapshot is gone that was to be expired
(PyIceberg lists the others; Iceberg's Java library subtracts more from its list than is there) or to be tagged.
"""

_MAY_HAVE_LANDED = (408, 409)
"""Answers of class 4xx after which one has to look."""


@dataclass(frozen=True)
class PyIcebergLoaded:
    """One loaded state of a table; `store` has what was read before of its manifests."""

    table: Table
    ref: str = MAIN
    store: ManifestStore = field(default_factory=ManifestStore, compare=False, repr=False)

    @property
    def uuid(self) -> str:
        return str(self.table.metadata.table_uuid)

    def staged(self, updates: Iterable[TableUpdate], *requirements: TableRequirement) -> Staged:
        """These updates of this table, which may not have been dropped and created again, as no commit goes to such."""
        same_table = AssertTableUUID(uuid=self.table.metadata.table_uuid)
        return Staged((same_table, *requirements), tuple(updates))

    @property
    def name(self) -> str:
        return ".".join(self.table.name())

    @property
    def schema_id(self) -> int:
        return self.table.metadata.current_schema_id

    @property
    def spec_id(self) -> int:
        return self.table.metadata.default_spec_id

    @property
    def head(self) -> Head:
        return head_of(self.table.metadata, self.ref)

    @property
    def properties(self) -> Mapping[str, str]:
        return self.table.metadata.properties

    def snapshots_of(self, run_id: str) -> list[int]:
        return [s.snapshot_id for s in self.table.metadata.snapshots if summary_of(s, RUN_ID) == run_id]

    def follows(self, base: Head) -> bool:
        return any(s.snapshot_id == base.snapshot_id for s in known_ancestors(self.table.metadata, self.ref))

    def manifests(self) -> Manifests:
        return self._manifests

    @cached_property
    def _manifests(self) -> Manifests:
        return manifests_of(head_snapshot(self.table.metadata, self.ref), self.table.io)

    def live(self, paths: Collection[str]) -> set[str]:
        wanted = set(paths)
        data = self.manifests().data if wanted else ()
        return {path for manifest in data for path in self._facts(manifest).paths() if path in wanted}

    def misfit(self, schema: Schema, spec: PartitionSpec) -> str | None:
        metadata = self.table.metadata
        return misfit(schema, metadata.schema()) or misfit_spec(spec, metadata.specs())

    def lost_inputs(self, base: Head, inputs: Collection[FileFact], beside_new: Collection[str]) -> dict[str, str]:
        """See `Loaded`. They are checked against the *planning* base."""
        if not inputs or self.head.snapshot_id == base.snapshot_id:
            return {}
        by_path = {file.path: file for file in inputs}
        # nothing of the head follows from a base that the branch has left, or that expired since this state was loaded
        known = self._manifests_of_base(base)
        if known is None:
            return dict.fromkeys(by_path, BASE_EXPIRED)
        gone = by_path.keys() - self._live_inputs(inputs)
        lost = dict.fromkeys(gone, "another writer removed a file of it")
        lost |= dict.fromkeys(self._listed_again(by_path, known), "another writer listed a file of it again")
        left = [file for path, file in by_path.items() if path not in lost]
        return lost | dict.fromkeys(self._newly_deleted(left, base, beside_new), "another writer deleted rows of it")

    def _newly_deleted(self, inputs: Sequence[FileFact], base: Head, beside_new: Collection[str]) -> set[str]:
        """Input files that deletes since the planning base hit, so that their rows would come back: by position, and by
        equality where they would be in a file that such deletes do not reach (`icesize.planning.delete_reach`)."""
        specs, above = self.table.metadata.specs(), base.sequence_number
        index = DeleteIndex.of(self.store, self.table.io, self.manifests().deletes, specs, above)
        hit: defaultdict[DeleteFile, list[FileFact]] = defaultdict(list)
        for file in inputs:
            for delete in index.of_partition(file.partition).files:
                if may_hit(delete, file) and (file.path in beside_new or not delete.equality_ids):
                    hit[delete].append(file)
        return {file.path for delete, files in hit.items() for file in self._really_hit(delete, files)}

    def _really_hit(self, delete: DeleteFile, files: Sequence[FileFact]) -> Sequence[FileFact]:
        """Those of the files; bounds of paths name many, and Iceberg leaves them out where a delete file names
        several."""
        if delete.equality_ids or only_path(delete) is not None:
            return files
        try:
            named = paths_named(delete, Storage(self.table.io), [file.path for file in files])
        except RewriteFailed:  # nobody can tell
            return files
        return [file for file in files if plain_path(file.path) in named]

    def _manifests_of_base(self, base: Head) -> set[str] | None:
        """Paths of the planning base's manifests; None if it is no ancestor of the head, or gone from storage."""
        ancestors = known_ancestors(self.table.metadata, self.ref)
        snapshot = next((s for s in ancestors if s.snapshot_id == base.snapshot_id), None)
        try:
            return {m.manifest_path for m in manifests_in(snapshot, self.table.io)} if snapshot else None
        except FileNotFoundError:
            return None

    def _listed_again(self, inputs: Collection[str], known: Collection[str]) -> set[str]:
        """Input files that manifests beside the `known` ones list as new: they must not go while that listing stays."""
        new = (m for m in self.manifests().data if m.manifest_path not in known)
        changes = (self.store.changes(self.table.io, manifest) for manifest in new)
        added = (path for c in changes for path in c.paths(c.changed_by(c.manifest.added_snapshot_id, ADDED)))
        return {path for path in added if path in inputs}

    def _facts(self, manifest: ManifestFile) -> ManifestFacts:
        return self.store.facts(self.table.io, manifest)

    def _live_inputs(self, inputs: Collection[FileFact]) -> set[str]:
        """Manifests never change: an input file whose manifest is still listed lives; the others are looked up."""
        manifests = {m.manifest_path: m for m in self.manifests().data}
        live = {v.path for v in inputs if v.manifest_path in manifests}
        if missing := {v.path for v in inputs} - live:
            for path in manifests.keys() - {v.manifest_path for v in inputs}:
                live |= missing.intersection(self._facts(manifests[path]).paths())
        return live

    def later_than(self, before: Loaded) -> bool:
        """Whether something that a commit on `before` asserts has certainly changed since; a stale answer is no proof.

        Sequence numbers, schemas and specs only grow, whatever the branch; in format v1 the history has to tell. Of
        changes without a snapshot (refs, expiry) the log of older metadata files tells, where a catalog keeps one.
        """
        new, old = _counters(self.table.metadata), _counters(before.table.metadata)
        if self.head.snapshot_id != before.head.snapshot_id and (new[0] != old[0] or not new[0]):
            # only if the first commit since is still known: an expired one may have been anybody's
            snapshots = self.table.metadata.snapshots
            if self.table.metadata.format_version > 1:
                return any(s.sequence_number == old[0] + 1 for s in snapshots)
            return any(s.parent_snapshot_id == before.head.snapshot_id for s in snapshots)
        # here the branch was only moved, if anything: to what the older of two answers shows as well
        if any(n > o for n, o in zip(new, old, strict=True)):
            return True
        return before.table.metadata_location in {entry.metadata_file for entry in self.table.metadata.metadata_log}


def _counters(metadata: TableMetadata) -> tuple[int, ...]:
    return getattr(metadata, "last_sequence_number", 0), len(metadata.schemas), len(metadata.partition_specs)


class PyIcebergCommitter:
    """Format versions 1 and 2, any catalog that PyIceberg opens, with or without Spark; one branch of a table.

    `clock_ms` gives milliseconds since 1970 for snapshot timestamps. `store` has what was read before of manifests.
    """

    def __init__(
        self,
        catalog: Catalog,
        table: Table,
        clock_ms: Callable[[], int],
        ref: str = MAIN,
        store: ManifestStore | None = None,
    ) -> None:
        self._catalog = catalog
        self._table = table
        self._clock_ms = clock_ms
        self._ref = ref
        self._store = store or ManifestStore()

    def load(self) -> PyIcebergLoaded:
        self._table = opening.load(self._catalog, self._table.name())
        return self.state_of(self._table)

    def state_of(self, table: Table) -> PyIcebergLoaded:
        """Return a table that was loaded before as a state to commit on."""
        return PyIcebergLoaded(table, self._ref, self._store)

    def stage(self, loaded: Loaded, request: CommitRequest, *, dry_run: bool = False) -> Staged:
        opening.check_supported(loaded.table)
        builder = SnapshotBuilder(loaded.table, self._clock_ms(), loaded.store, ref=self._ref, dry_run=dry_run)
        with builder:
            done = tuple(each for step in request.steps if (each := _done(step, builder, request)) is not None)
        entry = request.ledger
        if entry and done:
            builder.updates.append(SetPropertiesUpdate(updates={entry.key: entry.after(loaded.properties).to_json()}))
        staged = loaded.staged(builder.made_visible(), *builder.requirements)
        return replace(staged, written=tuple(builder.written), done=done)

    def commit(self, loaded: Loaded, staged: Staged) -> None:
        """One compare-and-swap, never repeated here.

        Definite answers become CommitLost or CommitRefused; everything else passes through and means: unknown.
        """
        try:
            self._catalog.commit_table(loaded.table, staged.requirements, staged.updates)
        except CommitFailedException as error:
            raise CommitLost(brief(error)) from error
        except TooManyRequestsError as error:
            raise CatalogBusy(brief(error)) from error
        except ForbiddenError as error:
            raise CommitRefused(_RIGHTS.format(name=loaded.name)) from error
        except Exception as error:
            # of the answer behind an error of PyIceberg's REST client, 0 where there is none
            status = int(getattr(getattr(error.__cause__, "response", None), "status_code", 0))
            definite = isinstance(error, NoSuchTableError) or (400 <= status < 500 and status not in _MAY_HAVE_LANDED)
            if any(text in str(error) for text in _MEANWHILE) and (definite or type(error) is ValueError):
                raise CommitLost(brief(error)) from error
            if definite:
                refused = f"Cannot commit to '{loaded.name}': the catalog refused it ({brief(error)})"
                raise CommitRefused(refused) from error
            raise

    def discard(self, staged: Staged) -> None:
        """Remove the metadata files of an attempt that certainly did not land."""
        remove(self._table.io, staged.written)


def committer_of(
    catalog: Catalog,
    table: Table,
    clock_ms: Callable[[], int],
    ref: str = MAIN,
    store: ManifestStore | None = None,
) -> Committer:
    """Return the committer for a branch of a table; `clock_ms` gives milliseconds since 1970."""
    return PyIcebergCommitter(catalog, table, clock_ms, ref, store)


def _done(step: Step, builder: SnapshotBuilder, request: CommitRequest) -> StepDone | None:
    summary = {**request.summary, RUN_ID: request.run_id, **step.summarize(request.base)}
    if request.ledger:
        summary[LEDGER] = request.ledger.to_json()
    snapshot = step.stage(builder, summary)
    if snapshot is None or snapshot.summary is None:
        return None
    operation, facts = snapshot.summary.operation.value, snapshot.summary.additional_properties
    return StepDone(step, snapshot.snapshot_id, operation, facts)
