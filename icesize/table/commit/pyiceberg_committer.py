"""Commits through PyIceberg: manifests and snapshots are ours, the compare-and-swap is the catalog's.

PyIceberg's transactions are not used: their retry re-stages a zombie's batch on the newer head, they delete the
manifests of a commit that landed behind a repeated request, and each access copies the whole metadata. Staged here is
an APPEND snapshot with the new files, on top of it a REPLACE with the merged ones, and one metadata update for both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError, NoSuchTableError, TooManyRequestsError
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)

from icesize.errors import RewriteFailed
from icesize.parquet.deletes.positions import paths_named
from icesize.parquet.files.storage import Storage
from icesize.planning.deletes import may_hit, only_path, plain_path
from icesize.planning.files import DeleteFile, FileFact
from icesize.table.catalog import opening
from icesize.table.catalog.access_errors import brief
from icesize.table.catalog.history import known_ancestors, summary_of
from icesize.table.commit.request import BASE_EXPIRED, CommitRequest
from icesize.table.commit.schema_fit import misfit, misfit_spec
from icesize.table.commit.snapshot_builder import SnapshotBuilder, move_main, remove
from icesize.table.commit.summary import BASE_ID, LEDGER, RUN_ID
from icesize.table.manifests.delete_index import DeleteIndex
from icesize.table.manifests.entries import ADDED
from icesize.table.manifests.facts import ManifestFacts
from icesize.table.manifests.lists import Manifests, manifests_in, manifests_of
from icesize.table.manifests.store import ManifestStore

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


class CommitLost(Exception):
    """The catalog says that another commit came first. It is looked up before it is believed: 409 may come late."""


class CatalogBusy(CommitLost):
    """The catalog asks to come again later: a definite no that nobody else's commit explains."""


class CommitRefused(Exception):
    """The catalog will never accept this commit; nothing of ours landed. The text is a sentence for the user."""


