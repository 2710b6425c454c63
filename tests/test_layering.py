"""The floors of the house: imports point one way, planning is pure, pyspark stays on its floor."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "icesize"
FLOORS = [
    "", "planning", "parquet", "table", "spark", "versioned_table", "clustered_table", "upkeep", "sized_table",
    "console", "console_versions", "cli_options", "demo", "cli_versions", "cli",
]  # fmt: skip
GROUND = {"errors", "policy", "redaction", "report", "failpoints", "environment"}
MODULES = sorted(ROOT.rglob("*.py"))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "icesize" or node.module in {f"icesize.{f}" for f in FLOORS if f}:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _floor(module: str) -> int:
    parts = module.split(".")[1:]
    if not parts or parts[0] in GROUND:
        return 0
    return FLOORS.index(parts[0]) if parts[0] in FLOORS else -1


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_imports_point_one_way(path: Path) -> None:
    """A module imports only from its own floor and from floors below it."""
    if path.name in ("__init__.py", "__main__.py") and path.parent == ROOT:
        pytest.skip("the public names come from every floor")
    own = _floor(_name(path))
    assert own >= 0, f"{path} is on no floor"
    above = {m for m in _imports(path) if m.startswith("icesize.") and _floor(m) > own}
    assert above == set()


@pytest.mark.parametrize("path", sorted((ROOT / "planning").glob("*.py")), ids=_name)
def test_planning_is_pure(path: Path) -> None:
    """Planning imports the standard library only, and neither clocks, files nor chance from it."""
    outside = {m.split(".")[0] for m in _imports(path)} - set(sys.stdlib_module_names) - {"icesize"}
    impure = {m.split(".")[0] for m in _imports(path)} & {"time", "datetime", "os", "io", "pathlib", "random", "socket"}
    assert (outside, impure) == (set(), set())


def _packages(path: Path) -> set[str]:
    return {m.split(".")[0] for m in _imports(path)}


def test_only_the_spark_floor_imports_pyspark() -> None:
    """Outside of `spark/` pyspark is imported for types, by the demo's child program, and where a session is made."""
    allowed = {"sized_table.py", "versioned_table.py", "cli.py", "cli_options.py"}
    others = [p for p in MODULES if p.parent.name not in ("spark", "demo") and p.name not in allowed]
    assert [p for p in others if "pyspark" in _packages(p)] == []


def test_only_the_table_floor_imports_catalogs() -> None:
    """Below `table/` nothing knows a catalog."""
    below = [p for p in MODULES if p.parent.name in ("planning", "parquet")]
    assert [p for p in below if any(m.startswith("pyiceberg.catalog") for m in _imports(p))] == []


def test_no_import_cycles_within_a_floor() -> None:
    """Modules of one floor can be put in an order."""
    graph = {_name(p): {m for m in _imports(p) if m.startswith("icesize.")} for p in MODULES}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name in done or name not in graph:
            return
        for imported in graph[name]:
            visit(imported, (*path, name))
        done.add(name)

    for name in graph:
        if name not in ("icesize.__init__", "icesize.__main__"):
            visit(name, ())


def test_importing_the_package_is_light() -> None:
    """`import icesize` loads neither pyspark nor pyarrow nor pyiceberg."""
    code = "import icesize, sys; print(sorted({'pyspark', 'pyarrow', 'pyiceberg'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
