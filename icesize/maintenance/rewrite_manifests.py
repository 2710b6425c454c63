"""Fewer manifests for the same files: one REPLACE that changes no row and no file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from icesize.environment import Stopwatch, rounded
from icesize.maintenance.table_context import TableContext
from icesize.report import with_text_ids
from icesize.table.catalog.history import head_snapshot
from icesize.table.commit.steps.rewrite_manifests import RewriteManifests
from icesize.table.manifests.lists import manifests_in
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


def rewrite_manifests(context: TableContext, *, dry_run: bool = False) -> ManifestReport:
    """Put small data manifests together, sorted by partition, in one commit of metadata only.

    A dry run encodes them, too, to count them, and writes nothing.

    Raises UnsupportedTable, TableError, CommitConflict (nothing is visible) or CommitStateUnknown.
    """
    current, watch = context.load(), Stopwatch(context.environment)
    outcome = context.commit(current, RewriteManifests(), "rewriting manifests again is safe", dry_run=dry_run)
    watch.lap("commit")
    report = ManifestReport(current.name, dry_run=dry_run, notes=current.warnings, seconds=rounded(watch.seconds))
    if not outcome.done:
        manifests = len(manifests_in(head_snapshot(current.table.metadata), current.table.io))
        return replace(report, dry_run=False, manifests_before=manifests, manifests_after=manifests)
    created, kept, replaced, entries = (
        int(outcome.done[0].facts.get(key, 0))
        for key in ("manifests-created", "manifests-kept", "manifests-replaced", "entries-processed")
    )
    return replace(
        report,
        snapshot_id=None if dry_run else outcome.snapshot_ids[0],
        manifests_before=kept + replaced,
        manifests_after=kept + created,
        entries=entries,
    )
