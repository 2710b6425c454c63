"""The layout of each result, as lines, bars and tables. Makes no decisions.

`VIEWS` has the function for a result by the name of its class; `LINES` has the function for one line in a list or log.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from icesize.planning.partition_labels import label_of
from icesize.presentation.blocks import Bars, Block, Columns, html, text
from icesize.units import format_bytes, format_count, format_time

if TYPE_CHECKING:
    from icesize.maintenance.checkup import Check
    from icesize.maintenance.config_file import TablePolicy
    from icesize.maintenance.dangling_deletes import DanglingReport
    from icesize.maintenance.fleet import FleetPlan, FleetReport, TableShare
    from icesize.maintenance.keys import KeyReport
    from icesize.maintenance.maintain import MaintenancePlan, MaintenanceReport, MaintenanceStep
    from icesize.maintenance.repair import RepairReport
    from icesize.maintenance.rewrite_deletes import DeletesReport
    from icesize.maintenance.rewrite_manifests import ManifestReport
    from icesize.maintenance.survey import CatalogSurvey
    from icesize.maintenance.verify import Finding, Verification
    from icesize.planning.health import TableSurvey
    from icesize.planning.inspection import Inspection, PartitionSizes, PendingDeletes
    from icesize.planning.merging.simulation import PolicyComparison
    from icesize.planning.plan import Forecast, Plan
    from icesize.planning.scan_cost import LayoutCost, ScanCost
    from icesize.presentation.facts import Facts
    from icesize.report import Report
    from icesize.results import Result
    from icesize.table.cleanup.expiry import ExpiryReport
    from icesize.table.cleanup.orphans import OrphanReport
    from icesize.table.past.commits import History, PastCommit
    from icesize.table.past.versions import Version
    from icesize.table.records.ledger import LedgerEntry

MOST_LINES = 10
"""Partitions that are listed one by one; the others are counted."""
MOST_REASONS = 8
MOST_VERSIONS = 20
MOST_COMMITS = 20
MOST_TABLES = 20
"""Versions, commits and tables that are listed by default."""

WHOLE_TABLE = "(whole table)"
"""Name of the one partition of an unpartitioned table, which has an empty label."""
HISTORY = (
    "time (UTC)", "kind", "by", "rows", "files", "deletes", "ingested", "written", "write amp", "amp so far", "small",
    "total", "delete files", "seconds",
)  # fmt: skip
_SPARE_IN_VERSIONS = ("written by", "size", "operation")
_SPARE_IN_HISTORY = (
    "amp so far", "delete files", "deletes", "total", "written", "small", "ingested", "seconds", "write amp", "files",
    "by",
)  # fmt: skip
"""Columns that a narrow terminal leaves out, the first ones first."""
SURVEY = (
    "table", "health", "seconds saved", "files", "files saved", "delete files", "to write", "USD", "snapshots",
    "snapshots due", "metadata",
)  # fmt: skip
_SPARE_IN_SURVEY = ("metadata", "snapshots", "files", "delete files", "USD", "snapshots due", "files saved")
_WORTH_A_LINE = ("OVER_BUDGET", "CONTESTED")

Look = Iterable[Block]


def view(result: Result) -> Look:
    """Return the blocks that a command prints for a result."""
    return VIEWS[type(result).__name__](result)


def text_of(result: Result) -> str:
    """Return the text that `print` shows for a result: the output of its command, plus the name of the table."""
    name, table = type(result).__name__, getattr(result, "table", "")
    if name in LINES:
        return LINES[name](result)
    shown = text(view(result)) if name in VIEWS else repr(result)
    return shown if table in shown else f"{table}: {shown}"


def html_of(result: Result) -> str | None:
    """Return the HTML that a notebook shows for a result; None if the notebook shows its text."""
    return html(view(result)) if type(result).__name__ in VIEWS else None


def notes(sentences: Iterable[object]) -> Iterator[Block]:
    """Return sentences that the user should read, one per line."""
    return ((("! ", "yellow"), str(sentence)) for sentence in sentences)


def more(count: int, noun: str) -> Iterator[Block]:
    """Show the number of items beyond those that are listed."""
    if count > MOST_LINES:
        yield (f"  and {format_count(count - MOST_LINES, f'more {noun}')}",)


def inspection(result: Inspection) -> Iterator[Block]:
    """Show file sizes of a table: totals, bars by size, the worst partitions, ineligible files, costs, advice."""
    snapshot = f"snapshot {result.snapshot_id}" if result.snapshot_id else "no snapshot"
    yield (result.table, "bold"), f"  {totals(result)}  {format_count(result.rows, 'row')}  {snapshot}"
    yield bars(result)
    # A partition with one small file cannot have fewer.
    yield from _partitions(
        "most small files", [p for p in result.worst if p.mergeable > 1],
        lambda p: f"{format_count(p.mergeable, 'small file')} of {p.files:,}, {format_bytes(p.small_bytes)}",
    )  # fmt: skip
    yield from _partitions("ineligible", result.ineligible_partitions, lambda p: _reasons(p.ineligible))
    yield from _deletes(result.deletes)
    yield from ((line,) for line in costs(result.cost))
    # Filters that open the most files come first.
    for use in sorted(result.filters, key=lambda use: -use.files)[:MOST_LINES]:
        yield (f"{use.text}  opens {use.files:,} of {format_count(result.files, 'file')}",)
    yield from more(len(result.filters), "filter")
    if not result.files_to_merge:
        yield (("nothing to merge", "green"),)
    yield from notes(result.advice)


def totals(result: Inspection) -> str:
    """Return the partitions, files and bytes of a table in words."""
    counts = format_count(result.partitions, "partition"), format_count(result.files, "file")
    return "  ".join((*counts, format_bytes(result.size_bytes)))


def bars(result: Inspection, full_bar_files: int = 0) -> Bars:
    """Return bars for small files, for each of their size classes (indented), and for well-sized files."""
    classes, lower = [], ""
    for size_class in result.histogram:
        upper = format_bytes(size_class.below_bytes)
        if size_class.files:
            name = f"  {lower} - {upper}" if lower else f"  < {upper}"
            classes.append((name, size_class.files, size_class.size_bytes))
        lower = upper
    small = (f"small files (< {format_bytes(result.small_file_limit_bytes)})", result.small_files, result.small_bytes)
    well_sized = ("well sized", result.files - result.small_files, result.size_bytes - result.small_bytes)
    return Bars((small, *classes, well_sized), full_bar_files)


def _partitions(
    title: str, partitions: Sequence[PartitionSizes], words: Callable[[PartitionSizes], str]
) -> Iterator[Block]:
    if partitions:
        yield (title,)
        yield Columns([(f"  {p.label or WHOLE_TABLE}", words(p)) for p in partitions])


def _deletes(deletes: PendingDeletes) -> Iterator[Block]:
    if not deletes.files:
        return
    worst = label_of(deletes.worst or {})
    in_worst = f" ({deletes.worst_per_file:,.1f} in {worst})" if worst else ""
    rows = f", {format_count(deletes.deleted_rows, 'deleted row')} known ({deletes.row_share:.1%})"
    yield (
        f"deletes pending on {format_count(deletes.files, 'file')}{rows if deletes.deleted_rows else ''}, "
        f"{deletes.delete_files_per_file:,.1f} delete files per file on average{in_worst}, "
        f"at most {deletes.delete_files_max:,}",
    )
    for part in deletes.histogram:
        most = 2 * part.at_least - 1
        with_them = "1 delete file" if most == 1 else f"{part.at_least:,} - {most:,} delete files"
        yield (f"  {format_count(part.files, 'file')} with {with_them}",)


def costs(cost: LayoutCost) -> tuple[str, ...]:
    """Return one line, or two if a compaction changes something; none for a table without files."""
    if not cost.now.data_files:
        return ()
    now = f"a full scan opens {_cost(cost.now, cost.usd(cost.now))}"
    return (now,) if cost.then == cost.now else (now, f"  after a compaction {_cost(cost.then, cost.usd(cost.then))}")


def _cost(cost: ScanCost, usd: float | None) -> str:
    """Return a cost in words, as in `192 files, planned in 26 ms, 400 requests, 0.16 USD per 1,000 scans`."""
    seconds = cost.planning_seconds
    duration = f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"
    work = (
        f"{format_count(cost.opened, 'file')}, takes {duration} to plan, sends {format_count(cost.requests, 'request')}"
    )
    return work if usd is None else f"{work}, {format_price(1000 * usd)} USD per 1,000 scans"


def format_price(price: float) -> str:
    """Return a price with two decimals; below one cent, with two significant digits."""
    return f"{price:,.2f}" if price >= 0.01 or not price else f"{price:.2g}"


def health(result: Inspection) -> Iterator[Block]:
    """Show the health of a table in one line."""
    if result.problems:
        yield (f"{result.table} is unhealthy", "bold red"), f": {'; '.join(result.problems)}"
    else:
        yield ((f"{result.table} is healthy", "bold green"),)


def survey(result: CatalogSurvey, limit: int = MOST_TABLES) -> Iterator[Block]:
    """Show the tables of a catalog, those to which maintenance brings most first, and the names that were skipped."""
    shown = result.tables[:limit]
    totals = f"{format_count(len(result.tables), 'table')}: {_survey_totals(result)}" if shown else "no table"
    yield (result.pattern, "bold"), f"  {totals}"
    if shown:
        yield Columns([*map(survey_cells, shown)], SURVEY, range(1, len(SURVEY)), _SPARE_IN_SURVEY)
    if len(result.tables) > limit:
        others = format_count(len(result.tables) - limit, "more table")
        yield ((f"and {others}: use --limit {len(result.tables)} for all", "dim"),)
    if len(result.tables) == 1:
        yield from table_survey(result.tables[0])
    for skipped in result.skipped[:MOST_LINES]:
        yield (f"skipped {'.'.join(skipped.name)} ({skipped.kind}): {skipped.why}",)
    yield from more(len(result.skipped), "skipped name")
    yield from notes((*result.doubts, *(f"{t.table}: {note}" for t in shown for note in t.notes)))
    if shown:
        yield ((result.formula, "dim"),)


def _survey_totals(result: CatalogSurvey) -> str:
    files, snapshots = format_count(result.files_saved, "file"), format_count(result.snapshots_due, "snapshot")
    write = f"{format_bytes(result.bytes_to_write)} to write"
    return f"maintenance would save scans {files} for {write}, and expire {snapshots}"


def survey_cells(table: TableSurvey) -> tuple[str, ...]:
    """Return a table in the columns of SURVEY."""
    return (
        table.table, f"{table.health}", f"{table.seconds_saved:,.1f}", f"{table.files:,}", f"{table.files_saved:,}",
        f"{table.delete_files:,}", format_bytes(table.bytes_to_write),
        "" if table.usd is None else format_price(table.usd), f"{table.snapshots:,}", f"{table.snapshots_due:,}",
        format_bytes(table.metadata_bytes + table.manifest_bytes),
    )  # fmt: skip


def table_survey(table: TableSurvey) -> Iterator[Block]:
    """Show the causes of one table's cost."""
    for part in table.parts:
        yield (
            f"  {part.name}: {part.now:,} take {part.seconds:,.2f} s of a full scan, "
            f"{part.then:,} after maintenance {part.seconds - part.seconds_saved:,.2f} s",
        )


