"""The current output of the commands in transcripts.

The commands of a page run one after the other on the table of `docs_tools.lake`. A snapshot id that a command takes
from the output of an earlier transcript is replaced by the id that the output contains today. The tutorial's commands
run in an empty directory, because its first command makes the table, and beside its programs: `$ python late.py` runs
the block that begins with `# late.py`.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from docs_tools.blocks import DOCS, Block, blocks, pages
from docs_tools.commands import command_lines, run
from docs_tools.lake import add_clicks, add_orders, add_views, add_visits, configured, gone_bad

TUTORIAL = DOCS / "tutorial.md"
_DIRECTORIES = {TUTORIAL: "/tmp/icesize-tutorial"}
"""The directory that a page names where its commands run; other pages name `/lake`."""

_TABLES = {
    "lake.db.orders": add_orders,
    "lake.db.clicks": add_clicks,
    "lake.db.visits": add_visits,
    "lake.db.views": add_views,
}
"""Tables beside `lake.db.events`, made for the pages that name them."""

_IDS = re.compile(r"\d{15,}")
_UUIDS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
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
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        with _tables_of(page, transcripts, folder):
            ids = dict[str, str]()
            return {block: _told(block, folder, ids) for block in transcripts}


@contextmanager
def _tables_of(page: Path, transcripts: list[Block], folder: Path) -> Iterator[None]:
    if page == TUTORIAL:
        with configured(f"sqlite:///{folder}/catalog.db"):
            yield
        return
    with gone_bad(folder) as catalog:
        for name, add in _TABLES.items():
            if any(name in block.code for block in transcripts):
                add(catalog)
        yield


def _told(block: Block, folder: Path, ids: dict[str, str]) -> str:
    """Return the text of one transcript, and add its snapshot ids to those of earlier ones."""
    shown = _DIRECTORIES.get(block.page, "/lake")
    told = []
    for line in re.findall(r"^\$ .*", block.code, re.MULTILINE):
        typed = _IDS.sub(lambda found: ids.get(found[0], found[0]), line)
        told.append(f"{typed}\n{_output(block, typed, (shown, str(folder)))}".replace(str(folder), shown))
    text = "\n".join(told).rstrip() + "\n"
    ids.update(zip(_IDS.findall(block.code), _IDS.findall(text), strict=False))
    return text


def _output(block: Block, typed: str, moved: tuple[str, str]) -> str:
    """Return the output of a typed line, in which the second directory takes the place of the first."""
    if typed.startswith("$ python "):
        _, _, name, *arguments = typed.split()
        return _run_program(program(block.page, name).replace(*moved), arguments)
    (arguments,) = command_lines(Block(block.page, block.line, "console", typed.replace(*moved)))
    return run(arguments, codes=(0, 4))  # 4: a finding


def program(page: Path, name: str) -> str:
    """Return the program of a page that begins with its file's name, as in `# late.py`."""
    return next(block.code for block in blocks(page, "python") if block.code.startswith(f"# {name}\n"))


def _run_program(code: str, arguments: list[str]) -> str:
    """Return what a program prints, and what a shell prints if the program kills itself."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.stdout + ("Killed\n" if done.returncode else "")


def without_numbers(text: str) -> str:
    """Return the words of a transcript, without the parts that vary from machine to machine and from day to day."""
    plain = _BARS.sub("|", _NUMBERS.sub("0", _IDS.sub("ID", _UUIDS.sub("ID", text))))
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
