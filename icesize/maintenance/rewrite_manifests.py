"""Fewer manifests for the same files: one REPLACE that changes no row and no file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from icesize.clock import Environment, Stopwatch, rounded
from icesize.report import with_text_ids
from icesize.table.catalog import opening
from icesize.table.commit.metadata_change import MetadataChange
from icesize.table.commit.pyiceberg_committer import PyIcebergLoaded, PyIcebergStaged
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.summary import RUN_ID
from icesize.table.state.handle import Current, TableHandle
from icesize.units import format_count


@dataclass(frozen=True)
class ManifestReport:
    """Outcome of rewriting manifests; `snapshot_id` is None when nothing was worth it, and after a dry run.

    Manifests are all of the current snapshot, those of delete files included; `entries` were copied.
    """

    table: str = ""
    snapshot_id: int | None = None
    manifests_before: int = 0
    manifests_after: int = 0
    entries: int = 0
    dry_run: bool = False
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Stable keys, JSON-ready values."""
        return with_text_ids(asdict(self))

    def __str__(self) -> str:
        if self.manifests_before == self.manifests_after:
            text = f"nothing to do in {self.table}: {format_count(self.manifests_before, 'manifest')}"
        else:
            text = (
                f"manifests of {self.table}: {self.manifests_before:,} -> {self.manifests_after:,}  "
                f"entries {'to copy' if self.dry_run else 'copied'} {self.entries:,}  "
                f"{self.seconds.get('total', 0.0):.2f} s"
            )
        return "  ".join((text, *self.notes))


def rewrite_manifests(
    handle: TableHandle, current: Current, environment: Environment, *, dry_run: bool = False
) -> ManifestReport:
    """Put small data manifests together, sorted by partition, in one commit of metadata only.

    A dry run encodes them, too, to count them, and writes nothing.

    Raises UnsupportedTable, TableError, CommitConflict (nothing landed) or CommitStateUnknown.
    """
    watch = Stopwatch(environment)
    change = _rewrite(environment.new_id(), environment.now_ms, dry_run)
    report = handle.would_change(current, change) if dry_run else handle.change(current, change, environment)
    watch.lap("commit")
    return replace(report, table=current.name, notes=current.warnings, seconds=rounded(watch.seconds))


def _rewrite(run_id: str, now_ms: Callable[[], int], dry_run: bool) -> MetadataChange[ManifestReport]:
    """The change: whatever is worth it on the state that it is tried on."""

    def build(loaded: PyIcebergLoaded) -> tuple[PyIcebergStaged | None, ManifestReport]:
        opening.check_supported(loaded.table)
        with SnapshotBuilder(loaded.table, now_ms(), dry_run=dry_run) as builder:
            snapshot = builder.rewrite({RUN_ID: run_id})
        if snapshot is None:
            manifests = len(builder.manifests)
            return None, ManifestReport(manifests_before=manifests, manifests_after=manifests)
        facts = snapshot.summary.additional_properties if snapshot.summary else {}
        created, kept, replaced, entries = (
            int(facts.get(key, 0))
            for key in ("manifests-created", "manifests-kept", "manifests-replaced", "entries-processed")
        )
        report = ManifestReport("", snapshot.snapshot_id, kept + replaced, kept + created, entries)
        if dry_run:
            return None, replace(report, snapshot_id=None, dry_run=True)
        return loaded.staged_snapshots(builder, [snapshot]), report

    advice = f"Look for a snapshot whose summary has {RUN_ID}={run_id}; rewriting manifests again is safe"
    return MetadataChange(run_id, advice, build)
