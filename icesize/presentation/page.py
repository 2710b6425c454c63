"""The HTML page of an overview or of a catalog: one document that fetches nothing and runs no script.

All values from a table are escaped. In addition, the page's own policy forbids scripts and network access.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

from icesize.planning.files import SkipReason
from icesize.presentation.charts import Picture, pictures, printable, svg
from icesize.presentation.facts import Facts, as_sentence
from icesize.presentation.views.tables import (
    HISTORY,
    SURVEY,
    WHOLE_TABLE,
    commit_cells,
    costs,
    freed,
    history_line,
    merges_of,
    named,
    survey_cells,
    ways,
)
from icesize.results import Advice
from icesize.units import format_bytes, format_count, format_time

if TYPE_CHECKING:
    from icesize.maintenance.passes.survey import CatalogSurvey

MOST_COMMITS = 200
"""Commits in the page's table, newest first."""
_COLUMNS = (0, 1, 2, 3, 4, 7, 8, 11, 13)
"""Columns of a history in the page's table."""
MOST_TABLES = 2_000
MOST_NOTES = 50
"""Tables and notes on the page of a catalog."""
WHY_SKIPPED = {
    SkipReason.WELL_SIZED: "as large as they should be",
    SkipReason.TOO_FEW: "merging them now would not lower the number of files",
    SkipReason.OVER_BUDGET: "due, but the budget is used up: the next pass resumes",
    SkipReason.HAS_DELETES: "they have pending deletes that must not be applied or cannot be read",
    SkipReason.OLD_SPEC: "of an old partition spec that icesize cannot write, or in which it does not cluster: "
    "icesize compact --into-current-spec moves its rows",
    SkipReason.NOT_PARQUET: "ORC or Avro",
    SkipReason.ENCRYPTED: "encrypted",
    SkipReason.LISTED_TWICE: "listed more than once by the table",
    SkipReason.NAN_PARTITION: "NaN is among their partition values",
    SkipReason.CONTESTED: "other writers keep rewriting their partitions",
    SkipReason.NO_ROW_IDS: "the next commit gives row ids to their rows, after the upgrade to format v3",
    SkipReason.CLUSTERED: "clustered already",
}
"""Reasons for unchanged files, in words."""


def page(facts: Facts) -> str:
    """Return the document of a table."""
    return _document(f"{facts.table}: files of the table", _body(facts, pictures(facts)))


def catalog_page(found: CatalogSurvey, pages: Mapping[str, str], made_ms: int) -> str:
    """Return the document of a catalog. `pages` has the relative address of the page of a table, by its name."""
    return _document(f"{found.pattern}: tables of the catalog", _catalog(found, pages, made_ms))