def plan(result: Plan, *, groups: bool = True) -> Iterator[Block]:
    """Show the plan in one line, ineligible files and warnings; with `groups` also the first merges."""
    yield ((headline(result), "bold"),)
    if groups:
        for group in result.groups[:MOST_LINES]:
            after = f"{format_count(group.outputs, 'file')}, {format_bytes(group.size_bytes)}"
            yield (f"  {group.label or WHOLE_TABLE}  {len(group.inputs):,} -> {after}",)
        yield from more(len(result.groups), "merge")
    if result.forecast is not None:
        yield from _decoded(result.forecast.decode_reasons)
    if result.clustering is not None:
        for column, now in result.clustering.before.items():
            then = result.clustering.expected_point_files[column]
            expected = f"; after clustering, about {then:,.1f}" if result.groups else ""
            yield (f"  {column}: {_in_queries(now.to_dict())}{expected}",)
    if held := result.to_dict()["ineligible"]:
        files = sum(sum(reasons.values()) for reasons in held.values())
        yield (f"ineligible: {format_count(files, 'small file')}",)
        for label, reasons in sorted(held.items(), key=lambda item: -sum(item[1].values()))[:MOST_LINES]:
            yield (f"  {label or WHOLE_TABLE}  {_reasons(reasons)}",)
        yield from more(len(held), "partition")
    yield from notes(result.notes)


