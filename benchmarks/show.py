"""Output of benchmarks: a table for people, or one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def finish(
    result: dict[str, Any], title: str, header: Sequence[str], rows: Sequence[Sequence[object]], as_json: bool
) -> dict[str, Any]:
    """Print the result and return it."""
    if as_json:
        print(json.dumps(result))
        return result
    table = Table(*header, title=title)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console().print(table)
    return result


def bytes_moved(moved: Mapping[str, int]) -> str:
    """Return the MB copied and decoded, and the number of pages copied, from a report."""
    return f"{moved['bytes_copied'] / 1e6:.1f}, {moved['bytes_decoded'] / 1e6:.1f}, {moved['pages_copied']}"
