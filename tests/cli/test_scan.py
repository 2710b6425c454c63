"""`icesize scan` and `icesize report` of a catalog: lines, JSON, pages and exit codes; no Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from icesize.planning.insight.health import FORMULA
from tests.support.command_line import Run, catalog_uri, on_a_terminal
from tests.support.html_pages import taken_apart
from tests.support.tables import append, arrow, local, make_table, sqlite_catalog


@pytest.fixture
def lake(tmp_path: Path) -> SqlCatalog:
    """Three tables, of which one needs nothing and one cannot be read."""
    catalog = sqlite_catalog(tmp_path)
    make_table(catalog)
    for number in range(9):
        append(catalog, [number])
    for name, appends in (("db.few", 3), ("db.one", 1), ("db.damaged", 1)):
        table = make_table(catalog, name=name)
        for number in range(appends):
            table.append(arrow([number]))
    local(catalog.load_table("db.damaged").current_snapshot().manifest_list).unlink()
    return catalog


def test_tables_are_listed_the_worst_first(lake: SqlCatalog, run: Run) -> None:
    """A line for each table, what is skipped, and the formula of the score."""
    result = run("scan", name="lake")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("lake  3 tables: maintenance would save scans 10 files for ")
    assert lines[1].split()[:2] == ["table", "health"]
    assert [line.split()[0] for line in lines[2:5]] == ["lake.db.t", "lake.db.few", "lake.db.one"]
    assert lines[4].split()[1] == "100"
    assert lines[5].startswith("skipped db.damaged (unreadable): Cannot read the history of ")
    assert lines[6] == FORMULA
    assert len(lines) == 7


def test_a_limit_leaves_out_the_best_tables(lake: SqlCatalog, run: Run) -> None:
    """The others are counted, with the option that shows them; JSON has as many tables."""
    lines = run("scan", "--limit", "1", name="lake").stdout.splitlines()
    assert lines[2].startswith("lake.db.t ")
    assert lines[3] == "and 2 more tables: use --limit 3 for all"
    document = json.loads(run("scan", "--limit", "1", "--json", name="lake").stdout)
    assert [table["table"] for table in document["tables"]] == ["lake.db.t"]


def test_one_table_is_explained(lake: SqlCatalog, run: Run) -> None:
    """Each cause of its cost has a line."""
    lines = run("scan", name="lake.db.t").stdout.splitlines()
    assert lines[0].startswith("lake.db.t  1 table: ")
    assert lines[3] == "  data files: 9 take 0.18 s of a full scan, 1 after maintenance 0.02 s"
    assert [line.partition(":")[0].strip() for line in lines[4:7]] == ["delete files", "manifests", "snapshots"]


def test_json_is_the_dictionary_of_the_api(lake: SqlCatalog, run: Run) -> None:
    """The same keys and values as `icesize.scan`, and nothing else is printed."""
    result = run("scan", "--json", "--policy", "max-small-files=3", name="lake.db.*")
    found = icesize.scan("lake.db.*", catalog=lake, policy={"max-small-files": 3})
    document = json.loads(result.stdout)
    assert document == json.loads(json.dumps(found.to_dict()))
    assert (document["skipped"][0]["name"], document["skipped"][0]["kind"]) == ("db.damaged", "unreadable")


@pytest.mark.parametrize(
    ("name", "options", "code", "words"),
    [
        ("lake.db.gone", [], 1, "skipped db.gone (unreadable): it is not found"),
        ("lake.db.damaged", [], 1, "skipped db.damaged"),
        ("lake.none.*", [], 1, "lake.none.*  no table\n! the namespace 'none' is not found"),
        ("lake.none", [], 1, "lake.none  no table\n! the namespace 'none' is not found"),
        ("lake.db.none*", [], 0, "lake.db.none*  no table\n"),
        ("lake..t", [], 2, "Cannot select tables by 'lake..t'"),
        ("lake", ["--policy", "max-small-files=no"], 2, "max-small-files"),
        ("lake", ["--limit", "0"], 2, "--limit"),
    ],
)
def test_exit_codes(lake: SqlCatalog, run: Run, name: str, options: list[str], code: int, words: str) -> None:
    """1 if nothing could be read, 2 for wrong arguments; a namespace that is missing is told."""
    result = run("scan", *options, name=name)
    assert (result.exit_code, words in result.output) == (code, True), result.output


@pytest.mark.parametrize(("name", "code"), [("lake.db.damaged*", 1), ("lake.none.*", 1), ("lake.db.none*", 0)])
def test_a_page_of_a_catalog_has_the_exit_codes_of_scan(
    lake: SqlCatalog, run: Run, tmp_path: Path, name: str, code: int
) -> None:
    """A page and JSON without any table are a failure if names were found that could not be read."""
    assert run("report", "-o", str(tmp_path / "lake.html"), name=name).exit_code == code
    assert run("report", "--json", name=name).exit_code == code


def test_a_terminal_has_a_bar_and_few_columns(lake: SqlCatalog, tmp_path: Path) -> None:
    """The bar counts tables, and a narrow terminal keeps the columns that rank them."""
    code, shown = on_a_terminal(["scan", "lake", "--catalog-uri", catalog_uri(tmp_path)], "")
    assert code == 0
    assert "of 4 tables" in shown
    heads = next(line for line in shown.splitlines() if "health" in line)
    assert all(name in heads for name in ("seconds saved", "to write"))
    assert "hidden in 80 columns: metadata, snapshots, " in shown


@pytest.mark.engine
def test_neither_spark_nor_java_is_needed(lake: SqlCatalog, tmp_path: Path) -> None:
    """The command does its work where PySpark is not installed and no program is on the path."""
    program = "import sys; sys.modules['pyspark'] = None; from icesize.cli.main import main; main(prog_name='icesize')"
    command = [sys.executable, "-c", program, "scan", "lake", "--catalog-uri", catalog_uri(tmp_path)]
    left_out = ("PATH", "JAVA_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout.partition(":")[0]) == (0, "lake  3 tables"), done.stderr


def test_a_page_of_a_catalog_links_to_its_worst_tables(lake: SqlCatalog, run: Run, tmp_path: Path) -> None:
    """The table has the cells of `scan`, and the linked pages are beside it."""
    page = tmp_path / "lake.html"
    result = run("report", "-o", str(page), "--tables", "2", name="lake")
    assert result.exit_code == 0, result.output
    shown = taken_apart(page.read_text(encoding="utf-8"))
    assert shown.pointed_at == ["lake.01.lake.db.t.html", "lake.02.lake.db.few.html"]
    assert [row[0] for row in shown.tables[0][1:]] == ["lake.db.t", "lake.db.few", "lake.db.one"]
    assert shown.tables[1][1][:2] == ["db.damaged", "unreadable"]
    assert "health = 100 x" in shown.text
    for name, table in zip(shown.pointed_at, ("lake.db.t", "lake.db.few"), strict=True):
        assert table in taken_apart((tmp_path / name).read_text(encoding="utf-8")).text
    wrote = [line.partition(",")[0] for line in result.stdout.splitlines()]
    assert wrote == [f"wrote {tmp_path / name}" for name in ("lake.html", *shown.pointed_at)]


def test_a_page_of_a_catalog_alone(lake: SqlCatalog, run: Run, tmp_path: Path) -> None:
    """Without pages of tables, no name is a link; JSON needs no page."""
    page = tmp_path / "lake.html"
    assert run("report", "-o", str(page), "--tables", "0", name="lake.db.f*").exit_code == 0
    assert taken_apart(page.read_text(encoding="utf-8")).pointed_at == []
    assert [path.name for path in tmp_path.glob("*.html")] == ["lake.html"]
    document = json.loads(run("report", "--json", name="lake.db.f*").stdout)
    assert [table["table"] for table in document["tables"]] == ["lake.db.few"]
    assert run("report", "--png", str(tmp_path / "x.png"), name="lake").exit_code == 2


def test_names_of_tables_do_not_become_tags_or_paths(run: Run, tmp_path: Path) -> None:
    """A hostile name is text on the page, and the file of its page lies beside the page of the catalog."""
    name = f'"><script>alert(1)</script>{"x" * 150}'
    table = make_table(sqlite_catalog(tmp_path), name=("db", name))  # type: ignore[arg-type]
    table.append(arrow([1]))
    page = tmp_path / "lake.html"
    result = run("report", "-o", str(page), name="lake")
    assert result.exit_code == 0, result.output
    shown = taken_apart(page.read_text(encoding="utf-8"))
    assert "script" not in shown.names
    assert shown.tables[0][1][0] == f"lake.db.{name}"
    assert [(tmp_path / link).is_file() for link in shown.pointed_at] == [True]
