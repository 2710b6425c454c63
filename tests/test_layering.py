"""The rooms of the house: imports point one way, planning is pure, pyspark stays in its rooms."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
ROOT = PROJECT / "icesize"
ROOMS = [
    "icesize",
    "icesize.planning",
    "icesize.planning.deletes",
    "icesize.planning.insight",
    "icesize.planning.clustering",
    "icesize.planning.routing",
    "icesize.planning.merging",
    "icesize.planning.retention",
    "icesize.planning.advice",
    "icesize.events",
    "icesize.telemetry",
    "icesize.storage",
    "icesize.parquet.format",
    "icesize.parquet.files",
    "icesize.parquet.ordering",
    "icesize.parquet.verify",
    "icesize.parquet.reading",
    "icesize.parquet.writing",
    "icesize.parquet.deletes",
    "icesize.parquet.keys",
    "icesize.parquet.row_groups",
    "icesize.parquet.pages",
    "icesize.parquet.rewriting",
    "icesize.table.records",
    "icesize.table.catalog",
    "icesize.table.manifests",
    "icesize.table.state",
    "icesize.table.past",
    "icesize.table.commit",
    "icesize.table.upserts",
    "icesize.table.cluster_settings",
    "icesize.table.storage",
    "icesize.table.cleanup",
    "icesize.config_file",
    "icesize.maintenance",
    "icesize.maintenance.jobs",
    "icesize.maintenance.verify",
    "icesize.maintenance.passes",
    "icesize.presentation",
    "icesize.spark.engine",
    "icesize.spark.routing",
    "icesize.spark.clustering",
    "icesize.spark.stream",
    "icesize.sized_table",
    "icesize.demo",
    "icesize.cli",
]
"""A module imports from its own room and from the rooms above it in this list."""
MODULES = sorted(p for p in ROOT.rglob("*.py") if p.name != "__init__.py")
PACKAGES = sorted(p for p in ROOT.rglob("__init__.py"))
SPARK_ROOMS = tuple(room for room in ROOMS if room.startswith("icesize.spark"))


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {_name(p) for p in [*MODULES, *PACKAGES]}


def _imports(path: Path) -> Iterator[str]:
    """Modules that a file imports, also inside of functions; of icesize those that define what is imported."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from (inner & NAMES) or {node.module}


def _room(module: str) -> int:
    """The place of a module's room in the order; a module that is a room by itself comes before its folder's."""
    candidate = module
    while candidate != "icesize":
        if candidate in ROOMS:
            return ROOMS.index(candidate)
        candidate = candidate.rpartition(".")[0]
    if module.count(".") < 2:
        return ROOMS.index("icesize")
    raise AssertionError(f"{module} is in no room")


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_imports_point_one_way(path: Path) -> None:
    """A module imports only from its own room and from rooms above it."""
    if _name(path) == "icesize.__main__":
        pytest.skip("starts the command line, which is the last room")
    own = _room(_name(path))
    below = {m for m in _imports(path) if m.startswith("icesize.") and _room(m) > own}
    assert below == set()


@pytest.mark.parametrize("path", PACKAGES, ids=_name)
def test_a_room_says_what_it_is_for(path: Path) -> None:
    """Each room names all of its files in its docstring."""
    names = {p.stem for p in path.parent.glob("*.py")} - {"__init__"}
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    missing = {n for n in names - {"__main__"} if f"`{n}`" not in docstring}
    assert (bool(docstring), missing if path.parent != ROOT else set()) == (True, set())


@pytest.mark.parametrize("path", sorted((ROOT / "planning").rglob("*.py")), ids=_name)
def test_planning_is_pure(path: Path) -> None:
    """Planning imports numpy and the standard library only, and neither clocks, files nor chance from it."""
    packages = _packages(path)
    outside = packages - set(sys.stdlib_module_names) - {"icesize", "numpy"}
    assert (outside, packages & {"time", "datetime", "os", "io", "pathlib", "random", "socket"}) == (set(), set())


