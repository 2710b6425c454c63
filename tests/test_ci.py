"""The scripts of `.ci`: what they say of themselves, and that they refuse what they do not know."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

ROOT = Path(__file__).parents[1]


def _run(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(["bash", ".ci/run", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_names_what_is_installed(option: str) -> None:
    """The help names the programs that are installed on the machine; nothing is installed for it."""
    code, printed, errors = _run(option)
    assert (code, errors) == (0, "")
    assert printed.startswith("Usage: ")
    assert [name for name in ("apt-get", "Chromium", "Prometheus", "PostgreSQL") if name not in printed] == []


@pytest.mark.parametrize("arguments", [["--fast"], ["quick"], ["--help", "--fast"], [""]])
def test_unknown_arguments_are_refused(arguments: list[str]) -> None:
    """An argument that the script does not know ends it with code 2 before it installs or runs anything."""
    code, printed, errors = _run(*arguments)
    assert (code, printed) == (2, "")
    assert errors.startswith("unknown argument: " + " ".join(arguments))
    assert "Usage: " in errors


def test_what_is_installed_is_printed_before_it_is_installed() -> None:
    """The lines that name packages come before the first command that installs one."""
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").partition("\necho ")[2].splitlines()
    assert "apt-get" in lines[1]
    assert "start install_missing" in lines[2]


def test_the_quick_script_runs_the_command_of_the_readme() -> None:
    """`.ci/quick` does what the README's line does: environment, installation, and the same tests to the letter."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    line = next(line for line in readme.splitlines() if "python -m pytest" in line)
    script = (ROOT / ".ci" / "quick").read_text(encoding="utf-8").replace("'", "")
    assert [step for step in line.replace("'", "").split(" && ") if step not in script] == []


STAND_IN = """#!/usr/bin/env bash
line="$(basename "$0") $*"
echo "$line" >>"$CALLS"
if [[ "$line" == *"-m venv"* ]]; then
  mkdir -p "${@: -1}/bin"
  for name in python uv pip ruff mypy zensical icesize; do ln -s "$0" "${@: -1}/bin/$name"; done
fi
[[ "$line" == *"import pyspark"* || ( -n "$FAILS" && "$line" == *"$FAILS"* ) ]] && exit 1
exit 0
"""
"""A program that records how it was called, and fails if it is to; as `python3 -m venv`, it makes more of itself."""


@pytest.fixture
def run_with_stand_ins(tmp_path: Path) -> Callable[[str], tuple[int, list[str], str]]:
    """Runs the script with stand-ins for all programs; returns its code, their calls and what was printed."""
    programs, calls, temporary = tmp_path / "bin", tmp_path / "calls", tmp_path / "temporary"
    programs.mkdir()
    temporary.mkdir()
    for name in ("python3", "apt-get"):
        (programs / name).write_text(STAND_IN)
        (programs / name).chmod(0o755)

    def run(fails: str) -> tuple[int, list[str], str]:
        variables = {"PATH": f"{programs}:/usr/bin:/bin", "CALLS": str(calls), "FAILS": fails, "TMPDIR": str(temporary)}
        done = subprocess.run(
            ["bash", ".ci/run"], cwd=ROOT, env=variables, text=True, stdout=PIPE, stderr=STDOUT, timeout=30
        )
        assert list(temporary.iterdir()) == []
        return done.returncode, calls.read_text().splitlines(), done.stdout

    return run


def test_a_run_that_passes(run_with_stand_ins: Callable[[str], tuple[int, list[str], str]]) -> None:
    """All checks run; uv installs the environment and the wheel, the tests come last, and nothing is left behind."""
    code, calls, printed = run_with_stand_ins("")
    assert code == 0, printed
    assert {"ruff check .", "ruff format --check .", "mypy ", "zensical build --strict --clean"} <= set(calls)
    assert [line.partition(" --python ")[0] for line in calls if line.startswith("uv ")] == [
        "uv pip install --quiet"
    ] * 2
    assert [" -m pytest " in line for line in calls][-2:] == [True, True]
    assert sum(" -m pytest " in line for line in calls) == 2
    assert "without_pyspark.py" in next(line for line in calls if "without" in line)


@pytest.mark.parametrize("what", ["mypy", "-m twine", "not engine"])
def test_a_run_in_which_a_check_fails(
    run_with_stand_ins: Callable[[str], tuple[int, list[str], str]], what: str
) -> None:
    """A failed check ends the run, whether it ran alone or beside others; no later tests run."""
    code, calls, _ = run_with_stand_ins(what)
    assert code == 1
    assert any(what in line for line in calls)
    assert [line for line in calls if "slow and engine" in line] == []


def test_pip_installs_if_uv_fails(run_with_stand_ins: Callable[[str], tuple[int, list[str], str]]) -> None:
    """Without uv, the same requirements are installed by pip."""
    code, calls, _ = run_with_stand_ins("uv pip")
    assert code == 0
    assert "python -m pip install --quiet -e .[dev]" in calls
