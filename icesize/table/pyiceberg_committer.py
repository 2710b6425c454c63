"""Commits through PyIceberg: manifests and snapshots are ours, the compare-and-swap is the catalog's.

PyIceberg's transactions are not used: their retry re-stages a zombie's batch on the newer head, they delete the
manifests of a commit that landed behind a repeated request, and each access copies the whole metadata. Staged here is
an APPEND snapshot with the new files, on top of it a REPLACE with the merged ones, and one metadata update for both.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from icesize.table import catalog as catalogs
from icesize.table.deletes import DeleteIndex
from icesize.table.manifests import read_entries
from icesize.table.request import RUN_ID, CommitRequest, SwapLost, SwapRefused
from icesize.table.snapshots import SnapshotBuilder

LOG = logging.getLogger("icesize")

_RIGHTS = (
    "Cannot commit to '{name}': the catalog refused it (403); the principal needs the right to commit to the table "
    "and to set its properties (in Polaris TABLE_WRITE_DATA and TABLE_WRITE_PROPERTIES), because the ledger of "
    "committed batches is a table property; nothing is visible"
)


@dataclass
class PyIcebergLoaded:
    """One loaded state of a table, with what the commit protocol asks of it."""

    table: Table

    @property
    def uuid(self) -> str:
        return str(self.table.metadata.table_uuid)

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
            if s.summary is not None and s.summary.additional_properties.get(RUN_ID) == run_id
        ]

    def any_live(self, paths: Collection[str]) -> bool:
        """Whether one of these data files is referenced by the current snapshot."""
        wanted = set(paths)
        return any(
            entry.path in wanted
            for manifest in self._manifests(ManifestContent.DATA)
            for entry in read_entries(self.table.io, manifest, with_data=False)
        )

    def lost_victims(self, request: CommitRequest) -> dict[str, str]:
        """Victims that must not be replaced any more, with the reason; checked against the *planning* base."""
        victims = {v.path: v for g in request.merged for v in g.victims}
        if self.head_id == request.base_snapshot_id:
            return {}
        known = {s.snapshot_id for s in self.table.metadata.snapshots}
        if request.base_snapshot_id not in known:
            return dict.fromkeys(victims, "the snapshot it was planned on has expired")
        lost = dict.fromkeys(victims.keys() - self._live_victims(request), "another writer removed a file of it")
        deletes = DeleteIndex.of(
            self.table.io, self._manifests(ManifestContent.DELETES), above=request.base_sequence_number
        )
        for path, file in victims.items():
            if path not in lost and deletes.applies(file):
                lost[path] = "another writer deleted rows of it"
        return lost

    def _live_victims(self, request: CommitRequest) -> set[str]:
        """Manifests never change: a victim whose manifest is still listed lives; the others are looked up."""
        manifests = {m.manifest_path: m for m in self._manifests(ManifestContent.DATA)}
        live, missing = set(), set()
        for victim in (v for g in request.merged for v in g.victims):
            (live if victim.manifest_path in manifests else missing).add(victim.path)
        if missing:
            known = {v.manifest_path for g in request.merged for v in g.victims}
            for path, manifest in manifests.items():
                if path not in known:
                    entries = read_entries(self.table.io, manifest, with_data=False)
                    live |= {e.path for e in entries if e.path in missing}
        return live

    def _manifests(self, content: ManifestContent) -> list[ManifestFile]:
        head = self.table.metadata.current_snapshot()
        return [m for m in head.manifests(self.table.io) if m.content == content] if head else []


@dataclass
class PyIcebergStaged:
    """Snapshots on storage, and the catalog request that would make them visible."""

    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    written: list[str]
    snapshots: list[tuple[int, str]] = field(default_factory=list)


class PyIcebergCommitter:
    """Format versions 1 and 2, any catalog that PyIceberg opens, with or without Spark.

    `clock_ms` gives milliseconds since 1970 for snapshot timestamps.
    """

    def __init__(self, catalog: Catalog, table: Table, clock_ms: Callable[[], int]) -> None:
        self._catalog = catalog
        self._table = table
        self._clock_ms = clock_ms

    def load(self) -> PyIcebergLoaded:
        """The table now; TableNotFound when it is gone."""
        self._table = catalogs.load(self._catalog, self._table.name())
        return PyIcebergLoaded(self._table)

    def stage(self, loaded: PyIcebergLoaded, request: CommitRequest) -> PyIcebergStaged:
        """Write manifests and manifest lists; nothing is visible. On failure they are removed again."""
        builder = SnapshotBuilder(loaded.table, self._clock_ms())
        try:
            snapshots = self._build(builder, request)
        except BaseException:
            self._delete(builder.written)
            raise
        metadata = loaded.table.metadata
        return PyIcebergStaged(
            requirements=(
                AssertTableUUID(uuid=uuid.UUID(loaded.uuid)),
                AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=loaded.head_id),
                AssertDefaultSpecId(default_spec_id=loaded.spec_id),
                AssertCurrentSchemaId(current_schema_id=loaded.schema_id),
            ),
            updates=(
                *(AddSnapshotUpdate(snapshot=s) for s in snapshots),
                _set_main(metadata.refs.get(MAIN_BRANCH), snapshots[-1].snapshot_id),
                *([SetPropertiesUpdate(updates={request.ledger.key: request.ledger.to_json()})] if request.ledger else []),
            ),
            written=builder.written,
            snapshots=[(s.snapshot_id, s.summary.operation.value) for s in snapshots if s.summary],
        )

    def _build(self, builder: SnapshotBuilder, request: CommitRequest) -> list[Snapshot]:
        summary = {**request.summary, RUN_ID: request.run_id}
        if request.ledger:
            summary["icesize.ledger"] = request.ledger.to_json()
        snapshots = []
        if request.appended:
            snapshots.append(builder.append(request.appended, summary))
        if request.merged:
            victims = [v for g in request.merged for v in g.victims]
            outputs = [f for g in request.merged for f in g.outputs]
            snapshots.append(builder.replace(victims, outputs, summary))
        return snapshots

    def swap(self, loaded: PyIcebergLoaded, staged: PyIcebergStaged) -> None:
        """One compare-and-swap, never repeated here.

        Definite answers become SwapLost or SwapRefused; everything else passes through and means: unknown.
        """
        try:
            self._catalog.commit_table(loaded.table, staged.requirements, staged.updates)
        except (CommitFailedException, TooManyRequestsError) as error:
            raise SwapLost(str(error)) from error
        except ForbiddenError as error:
            raise SwapRefused(_RIGHTS.format(name=loaded.name)) from error
        except (BadRequestError, UnauthorizedError, NoSuchTableError) as error:
            raise SwapRefused(f"Cannot commit to '{loaded.name}': the catalog refused it ({error})") from error
        except ValueError as error:
            # the SQL catalog's own check, met when another branch of the table was committed to
            if type(error) is ValueError and "older than last sequence number" in str(error):
                raise SwapLost(str(error)) from error
            raise

    def discard(self, staged: PyIcebergStaged) -> None:
        """Remove the manifests of an attempt that certainly did not land."""
        self._delete(staged.written)

    def delete_data_files(self, paths: Iterable[str]) -> None:
        """Remove data files that certainly are not referenced; failures are left to orphan cleanup."""
        self._delete(paths)

    def _delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                self._table.io.delete(path)
            except Exception:  # best effort, and it must not hide the error that led here
                LOG.info("could not remove %s; orphan cleanup will", path)


def _set_main(existing: object, snapshot_id: int) -> SetSnapshotRefUpdate:
    """Move main and keep its retention settings, which an update without them would drop."""
    return SetSnapshotRefUpdate(
        ref_name=MAIN_BRANCH,
        type=SnapshotRefType.BRANCH,
        snapshot_id=snapshot_id,
        max_ref_age_ms=getattr(existing, "max_ref_age_ms", None),
        max_snapshot_age_ms=getattr(existing, "max_snapshot_age_ms", None),
        min_snapshots_to_keep=getattr(existing, "min_snapshots_to_keep", None),
    )