def headline(result: Plan) -> str:
    """Return the changes of a plan in one line."""
    title, verb = (f"cluster ({result.clustering.by})", "cluster") if result.clustering else ("plan", "merge")
    if not result.groups:
        return f"{title}: nothing to {verb}, {format_count(result.files_before, 'file')} stay"
    partitions = format_count(len({g.partition for g in result.groups}), "partition")
    gone = freed(result)
    return (
        f"{title}: {partitions}, {result.files_removed:,} -> {format_count(result.files_added, 'file')}, "
        f"{format_bytes(result.bytes_to_write)} to write{ways(result.forecast)}{f', {gone} to remove' if gone else ''}"
    )


def ways(moved: Forecast | Report | None) -> str:
    """Return bytes by method, as in ` (7.9 GiB copied in 1,200 pages, 1.7 GiB decoded)`, without zeros."""
    if moved is None:
        return ""
    pages = f" in {format_count(moved.pages_copied, 'page')}" if moved.pages_copied else ""
    parts = [(moved.bytes_copied, f"copied{pages}"), (moved.bytes_decoded, "decoded")]
    return f" ({', '.join(f'{format_bytes(size)} {word}' for size, word in parts if size)})"


def freed(result: Plan) -> str:
    """Return the rows and files that a plan frees, if known, as in `1,200 deleted rows and 3 delete files`."""
    counts = ((result.rows_freed, "deleted row"), (result.delete_files_freed, "delete file"))
    return " and ".join(format_count(count, noun) for count, noun in counts if count)


def _in_queries(queries: Mapping[str, float]) -> str:
    """Return the average files and bytes that queries by one column open."""
    point = f"{queries['point_files']:,.1f} files ({format_bytes(round(queries['point_bytes']))})"
    share = f"{queries['range_files']:,.1f} ({format_bytes(round(queries['range_bytes']))})"
    return f"a query for one value opens {point}, for a tenth of all values {share}"


def _decoded(because: Mapping[str, int]) -> Iterator[Block]:
    """Show the reasons why bytes are not copied, in one line."""
    if because:
        yield (f"decoded: {_reasons(because)}",)


