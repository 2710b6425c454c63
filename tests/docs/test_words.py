"""No message, help text or page uses a word that readers had to read twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs_tools.blocks import ROOT, pages

BANNED = re.compile(
    r"\b(told|tells?|says|hears?|asks|goes on|go on with|anew|land(?:ed|s)?|mend(?:ed|s)?|unwell|held back"
    r"|as it (?:is|was)|of ours|somebody|nobody|whoever|for ever|all the same|but for|meanwhile|lets? expect"
    r"|put together|stands)\b"
)


QUESTION = re.compile(r"(What|Where|Which|Whether|Of|Else|As|By|Those|How|Why)\b")
"""Words at which a docstring does not begin, because its subject would come late."""


def _strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The strings of a module: messages, advice, help texts, logs, docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _docstrings(tree: ast.AST) -> Iterator[str]:
    """The docstrings of a module, and those of its classes, functions, attributes and constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def _places(lines: Iterator[tuple[int, str]]) -> list[str]:
    return [
        f"{number}: {match[0]!r} in {line.strip()[:80]!r}" for number, line in lines for match in BANNED.finditer(line)
    ]


@pytest.mark.parametrize(
    "module", sorted((ROOT / "icesize").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_the_words_of_the_product_are_plain(module: Path) -> None:
    """Messages, help texts and docstrings have no banned word; docstrings begin with a subject or verb."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    assert _places(_strings(tree)) == []
    assert [docstring for docstring in _docstrings(tree) if QUESTION.match(docstring)] == []


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.name)
def test_pages_are_plain(page: Path) -> None:
    """Pages have none of the banned words, and neither do help texts and error docstrings, from which some are made."""
    assert _places(iter(enumerate(page.read_text(encoding="utf-8").splitlines(), 1))) == []


def test_a_banned_word_is_found() -> None:
    """The list finds words in any of their forms, and leaves others alone."""
    assert _places(iter([(1, "nothing landed"), (2, "an island"), (3, "nobody tells")])) == [
        "1: 'landed' in 'nothing landed'", "3: 'nobody' in 'nobody tells'", "3: 'tells' in 'nobody tells'",
    ]  # fmt: skip
