"""`icesize maintain` for the tables of a catalog: which command lines select several, and what they print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.support.command_line import Run, catalog_uri, on_a_terminal
from tests.support.tables import arrow, live_paths, local, make_table


@pytest.fixture
def tables(lake: SqlCatalog) -> SqlCatalog:
    """Three tables of three small files each; one is maintained by Amoro."""
    for name in "abc":
        table = make_table(
            lake, name=f"db.{name}", properties={"self-optimizing.enabled": "true"} if name == "c" else {}
        )
        for number in range(3):
            table.append(arrow([number]))
    return lake


def files_of(catalog: SqlCatalog, name: str) -> int:
    return len(live_paths(catalog.load_table(f"db.{name}")))


@pytest.mark.parametrize(("name", "options"), [("lake.db.*", []), ("lake", ["--all"]), ("lake.db", ["--all"])])
def test_a_pattern_and_all_maintain_several_tables(tables: SqlCatalog, run: Run, name: str, options: list[str]) -> None:
    """A pattern needs no option; --all takes a catalog or a namespace. The output has a line for each table."""
    result = run("maintain", *options, "--concurrency", "1", name=name)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{name}: 2 tables changed or failed, 0 needed nothing")
    assert {line.split()[0] for line in lines[2:4]} == {"lake.db.a", "lake.db.b"}
    assert lines[4] == (
        "! lake.db.c left alone: Amoro (self-optimizing.enabled) maintains it; use --take-over to work on it"
    )
    assert [files_of(tables, name) for name in "abc"] == [1, 1, 3]


def test_a_dry_run_shows_benefit_and_cost(tables: SqlCatalog, run: Run) -> None:
    """Files less and bytes to write, for each table and in sum; nothing is changed."""
    result = run("maintain", "--dry-run", "--take-over", name="lake.db.*")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("lake.db.*: 3 tables to maintain, 0 need nothing  6 files less for ")
    assert [line.split()[0] for line in lines[1:]] == ["table", "lake.db.a", "lake.db.b", "lake.db.c"]
    document = json.loads(run("maintain", "--dry-run", "--json", name="lake.db.*").stdout)
    assert [(one["table"], one["files_saved"], one["usd"]) for one in document["tables"]] == [
        ("lake.db.a", 2, None), ("lake.db.b", 2, None),
    ]  # fmt: skip
    assert (document["files_saved"], document["bytes_left"]) == (4, 0)
    assert [files_of(tables, name) for name in "abc"] == [3, 3, 3]


def test_failed_tables_come_first_with_exit_code_1(tables: SqlCatalog, run: Run) -> None:
    """The other tables are maintained, and the document has the reasons, too."""
    local(live_paths(tables.load_table("db.b"))[0]).unlink()
    result = run("maintain", name="lake.db.*")
    assert result.exit_code == 1
    assert result.stdout.startswith("lake.db.b failed: merges: Cannot compact 'lake.db.b': every merge failed")
    assert files_of(tables, "a") == 1
    again = run("maintain", "--json", name="lake.db.*")
    assert (again.exit_code, list(json.loads(again.stdout)["failed"])) == (1, ["lake.db.b"])


def test_a_plain_name_is_one_table(tables: SqlCatalog, run: Run) -> None:
    """Its options are as ever, and those of several tables are refused."""
    assert "small files" in run("maintain", name="lake.db.a").stdout
    result = run("maintain", "--take-over", name="lake.db.a")
    assert (result.exit_code, "--take-over and --concurrency go with a pattern" in result.output) == (2, True)
    result = run("maintain", "--master", "local[1]", name="lake.db.*")
    assert (result.exit_code, "Spark maintains one table" in result.output) == (2, True)


def test_the_catalog_is_opened_by_its_name(run: Run) -> None:
    """A database that is not there is not made, and a pattern without a catalog is refused."""
    result = run("maintain", name="lake.db.*")
    assert (result.exit_code, "Cannot open catalog 'lake': there is no file" in result.output) == (1, True)
    assert run("maintain", name="*.db.t").exit_code == 2


def test_a_terminal_asks_once_for_all_tables(tables: SqlCatalog, tmp_path: Path) -> None:
    """The question has the work and the snapshots that would expire; the answer no changes nothing."""
    command = ["maintain", "lake.db.*", "--catalog-uri", catalog_uri(tmp_path)]
    code, text = on_a_terminal(command, "n\n")
    assert code == 1
    assert "Maintain lake.db.* (2 tables, " in text
    assert "expire about 0 snapshots and their files? [y/N]" in text
    assert files_of(tables, "a") == 3
    assert on_a_terminal(command, "y\n")[0] == 0
    assert files_of(tables, "a") == 1