def _reasons(reasons: Mapping[str, int]) -> str:
    files = format_count(sum(reasons.values()), "file")
    return f"{files} ({', '.join(f'{reason} {n:,}' for reason, n in sorted(reasons.items()))})"


def comparison(result: PolicyComparison) -> Iterator[Block]:
    """Show the cost of the batches under each policy, one line per policy."""
    if not result.batches:
        yield ((f"{result.table}: no batch to replay: no commit in its history added rows", "bold"),)
        return
    came = f"{format_bytes(result.bytes_ingested)} in {format_count(result.partitions, 'partition')}"
    yield ((f"{result.table}: the newest {format_count(result.batches, 'batch')} replayed, {came}", "bold"),)
    heads = (
        "policy",
        "write amp",
        "most small files",
        "files",
        "files a scan opens",
        "rewritten per batch",
        "most rewritten",
    )
    rows = [
        (
            p.name, f"{p.write_amplification:.2f}", f"{p.small_files_max:,}", f"{p.files:,}", f"{p.files_scanned:,.1f}",
            format_bytes(p.rewritten_bytes_mean), format_bytes(p.rewritten_bytes_max),
        )
        for p in result.replayed
    ]  # fmt: skip
    yield Columns(rows, heads, range(1, len(heads)))


def report_line(result: Report) -> str:
    """Return the result of a batch or a call, in one line of a log."""
    if result.already_committed:
        return f"batch {result.batch_id} already committed to {result.table}"
    head = f"batch {result.batch_id}: " if result.batch_id is not None else ""
    worth = [f"{reason} {n}" for reason, n in sorted(result.skipped.items()) if reason in _WORTH_A_LINE]
    if result.ineligible:
        worth.append(f"{sum(result.ineligible.values())} ineligible files in {len(result.ineligible)} partitions")
    tail = (*result.notes, *worth, *result.conflicts)
    if not result.snapshot_ids:
        what, where = ("nothing was committed", "to") if result.conflicts else ("nothing to do", "in")
        return "  ".join((f"{head}{what}" if head else f"{what} {where} {result.table}", *tail))
    restored = result.rows_after is not None
    rows = f"rows {result.rows_before or 0:,} -> {result.rows_after:,}" if restored else rows_of(result)
    parts = [f"{head}{rows}", f"files +{result.files_added} -{result.files_removed}"]
    if result.write_amplification is not None:
        parts.append(f"write amplification {result.write_amplification:.2f}")
    if not restored:  # restore does not inspect the partition again
        parts.append(f"max small files {result.small_files_max} per partition")
    if result.delete_files_max:
        parts.append(f"max delete files {result.delete_files_max} per data file")
    return "  ".join((*parts, _seconds(result), *tail))


def rows_of(result: Report) -> str:
    """Return the change of rows: rows added, deleted rows left out, or the rows before and after a restore."""
    if result.rows_after is not None:
        return f"{result.rows_before or 0:,} -> {format_count(result.rows_after, 'row')}"
    if result.rows or result.batch_id is not None:
        return f"{result.rows:,} rows"
    return f"{format_count(result.rows_deleted, 'deleted row')} left out" if result.rows_deleted else "rows unchanged"


def _seconds(result: Any) -> str:
    return f"{result.seconds.get('total', 0.0):.2f} s"


def report(result: Report) -> Iterator[Block]:
    """Show one call: its line, its commit, and the seconds of each phase."""
    yield ((result.table, "bold"), "  ", report_line(result)) if result.table else (report_line(result),)
    if result.snapshot_ids:
        yield from committed(result)
        phases = [(phase, f"{seconds:.2f}") for phase, seconds in result.seconds.items() if phase != "total"]
        yield Columns(phases, ("phase", "seconds"), {1})


def committed(result: Report, planned: Plan | None = None) -> Iterator[Block]:
    """Show the result of a call, without facts that its plan has already shown."""
    foreseen = planned.forecast.decode_reasons if planned and planned.forecast else {}
    changed = f"-{result.files_removed:,} +{format_count(result.files_added, 'file')}, {rows_of(result)}"
    restored = result.rows_after is not None
    if result.snapshot_ids:
        done = " ".join(f"snapshot {i} {o}" for i, o in zip(result.snapshot_ids, result.operations, strict=True))
        yield (done, "bold green"), f"  {changed}"
    elif restored and result.partitions_touched:  # a dry run
        yield ((f"would be committed: {changed}", "bold"),)
    else:
        yield ("nothing was committed",)
    if result.snapshot_ids and not restored:
        copied = ways(result) if result.bytes_copied else ""
        seconds = result.seconds.get("total", 0.0)
        yield (f"{format_bytes(result.bytes_written)} written{copied} in {seconds:.1f} s",)
        yield from _decoded(result.decode_reasons) if result.decode_reasons != foreseen else ()
        clustering = result.clustering or {"after": {}}
        for column, after in clustering["after"].items():
            yield (f"  {column}: {_in_queries(after)}; before, {_in_queries(clustering['before'][column])}",)
    yield from left_to_say(result, planned)


