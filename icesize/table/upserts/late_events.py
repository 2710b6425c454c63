"""Late events of a batch: those whose row in the table is not older, by the columns of the order.

Deletes that are remembered make events late by the same rule (`tombstones`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from icesize.parquet.deletes.equal_keys import comparable
from icesize.parquet.keys.codes import Places
from icesize.parquet.keys.ranks import by_order, sortable
from icesize.planning.cluster_by import Bounds
from icesize.planning.files import FileFact
from icesize.table.upserts.lookup import Hits, KeyedFiles
from icesize.table.upserts.newest_events import Events, Mask


@dataclass(frozen=True)
class LateEvents:
    """Compares the events of a batch with the live rows of their keys.

    Attributes:
        events: The events.
        keyed: The data files of the table.
        hits: All rows with keys of the batch that were found so far, by the path of their file.
    """

    events: Events
    keyed: KeyedFiles
    hits: Mapping[str, Hits]
    _order: dict[str, pa.Table] = field(default_factory=dict)

    def judged(
        self,
        rows: Sequence[tuple[FileFact, Hits]],
        bounds: Mapping[str, Bounds],
        times: NDArray[np.intp],
        order: pa.Table | None,
    ) -> tuple[Mask, list[Mask]]:
        """Return which events of this order are late, and which of the live rows of each file die.

        A key with several live rows keeps one of them if its event is late: the newest.
        """
        is_late: Mask = np.zeros(len(self.events), np.bool_)
        if order is None:
            return is_late, [np.ones(len(hits.positions), np.bool_) for _, hits in rows]
        first = self._first_order if order is self.events.order else comparable_values(order.column(0))
        for file, hits in rows:
            is_late[self._late(file, hits, bounds[file.path], order, first)] = True
        dead = [~is_late[hits.places] for _, hits in rows]
        doubled = is_late & (times > 1)
        if doubled.any():
            self._keep_newest(doubled, rows, dead)
        return is_late, dead

    def _late(self, file: FileFact, hits: Hits, bounds: Bounds, order: pa.Table, first: Any) -> Places:
        """Return the places of keys whose row in the file is not older than the event."""
        if bounds == ():
            return np.empty(0, np.intp)  # no row of the file has a value, and NULL is older than any
        if bounds and first is not None:
            hits = hits.where(first[hits.places] <= bounds[1])
        if not len(hits.positions):
            return np.empty(0, np.intp)
        events = order.take(pa.array(hits.places))
        return hits.places[not_older(self._order_at(file, hits), events)]

    def _order_at(self, file: FileFact, hits: Hits) -> pa.Table:
        """Return the order of rows with keys of the batch. They are read for all such rows of a file, once."""
        known = self.hits[file.path]
        if file.path not in self._order:
            self._order[file.path] = self.keyed.files.at(file, known.positions, self.keyed.order_names)
        return self._order[file.path].take(pa.array(np.searchsorted(known.positions, hits.positions)))

    def _keep_newest(self, doubled: Mask, rows: Sequence[tuple[FileFact, Hits]], dead: Sequence[Mask]) -> None:
        """Mark all rows of these keys as dead but the newest of each."""
        found = [(file, hits.where(doubled[hits.places])) for file, hits in rows]
        places = np.concatenate([hits.places for _, hits in found])
        order = pa.concat_tables([self._order_at(file, hits) for file, hits in found if len(hits.positions)])
        by_age = by_order({"key": pa.array(places)}, order.columns)
        ascending = places[by_age]
        dies: Mask = np.ones(len(places), np.bool_)
        dies[by_age[np.append(ascending[1:] != ascending[:-1], True)]] = False
        ends = np.cumsum([len(hits.positions) for _, hits in found])
        for (_, hits), mask, of_file in zip(rows, dead, np.split(dies, ends[:-1]), strict=True):
            mask[doubled[hits.places]] = of_file

    @cached_property
    def _first_order(self) -> Any:
        """Values of the first column of the order that compare with the bounds of files, if they do."""
        return None if self.events.order is None else comparable_values(self.events.order.column(0))


def not_older(rows: pa.Table, events: pa.Table) -> NDArray[np.bool_]:
    """Return which rows are newer than the event of the same place, or as new; both have the columns of the order.

    NULL is older than any value: the column is younger than the row, or than the delete that is remembered.
    """
    result = np.ones(rows.num_rows, np.bool_)
    for pair in reversed(list(zip(rows.columns, events.columns, strict=True))):
        mine, theirs = map(sortable, pair)
        unknown = theirs.is_null()
        greater = np.asarray(pc.if_else(unknown, mine.is_valid(), pc.fill_null(pc.greater(mine, theirs), False)))
        equal = np.asarray(pc.if_else(unknown, mine.is_null(), pc.fill_null(pc.equal(mine, theirs), False)))
        result = greater | (equal & result)
    return result


def comparable_values(column: pa.ChunkedArray) -> Any:
    """Return values as they compare with bounds: an array of numbers, or of Python values.

    Returns None if bounds show nothing of them: of NULL, and of text that is no UTF-8, which Java replaces in bounds.
    """
    if column.null_count:
        return None
    if types.is_floating(column.type):
        return column.to_numpy()
    values = comparable(column)
    if types.is_int64(values.type):
        return values.to_numpy()
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return None
    plain = np.empty(len(values), object)
    plain[:] = values.to_pylist()
    return plain
