"""Text and HTML of results. Importing icesize registers them, and the first result that prints loads the views."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING

from icesize.results import Result, html_of, text_of

if TYPE_CHECKING:
    from icesize.presentation.blocks import Block

VIEWS = ("tables", "jobs")
"""Modules of `views`. The second one imports all jobs, which takes as long as a small compaction."""


def view_of(result: Result) -> Iterable[Block] | None:
    """Return the blocks that a command prints for a result; None for a result that prints as one line."""
    from icesize.presentation.views import view

    for module in VIEWS:
        import_module(f"icesize.presentation.views.{module}")
        if view.dispatch(type(result)) is not view.dispatch(object):
            return view(result)
    return None


@text_of.register
def _text_of(result: Result) -> str:
    """Return the output of the result's command, plus the name of the table."""
    from icesize.presentation.blocks import text

    blocks, line_of = view_of(result), text_of.dispatch(type(result))
    if line_of is not _text_of:
        return line_of(result)
    table, shown = getattr(result, "table", ""), repr(result) if blocks is None else text(blocks)
    return shown if table in shown else f"{table}: {shown}"


@html_of.register
def _html_of(result: Result) -> str | None:
    from icesize.presentation.blocks import html

    blocks = view_of(result)
    return None if blocks is None else html(blocks)