@dataclass(frozen=True)
class PyIcebergLoaded:
    """One loaded state of a table, with what the commit protocol asks of it; `store` has what was read before of
    its manifests."""

    table: Table
    store: ManifestStore = field(default_factory=ManifestStore, compare=False, repr=False)

    @property
    def uuid(self) -> str:
        return str(self.table.metadata.table_uuid)

    @property
    def same_head(self) -> AssertRefSnapshotId:
        """The requirement that nobody has committed to main."""
        return AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=self.head_id)

    @property
    def same_schema(self) -> AssertCurrentSchemaId:
        """The requirement that columns are what they were."""
        return AssertCurrentSchemaId(current_schema_id=self.schema_id)

    @property
    def same_spec(self) -> AssertDefaultSpecId:
        """The requirement that new files are partitioned as they were."""
        return AssertDefaultSpecId(default_spec_id=self.spec_id)

    def staged(self, updates: Iterable[TableUpdate], *requirements: TableRequirement) -> PyIcebergStaged:
        """These updates of this table, which may not have been dropped and created again, as no commit goes to such."""
        same_table = AssertTableUUID(uuid=self.table.metadata.table_uuid)
        return PyIcebergStaged((same_table, *requirements), tuple(updates))

    def staged_snapshots(
        self,
        builder: SnapshotBuilder,
        snapshots: Sequence[Snapshot],
        requirements: Iterable[TableRequirement] = (),
        updates: Iterable[TableUpdate] = (),
    ) -> PyIcebergStaged:
        """Snapshots that the builder has written on this state, the last of which becomes the head of main."""
        added = [AddSnapshotUpdate(snapshot=snapshot) for snapshot in snapshots]
        head = move_main(self.table.metadata, snapshots[-1].snapshot_id)
        return replace(
            self.staged((*added, head, *updates), self.same_head, *requirements),
            written=tuple(builder.written),
            snapshots=[(s.snapshot_id, s.summary.operation.value) for s in snapshots if s.summary],
        )

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
    def head_id(self) -> int | None:
        head = self.table.metadata.current_snapshot()
        return head.snapshot_id if head else None

    @property
    def properties(self) -> Mapping[str, str]:
        return self.table.metadata.properties

    def snapshots_of(self, run_id: str) -> list[tuple[int, str]]:
        """Snapshots that carry this run id, oldest first, with their operations."""
        return [
            (s.snapshot_id, s.summary.operation.value)
            for s in self.table.metadata.snapshots
            if s.summary is not None and summary_of(s, RUN_ID) == run_id
        ]

    def any_live(self, paths: Collection[str]) -> bool:
        """Whether one of these data files is referenced by the current snapshot."""
        wanted = set(paths)
        return any(not wanted.isdisjoint(self._facts(manifest).paths()) for manifest in self._manifests().data)

    def misfit(self, request: CommitRequest) -> str | None:
        """Why the appended files could not be read in this state of the table, None when they can."""
        metadata = self.table.metadata
        if not request.appended:
            return None
        return misfit(request.schema, metadata.schema()) or misfit_spec(request.spec, metadata.specs())

    def lost_inputs(self, request: CommitRequest) -> dict[str, str]:
        """Input files that must not be replaced any more, with the reason; checked against the *planning* base.

        Files that the request itself appends become visible with it: nobody can have touched them.
        """
        new = {f.path for f in request.appended}
        merged = (v for g in request.merged for v in g.inputs)
        inputs = {v.path: v for v in (*merged, *request.absorbed) if v.path not in new}
        if not inputs or self.head_id == request.base_snapshot_id:
            return {}
        # nothing of the head follows from a base that main has left, or that expired since this state was loaded
        known = self._manifests_of_base(request)
        if known is None:
            return dict.fromkeys(inputs, BASE_EXPIRED)
        gone = inputs.keys() - self._live_inputs(inputs.values())
        lost = dict.fromkeys(gone, "another writer removed a file of it")
        lost |= dict.fromkeys(self._listed_again(inputs, known), "another writer listed a file of it again")
        left = [file for path, file in inputs.items() if path not in lost]
        return lost | dict.fromkeys(self._newly_deleted(left, request), "another writer deleted rows of it")

    def _newly_deleted(self, inputs: Sequence[FileFact], request: CommitRequest) -> set[str]:
        """Input files that deletes since the planning base hit, so that their rows would come back: by position, and by
        equality where they would be in a file that such deletes do not reach (`icesize.planning.deletes`)."""
        specs, above = self.table.metadata.specs(), request.base_sequence_number
        index = DeleteIndex.of(self.store, self.table.io, self._manifests().deletes, specs, above)
        new = {f.path for f in request.appended}
        merged = [v for group in request.merged for v in group.inputs]
        # all that is merged in a partition where new rows are gets the number of these
        with_new = {v.partition for v in merged if v.path in new}
        beside_new = {v.path for v in (*request.absorbed, *(v for v in merged if v.partition in with_new))}
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

    def _manifests_of_base(self, request: CommitRequest) -> set[str] | None:
        """Paths of the planning base's manifests; None if it is no ancestor of the head, or gone from storage."""
        ancestors = known_ancestors(self.table.metadata)
        base = next((s for s in ancestors if s.snapshot_id == request.base_snapshot_id), None)
        try:
            return {m.manifest_path for m in manifests_in(base, self.table.io)} if base else None
        except FileNotFoundError:
            return None

    def _listed_again(self, inputs: Collection[str], known: Collection[str]) -> set[str]:
        """Input files that manifests beside the `known` ones list as new: they must not go while that listing stays."""
        new = (m for m in self._manifests().data if m.manifest_path not in known)
        changes = (self.store.changes(self.table.io, manifest) for manifest in new)
        added = (path for c in changes for path in c.paths(c.changed_by(c.manifest.added_snapshot_id, ADDED)))
        return {path for path in added if path in inputs}

    def _live_inputs(self, inputs: Collection[FileFact]) -> set[str]:
        """Manifests never change: an input file whose manifest is still listed lives; the others are looked up."""
        manifests = {m.manifest_path: m for m in self._manifests().data}
        live = {v.path for v in inputs if v.manifest_path in manifests}
        if missing := {v.path for v in inputs} - live:
            for path in manifests.keys() - {v.manifest_path for v in inputs}:
                live |= missing.intersection(self._facts(manifests[path]).paths())
        return live

    def later_than(self, before: PyIcebergLoaded) -> bool:
        """Whether something that a commit on `before` asserts has certainly changed since; a stale answer is no proof.

        Sequence numbers, schemas and specs only grow, whatever the branch; in format v1 the history has to tell. Of
        changes without a snapshot (refs, expiry) the log of older metadata files tells, where a catalog keeps one.
        """
        new, old = self._counters(), before._counters()
        if self.head_id != before.head_id and (new[0] != old[0] or not new[0]):
            # only if the first commit since is still known: an expired one may have been anybody's
            snapshots = self.table.metadata.snapshots
            if self.table.metadata.format_version > 1:
                return any(s.sequence_number == old[0] + 1 for s in snapshots)
            return any(s.parent_snapshot_id == before.head_id for s in snapshots)
        # here main was only moved, if anything: to what the older of two answers shows as well
        if any(n > o for n, o in zip(new, old, strict=True)):
            return True
        return before.table.metadata_location in {entry.metadata_file for entry in self.table.metadata.metadata_log}

    def _counters(self) -> tuple[int, ...]:
        metadata = self.table.metadata
        return getattr(metadata, "last_sequence_number", 0), len(metadata.schemas), len(metadata.partition_specs)

    def _facts(self, manifest: ManifestFile) -> ManifestFacts:
        return self.store.facts(self.table.io, manifest)

    def _manifests(self) -> Manifests:
        return manifests_of(self.table.metadata.current_snapshot(), self.table.io)


