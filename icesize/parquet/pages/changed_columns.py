"""The columns of a row group that change: columns that are encoded again, and the row lineage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from icesize.parquet.pages.column_plan import ColumnPlan, Part, Piece
from icesize.parquet.pages.page_lineage import lineage_works
from icesize.parquet.pages.reencode import reencode

Work: TypeAlias = "Callable[[int | None], list[Piece]]"
"""Makes the chunks of some columns, with this compression level."""


def works(parts: Sequence[Part], plan: ColumnPlan) -> Iterator[Work]:
    """Yield the work to do, in the order in which `merge_row_groups` uses its results: the row lineage comes last."""
    tops = dict.fromkeys(column.top for column in parts[0].footer.columns)
    yield from (partial(reencode, parts, top, plan) for top in tops if top in plan.reencode)
    yield from lineage_works(parts)
