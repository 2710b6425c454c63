"""Deletes that are remembered, so that an event that is older and comes later does not bring its row back.

A live row has its order, and an older event is recognized. A deleted row has none. So each batch stores the keys and
the orders of its deletes in files of a branch of the table. The commit of the batch moves both branches, and asserts
both. Compaction and other jobs of any engine work on `main` and do not see these files; cleanup of orphan files sees
them, because a snapshot lists them.

The files have the columns of key and order only, and the time of the delete. They are not meant to be read as a table.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from icesize.parquet.files.data_file import FileMetrics, NewDataFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import rewrite_failed
from icesize.parquet.files.properties import METRICS_OF_COLUMN
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.keys.codes import Places, codes_of
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.files import FileFact, Head, PartitionKey
from icesize.planning.merging.chosen_files import choose_prefix
from icesize.planning.retention.ancestry import TOMBSTONE_BRANCH
from icesize.planning.upsert_rule import UpsertRule
from icesize.table.catalog.access_errors import readable
from icesize.table.catalog.history import head_of, head_snapshot
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.steps.row_delta import RowChanges
from icesize.table.manifests.file_columns import read_described
from icesize.table.manifests.manifest_lists import inherited_from, manifests_of
from icesize.table.manifests.store import ManifestStore
from icesize.table.upserts.late_events import not_older
from icesize.table.upserts.lookup import Hits, KeyedFiles
from icesize.table.upserts.newest_events import Events, Mask, checksum_of, sorted_places

_TIME = NestedField(2_000_000_000, "_deleted_at_ms", LongType(), required=True)
"""When a batch deleted the key, in milliseconds since 1970.

