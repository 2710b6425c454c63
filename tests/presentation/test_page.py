"""The page of a table: it says what `inspect`, `plan` and `history` say, whatever the table holds and is called."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from icesize.environment import Environment
from icesize.errors import TableError
from icesize.planning.files import PartitionKey, SkipReason
from icesize.presentation.facts import LEAST_RIVALRY_MS, MANY_COMMITS, advice_for, as_sentence
from icesize.presentation.overview import Overview
from icesize.presentation.page import WHY_SKIPPED
from icesize.presentation.views.tables import costs
from icesize.results import Advice
from icesize.sized_table import SizedTable
from icesize.table.records.ledger import LedgerEntry
from icesize.table.records.summary import SECONDS
from icesize.units import format_bytes
from tests.support.html_pages import Page, taken_apart
from tests.support.row_deletes import delete_rows
from tests.support.tables import (
    append,
    arrow,
    compact,
    make_table,
    request_on,
    run,
    small_files,
    two_files,
    write,
)

HOSTILE = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</svg></style><!--", "&lt;b&gt;", "$x_1$ $\\frac$",
    "${body} $title", "a\x00b\x1b[31m\x7f", "line\nbreak\r", "\u202egnp.exe", "漢字 😀", "`tick`", "x" * 200,
    "_private", "",
]  # fmt: skip


def opened(lake: SqlCatalog) -> SizedTable:
    return icesize.open(None, "db.t", catalog=lake)


def paged(overview: Overview) -> Page:
    """The page, with what holds of each: nothing runs, nothing is fetched, no id stands for two things."""
    html = overview.to_html()
    assert html.encode("utf-8")
    page = taken_apart(html)
    assert len(page.ids) == len(set(page.ids))
    assert not {"script", "iframe", "object", "link", "img"} & set(page.names)
    assert not [name for name in page.attributes if name.startswith("on")]
    assert [target for target in page.pointed_at if not target.startswith(("#", "data:image/png;base64,"))] == []
    known = set(page.ids)
    assert [target for target in page.pointed_at if target.startswith("#") and target[1:] not in known] == []
    assert set(re.findall(r"url\(#([^)]*)\)", html)) <= known
    assert not re.search(r"(fill|stroke): *#", html), "a colour that does not follow the page's"
    addresses = set(re.findall(r"https?://[^\s\"'<]+", html))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    return page


def filled(lake: SqlCatalog, batches: int = 4) -> SizedTable:
    """Batches of a stream into two partitions, one merge, and one partition with small files and a delete."""
    make_table(lake)
    for number in range(batches):
        append(lake, [number], "a", batch=number)
        append(lake, [100 + number], "b")
    compact(lake, "b")
    table = append(lake, [200], "a", batch=batches)
    delete_rows(lake, small_files(table, "a")[0])
    return opened(lake)


def test_the_page_says_what_the_calls_say(lake: SqlCatalog) -> None:
    """Totals of `inspect`, cost and merges of `plan`, reasons, commits of `history`, partitions with their numbers."""
    table = filled(lake)
    inspection, plan, history = table.inspect(), table.plan(), table.history()
    overview = table.report()
    page = paged(overview)
    assert (overview.inspection, overview.history) == (inspection, history)
    for words in (
        f"snapshot {inspection.snapshot_id}",
        f"Partitions {inspection.partitions}",
        f"Files {inspection.files}",
        f"Size {format_bytes(inspection.size_bytes)}",
        f"Rows {inspection.rows}",
        f"Files < 384 MiB {inspection.small_files}",
        f"Files with deletes {inspection.deletes.files}",
        f"Bytes written per byte ingested {history.write_amplification:.2f}",
        f"A compaction would write {format_bytes(plan.bytes_to_write)}",
        "icesize compact lake.db.t",
        *(as_sentence(line.strip()) for line in costs(inspection.cost)),
    ):
        assert words in page.text
    merges, reasons, partitions, commits = page.tables
    assert merges[1:] == [[g.label, str(len(g.inputs)), "1", format_bytes(g.size_bytes)] for g in plan.groups]
    assert {row[0]: int(row[1]) for row in reasons[1:]} == plan.skipped_by_reason
    assert [row[2] for row in reasons[1:]] == [WHY_SKIPPED[SkipReason(row[0])] for row in reasons[1:]]
    assert partitions[1:] == [["kind=a", "5", "5", "1", "6"], ["kind=b", "1", "1", "0", "4"]]
    assert [row[2] for row in commits[1:]] == [c.author for c in history.commits]
    assert [row[7] for row in commits[1:]] == [f"{c.total_files}" for c in history.commits]
    assert {"now: 6", "after icesize compact: 2"} <= set(page.drawn["sizes"])
    assert {"kind=a", "kind=b"} <= set(page.drawn["small"])
    assert "kind=a" in page.drawn["deletes"]
    assert "small-all" not in page.drawn


def test_pictures_show_the_seconds_of_batches_where_they_are_told(lake: SqlCatalog) -> None:
    """Batches whose commits do not record how long they took have no chart, and the page says that."""
    make_table(lake)
    append(lake, [1], batch=0)
    page = paged(opened(lake).report())
    assert "No batch has a recorded duration" in page.text
    assert set(page.drawn) == {"sizes"}, "one commit is no history"
    table = lake.load_table("db.t")
    run(lake, request_on(table, [write(table, [2])], batch=1, summary={SECONDS: "2.5"}), table)
    page = paged(opened(lake).report())
    assert "No batch says" not in page.text
    assert "Seconds per batch, median 2.50" in page.text
    assert set(page.drawn) == {"sizes", "files", "small", "amplification", "seconds"}


def test_a_table_without_snapshots_has_a_page(lake: SqlCatalog) -> None:
    """Nothing to draw over time, nothing to do, and it says so."""
    make_table(lake)
    overview = opened(lake).report()
    page = paged(overview)
    assert overview.advice == (Advice("Nothing to do: no partition holds more files than it has to."),)
    for words in ("no snapshot", "Nothing to do", "no history"):
        assert words in page.text
    assert not page.drawn
    assert overview.to_png().startswith(b"\x89PNG")


def test_an_emptied_table_has_a_page(lake: SqlCatalog) -> None:
    """Snapshots but no files: the past is there, the present is empty."""
    make_table(lake).append(arrow([1, 2]))
    lake.load_table("db.t").delete("id > 0")
    overview = opened(lake).report()
    page = paged(overview)
    assert "Files 0" in page.text
    assert overview.sizes.before_name.startswith("on ")
    assert "kind=a" in page.drawn["small"]


def test_a_thousand_partitions(lake: SqlCatalog) -> None:
    """All are in the numbers, the worst are named in the picture, all are in a picture of their own, and the page stays
    below two megabytes."""
    make_table(lake, {"id": "identity"})
    table = lake.load_table("db.t")
    ids = list(range(1_100))
    # the worst partitions differ, because alike ones share a line
    worst = [write(table, [number]) for number in ids[:30] for _ in range(2 + number)]
    # nobody looks into a partition's only file
    once = [replace(worst[0], path=f"{worst[0].path}-{n}", partition=PartitionKey(0, (n,))) for n in ids[30:]]
    run(lake, request_on(table, worst), table)
    table = lake.load_table("db.t")
    run(lake, request_on(table, once), table)
    overview = opened(lake).report()
    html = overview.to_html()
    page = paged(overview)
    numbers = page.tables[-2]
    assert len(numbers) == 1 + 1_000
    assert {row[0] for row in numbers[1:31]} == {f"id={number}" for number in ids[:30]}
    assert "and 100 more partitions" in page.text
    assert "1,000 partitions in numbers" in page.text
    assert sum(text.startswith("id=") for text in page.drawn["small"]) == 24
    assert {"the worst", "the least"} <= set(page.drawn["small-all"])
    assert len(html) < 2_000_000


def test_names_cannot_break_out(lake: SqlCatalog) -> None:
    """Partitions, streams, engines and a table with the worst of names: all are shown as text, and nothing runs."""
    make_table(lake)
    for number, name in enumerate(HOSTILE):
        table = lake.load_table("db.t")
        entry = LedgerEntry(name, "q", number)
        run(lake, request_on(table, [write(table, [number], name)], batch=entry), table)
    lake.load_table("db.t").append(arrow([99]), snapshot_properties={"engine-name": HOSTILE[0]})
    overview = opened(lake).report()
    told = (Advice("run `icesize <b>`", f"icesize <b> {HOSTILE[0]}"),)
    inspection = replace(overview.inspection, table=HOSTILE[0], advice=told)
    named = replace(overview, inspection=inspection, advice=advice_for(inspection, overview.plan, overview.history))
    page = paged(named)
    assert f"{HOSTILE[0]} snapshot" in page.text
    assert "icesize <b> <script>alert(1)</script>" in page.text
    labels = {row[0] for row in page.tables[-2][1:]}
    assert {"kind=<script>alert(1)</script>", "kind=漢字 😀", "kind=$x_1$ $\\frac$"} <= labels
    # what cannot be printed has the name that the command line reads
    assert {r'kind="line\nbreak\r"', r'kind="a\u0000b\u001b[31m\u007f"', r'kind="\u202egnp.exe"'} <= labels
    authors = [row[2] for row in page.tables[-1][1:]]
    assert authors[0] == HOSTILE[0]
    assert f"{HOSTILE[1]} batch 1" in authors
    assert "kind=$x_1$ $\\frac$" in page.drawn["small"]
    assert named.to_png().startswith(b"\x89PNG")


def test_sizes_are_compared_with_a_chosen_snapshot(lake: SqlCatalog) -> None:
    """Ids may be texts; one that the table does not have is told in a sentence."""
    table = two_files(lake)
    first = table.metadata.snapshots[0]
    sizes = opened(lake).report(since=str(first.snapshot_id)).sizes
    assert (sum(sizes.before.files), sum(sizes.after.files), sizes.after_name) == (1, 2, "now")
    assert sizes.before_name.endswith(" UTC")
    with pytest.raises(TableError, match="Cannot find snapshot 5"):
        opened(lake).report(since=5)


def test_without_work_the_worst_time_is_compared_with_now(lake: SqlCatalog) -> None:
    """After a compaction the picture shows what it brought."""
    two_files(lake)
    compact(lake)
    sizes = opened(lake).report().sizes
    assert (sum(sizes.before.files), sum(sizes.after.files), sizes.after_name) == (2, 1, "now")
    before = two_files_plan(lake)
    assert before.sizes.before_name == "now"


def two_files_plan(lake: SqlCatalog) -> Overview:
    """The overview of a table with something to merge."""
    append(lake, [7])
    append(lake, [8])
    return opened(lake).report()


def test_advice_names_commands_to_copy(lake: SqlCatalog) -> None:
    """What `inspect` advises, with the table in the command; names are quoted for a shell; others' tables are told of
    `maintain`, long histories of expiry."""
    make_table(lake)
    for number in range(3):
        lake.load_table("db.t").append(arrow([number]))
    overview = opened(lake).report()
    told = (Advice("2 files: run `icesize compact`", "icesize compact 'lake.db.my t'"),)
    inspection = replace(overview.inspection, table="lake.db.my t", advice=told)
    oldest_ms = overview.history.commits[0].timestamp_ms - LEAST_RIVALRY_MS
    history = replace(overview.history, commits_kept=MANY_COMMITS + 1, since_ms=oldest_ms)
    found = advice_for(inspection, overview.plan, history)
    assert [one.command for one in found] == [
        "icesize compact 'lake.db.my t'",
        "icesize maintain 'lake.db.my t' --budget-seconds 600",
        "icesize expire-snapshots 'lake.db.my t' --dry-run",
    ]
    assert found[0].sentence == "2 files: run `icesize compact`."
    assert advice_for(inspection, overview.plan, overview.history) == found[:1], "a load of three files is no stream"


def test_every_reason_is_told_in_words() -> None:
    """A reason that somebody adds needs words, too."""
    assert set(WHY_SKIPPED) == set(SkipReason)


def test_an_overview_is_a_document(lake: SqlCatalog, tmp_path: Path) -> None:
    """The dictionary is JSON-ready; the file's name decides between page and image, which are the same again as long as
    the table is; it prints in a few lines."""
    overview = filled(lake).report()
    document = json.loads(json.dumps(overview.to_dict()))
    assert document["table"] == "lake.db.t"
    assert document["sizes"]["before"]["files"] == list(overview.sizes.before.files)
    assert [p["label"] for p in document["trends"]["partitions"]] == ["kind=a", "kind=b"]
    assert document["made_ms"] == overview.made_ms
    overview.write(tmp_path / "o.html")
    overview.write(str(tmp_path / "o.PNG"))
    assert (tmp_path / "o.html").read_text(encoding="utf-8") == overview.to_html()
    assert (tmp_path / "o.PNG").read_bytes() == overview.to_png()
    assert str(overview).splitlines()[0].startswith("lake.db.t  2 partitions  6 files")


WITHOUT = """
import sys
from pathlib import Path
sys.modules["matplotlib"] = None
import icesize, icesize.cli.main
from tests.support.tables import sqlite_catalog
table = icesize.open(None, "db.t", catalog=sqlite_catalog(Path(sys.argv[1])))
overview = table.report()
str(table.inspect()), str(table.plan()), str(table.history()), str(overview)
for draw in (overview.to_html, overview.to_png):
    try:
        draw()
    except icesize.EngineUnavailable as error:
        print(error)
"""


@pytest.mark.engine
def test_only_drawing_needs_matplotlib(lake: SqlCatalog, tmp_path: Path) -> None:
    """Where it is missing everything else works, and drawing says what to install."""
    two_files(lake)
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(tmp_path)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("Cannot draw: ") and "`pip install '.[report]'`" in line for line in lines)


def test_the_time_is_that_of_the_environment(lake: SqlCatalog) -> None:
    """The page says when the table was looked at."""
    two_files(lake)
    environment = Environment(now_ms=lambda: 1_800_000_000_000)
    overview = icesize.open(None, "db.t", catalog=lake, environment=environment).report()
    assert "seen 2027-01-15 08:00:00 UTC" in paged(overview).text


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Settings of a caller's own do not change pictures."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "path", "font.size": 40}):
        yield
