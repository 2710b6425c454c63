"""The files of a batch of upserts, written for each state of the table that its commit is tried on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from icesize.concurrency import concurrently
from icesize.parquet.deletes.positions import add_positions
from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.parquet.files.lineage_fields import LINEAGE_FIELDS
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import rewrite_failed
from icesize.parquet.keys.codes import Places
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.files import FileFact, Head
from icesize.planning.retention.ancestry import TOMBSTONE_BRANCH
from icesize.planning.upsert_rule import UpsertRule
from icesize.table.catalog.history import head_of
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import ConcurrentChange
from icesize.table.commit.steps.row_delta import RowChanges
from icesize.table.state.cluster_reader import ClusterReader
from icesize.table.upserts.deletes import DeleteFiles, Dying
from icesize.table.upserts.lookup import KeyedFiles, Positions
from icesize.table.upserts.newest_events import Events, Mask
from icesize.table.upserts.resolver import Resolution, Resolver
from icesize.table.upserts.state_files import FilesWithBounds, check_format
from icesize.table.upserts.tombstones import RememberedDeletes, Tombstones

_NO_ROWS = BitMap()


@dataclass(frozen=True)
class ChangeCounts:
    """The changes of a batch, in the state that it was tried on last.

    Attributes:
        events: Events of the batch.
        keys: Keys among them.
        late: Keys whose newest event was left out, because it is not newer than the live row or a remembered delete.
        updated: Keys whose row was replaced by a newer version.
        deleted: Keys whose row was deleted, by the event or by a remembered delete.
        doubled: Keys that had several live rows, which another writer added.
        examples: A few of these keys, as text.
    """

    events: int = 0
    keys: int = 0
    late: int = 0
    updated: int = 0
    deleted: int = 0
    doubled: int = 0
    examples: str = ""

    def together(self, other: ChangeCounts) -> ChangeCounts:
        """Return the counts of two slices of a batch."""
        numbers = {name: mine + other.numbers[name] for name, mine in self.numbers.items()}
        return ChangeCounts(**numbers, examples=self.examples or other.examples)

    @property
    def numbers(self) -> dict[str, int]:
        """The counts by name, as in a report."""
        return {name: value for name, value in vars(self).items() if name != "examples"}


@dataclass(eq=False)
class Slice:
    """The events of some keys of a batch. If it has several slices, one at a time is in memory.

    Attributes:
        load: Returns the events, which are the same at each call.
        in_files: The events whose row is in a new file.
        row_ids: The row ids of these rows (format v3), -1 for a new one; None if all are new.
    """

    load: Callable[[], Events]
    in_files: Mask = field(default_factory=lambda: np.empty(0, np.bool_))
    row_ids: Positions | None = None
    _checksum: int | None = None
    _kept: Resolver | None = None

    def resolver(self, keyed: KeyedFiles, *, keeps: bool) -> Resolver:
        """Return the resolver of the events; with `keeps`, they are loaded once, and it is the same at each call.

        Raises ConcurrentChange if their source returned others before.
        """
        if self._kept is not None:
            return self._kept
        events = self.load()
        found = 0 if keeps else events.checksum
        if self._checksum is None:
            self._checksum, self.in_files = found, np.zeros(len(events), np.bool_)
        if found != self._checksum:
            raise ConcurrentChange("the source of the batch returned other rows than before")
        resolver = Resolver(events, keyed)
        self._kept = resolver if keeps else None
        return resolver

    def are_in_files(self, places: Places, row_ids: Positions | None) -> None:
        """Note that the rows of these events were written, with these row ids; None if all are new."""
        if row_ids is not None and self.row_ids is None:
            self.row_ids = np.full(len(self.in_files), -1, np.int64)
        if self.row_ids is not None:
            self.row_ids[places] = -1 if row_ids is None else row_ids
        self.in_files[places] = True

    def have_other_ids(self, row_ids: Positions) -> Mask:
        """Return which rows in files have other row ids than these."""
        others: Mask = row_ids != (-1 if self.row_ids is None else self.row_ids)
        return self.in_files & others


class _NewVersions(NamedTuple):
    """Rows of a slice to write, and what its `are_in_files` gets once they are written."""

    rows: pa.Table
    written: tuple[Slice, Places, Positions | None]


@dataclass(frozen=True, eq=False)
class StateChanges:
    """The effect of a batch on one state of the table.

    Attributes:
        heads: The heads of the state: of its branch, and of the remembered deletes. None before the first state.
        changes: The files.
        dying: The rows that the batch deletes.
        counts: The same in numbers.
    """

    heads: tuple[Head, Head] | None = None
    changes: RowChanges = field(default_factory=RowChanges)
    dying: Sequence[Dying] = ()
    counts: ChangeCounts = ChangeCounts()


@dataclass(eq=False)
class _Resolved:
    """The effect of the slices that are resolved so far, on a state with these live files."""

    live: FilesWithBounds
    counts: ChangeCounts = ChangeCounts()
    dying: dict[str, Dying] = field(default_factory=dict)

    def add(self, events: Events, resolution: Resolution) -> None:
        """Add what the events of a slice do to rows of the state."""
        self.counts = self.counts.together(counts_of(events, resolution))
        for each in resolution.found:
            if each.dead.any():
                self.delete(each.file, each.dying, each.deleted)

    def delete(self, file: FileFact, positions: Positions, deleted: BitMap = _NO_ROWS) -> None:
        """Add rows that die to those of their file."""
        add_positions(self.dying.setdefault(file.path, Dying(file, deleted, BitMap())).rows, positions)

    def without_dead(self, files: Iterable[NewDataFile]) -> Iterator[NewDataFile]:
        """Yield the new files that have a row; forget the deletes of the others, which are not committed."""
        for file in files:
            if file.path in self.dying and len(self.dying[file.path].rows) == file.rows:
                del self.dying[file.path]
            else:
                yield file


@dataclass(eq=False)
class UpsertFiles:
    """A `RowSource`: the new versions of rows, and deletes of the old ones.

    Attributes:
        keyed: The data files of the table.
        reader: Reads the live files, with the bounds of key and order.
        slices: The events. All events of a key are in one slice.
        names: Names of new files, with the owner of the run's files.
        deletes: Writes the delete files.
        tombstones: Remembered deletes; None if the table has none.
        newest: The effect of the batch on the state that it was tried on last.
    """

    keyed: KeyedFiles
    reader: ClusterReader
    slices: Sequence[Slice]
    names: FileNames
    deletes: DeleteFiles
    tombstones: Tombstones | None = None
    newest: StateChanges = StateChanges()
    _files: list[NewDataFile] = field(default_factory=list)
    _withdrawn: list[tuple[FileFact, Positions]] = field(default_factory=list)

    @property
    def written(self) -> Sequence[NewDataFile | NewDeleteFile]:
        """All files that were written for `main`, for any state."""
        return [*self._files, *self.deletes.written]

    def at(self, state: Loaded) -> RowChanges:
        """Return the changes for a state of the table.

        A row that was written and is late now is deleted in the same commit. So is one that replaces another row now,
        or none, because it has another row id: it is written again. An event that was late and is valid now, because
        another writer deleted the row, is written. The state of the last call costs nothing.
        """
        check_format(state, self.keyed.files.settings)
        if UpsertRule.of(state.properties) not in (None, self.keyed.rule):
            raise ConcurrentChange("the key of the table was changed while the batch was written")
        heads = state.head, head_of(state.table.metadata, TOMBSTONE_BRANCH)
        if self.newest.heads != heads:
            self.newest = self._in_state(state, heads)
        return self.newest.changes

    def _in_state(self, state: Loaded, heads: tuple[Head, Head]) -> StateChanges:
        live = FilesWithBounds.of(state, self.reader)
        live.check_specs(self.keyed.files.settings)
        if self.tombstones is not None:
            self.tombstones.begin(state)
        resolved = _Resolved(live)
        new = (self._new_versions(number, of_keys, resolved) for number, of_keys in enumerate(self.slices))
        self._write(each for each in new if each.rows.num_rows)
        for file, positions in self._withdrawn:
            resolved.delete(file, positions)
        files, dying = [*resolved.without_dead(self._files)], tuple(resolved.dying.values())
        return StateChanges(heads, self.deletes.changes(dying, live, files), dying, resolved.counts)

    def _new_versions(self, number: int, of_keys: Slice, resolved: _Resolved) -> _NewVersions:
        """Resolve a slice, and return its rows that are in no file yet, or have another row id there."""
        resolver = of_keys.resolver(self.keyed, keeps=len(self.slices) == 1)
        events, resolution = resolver.events, resolver.among(resolved.live, self._remembered(number, resolver))
        resolved.add(events, resolution)
        for file, positions in self._in_new_files(resolver, of_keys.in_files & resolution.is_late):
            resolved.delete(file, positions)
        valid = ~events.is_delete & ~resolution.is_late
        ids = replaced_row_ids(resolver, resolution)
        self._withdraw(of_keys, resolver, valid & of_keys.have_other_ids(ids))
        places = np.flatnonzero(valid & ~of_keys.in_files)
        rows, ids = events.rows.take(pa.array(places)), ids[places]
        # slices share files, so all of them have the column if one may need it
        may_need = self.keyed.files.settings.has_lineage and bool(resolved.live.files) and len(self.slices) > 1
        if not may_need and ids.max(initial=-1) < 0:
            return _NewVersions(rows, (of_keys, places, None))
        return _NewVersions(with_row_ids(rows, ids), (of_keys, places, ids))

    def _remembered(self, number: int, resolver: Resolver) -> RememberedDeletes:
        """Return the remembered deletes of the keys of a slice, and remember its own."""
        events = resolver.events
        if self.tombstones is None:
            return RememberedDeletes(np.zeros(len(events), np.bool_), events.order)
        remembered = self.tombstones.remembered(events, resolver.remembered)
        self.tombstones.add(number, events, remembered.order)
        return remembered

    def _withdraw(self, of_keys: Slice, resolver: Resolver, rows: Mask) -> None:
        """Let the rows of these events that are in new files be deleted in each state, and be written again."""
        self._withdrawn += self._in_new_files(resolver, rows)
        of_keys.in_files[rows] = False

    def _in_new_files(self, resolver: Resolver, rows: Mask) -> list[tuple[FileFact, Positions]]:
        """Return the positions of the rows of these events in new files."""
        places = np.flatnonzero(rows)
        facts = map(_fact, self._files) if places.size else ()
        found = ((fact, resolver.positions(fact, places)) for fact in facts)
        return [(fact, positions) for fact, positions in found if len(positions)]

    def _write(self, new: Iterator[_NewVersions]) -> None:
        """Write the rows of all slices into few files."""
        first, settings = list(islice(new, 1)), self.keyed.files.settings
        if not first:
            return
        if LINEAGE_FIELDS[0].name in first[0].rows.column_names:
            settings = settings.with_lineage
        written = list[tuple[Slice, Places, Positions | None]]()

        def tables() -> Iterator[pa.Table]:
            # `pop`, so that nothing else holds the rows of the first slice
            for each in chain(map(list.pop, [first]), new):
                written.append(each.written)
                yield each.rows

        with rewrite_failed("write the batch"):
            files = write_rows(tables(), settings, self.names)
        # not before: after an error, the next attempt writes them again
        for of_keys, places, row_ids in written:
            of_keys.are_in_files(places, row_ids)
        self._files.extend(files)


def replaced_row_ids(resolver: Resolver, resolution: Resolution) -> Positions:
    """Return the row id of the row that each event replaces, -1 without one."""
    ids: Positions = np.full(len(resolver.events), -1, np.int64)
    replaced = [each for each in resolution.found if each.file.first_row_id is not None and each.dead.any()]
    threads = resolver.keyed.files.settings.storage.readers(each.file.path for each in replaced)
    found = concurrently(lambda each: resolver.row_ids(each.file, each.dying), replaced, threads)
    for each, here in zip(replaced, found, strict=True):
        ids[each.hits.places[each.dead]] = here
    return ids


def with_row_ids(rows: pa.Table, ids: Positions) -> pa.Table:
    """Return new versions of rows with the lineage: a row keeps the id of the one that it replaces.

    NULL, for -1, becomes a new id, and the number of the commit.
    """
    rows = rows.append_column(LINEAGE_FIELDS[0].name, pa.array(ids, mask=ids < 0))
    return rows.append_column(LINEAGE_FIELDS[1].name, pa.nulls(rows.num_rows, pa.int64()))


def counts_of(events: Events, resolution: Resolution) -> ChangeCounts:
    """Return what a batch does in a state."""
    doubled, replaced = resolution.doubled, np.zeros(len(events), np.bool_)
    for each in resolution.found:
        replaced[each.hits.places[each.dead]] = True
    # of a doubled key, rows die also where the event is late
    replaced &= ~resolution.is_late | resolution.is_buried
    is_delete = events.is_delete | resolution.is_buried
    return ChangeCounts(
        events.received, len(events), int(resolution.is_late.sum()), int((replaced & ~is_delete).sum()),
        int((replaced & is_delete).sum()), len(doubled),
        events.shown(doubled.tolist()) if len(doubled) else "",
    )  # fmt: skip


def _fact(file: NewDataFile) -> FileFact:
    return FileFact(file.path, file.size_bytes, file.rows, file.partition)
