"""The shared parts of the demos: their options, and the output of their steps and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from icesize.demo.lake import EVENTS, Lake, full_name
from icesize.demo.queries import QueryCost
from icesize.environment import Environment
from icesize.presentation.console import show_line
from icesize.sized_table import SizedTable
from icesize.sized_table import open as open_table

STREAMED_SHARE = 8
"""One batch is streamed for each eight that filled the table, and at least three."""

Column = tuple[str, QueryCost]
"""A state of the table, in words, and the query's cost in that state."""


@dataclass(frozen=True)
class DemoOptions:
    """Options of the demo: its directory, the number of rows that it writes, and its steps.

    `iceberg_jar` is Iceberg's runtime for Spark, as a file or as Maven coordinates; without it, the race is skipped.
    `upserts` shows upserts instead of small files.
    """

    path: str | None = None
    batches: int = 48
    rows: int = 5_000
    with_spark: bool = True
    iceberg_jar: str | None = None
    upserts: bool = False

    @property
    def streamed(self) -> int:
        """Batches of the stream."""
        return max(3, self.batches // STREAMED_SHARE)


@dataclass
class Story:
    """One run: its console, the lake, the costs of its queries so far, and the scale of its bars."""

    console: Console
    lake: Lake
    wishes: DemoOptions
    costs: list[Column] = field(default_factory=list)
    steps: int = 0
    most_files: int = 0

    def title(self, text: str, *explained: str) -> None:
        """Print the heading of the next step, and an explanation."""
        self.steps += 1
        show_line(self.console, "")
        show_line(self.console, f"{self.steps}. {text}", "bold")
        for line in explained:
            self.say(line, "dim")

    def say(self, text: str, style: str = "") -> None:
        """Print one line."""
        show_line(self.console, text, style)

    def table(self, name: str = EVENTS, environment: Environment | None = None) -> SizedTable:
        """Open a table of the lake without Spark."""
        return open_table(None, full_name(name), catalog=self.lake.catalog(), environment=environment)


def show_columns(story: Story, figures: Mapping[str, Sequence[str]]) -> None:
    """Print one line per name; the first line has the titles of the columns."""
    names = max(map(len, figures))
    widths = [max(map(len, column)) for column in zip(*figures.values(), strict=True)]
    for name, row in figures.items():
        cells = "   ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        story.say(f"{name:<{names}}   {cells}", "" if name else "bold")
