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
from icesize.demo.explore import SUGGESTIONS, WITH_SPARK
from icesize.demo.lake import Lake, rows_and_exact
from icesize.demo.queries import measure
from integration.jars import spark_jars


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
            assert result.stdout == "plan: nothing to merge, 15 files stay\n"


def test_no_race_is_shown_without_icebergs_own_writer(tmp_path: Path) -> None:
    """Nothing is compared with a writer that is not there: neither a plain append nor any other side has seconds."""
    done = CliRunner().invoke(main, ["demo", "--no-spark", "--path", str(tmp_path), "--batches", "1", "--rows", "20"])
    assert done.exit_code == 0, done.output
    assert "median of a batch" not in done.stdout
    assert "own writer" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--iceberg-jar", "/nowhere.jar"], "there is no file '/nowhere.jar', and it is not GROUP:ARTIFACT:VERSION"),
        (["--iceberg-jar", "a:b:1", "--no-spark"], "--iceberg-jar needs Spark"),
    ],
)
def test_a_jar_that_cannot_be_used_is_told_first(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    """What is wrong with a jar is told before anything is made."""
    result = CliRunner().invoke(main, ["demo", "--path", str(tmp_path / "d"), *arguments])
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert not (tmp_path / "d").exists()


def test_explore_leaves_a_shell_with_everything_set(tmp_path: Path) -> None:
    """After the demo a Python shell reads lines: `table` is the demo's, `catalog` loads it, there is no `spark`."""
    lines = "print('it has', table.inspect().rows, 'rows')\nprint(len(catalog.list_tables('demo')), spark)\n"
    lines += "\n".join(SUGGESTIONS) + "\n"
    done = CliRunner().invoke(
        main, ["demo", "--no-spark", "--explore", "--path", str(tmp_path), "--batches", "1", "--rows", "20"],
        input=lines,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "it has 20 rows" in done.stdout
    assert "1 None" in done.stdout
    assert all(f"   {suggestion}\n" in done.stderr for suggestion in SUGGESTIONS)
    assert "Error" not in done.output


def test_a_query_that_gets_another_answer_is_seen(tmp_path: Path) -> None:
    """The cost of a query comes with its answer, by which a lost row would show."""
    lake = Lake(tmp_path)
    lake.create("events")
    lake.load("events").append(events.batch(0, 10))
    cost = measure(lake.load("events"))
    assert (sum(cost.answer.values()), cost.files, cost.manifests) == (
        10,
        len({*events.batch(0, 10)["hour"].to_pylist()}),
        1,
    )
    assert 0 < cost.planning_seconds <= cost.seconds


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
    """The whole demo in small: a real stream, SIGKILL in the middle of a batch, restart, every row once; then the
    race with Iceberg's own writer on the same batches."""
    runtime = next(str(jar) for jar in spark_jars() if "runtime" in jar.name)
    # a process of its own: the shell at the end has a Spark session, and stops it
    command = [sys.executable, "-m", "icesize", "demo", "--explore", "--iceberg-jar", runtime]
    done = subprocess.run(
        [*command, "--path", str(tmp_path / "d"), "--batches", "3", "--rows", "300"],
        input="\n".join((*WITH_SPARK, "spark.range(7).count()", "")),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "driver killed (SIGKILL) in batch 1: its files are written, nothing is committed" in done.stdout
    assert [x.split()[1] for x in done.stdout.splitlines() if re.match(r"  batch +\d", x)] == ["0", "1", "2"]
    assert figures(done.stdout, "rows, of 1,800") == ["1,800 (exact)"]
    assert figures(done.stdout, "events counted") == ["900", "900", "1,800"]
    assert figures(done.stdout, "rows  ") == ["900", "900"]
    theirs, ours = map(int, figures(done.stdout, "files  "))
    assert theirs >= ours > 0
    # the shell that follows
    assert "Traceback" not in done.stderr
    assert "7\n" in done.stdout


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
    assert "MERGE INTO  " not in done.stdout


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


def test_exploring_is_for_the_main_demo(tmp_path: Path) -> None:
    """--explore opens a shell with the table of events, which the demo of upserts does not have."""
    done = CliRunner().invoke(main, ["demo", "--upserts", "--explore", "--path", str(tmp_path)])
    assert done.exit_code == 2
    assert "leave out --upserts" in done.output
