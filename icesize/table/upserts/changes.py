"""The files of a batch of upserts, written for each state of the table that its commit is tried on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyroaring import BitMap

from icesize.concurrency import concurrently
from icesize.parquet.deletes.positions import add_positions
from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE, LINEAGE_FIELDS
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import rewrite_failed
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.deletes.delete_reach import plain_path
from icesize.planning.files import FileFact, FileId, Head
from icesize.planning.retention.ancestry import TOMBSTONE_BRANCH
from icesize.planning.upsert_rule import UpsertRule
from icesize.policy import SizePolicy
from icesize.table.catalog.history import head_of
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import ConcurrentChange
from icesize.table.commit.steps.row_delta import RowChanges
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.cluster_reader import ClusterReader
from icesize.table.upserts.deletes import Dying, planned_deletes, write_deletes
from icesize.table.upserts.lookup import Lookup, Positions, TableFiles
from icesize.table.upserts.newest_events import Events, Mask
from icesize.table.upserts.resolver import FilesWithBounds, Resolution, Resolver, remember_deleted
from icesize.table.upserts.tombstones import Tombstones


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
        pairs = zip(self.numbers.items(), other.numbers.values(), strict=True)
        return ChangeCounts(
            **{name: mine + theirs for (name, mine), theirs in pairs}, examples=self.examples or other.examples
        )

    @property
    def numbers(self) -> dict[str, int]:
        """The counts by name, as in a report."""
        return {name: value for name, value in vars(self).items() if name != "examples"}


@dataclass(eq=False)
class DeleteFiles:
    """Writes delete files for states of the table, and appends them to `written`."""

    files: TableFiles
    policy: SizePolicy
    names: FileNames
    written: list[NewDataFile | NewDeleteFile] = field(default_factory=list)
    _known: dict[Hashable, NewDeleteFile] = field(default_factory=dict)

    def changes(self, dying: Sequence[Dying], live: FilesWithBounds, files: Sequence[NewDataFile] = ()) -> RowChanges:
        """Return changes of a state with these live files that delete the dying rows, and add `files`.

        A delete file of an earlier state with the same content is used again.
        """
        settings, most = self.files.settings, self.policy.max_delete_files
        planned = planned_deletes(dying, live, settings.storage, settings.format_version, most)
        missing = [each for each in planned if each.content not in self._known]
        with rewrite_failed("write the deletes of the batch"):
            for each, file in zip(missing, write_deletes(self.files, self.names, missing), strict=True):
                self._known[each.content] = file
                self.written.append(file)
        deletes = {each: self._known[each.content] for each in planned}
        applied = {plain_path(file.path): frozenset([deletes[each].id]) for each in planned for file in each.rows}
        replaced = {delete.id: delete for each in planned for delete in each.replaced}
        self._remember(dying, applied, replaced, live.store)
        return RowChanges(tuple(files), tuple(deletes.values()), tuple(replaced.values()), applied)

    def _remember(
        self, dying: Sequence[Dying], applied: Mapping[str, frozenset[FileId]], replaced: Collection[FileId],
        store: ManifestStore,
    ) -> None:  # fmt: skip
        """Remember the deleted rows of each data file, so that the next batch need not read them."""
        has_vectors = self.files.settings.format_version >= FIRST_WITH_LINEAGE
        for each in dying:
            # beside a vector, readers ignore position deletes
            others = (delete for delete in each.file.deletes if delete.equality_ids or not has_vectors)
            kept = frozenset(delete.id for delete in others if delete.id not in replaced)
            remember_deleted(store, each.file.path, kept | applied[plain_path(each.file.path)], each.all)


@dataclass(eq=False)
class Slice:
    """The events of some keys of a batch. If it has several slices, one at a time is in memory.

    Attributes:
        load: Returns the events, which are the same at each call.
        in_files: The events whose row is in a new file.
        ids_in_files: The row ids of these rows (format v3), -1 for a new one. None if no row was written.
    """

    load: Callable[[], Events]
    in_files: Mask = field(default_factory=lambda: np.empty(0, np.bool_))
    ids_in_files: Positions | None = None
    _codes: tuple[int, int] | None = None

    def events(self) -> Events:
        """Return the events. Raises ConcurrentChange if their source returned others before."""
        events = self.load()
        found = len(events), int(np.bitwise_xor.reduce(events.codes.high))
        if self._codes is None:
            self._codes, self.in_files = found, np.zeros(len(events), np.bool_)
        if found != self._codes:
            raise ConcurrentChange("the source of the batch returned other rows than before")
        return events

    def are_in_files(self, places: NDArray[np.intp], row_ids: Positions | None) -> None:
        """Note that the rows of these events were written, with these row ids (format v3)."""
        if row_ids is not None:
            if self.ids_in_files is None:
                self.ids_in_files = np.full(len(self.in_files), -1, np.int64)
            self.ids_in_files[places] = row_ids
        self.in_files[places] = True

    def forget_files(self) -> None:
        """Let all rows be written again."""
        self.in_files[:], self.ids_in_files = False, None


class _NewVersions(NamedTuple):
    """Rows of a slice to write. `written` notes in the slice that they are in a file."""

    rows: pa.Table
    written: Callable[[], None]


class _OtherRowIdsError(Exception):
    """A row in a new file replaces another row than before, or none, so that its row id is wrong."""


@dataclass(eq=False)
class UpsertFiles:
    """A `RowSource`: the new versions of rows, and deletes of the old ones.

    Attributes:
        rule: The rule of the table.
        files: Reads columns of data files, with the settings of the table's files.
        lookup: Finds keys in data files.
        reader: Reads the live files, with the bounds of key and order.
        slices: The events. All events of a key are in one slice.
        policy: The policy, for the most delete files of a data file in format v2.
        names: Names of new files, with the owner of the run's files.
        tombstones: Remembered deletes; None if the table has none.
        counts: What the batch did in the newest state.
        dying: The rows that the batch deletes in the newest state.
        written: All files that were written for `main`, for any state.
    """

    rule: UpsertRule
    files: TableFiles
    lookup: Lookup
    reader: ClusterReader
    slices: Sequence[Slice]
    policy: SizePolicy
    names: FileNames
    tombstones: Tombstones | None = None
    counts: ChangeCounts = field(default_factory=ChangeCounts)
    dying: Sequence[Dying] = ()
    written: list[NewDataFile | NewDeleteFile] = field(default_factory=list)
    _files: list[NewDataFile] = field(default_factory=list)
    _only: Resolver | None = None
    _last: tuple[tuple[Head, Head], RowChanges] | None = None

    def __post_init__(self) -> None:
        self._deletes = DeleteFiles(self.files, self.policy, self.names, self.written)

    def at(self, state: Loaded) -> RowChanges:
        """Return the changes for a state of the table.

        A row that was written and is late now is deleted in the same commit. An event that was late and is valid now,
        because another writer deleted the row, is written. If a row that was written replaces another row now, or none,
        it has another row id, and all rows are written again. The state of the last call costs nothing.
        """
        check_format(state, self.files.settings)
        if UpsertRule.of(state.properties) not in (None, self.rule):
            raise ConcurrentChange("the key of the table was changed while the batch was written")
        heads = state.head, head_of(state.table.metadata, TOMBSTONE_BRANCH)
        if self._last is None or self._last[0] != heads:
            self._last = heads, self._changes(state)
        return self._last[1]

    def _changes(self, state: Loaded) -> RowChanges:
        live, dying = FilesWithBounds.of(state, self.reader), dict[str, Dying]()
        live.check_specs(self.files.settings)
        if self.tombstones is not None:
            self.tombstones.begin(state)
        self.counts = ChangeCounts()
        try:
            self._write(self._resolved(live, dying))
        except _OtherRowIdsError:
            self._files.clear()
            for each in self.slices:
                each.forget_files()
            return self._changes(state)
        self.dying = tuple(dying.values())
        return self._deletes.changes(self.dying, live, self._files)

    def _resolved(self, live: FilesWithBounds, dying: dict[str, Dying]) -> Iterator[_NewVersions]:
        """Yield the rows that are in no file yet, slice by slice, and collect the rows that die by path."""
        for number, of_keys in enumerate(self.slices):
            new = self._resolved_slice(number, of_keys, live, dying)
            if new.rows.num_rows:
                yield new

    def _resolved_slice(
        self, number: int, of_keys: Slice, live: FilesWithBounds, dying: dict[str, Dying]
    ) -> _NewVersions:
        resolver = self._only or Resolver(of_keys.events(), self.rule, self.files, self.lookup)
        self._only, remembered = resolver if len(self.slices) == 1 else None, None
        if self.tombstones is not None:
            remembered = self.tombstones.remembered(resolver.events, resolver.remembered)
            self.tombstones.add(number, resolver.events, remembered.order)
        resolution = resolver.among(live, remembered)
        self.counts = self.counts.together(counts_of(resolver.events, resolution))
        dead = [(each.file, each.deleted, each.dying) for each in resolution.found if each.dead.any()]
        for file, deleted, positions in (*dead, *self._born_late(of_keys, resolver, resolution)):
            add_positions(dying.setdefault(file.path, Dying(file, deleted, BitMap())).rows, positions)
        return self._new_versions(of_keys, resolver, resolution, has_older=bool(live.files))

    def _born_late(
        self, of_keys: Slice, resolver: Resolver, resolution: Resolution
    ) -> Iterator[tuple[FileFact, BitMap, Positions]]:
        """Yield the rows of new files whose events are late in this state."""
        late = np.flatnonzero(of_keys.in_files & resolution.is_late)
        for fact in map(_fact, self._files) if late.size else ():
            positions = resolver.positions(fact, late)
            if len(positions):
                yield fact, BitMap(), positions

    def _new_versions(
        self, of_keys: Slice, resolver: Resolver, resolution: Resolution, *, has_older: bool
    ) -> _NewVersions:
        """Return the rows of a slice that are in no file yet. Raises _OtherRowIdsError."""
        events, in_files, ids = resolver.events, of_keys.in_files, None
        valid = ~events.is_delete & ~resolution.is_late
        places = np.flatnonzero(valid & ~in_files)
        rows = events.rows.take(pa.array(places))
        if self.files.settings.has_lineage:
            ids = replaced_row_ids(resolver, resolution)
            if of_keys.ids_in_files is not None and (ids != of_keys.ids_in_files)[valid & in_files].any():
                raise _OtherRowIdsError
            ids = ids[places]
            # slices share files, so all of them have the column if one may need it
            if (has_older and len(self.slices) > 1) or ids.max(initial=-1) >= 0:
                rows = with_row_ids(rows, ids)
        return _NewVersions(rows, partial(of_keys.are_in_files, places, ids))

    def _write(self, new: Iterator[_NewVersions]) -> None:
        """Write the rows of all slices into few files."""
        first, settings = list(islice(new, 1)), self.files.settings
        if not first:
            return
        if LINEAGE_FIELDS[0].name in first[0].rows.column_names:
            settings = settings.with_lineage
        written = list[Callable[[], None]]()

        def tables() -> Iterator[pa.Table]:
            # `pop`, so that nothing else holds the rows of the first slice
            for each in chain(map(list.pop, [first]), new):
                written.append(each.written)
                yield each.rows

        with rewrite_failed("write the batch", _OtherRowIdsError):
            files = write_rows(tables(), settings, self.names)
        # not before: after an error, the next attempt writes them again
        for note in written:
            note()
        self.written.extend(files)
        self._files.extend(files)


def replaced_row_ids(resolver: Resolver, resolution: Resolution) -> Positions:
    """Return the row id of the row that each event replaces, -1 without one."""
    ids: Positions = np.full(len(resolver.events), -1, np.int64)
    replaced = [each for each in resolution.found if each.file.first_row_id is not None and each.dead.any()]
    threads = resolver.files.settings.storage.readers(each.file.path for each in replaced)
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


def check_format(state: Loaded, settings: WriteSettings) -> None:
    """Raise ConcurrentChange if the table has another format version than files were planned for."""
    if state.format_version != settings.format_version:
        raise ConcurrentChange("the table was upgraded after the plan")


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
