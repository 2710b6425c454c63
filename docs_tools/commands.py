"""Command lines in shell blocks and transcripts, run in this process or parsed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
from click.testing import CliRunner

from docs_tools.blocks import Block
from icesize.cli.main import main

_LINE = re.compile(r"(?<![\w/.-])icesize (?P<arguments>(?:[a-z-]+ [^\n#]*|--\w[^\n#]*))")
_ELSEWHERE = frozenset({"--master", "--remote", "--conf", "--catalog-uri"})
"""Options that start Spark or connect to a server of the reader.

Such lines are only parsed, because tests already have a session, which a command would end.
"""


def command_lines(block: Block) -> list[list[str]]:
    """Return the arguments of each `icesize` in a block, also inside another line (cron, Airflow, a prompt)."""
    lines = block.code.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    found = (_LINE.search(line) for line in lines if not line.startswith("#") and "pip install" not in line)
    return [_words(match["arguments"]) for match in found if match]


def _words(arguments: str) -> list[str]:
    """Return the words that a shell passes on: up to a pipe, a redirection or the end of an enclosing quotation."""
    words = []
    for word in _shell_words(arguments):
        if word in ("|", ">", ">>", "&&", ";", "||"):
            break
        words.append(word)
    return words


def _shell_words(arguments: str) -> Iterator[str]:
    text = arguments
    while True:
        try:
            yield from shlex.split(text)
            return
        except ValueError:  # the closing quotation mark of an enclosing string
            text = text[: max(text.rfind('"'), text.rfind("'"))]


def parse(arguments: list[str]) -> click.Context:
    """Return the command that would run, with its options; raise click.UsageError."""
    command: click.Command = main
    name, rest = "icesize", list(arguments)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name, *rest = rest
        found = command.get_command(click.Context(command), name)
        if found is None:
            raise click.UsageError(f"there is no command '{name}'")
        command = found
    return command.make_context(name, rest)


def is_run(arguments: list[str]) -> bool:
    """Return whether tests run the command; they run neither the demo nor commands that need another server."""
    return arguments[0] != "demo" and _ELSEWHERE.isdisjoint(arguments)


def run(arguments: list[str], codes: tuple[int, ...] = (0,)) -> str:
    """Return the output of a command; raise AssertionError with it if it ends with another exit code."""
    result = CliRunner().invoke(main, arguments, catch_exceptions=False, terminal_width=100, color=False)
    assert result.exit_code in codes, f"icesize {shlex.join(arguments)}: exit code {result.exit_code}\n{result.output}"
    return result.output
