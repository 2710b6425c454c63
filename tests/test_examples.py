"""The examples run, and what cannot be run here is at least well formed: Compose's file, the recipe for conda."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import icesize

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
ENV = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
CONDA_NAMES = {"xxhash": "python-xxhash", "zlib-ng": "python-zlib-ng"}
"""Packages that conda-forge calls otherwise."""


def _compose(path: Path) -> dict[str, Any]:
    """A Compose file with what it includes; names of services are unique."""
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    for other in document.get("include", []):
        included = _compose((path.parent / other).resolve())
        for kind in ("services", "volumes"):
            assert not set(included[kind]) & set(document[kind])
            document[kind] |= included[kind]
    return document


COMPOSE = _compose(EXAMPLES / "compose.yaml")


@pytest.mark.parametrize("name", sorted(COMPOSE["services"]))
def test_a_service_has_what_it_names(name: str) -> None:
    """Its image has a version or is built here, what it waits for is there and tells its health, volumes exist."""
    service = COMPOSE["services"][name]
    assert "build" in service or re.search(r":\w*\d", service["image"])
    for other, condition in service.get("depends_on", {}).items():
        assert condition == {"condition": "service_healthy"}
        assert "healthcheck" in COMPOSE["services"][other]
    volumes = [volume.partition(":")[0] for volume in service.get("volumes", [])]
    assert set(volumes) <= set(COMPOSE["volumes"])


def test_services_run_scripts_of_the_examples_and_set_what_these_read() -> None:
    """Every variable that a script reads is set for it, and the addresses among them are those of services."""
    for name in ("stream", "producer"):
        service = COMPOSE["services"][name]
        script = (ROOT / service["command"][1]).read_text(encoding="utf-8")
        read = set(re.findall(r'environ\["(\w+)"\]|"(\w+)" (?:not )?in os\.environ', script))
        assert {a or b for a, b in read} <= set(service["environment"])
        hosts = re.findall(r"http://(\w+):|^(\w+):\d", "\n".join(service["environment"].values()), re.MULTILINE)
        assert {a or b for a, b in hosts} == {"rest", "s3", "kafka"}


def test_the_recipe_asks_for_what_the_project_asks_for() -> None:
    """Names and bounds of the requirements, the version and the program are those of pyproject.toml."""
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    wanted = set()
    for dependency in [*project["dependencies"], *project["optional-dependencies"]["spark"]]:
        name, bounds = re.fullmatch(r"([\w-]+)(?:\[[\w-]+\])?(.*)", dependency).groups()  # type: ignore[union-attr]
        wanted.add(f"{CONDA_NAMES.get(name, name)} {bounds.partition(';')[0]}")
    optional = set(recipe["requirements"]["run_constraints"])
    assert {line.split()[0] for line in optional} == {"pyspark"}
    asked = set(recipe["requirements"]["run"]) | optional
    assert wanted <= asked
    assert {line.split()[0] for line in asked - wanted} == {"python", "sqlalchemy"}
    assert "version" in project["dynamic"], "the version stands in the package"
    assert recipe["context"] == {"version": icesize.__version__, "python_min": project["requires-python"].lstrip(">=")}
    assert recipe["build"]["python"]["entry_points"] == [f"{k} = {v}" for k, v in project["scripts"].items()]


def test_the_course_is_stored_with_the_outputs_of_one_run() -> None:
    """GitHub shows the outputs; none of them is an error or names a local file, and the notebook is small."""
    path = EXAMPLES / "course.ipynb"
    text = path.read_text(encoding="utf-8")
    code = _code_cells(text)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"execute_result", "stream"}
    assert "file://" not in json.dumps(outputs)
    assert path.stat().st_size < 400_000


@pytest.mark.engine
def test_the_course_runs_from_start_to_end() -> None:
    """Every cell of the notebook runs, in a kernel of its own; values show themselves, and no row is missing."""
    # by a program of its own: what its libraries warn of is theirs
    code = (
        "import nbclient, nbformat, sys\n"
        f"notebook = nbformat.read({str(EXAMPLES / 'course.ipynb')!r}, 4)\n"
        "nbclient.NotebookClient(notebook, timeout=300, kernel_name='python3').execute()\n"
        "sys.stdout.write(nbformat.writes(notebook))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    cells = _code_cells(done.stdout)
    last_outputs = ["".join(c["outputs"][-1]["data"]["text/plain"]) for c in cells if _has_value(c)]
    assert last_outputs[-1] == "'each row is there once'"
    shown = [kind for c in cells if _has_value(c) for kind in c["outputs"][-1]["data"]]
    assert (shown.count("text/html"), shown.count("image/png")) == (7, 1)
    stored = _code_cells((EXAMPLES / "course.ipynb").read_text(encoding="utf-8"))
    assert [_last_kinds(cell) for cell in stored] == [_last_kinds(cell) for cell in cells]


def _code_cells(notebook: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]


def _last_kinds(cell: dict[str, Any]) -> set[str]:
    """The kinds of a cell's value that people see."""
    kinds = set(cell["outputs"][-1].get("data", {"stream"})) if cell["outputs"] else set[str]()
    return kinds - {"text/plain"} or kinds


def _has_value(cell: dict[str, Any]) -> bool:
    return bool(cell["outputs"]) and cell["outputs"][-1]["output_type"] == "execute_result"


@pytest.mark.slow
@pytest.mark.engine
def test_the_stream_runs_without_anything_around_it(tmp_path: Path) -> None:
    """The script of the Compose file streams into a SQLite catalog when nothing else is named."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "stream.py"), "--folder", str(tmp_path / "lake"), "--batches", "2"],
        env={k: v for k, v in ENV.items() if k != "KAFKA" and not k.startswith("PYICEBERG")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "lake.shop.clicks: batch 1: " in done.stderr
    assert re.search(r"^lake\.shop\.clicks  [67] partitions", done.stdout, re.MULTILINE)


@pytest.mark.engine
def test_the_types_of_the_library_are_complete() -> None:
    """Of all that can be imported, at least 98 % has a type that a checker knows without guessing."""
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--verifytypes", "icesize", "--ignoreexternal"],
        env=ENV, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    told = json.loads(done.stdout[done.stdout.index("{") :])["typeCompleteness"]
    assert told["exportedSymbolCounts"]["withKnownType"] > 4_000
    assert told["completenessScore"] >= 0.98
