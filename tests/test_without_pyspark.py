"""PySpark is an extra: without it, everything but Spark works, and what needs Spark names the extra."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "integration" / "without_pyspark.py"
WITHOUT = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("py4j", "pandas", "grpc"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Blocked())
sys.modules["pyspark"] = None
"""
"""Begins a program for which PySpark is not installed, nor what only PySpark brings."""
IMPORTS_ALL = """
import importlib, pkgutil, icesize

for module in pkgutil.walk_packages(icesize.__path__, "icesize.", onerror=str):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except (ImportError, icesize.EngineUnavailable):
            print(module.name)
"""
COMMAND = "from icesize.__main__ import run\nrun()\n"
SAYS = "pyspark is not installed. Run `pip install '.[spark]'` in the checkout of icesize"


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process without PySpark."""
    command = [sys.executable, "-c", WITHOUT + program, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_only_modules_of_spark_need_pyspark() -> None:
    """The modules that cannot be imported without PySpark are rooms of Spark; what starts Spark is imported."""
    done = run(IMPORTS_ALL)
    assert done.returncode == 0, done.stderr
    failed = set(done.stdout.split())
    assert {name for name in failed if not name.startswith("icesize.spark.")} == set()
    assert {"icesize.spark.stream", "icesize.spark.engine.launch"} & failed == {"icesize.spark.stream"}


def test_a_sink_without_pyspark_is_refused_with_the_line_to_install() -> None:
    """The name exists, `help` and completion do not fail by it, and its use is one sentence."""
    done = run("import icesize\nprint('Sink' in dir(icesize))\nicesize.Sink")
    assert done.stdout == "False\n"
    assert done.stderr.splitlines()[-1] == f"icesize.errors.EngineUnavailable: Cannot use Spark: {SAYS}"


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("demo",), ", or run `icesize demo --no-spark`"),
        (("compact", "lake.db.t", "--remote", "sc://nowhere"), ". Without Spark `icesize compact` works in its own"),
        (("maintain", "lake.db.t", "--master", "local"), ". Without Spark `icesize maintain` works in its own"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_with_spark_is_refused_with_the_line_to_install(arguments: tuple[str, ...], advice: str) -> None:
    """One line: what is missing, the command that installs it, and what works without."""
    done = run(COMMAND, *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"icesize: Cannot start Spark: {SAYS}{advice}")


def test_doctor_names_the_extra_and_does_not_fail() -> None:
    """PySpark is optional: its line has the command, and the stream is not among what will work."""
    done = run(COMMAND, "doctor")
    assert done.returncode == 0, done.stderr
    assert (
        "--  pyspark     streams and --master need it, all else works without: `pip install '.[spark]'`" in done.stdout
    )
    assert done.stdout.splitlines()[-1] == "will work: demo --no-spark"


@pytest.mark.engine
def test_commands_work_without_pyspark(tmp_path: Path) -> None:
    """A process that cannot import PySpark inspects, compacts and maintains a table, and upserts into it."""
    program = f"import runpy, sys\nrunpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n"
    done = run(program, str(tmp_path))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def test_the_docs_list_every_extra() -> None:
    """The page on installation has a row for each extra of pyproject.toml that is not for developers."""
    extras = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "install.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(extras["project"]["optional-dependencies"]) - {"docs", "dev"} <= set(rows)