def left_to_say(result: Report, planned: Plan | None = None) -> Iterator[Block]:
    """Show conflicts, and notes that are not in the plan."""
    known = planned.notes if planned else ()
    return notes([*(note for note in result.notes if note not in known), *result.conflicts])


def checks(found: Sequence[Check]) -> Iterator[Block]:
    """Show one line per check."""
    style = {"ok": ("ok", "green"), "missing": ("--", "yellow"), "failed": ("no", "bold red")}
    yield Columns([(style[check.state], check.name, check.detail) for check in found])


def streams(table: str, entries: Sequence[LedgerEntry]) -> Iterator[Block]:
    """Show each stream that has committed to the table, and its newest batch."""
    if entries:
        yield Columns([((e.stream_id, "bold"), f"query {e.query_id}", f"batch {e.batch_id}") for e in entries])
    else:
        yield (f"no stream has committed to {table}",)


def versions(table: str, found: Sequence[Version], limit: int = MOST_VERSIONS) -> Iterator[Block]:
    """Show one line per version, newest first, and the option that shows versions beyond the first `limit`."""
    if not found:
        yield (f"{table} has no versions: nothing was ever written to it",)
        return
    heads = ("partition", "snapshot", "time (UTC)", "operation", "files", "size", "rows", "written by")
    rows = [[(cell, "bold" if v.current else "") for cell in _version_cells(v)] for v in found[:limit]]
    yield Columns(rows, heads, {4, 5, 6}, _SPARE_IN_VERSIONS)
    if len(found) > limit:
        older = format_count(len(found) - limit, "older version")
        yield ((f"and {older}: use --limit {len(found)} for all, --partition for one partition", "dim"),)


def _version_cells(version: Version) -> tuple[str, ...]:
    return (
        version.label or WHOLE_TABLE, str(version.snapshot_id), format_time(version.timestamp_ms), version.operation,
        f"{version.files:,}", format_bytes(version.size_bytes), f"{version.rows:,}",
        "" if version.stream_id is None else f"{version.stream_id} batch {version.batch_id}",
    )  # fmt: skip


def version_line(version: Version) -> str:
    """Return one line for a version in a list."""
    label, snapshot_id, time, operation, _, size, _, writer = _version_cells(version)
    files, rows = format_count(version.files, "file"), format_count(version.rows, "row")
    by = f"{operation}, {writer}" if writer else operation
    return f"{label} at {snapshot_id}, {time} UTC: {files} of {size}, {rows}, by {by}"


def history(result: History) -> Iterator[Block]:
    """Show one line per commit, newest first, and a summary of all commits."""
    yield ((history_line(result), "bold"),)
    if not result.commits:
        return
    yield Columns([*map(commit_cells, result.commits)], HISTORY, range(3, len(HISTORY)), _SPARE_IN_HISTORY)
    if result.commits_kept > len(result.commits):
        older = format_count(result.commits_kept - len(result.commits), "older commit")
        yield ((f"and {older}: use --limit {result.commits_kept} for all", "dim"),)


def history_line(result: History) -> str:
    """Return a summary of all commits."""
    if not result.commits or result.since_ms is None:
        return f"{result.table} has no history: nothing was ever written to it"
    kinds = Counter(commit.kind for commit in result.commits)
    parts = [
        f"{result.table}  {format_count(result.commits_kept, 'commit')} since {format_time(result.since_ms)}",
        "newest: " + ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common()),
    ]
    if result.write_amplification is not None:
        parts.append(f"write amplification {result.write_amplification:.2f}")
    if result.seconds_per_batch is not None:
        parts.append(f"{result.seconds_per_batch:.2f} s a batch")
    return "  ".join(parts)


def commit_cells(commit: PastCommit) -> tuple[str, ...]:
    """Return a commit in the columns of HISTORY; facts that its snapshots do not record are blank."""
    ratios = (commit.write_amplification, commit.amplification_so_far)
    return (
        format_time(commit.timestamp_ms), commit.kind, commit.author, _count(commit.rows),
        _change(commit.files_added, commit.files_removed),
        _change(commit.delete_files_added, commit.delete_files_removed),
        *(format_bytes(size) if size else "" for size in (commit.bytes_ingested, commit.bytes_written)),
        *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        _count(commit.small_files_max), _count(commit.total_files), _count(commit.total_delete_files),
        "" if commit.seconds is None else f"{commit.seconds:.2f}",
    )  # fmt: skip


def commit_line(commit: PastCommit) -> str:
    """Return one line for a commit in a list, with the column name before each value."""
    cells = zip(HISTORY, commit_cells(commit), strict=True)
    return "  ".join(cell if name in HISTORY[:3] else f"{name} {cell}" for name, cell in cells if cell)


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _change(added: int | None, removed: int | None) -> str:
    return f"+{added or 0:,} -{removed or 0:,}" if added or removed else ""


