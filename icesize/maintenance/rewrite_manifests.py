"""Fewer manifests for the same files: one REPLACE that changes no row and no file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId

from icesize.clock import Environment, Stopwatch
from icesize.report import with_text_ids
from icesize.table.catalog import loading
from icesize.table.commit.pyiceberg_committer import PyIcebergLoaded, PyIcebergStaged
from icesize.table.commit.request import RUN_ID
from icesize.table.commit.snapshot_builder import SnapshotBuilder, move_main
from icesize.table.state.handle import Current, TableHandle
from icesize.units import format_count


@dataclass(frozen=True)
class ManifestReport:
    """Outcome of rewriting manifests; `snapshot_id` is None when nothing was worth it.

    Manifests are all of the current snapshot, those of delete files included; `entries` were copied.
    """

    table: str = ""
    snapshot_id: int | None = None
    manifests_before: int = 0
    manifests_after: int = 0
    entries: int = 0
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Stable keys, JSON-ready values."""
        return with_text_ids(asdict(self))

    def __str__(self) -> str:
        if self.snapshot_id is None:
            text = f"nothing to do in {self.table}: {format_count(self.manifests_before, 'manifest')}"
        else:
            text = (
                f"manifests of {self.table}: {self.manifests_before:,} -> {self.manifests_after:,}  "
                f"entries copied {self.entries:,}  {self.seconds.get('total', 0.0):.2f} s"
            )
        return "  ".join((text, *self.notes))


def rewrite_manifests(handle: TableHandle, current: Current, environment: Environment) -> ManifestReport:
    """Put small data manifests together, sorted by partition, in one commit of metadata only.

    Raises UnsupportedTable, TableError, CommitConflict (nothing landed) or CommitStateUnknown.
    """
    watch = Stopwatch(environment)
    report = handle.change(current, _Rewrite(environment), environment)
    watch.lap("commit")
    return replace(report, table=current.name, notes=current.warnings, seconds=watch.rounded)


class _Rewrite:
    """The change: whatever is worth it on the state that is swapped."""

    def __init__(self, environment: Environment) -> None:
        self._now_ms = environment.now_ms
        self.run_id = environment.new_id()

    @property
    def advice(self) -> str:
        return f"Look for a snapshot whose summary has {RUN_ID}={self.run_id}; rewriting manifests again is safe"

    def found(self, loaded: PyIcebergLoaded) -> ManifestReport | None:
        for snapshot_id, _ in loaded.snapshots_of(self.run_id):
            if snapshot := loaded.table.metadata.snapshot_by_id(snapshot_id):
                return _report(snapshot)
        return None

    def stage(self, loaded: PyIcebergLoaded) -> tuple[PyIcebergStaged | None, ManifestReport]:
        loading.check_supported(loaded.table)
        with SnapshotBuilder(loaded.table, self._now_ms()) as builder:
            snapshot = builder.rewrite({RUN_ID: self.run_id})
        if snapshot is None:
            manifests = len(builder.manifests)
            return None, ManifestReport(manifests_before=manifests, manifests_after=manifests)
        staged = PyIcebergStaged(
            requirements=(
                loaded.same_table,
                AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=loaded.head_id),
            ),
            updates=(AddSnapshotUpdate(snapshot=snapshot), move_main(loaded.table.metadata, snapshot.snapshot_id)),
            written=builder.written,
            snapshots=[(snapshot.snapshot_id, "replace")],
        )
        return staged, _report(snapshot)


def _report(snapshot: Snapshot) -> ManifestReport:
    """From what the summary says, which is all that is left of an attempt whose answer was lost."""
    facts = snapshot.summary.additional_properties if snapshot.summary else {}
    created, kept, replaced, entries = (
        int(facts.get(key, 0))
        for key in ("manifests-created", "manifests-kept", "manifests-replaced", "entries-processed")
    )
    return ManifestReport(
        snapshot_id=snapshot.snapshot_id,
        manifests_before=kept + replaced,
        manifests_after=kept + created,
        entries=entries,
    )
