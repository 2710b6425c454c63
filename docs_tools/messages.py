"""Texts that the code can print, as templates, for the page that explains them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from docs_tools.blocks import ROOT

HOLE = "…"
"""Placeholder for a value in a template."""


@cache
def templates() -> frozenset[str]:
    """Return every text in the code of icesize, with placeholders for its values."""
    paths = (ROOT / "icesize").rglob("*.py")
    return frozenset(text for path in paths for text in _texts(ast.parse(path.read_text(encoding="utf-8"))))


def is_printed(quoted: str) -> bool:
    """Return whether a text of the code contains a quotation from a page, placeholders included."""
    return any(quoted in template for template in templates())


def _texts(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else HOLE for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.replace("%s", HOLE).replace("%d", HOLE)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            yield HOLE.join(_texts_of_sum(node))


def _texts_of_sum(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _texts_of_sum(node.left)
        yield from _texts_of_sum(node.right)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(v.value) if isinstance(v, ast.Constant) else HOLE for v in node.values)