def expiry(result: ExpiryReport) -> Iterator[Block]:
    """Show the snapshots and files removed, the snapshots kept with their reasons, and the failures."""
    expired, before = len(result.snapshot_ids_expired), result.snapshots_before
    would, was, gone = ("would expire", "would be", "would be ") if result.dry_run else ("expired", "was", "")
    yield ((f"{would} {expired:,} of {format_count(before, 'snapshot')}", "bold"),)
    # If several rules keep a snapshot, it is counted for the first one.
    reasons = Counter(why[0] for why in result.kept.values())
    for reason, count in reasons.most_common(MOST_REASONS):
        yield (f"  {count:,} kept: {reason}",)
    if len(reasons) > MOST_REASONS:
        yield (f"  and {format_count(len(reasons) - MOST_REASONS, 'more reason')}",)
    for name in result.refs_removed:
        yield (f"  ref '{name}' {was} removed",)
    kinds = ", ".join(f"{kind.replace('_', ' ')} {n:,}" for kind, n in result.files_deleted.items())
    files = f"{format_count(sum(result.files_deleted.values()), 'file')} {gone}deleted"
    yield (f"{files}, {format_bytes(result.bytes_deleted)}" + (f": {kinds}" if kinds else ""),)
    yield from notes((*_failed(result), *result.dropped_versions, *result.notes))


def orphans(result: OrphanReport) -> Iterator[Block]:
    """Show the orphan files found, examples, and the files deleted."""
    if result.files_found:
        found = f"{format_count(result.files_found, 'orphan file')}, {format_bytes(result.bytes_found)}"
        left = "delete with `icesize remove-orphan-files TABLE --delete`"
        yield ((f"{found}: {left if result.dry_run else f'{result.files_deleted:,} deleted'}", "bold"),)
    else:
        yield (("no orphan files", "bold"),)
    yield from ((f"  {path}",) for path in result.examples[:MOST_LINES])
    if result.too_recent:
        yield (f"  {format_count(result.too_recent, 'file')} too young to be sure",)
    if result.from_committed_batches:
        yield (
            f"  {result.from_committed_batches:,} are left from failed attempts of batches that were committed later",
        )
    if result.incomplete_uploads:
        yield (f"  {format_count(result.incomplete_uploads, 'incomplete upload')}, left to the store's rules",)
    yield from notes((*_failed(result), *result.notes))


def verification(result: Verification) -> Iterator[Block]:
    """Show the verdict, and one line per finding, with the number of findings of each rule that are not shown."""
    read = (result.manifests, "manifest"), (result.files, "data file"), (result.delete_files, "delete file")
    counts = ", ".join(format_count(number, noun) for number, noun in read)
    verdict = "no errors" if result.is_valid else "the table is damaged"
    yield ((f"{result.table}: {verdict}", "bold" if result.is_valid else "bold red"), f" ({counts})")
    if result.snapshots:
        files, snapshots = format_count(result.stored_files, "file"), format_count(result.snapshots, "snapshot")
        whole = f", {format_count(result.read_files, 'file')} read" if result.read_files else ""
        yield (f"{files} of {snapshots} compared with the storage{whole}",)
    yield from _findings(result.findings)
    yield from notes(result.notes)


def _findings(findings: Iterable[Finding]) -> Iterator[Block]:
    """Show the findings of each rule with the same advice."""
    together: defaultdict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        together[finding.rule, finding.advice].append(finding)
    for (rule, advice), found in together.items():
        style = "bold red" if found[0].is_error else "bold"
        yield ((f"{rule}: {format_count(len(found), found[0].severity.value)}", style), f". {advice}")
        yield from ((f"  {finding.path}: {finding.detail}",) for finding in found[:MOST_LINES])
        if len(found) > MOST_LINES:
            yield ((f"  and {len(found) - MOST_LINES:,} more: use --json", "dim"),)


def repair(result: RepairReport) -> Iterator[Block]:
    """Show the repairs, the rows that are lost, and what is refused."""
    if not result.repairs:
        left = f"; {format_count(len(result.refused), 'finding')} need a decision" if result.refused else ""
        yield ((f"{result.table}: nothing to repair{left}", "bold"),)
    for each in result.repairs:
        done = "repaired along with it" if each.snapshot_id is None else f"repaired in snapshot {each.snapshot_id}"
        done = "would be repaired" if result.dry_run else done
        yield ((f"{each.kind}: {format_count(each.findings, 'finding')} {done}", "bold"),)
    for partition, rows in list(result.rows_lost.items())[:MOST_LINES]:
        yield (f"  {format_count(rows, 'row')} of {partition or 'the table'} {'are' if rows > 1 else 'is'} lost",)
    yield from more(len(result.rows_lost), "partition")
    yield from _findings(result.refused)
    yield from notes(result.notes)


def _failed(result: ExpiryReport | OrphanReport) -> list[str]:
    return [f"{format_count(result.files_failed, 'file')} could not be deleted"] if result.files_failed else []


