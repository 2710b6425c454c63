"""How values show themselves in a notebook: a small piece of HTML with a title, bars, facts, a table and sentences.

Text and lines take the colours of the page around them, so that they are read on light and on dark ones; nothing is
fetched and no script runs. Whatever comes from a table is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

MOST_ROWS = 20
"""Lines of a table that are shown; the others are counted."""

_GREY = "opacity:.7"
_CELL = "padding:1px 10px 1px 0;border:0;background:none;color:inherit;vertical-align:top"


@dataclass(frozen=True)
class Bar:
    """A line of a bar chart: the bar is as long as `share` of the longest, `note` stands before it."""

    name: str
    note: str
    share: float
    colour: str


AMBER, GREEN = "#d9902f", "#3f9d63"
"""Read on white and on near black."""


def card(
    title: str,
    facts: Iterable[tuple[str, str]] = (),
    *,
    bars: Sequence[Bar] = (),
    rows: Sequence[Sequence[str]] = (),
    sentences: Iterable[str] = (),
) -> str:
    """One value. The first of `rows` holds the names of the columns; facts without a value are left out."""
    parts = [
        f'<div style="font-weight:600;margin-bottom:4px">{escape(title)}</div>',
        _facts([(name, value) for name, value in facts if value]),
        _bars(bars),
        _rows(rows),
        *(f'<div style="margin-top:4px">{escape(sentence)}</div>' for sentence in sentences),
    ]
    return f'<div style="max-width:60em;overflow-x:auto;line-height:1.5">{"".join(parts)}</div>'


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    cells = (
        f'<span style="margin-right:1em"><span style="{_GREY}">{escape(name)}</span> {escape(value)}</span>'
        for name, value in facts
    )
    return f"<div>{''.join(cells)}</div>" if facts else ""


def _bars(bars: Sequence[Bar]) -> str:
    return _table([_bar(bar) for bar in bars])


def _bar(bar: Bar) -> str:
    width = f"{max(bar.share * 18, 0.1 if bar.share else 0):.1f}em"
    box = f"display:inline-block;height:.8em;width:{width};background:{bar.colour};border-radius:2px"
    return (
        _cell(bar.name) + _cell(bar.note, "text-align:right") + f'<td style="{_CELL}"><span style="{box}"></span></td>'
    )


def _rows(rows: Sequence[Sequence[str]]) -> str:
    if len(rows) < 2:
        return ""
    head, *lines = rows
    shown = ["".join(_cell(name, f"{_GREY};text-align:left") for name in head)]
    shown += ["".join(map(_cell, line)) for line in lines[:MOST_ROWS]]
    more = len(lines) - MOST_ROWS
    return _table(shown) + (f'<div style="{_GREY}">and {more:,} more</div>' if more > 0 else "")


def _table(lines: Sequence[str]) -> str:
    body = "".join(f'<tr style="background:none">{line}</tr>' for line in lines)
    return f'<table style="border-collapse:collapse;margin:4px 0;border:0">{body}</table>' if lines else ""


def _cell(text: str, style: str = "text-align:left") -> str:
    return f'<td style="{_CELL};{style}">{escape(text)}</td>'
