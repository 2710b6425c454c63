"""The scripts of `.ci`: what they say of themselves, and that they refuse what they do not know."""

from __future__ import annotations

import subprocess
from pathlib import Path

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