def deletes(result: DeletesReport) -> Iterator[Block]:
    """Show the number of delete files before and after."""
    if result.snapshot_ids:
        removed, files = format_count(result.files_removed, "delete file"), format_count(result.data_files, "file")
        size = format_bytes(result.bytes_written)
        line = f"{removed} of {files} in {result.table} merged into {result.files_added:,}, {size}  {_seconds(result)}"
    elif result.dry_run and result.data_files:
        line = f"would rewrite the delete files of {format_count(result.data_files, 'file')} in {result.table}"
    else:
        line = f"no delete files of {result.table} were rewritten"
    yield ("  ".join((line, *result.notes, *result.conflicts)),)


def dangling(result: DanglingReport) -> Iterator[Block]:
    """Show the number of dangling delete files."""
    line = f"nothing to do in {result.table}: no delete file is dangling"
    if result.delete_files:
        files = f"{format_count(result.delete_files, 'delete file')} of {format_bytes(result.bytes)}"
        verb = "apply to no data file" if result.dry_run else "applied to no data file and were removed"
        line = f"{files} in {result.table} {verb}  {_seconds(result)}"
    yield ("  ".join((line, *result.notes)),)


def keys(result: KeyReport) -> Iterator[Block]:
    """Show the rows of the same key, or what changed in the rule."""
    key = f"({', '.join(result.key)})"
    if result.changed:
        verb = "would change" if result.dry_run else "changed"
        line = f"{verb} the rule of {result.table}: {'; '.join(result.changed)}  {_seconds(result)}"
    elif result.rows_deleted:
        verb = "would be" if result.dry_run else "were"
        doubled, rows = format_count(result.doubled_keys, "key"), format_count(result.rows_deleted, "row")
        line = f"{doubled} by {key} in {result.table} had several rows: {rows} {verb} deleted  {_seconds(result)}"
    else:
        line = f"nothing to do in {result.table}: each key by {key} has one row"
    yield ("  ".join((line, *result.notes)),)


def manifests(result: ManifestReport) -> Iterator[Block]:
    """Show the number of manifests before and after."""
    before, after = result.manifests_before, result.manifests_after
    line = f"nothing to do in {result.table}: {format_count(before, 'manifest')}"
    if before != after:
        entries = f"entries {'to copy' if result.dry_run else 'copied'} {result.entries:,}"
        line = f"manifests of {result.table}: {before:,} -> {after:,}  {entries}  {_seconds(result)}"
    yield ("  ".join((line, *result.notes)),)


def maintenance(result: MaintenanceReport) -> Iterator[Block]:
    """Show each step of a pass under its heading, the failures, and the steps left for the next pass."""

    def blocks(step: MaintenanceStep) -> Look:
        rounds = getattr(result, step.rounds) if step.rounds else ()
        is_idle = step.idle and not rounds and step.name not in (*result.failed, *result.not_started)
        return chain([(step.idle,)] if is_idle else (), *map(committed, rounds), () if step.rounds else shown(step))

    shown = partial(_shown, result)
    yield from _by_step(blocks)
    failed = [f"{step} failed: {message}" for step, message in result.failed.items()]
    left = [f"no budget left for: {', '.join(result.not_started)}; the next pass resumes"] if result.not_started else []
    refused = [f"{step} left out: {message}" for step, message in result.unsupported.items()]
    yield from notes([*failed, *refused, *left])


def maintenance_plan(result: MaintenancePlan) -> Iterator[Block]:
    """Show the changes that each step of a pass would make, under its heading."""
    yield from _by_step(partial(_shown, result))
    yield from notes(f"{step} cannot be planned: {message}" for step, message in result.failed.items())


def fleet(result: FleetReport) -> Iterator[Block]:
    """Show the failed tables first, then a line for each table that changed, and what is left."""
    yield from _failed_tables(result.failed)
    counts = f"{format_count(len(result.tables), 'table')} changed or failed, {result.idle:,} needed nothing"
    yield ((f"{result.pattern}: {counts}", "bold"), f"  {result.seconds:,.1f} s")
    if result.tables:
        heads = ("table", "files", "delete files", "manifests", "written", "snapshots expired", "files deleted")
        yield Columns([*map(_maintained, result.tables)], heads, range(1, len(heads)))
    late = [f"no time left for {format_count(len(result.not_started), 'table')}"] if result.not_started else []
    yield from notes((*late, *_left_out(result.plan)))


def _maintained(report: MaintenanceReport) -> tuple[str, ...]:
    rewrites = (*report.merges, *report.clusterings)
    files = _change(sum(r.files_added for r in rewrites), sum(r.files_removed for r in rewrites))
    packed, expired, deleted = "", 0, 0
    if report.manifests and report.manifests.snapshot_ids:
        packed = f"{report.manifests.manifests_before:,} -> {report.manifests.manifests_after:,}"
    if report.expiry:
        expired, deleted = len(report.expiry.snapshot_ids_expired), sum(report.expiry.files_deleted.values())
    written = format_bytes(report.bytes_rewritten)
    return report.table, files, _delete_files(report), packed, written, f"{expired:,}", f"{deleted:,}"


def _delete_files(report: MaintenanceReport) -> str:
    """Return the change of the steps that rewrite or remove only delete files."""
    merged, dangling = report.rewritten_deletes, report.deletes
    removed = (merged.files_removed if merged else 0) + (dangling.delete_files if dangling else 0)
    return _change(merged.files_added if merged else 0, removed)


