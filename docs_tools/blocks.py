"""The code blocks of a page, and what a reader is told of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LANGUAGES = frozenset({"python", "sql", "shell", "console", "yaml", "text"})
"""`console` is a transcript: lines after `$ ` are typed, the others printed. `text` is read by people only."""
NOT_RUN = ("# not run here:", "-- not run here:")
"""How a block that cannot run in the tests begins; the reason follows, for the reader."""


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is that of its fence, counted from 1."""

    page: Path
    line: int
    language: str
    code: str

    @property
    def is_run(self) -> bool:
        """Whether the tests run it; else it is only parsed, and says so to its reader."""
        return not self.code.startswith(NOT_RUN)

    @property
    def place(self) -> str:
        """`docs/streams.md:12`."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """The README and every page of the docs."""
    return [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def blocks(page: Path, *languages: str) -> list[Block]:
    """The blocks of a page in their order, of the given languages or of all."""
    return [block for block in _all(page) if not languages or block.language in languages]


def _all(page: Path) -> Iterator[Block]:
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        line = (token.map or [0])[0] + 1
        if token.type == "fence":
            yield Block(page, line, (token.info.split() or [""])[0], token.content)
        elif token.type == "code_block":
            yield Block(page, line, "", token.content)
