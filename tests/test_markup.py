"""What values show of themselves in a notebook."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from icesize import Report
from icesize.markup import MOST_ROWS, Bar, card
from tests.support.tables import arrow, make_table

EVIL = "<script>alert('&')</script>"


class Page(HTMLParser):
    """The texts of a piece of HTML, its tags, and whether each that was opened was closed in its turn."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.feed(html)
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
    """Titles, facts, bars, cells and sentences may say anything; none of it becomes a tag."""
    html = card(
        EVIL, [(EVIL, EVIL)], bars=[Bar(EVIL, EVIL, 1.0, "#000")], rows=[(EVIL,), (EVIL,)], sentences=[EVIL]
    )  # fmt: skip
    page = Page(html)
    assert page.tags == {"div", "span", "table", "tr", "td"}
    assert "".join(page.texts).count(EVIL) == 8
    assert "<script" not in html


def test_colours_are_those_of_the_page() -> None:
    """No text or background has a colour of its own, so it is read on light and dark pages; nothing is fetched."""
    html = card("t", [("a", "1")], rows=[("n",), ("v",)], sentences=["s"])
    assert "color:inherit" in html
    assert "color:#" not in html
    assert "http" not in html


def test_long_tables_are_cut_and_counted() -> None:
    """Twenty lines are shown, and how many more there are."""
    page = Page(card("t", rows=[("n",), *((f"v{i}",) for i in range(MOST_ROWS + 5))]))
    assert f"v{MOST_ROWS - 1}" in page.texts
    assert f"v{MOST_ROWS}" not in page.texts
    assert page.texts[-1] == "and 5 more"


def test_a_table_without_lines_is_left_out() -> None:
    """Names of columns alone say nothing."""
    assert Page(card("t", rows=[("partition", "files")])).texts == ["t"]


def test_values_show_what_they_hold(lake: SqlCatalog) -> None:
    """Inspection, plan, report and history of a table are pieces of HTML with their figures in them."""
    written = make_table(lake, name="db.events")
    for number in range(8):
        written.append(arrow(range(3), "ab"[number % 2]))
    table = icesize.open(None, "lake.db.events", catalog=lake)
    texts = Page(table.inspect()._repr_html_()).texts
    assert {"lake.db.events", " 8", "kind=a", "small files (< 384 MiB)"} <= set(texts)
    assert any("`icesize compact` would merge 8 files into 2" in text for text in texts)
    assert any(text.startswith("plan: 2 partitions, 8 -> 2 files") for text in Page(table.plan()._repr_html_()).texts)
    report = table.compact()
    assert {f" {report.snapshot_ids[0]} replace", " +2 -8"} <= set(Page(report._repr_html_()).texts)
    assert {"merge", "other", "+2 -8"} <= set(Page(table.history()._repr_html_()).texts)
    assert "plan: nothing to merge, 2 files stay" in Page(table.plan()._repr_html_()).texts


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (Report(table="t", batch_id=3, already_committed=True), "batch 3 of t: committed already"),
        (Report(table="t", conflicts=("lost to another writer",)), "nothing was committed"),
    ],
)
def test_reports_of_nothing_say_so(report: Report, words: str) -> None:
    """A report without a commit shows no figures."""
    page = Page(report._repr_html_())
    assert words in page.texts
    assert "seconds" not in "".join(page.texts)
