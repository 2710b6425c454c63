"""A batch of upserts too large for one process: tasks resolve its shards, each the events of some keys.

A task sees the files of one state of the table. If another state has other files that may hold keys of the batch, the
batch is planned again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyroaring import BitMap

from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.parquet.files.settings import WriteSettings
from icesize.planning.cluster_by import ClusterFile
from icesize.planning.files import FileId
from icesize.planning.upsert_rule import UpsertRule
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import ConcurrentChange
from icesize.table.commit.steps.row_delta import RowChanges
from icesize.table.manifests.delete_index import DeleteIndex
from icesize.table.state.cluster_reader import ClusterReader
from icesize.table.upserts.changes import (
    ChangeCounts,
    DeleteFiles,
    check_format,
    check_rule,
    counts_of,
    replaced_row_ids,
    with_row_ids,
)
from icesize.table.upserts.deletes import Dying
from icesize.table.upserts.events import Mask, newest_events
from icesize.table.upserts.lookup import Scan, TableFiles
from icesize.table.upserts.resolver import (
    DeletedIn,
    FilesWithBounds,
    Resolver,
    bounds_of,
    comparable_values,
    with_deleted,
)


@dataclass(frozen=True)
class ShardResult:
    """The changes of a shard in the state that it was resolved in, without its rows.

    Attributes:
        counts: What becomes of its events.
        dying: Positions of the rows that die, as serialized bitmaps by path.
        bounds: The lowest and the highest value of each key column, None if they are unknown; empty without events.
    """

    counts: ChangeCounts
    dying: Mapping[str, bytes]
    bounds: tuple[tuple[Any, Any] | None, ...] = ()


@dataclass(frozen=True)
class ShardTask:
    """Resolves shards of a batch. It is sent to tasks.

    Attributes:
        settings: The settings of the table's files.
        specs: The partition specs of the table, by id.
        rule: The rule of the table.
        secret: The secret of codes.
        skip_null_keys: Leave out events whose key has a NULL.
        files: The data files of the state, with the delete files that apply to them.
        keeps_ids: Add the columns of the row lineage to the rows.
    """

    settings: WriteSettings
    specs: dict[int, PartitionSpec]
    rule: UpsertRule
    secret: bytes
    skip_null_keys: bool
    files: tuple[ClusterFile, ...]
    keeps_ids: bool

    def __call__(self, rows: pa.Table, is_delete: Mask) -> tuple[pa.Table, ShardResult]:
        """Return the rows to write, and the rest of the result. Raises as `newest_events` and `Resolver` do."""
        events = newest_events(
            rows, is_delete, self.rule, self.settings, self.secret, skip_null_keys=self.skip_null_keys
        )
        files = TableFiles(self.settings, self.specs)
        scan = Scan(files, tuple(files.names(self.rule.key)), self.secret)
        resolver = Resolver(events, self.rule, files, scan, None, DeletedIn())
        resolution = resolver.among(FilesWithBounds(self.files, {}, DeleteIndex()))
        places = np.flatnonzero(~events.is_delete & ~resolution.is_late)
        written = events.rows.take(pa.array(places))
        if self.keeps_ids:
            written = with_row_ids(written, replaced_row_ids(resolver, resolution)[places])
        dying = {
            each.file.path: BitMap(each.dying.astype(np.uint32)).serialize()
            for each in resolution.found
            if each.dead.any()
        }
        bounds = tuple(map(_range, events.keys.columns)) if len(events) else ()
        return written, ShardResult(counts_of(events, resolution), dying, bounds)


@dataclass(eq=False)
class ShardFiles:
    """A `RowSource` of rows that tasks have written, for the state that they were resolved in.

    Attributes:
        rule: The rule that the batch was resolved by.
        files: Reads columns of data files.
        reader: Reads the live files, with the bounds of the key columns.
        known: The data files of that state, with their delete files.
        rows: Files with the rows.
        results: The results of the shards.
        deletes: Writes delete files.
        deleted_in: Deleted rows of data files that are known.
    """

    rule: UpsertRule
    files: TableFiles
    reader: ClusterReader
    known: Sequence[ClusterFile]
    rows: Sequence[NewDataFile]
    results: Sequence[ShardResult]
    deletes: DeleteFiles
    deleted_in: DeletedIn = field(default_factory=DeletedIn)

    @property
    def written(self) -> Sequence[NewDataFile | NewDeleteFile]:
        """All files that were written so far, for any state."""
        return [*self.rows, *self.deletes.written]

    def at(self, state: Loaded) -> RowChanges:
        """Return the changes for a state.

        Raises ConcurrentChange if files that may hold keys of the batch, or their deletes, are others than before.
        """
        check_format(state, self.files.settings)
        check_rule(state, self.rule)
        live = FilesWithBounds.of(state, self.reader)
        concerned = {file.fact.path: live.noted_if_readable(file) for file in live.files if self._may_hold(file)}
        if {path: file.delete_ids for path, file in concerned.items()} != self._before:
            raise ConcurrentChange("another writer changed files that may hold keys of the batch")
        dying = [
            Dying(file, deleted, np.asarray(self._dying[file.path].to_array(), np.int64))
            for file, deleted in with_deleted([concerned[path] for path in self._dying], self.files, self.deleted_in)
        ]
        return self.deletes.changes(dying, live.unresolved, self.rows)

    @cached_property
    def _before(self) -> dict[str, frozenset[FileId]]:
        return {file.fact.path: file.fact.delete_ids for file in self.known if self._may_hold(file)}

    @cached_property
    def _dying(self) -> dict[str, BitMap]:
        """Positions of all rows that die, by path."""
        found = dict[str, BitMap]()
        for result in self.results:
            for path, positions in result.dying.items():
                found[path] = found.get(path, BitMap()) | BitMap.deserialize(positions)
        return found

    @cached_property
    def _bounds(self) -> dict[int, tuple[Any, Any]]:
        """The lowest and the highest value of the key columns of which both are known."""
        columns = zip(*(result.bounds for result in self.results if result.bounds), strict=True)
        known = {
            field_id: [each for each in ranges if each is not None]
            for field_id, ranges in zip(self.rule.key, columns, strict=False)
            if None not in ranges
        }
        return {
            field_id: (min(low for low, _ in ranges), max(high for _, high in ranges))
            for field_id, ranges in known.items()
        }

    def _may_hold(self, file: ClusterFile) -> bool:
        bounds = bounds_of(file, self.rule)
        pairs = ((limits, bounds[field_id]) for field_id, limits in self._bounds.items())
        return all(each is None or (each and each[0] <= high and low <= each[1]) for (low, high), each in pairs)

    @property
    def counts(self) -> ChangeCounts:
        """The changes of the batch."""
        return reduce(ChangeCounts.together, (result.counts for result in self.results), ChangeCounts())


def _range(column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    values = comparable_values(column)
    return None if values is None else (min(values), max(values))
