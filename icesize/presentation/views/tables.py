"""The views of one table: inspections, plans, reports, versions and its history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from icesize.planning.files import MAIN
from icesize.planning.insight.health import TableSurvey
from icesize.planning.insight.inspection import Inspection, PartitionSizes, PendingDeletes
from icesize.planning.insight.scan_cost import LayoutCost, ScanCost
from icesize.planning.merging.simulation import PolicyComparison
from icesize.planning.partition_labels import label_of
from icesize.planning.plan import Forecast, Plan, alike, distinct
from icesize.presentation.blocks import Bars, Block, Columns
from icesize.presentation.facts import Facts
from icesize.presentation.views import (
    MOST_LINES,
    MOST_VERSIONS,
    change_of,
    format_price,
    more,
    notes,
    reasons_of,
    seconds_of,
    view,
)
from icesize.report import Report
from icesize.results import text_of
from icesize.table.past.commits import History, PastCommit
from icesize.table.past.versions import Version
from icesize.table.records.ledger import LedgerEntry
from icesize.units import format_bytes, format_count, format_seconds, format_time

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
_WORTH_A_LINE = ("OVER_BUDGET", "CONTESTED")


@view.register
def inspection(result: Inspection) -> Iterator[Block]:
    """Show file sizes of a table: totals, bars by size, the worst partitions, ineligible files, costs, advice."""
    snapshot = f"snapshot {result.snapshot_id}" if result.snapshot_id else "no snapshot"
    yield (result.table, "bold"), f"  {snapshot}"
    yield (f"{totals(result)}  {format_count(result.rows, 'row')}",)
    yield bars(result)
    # A partition with one small file cannot have fewer.
    yield from _partitions(
        "most small files", [p for p in result.worst if p.mergeable > 1],
        lambda p: f"{format_count(p.mergeable, 'small file')} of {p.files:,}{_with_bytes(p.alike, p.small_bytes)}",
    )  # fmt: skip
    yield from _partitions(
        "ineligible", result.ineligible_partitions, lambda p: reasons_of(p.ineligible) + _each(p.alike)
    )
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
    limit = format_bytes(result.small_file_limit_bytes)
    small = (f"small files (< {limit})", result.small_files, result.small_bytes)
    others = result.files - result.small_files, result.size_bytes - result.small_bytes
    return Bars((small, *classes, (f"well sized (from {limit})", *others)), full_bar_files)


def _partitions(
    title: str, partitions: Sequence[PartitionSizes], words: Callable[[PartitionSizes], str]
) -> Iterator[Block]:
    if partitions:
        yield (title,)
        yield Columns([(f"  {named(p.label, p.alike, 'partition')}", words(p)) for p in partitions])


def named(label: str, number: int, noun: str) -> str:
    """Return the label of the first of several alike partitions, and the number of the others."""
    others = f" and {format_count(number - 1, f'more {noun}')}" if number > 1 else ""
    return f"{label or WHOLE_TABLE}{others}"


def _each(number: int) -> str:
    return " each" if number > 1 else ""


def _with_bytes(number: int, size_bytes: int) -> str:
    return f"{_each(number)}, {format_bytes(size_bytes)}{' in all' if number > 1 else ''}"


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
    files, requests = format_count(cost.opened, "file"), format_count(cost.requests, "request")
    work = f"{files}, takes {format_seconds(cost.planning_seconds)} to plan, sends {requests}"
    return work if usd is None else f"{work}, {format_price(1000 * usd)} USD per 1,000 scans"


def health(result: Inspection) -> Iterator[Block]:
    """Show the health of a table in one line."""
    if result.problems:
        yield (f"{result.table} is unhealthy", "bold red"), f": {'; '.join(result.problems)}"
    else:
        yield ((f"{result.table} is healthy", "bold green"),)


@view.register
def plan(result: Plan, *, groups: bool = True) -> Iterator[Block]:
    """Show the plan in one line, ineligible files and warnings; with `groups` also the first merges."""
    yield ((headline(result), "bold"),)
    if groups:
        merges = merges_of(result)
        for one in merges:
            after = f"{format_count(one.after, 'file')}{_with_bytes(one.number, one.size_bytes)}"
            yield (f"  {named(one.label, one.number, 'merge')}  {one.before:,} -> {after}",)
        yield from more(len(result.groups), "merge", sum(m.number for m in merges))
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
        ranked = sorted(held.items(), key=lambda item: -sum(item[1].values()))
        shown = distinct(ranked, lambda item: tuple(sorted(item[1].items())))[:MOST_LINES]
        for (label, reasons), number in shown:
            yield (f"  {named(label, number, 'partition')}  {reasons_of(reasons)}{_each(number)}",)
        yield from more(len(held), "partition", sum(number for _, number in shown))
    yield from notes(result.notes)


class Merges(NamedTuple):
    """Merges of as many files into as many: the first partition, the number of merges, and the bytes of all."""

    label: str
    number: int
    before: int
    after: int
    size_bytes: int

    def plus(self, other: Merges) -> Merges:
        """Return both as one."""
        return self._replace(number=self.number + other.number, size_bytes=self.size_bytes + other.size_bytes)


def merges_of(result: Plan) -> list[Merges]:
    """Return the first merges of a plan, alike ones as one."""
    merges = (Merges(g.label, 1, len(g.inputs), g.outputs, g.size_bytes) for g in result.groups)
    return alike(merges, lambda merge: (merge.before, merge.after), Merges.plus)[:MOST_LINES]


def headline(result: Plan) -> str:
    """Return the changes of a plan in one line."""
    title, verb = (f"cluster ({result.clustering.by})", "cluster") if result.clustering else ("plan", "merge")
    if any(group.moves for group in result.groups):
        title = "plan to move rows to the current partition spec"
    if not result.groups:
        return f"{title}: nothing to {verb} in {format_count(result.files_before, 'file')}"
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
        yield (f"decoded: {reasons_of(because)}",)


@view.register
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


@text_of.register
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
    return "  ".join((*parts, seconds_of(result), *tail))


def rows_of(result: Report) -> str:
    """Return the change of rows: rows added, deleted rows left out, or the rows before and after a restore."""
    if result.rows_after is not None:
        return f"{result.rows_before or 0:,} -> {format_count(result.rows_after, 'row')}"
    if result.rows or result.batch_id is not None:
        return f"{result.rows:,} rows"
    return f"{format_count(result.rows_deleted, 'deleted row')} left out" if result.rows_deleted else "rows unchanged"


@view.register
def report(result: Report) -> Iterator[Block]:
    """Show one call: its line, its commit, and the seconds of each phase; a previewed restore shows only its effect."""
    if result.rows_after is not None and result.partitions_touched and not result.snapshot_ids:
        yield ((result.table, "bold"),)
        yield from committed(result)
        return
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


def streams(table: str, entries: Sequence[LedgerEntry]) -> Iterator[Block]:
    """Show each stream that has committed to the table, and its newest batch."""
    if entries:
        where = {e.branch: "" if e.branch == MAIN else f"branch {e.branch}" for e in entries}
        cells = [
            ((e.stream_id, "bold"), f"query {e.query_id}", f"batch {e.batch_id}", where[e.branch]) for e in entries
        ]
        yield Columns([row if any(where.values()) else row[:3] for row in cells])
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


@text_of.register
def version_line(version: Version) -> str:
    """Return one line for a version in a list."""
    label, snapshot_id, time, operation, _, size, _, writer = _version_cells(version)
    files, rows = format_count(version.files, "file"), format_count(version.rows, "row")
    by = f"{operation}, {writer}" if writer else operation
    return f"{label} at {snapshot_id}, {time} UTC: {files} of {size}, {rows}, by {by}"


@view.register
def history(result: History) -> Iterator[Block]:
    """Show one line per commit, newest first, and a summary of all commits."""
    yield ((result.table, "bold"), *(f"  {part}" for part in history_line(result)))
    if not result.commits:
        return
    yield Columns([*map(commit_cells, result.commits)], HISTORY, range(3, len(HISTORY)), _SPARE_IN_HISTORY)
    if result.commits_kept > len(result.commits):
        older = format_count(result.commits_kept - len(result.commits), "older commit")
        yield ((f"and {older}: use --limit {result.commits_kept} for all", "dim"),)


def history_line(result: History) -> list[str]:
    """Return the parts of a summary of all commits."""
    if not result.commits or result.since_ms is None:
        return ["no history: nothing was ever written to it"]
    parts = [f"{format_count(result.commits_kept, 'commit')} since {format_time(result.since_ms)}"]
    if result.write_amplification is not None:
        parts.append(f"write amplification {result.write_amplification:.2f}")
    if result.seconds_per_batch is not None:
        parts.append(f"median batch {format_seconds(result.seconds_per_batch)}")
    return parts


def commit_cells(commit: PastCommit) -> tuple[str, ...]:
    """Return a commit in the columns of HISTORY; facts that its snapshots do not record are blank."""
    ratios = (commit.write_amplification, commit.amplification_so_far)
    return (
        format_time(commit.timestamp_ms), commit.kind, commit.author, _count(commit.rows),
        change_of(commit.files_added, commit.files_removed),
        change_of(commit.delete_files_added, commit.delete_files_removed),
        *(format_bytes(size) if size else "" for size in (commit.bytes_ingested, commit.bytes_written)),
        *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        _count(commit.small_files_max), _count(commit.total_files), _count(commit.total_delete_files),
        "" if commit.seconds is None else f"{commit.seconds:.2f}",
    )  # fmt: skip


@text_of.register
def commit_line(commit: PastCommit) -> str:
    """Return one line for a commit in a list, with the column name before each value."""
    cells = zip(HISTORY, commit_cells(commit), strict=True)
    return "  ".join(cell if name in HISTORY[:3] else f"{name} {cell}" for name, cell in cells if cell)


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


@view.register
def overview(result: Facts) -> Iterator[Block]:
    """Show a table in a few lines, and advice."""
    summary = (
        f"{result.table}  {totals(result.inspection)}",
        headline(result.plan),
        "  ".join(history_line(result.history)),
    )
    return ((line,) for line in (*summary, *map(str, result.advice)))


def survey_cells(table: TableSurvey) -> tuple[str, ...]:
    """Return a table in the columns of SURVEY."""
    return (
        table.table, f"{table.health}", f"{table.seconds_saved:,.1f}", f"{table.files:,}", f"{table.files_saved:,}",
        f"{table.delete_files:,}", format_bytes(table.bytes_to_write),
        "" if table.usd is None else format_price(table.usd), f"{table.snapshots:,}", f"{table.snapshots_due:,}",
        format_bytes(table.metadata_bytes + table.manifest_bytes),
    )  # fmt: skip