def fleet_plan(result: FleetPlan) -> Iterator[Block]:
    """Show the failed tables first, then what each table needs, and what the merges within the budget cost."""
    yield from _failed_tables(result.failed)
    price = "" if result.usd is None else f", {format_price(result.usd)} USD"
    cost = f"{format_count(result.files_saved, 'file')} less for {format_bytes(result.bytes_to_write)} to write{price}"
    need = f"{format_count(len(result.tables), 'table')} to maintain, {result.idle:,} need nothing"
    yield ((f"{result.pattern}: {need}", "bold"), f"  {cost}")
    if result.tables:
        heads = ("table", "health", "files less", "to write", "left to write", "contested", "snapshots due", "USD")
        yield Columns([*map(_table_share, result.tables)], heads, range(1, len(heads)))
    yield from notes(_left_out(result))


def _table_share(share: TableShare) -> tuple[str, ...]:
    due = share.survey
    contested = format_bytes(share.bytes_contested) if share.bytes_contested else ""
    sizes = format_bytes(share.bytes_to_write), format_bytes(share.bytes_left), contested
    price = "" if share.usd is None else format_price(share.usd)
    return due.table, f"{due.health}", f"{share.files_saved:,}", *sizes, f"{due.snapshots_due:,}", price


def table_policy(result: TablePolicy) -> Iterator[Block]:
    """Show each key of a policy with its value and its origin; keys with their defaults come last."""
    file = "no configuration file" if result.path is None else result.path
    yield (result.table, "bold"), f"  {file}"
    ranked = sorted(result.keys, key=lambda origin: origin.source.startswith("default"))
    rows = [
        (one.key, "unset" if one.value is None else json.dumps(one.value), one.source, ", ".join(one.overridden))
        for one in ranked
    ]
    yield Columns(rows, ("key", "value", "from", "instead of"))
    left_out = f"{file} leaves this table out of `scan` and of `maintain` for many tables"
    yield from notes((*result.notes, *([] if result.is_chosen else [left_out])))


def _failed_tables(failed: Mapping[str, str]) -> Iterator[Block]:
    return (((f"{table} failed", "bold red"), f": {why}") for table, why in failed.items())


def _left_out(result: FleetPlan) -> Iterator[str]:
    if result.bytes_left:
        yield f"no budget left for merges of {format_bytes(result.bytes_left)}; the next pass resumes"
    if result.bytes_contested:
        tables = format_count(sum(share.bytes_contested > 0 for share in result.tables), "table")
        size = format_bytes(result.bytes_contested)
        yield f"other writers changed {tables} in the last ten minutes; a later pass merges {size} there"
    for table, service in result.left_alone.items():
        yield f"{table} left alone: {service} maintains it; use --take-over to work on it"
    yield from (f"{name} skipped: {why}" for name, why in result.skipped.items())
    yield from result.notes


def _by_step(blocks: Callable[[MaintenanceStep], Look]) -> Iterator[Block]:
    """Show the blocks of each step under its heading."""
    from icesize.maintenance.maintain import STEPS  # slow: imports the jobs

    for heading, steps in groupby(STEPS, attrgetter("heading")):
        yield from _section(heading, chain.from_iterable(map(blocks, steps)))


def _shown(result: MaintenanceReport | MaintenancePlan, step: MaintenanceStep) -> Look:
    of_step = getattr(result, step.name)
    return view(of_step) if step.is_shown(of_step) else ()


def _section(title: str, blocks: Look) -> Iterator[Block]:
    for number, block in enumerate(blocks):
        if not number:
            yield ((title, "bold underline"),)
        yield block


def overview(result: Facts) -> Iterator[Block]:
    """Show a table in a few lines, and advice."""
    summary = (f"{result.table}  {totals(result.inspection)}", headline(result.plan), history_line(result.history))
    return ((line,) for line in (*summary, *map(str, result.advice)))


VIEWS: Mapping[str, Callable[[Any], Look]] = {
    "CatalogSurvey": survey,
    "TableSurvey": table_survey,
    "Inspection": inspection,
    "Plan": plan,
    "PolicyComparison": comparison,
    "Report": report,
    "History": history,
    "ExpiryReport": expiry,
    "OrphanReport": orphans,
    "Verification": verification,
    "RepairReport": repair,
    "DeletesReport": deletes,
    "DanglingReport": dangling,
    "KeyReport": keys,
    "ManifestReport": manifests,
    "MaintenanceReport": maintenance,
    "MaintenancePlan": maintenance_plan,
    "FleetReport": fleet,
    "FleetPlan": fleet_plan,
    "TablePolicy": table_policy,
    "Overview": overview,
}
LINES: Mapping[str, Callable[[Any], str]] = {
    "Check": lambda check: f"{check.name}: {check.state}: {check.detail}",
    "Report": report_line,
    "PastCommit": commit_line,
    "Version": version_line,
}
