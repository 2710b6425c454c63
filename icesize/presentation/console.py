"""Blocks and errors on a console. Importing this module does not import rich, which waits for the first console."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from icesize.presentation.blocks import Block, Room, lines_of

if TYPE_CHECKING:
    from rich.console import Console


def console_on(file: TextIO | None = None, *, stderr: bool = False, silent: bool = False) -> Console:
    """A console on a stream, on standard output or on standard error, or one that shows nothing; colours only if that
    is a terminal."""
    from rich.console import Console

    return Console(file=file, stderr=stderr, highlight=False, quiet=silent, force_terminal=False if silent else None)


def show(console: Console, blocks: Iterable[Block]) -> None:
    """Print blocks, in colour on a terminal."""
    from rich.text import Text

    room = Room(console.width, console.options.ascii_only, console.is_terminal)
    for line in lines_of(blocks, room):
        console.print(Text.assemble(*line), soft_wrap=True)


def show_line(console: Console, text: str, style: str = "") -> None:
    """Print one line as it is."""
    show(console, [((text, style),)])


def show_error(console: Console, message: str) -> None:
    """Print what went wrong, in one line; indented lines stay below it as they are: they point at a place."""
    lines = message.splitlines()
    words = " ".join(word for line in lines if not line.startswith("  ") for word in line.split())
    pointing = [(line,) for line in lines if line.startswith("  ")]
    show(console, [(("icesize: ", "bold red"), words), *pointing])