@dataclass(frozen=True)
class PyIcebergStaged:
    """A request to the catalog, the metadata files that were `written` for it, and the snapshots that it adds."""

    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    written: tuple[str, ...] = ()
    snapshots: list[tuple[int, str]] = field(default_factory=list)


class PyIcebergCommitter:
    """Format versions 1 and 2, any catalog that PyIceberg opens, with or without Spark.

    `clock_ms` gives milliseconds since 1970 for snapshot timestamps. `store` has what was read before of manifests.
    """

    def __init__(
        self, catalog: Catalog, table: Table, clock_ms: Callable[[], int], store: ManifestStore | None = None
    ) -> None:
        self._catalog = catalog
        self._table = table
        self._clock_ms = clock_ms
        self._store = store or ManifestStore()

    def load(self) -> PyIcebergLoaded:
        """The table now; TableNotFound when it is gone."""
        self._table = opening.load(self._catalog, self._table.name())
        return PyIcebergLoaded(self._table, self._store)

    def stage(self, loaded: PyIcebergLoaded, request: CommitRequest) -> PyIcebergStaged:
        """Write manifests and manifest lists; nothing is visible. On failure they are removed again."""
        with SnapshotBuilder(loaded.table, self._clock_ms(), loaded.store) as builder:
            snapshots = list(_build(builder, request))
        same, entry = (loaded.same_spec, loaded.same_schema), request.ledger
        ledger = {entry.key: entry.after(loaded.properties).to_json()} if entry else {}
        updates = [SetPropertiesUpdate(updates=ledger)] if ledger else []
        return loaded.staged_snapshots(builder, snapshots, same, updates)

    def commit(self, loaded: PyIcebergLoaded, staged: PyIcebergStaged) -> None:
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

    def discard(self, staged: PyIcebergStaged) -> None:
        """Remove the metadata files of an attempt that certainly did not land."""
        remove(self._table.io, staged.written)


def _build(builder: SnapshotBuilder, request: CommitRequest) -> Iterator[Snapshot]:
    summary = {**request.summary, RUN_ID: request.run_id}
    if request.ledger:
        summary[LEDGER] = request.ledger.to_json()
    if request.absorbed:
        yield builder.overwrite([f.path for f in request.absorbed], request.appended, [], summary)
    elif request.appended:
        yield builder.append(request.appended, summary)
    if request.merged:
        if request.base_snapshot_id is not None:
            summary[BASE_ID] = str(request.base_snapshot_id)
        inputs = [v for g in request.merged for v in g.inputs]
        outputs = [f for g in request.merged for f in g.files]
        named: defaultdict[str, frozenset[str]] = defaultdict(frozenset)
        for group in request.merged:
            for path, paths in group.named.items():
                named[path] |= paths
        yield builder.replace(inputs, outputs, summary, named)
