"""Merges manifests, in one REPLACE that changes no row and no file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from icesize.environment import Stopwatch, rounded
from icesize.maintenance.table_context import TableContext
from icesize.results import OneCommit
from icesize.table.catalog.history import head_snapshot
from icesize.table.commit.steps.rewrite_manifests import RewriteManifests
from icesize.table.manifests.manifest_lists import manifests_in


@dataclass(frozen=True)
class ManifestReport(OneCommit, job="manifests"):
    """Outcome of a rewrite of manifests.

    Attributes:
        table: The full name of the table.
        snapshot_ids: The snapshot of the commit; empty if no rewrite was worth it, or after a dry run.
        manifests_before: Manifests of the snapshot before, those of delete files included.
        manifests_after: Manifests of the snapshot after.
        entries: Entries copied.
        dry_run: True after a dry run that found manifests to merge.
        notes: Warnings about the table's settings.
        seconds: Seconds of each phase, and `total`.
    """

    table: str = ""
    snapshot_ids: tuple[int, ...] = ()
    manifests_before: int = 0
    manifests_after: int = 0
    entries: int = 0
    dry_run: bool = False
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)


def rewrite_manifests(context: TableContext, *, dry_run: bool = False) -> ManifestReport:
    """Merge small data manifests, sorted by partition, in one commit of metadata only.

    A dry run also encodes the new manifests, to count them, but writes none. Raises UnsupportedTable, TableError,
    CommitConflict (nothing is visible) or CommitStateUnknown.
    """
    current, watch = context.load(), Stopwatch(context.environment)
    outcome = context.commit(current, RewriteManifests(), "rewriting manifests again is safe", dry_run=dry_run)
    watch.lap("commit")
    report = ManifestReport(current.name, dry_run=dry_run, notes=current.warnings, seconds=rounded(watch.seconds))
    if not outcome.done:
        metadata = current.table.metadata
        manifests = len(manifests_in(head_snapshot(metadata), current.table.io, metadata.specs()))
        return replace(report, dry_run=False, manifests_before=manifests, manifests_after=manifests)
    created, kept, replaced, entries = (
        int(outcome.done[0].facts.get(key, 0))
        for key in ("manifests-created", "manifests-kept", "manifests-replaced", "entries-processed")
    )
    return replace(
        report,
        snapshot_ids=() if dry_run else outcome.snapshot_ids,
        manifests_before=kept + replaced,
        manifests_after=kept + created,
        entries=entries,
    )
