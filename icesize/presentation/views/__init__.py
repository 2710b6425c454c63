"""The layout of each result, as lines, bars and tables. Makes no decisions.

The functions register themselves for the class of their result in `view` or in `icesize.results.text_of`.

- `tables`: inspections, plans, reports and the history of a table
- `jobs`: expiry, orphan files, verification, repair, `maintain` and its steps, checks, and many tables
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import singledispatch
from typing import Any

from icesize.presentation.blocks import Block
from icesize.results import Result
from icesize.units import format_count

MOST_LINES = 10
"""Partitions that are listed one by one; the others are counted."""
MOST_VERSIONS = 20
MOST_COMMITS = 20
MOST_TABLES = 20
"""Versions, commits and tables that are listed by default."""

Look = Iterable[Block]


@singledispatch
def view(result: Result) -> Look:
    """Return the blocks that a command prints for a result."""
    raise NotImplementedError(type(result).__name__)


def notes(sentences: Iterable[object]) -> Iterator[Block]:
    """Return sentences that the user should read, one per line."""
    return ((("! ", "yellow"), str(sentence)) for sentence in sentences)


def more(count: int, noun: str, listed: int = MOST_LINES) -> Iterator[Block]:
    """Show the number of items beyond those that are listed."""
    if count > listed:
        yield (f"  and {format_count(count - listed, f'more {noun}')}",)


def reasons_of(reasons: Mapping[str, int]) -> str:
    """Return a number of files, and the number for each reason if there are several."""
    files = format_count(sum(reasons.values()), "file")
    counts = (f"{reason} {n:,}" for reason, n in sorted(reasons.items()))
    return f"{files} ({', '.join(counts if len(reasons) > 1 else reasons)})"


def seconds_of(result: Any) -> str:
    """Return the seconds that a call took."""
    return f"{result.seconds.get('total', 0.0):.2f} s"


def change_of(added: int | None, removed: int | None) -> str:
    """Return the change of a number, as in `+2 -8`; empty if nothing changed."""
    return f"+{added or 0:,} -{removed or 0:,}" if added or removed else ""


def format_price(price: float) -> str:
    """Return a price with two decimals; below one cent, with two significant digits."""
    return f"{price:,.2f}" if price >= 0.01 or not price else f"{price:.2g}"
