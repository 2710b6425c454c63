"""`icesize config`, and the commands that use the configuration file."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from pyiceberg.catalog.sql import SqlCatalog

from docs_tools.blocks import DOCS, blocks
from icesize.cli.interrupts import Observers
from icesize.cli.main import main
from icesize.cli.maintain import ManyTablesOptions, Passes
from icesize.cli.options import Target
from icesize.maintenance.table_context import InThisProcess
from tests.support.command_line import catalog_uri
from tests.support.tables import arrow, live_paths, make_table


@pytest.fixture
def file(lake: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration with the catalog of the test, which has two tables of three small files each."""
    for name in ("a", "b"):
        table = make_table(lake, name=f"db.{name}")
        for number in range(3):
            table.append(arrow([number]))
    path = tmp_path / "icesize.toml"
    path.write_text(f"[catalog.lake]\nuri = '{catalog_uri(tmp_path)}'\n")
    monkeypatch.setenv("ICESIZE_CONFIG", str(path))
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def add(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_a_catalog_of_the_file_needs_no_options(file: Path) -> None:
    """Commands for one table and for many open it by its name; an option for the catalog wins."""
    assert "\n1 partition  3 files" in run("inspect", "lake.db.a").stdout
    assert "2 tables to maintain" in run("maintain", "lake", "--all", "--dry-run").stdout
    other = run("inspect", "lake.db.a", "--catalog-uri", "sqlite:////nowhere/catalog.db")
    assert (other.exit_code, "there is no file '/nowhere/catalog.db'" in other.stderr) == (1, True)


def test_excluded_tables_are_left_out_of_passes(file: Path, lake: SqlCatalog) -> None:
    """Neither `scan` nor `maintain` of many tables looks at them; a command that names one works on it."""
    add(file, "[tables]\nexclude = ['lake.db.b']\n")
    assert [one["table"] for one in json.loads(run("scan", "lake", "--json").stdout)["tables"]] == ["lake.db.a"]
    assert run("maintain", "lake", "--all").exit_code == 0
    assert [len(live_paths(lake.load_table(f"db.{name}"))) for name in "ab"] == [1, 3]
    assert run("compact", "lake.db.b").exit_code == 0
    assert len(live_paths(lake.load_table("db.b"))) == 1


def test_policies_of_the_file_apply_to_each_command(file: Path, lake: SqlCatalog) -> None:
    """A rule of the file turns merging off for one table; an argument wins over it."""
    add(file, "[[policy]]\ntables = 'lake.db.a'\nsmall-file-limit-bytes = 0\n")
    assert "nothing to merge" in run("plan", "lake.db.a").stdout
    assert "3 -> 1 file" in run("plan", "lake.db.a", "--policy", "small-file-limit-bytes=1MiB").stdout
    assert run("maintain", "lake.db.*").exit_code == 0
    assert [len(live_paths(lake.load_table(f"db.{name}"))) for name in "ab"] == [3, 1]


def test_budgets_of_the_file_are_defaults(file: Path, lake: SqlCatalog) -> None:
    """A budget of no bytes merges nothing; the option of the command line wins."""
    add(file, "[maintain]\nbudget-bytes = 0\n")
    assert "no budget left for merges of " in run("maintain", "lake.db.*").stdout
    assert len(live_paths(lake.load_table("db.a"))) == 3
    assert run("maintain", "lake.db.*", "--budget-bytes", "1GiB").exit_code == 0
    assert len(live_paths(lake.load_table("db.a"))) == 1


def test_nothing_is_done_outside_the_hours(file: Path, lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over many tables ends with a note and exit code 0; a command for one table works at any hour."""
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.0)  # 22:13 UTC
    add(file, "[maintain]\nhours = ['08:00-17:00']\n")
    result = run("maintain", "lake.db.*")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (
        0, "! nothing was done outside the hours of maintenance (08:00-17:00 UTC)",
    )  # fmt: skip
    assert len(live_paths(lake.load_table("db.a"))) == 3
    assert run("maintain", "lake.db.a").exit_code == 0
    assert len(live_paths(lake.load_table("db.a"))) == 1


def test_check_names_each_mistake_and_its_line(file: Path, tmp_path: Path) -> None:
    """Exit code 2 for mistakes, also of commands that use the file; 0 for a valid file and for none."""
    assert run("config", "check").stdout == f"{file} is valid: 0 rules for policies, 1 catalog\n"
    bad = tmp_path / "bad.toml"
    bad.write_text("[maintain]\nhour = []\n[[policy]]\n")
    result = run("config", "check", str(bad))
    assert (result.exit_code, result.stdout.splitlines()) == (
        2,
        [
            f"{bad}: line 2: unknown key 'hour': did you mean 'hours'?",
            f"{bad}: line 3: a policy needs 'tables', a pattern such as 'lake.db.*'",
        ],
    )
    problems = json.loads(run("config", "check", str(bad), "--json").stdout)["problems"]
    assert [problem["line"] for problem in problems] == [2, 3]
    add(file, "[maintain]\nconcurrency = 0\n")
    for command in (["inspect", "lake.db.a"], ["scan", "lake"], ["maintain", "lake", "--all"]):
        assert (run(*command).exit_code, "line 4: 'concurrency' (0)" in run(*command).stderr) == (2, True)


def test_a_file_of_the_working_directory_gets_no_credentials(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It describes new catalogs; one that PyIceberg's configuration has, too, needs `ICESIZE_CONFIG`."""
    monkeypatch.chdir(file.parent)
    monkeypatch.delenv("ICESIZE_CONFIG")
    assert run("inspect", "lake.db.a").exit_code == 0
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TOKEN", "secret-token")
    for command in (["inspect", "lake.db.a"], ["scan", "lake"], ["maintain", "lake", "--all", "--dry-run"]):
        refused = run(*command)
        assert (
            "Cannot open catalog 'lake': both 'icesize.toml' of the working directory and PyIceberg's" in refused.stderr
        )
        assert (refused.exit_code, "secret-token" in refused.output) == (2, False)
    monkeypatch.setenv("ICESIZE_CONFIG", "icesize.toml")
    assert run("inspect", "lake.db.a").exit_code == 0


def test_check_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to check, which is no mistake."""
    monkeypatch.delenv("ICESIZE_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    result = run("config", "check")
    assert (result.exit_code, result.stdout) == (0, "no configuration file: all settings have their defaults\n")


def test_show_names_the_origin_of_each_key(file: Path) -> None:
    """Keys that something sets come first, with the places that lose; a table that is left out is noted."""
    add(file, "[tables]\nexclude = ['lake.db.a']\n[[policy]]\ntables = ['lake.db.*']\nmax-small-files = 4\n")
    result = run("config", "show", "lake.db.a", "--policy", "max-small-files=2")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[:3] == [
        ["lake.db.a", str(file)], ["key", "value", "from", "instead", "of"],
        ["max-small-files", "2", "argument", "icesize.toml:5"],
    ]  # fmt: skip
    assert lines[3][-1] == "default"
    assert lines[-1][:2] == ["!", str(file)]
    document = json.loads(run("config", "show", "lake.db.a", "--json").stdout)
    (origin,) = (one for one in document["keys"] if one["key"] == "max-small-files")
    assert origin == {"key": "max-small-files", "value": 4, "source": "icesize.toml:5", "overridden": []}
    assert run("config", "show").exit_code == 2


def test_the_example_of_the_docs_is_valid(tmp_path: Path) -> None:
    """It has every section, and no mistake."""
    (block,) = blocks(DOCS / "settings.md", "toml")
    path = tmp_path / "icesize.toml"
    path.write_text(block.code)
    assert run("config", "check", str(path)).stdout == f"{path} is valid: 2 rules for policies, 1 catalog\n"


def test_a_service_waits_for_its_hours(
    file: Path, lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outside of them it prints nothing; it reads the file again before each pass, so that new hours count at once."""
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.0)  # 22:13 UTC
    before = file.read_text()
    add(file, "[maintain]\nhours = ['08:00-17:00']\n")
    target, options = Target("lake.db.*", None, {}, as_json=True), ManyTablesOptions(False, 1, False, 60.0, None)
    passes = Passes(target, options, (None, None), {}, InThisProcess(2**30))
    with click.Context(main, obj=Observers()):
        passes.run_as_service()
        assert capsys.readouterr() == ("", "")
        file.write_text(before + "[maintain]\nhours = ['08:00-17:00', '22:00-23:00']\n")
        passes.run_as_service()
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert len(live_paths(lake.load_table("db.a"))) == 1
