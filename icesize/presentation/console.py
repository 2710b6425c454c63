"""What people see of inspections, plans, reports, versions and a maintenance pass. Decides nothing.

The same lines without colour when piped. Lines are never wrapped or cut by us: a terminal does that, a pipe gets them
whole. Only bars follow the width. Importing this module does not import rich, which waits for the first console.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from icesize.units import format_bytes, format_count, format_strategies, format_time

if TYPE_CHECKING:
    from rich.console import Console

    from icesize.maintenance.checkup import Check
    from icesize.maintenance.dangling_deletes import DanglingReport
    from icesize.maintenance.full_pass import UpkeepPlan, UpkeepReport
    from icesize.maintenance.rewrite_deletes import DeletesReport
    from icesize.maintenance.rewrite_manifests import ManifestReport
    from icesize.planning.inspection import Inspection, PartitionSizes, PendingDeletes
    from icesize.planning.merging.simulation import PolicyComparison
    from icesize.planning.plan import Plan
    from icesize.report import Report
    from icesize.table.cleanup.expiry import ExpiryReport
    from icesize.table.cleanup.orphans import OrphanReport
    from icesize.table.past.commits import History, PastCommit
    from icesize.table.past.versions import Version
    from icesize.table.records.ledger import LedgerEntry

MOST_BAR_CELLS = 36
MOST_LINES = 10
"""Partitions that are named one by one; the others are counted."""
MOST_REASONS = 8
MOST_VERSIONS = 20
MOST_COMMITS = 20
"""Versions that are listed unless more are asked for."""

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_NUMBERS = (4, 5, 6)
"""Columns of versions that are aligned to the right."""
_TEXTS = 3
"""Columns of a history that are aligned to the left; the others are numbers."""
_SPARE_IN_VERSIONS = ("written by", "size", "operation")
_SPARE_IN_HISTORY = (
    "W so far", "delete files", "deletes", "total", "written", "small", "ingested", "seconds", "W", "files", "by",
)  # fmt: skip
"""Columns that a narrow terminal does without, the first ones first."""


def console_on(file: TextIO | None = None, *, stderr: bool = False, silent: bool = False) -> Console:
    """A console on a stream, on standard output or on standard error, or one that shows nothing; colours only if that
    is a terminal."""
    from rich.console import Console

    return Console(file=file, stderr=stderr, highlight=False, quiet=silent, force_terminal=False if silent else None)


def show_inspection(console: Console, inspection: Inspection) -> None:
    """How well sized a table is: totals, bars by size, the worst partitions, what is ineligible, costs, advice."""
    head = (
        format_count(inspection.partitions, "partition"),
        format_count(inspection.files, "file"),
        format_bytes(inspection.size_bytes),
        format_count(inspection.rows, "row"),
        f"snapshot {inspection.snapshot_id}" if inspection.snapshot_id else "no snapshot",
    )
    _line(console, (inspection.table, "bold"), "  " + "  ".join(head))
    show_bars(console, inspection)
    # one small file in a partition is the fewest there can be
    _show_partitions(
        console, "most small files", [p for p in inspection.worst if p.mergeable > 1],
        lambda p: f"{format_count(p.mergeable, 'small file')} of {p.files:,}, {format_bytes(p.small_bytes)}",
    )  # fmt: skip
    _show_partitions(console, "ineligible", inspection.held_back_in, lambda p: _reasons(p.held_back))
    _show_deletes(console, inspection.deletes)
    for line in inspection.cost.lines():
        _line(console, line)
    _show_filters(console, inspection)
    if not inspection.files_to_merge:
        _line(console, ("nothing to merge", "green"))
    show_notes(console, inspection.advice)


def _show_filters(console: Console, inspection: Inspection) -> None:
    """The filters that open most files, and how many."""
    worst = sorted(inspection.filters, key=lambda use: -use.files)
    for use in worst[:MOST_LINES]:
        _line(console, f"{use.text}  opens {use.files:,} of {format_count(inspection.files, 'file')}")
    _more(console, len(worst), "filter")


def show_health(console: Console, inspection: Inspection) -> None:
    """Whether a table is well, in one line."""
    if inspection.problems:
        _line(console, (f"{inspection.table} is not well", "bold red"), f": {'; '.join(inspection.problems)}")
    else:
        _line(console, (f"{inspection.table} is well", "bold green"))


def _show_deletes(console: Console, deletes: PendingDeletes) -> None:
    if not deletes.files:
        return
    _line(console, str(deletes))
    for one in deletes.histogram:
        count = f"{one.at_least:,} - {2 * one.at_least - 1:,}" if one.at_least > 1 else "1"
        noun = "delete file" if one.at_least == 1 else "delete files"
        _line(console, f"  {format_count(one.files, 'file')} with {count} {noun}")


def show_bars(console: Console, inspection: Inspection, full_bar_files: int = 0) -> None:
    """One bar for small files, one for each of their size classes, one for well-sized files; all on one scale.

    A full bar stands for the most files that a line has, or for `full_bar_files` if that is more.
    """
    rows = inspection.lines_by_size
    styles = ["yellow", *["dim yellow"] * (len(rows) - 2), "green"]
    names = max(len(name) for name, *_ in rows)
    counts = max(len(f"{files:,}") for _, files, *_ in rows)
    cells = max(4, min(MOST_BAR_CELLS, console.width - names - counts - 16))
    most = max(1, full_bar_files, *(files for _, files, _ in rows))
    for (name, files, size_bytes), style in zip(rows, styles, strict=True):
        bar = _bar(files / most, cells, ascii_only=console.options.ascii_only)
        _line(console, f"{name:<{names}}  {files:>{counts},}  {format_bytes(size_bytes):>9}  ", (bar, style))


def show_plan(console: Console, plan: Plan, *, groups: bool = False) -> None:
    """The plan in one line, what is ineligible and why, warnings; with `groups` also the first merges."""
    _line(console, (str(plan), "bold"))
    if groups:
        for group in plan.groups[:MOST_LINES]:
            name = group.label or "(whole table)"
            after = format_count(group.outputs, "file")
            _line(console, f"  {name}  {len(group.inputs):,} -> {after}, {format_bytes(group.size_bytes)}")
        _more(console, len(plan.groups), "merge")
    if plan.forecast is not None:
        _show_decoded(console, plan.forecast.decoded_because)
    if plan.clustering is not None:
        for column, now in plan.clustering.before.items():
            then = plan.clustering.expected_point_files[column]
            expected = f"; then in about {then:,.1f}" if plan.groups else ""
            _line(console, f"  {column}: {_in_queries(now.to_dict())}{expected}")
    if plan.held_back:
        held = [(o.label, {r.value: n for r, n in o.held_back.items()}) for o in plan.held_back]
        files = sum(sum(reasons.values()) for _, reasons in held)
        _line(console, f"ineligible: {format_count(files, 'small file')}")
        for label, reasons in sorted(held, key=lambda item: -sum(item[1].values()))[:MOST_LINES]:
            _line(console, f"  {label or '(whole table)'}  {_reasons(reasons)}")
        _more(console, len(held), "partition")
    show_notes(console, plan.notes)


def show_comparison(console: Console, compared: PolicyComparison) -> None:
    """What batches came to under each policy, one line for each."""
    for number, line in enumerate(str(compared).splitlines()):
        show_line(console, line, "" if number else "bold")


def show_report(console: Console, report: Report, planned: Plan | None = None) -> None:
    """What a compaction came to, without what the plan, which has been shown, has said already."""
    known = planned.notes if planned else ()
    foreseen = planned.forecast.decoded_because if planned and planned.forecast else {}
    if report.snapshot_ids:
        done = " ".join(f"snapshot {i} {o}" for i, o in zip(report.snapshot_ids, report.operations, strict=True))
        rows = (
            f"{format_count(report.rows_deleted, 'deleted row')} left out" if report.rows_deleted else "rows unchanged"
        )
        changed = f"  -{report.files_removed:,} +{format_count(report.files_added, 'file')}, {rows}"
        _line(console, (done, "bold green"), changed)
        ways = format_strategies(report.bytes_copied, report.pages_copied, report.bytes_decoded)
        copied = f" ({ways})" if report.bytes_copied else ""
        seconds = report.seconds.get("total", 0.0)
        _line(console, f"{format_bytes(report.bytes_written)} written{copied} in {seconds:.1f} s")
        if report.decoded_because != foreseen:
            _show_decoded(console, report.decoded_because)
        if report.clustering is not None:
            for column, after in report.clustering["after"].items():
                before = report.clustering["before"][column]
                _line(console, f"  {column}: {_in_queries(after)}; before, {_in_queries(before)}")
    else:
        _line(console, "nothing was committed")
    show_notes(console, [*(n for n in report.notes if n not in known), *report.conflicts])


def _in_queries(queries: Mapping[str, float]) -> str:
    """What queries by one column open, on average."""
    point = f"one value is in {queries['point_files']:,.1f} files ({format_bytes(round(queries['point_bytes']))})"
    share = f"{queries['range_files']:,.1f} ({format_bytes(round(queries['range_bytes']))})"
    return f"{point}, a tenth of all values in {share}"


def _show_decoded(console: Console, because: Mapping[str, int]) -> None:
    """Why bytes are not copied, in one line."""
    if because:
        _line(console, f"decoded, not copied: {_reasons(because)}")


def show_checks(console: Console, checks: Sequence[Check]) -> None:
    """One line for each thing that was looked at."""
    style = {"well": ("ok", "green"), "missing": ("--", "yellow"), "failed": ("no", "bold red")}
    names = max(len(check.name) for check in checks)
    for check in checks:
        _line(console, style[check.state], f"  {check.name:<{names}}  {check.seen}")


def show_streams(console: Console, table: str, entries: Sequence[LedgerEntry]) -> None:
    """Each stream that has committed to the table, and its newest batch."""
    if not entries:
        _line(console, f"no stream has committed to {table}")
        return
    widths = max(len(e.stream_id) for e in entries), max(len(e.query_id) for e in entries)
    for entry in entries:
        name, query = f"{entry.stream_id:<{widths[0]}}", f"{entry.query_id:<{widths[1]}}"
        _line(console, (name, "bold"), f"  query {query}  batch {entry.batch_id}")


def show_notes(console: Console, notes: Sequence[str]) -> None:
    """Sentences that somebody should read, one per line."""
    for sentence in notes:
        _line(console, ("! ", "yellow"), sentence)


def show_error(console: Console, message: str) -> None:
    """What went wrong, in one line; indented lines stay below it as they are: they point at a place."""
    lines = message.splitlines()
    told = " ".join(word for line in lines if not line.startswith("  ") for word in line.split())
    _line(console, ("icesize: ", "bold red"), told)
    for line in lines:
        if line.startswith("  "):
            _line(console, line)


def show_line(console: Console, text: str, style: str = "") -> None:
    """One line as it is."""
    _line(console, (text, style))


def show_versions(console: Console, table: str, versions: Sequence[Version], limit: int = MOST_VERSIONS) -> None:
    """One line per version, newest first, and how to see those beyond the first `limit`."""
    if not versions:
        show_line(console, f"{table} has no versions: nothing was ever written to it")
        return
    rows = [("partition", "snapshot", "time (UTC)", "operation", "files", "size", "rows", "written by")]
    rows += [
        (
            v.label or "(whole table)", str(v.snapshot_id), format_time(v.timestamp_ms), v.operation,
            f"{v.files:,}", format_bytes(v.size_bytes), f"{v.rows:,}", _writer(v),
        )
        for v in versions[:limit]
    ]  # fmt: skip
    current = {number for number, v in enumerate(versions, 1) if v.current}
    _show_columns(console, rows, _NUMBERS, current, _SPARE_IN_VERSIONS)
    if len(versions) > limit:
        older = format_count(len(versions) - limit, "older version")
        show_line(console, f"and {older}: --limit {len(versions)} shows all, --partition those of one partition", "dim")


def _writer(version: Version) -> str:
    return "" if version.stream_id is None else f"{version.stream_id} batch {version.batch_id}"


def show_history(console: Console, history: History) -> None:
    """One line per commit, newest first, and what all of them came to."""
    show_line(console, str(history), "bold")
    if not history.commits:
        return
    heads = (
        "time (UTC)", "kind", "by", "rows", "files", "deletes", "ingested", "written", "W", "W so far", "small",
        "total", "delete files", "seconds",
    )  # fmt: skip
    numbers = range(_TEXTS, len(heads))
    _show_columns(console, [heads, *map(_past, history.commits)], numbers, spare=_SPARE_IN_HISTORY)
    if history.commits_kept > len(history.commits):
        older = format_count(history.commits_kept - len(history.commits), "older commit")
        show_line(console, f"and {older}: --limit {history.commits_kept} shows all", "dim")


def _show_columns(
    console: Console,
    rows: Sequence[Sequence[str]],
    numbers: Container[int],
    bold: Container[int] = (),
    spare: Sequence[str] = (),
) -> None:
    """Cells below each other, columns of `numbers` to the right; the first row, and those in `bold`, stand out.

    Columns that are blank below the first row are left out. On a terminal that is too narrow, so are columns with a
    name in `spare`, the first ones first.
    """
    widths = {place: max(map(len, column)) for place, column in enumerate(zip(*rows, strict=True)) if any(column[1:])}
    left_out = []
    for name in spare if console.is_terminal else ():
        place = rows[0].index(name)
        if place in widths and sum(widths.values()) + 2 * (len(widths) - 1) > console.width:
            del widths[place]
            left_out.append(name)
    for place, row in enumerate(rows):
        cells = (
            f"{row[column]:>{width}}" if column in numbers else f"{row[column]:<{width}}"
            for column, width in widths.items()
        )
        show_line(console, "  ".join(cells).rstrip(), "bold" if place == 0 or place in bold else "")
    if left_out:
        show_line(console, f"not shown: {', '.join(left_out)}; a wider terminal shows them", "dim")


def _past(commit: PastCommit) -> tuple[str, ...]:
    """A commit as cells; blank is what its snapshots do not tell."""
    ratios = (commit.write_amplification, commit.amplification_so_far)
    return (
        format_time(commit.timestamp_ms), commit.kind, commit.author, _count(commit.rows),
        _change(commit.files_added, commit.files_removed),
        _change(commit.delete_files_added, commit.delete_files_removed),
        _size(commit.bytes_ingested), _size(commit.bytes_written),
        *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        _count(commit.small_files_max), _count(commit.total_files), _count(commit.total_delete_files),
        "" if commit.seconds is None else f"{commit.seconds:.2f}",
    )  # fmt: skip


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _size(size_bytes: int | None) -> str:
    return format_bytes(size_bytes) if size_bytes else ""


def _change(added: int | None, removed: int | None) -> str:
    return f"+{added or 0:,} -{removed or 0:,}" if added or removed else ""


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
    if report.files_found:
        found = f"{format_count(report.files_found, 'orphan file')}, {format_bytes(report.bytes_found)}"
        left = "none is deleted without `icesize remove-orphan-files TABLE --delete`"
        show_line(console, f"{found}: {left if report.dry_run else f'{report.files_deleted:,} deleted'}", "bold")
    else:
        show_line(console, "no orphan files", "bold")
    for path in report.examples[:MOST_LINES]:
        show_line(console, f"  {path}")
    if report.young:
        show_line(console, f"  {format_count(report.young, 'file')} too young to be sure")
    if report.passed:
        show_line(console, f"  {report.passed:,} were written by icesize for batches that are in the table")
    if report.incomplete_uploads:
        uploads = format_count(report.incomplete_uploads, "incomplete upload")
        show_line(console, f"  {uploads}, left to the store's rules")
    failed = [f"{format_count(report.files_failed, 'file')} could not be deleted"] if report.files_failed else []
    show_notes(console, [*failed, *report.notes])


def show_upkeep(console: Console, report: UpkeepReport) -> None:
    """Each step of a pass under its heading, what failed, and what is left for the next one."""
    if report.merges or "merges" not in (*report.failed, *report.left):
        _heading(console, "small files")
    for merge in report.merges:
        show_report(console, merge)
    if not report.merges and "merges" not in (*report.failed, *report.left):
        show_line(console, "no merge of small files is due")
    if report.clusterings:
        _heading(console, "clustering")
    for clustering in report.clusterings:
        show_report(console, clustering)
    rewritten = report.rewritten_deletes
    if rewritten and not (rewritten.snapshot_ids or rewritten.conflicts):
        rewritten = None
    _show_metadata(console, rewritten, report.deletes, report.manifests)
    _show_removals(console, report.expiry, report.orphans)
    failed = [f"{step} failed: {message}" for step, message in report.failed.items()]
    left = [f"no budget left for: {', '.join(report.left)}; the next pass goes on"] if report.left else []
    refused = [f"{step} left out: {message}" for step, message in report.refused.items()]
    show_notes(console, [*failed, *refused, *left])


def show_upkeep_plan(console: Console, plan: UpkeepPlan) -> None:
    """What each step of a pass would do, under its heading."""
    for title, step in (("small files", plan.merges), ("clustering", plan.clustering)):
        if step:
            _heading(console, title)
            show_plan(console, step, groups=True)
    rewritten = plan.rewritten_deletes if plan.rewritten_deletes and plan.rewritten_deletes.data_files else None
    _show_metadata(console, rewritten, plan.deletes, plan.manifests)
    _show_removals(console, plan.expiry, plan.orphans)
    show_notes(console, [f"{step} cannot be told: {message}" for step, message in plan.failed.items()])


def _show_metadata(
    console: Console, rewritten: DeletesReport | None, dangling: DanglingReport | None, manifests: ManifestReport | None
) -> None:
    for title, steps in (("delete files", (rewritten, dangling)), ("manifests", (manifests,))):
        if any(steps):
            _heading(console, title)
        for step in steps:
            if step:
                show_line(console, str(step))


def _show_removals(console: Console, expiry: ExpiryReport | None, orphans: OrphanReport | None) -> None:
    if expiry:
        _heading(console, "snapshots")
        show_expiry(console, expiry)
    if orphans:
        _heading(console, "orphan files")
        show_orphans(console, orphans)


def _heading(console: Console, title: str) -> None:
    _line(console, (title, "bold underline"))


def _line(console: Console, *parts: str | tuple[str, str]) -> None:
    from rich.text import Text

    console.print(Text.assemble(*parts), soft_wrap=True)


def _bar(share: float, cells: int, *, ascii_only: bool) -> str:
    """A bar of up to `cells` cells; something is always seen of a share above zero."""
    if ascii_only:
        return "#" * max(round(share * cells), share > 0)
    eighths = max(round(share * cells * 8), share > 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _show_partitions(
    console: Console, title: str, partitions: Sequence[PartitionSizes], words: Callable[[PartitionSizes], str]
) -> None:
    if not partitions:
        return
    names = max(len(p.label) for p in partitions)
    _line(console, title)
    for partition in partitions:
        _line(console, f"  {partition.label or '(whole table)':<{names}}  {words(partition)}")


def _reasons(reasons: Mapping[str, int]) -> str:
    files = format_count(sum(reasons.values()), "file")
    return f"{files} ({', '.join(f'{reason} {n:,}' for reason, n in sorted(reasons.items()))})"


def _more(console: Console, count: int, noun: str) -> None:
    if count > MOST_LINES:
        _line(console, f"  and {format_count(count - MOST_LINES, f'more {noun}')}")
