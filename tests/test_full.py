"""The runner of the slow checks: names, a part that fails, and going on where a run ended."""

from __future__ import annotations

import re
import runpy
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FULL = runpy.run_path(str(ROOT / ".ci" / "full"))
Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs parts that are given in a folder of the test, without an environment."""

    def run(*arguments: str, code: str = "c0ffee", **parts: str) -> int:
        result: int = FULL["main"](["--cache", str(tmp_path), *arguments], parts, lambda folder: folder, lambda: code)
        return result

    return run


def _results(printed: str) -> dict[str, str]:
    """Part -> result, from the table at the end."""
    return dict(re.findall(r"^(\w+) +(\S.*?) +\d+ s$", printed, re.MULTILINE))


def test_the_parts_are_listed_and_nothing_runs(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Names in order; a name that is not among them is wrong usage."""
    assert run("--list", one="exit 1", two="exit 1") == 0
    assert capsys.readouterr().out == "one\ntwo\n"
    with pytest.raises(SystemExit) as end:
        run("three", one="exit 1")
    assert end.value.code == 2
    assert "no part is called three" in capsys.readouterr().err


def test_a_part_that_fails_stops_no_other(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first command that fails ends its part; the table names it, and so does the exit code."""
    assert run(one="true", two="echo said\nfalse\ntouch never", three="true") == 1
    assert _results(capsys.readouterr().out) == {"one": "passed", "two": "failed (1)", "three": "passed"}
    assert (tmp_path / "logs" / "two.log").read_text() == "said\n"
    assert run("three", one="false", three="true") == 0


def test_a_run_is_resumed_on_the_same_code(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--resume` runs only parts that have not passed on this state of the code; without it all run."""
    parts = {"one": f"echo x >> {tmp_path}/ran", "two": f"test -e {tmp_path}/now"}
    assert run(**parts) == 1
    (tmp_path / "now").touch()
    assert run("--resume", **parts) == 0
    assert _results(capsys.readouterr().out) == {"one": "passed before", "two": "passed"}
    assert (tmp_path / "ran").read_text() == "x\n"
    assert run("--resume", code="another", **parts) == run(**parts) == 0
    assert (tmp_path / "ran").read_text() == "x\n" * 3


def test_each_slow_test_is_in_one_part() -> None:
    """Every file of tests is named by one part, and left out by the part of its folder if it is named by another."""
    commands = [command for name, command in FULL["PARTS"].items() if name.startswith("slow-")]
    named = [re.findall(r"(?<= )(?:tests|integration|benchmarks)\S*", command) for command in commands]
    ignored = [re.findall(r"(?<=--ignore=)\S+", command) for command in commands]
    assert [path for paths in (*named, *ignored) for path in paths if not (ROOT / path).exists()] == []
    files = [
        path.relative_to(ROOT)
        for top in ("tests", "integration", "benchmarks")
        for path in (ROOT / top).rglob("test_*.py")
    ]
    for file in files:
        above = {str(file), *map(str, file.parents)}
        assert sum(bool(above & {*one}) and not above & {*no} for one, no in zip(named, ignored, strict=True)) == 1, (
            file
        )


@pytest.mark.engine
def test_slow_tests_of_integration_alone_are_found() -> None:
    """A part without the folder `tests` knows the profile that tries properties with all their examples."""
    command = FULL["PARTS"]["slow-expiry"]
    shown = subprocess.run(f"{command} --collect-only -q", shell=True, cwd=ROOT, capture_output=True, text=True)
    assert re.search(r"test_expiry\.py: [1-9]", shown.stdout), shown.stdout + shown.stderr
    assert shown.returncode == 0
