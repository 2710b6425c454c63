"""Finds the live rows of the keys of a batch in a state of the table.

The positions of keys in a data file never change, because data files never change. So they are found once for each
file. What changes from one state to the next is which files are listed, and which of their rows are deleted. After a
conflict, only new files and new deletes are read, and the result is the same as if nothing had been known before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from icesize.concurrency import concurrently
from icesize.parquet.keys.codes import Places
from icesize.planning.cluster_by import Bounds, ClusterFile
from icesize.planning.files import FileFact
from icesize.table.upserts.late_events import LateEvents, comparable_values
from icesize.table.upserts.lookup import Hits, KeyedFiles, Positions
from icesize.table.upserts.newest_events import Events, Mask
from icesize.table.upserts.state_files import UPSERT, FilesWithBounds, bounds_of
from icesize.table.upserts.tombstones import RememberedDeletes


@dataclass(frozen=True, eq=False)
class FoundRows:
    """Live rows of the batch's keys in one data file.

    Attributes:
        file: The file, with the delete files that apply to it.
        hits: The live rows. The places are those of `Events`.
        deleted: All deleted rows of the file.
        dead: Which of the hits the batch deletes.
    """

    file: FileFact
    hits: Hits
    deleted: BitMap
    dead: Mask

    @property
    def dying(self) -> Positions:
        """Positions of the rows that the batch deletes, in ascending order."""
        return self.hits.positions[self.dead]


@dataclass(frozen=True, eq=False)
class Resolution:
    """The changes of a batch in one state of the table.

    Attributes:
        found: The files with live rows of the keys.
        is_late: Which events are left out, because the row that is there or a remembered delete is newer, or as new.
        is_buried: Which of them are late by a remembered delete that no row is newer than: the rows are deleted.
        doubled: Places of keys that had more than one live row.
    """

    found: tuple[FoundRows, ...]
    is_late: Mask
    is_buried: Mask
    doubled: Places


_NONE: Places = np.empty(0, np.intp)


@dataclass(frozen=True)
class Resolver:
    """Resolves events, against any number of states.

    Attributes:
        events: The events.
        keyed: The data files of the table.
        remembered: The tombstones of the keys by file, as far as `icesize.table.upserts.tombstones` has read them.
    """

    events: Events
    keyed: KeyedFiles
    remembered: dict[str, tuple[Hits, pa.Table]] = field(default_factory=dict)
    _hits: dict[str, Hits] = field(default_factory=dict)
    _row_ids: dict[tuple[str, int | None, bytes], Positions] = field(default_factory=dict)

    def among(self, live: FilesWithBounds, remembered: RememberedDeletes) -> Resolution:
        """Return what the events do in a state with these files and remembered deletes. Writes nothing.

        An event that is late by such a delete has the effect of the delete: rows that are older die.

        Raises UnsupportedTable for a file that may have the keys and that icesize cannot read, `RewriteFailed` for a
        damaged one.
        """
        rule, with_keys = self.keyed.rule, self._with_keys(live)
        bounds = {file.fact.path: bounds_of(file, rule)[order] for order in rule.order[:1] for file in with_keys}
        facts = [live.noted(file) for file in with_keys]
        living = [
            (file, hits, deleted)
            for file, deleted in live.with_deleted(facts, self.keyed.files)
            if len((hits := _without(self._hits[file.path], deleted)).positions)
        ]
        rows = [(file, hits) for file, hits, _ in living]
        times = np.bincount(np.concatenate([_NONE, *(hits.places for _, hits in rows)]), minlength=len(self.events))
        is_late, dead = self._lateness.judged(rows, bounds, times, remembered.order)
        is_buried = remembered.is_late & ~is_late
        found = tuple(
            FoundRows(file, hits, deleted, mask) for (file, hits, deleted), mask in zip(living, dead, strict=True)
        )
        doubled = np.flatnonzero(times > 1)
        return Resolution(found, is_late | is_buried, is_buried, doubled)

    def _with_keys(self, live: FilesWithBounds) -> list[ClusterFile]:
        """Return the files that have rows with the keys, live or deleted."""
        candidates = [file for file in live.files if self._may_hold(file)]
        self._look_up([UPSERT.readable(file.fact) for file in candidates])
        return [file for file in candidates if len(self._hits[file.fact.path].positions)]

    def positions(self, file: FileFact, places: Places) -> Positions:
        """Return the positions of some keys in a file, in ascending order."""
        self._look_up([file])
        hits = self._hits[file.path]
        return hits.positions[np.isin(hits.places, places)]

    def row_ids(self, file: FileFact, positions: Positions) -> Positions:
        """Return the row ids at ascending positions of a file, which are read once."""
        known = file.path, file.first_row_id, positions.tobytes()
        if known not in self._row_ids:
            self._row_ids[known] = self.keyed.lookup.row_ids(file, positions)
        return self._row_ids[known]

    def _may_hold(self, file: ClusterFile) -> bool:
        bounds = bounds_of(file, self.keyed.rule)
        return all(holds(bounds[field_id]) for field_id, holds in self._ranges.items())

    @cached_property
    def _ranges(self) -> dict[int, Callable[[Bounds], bool]]:
        key = self.keyed.rule.key
        return {each: _holder(column) for each, column in zip(key, self.events.keys.columns, strict=True)}

    @cached_property
    def _lateness(self) -> LateEvents:
        return LateEvents(self.events, self.keyed, self._hits)

    def _look_up(self, files: Sequence[FileFact]) -> None:
        unknown = [file for file in files if file.path not in self._hits]
        threads = self.keyed.files.settings.storage.readers(file.path for file in unknown)
        found = concurrently(lambda file: self.keyed.lookup.find(file, self.events.codes), unknown, threads)
        for file, hits in zip(unknown, found, strict=True):
            self._hits[file.path] = hits


def _without(hits: Hits, deleted: BitMap) -> Hits:
    """Return the hits that are not among the deleted rows."""
    if not deleted:
        return hits
    gone = np.frombuffer(deleted.to_array(), np.uint32)
    at = np.minimum(np.searchsorted(gone, hits.positions.astype(np.uint32)), len(gone) - 1)
    return hits.where(gone[at] != hits.positions)


def _holder(column: pa.ChunkedArray) -> Callable[[Bounds], bool]:
    """Return the function that tests whether one of the values may lie in a file with these bounds."""
    values = comparable_values(column)
    if values is None:
        return lambda bounds: bounds != ()
    ascending = np.unique(values) if values.dtype != object else sorted(set(values.tolist()))

    def may_hold(bounds: Bounds) -> bool:
        if not bounds:
            return bounds is None
        lowest, highest = bounds
        at = bisect_left(ascending, lowest)
        return at < len(ascending) and bool(ascending[at] <= highest)

    return may_hold
