"""How people see versions, expiry, orphans and a maintenance pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from icesize.console.tables import MOST_LINES, show_line, show_notes, show_report
from icesize.maintenance.full_pass import UpkeepReport
from icesize.maintenance.rewrite_manifests import ManifestReport
from icesize.report import Report
from icesize.table.cleanup.expiry import ExpiryReport
from icesize.table.cleanup.orphans import OrphanReport
from icesize.table.state.versions import Version
from icesize.units import format_bytes, format_count

MOST_REASONS = 8
_NUMBERS = (4, 5, 6)
"""Columns of versions that are aligned to the right."""


def show_versions(console: Console, table: str, versions: Sequence[Version]) -> None:
    """One line per version, newest first."""
    if not versions:
        show_line(console, f"{table} has no versions: nothing was ever written to it")
        return
    rows = [("partition", "snapshot", "time (UTC)", "operation", "files", "size", "rows", "written by")]
    rows += [
        (
            v.label or "(whole table)", str(v.snapshot_id), _time(v.timestamp_ms), v.operation,
            f"{v.files:,}", format_bytes(v.size_bytes), f"{v.rows:,}", _writer(v),
        )
        for v in versions
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = (
            f"{cell:>{width}}" if column in _NUMBERS else f"{cell:<{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        is_bold = number == 0 or versions[number - 1].current
        show_line(console, "  ".join(cells).rstrip(), "bold" if is_bold else "")


def _writer(version: Version) -> str:
    return "" if version.stream_id is None else f"{version.stream_id} batch {version.batch_id}"


def _time(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def show_restored(console: Console, report: Report) -> None:
    """The commit that made the partition what it was, or would, its rows, and what that means for streams."""
    changed = f"-{report.files_removed:,} +{format_count(report.files_added, 'file')}, {rows_before_and_after(report)}"
    if report.snapshot_ids:
        show_line(console, f"snapshot {report.snapshot_ids[-1]} {report.operations[-1]}  {changed}", "bold green")
    elif report.partitions_touched:
        show_line(console, f"would be committed: {changed}", "bold")
    else:
        show_line(console, "nothing was committed")
    show_notes(console, [*report.conflicts, *report.notes])


def rows_before_and_after(report: Report) -> str:
    """`3 -> 2 rows`: what a restore does to the rows of a partition."""
    return f"{report.rows_before or 0:,} -> {format_count(report.rows_after or 0, 'row')}"


def show_expiry(console: Console, report: ExpiryReport) -> None:
    """What went, what stays and why, and what was left alone."""
    expired, before = len(report.snapshot_ids_expired), report.snapshots_before
    verb = "would expire" if report.dry_run else "expired"
    show_line(console, f"{verb} {expired:,} of {format_count(before, 'snapshot')}", "bold")
    # several rules may keep one snapshot: it is counted for the first of them
    reasons = Counter(why[0] for why in report.kept.values())
    for reason, count in reasons.most_common(MOST_REASONS):
        show_line(console, f"  {count:,} kept: {reason}")
    if len(reasons) > MOST_REASONS:
        show_line(console, f"  and {format_count(len(reasons) - MOST_REASONS, 'more reason')}")
    for name in report.refs_removed:
        show_line(console, f"  ref '{name}' {'would be' if report.dry_run else 'was'} removed")
    kinds = ", ".join(f"{kind.replace('_', ' ')} {n:,}" for kind, n in report.files_deleted.items())
    files = format_count(sum(report.files_deleted.values()), "file")
    verb = "would be deleted" if report.dry_run else "deleted"
    show_line(console, f"{files} {verb}, {format_bytes(report.bytes_deleted)}" + (f": {kinds}" if kinds else ""))
    show_notes(console, [*report.gave_up, *report.notes])


def show_orphans(console: Console, report: OrphanReport) -> None:
    """What was found, examples, and what became of it."""
    found = f"{format_count(report.files_found, 'orphan file')}, {format_bytes(report.bytes_found)}"
    done = "nothing deleted (dry run)" if report.dry_run else f"{report.files_deleted:,} deleted"
    show_line(console, f"{found}: {done}", "bold")
    for path in report.examples[:MOST_LINES]:
        show_line(console, f"  {path}")
    if report.young:
        show_line(console, f"  {format_count(report.young, 'file')} too young to be sure")
    if report.passed:
        show_line(console, f"  {report.passed:,} were written by icesize for batches that are in the table")
    if report.incomplete_uploads:
        show_line(
            console, f"  {format_count(report.incomplete_uploads, 'incomplete upload')}, left to the store's rules"
        )
    failed = [f"{format_count(report.files_failed, 'file')} could not be deleted"] if report.files_failed else []
    show_notes(console, [*failed, *report.notes])


def show_manifests(console: Console, report: ManifestReport) -> None:
    """How many manifests there were and are."""
    show_line(console, str(report))


def show_upkeep(console: Console, report: UpkeepReport) -> None:
    """Each step of a pass, what failed, and what is left for the next one."""
    for merge in report.merges:
        show_report(console, merge)
    if not report.merges and "merges" not in (*report.failed, *report.left):
        show_line(console, "no small files to merge")
    for clustering in report.clusterings:
        show_report(console, clustering)
    if report.manifests:
        show_manifests(console, report.manifests)
    if report.expiry:
        show_expiry(console, report.expiry)
    if report.orphans:
        show_orphans(console, report.orphans)
    failed = [f"{step} failed: {message}" for step, message in report.failed.items()]
    left = [f"no budget left for: {', '.join(report.left)}; the next pass goes on"] if report.left else []
    refused = [f"{step} left out: {message}" for step, message in report.refused.items()]
    show_notes(console, [*failed, *refused, *left])


@contextmanager
def deleting(console: Console) -> Iterator[Callable[[int, int], None]]:
    """A progress bar by files while they are deleted; shows nothing where there is no terminal."""
    if not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (TextColumn("deleting"), BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("deleting", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
