"""What values show of themselves in a notebook."""

from __future__ import annotations

import json
import pkgutil
from dataclasses import fields
from html.parser import HTMLParser
from importlib import import_module

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from icesize import Report
from icesize.maintenance.jobs.rewrite_deletes import DeletesReport
from icesize.maintenance.passes.maintain import MaintenanceReport
from icesize.presentation.blocks import MOST_ROWS, Bars, Columns, html
from icesize.presentation.display import view_of
from icesize.presentation.views import view
from icesize.results import OneCommit, Result, text_of
from icesize.table.cleanup.expiry import ExpiryReport
from icesize.table.cleanup.orphans import OrphanReport
from tests.support.tables import arrow, make_table

PARTS = {"Clustering", "FilesScanned", "Finding", "ForgottenClusterBy", "Repaired"}
"""Parts of results, and one that the command line shows with the table's name."""
EVIL = "<script>alert('&')</script>"


class Page(HTMLParser):
    """The texts of a piece of HTML, its tags, and whether each that was opened was closed in its turn."""

    def __init__(self, html: str | None) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.feed(html or "")
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert {name for name, _ in attrs} <= {"style"}
        self.tags.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_what_comes_from_tables_is_escaped() -> None:
    """Lines, bars, heads and cells may say anything; none of it becomes a tag."""
    shown = html([((EVIL, "bold"), EVIL), Bars([(EVIL, 1, 1), ("", 0, 0)]), Columns([(EVIL,)], (EVIL,))])
    page = Page(shown)
    assert page.tags == {"div", "span", "table", "tr", "td"}
    assert "".join(page.texts).count(EVIL) == 5
    assert "<script" not in shown


def test_colours_are_those_of_the_page() -> None:
    """No text or background has a colour of its own, so it is read on light and dark pages; nothing is fetched."""
    shown = html([(("t", "bold yellow"), "a"), Columns([("v",)], ("n",))])
    assert "color:inherit" in shown
    assert "color:#" not in shown
    assert "http" not in shown


def test_long_tables_are_cut_and_counted() -> None:
    """Twenty lines are shown, and how many more there are."""
    page = Page(html([Columns([(f"v{i}",) for i in range(MOST_ROWS + 5)], ("n",))]))
    assert f"v{MOST_ROWS - 1}" in page.texts
    assert f"v{MOST_ROWS}" not in page.texts
    assert page.texts[-1] == "and 5 more"


def test_a_table_without_lines_is_left_out() -> None:
    """Names of columns alone say nothing."""
    assert Page(html([("t",), Columns([], ("partition", "files"))])).texts == ["t"]


def test_values_show_what_they_hold(lake: SqlCatalog) -> None:
    """Inspection, plan, report and history of a table are pieces of HTML with their figures in them."""
    written = make_table(lake, name="db.events")
    for number in range(8):
        written.append(arrow(range(3), "ab"[number % 2]))
    table = icesize.open(None, "lake.db.events", catalog=lake)
    texts = Page(table.inspect()._repr_html_()).texts
    assert {"lake.db.events", "  kind=a and 1 more partition", "small files (< 384 MiB)"} <= set(texts)
    assert any(text.startswith("2 partitions  8 files") for text in texts)
    assert any("`icesize compact` would merge 8 files into 2" in text for text in texts)
    assert any(text.startswith("plan: 2 partitions, 8 -> 2 files") for text in Page(table.plan()._repr_html_()).texts)
    report = table.compact()
    texts = Page(report._repr_html_()).texts
    assert {f"snapshot {report.snapshot_ids[0]} replace", "  -8 +2 files, rows unchanged", "merge", "commit"} <= {
        *texts
    }
    assert {"merge", "other", "+2 -8"} <= set(Page(table.history()._repr_html_()).texts)
    assert "plan: nothing to merge in 2 files" in Page(table.plan()._repr_html_()).texts


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (Report(table="t", batch_id=3, already_committed=True), "  batch 3 already committed to t"),
        (
            Report(table="t", files_added=1, files_removed=3, partitions_touched=1, rows_before=9, rows_after=4),
            "would be committed: -3 +1 file, 9 -> 4 rows",
        ),
        (
            Report(table="t", conflicts=("lost to another writer",)),
            "  nothing was committed to t  lost to another writer",
        ),
    ],
)
def test_reports_of_nothing_say_so(report: Report, words: str) -> None:
    """A report without a commit shows no figures."""
    page = Page(report._repr_html_())
    assert words in page.texts
    assert "seconds" not in "".join(page.texts)


def test_every_result_is_shown() -> None:
    """A class of results without a view would print as the code that makes it."""
    for module in pkgutil.walk_packages(icesize.__path__, "icesize."):
        if module.name.startswith(("icesize.planning", "icesize.table", "icesize.maintenance", "icesize.presentation")):
            import_module(module.name)
    view_of(Report())
    every = {*Result.__subclasses__(), *OneCommit.__subclasses__()} - {OneCommit}
    seen = {cls for cls in every if cls.__module__.startswith("icesize.")}
    assert {cls.__name__ for cls in seen - set(view.registry) - set(text_of.registry)} == PARTS


@pytest.mark.parametrize(
    "result",
    [
        Report(),
        ExpiryReport(),
        OrphanReport(),
        DeletesReport(),
        MaintenanceReport(merges=(Report(snapshot_ids=(1,), operations=("replace",)),)),
    ],
    ids=lambda result: type(result).__name__,
)
def test_a_result_is_a_document(result: Result) -> None:
    """Its dictionary is what JSON makes of it, ids are texts, and it prints as words."""
    document = result.to_dict()
    assert json.loads(json.dumps(document)) == document
    assert set(document) >= {field.name for field in fields(result)}  # type: ignore[arg-type]
    assert not str(result).startswith(type(result).__name__)
