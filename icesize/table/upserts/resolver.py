"""Finds the live rows of the keys of a batch in a state of the table.

The positions of keys in a data file never change, because data files never change. So they are found once for each
file. What changes from one state to the next is which files are listed, and which of their rows are deleted. After a
conflict, only new files and new deletes are read, and the result is the same as if nothing had been known before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyroaring import BitMap

from icesize.concurrency import concurrently
from icesize.errors import UnsupportedTable
from icesize.parquet.deletes.deleted_rows import deleted_rows
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.keys.codes import Places
from icesize.planning.cluster_by import Bounds, ClusterBy, ClusterFile
from icesize.planning.deletes.delete_reach import only_path
from icesize.planning.files import FileFact, FileId, PartitionKey, SkipReason
from icesize.planning.upsert_rule import UpsertRule
from icesize.table.catalog.access_errors import readable
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import ConcurrentChange
from icesize.table.manifests.delete_index import DeleteIndex, delete_index
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.cluster_reader import ClusterReader
from icesize.table.state.live_files import is_nan
from icesize.table.upserts.late_events import LateEvents, comparable_values
from icesize.table.upserts.lookup import Hits, Lookup, Positions, TableFiles
from icesize.table.upserts.newest_events import Events, Mask
from icesize.table.upserts.tombstones import RememberedDeletes

_NO_ROWS, _DELETED_ROWS = BitMap(), "deleted rows"


class Use(NamedTuple):
    """The job that files are read for, and what a file may have that the job needs, in words for messages."""

    verb: str
    wanted: str

    def refused(self, file: FileFact, why: str, way_on: str = "Rewrite it with another engine") -> UnsupportedTable:
        """Return the error for a file that the job needs."""
        return UnsupportedTable(
            f"Cannot {self.verb}: {file.path} may have {self.wanted}, and {why}. {way_on}", path=file.path
        )


UPSERT = Use("upsert", "keys of the batch")
COMPARE_KEYS = Use("compare keys", "keys of other rows")
_HAS_UNREADABLE = "icesize cannot read all of its delete files"


def _bitmap_bytes(rows: BitMap) -> int:
    """Return about the memory of a bitmap: two bytes a row, or one bit of each position (roaring bitmaps)."""
    return 500 + min(2 * len(rows), (rows.max() + 1) // 8 if rows else 0)


def bounds_reader(rule: UpsertRule, schema: Schema, store: ManifestStore) -> ClusterReader:
    """Return the reader of live files with the bounds that `bounds_of` names."""
    ids, names = rule.bounded, {field.field_id: field.name for field in schema.fields}
    return ClusterReader(ClusterBy(tuple(names[each] for each in ids), ids, "keys", 0), store=store)


def bounds_of(file: ClusterFile, rule: UpsertRule) -> dict[int, Bounds]:
    """Return the bounds of key and order in a file by field id."""
    return dict(zip(rule.bounded, file.bounds, strict=True))


@dataclass(frozen=True, eq=False)
class FilesWithBounds:
    """The live files of a state of the table.

    Attributes:
        files: All live data files, with the bounds of the reader's columns.
        by_partition: The same files by partition, without bounds.
        deletes: The delete files.
        store: Keeps the deleted rows that are known. States and batches share it.
    """

    files: Sequence[ClusterFile]
    by_partition: Mapping[PartitionKey, Sequence[FileFact]]
    deletes: DeleteIndex
    store: ManifestStore

    @classmethod
    def of(cls, state: Loaded, reader: ClusterReader) -> FilesWithBounds:
        """Return the files of a state. Raises TableError for a damaged manifest."""
        io, metadata = state.table.io, state.table.metadata
        with readable(metadata.location):
            files = reader.files(metadata, io, state.manifests.data)
            index = delete_index(state.store, io, state.manifests.deletes, metadata.specs())
        live = defaultdict[PartitionKey, list[FileFact]](list)
        for each in files:
            live[each.fact.partition].append(each.fact)
        return cls(files, live, index, state.store)

    def check_specs(self, settings: WriteSettings) -> None:
        """Raise ConcurrentChange for a file of a partition spec that the table did not have when it was planned."""
        if not {key.spec_id for key in self.by_partition} <= settings.specs_json.keys():
            raise ConcurrentChange("another writer added files of a new partition spec after the plan")

    def noted(self, file: ClusterFile, use: Use = UPSERT) -> FileFact:
        """Return a file with the delete files that apply to it. Raises UnsupportedTable for one that is unreadable."""
        return _noted(_readable(file.fact, use), self.deletes, use)


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
        rule: The rule of the table.
        files: Reads columns of data files.
        lookup: Finds keys in data files.
        remembered: The tombstones of the keys by file, as far as `icesize.table.upserts.tombstones` has read them.
    """

    events: Events
    rule: UpsertRule
    files: TableFiles
    lookup: Lookup
    remembered: dict[str, tuple[Hits, pa.Table]] = field(default_factory=dict)
    _hits: dict[str, Hits] = field(default_factory=dict)
    _row_ids: dict[tuple[str, int | None, bytes], Positions] = field(default_factory=dict)

    def among(self, live: FilesWithBounds, remembered: RememberedDeletes | None = None) -> Resolution:
        """Return what the events do in a state with these files and remembered deletes. Writes nothing.

        An event that is late by such a delete has the effect of the delete: rows that are older die.

        Raises UnsupportedTable for a file that may have the keys and that icesize cannot read, `RewriteFailed` for a
        damaged one.
        """
        if remembered is None:
            remembered = RememberedDeletes(np.zeros(len(self.events), np.bool_), self.events.order)
        candidates = [file for file in live.files if self._may_hold(file)]
        self._look_up([_readable(file.fact) for file in candidates])
        with_keys = [file for file in candidates if len(self._hits[file.fact.path].positions)]
        bounds = {
            file.fact.path: bounds_of(file, self.rule)[order] for order in self.rule.order[:1] for file in with_keys
        }
        facts = [live.noted(file) for file in with_keys]
        living = [
            (file, hits, deleted)
            for file, deleted in with_deleted(facts, self.files, live.store)
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

    def positions(self, file: FileFact, places: Places) -> Positions:
        """Return the positions of some keys in a file, in ascending order."""
        self._look_up([file])
        hits = self._hits[file.path]
        return hits.positions[np.isin(hits.places, places)]

    def row_ids(self, file: FileFact, positions: Positions) -> Positions:
        """Return the row ids at ascending positions of a file, which are read once."""
        known = file.path, file.first_row_id, positions.tobytes()
        if known not in self._row_ids:
            self._row_ids[known] = self.lookup.row_ids(file, positions)
        return self._row_ids[known]

    def _may_hold(self, file: ClusterFile) -> bool:
        bounds = bounds_of(file, self.rule)
        return all(holds(bounds[field_id]) for field_id, holds in self._ranges.items())

    @cached_property
    def _ranges(self) -> dict[int, Callable[[Bounds], bool]]:
        return {each: _holder(column) for each, column in zip(self.rule.key, self.events.keys.columns, strict=True)}

    @cached_property
    def _lateness(self) -> LateEvents:
        return LateEvents(self.events, self.files, self.rule.order, self._hits)

    def _look_up(self, files: Sequence[FileFact]) -> None:
        unknown = [file for file in files if file.path not in self._hits]
        threads = self.files.settings.storage.readers(file.path for file in unknown)
        found = concurrently(lambda file: self.lookup.find(file, self.events.codes), unknown, threads)
        for file, hits in zip(unknown, found, strict=True):
            self._hits[file.path] = hits


def _without(hits: Hits, deleted: BitMap) -> Hits:
    """Return the hits that are not among the deleted rows."""
    if not deleted:
        return hits
    gone = np.frombuffer(deleted.to_array(), np.uint32)
    at = np.minimum(np.searchsorted(gone, hits.positions.astype(np.uint32)), len(gone) - 1)
    return hits.where(gone[at] != hits.positions)


def with_deleted(files: Sequence[FileFact], reads: TableFiles, store: ManifestStore) -> list[tuple[FileFact, BitMap]]:
    """Return files with their deleted rows, which are read unless they are known; then they are known."""
    known = {
        f.path: rows
        for f in files
        if (rows := store.known(f.path, _DELETED_ROWS, f.delete_ids) if f.deletes else _NO_ROWS) is not None
    }
    unknown = defaultdict[PartitionKey, list[FileFact]](list)
    for file in files:
        if file.path not in known:
            unknown[file.partition].append(file)
    for partition, some in unknown.items():
        marked = deleted_rows(some, reads.settings.of_spec(partition.spec_id), partition).positions
        for file in some:
            known[file.path] = marked.get(file.path, BitMap())
            remember_deleted(store, file.path, file.delete_ids, known[file.path])
    return [(file, known[file.path]) for file in files]


def remember_deleted(store: ManifestStore, path: str, deletes: frozenset[FileId], rows: BitMap) -> None:
    """Keep the rows of a data file that these delete files delete, so that these need not be read again."""
    store.get(path, _DELETED_ROWS, lambda: (rows, _bitmap_bytes(rows)), deletes)


def _noted(file: FileFact, index: DeleteIndex, use: Use) -> FileFact:
    """Return a file with the delete files that apply to it, and no others. Raises UnsupportedTable."""
    if is_nan(file.partition):
        raise use.refused(
            file, "a partition value of it is NaN, so that its deletes cannot be found",
            "Remove the NaN from the partition column",
        )  # fmt: skip
    if file.obstacle is SkipReason.HAS_DELETES:
        raise use.refused(file, _HAS_UNREADABLE)
    if not index.concerns(file.partition):
        return file
    deletes = index.of_partition(file.partition)
    applying = tuple(deletes.applying(file))
    if applying and not deletes.are_readable(file):
        raise use.refused(file, _HAS_UNREADABLE)
    known = sum(delete.rows for delete in applying if only_path(delete) is not None)
    return replace(file, deletes=applying, delete_files=len(applying), deleted_rows=min(file.rows, known))


_UNREADABLE = {SkipReason.NOT_PARQUET: "is not a Parquet file", SkipReason.ENCRYPTED: "is encrypted"}


def _readable(file: FileFact, use: Use = UPSERT) -> FileFact:
    if file.obstacle in _UNREADABLE:
        raise use.refused(file, f"it {_UNREADABLE[file.obstacle]}")
    return file


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