def _packages(path: Path) -> set[str]:
    return {m.split(".")[0] for m in _imports(path)}


def test_only_the_spark_rooms_import_pyspark() -> None:
    """Outside of `spark/` pyspark is imported for types, by the demo's child program, and where a session is made."""
    allowed = {"icesize.sized_table", "icesize.cli.spark_choice"}
    others = [p for p in MODULES if not _name(p).startswith((*SPARK_ROOMS, "icesize.demo")) and _name(p) not in allowed]
    assert [p for p in others if "pyspark" in _packages(p)] == []


def test_only_the_table_rooms_import_catalogs() -> None:
    """Above `table/` nothing knows a catalog."""
    above = [p for p in MODULES if _name(p).startswith(("icesize.planning", "icesize.parquet"))]
    assert [p for p in above if any(m.startswith("pyiceberg.catalog") for m in _imports(p))] == []


def test_no_import_cycles_within_a_room() -> None:
    """Modules of one room can be put in an order."""
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
        if name != "icesize.__main__":
            visit(name, ())


def test_tests_import_neither_tests_nor_benchmarks() -> None:
    """What several tests need is in `tests/support` or `integration`; only the benchmarks' own tests import them."""
    found = [
        p for folder in ("tests", "integration") for p in (PROJECT / folder).rglob("*.py") if "target" not in p.parts
    ]
    assert _lines_that_import(found, r"(\w+\.)*test_\w+|benchmarks") == []


def test_the_package_imports_no_tests() -> None:
    """The package does not know of its tests and benchmarks."""
    assert _lines_that_import([*MODULES, *PACKAGES], "tests|integration|benchmarks") == []


def _lines_that_import(files: list[Path], modules: str) -> list[str]:
    """Also those of programs that a file holds as text."""
    pattern = re.compile(rf"^\s*(from|import) ({modules})\b|^\s*from [\w.]+ import .*\b({modules})\b", re.MULTILINE)
    return [f"{_name(path)}: {found[0].strip()}" for path in files for found in pattern.finditer(path.read_text())]


def test_importing_the_package_is_light() -> None:
    """`import icesize` loads neither pyspark nor pyarrow nor pyiceberg."""
    code = "import icesize, sys; print(sorted({'pyspark', 'pyarrow', 'pyiceberg'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


DISTRIBUTIONS = {"pydantic_core": "pydantic", "zlib_ng": "zlib-ng", "hive_metastore": "pyiceberg"} | {
    "opentelemetry": "opentelemetry-sdk",
    "prometheus_client": "prometheus-client",
}
"""Where a module's name is not that of the package which installs it."""


def test_what_is_imported_is_declared() -> None:
    """Each package that some module imports is a dependency of its own or of an extra, and each is imported."""
    text = (ROOT.parent / "pyproject.toml").read_text()
    declared = set(
        re.findall(r'^  "([\w-]+)', text.partition("\ndependencies = [")[2].partition("\n]")[0], re.MULTILINE)
    )
    extra = set(re.findall(r"^(?:report|spark) = \[\"([\w-]+)", text, re.MULTILINE)) | {
        "opentelemetry-sdk",
        "prometheus-client",
    }
    imported = set().union(*map(_packages, MODULES)) - set(sys.stdlib_module_names) - {"icesize"}
    assert {DISTRIBUTIONS.get(package, package) for package in imported} == declared | extra


@pytest.mark.engine
def test_the_program_for_each_line_of_spark_needs_no_pytest() -> None:
    """It runs in environments that have icesize and PySpark alone."""
    program = "import sys; sys.modules['pytest'] = None; import integration.versions.job"
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_threads_are_made_in_few_places() -> None:
    """One module makes the threads, and a writer of files ends those of its own when its files are complete."""
    makers = {_name(path) for path in MODULES if "ThreadPoolExecutor" in path.read_text()}
    assert makers == {"icesize.concurrency", "icesize.parquet.writing.filling"}
