"""No message, help text or page uses a word or a shape of sentence that readers had to read twice."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from docs_tools.blocks import ROOT, pages


def _pattern(text: str) -> re.Pattern[str]:
    """A pattern whose blanks also match the end of a line."""
    return re.compile(text.replace(" ", r"\s+"))


BANNED = _pattern(
    r"\b(?:told|tells?|says|hears?|asks|goes on|go on with|anew|land(?:ed|s)?|mend(?:ed|s)?|unwell|held back"
    r"|as it (?:is|was)|of ours|somebody|nobody|whoever|for ever|all the same|but for|meanwhile|lets? expect"
    r"|put together|stands)\b"
)
SHAPES = {
    "use the verb instead of 'has': counts, costs, lists": _pattern(
        r"\b(?:note|page|message|error) has (?:an?|the|its|links)\b"
        r"|\b(?:has|have) (?:an?|the|its|their) (?:number|price|turn|meaning|order|name|reason) of\b"
        r"|\b(?:has|have) (?:an?|its|their) (?:price|turn|part)\b"
    ),
    "begin with the subject, not with Of, Beside or Where": _pattern(r"\b(?:Of|Beside) \w|\bWhere (?![^.]*\?)"),
    "write recent, not last": _pattern(r"\b(?:its|their|the) last (?:days|weeks|hours|batches|commits|writes)\b"),
    "name the number, not so many or as many": _pattern(
        r"\bso (?:many|few)\b|\bso much (?!that)|\bas many (?:as|of|\w+ as there)\b"
    ),
    "write even if, and put also before the verb": _pattern(r"\balso if\b|, too(?=[.:;,)\n]|$)"),
}
"""What to do instead, and what is found. Each pattern leaves out what is right somewhere, so it misses some."""


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


def _places(text: str, patterns: list[re.Pattern[str]], first: int = 1) -> list[str]:
    found = sorted((match.start(), match[0]) for pattern in patterns for match in pattern.finditer(text))
    return [f"{first + text.count(chr(10), 0, start)}: {words!r} in {_around(text, start)!r}" for start, words in found]


def _around(text: str, start: int) -> str:
    return " ".join(text[max(0, start - 30) : start + 50].split())


def _prose(page: Path) -> str:
    """The text that a reader of the file sees; of a notebook, its cells of Markdown."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        return "\n\n".join("".join(cell["source"]) for cell in cells)
    return text


def _read_pages() -> list[Path]:
    beside = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "icesize/README.md")]
    examples = chain.from_iterable((ROOT / "examples").glob(f"*.{kind}") for kind in ("md", "py", "ipynb"))
    return [*pages(), *beside, *sorted(examples)]


@pytest.mark.parametrize(
    "module", sorted((ROOT / "icesize").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_the_words_of_the_product_are_plain(module: Path) -> None:
    """Messages, help texts and docstrings have no banned word or shape; docstrings begin with a subject or verb."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    patterns = [BANNED, *SHAPES.values()]
    assert [place for line, text in _strings(tree) for place in _places(text, patterns, line)] == []
    assert [docstring for docstring in _docstrings(tree) if QUESTION.match(docstring)] == []


@pytest.mark.parametrize("page", _read_pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_are_plain(page: Path) -> None:
    """Pages and examples have none of the banned words and shapes."""
    assert _places(_prose(page), [BANNED, *SHAPES.values()]) == []


def test_a_banned_word_is_found() -> None:
    """The list finds words in any of their forms, and leaves others alone."""
    assert _places("nothing landed\nan island\nnobody goes\non", [BANNED]) == [
        "1: 'landed' in 'nothing landed an island nobody goes on'",
        "3: 'nobody' in 'nothing landed an island nobody goes on'",
        "3: 'goes\\non' in 'thing landed an island nobody goes on'",
    ]


@pytest.mark.parametrize(
    ("shape", "wrong", "right"),
    list(
        zip(
            SHAPES,
            (
                (
                    "a note has the number",
                    "Tables have a price.",
                    "each table has a part of it",
                    "others have their turn",
                ),
                ("Of a log, 1,000 queries count.", "Beside\na writer", "Where no registry is reached, it stops."),
                ("from its last days", "the last\nbatches"),
                ("into so many files", "as many tasks as there are files", "as many as are useful"),
                ("success, also if nothing is due", "Remove it, too."),
            ),
            (
                ("The table has a sort order.", "It has the same number of rows."),
                ("A list of files", "Where is it?", "Iceberg beside Delta"),
                ("in the last ten minutes", "the last hour"),
                ("twice as many requests", "as few files as possible"),
                ("also commits", ", too many files", ", too large"),
            ),
            strict=True,
        )
    ),
    ids=("A", "E", "G", "N", "O"),
)
def test_a_shape_is_found(shape: str, wrong: tuple[str, ...], right: tuple[str, ...]) -> None:
    """Each shape is found in sentences that have it, and in no others."""
    assert [text for text in wrong if not SHAPES[shape].search(text)] == []
    assert [text for text in right if SHAPES[shape].search(text)] == []
