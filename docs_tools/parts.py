"""The parts of pages that are written from code, between `<!-- begin: NAME -->` and `<!-- end: NAME -->`."""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click

from docs_tools import drawings
from docs_tools.blocks import ROOT, pages
from icesize import errors
from icesize.cli.main import main
from icesize.policy import DOCUMENTED

_PART = re.compile(r"(<!-- begin: ([a-z-]+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)
_LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")


def rewritten(page: Path) -> str:
    """The text of a page with its parts as the code says them today."""
    text = page.read_text(encoding="utf-8")
    return _PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]().strip()}\n\n{part[3]}", text)


def write() -> None:
    """Bring the parts of all pages up to date."""
    for page in pages():
        page.write_text(rewritten(page), encoding="utf-8")


def policy_keys() -> str:
    """A row for each key of the policy."""
    rows = (f"| `{key}` | {default} | {source} |" for key, default, source in DOCUMENTED)
    return "\n".join(["| key | default | source |", "|---|---|---|", *rows])


def error_tree() -> str:
    """The tree of errors, and the meaning of each."""
    tree = inspect.cleandoc(errors.__doc__ or "").split("\n\n")[1]
    return "```text\n" + inspect.cleandoc("    " + tree.strip()) + "\n```"


def faults() -> str:
    """The catalogue of faults, as its own program writes it, without links to tests."""
    text = (ROOT / "integration" / "faults" / "README.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("\n")
    return _LINK.sub(r"`\1`", rest)


def recipe(name: str) -> str:
    """A recipe that has a test of its own, as a block of code."""
    code = (ROOT / "docs_tools" / "recipes" / f"{name}.py").read_text(encoding="utf-8")
    return f"```python\n# not run here: it has a test of its own, with the scheduler in it\n{code.strip()}\n```"


def commands() -> str:
    """What `--help` says of each command, at the width of a page."""
    return "\n\n".join(f"## {name}\n\n```text\n{_help(command, name)}\n```" for name, command in _commands(main))


def _commands(group: click.Group, before: str = "icesize") -> Iterator[tuple[str, click.Command]]:
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from _commands(command, f"{before} {name}")
        elif not command.hidden:
            yield f"{before} {name}", command


def _help(command: click.Command, name: str) -> str:
    context = click.Context(command, info_name=name, terminal_width=100, max_content_width=100)
    context.color = False
    return click.unstyle(command.get_help(context)).strip()


FLOORS = {
    "icesize": "what everybody may use: errors, policy, report, clock",
    "icesize.planning": "facts and plans, pure",
    "icesize.parquet": "bytes: knows no catalog",
    "icesize.table": "Iceberg: what becomes visible, what may be deleted",
    "icesize.maintenance": "whole jobs, without Spark",
    "icesize.spark": "the only rooms with pyspark",
    "icesize.sized_table": "the facade",
    "icesize.cli": "commands, pictures, the demo",
}
"""The floors of the house from the ground up; every room belongs to the longest name that its own begins with."""


def rooms() -> str:
    """The floors drawn with who imports whom, and a line for each room."""
    drawn = ["```mermaid", "graph BT"]
    drawn += [f'  {_node(floor)}["{floor}<br/>{words}"]' for floor, words in FLOORS.items()]
    drawn += [f"  {_node(floor)} --> {_node(used)}" for floor, used in _arrows()]
    rows = [f"| `{name.removeprefix('icesize.')}` | {words} |" for name, words in _rooms()]
    return "\n".join([*drawn, "```", "", "| room | what it is for |", "|---|---|", *rows])


def _node(floor: str) -> str:
    return floor.rpartition(".")[2]


def _floor(module: str) -> str:
    whole = module.split(".")
    names = [".".join(whole[:n]) for n in range(len(whole), 0, -1)]
    floor = next(name for name in names if name in FLOORS)
    return "icesize.cli" if whole[1:2] and whole[1] in ("console", "demo", "__main__") else floor


def _arrows() -> list[tuple[str, str]]:
    """Floor -> the floors that it imports from, without what one of those imports itself."""
    used = defaultdict(set)
    for path in sorted((ROOT / "icesize").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if module == "icesize":
            continue
        for imported in _imported(path):
            if _floor(imported) != _floor(module):
                used[_floor(module)].add(_floor(imported))
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


def _rooms() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "icesize").rglob("__init__.py"))[1:]:
        words = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
        yield ".".join(path.parent.relative_to(ROOT).parts), " ".join(words.split()).replace("|", r"\|")


PARTS: dict[str, Callable[[], str]] = {
    "policy-keys": policy_keys,
    "policy-table": drawings.table,
    "errors": error_tree,
    "faults": faults,
    "commands": commands,
    "rooms": rooms,
    "airflow": partial(recipe, "airflow_dag"),
    "dagster": partial(recipe, "dagster_job"),
}