Its field id is below those that Iceberg reserves (from 2147483447 on), and above those that tables have.
"""
MOST_FILES = 6
"""Files of tombstones that may remain after a batch, as small files of a partition do (`max-small-files`)."""
_FULL_BYTES = 64 * 2**20
"""Files from this size on are not merged: about ten million tombstones."""
_ANYWHERE = PartitionKey(UNPARTITIONED_PARTITION_SPEC.spec_id)
_FILE_BYTES = 500


@dataclass(frozen=True)
class TombstoneFile:
    """A file of tombstones, and the time of its newest one."""

    fact: FileFact
    newest_ms: int


def tombstone_settings(settings: WriteSettings, rule: UpsertRule) -> WriteSettings:
    """Return the settings of files of tombstones: the columns of key and order, and a time; no partitions."""
    by_id = {each.field_id: each for each in settings.schema.fields}
    # a file that is older than the last column of the order lacks it, whether the column is required or not
    columns = [
        NestedField(each, by_id[each].name, by_id[each].field_type) for each in dict.fromkeys((*rule.key, *rule.order))
    ]
    schema = Schema(*columns, _TIME, schema_id=settings.schema_id)
    spec = UNPARTITIONED_PARTITION_SPEC
    # the bound of the time shows when all tombstones of a file are forgotten
    return settings.changed(
        schema_json=schema.model_dump_json(), spec_json=spec.model_dump_json(), spec_id=spec.spec_id,
        sort_order_json="", format_version=2,
        properties={**settings.properties, METRICS_OF_COLUMN + _TIME.name: "full"},
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class RememberedDeletes:
    """The deletes of a state that are newer than events of a batch, or as new.

    Attributes:
        is_late: The events that have such a delete.
        order: The order of this delete for each of them, and the event's own for the others.
    """

    is_late: Mask
    order: pa.Table | None


@dataclass(eq=False)
class Tombstones:
    """The tombstones of a table, and the files that a batch adds, for one state of the table after the other.

    Attributes:
        keyed: The files of tombstones, and the rule of the table, which has an order and a horizon.
        names: Names of files of tombstones.
        now_ms: The time of the batch. Tombstones are forgotten `rule.tombstones_ms` after their batch.
        changes: The files that the batch adds to the state, and those that it removes: merged ones and expired ones.
    """

    keyed: KeyedFiles
    names: FileNames
    now_ms: int
    changes: RowChanges = field(default_factory=RowChanges)
    _known: Sequence[FileFact] = ()
    _head: Head | None = None
    _written: dict[Hashable, tuple[NewDataFile, ...]] = field(default_factory=dict)

    @property
    def written(self) -> list[NewDataFile]:
        """All files that were written, for any state."""
        return [file for files in self._written.values() for file in files]

    def begin(self, state: Loaded) -> None:
        """Read the list of the tombstones of a state, which the following calls are about."""
        every, self._head = self._listed(state), head_of(state.table.metadata, TOMBSTONE_BRANCH)
        expired = [file.fact.path for file in every if file.newest_ms < self._oldest_ms]
        self._known = sorted((f.fact for f in every if f.newest_ms >= self._oldest_ms), key=lambda f: f.size_bytes)
        self.changes = RowChanges(removed=tuple(expired))

    def remembered(self, events: Events, found: dict[str, tuple[Hits, pa.Table]]) -> RememberedDeletes:
        """Return the newest delete of each event that a tombstone of the state is newer than, or as new as.

        `found` keeps the tombstones of the events' keys in each file for another state.
        """
        is_late: Mask = np.zeros(len(events), np.bool_)
        order = events.order
        if order is None:
            return RememberedDeletes(is_late, None)
        for file in self._known:
            hits, theirs = found[file.path] = found.get(file.path) or self._looked_up(file, events)
            newer = not_older(theirs, order.take(pa.array(hits.places)))
            if newer.any():
                is_late[hits.places[newer]] = True
                order = _with_rows(order, hits.places[newer], theirs.filter(pa.array(newer)))
        return RememberedDeletes(is_late, order)

    def add(self, number: int, events: Events, order: pa.Table | None) -> None:
        """Add the deletes among a slice of the batch's events to the files of the state. They have this order now.

        `number` is that of the slice: an earlier state may have its file. The first slice with deletes merges files.
        """
        new = self._deletes(events, order)
        if not new.num_rows:
            return
        merged: Sequence[FileFact] = ()
        if not self.changes.files and len(self._known) >= MOST_FILES:
            most = choose_prefix([file.size_bytes for file in self._known], _FULL_BYTES, MOST_FILES - 1)
            merged = self._known[:most]
        removed = (*(file.path for file in merged), *self.changes.removed)
        self.changes = RowChanges((*self.changes.files, *self._files(number, new, merged)), removed=removed)

    def at(self, state: Loaded) -> RowChanges:
        """Return the changes for the state that the rows of the batch were resolved on last."""
        if head_of(state.table.metadata, TOMBSTONE_BRANCH) != self._head:
            raise RuntimeError("the rows of the batch were not resolved on this state before its deletes")
        return self.changes

    @property
    def _oldest_ms(self) -> int:
        return self.now_ms - (self.keyed.rule.tombstones_ms or 0)

    def _listed(self, state: Loaded) -> list[TombstoneFile]:
        """Return the files of tombstones of a state."""
        metadata, io = state.table.metadata, state.table.io
        with readable(metadata.location):
            manifests = manifests_of(head_snapshot(metadata, TOMBSTONE_BRANCH), io, metadata.specs()).data
            return [file for manifest in manifests for file in _described(state.store, io, manifest)]

    def _looked_up(self, file: FileFact, events: Events) -> tuple[Hits, pa.Table]:
        """Return the tombstones of a file that are of keys of the events and not forgotten, and their order."""
        hits, names = self.keyed.lookup.find(file, events.codes), self.keyed.order_names
        rows = self.keyed.files.at(file, hits.positions, [*names, _TIME.name])
        valid = rows.column(_TIME.name).to_numpy() >= self._oldest_ms
        return hits.where(valid), rows.select(names).filter(pa.array(valid))

    def _deletes(self, events: Events, order: pa.Table | None) -> pa.Table:
        """Return the tombstones of events: their deletes with this order, from now on.

        A delete that is older than a remembered one makes that one last longer.
        """
        places = np.flatnonzero(events.is_delete)
        columns = dict(zip(events.keys.column_names, events.keys.columns, strict=True))
        if order is not None:
            columns |= dict(zip(order.column_names, order.columns, strict=True))
        rows = pa.table(columns).take(pa.array(places))
        return rows.append_column(_TIME.name, pa.array(np.full(len(places), self.now_ms, np.int64)))

    def _files(self, number: int, new: pa.Table, merged: Sequence[FileFact]) -> tuple[NewDataFile, ...]:
        """Return files with the new tombstones and those of merged files; an earlier attempt may have written them."""
        content = number, checksum_of(new), frozenset(file.path for file in merged)
        if content not in self._written:
            rows = self._together(new, merged) if merged else new
            with rewrite_failed("write the deletes of the batch"):
                self._written[content] = tuple(write_rows([rows], self.keyed.files.settings, self.names))
        return self._written[content]

    def _together(self, new: pa.Table, merged: Sequence[FileFact]) -> pa.Table:
        """Return the newest tombstone of each key, with the latest time, without those that are forgotten."""
        schema = self.keyed.files.settings.arrow_schema
        parts = [table for file in merged for table in self.keyed.files.read(file, schema.names)]
        rows = pa.concat_tables([*(part.select(schema.names) for part in parts), new.select(schema.names).cast(schema)])
        rows = rows.filter(pc.greater_equal(rows.column(_TIME.name), self._oldest_ms))
        codes = codes_of(rows.select(self.keyed.files.names(self.keyed.rule.key)).columns, b"")
        places = sorted_places(codes, rows.select(self.keyed.order_names))
        is_last = codes.take(places).lasts()
        latest_ms = np.maximum.reduceat(rows.column(_TIME.name).to_numpy()[places], np.flatnonzero(np.roll(is_last, 1)))
        newest = rows.take(pa.array(places[is_last])).drop_columns([_TIME.name])
        return newest.append_column(_TIME.name, pa.array(latest_ms))


def _with_rows(table: pa.Table, places: Places, rows: pa.Table) -> pa.Table:
    """Return a table with other rows at some places."""
    at = np.arange(table.num_rows)
    at[places] = table.num_rows + np.arange(len(places))
    columns = {
        name: pa.chunked_array([*mine.chunks, *other.cast(mine.type).chunks], mine.type).take(pa.array(at))
        for name, mine, other in zip(table.column_names, table.columns, rows.columns, strict=True)
    }
    return pa.table(columns)


def _described(store: ManifestStore, io: FileIO, manifest: ManifestFile) -> list[TombstoneFile]:
    def make() -> tuple[list[TombstoneFile], int]:
        facts, newest = read_described(io, manifest, _newest_ms)
        live = zip(facts.files(facts.live), facts.live.tolist(), strict=True)
        files = [TombstoneFile(replace(fact, partition=_ANYWHERE), newest[row]) for fact, row in live]
        return files, len(files) * _FILE_BYTES

    return store.get(manifest.manifest_path, "tombstones", make, inherited_from(manifest))


def _newest_ms(metrics: FileMetrics) -> int:
    bound = metrics.upper_bounds.get(_TIME.field_id)
    return 1 << 62 if bound is None else int.from_bytes(bound, "little", signed=True)
