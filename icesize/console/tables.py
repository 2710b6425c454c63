"""How people see inspections, plans and reports. Decides nothing; the same lines without colour when piped.

Lines are never wrapped or cut by us: a terminal does that, a pipe gets them whole. Only bars follow the width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from icesize.planning.inspection import Inspection, PartitionSizes, SizeClass
from icesize.planning.plan import Plan
from icesize.report import Report
from icesize.table.commit.ledger import LedgerEntry
from icesize.units import format_bytes, format_count, format_strategies

MOST_BAR_CELLS = 36
MOST_LINES = 10
"""Partitions that are named one by one; the others are counted."""

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def console_on(file: TextIO | None = None, *, stderr: bool = False, silent: bool = False) -> Console:
    """A console on a stream, on standard output or on standard error, or one that shows nothing; colours only if that
    is a terminal."""
    return Console(file=file, stderr=stderr, highlight=False, quiet=silent, force_terminal=False if silent else None)


def show_inspection(console: Console, inspection: Inspection) -> None:
    """How well sized a table is: totals, bars by size, the worst partitions, what is ineligible, advice."""
    head = (
        f"snapshot {inspection.snapshot_id}" if inspection.snapshot_id else "no snapshot",
        format_count(inspection.partitions, "partition"),
        format_count(inspection.files, "file"),
        format_bytes(inspection.size_bytes),
        format_count(inspection.rows, "row"),
    )
    _line(console, (inspection.table, "bold"), "  " + "  ".join(head))
    show_bars(console, inspection)
    # one small file in a partition is the fewest there can be
    _show_partitions(console, "most small files", [p for p in inspection.worst if p.mergeable > 1], _in_words)
    _show_partitions(console, "ineligible", inspection.held_back_in, lambda p: _reasons(p.held_back))
    for sentence in inspection.advice:
        _line(console, ("! ", "yellow"), sentence)


def show_bars(console: Console, inspection: Inspection, full_bar_files: int = 0) -> None:
    """One bar for small files, one for each of their size classes, one for well-sized files; all on one scale.

    A full bar stands for the most files that a line has, or for `full_bar_files` if that is more.
    """
    well_sized = inspection.files - inspection.small_files
    limit = format_bytes(inspection.small_file_limit_bytes)
    rows = [
        (f"small files (< {limit})", inspection.small_files, inspection.small_bytes, "yellow"),
        *((f"  {name}", c.files, c.size_bytes, "dim yellow") for name, c in _named(inspection.histogram) if c.files),
        ("well sized", well_sized, inspection.size_bytes - inspection.small_bytes, "green"),
    ]
    names = max(len(name) for name, *_ in rows)
    counts = max(len(f"{files:,}") for _, files, *_ in rows)
    cells = max(4, min(MOST_BAR_CELLS, console.width - names - counts - 16))
    most = max(1, full_bar_files, inspection.small_files, well_sized)
    for name, files, size_bytes, style in rows:
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


def show_report(console: Console, report: Report, *, known: Sequence[str] = ()) -> None:
    """What a compaction came to. Notes in `known` have been shown with the plan already."""
    if report.snapshot_ids:
        done = " ".join(f"snapshot {i} {o}" for i, o in zip(report.snapshot_ids, report.operations, strict=True))
        changed = f"  -{report.files_removed:,} +{format_count(report.files_added, 'file')}, rows unchanged"
        _line(console, (done, "bold green"), changed)
        ways = format_strategies(report.bytes_copied, report.pages_copied, report.bytes_decoded)
        copied = f" ({ways})" if report.bytes_copied else ""
        seconds = report.seconds.get("total", 0.0)
        _line(console, f"{format_bytes(report.bytes_written)} written{copied} in {seconds:.1f} s")
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
    point = f"a value is in {queries['point_files']:,.1f} files of {format_bytes(round(queries['point_bytes']))}"
    return f"{point}, a tenth of all in {queries['range_files']:,.1f} of {format_bytes(round(queries['range_bytes']))}"


def _show_decoded(console: Console, because: Mapping[str, int]) -> None:
    """Why bytes are not copied, in one line."""
    if because:
        _line(console, f"decoded: {_reasons(because)}")


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


@contextmanager
def merging(console: Console, total_bytes: Callable[[], int]) -> Iterator[Callable[[int], None]]:
    """A progress bar by bytes while merges run; yields the function that hears the bytes of each finished merge.

    It begins with the first of them, when `total_bytes()` is known. Shows nothing where there is no terminal.
    """
    if not console.is_terminal:
        yield lambda size_bytes: None
        return
    columns = (TextColumn("merging"), BarColumn(None), TextColumn("{task.fields[words]}"), TimeElapsedColumn())
    # transient: the lines that stay are the plan and the outcome
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("merging", total=None, words="")
        done = 0

        def advance(size_bytes: int) -> None:
            nonlocal done
            done += size_bytes
            words = f"{format_bytes(done)} of {format_bytes(total_bytes())}"
            progress.update(task, total=total_bytes(), completed=done, words=words)

        yield advance


def _line(console: Console, *parts: str | tuple[str, str]) -> None:
    console.print(Text.assemble(*parts), soft_wrap=True)


def _bar(share: float, cells: int, *, ascii_only: bool) -> str:
    """A bar of up to `cells` cells; something is always seen of a share above zero."""
    if ascii_only:
        return "#" * max(round(share * cells), share > 0)
    eighths = max(round(share * cells * 8), share > 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _named(classes: Sequence[SizeClass]) -> Iterator[tuple[str, SizeClass]]:
    lower = ""
    for size_class in classes:
        upper = format_bytes(size_class.below_bytes)
        yield (f"{lower} - {upper}" if lower else f"< {upper}"), size_class
        lower = upper


def _show_partitions(
    console: Console, title: str, partitions: Sequence[PartitionSizes], words: Callable[[PartitionSizes], str]
) -> None:
    if not partitions:
        return
    names = max(len(p.label) for p in partitions)
    _line(console, title)
    for partition in partitions:
        _line(console, f"  {partition.label or '(whole table)':<{names}}  {words(partition)}")


def _in_words(partition: PartitionSizes) -> str:
    small = format_count(partition.mergeable, "small file")
    return f"{small} of {partition.files:,}, {format_bytes(partition.small_bytes)}"


def _reasons(reasons: Mapping[str, int]) -> str:
    files = format_count(sum(reasons.values()), "file")
    return f"{files} ({', '.join(f'{reason} {n:,}' for reason, n in sorted(reasons.items()))})"


def _more(console: Console, count: int, noun: str) -> None:
    if count > MOST_LINES:
        _line(console, f"  and {format_count(count - MOST_LINES, f'more {noun}')}")
