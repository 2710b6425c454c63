"""`icesize maintain` for the tables of a catalog: which command lines select several, and what they print."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import requests
from pyiceberg.catalog.sql import SqlCatalog
from tenacity import Retrying, retry_if_exception_type, retry_if_result, stop_after_delay, wait_fixed

from icesize.cli.interrupts import MOST_ENDED, Observers, stopped_between_groups
from icesize.cli.main import main
from icesize.cli.maintain import ManyTablesOptions, Passes
from icesize.cli.options import Target
from icesize.events import CommitEnded, CommitStarted, CommitStatus
from icesize.failpoints import for_child
from icesize.maintenance.table_context import InThisProcess
from tests.support.command_line import Run, catalog_uri, on_a_terminal
from tests.support.rest_server import MiniRest
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


def test_two_names_of_one_table_are_no_success(tables: SqlCatalog, run: Run) -> None:
    """Each is named with the other one, and the exit code is 1."""
    tables.register_table("db.copy", tables.load_table("db.a").metadata_location)
    result = run("maintain", "--json", name="lake.db.*")
    failed = json.loads(result.stdout)["failed"]
    assert (result.exit_code, sorted(failed)) == (1, ["lake.db.a", "lake.db.copy"])
    assert "'lake.db.copy' in the same catalog is another name of this table" in failed["lake.db.a"]


def test_a_plain_name_is_one_table(tables: SqlCatalog, run: Run) -> None:
    """Its options are as ever, and those of several tables are refused."""
    assert "small files" in run("maintain", name="lake.db.a").stdout
    result = run("maintain", "--take-over", name="lake.db.a")
    assert (result.exit_code, "--take-over and --concurrency go with a pattern" in result.output) == (2, True)


@pytest.mark.slow
def test_several_tables_with_spark(tables: SqlCatalog, tmp_path: Path) -> None:
    """--master starts one session for all tables and passes; --dry-run starts none."""
    command = [sys.executable, "-m", "icesize", "maintain", "lake.db.*", "--catalog-uri", catalog_uri(tmp_path)]
    command += ["--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    without_java = os.environ | {"JAVA_HOME": "/nowhere"}
    dry = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, check=True, env=without_java)
    assert dry.stdout.startswith("lake.db.*: 2 tables to maintain, 0 need nothing")
    with subprocess.Popen([*command, "--watch", "1h", "--json"], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        report = json.loads(child.stdout.readline())
        child.send_signal(signal.SIGTERM)
        child.communicate()
    assert (child.returncode, {one["table"] for one in report["tables"]}) == (0, {"lake.db.a", "lake.db.b"})
    assert [files_of(tables, name) for name in "abc"] == [1, 1, 3]


@pytest.mark.parametrize(
    ("name", "options", "code", "words"),
    [
        ("lake", [], 2, "'lake' is not the name of a table: add --all to maintain all its tables"),
        ("lake.db", ["--dry-run"], 2, "'lake.db' is not the name of a table: add --all"),
        ("lake.bd", ["--all"], 1, "Cannot maintain 'lake.bd': it selects no table (the namespace 'bd' is not found)"),
        (
            "lake.bd.*",
            ["--dry-run"],
            1,
            "Cannot maintain 'lake.bd.*': it selects no table (the namespace 'bd' is not found)",
        ),
        ("lake.db.evnets_*", [], 1, "Cannot maintain 'lake.db.evnets_*': it selects no table"),
    ],
)
def test_a_name_that_selects_nothing_is_no_success(
    tables: SqlCatalog, run: Run, name: str, options: list[str], code: int, words: str
) -> None:
    """A misspelled name in a scheduler must fail. A catalog or a namespace without --all is wrong usage."""
    result = run("maintain", *options, name=name)
    assert (result.exit_code, words in result.stderr, result.stdout) == (code, True, ""), result.output
    assert [files_of(tables, name) for name in "abc"] == [3, 3, 3]


def test_an_empty_namespace_needs_nothing(tables: SqlCatalog, run: Run) -> None:
    """A namespace that is there may have no table yet."""
    tables.create_namespace("empty")
    result = run("maintain", "--all", name="lake.empty")
    assert (result.exit_code, result.stdout[:45]) == (0, "lake.empty: 0 tables changed or failed, 0 nee")


def test_contested_partitions_wait_and_are_named(tables: SqlCatalog, run: Run) -> None:
    """No budget is missing: another writer has just changed rows, so the merge waits, and the output says so."""
    tables.load_table("db.b").delete("id = 1")
    note = "! other writers changed 1 table in the last ten minutes; a later pass merges "
    dry = run("maintain", "--dry-run", name="lake.db.*")
    assert (dry.exit_code, dry.stdout.splitlines()[1].split()[-3:]) == (0, ["contested", "snapshots", "due"])
    for result in (dry, run("maintain", name="lake.db.*")):
        assert note in result.stdout
        assert "no budget left" not in result.stdout
    assert [files_of(tables, name) for name in "ab"] == [1, 2]


def test_merged_manifests_are_shown(lake: SqlCatalog, run: Run) -> None:
    """A table of which only manifests were merged has changed, and its line says how."""
    table = make_table(lake, name="db.m")
    for number in range(20):
        table.append(arrow([number]))
    heads, cells = run("maintain", "--policy", "small-file-limit-bytes=0", name="lake.db.*").stdout.splitlines()[1:3]
    assert heads.split() == ["table", "manifests", "written", "snapshots", "expired", "files", "deleted"]
    assert cells.split()[:4] == ["lake.db.m", "20", "->", "1"]


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


@pytest.mark.engine
@pytest.mark.parametrize(("options", "number"), [([], signal.SIGTERM), (["--watch", "1h"], signal.SIGINT)])
def test_a_signal_stops_a_pass_between_groups(
    tables: SqlCatalog, tmp_path: Path, options: list[str], number: signal.Signals
) -> None:
    """The commit that runs is finished, no other table begins, and the report is printed. A service ends with 0, a pass
    with the code of the signal."""
    command = [sys.executable, "-m", "icesize", "maintain", "lake.db.*", "--catalog-uri", catalog_uri(tmp_path)]
    command += ["--concurrency", "1", *options]
    waiting = os.environ | for_child(f"before-swap@1=wait:{tmp_path}/go")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": waiting}
    with subprocess.Popen(command, **pipes, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL)) as child:
        assert child.stderr is not None
        while len(list(tmp_path.rglob("*.parquet"))) == 9:
            assert child.poll() is None, "it ended before it wrote a merged file"
        child.send_signal(number)
        assert child.stderr.readline() == "icesize: stopping after the current commit; repeat to interrupt it\n"
        (tmp_path / "go").touch()
        out, _ = child.communicate()
    assert child.returncode == (0 if options else 128 + number)
    assert "1 table changed or failed" in out
    assert "no time left for 1 table" in out
    assert sorted(files_of(tables, name) for name in "ab") == [1, 3]


@pytest.mark.engine
def test_a_service_serves_its_metrics(tables: SqlCatalog, tmp_path: Path, run: Run) -> None:
    """Prometheus finds what a pass has merged at the port, until the service ends; the port goes with --watch."""
    assert run("maintain", "--metrics-port", "9", name="lake.db.*").exit_code == 2
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "icesize", "maintain", "lake.db.*", "--catalog-uri", catalog_uri(tmp_path)]
    command += ["--watch", "1h", "--metrics-port", str(port)]
    wanted = 'icesize_written_bytes_total{iceberg_table_name="lake.db.b"'

    def metrics() -> str:
        assert child.poll() is None, child.communicate()
        return requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text

    again = Retrying(
        retry=retry_if_exception_type(requests.ConnectionError) | retry_if_result(lambda text: wanted not in text),
        wait=wait_fixed(0.1), stop=stop_after_delay(120),
    )  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        again(metrics)
        child.send_signal(signal.SIGTERM)
        child.communicate()
    assert child.returncode == 0


def test_a_second_signal_interrupts() -> None:
    """The first one is only noted, with a sentence; the second one raises what Ctrl-C raises."""
    said = list[str]()
    with stopped_between_groups(said.append) as stop:
        signal.raise_signal(signal.SIGTERM)
        assert (stop(), stop.signal) == (True, signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert said == ["stopping after the current commit; repeat to interrupt it"]


class Committed:
    """A commit whose outcome is known."""

    def may_be_visible(self) -> set[str]:
        return set()

    def status(self) -> CommitStatus:
        return CommitStatus(True, (1,))


def test_a_service_forgets_its_commits() -> None:
    """The newest ones that ended are kept, and those that run, for the message of an interrupt."""
    observers, running = Observers(), Committed()
    observers(CommitStarted(running))
    for outcome in ("committed", "unknown") * MOST_ENDED:
        commit = Committed()
        observers(CommitStarted(commit))
        observers(CommitEnded("t", outcome, 0.1, 1, 0, commit=commit))  # type: ignore[arg-type]
    assert len(observers.commits) == MOST_ENDED + 1
    assert observers.commits[-1] is running


def test_a_service_renews_credentials_after_an_error(
    mini: MiniRest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an expired token, a pass prints one line. The next pass reads the configuration again and maintains."""
    table = make_table(mini.catalog(), name="db.t")
    for number in range(3):
        table.append(arrow([number]))
    mini.token = "new"
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", mini.uri)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TOKEN", "old")
    target = Target("lake.db.*", None, {}, as_json=True)
    passes = Passes(target, ManyTablesOptions(False, 1, False, 60.0, None), (None, None), {}, InThisProcess(2**30))
    with click.Context(main, obj=Observers()):
        passes.run_as_service()
        told = capsys.readouterr()
        assert (told.out, len(told.err.splitlines())) == ("", 1)
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TOKEN", "new")
        passes.run_as_service()
    (line,) = capsys.readouterr().out.splitlines()
    assert [one["table"] for one in json.loads(line)["tables"]] == ["lake.db.t"]