def _document(title: str, body: Iterable[str]) -> str:
    template = Template(resources.files("icesize.presentation").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(title=_text(title), body="\n".join(body))


def _catalog(found: CatalogSurvey, pages: Mapping[str, str], made_ms: int) -> Iterator[str]:
    boxes = [
        ("Tables", f"{len(found.tables):,}"),
        ("Files saved per scan", f"{found.files_saved:,}"),
        ("To write for that", format_bytes(found.bytes_to_write)),
        ("Snapshots due", f"{found.snapshots_due:,}"),
        ("Skipped", f"{len(found.skipped):,}"),
    ]
    yield from _header(found.pattern, f"seen {format_time(made_ms)} UTC by icesize", boxes)
    yield "<main><h2>Tables, those to which maintenance brings most first</h2>"
    rows = [survey_cells(table) for table in found.tables[:MOST_TABLES]]
    columns = [place for place in range(len(SURVEY)) if any(row[place] for row in rows)]
    yield _table([SURVEY[i] for i in columns], [[row[i] for i in columns] for row in rows], names=1, links=pages)
    yield _more(len(found.tables) - MOST_TABLES, "table")
    yield f'<p class="quiet">{_text(found.formula)}</p>'
    notes = [*found.doubts, *(f"{table.table}: {note}" for table in found.tables for note in table.notes)]
    if found.skipped or notes:
        yield "<h2>Skipped, and notes</h2>"
        skipped = [(".".join(each.name), each.kind, each.why) for each in found.skipped]
        yield _table(("Name", "Kind", "Reason"), skipped, names=2, words=2) if skipped else ""
        yield "".join(f"<p>{_sentence(note)}</p>" for note in notes[:MOST_NOTES])
        yield _more(len(notes) - MOST_NOTES, "note")
    yield "</main>"


def _text(value: str) -> str:
    return escape(printable(value))


def _body(facts: Facts, drawn: dict[str, Picture]) -> Iterator[str]:
    yield from _head(facts)
    yield "<main>"
    yield from _advice(facts.advice)
    if files := _grid(drawn, "sizes", "files"):
        yield f"<h2>Files</h2>{files}"
    if facts.inspection.files:
        yield from _plan(facts)
    yield from _partitions(facts, drawn)
    yield from _commits(facts, drawn)
    yield "</main>"


def _head(facts: Facts) -> Iterator[str]:
    inspection, history = facts.inspection, facts.history
    snapshot = f"snapshot {inspection.snapshot_id}" if inspection.snapshot_id is not None else "no snapshot"
    boxes = [
        ("Partitions", f"{inspection.partitions:,}"),
        ("Files", f"{inspection.files:,}"),
        ("Size", format_bytes(inspection.size_bytes)),
        ("Rows", f"{inspection.rows:,}"),
        (f"Files < {format_bytes(inspection.small_file_limit_bytes)}", f"{inspection.small_files:,}"),
        ("Most in one partition", f"{inspection.small_files_max:,}"),
    ]
    if inspection.deletes.files:
        boxes.append(("Files with deletes", f"{inspection.deletes.files:,}"))
    if history.write_amplification is not None:
        boxes.append(("Bytes written per byte ingested", f"{history.write_amplification:.2f}"))
    if history.seconds_per_batch is not None:
        boxes.append(("Seconds per batch, median", f"{history.seconds_per_batch:.2f}"))
    yield from _header(facts.table, f"{snapshot} · seen {format_time(facts.made_ms)} UTC by icesize", boxes)


def _header(title: str, seen: str, values: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Return the name of the subject, when it was seen, and its most important values in boxes."""
    boxes = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in values)
    yield f'<header><h1>{_text(title)}</h1><p class="quiet">{_text(seen)}</p><dl class="facts">{boxes}</dl></header>'


def _advice(advice: Sequence[Advice]) -> Iterator[str]:
    yield "<h2>What to do</h2>"
    well = "" if any(one.command for one in advice) else " well"
    items = "".join(f"<li>{_sentence(one.sentence)}{_command(one.command)}</li>" for one in advice)
    yield f'<ul class="advice{well}">{items}</ul>'


def _sentence(text: str) -> str:
    """Return HTML in which text between backticks is code."""
    parts = _text(text).split("`")
    if len(parts) % 2 == 0:
        return _text(text)
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def _command(command: str | None) -> str:
    return f"<pre><code>{_text(command)}</code></pre>" if command else ""


def _grid(drawn: dict[str, Picture], *names: str) -> str:
    """Return charts, side by side if the page is wide enough."""
    figures = "".join(_figure(name, drawn[name]) for name in names if name in drawn)
    return f'<div class="grid">{figures}</div>' if figures else ""


def _figure(name: str, picture: Picture) -> str:
    label = f'<svg role="img" aria-label="{_text(picture.alt_text)}"'
    drawing = svg(picture, prefix=f"{name}-").replace("<svg", label, 1)
    caption = f'<figcaption class="quiet">{_text(picture.caption)}</figcaption>' if picture.caption else ""
    return f'<figure class="card" id="{name}"><h3>{_text(picture.title)}</h3>{drawing}{caption}</figure>'


def _plan(facts: Facts) -> Iterator[str]:
    plan = facts.plan
    yield '<h2>What <code>compact</code> would do</h2><div class="grid">'
    yield '<div class="card"><h3>Merges</h3>'
    yield f"<p>{_text(_plan_sentence(facts))}</p>"
    yield "".join(f"<p>{_sentence(as_sentence(line.strip()))}</p>" for line in costs(facts.inspection.cost))
    if merges := merges_of(plan):
        rows = [
            (named(m.label, m.number, "merge"), f"{m.before:,}", f"{m.after:,}", format_bytes(m.size_bytes))
            for m in merges
        ]
        each = ", each" if len(rows) < len(plan.groups) else ""
        yield _table(("Partition", f"Files{each}", f"then{each}", "Size in all" if each else "Size"), rows, names=1)
        yield _more(len(plan.groups) - sum(m.number for m in merges), "merge")
    yield '</div><div class="card"><h3>Files that stay unchanged, and why</h3>'
    skipped = sorted(plan.skipped_by_reason.items(), key=lambda item: -item[1])
    reasons = [(reason, f"{files:,}", WHY_SKIPPED[SkipReason(reason)]) for reason, files in skipped]
    yield _table(("Reason", "Files", "In words"), reasons, names=1, words=2) if reasons else "<p>No file.</p>"
    yield "".join(f"<p>{_sentence(note)}</p>" for note in plan.notes)
    yield "</div></div>"


def _plan_sentence(facts: Facts) -> str:
    plan = facts.plan
    if not plan.groups:
        return "Nothing to merge."
    gone = f" {freed(plan)} would be removed." if freed(plan) else ""
    return (
        f"A compaction would write {format_bytes(plan.bytes_to_write)}{ways(plan.forecast)}. No partition would hold "
        f"more than {format_count(plan.small_files_max, 'mergeable small file')}.{gone}"
    )


def _partitions(facts: Facts, drawn: dict[str, Picture]) -> Iterator[str]:
    trends = facts.trends
    if not trends.times_ms:
        return
    yield "<h2>Partitions over time</h2>"
    if len(trends.times_ms) > 1:
        first, last = (format_time(trends.times_ms[place]) for place in (0, -1))
        seen = f"{format_count(len(trends.times_ms), 'commit')} from {first} to {last} UTC, the newest at the right"
        lost = f"; the manifests of {trends.unreadable:,} more commits could not be read" if trends.unreadable else ""
        yield f'<p class="quiet">{_text(seen + lost)}. The worst partitions come first.</p>'
        yield _grid(drawn, "small", "deletes", "small-all") or "<p>There were no small files and no delete files.</p>"
    rows = [
        (p.label or WHOLE_TABLE, f"{p.files:,}", f"{p.small_files[-1]:,}", f"{p.delete_files[-1]:,}", f"{p.worst:,}")
        for p in trends.partitions
    ]
    heads = ("Partition", "Files", "small", "delete files", "small and delete files, maximum")
    yield f"<details><summary>{format_count(len(rows), 'partition')} in numbers</summary>"
    yield _table(heads, rows, names=1)
    yield f"{_more(trends.left_out, 'partition')}</details>"


def _commits(facts: Facts, drawn: dict[str, Picture]) -> Iterator[str]:
    history = facts.history
    yield "<h2>Commits</h2>"
    yield f'<p class="quiet">{_text(" · ".join(history_line(history)))}</p>'
    if not history.commits:
        return
    yield _grid(drawn, "amplification", "seconds")
    if history.batches and "seconds" not in drawn:
        yield '<p class="quiet">No batch has a recorded duration.</p>'
    shown = history.commits[:MOST_COMMITS]
    yield f"<details><summary>The newest {format_count(len(shown), 'commit')} in numbers</summary>"
    yield _table([HISTORY[i] for i in _COLUMNS], [[commit_cells(c)[i] for i in _COLUMNS] for c in shown], names=3)
    yield f"{_more(history.commits_kept - len(shown), 'older commit')}</details>"


def _table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    names: int,
    words: int | None = None,
    links: Mapping[str, str] | None = None,
) -> str:
    """Return an HTML table; the first `names` columns are text, and column `words` has sentences.

    A value of the first column that is in `links` leads to its address.
    """

    def kind(column: int) -> str:
        if column == words:
            return ' class="words"'
        return (' class="name"' if names == 1 else ' class="text"') if column < names else ""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(f"<{tag}{kind(i)}>{shown(i, value)}</{tag}>" for i, value in enumerate(row))

    def shown(column: int, value: str) -> str:
        link = (links or {}).get(value) if column == 0 else None
        return f'<a href="{_text(link)}">{_text(value)}</a>' if link else _text(value)

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in rows)
    return (
        f'<div class="table"><table><thead><tr>{cells("th", heads)}</tr></thead><tbody>\n{body}</tbody></table></div>'
    )


def _more(number: int, noun: str) -> str:
    more = format_count(number, f"more {noun}")
    return f'<p class="quiet">and {more}</p>' if number > 0 else ""
