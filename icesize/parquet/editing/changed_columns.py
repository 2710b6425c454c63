"""What is made of the columns of a row group that do not stay as they are, before they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TypeAlias

from icesize.parquet.editing.column_plan import ColumnPlan, Part, Piece
from icesize.parquet.editing.dictionaries import Numbers
from icesize.parquet.editing.page_changes import changed
from icesize.parquet.editing.page_copy import read_indexes, read_piece
from icesize.parquet.editing.reencode import reencode

_MOST_PARTS, _MOST_BYTES = 8, 2**20
"""Of one leaf column that are made at once: several of these are in memory, one or two for each thread."""

Work: TypeAlias = "Callable[[int | None], list[Piece]]"
"""Makes the chunks of some columns and parts, with this compression level."""


def works(parts: Sequence[Part], plan: ColumnPlan) -> Iterator[Work]:
    """What there is to do, in the order in which `merge_row_groups` takes it."""
    leaves = enumerate(parts[0].footer.columns)
    for top, indices in groupby((index for index, _ in leaves), key=lambda i: parts[0].footer.columns[i].top):
        if top in plan.reencode:
            yield partial(reencode, parts, top, plan)
            continue
        for index in indices:
            if not plan.is_copied(index, parts):
                numbers = plan.leaves[index].numbers or [None] * len(parts)
                yield from (
                    partial(_pieces, some, index) for some in _together(zip(parts, numbers, strict=True), index)
                )


def _together(parts: Iterator[tuple[Part, Numbers]], index: int) -> Iterator[list[tuple[Part, Numbers]]]:
    """The parts that are made at once."""
    some, size_bytes = list[tuple[Part, Numbers]](), 0
    for part, numbers in parts:
        chunk_bytes = part.group.chunks[index].size_bytes
        if some and (len(some) == _MOST_PARTS or size_bytes + chunk_bytes > _MOST_BYTES):
            yield some
            some, size_bytes = [], 0
        some.append((part, numbers))
        size_bytes += chunk_bytes
    if some:
        yield some


def _pieces(parts: Sequence[tuple[Part, Numbers]], index: int, level: int | None) -> list[Piece]:
    # touching fresh memory costs as much as reading
    room = memoryview(bytearray(max(part.group.chunks[index].size_bytes for part, _ in parts)))
    return [_piece(part, index, numbers, level, room) for part, numbers in parts]


def _piece(part: Part, index: int, numbers: Numbers, level: int | None, room: memoryview) -> Piece:
    """A chunk as it is to be written; what changes is read into `room`, and does not stay there."""
    column, chunk = part.footer.columns[index], part.group.chunks[index]
    indexes = read_indexes(part.source, [chunk])
    is_changed = part.deleted or numbers is not None
    room = room[: chunk.size_bytes] if is_changed else memoryview(bytearray(chunk.size_bytes))
    piece = read_piece(part.source, chunk, part.group.rows, column, indexes, room)
    return changed(piece, part.deleted_rows, column, numbers, level) if is_changed else piece
