"""The demo: generated events, its tables, and that what it leaves can be worked on."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from icesize.cli.main import main
from icesize.demo import events
from icesize.demo.accounts import Accounts
from icesize.demo.lake import Lake, rows_and_exact
from icesize.demo.run import measured


def figures(output: str, name: str) -> list[str]:
    """The values of the last line of that name: one for each state of the table."""
    line = [x for x in output.splitlines() if x.startswith(name)][-1]
    return re.split(r" {3,}", line.strip())[1:]


def headings(output: str) -> list[str]:
    """The numbered headings, in their order."""
    return [x for x in output.splitlines() if re.match(r"\d+\. ", x)]


def commands(output: str) -> list[list[str]]:
    """The commands to copy, as arguments of the program."""
    return [shlex.split(x)[1:] for x in output.splitlines() if x.startswith("  icesize ") and "--catalog-uri" in x]


def test_batches_are_the_same_every_time_and_have_late_rows() -> None:
    """A batch is a function of its number; ids go on without a gap; about 40 % of the rows are late."""
    first, second = events.batch(0, 1_000), events.batch(1, 1_000)
    assert first.equals(events.batch(0, 1_000))
    assert first["id"].to_pylist() + second["id"].to_pylist() == list(range(2_000))
    hours = Counter(second["hour"].to_pylist())
    newest = max(hours)
    assert 500 < hours[newest] < 700
    assert len(hours) == events.LATE_HOURS + 1
    times = second["event_time"].to_pylist()
    assert [t.strftime("%Y-%m-%d-%H") for t in times] == second["hour"].to_pylist()
    assert len(set(second["payload"].to_pylist())) == 1_000


def test_without_spark_the_demo_measures_compacts_and_its_commands_work(tmp_path: Path) -> None:
    """--no-spark needs no Java: a query opens fewer files for the same rows, and each command it prints runs."""
    done = CliRunner().invoke(
        main, ["demo", "--no-spark", "--path", str(tmp_path / "d"), "--batches", "3", "--rows", "300"],
        env={"JAVA_HOME": "/nowhere"},
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert [x.partition(" ")[0] for x in headings(done.stdout)] == ["1.", "2.", "3.", "4.", "5.", "6."]
    opened = figures(done.stdout, "files opened")
    assert 39 == int(opened[0]) > int(opened[1]) == 15
    assert figures(done.stdout, "manifests read") == ["3", "1"]
    assert figures(done.stdout, "events counted") == ["900", "900"]
    assert figures(done.stdout, "rows, of 900") == ["900 (exact)"]
    assert [c[0] for c in commands(done.stdout)] == ["inspect", "plan", "compact", "versions", "history"]
    for command in commands(done.stdout):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
        if command[0] == "compact":
            assert result.stdout == "plan: nothing to merge in 15 files\n"


def test_a_query_that_gets_another_answer_is_seen(tmp_path: Path) -> None:
    """The cost of a query comes with its answer, by which a lost row would show."""
    lake = Lake(tmp_path)
    lake.create("events")
    lake.load("events").append(events.batch(0, 10))
    cost = measured(lake.load("events"))
    hours = len({*events.batch(0, 10)["hour"].to_pylist()})
    assert (cost["events counted"], cost["files opened"], cost["manifests read"]) == ("10", str(hours), "1")


def test_a_directory_with_a_demo_in_it_is_refused(tmp_path: Path) -> None:
    """A second demo does not mix with the first."""
    arguments = ["demo", "--no-spark", "--path", str(tmp_path), "--batches", "1", "--rows", "20"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 1
    assert "it holds the tables of a demo already; choose another directory (--path)" in again.stderr
    assert rows_and_exact(Lake(tmp_path).load("events"), 20) == (20, True)


def test_missing_and_doubled_rows_are_not_exact(tmp_path: Path) -> None:
    """The check of the rows can fail: a lost batch and a doubled one are told from exact ones."""
    lake = Lake(tmp_path)
    lake.create("events")
    lake.load("events").append(events.batch(0, 10))
    assert rows_and_exact(lake.load("events"), 20) == (10, False)
    lake.load("events").append(events.batch(0, 10))
    assert rows_and_exact(lake.load("events"), 20) == (20, False)


def test_no_java_names_the_way_without_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Java the demo ends with one sentence, before it makes anything."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    result = CliRunner().invoke(main, ["demo", "--path", str(tmp_path / "d")])
    assert result.exit_code == 1
    assert "install Java 17, or run `icesize demo --no-spark`" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "d").exists()


@pytest.mark.engine
def test_with_spark_the_driver_dies_and_the_rows_are_exact(tmp_path: Path) -> None:
    """The whole demo in small: a real stream, SIGKILL in the middle of a batch, restart, every row once."""
    arguments = ["demo", "--path", str(tmp_path / "d"), "--batches", "3", "--rows", "300"]
    command = [sys.executable, "-m", "icesize", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "driver killed (SIGKILL) in batch 1: its files are written, nothing is committed" in done.stdout
    assert [x.split()[1] for x in done.stdout.splitlines() if re.match(r"  batch +\d", x)] == ["0", "1", "2"]
    assert figures(done.stdout, "rows, of 1,800") == ["1,800 (exact)"]
    assert figures(done.stdout, "events counted") == ["900", "900", "1,800"]
    assert "Traceback" not in done.stderr


def test_the_demo_of_upserts_needs_no_java(tmp_path: Path) -> None:
    """--upserts applies updates, deletes and late events, and leaves each account once, with its newest change."""
    done = CliRunner().invoke(
        main, ["demo", "--upserts", "--path", str(tmp_path / "d"), "--batches", "24", "--rows", "200"],
        env={"JAVA_HOME": "/nowhere"},
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    batches = [line.split("  ")[-1] for line in done.stdout.splitlines() if line.startswith("  batch")]
    assert batches == ["188 updated, 6 deleted, 0 late", *["184 updated, 6 deleted, 4 late"] * 2]
    assert figures(done.stdout, "accounts, of 4,000") == ["4,000 (exact)"]


def test_changes_of_accounts_are_the_same_every_time() -> None:
    """A batch has an event per account at most; the model is what the events leave, the greatest order winning."""
    accounts, again = Accounts(100), Accounts(100)
    first, batches = accounts.first(), list(accounts.batches(5))
    assert (again.first(), list(again.batches(5))) == (first, batches)
    left = dict.fromkeys(first["id"].to_pylist(), 0)
    for batch in batches:
        assert len(set(batch["id"].to_pylist())) == batch.num_rows == 100
        for event in batch.to_pylist():
            if event["op"] == "d":
                del left[event["id"]]
            elif event["change"] > left.get(event["id"], -1):
                left[event["id"]] = event["change"]
    assert left == accounts.newest == again.newest
