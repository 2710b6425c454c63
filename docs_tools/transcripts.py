"""The current output of the commands in transcripts.

The commands of a page run one after the other on the table of `docs_tools.lake`. A snapshot id that a command takes
from the output of an earlier transcript is replaced by the id that the output contains today.
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
_COLUMNS = re.compile(r"\S {2,}")
_WIDTH = 100


def told_today(page: Path) -> dict[Block, str]:
    """Return the current text of each transcript of a page."""
    transcripts = blocks(page, "console")
    if not transcripts:
        return {}
    ids = dict[str, str]()
    with tempfile.TemporaryDirectory() as folder, gone_bad(Path(folder).resolve()) as catalog:
        if any("lake.db.orders" in block.code for block in transcripts):
            add_orders(catalog)
        return {block: _told(block, folder, ids) for block in transcripts}


def _told(block: Block, folder: str, ids: dict[str, str]) -> str:
    """Return the text of one transcript, and add its snapshot ids to those of earlier ones."""
    typed = [_with_ids(line, ids) for line in block.code.splitlines() if line.startswith("$ ")]
    answers = (
        run([_with_ids(argument, ids) for argument in arguments]).replace(folder, "/lake")
        for arguments in command_lines(block)
    )
    told = "\n".join(f"{line}\n{answer}" for line, answer in zip(typed, answers, strict=True)).rstrip() + "\n"
    ids.update(zip(_IDS.findall(block.code), _IDS.findall(told), strict=False))
    return told


def _with_ids(text: str, ids: dict[str, str]) -> str:
    return _IDS.sub(lambda found: ids.get(found[0], found[0]), text)


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
    """Update all transcripts of a page if the words of one have changed, because ids of one appear in others."""
    for page in pages():
        today = told_today(page)
        if any(without_numbers(block.code) != without_numbers(told) for block, told in today.items()):
            text = page.read_text(encoding="utf-8")
            for block, told in reversed(today.items()):  # earlier blocks keep their lines
                text = replaced(text, block, "".join(map(_wrapped, told.splitlines(keepends=True))))
            page.write_text(text, encoding="utf-8")


def _wrapped(line: str) -> str:
    """Return a line as a page shows it: a reader does not scroll to the right, except in a table."""
    if len(line) <= _WIDTH or line.startswith("$ ") or len(_COLUMNS.findall(line)) > 2:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.fill(line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) + "\n"
