"""The code blocks of a page, and the text that introduces a block that is not run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LANGUAGES = frozenset({"python", "sql", "shell", "console", "yaml", "toml", "text"})
"""Languages of blocks; `text` is only for people.

`console` is a transcript: lines after `$ ` are typed, the others are output.
"""
NOT_RUN = ("# not run here:", "-- not run here:")
"""Beginnings of a block that the tests cannot run; the reason follows, for the reader."""


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is the line of its fence, counted from 1."""

    page: Path
    line: int
    language: str
    code: str

    @property
    def is_run(self) -> bool:
        """True if the tests run the block; the others are only parsed, and their first line gives the reason."""
        return not self.code.startswith(NOT_RUN)

    @property
    def place(self) -> str:
        """The page and the line, as in `docs/streams.md:12`."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Return the README and every page of the docs."""
    return [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return the blocks of a page in their order, of the given languages or of all."""
    return [block for block in _all(page) if not languages or block.language in languages]


def _all(page: Path) -> Iterator[Block]:
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        line = (token.map or [0])[0] + 1
        if token.type == "fence":
            yield Block(page, line, (token.info.split() or [""])[0], token.content)
        elif token.type == "code_block":
            yield Block(page, line, "", token.content)
