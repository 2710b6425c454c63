"""Tests change icesize through seams and public names, and one module of icesize uses private names of PyIceberg."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pyiceberg
import pytest

PROJECT = Path(__file__).resolve().parent.parent
PATCHES = re.compile(r"(.*\.)?(setattr|delattr|__setattr__|setitem|delitem|patch(\.object|\.dict|\.multiple)?)")
POSSIBLE = re.compile(r"(set|del)(attr|item)|patch|(?<!self)\._\w")
"""Sources without any of these are not parsed, which takes long."""


@pytest.mark.parametrize("folder", ["tests", "integration", "benchmarks"])
def test_no_test_patches_a_private_name(folder: str) -> None:
    """Tests change icesize and their own helpers through seams and public names only."""
    paths = [p for p in (PROJECT / folder).rglob("*.py") if "target" not in p.parts]
    sources = {str(path.relative_to(PROJECT)): path.read_text() for path in paths}
    assert [f"{path}:{line}" for path, source in sources.items() for line in private_patches(source)] == []


@pytest.mark.parametrize(
    "line",
    [
        "monkeypatch.setattr(redaction, '_secrets', {})",
        "monkeypatch.setattr('icesize.redaction._secrets', {})",
        "patch.setattr(fetching._Room, 'keep', watched)",
        "monkeypatch.setattr(name=f'_{name}', target=fetching, value=wrong)",
        "monkeypatch.setattr(f'icesize.redaction.{name}', wrong)",
        "monkeypatch.setitem(redaction._secrets, 'secret', None)",
        "monkeypatch.delattr(redaction, '_secrets')",
        "setattr(redaction, '_secrets', {})",
        "mock.patch('icesize.redaction._secrets', {})",
        "patch.object(redaction, '_secrets', {})",
        "patch.multiple(redaction, _secrets={})",
        "object.__setattr__(table, '_handle', other)",
        "redaction._secrets = {}",
        "redaction._secrets['secret'] = None",
        "redaction._secrets |= {}",
        "del redaction._secrets",
    ],
)
def test_patches_of_private_names_are_found(line: str) -> None:
    """The test before this one finds each way to change a private name."""
    assert list(private_patches(line)) == [f"1: {ast.unparse(ast.parse(line))}"]


@pytest.mark.parametrize(
    "line",
    [
        "self._secrets = {}",
        "found[tuple(file._data)] = 1",
        "monkeypatch.setattr(RewriteGroups, '__reduce__', broken)",
        "monkeypatch.setattr('pyiceberg.catalog._ENV_CONFIG.get_catalog_config', found)",
        "monkeypatch.setattr(threads, 'merge', lambda task: task._replace(rows=0))",
        "sink.run(table._handle, '_secrets')",
    ],
)
def test_what_is_no_patch_of_a_private_name_is_not_found(line: str) -> None:
    """Attributes of the test's own objects, of other packages, and reads stay allowed."""
    assert list(private_patches(line)) == []


def private_patches(source: str) -> Iterator[str]:
    """Yield the lines that change what has a name with an underscore, except of `self` and of other packages."""
    for node in ast.walk(ast.parse(source if POSSIBLE.search(source) else "")):
        changed: list[ast.expr] = []
        if isinstance(node, ast.Call) and PATCHES.fullmatch(ast.unparse(node.func)):
            named = [keyword.value for keyword in node.keywords if keyword.arg in ("target", "name", "attribute")]
            changed = node.args[:2] + named + [ast.Constant(keyword.arg or "") for keyword in node.keywords]
        elif isinstance(node, ast.Assign | ast.Delete):
            changed = [each for target in node.targets for each in _elements(target)]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            changed = [node.target]
        if any(map(_is_private, changed)):
            yield f"{node.lineno}: {ast.unparse(node)}"


def _elements(target: ast.expr) -> list[ast.expr]:
    return [e for each in target.elts for e in _elements(each)] if isinstance(target, ast.Tuple) else [target]


def _is_private(changed: ast.expr) -> bool:
    """Return True for a private object or name, and for an f-string, which may name anything."""
    if isinstance(changed, ast.JoinedStr):
        return True
    if isinstance(changed, ast.Constant):
        packages = ("icesize.", "tests.", "integration.", "benchmarks.")
        names = str(changed.value).split(".")
        return (len(names) == 1 or str(changed.value).startswith(packages)) and any(map(_has_underscore, names))
    while isinstance(changed, ast.Attribute | ast.Subscript):
        if isinstance(changed, ast.Attribute) and _has_underscore(changed.attr):
            return ast.unparse(changed.value) not in ("self", "cls")
        changed = changed.value
    return False


def _has_underscore(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_private_names_of_pyiceberg_are_in_one_module() -> None:
    """Any release of PyIceberg may change its private names, so one module uses them, and its tests check each."""
    words = " ".join(path.read_text() for path in Path(pyiceberg.__file__).parent.rglob("*.py"))
    theirs = set(re.findall(r"\b_[a-z]\w+", words)) - {"_replace", "_asdict"}
    paths = sorted((PROJECT / "icesize").rglob("*.py"))
    used = {path.name for path in paths if theirs.intersection(foreign_private_names(path.read_text()))}
    assert used == {"pyiceberg_internals.py"}


@pytest.mark.parametrize(
    "line",
    [
        "catalog._session",
        "getattr(catalog, '_session', None)",
        "vars(catalog)['_session'] = None",
        "from pyiceberg.catalog import _session",
    ],
)
def test_uses_of_private_names_of_others_are_found(line: str) -> None:
    """The test before this one finds each way to use a private name, unless its module defines the name."""
    own = "class Own:\n    def __init__(self):\n        self._session = 1\n        self.other._session\n"
    assert (list(foreign_private_names(line)), list(foreign_private_names(own))) == (["_session"], [])


def foreign_private_names(source: str) -> Iterator[str]:
    """Yield the private names that a module uses or imports, but does not define."""
    tree = ast.parse(source)
    own = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own |= {node.attr} if ast.unparse(node.value) == "self" else set()
    for node in ast.walk(tree):
        names: list[object] = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] != "icesize":
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            names = [each.value for each in node.args if isinstance(each, ast.Constant)]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value).startswith("vars("):
            names = [node.slice.value] if isinstance(node.slice, ast.Constant) else []
        yield from (name for name in names if isinstance(name, str) and _has_underscore(name) and name not in own)
