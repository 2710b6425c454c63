"""The shared parts of both stories: their options, and the output of their steps and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from icesize.demo.lake import EVENTS, Lake, full_name
from icesize.environment import Environment
from icesize.presentation.console import show_line
from icesize.sized_table import SizedTable
from icesize.sized_table import open as open_table

STREAMED_SHARE = 8
"""One batch is streamed for each eight that filled the table, and at least three."""


@dataclass(frozen=True)
class DemoOptions:
    """Options of the demo: its directory, the number of rows that it writes, and its story."""

    path: str | None = None
    batches: int = 48
    rows: int = 5_000
    with_spark: bool = True
    upserts: bool = False

    @property
    def streamed(self) -> int:
        """Batches of the stream."""
        return max(3, self.batches // STREAMED_SHARE)


@dataclass
class Story:
    """One run: its console, the lake, the figures of its queries so far by name, and the scale of its bars."""

    console: Console
    lake: Lake
    wishes: DemoOptions
    figures: dict[str, list[str]] = field(default_factory=dict)
    steps: int = 0
    most_files: int = 0

    def title(self, text: str, *explained: str) -> None:
        """Print the heading of the next step, and an explanation."""
        self.steps += 1
        self.say("")
        self.say(f"{self.steps}. {text}", "bold")
        for line in explained:
            self.say(line, "dim")

    def say(self, text: str, style: str = "") -> None:
        """Print one line."""
        show_line(self.console, text, style)

    def counted(self, what: str, found: int, exact: bool) -> bool:
        """Print whether the rows that were found are the expected ones, and return it."""
        word, style = ("exact", "green") if exact else ("NOT EXACT", "bold red")
        self.say(f"{what}   {found:,} ({word})", style)
        return exact

    def table(self, name: str = EVENTS, environment: Environment | None = None) -> SizedTable:
        """Open a table of the lake without Spark."""
        return open_table(None, full_name(name), catalog=self.lake.catalog(), environment=environment)

    def columns(self, figures: Mapping[str, Sequence[str]]) -> None:
        """Print one line per name; the first line has the titles of the columns."""
        names = max(map(len, figures))
        widths = [max(map(len, column)) for column in zip(*figures.values(), strict=True)]
        for name, row in figures.items():
            cells = "   ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
            self.say(f"{name:<{names}}   {cells}", "" if name else "bold")
