"""The commands that show where a table comes from: `history` and `report`, on a real catalog; no Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyiceberg.table import Table

import icesize
from icesize.presentation.views import MOST_COMMITS
from icesize.sized_table import SizedTable
from tests.support.command_line import Run
from tests.support.html_pages import taken_apart
from tests.support.tables import append, sqlite_catalog, two_files


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two small files of one partition, one append each."""
    return two_files(sqlite_catalog(tmp_path))


@pytest.fixture
def sized(table: Table, tmp_path: Path) -> SizedTable:
    """The same, opened."""
    return icesize.open(None, "lake.db.t", catalog=sqlite_catalog(tmp_path))


def test_history_lists_the_newest_commits(sized: SizedTable, run: Run, tmp_path: Path) -> None:
    """Twenty of them unless a number is given, and how to see the others; JSON has all, as the API gives them."""
    catalog = sqlite_catalog(tmp_path)
    for number in range(MOST_COMMITS):
        append(catalog, [number], batch=number)
    lines = run("history").stdout.splitlines()
    assert lines == str(sized.history(MOST_COMMITS)).splitlines()
    assert len(lines) == 2 + MOST_COMMITS + 1
    assert f"s batch {MOST_COMMITS - 1}" in lines[2]
    assert lines[-1] == f"and 2 older commits: use --limit {MOST_COMMITS + 2} for all"
    assert len(run("history", "--limit", str(MOST_COMMITS + 2)).stdout.splitlines()) == 2 + MOST_COMMITS + 2
    assert json.loads(run("history", "--json").stdout) == json.loads(json.dumps(sized.history().to_dict()))
    assert len(json.loads(run("history", "--json", "--limit", "3").stdout)["commits"]) == 3
    assert run("history", "--limit", "0").exit_code == 2


def test_report_writes_a_page_and_an_image(sized: SizedTable, run: Run, tmp_path: Path) -> None:
    """Both are named with their sizes, and the advice is told here, too."""
    page, image = tmp_path / "r.html", tmp_path / "r.png"
    result = run("report", "-o", str(page), "--png", str(image))
    assert result.exit_code == 0, result.output
    assert "icesize compact lake.db.t" in taken_apart(page.read_text(encoding="utf-8")).text
    assert image.read_bytes().startswith(b"\x89PNG")
    told = result.stdout.splitlines()
    assert [line.partition(",")[0] for line in told[:2]] == [f"wrote {page}", f"wrote {image}"]
    assert [line.removeprefix("! ") for line in told[2:]] == [a.sentence for a in sized.report().advice]


def test_report_compares_with_a_snapshot(table: Table, run: Run) -> None:
    """JSON alone needs no file: it is the API's dictionary."""
    first = table.metadata.snapshots[0].snapshot_id
    document = json.loads(run("report", "--since", str(first), "--json").stdout)
    assert sum(document["sizes"]["before"]["files"]) == 1
    assert sum(document["sizes"]["after"]["files"]) == 2
    assert document["inspection"]["files"] == 2


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ([], 2, "say where the page goes"),
        (["-o", "."], 2, "is a directory"),
        (["-o", "/nowhere/at/all/r.html"], 2, "there is no folder '/nowhere/at/all'"),
        (["--json", "--since", "7"], 1, "Cannot find snapshot 7"),
    ],
)
def test_report_says_what_is_wrong(table: Table, run: Run, options: list[str], code: int, words: str) -> None:
    """One line and an exit code, no traceback."""
    result = run("report", *options)
    assert (result.exit_code, words in result.stderr) == (code, True)
