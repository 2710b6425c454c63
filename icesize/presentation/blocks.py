"""Lines, bars and tables, rendered as plain text, as colored text in a terminal or as HTML.

A pipe gets the same lines as a terminal, without color. icesize never wraps or cuts lines: a terminal wraps them, a
pipe gets them whole. Only bars and tables follow the width. HTML inherits the colors of the page around it, so that it
is readable on light and dark pages. It fetches nothing and runs no script. All values from a table are escaped.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from icesize.units import format_bytes

Part = str | tuple[str, str]
"""Text, or a pair of text and its style."""
Line = tuple[Part, ...]

MOST_BAR_CELLS = 36
MOST_ROWS = 20
"""Rows of a table that HTML shows; the others are counted."""
AMBER, GREEN = "#d9902f", "#3f9d63"
"""Readable on white and on near black."""

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_GREY = "opacity:.7"
_CELL = "padding:1px 10px 1px 0;border:0;background:none;color:inherit;vertical-align:top"


class Room(NamedTuple):
    """The size and the abilities of the output."""

    width: int = 80
    ascii_only: bool = False
    is_terminal: bool = False


@dataclass(frozen=True)
class Bars:
    """Name, files and bytes of each line, on one scale; the first line is the total of all others except the last.

    Lines without files are left out. A full bar means the most files of a line, or `full_bar_files` if that is more.
    """

    rows: Sequence[tuple[str, int, int]]
    full_bar_files: int = 0

    @property
    def _most(self) -> int:
        return max(1, self.full_bar_files, *(files for _, files, _ in self.rows))

    def lines(self, room: Room) -> Iterator[Line]:
        """Return one line per row, with a bar that follows the width."""
        styles = ["yellow", *["dim yellow"] * (len(self.rows) - 2), "green"]
        shown = [(row, style) for row, style in zip(self.rows, styles, strict=True) if row[1]]
        names = max((len(name) for (name, *_), _ in shown), default=0)
        counts = max((len(f"{files:,}") for (_, files, _), _ in shown), default=0)
        cells = max(4, min(MOST_BAR_CELLS, room.width - names - counts - 16))
        for (name, files, size_bytes), style in shown:
            bar = _bar(files / self._most, cells, ascii_only=room.ascii_only)
            yield f"{name:<{names}}  {files:>{counts},}  {format_bytes(size_bytes):>9}  ", (bar, style)

    def html(self) -> str:
        """Return a table with a box in each line, as long as the line's share."""
        shown = []
        for place, (name, files, size_bytes) in enumerate(self.rows, 1):
            if not files:
                continue
            width = f"{max(files / self._most * 18, 0.1):.1f}em"
            colour = GREEN if place == len(self.rows) else AMBER
            box = f"display:inline-block;height:.8em;width:{width};background:{colour};border-radius:2px"
            note = _cell(f"{files:,}, {format_bytes(size_bytes)}", "text-align:right")
            shown.append(f'{_cell(name.strip())}{note}<td style="{_CELL}"><span style="{box}"></span></td>')
        return _table(shown)


@dataclass(frozen=True)
class Columns:
    """Cells below each other; columns of `numbers` are aligned to the right.

    A column with only blank cells is left out. If a terminal is too narrow, columns named in `spare` are left out too,
    the first ones first.
    """

    rows: Sequence[Sequence[Part]]
    heads: Sequence[str] = ()
    numbers: Container[int] = ()
    spare: Sequence[str] = ()

    @property
    def _columns(self) -> dict[int, int]:
        """The width of each column that is shown."""
        columns = [[len(_styled(cell)[0]) for cell in column] for column in zip(*self.rows, strict=True)]
        heads = [len(head) for head in self.heads] or [0] * len(columns)
        return {i: max(heads[i], *cells) for i, cells in enumerate(columns) if any(cells)}

    def lines(self, room: Room) -> Iterator[Line]:
        """Return the heads, the rows, and a list of the columns that were left out."""
        widths, left_out = self._columns, []
        for name in self.spare if room.is_terminal else ():
            place = self.heads.index(name)
            if place in widths and sum(widths.values()) + 2 * (len(widths) - 1) > room.width:
                del widths[place]
                left_out.append(name)
        heads = [[(head, "bold") for head in self.heads]] if self.heads and widths else []
        for row in (*heads, *self.rows):
            parts = []
            for place, width in widths.items():
                cell, style = _styled(row[place])
                parts += [(f"{cell:>{width}}" if place in self.numbers else f"{cell:<{width}}", style), ("  ", "")]
            while parts and not parts[-1][0].strip():
                parts.pop()
            *others, (last, style) = parts or [("", "")]
            yield *others, (last.rstrip(), style)
        if left_out:
            yield ((f"hidden in {room.width} columns: {', '.join(left_out)}", "dim"),)

    def html(self) -> str:
        """Return a table of the first rows, and the number of other rows."""
        places = self._columns
        heads = "".join(_cell(self.heads[i], f"{_GREY};text-align:left") for i in places) if self.heads else ""
        rows = ["".join(_cell(_styled(row[i])[0]) for i in places) for row in self.rows[:MOST_ROWS]]
        more = len(self.rows) - MOST_ROWS
        count = f'<div style="{_GREY}">and {more:,} more</div>' if more > 0 else ""
        return _table([*([heads] if heads and rows else []), *rows]) + count


Block = Line | Bars | Columns


def lines_of(blocks: Iterable[Block], room: Room) -> Iterator[Line]:
    """Return the lines of blocks, formatted for a room."""
    for block in blocks:
        if isinstance(block, tuple):
            yield block
        else:
            yield from block.lines(room)


def text(blocks: Iterable[Block]) -> str:
    """Return blocks as plain text."""
    return "\n".join("".join(_styled(part)[0] for part in line) for line in lines_of(blocks, Room()))


def html(blocks: Iterable[Block]) -> str:
    """Return blocks as a small piece of HTML for a notebook."""
    parts = (_div(block) if isinstance(block, tuple) else block.html() for block in blocks)
    return f'<div style="max-width:60em;overflow-x:auto;line-height:1.5">{"".join(parts)}</div>'


def _div(line: Line) -> str:
    bold = '<span style="font-weight:600">'
    spans = (f"{bold}{escape(text)}</span>" if "bold" in style else escape(text) for text, style in map(_styled, line))
    return f'<div style="white-space:pre-wrap">{"".join(spans)}</div>'


def _styled(part: Part) -> tuple[str, str]:
    return part if isinstance(part, tuple) else (part, "")


def _bar(share: float, cells: int, *, ascii_only: bool) -> str:
    """Return a bar of up to `cells` cells; a share above zero always shows something."""
    if ascii_only:
        return "#" * max(round(share * cells), share > 0)
    eighths = max(round(share * cells * 8), share > 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _table(rows: Sequence[str]) -> str:
    body = "".join(f'<tr style="background:none">{row}</tr>' for row in rows)
    return f'<table style="border-collapse:collapse;margin:4px 0;border:0">{body}</table>' if rows else ""


def _cell(text: str, style: str = "text-align:left") -> str:
    return f'<td style="{_CELL};{style}">{escape(text)}</td>'
