"""Prints blocks and errors to a terminal or a pipe.

Importing this module does not import rich, which is loaded with the first console.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from icesize.presentation.blocks import Block, Room, lines_of

if TYPE_CHECKING:
    from rich.console import Console


def console_on(file: TextIO | None = None, *, stderr: bool = False, silent: bool = False) -> Console:
    """Return a console on a stream, on standard output, on standard error, or one that shows nothing.

    The console uses colors only on a terminal.
    """
    from rich.console import Console

    return Console(file=file, stderr=stderr, highlight=False, quiet=silent, force_terminal=False if silent else None)


def show(console: Console, blocks: Iterable[Block]) -> None:
    """Print blocks, in color on a terminal."""
    from rich.text import Text

    room = Room(console.width, console.options.ascii_only, console.is_terminal)
    for line in lines_of(blocks, room):
        console.print(Text.assemble(*line), soft_wrap=True)


def show_line(console: Console, text: str, style: str = "") -> None:
    """Print one line unchanged."""
    show(console, [((text, style),)])


def show_error(console: Console, message: str) -> None:
    """Print an error in one line; indented lines stay below it unchanged, because they point at a place."""
    lines = message.splitlines()
    words = " ".join(word for line in lines if not line.startswith("  ") for word in line.split())
    pointing = [(line,) for line in lines if line.startswith("  ")]
    show(console, [(("icesize: ", "bold red"), words), *pointing])
