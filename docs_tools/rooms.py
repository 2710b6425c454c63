"""The packages of the code: the layer and purpose of each, and the layers that each layer uses."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from docs_tools.blocks import ROOT

FLOORS = {
    "icesize": "for all layers: errors, policy, report, clock",
    "icesize.planning": "facts and plans, without I/O",
    "icesize.parquet": "Parquet files, without a catalog",
    "icesize.table": "Iceberg: commits, expiry, deletions",
    "icesize.maintenance": "jobs and charts, without Spark",
    "icesize.spark": "the only packages with pyspark",
    "icesize.sized_table": "the facade",
    "icesize.cli": "the command line and the demo",
}
"""The layers, from the lowest one up; a package belongs to the longest name that its own name begins with."""

_BESIDE = {
    "icesize.events": "icesize.planning",
    "icesize.presentation": "icesize.maintenance",
    **dict.fromkeys(("icesize.demo", "icesize.__main__"), "icesize.cli"),
}
"""Packages of a layer that has another name."""


def floor_of(module: str) -> str:
    whole = module.split(".")
    names = [".".join(whole[:n]) for n in range(len(whole), 0, -1)]
    floor = next(name for name in names if name in FLOORS)
    return _BESIDE.get(".".join(whole[:2]), floor)


def arrows() -> list[tuple[str, str]]:
    """Return pairs of a layer and a lower one that it imports from, without those that a third layer implies.

    `tests/test_layering.py` names the one import of a higher layer.
    """
    used, height = defaultdict(set), list(FLOORS).index
    for path in sorted((ROOT / "icesize").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if module == "icesize":
            continue
        for imported in _imported(path):
            if height(floor_of(imported)) < height(floor_of(module)):
                used[floor_of(module)].add(floor_of(imported))
    below = {floor: _reached(used, floor) for floor in FLOORS}
    return [
        (floor, other)
        for floor in FLOORS
        for other in FLOORS
        if other in used[floor] and not any(other in below[third] for third in used[floor] - {other})
    ]


def _reached(used: dict[str, set[str]], floor: str) -> set[str]:
    found: set[str] = set()
    ahead = [floor]
    while ahead:
        for other in used[ahead.pop()] - found:
            found.add(other)
            ahead.append(other)
    return found


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("icesize."):
            yield node.module


def rooms() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "icesize").rglob("__init__.py"))[1:]:
        words = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
        yield ".".join(path.parent.relative_to(ROOT).parts), " ".join(words.split()).replace("|", r"\|")
