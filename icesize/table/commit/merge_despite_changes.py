"""Follows a merge to a state in which others have changed its input files.

A merge changes no row, so it commutes with what others do, while the way of each row is known. The newest state of its
input files decides:

| in the state | the merge |
|---|---|
| more rows are deleted by position | deletes these rows in the output |
| the file is not listed | deletes all its rows in the output, and removes the other input files |
| a row that the merge left out may be live again | is dropped |
| the file is listed again, or with another number | is dropped |
| an unknown equality delete does not reach the output | is dropped |

"Deletes" means position deletes or vectors in the snapshot of the merge itself: in a later one, rows would be back in
between. If they are needed although the state has no delete file, the merge is dropped, because scans of changes refuse
tables with delete files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyroaring import BitMap

from icesize.parquet.files.data_file import Merged
from icesize.parquet.files.row_map import RowMap
from icesize.planning.files import FileFact
from icesize.table.commit.compared_inputs import InputChange

MOST_DEAD = 0.25
"""The share of an output's rows that may be deleted when it becomes visible. With more, it would soon be due again."""
NO_MAP = ", and the merge keeps no map of its rows"
TOO_MANY = f"other writers deleted more than {MOST_DEAD:.0%} of the rows of a new file"


@dataclass(frozen=True)
class Followed:
    """A group with those of its inputs that a state lists; `dead` are the deleted rows of its outputs, by path."""

    group: Merged
    dead: Mapping[str, BitMap] = field(default_factory=dict)


def follow(group: Merged, changes: Mapping[str, InputChange], *, beside_new: bool, has_deletes: bool) -> Followed | str:
    """Return a group as it can be committed in a state, or the reason why it cannot.

    Args:
        group: The group.
        changes: The changes of its input files in that state, by path.
        beside_new: The outputs get the data sequence number of new rows, which no equality delete of the state reaches.
        has_deletes: The state has delete files.
    """
    changed = [(file, changes[file.path]) for file in group.inputs if file.path in changes]
    number = math.inf if beside_new else max((file.sequence_number or 0 for file in group.files), default=0)
    for file, change in changed:
        if not _can_follow(file, change, group.row_map, number):
            return change.why
    gone = frozenset(file.path for file, change in changed if not change.is_live)
    if gone and (len(gone) == len(group.inputs) or not has_deletes):
        return changes[min(gone)].why
    live = replace(group, inputs=tuple(file for file in group.inputs if file.path not in gone)) if gone else group
    dead = {file.path: change.deleted if change.is_live else _all_rows(file) for file, change in changed}
    if not any(dead.values()):
        return Followed(live)
    if group.row_map is None:
        return next(change.why for file, change in changed if dead[file.path]) + NO_MAP
    rows = group.row_map.follow(dead, [file.rows for file in group.files])
    found = {file.path: some for file, some in zip(group.files, rows, strict=True) if some}
    if any(len(found.get(file.path, ())) > MOST_DEAD * file.rows for file in group.files):
        return TOO_MANY
    return Followed(live, found)


def _can_follow(file: FileFact, change: InputChange, row_map: RowMap | None, number: float) -> bool:
    if not change.can_be_followed:
        return False
    if change.equality_number is not None and change.equality_number <= number:
        return False
    if not (change.lost_positions or change.lost_equality):
        return True
    if row_map is None:
        return False
    left_out = row_map.left_out.get(file.path) or BitMap()
    if not change.lost_equality:
        left_out = left_out - row_map.by_equality.get(file.path, BitMap())
    return left_out <= change.deleted


def _all_rows(file: FileFact) -> BitMap:
    return BitMap(range(file.rows))
