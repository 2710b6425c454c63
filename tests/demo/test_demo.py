"""The demo: generated events, its tables, and that what it leaves can be worked on."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from icesize.cli.main import main
from icesize.demo import events
from icesize.demo.lake import Lake, rows_and_exact


def figures(output: str, name: str) -> list[str]:
    """The two values of a line of the comparison."""
    line = next(x for x in output.splitlines() if x.startswith(name))
    return re.split(r" {3,}", line.strip())[1:]


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


def test_without_spark_the_demo_compacts_and_its_commands_work(tmp_path: Path) -> None:
    """--no-spark needs no Java: rows exact, one small file per partition, and each command it prints runs."""
    done = CliRunner().invoke(
        main, ["demo", "--no-spark", "--path", str(tmp_path / "d"), "--batches", "3", "--rows", "300"],
        env={"JAVA_HOME": "/nowhere"},
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    before, after = figures(done.stdout, "files")
    assert int(before) > int(after)
    assert figures(done.stdout, "most small files per partition") == ["3", "1"]
    assert figures(done.stdout, "rows, of 900") == ["900 (exact)", "900 (exact)"]
    commands = [x.strip() for x in done.stdout.splitlines() if x.startswith("  icesize ")]
    assert [c.split()[1] for c in commands] == ["inspect", "plan", "compact"]
    for command in commands:
        result = CliRunner().invoke(main, shlex.split(command)[1:])
        assert result.exit_code == 0, result.output
    assert result.stdout == f"plan: nothing to merge, {after} files stay\n"


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


@pytest.mark.slow
def test_with_spark_the_driver_dies_and_the_rows_are_exact(tmp_path: Path) -> None:
    """The whole demo in small: a real stream, SIGKILL in the middle of a batch, restart, every row once."""
    done = CliRunner().invoke(main, ["demo", "--path", str(tmp_path / "d"), "--batches", "3", "--rows", "300"])
    assert done.exit_code == 0, done.output
    assert "driver killed (SIGKILL) in batch 1: its files are written, nothing is committed" in done.stdout
    assert figures(done.stdout, "rows, of 900") == ["900 (exact)", "900 (exact)"]
    plain, sized = figures(done.stdout, "most small files per partition")
    assert int(sized) <= int(plain) == 3
    assert [x.split()[1] for x in done.stdout.splitlines() if re.match(r"  batch +\d", x)] == ["0", "1", "2"] * 2
