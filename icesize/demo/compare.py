"""The two sides of the demo, next to each other, and the commands to go on with."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from rich.console import Console

from icesize.console import show_bars, show_line
from icesize.demo.lake import Lake, bytes_written, full_name, rows_and_exact
from icesize.planning.inspection import Inspection
from icesize.sized_table import open as open_table
from icesize.units import format_bytes


@dataclass(frozen=True)
class Side:
    """What one way of writing came to. `exact`: the rows are those generated, each once."""

    title: str
    inspection: Inspection
    snapshots: int
    written_bytes: int
    seconds: float
    rows: int
    exact: bool

    @classmethod
    def of(cls, title: str, lake: Lake, table: str, seconds: float, expected_rows: int) -> Side:
        """Look at a table of the lake as it is now."""
        inspection = open_table(None, full_name(table), catalog=lake.catalog()).inspect()
        loaded = lake.load(table)
        rows, exact = rows_and_exact(loaded, expected_rows)
        return cls(title, inspection, len(loaded.snapshots()), bytes_written(loaded), seconds, rows, exact)


def show_comparison(console: Console, sides: list[Side], expected_rows: int, remark: str = "") -> None:
    """A table with one column per side, a remark on how to read it, then both histograms on one scale."""
    figures = {
        "": [s.title for s in sides],
        "files": [f"{s.inspection.files:,}" for s in sides],
        "most small files per partition": [f"{s.inspection.small_files_max:,}" for s in sides],
        "bytes in live files": [format_bytes(s.inspection.size_bytes) for s in sides],
        "bytes written": [format_bytes(s.written_bytes) for s in sides],
        "seconds": [f"{s.seconds:.1f}" for s in sides],
        "snapshots": [f"{s.snapshots:,}" for s in sides],
        f"rows, of {expected_rows:,}": [f"{s.rows:,} ({'exact' if s.exact else 'NOT EXACT'})" for s in sides],
    }
    names = max(map(len, figures))
    widths = [max(len(row[i]) for row in figures.values()) for i in range(len(sides))]
    show_line(console, "")
    for name, row in figures.items():
        cells = "   ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        show_line(console, f"{name:<{names}}   {cells}", "" if name else "bold")
    if remark:
        show_line(console, remark, "dim")
    most = max(s.inspection.small_files for s in sides)
    for side in sides:
        show_line(console, "")
        show_line(console, f"{side.title}: files by size", "bold")
        show_bars(console, side.inspection, full_bar_files=most)


def show_next_steps(console: Console, lake: Lake, *tables: str) -> None:
    """Commands for the tables that stay: what is there, what would be done, do it."""
    uri = shlex.quote(lake.uri)
    show_line(console, "")
    show_line(console, f"the tables stay in {lake.directory}; try", "bold")
    for table in dict.fromkeys(tables):
        for command in ("inspect", "plan", "compact"):
            show_line(console, f"  icesize {command} {full_name(table)} --catalog-uri {uri}")
