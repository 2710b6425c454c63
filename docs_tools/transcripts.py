"""The current output of the commands in transcripts.

The commands of a page run one after the other on the table of `docs_tools.lake`.
"""

from __future__ import annotations

import re
import tempfile
import textwrap
from pathlib import Path

from docs_tools.blocks import Block, blocks, pages
from docs_tools.commands import command_lines, run
from docs_tools.lake import add_orders, gone_bad

_IDS = re.compile(r"\d{15,}")
_NUMBERS = re.compile(r"\d[\d.,]*")
_BARS = re.compile(r"[▏▎▍▌▋▊▉█]+")
_SPACES = re.compile(r"[\s─-]{2,}|\s")
_WIDTH = 100


def told_today(page: Path) -> dict[Block, str]:
    """Return the current text of each transcript of a page."""
    transcripts = blocks(page, "console")
    if not transcripts:
        return {}
    with tempfile.TemporaryDirectory() as folder, gone_bad(Path(folder).resolve()) as catalog:
        if any("lake.db.orders" in block.code for block in transcripts):
            add_orders(catalog)
        return {block: _told(block, folder) for block in transcripts}


def _told(block: Block, folder: str) -> str:
    typed = [line for line in block.code.splitlines() if line.startswith("$ ")]
    answers = (run(arguments).replace(folder, "/lake") for arguments in command_lines(block))
    return "\n".join(f"{line}\n{answer}" for line, answer in zip(typed, answers, strict=True)).rstrip() + "\n"


def without_numbers(text: str) -> str:
    """Return the words of a transcript, without the parts that vary from machine to machine and from day to day."""
    plain = _BARS.sub("|", _NUMBERS.sub("0", _IDS.sub("ID", text)))
    return _SPACES.sub(" ", plain).strip()


def replaced(text: str, block: Block, code: str) -> str:
    """Return the text of a page with other code in one of its blocks, indented like its fence in a list."""
    lines = text.splitlines(keepends=True)
    fence = lines[block.line - 1]
    indent = fence[: len(fence) - len(fence.lstrip())]
    lines[block.line : block.line + block.code.count("\n")] = [textwrap.indent(code, indent)]
    return "".join(lines)


def write() -> None:
    """Update all transcripts whose words have changed."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for block, told in reversed(told_today(page).items()):  # earlier blocks keep their lines
            if without_numbers(block.code) != without_numbers(told):
                text = replaced(text, block, "".join(map(_wrapped, told.splitlines(keepends=True))))
        page.write_text(text, encoding="utf-8")


def _wrapped(line: str) -> str:
    """Return a line as a page shows it: a reader does not scroll to the right."""
    if len(line) <= _WIDTH or line.startswith("$ "):
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.fill(line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) + "\n"
