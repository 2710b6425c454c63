"""The files of a batch of upserts, written for each state of the table that its commit is tried on."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from icesize.concurrency import concurrently, workers
from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE, LINEAGE_FIELDS
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import rewrite_failed
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.keys.codes import Places
from icesize.parquet.writing.row_writer import WriteTable
from icesize.planning.deletes.delete_reach import plain_path
from icesize.planning.files import FileFact, FileId
from icesize.planning.upsert_rule import UpsertRule
from icesize.policy import SizePolicy
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import ConcurrentChange
from icesize.table.commit.steps.row_delta import RowChanges
from icesize.table.upserts.deletes import Dying, planned_deletes, write_deletes
from icesize.table.upserts.events import Events, Mask
from icesize.table.upserts.lookup import NewRows, Positions, TableFiles
from icesize.table.upserts.new_rows import places_by_file
from icesize.table.upserts.resolver import NOTHING_FOUND, DeletedIn, Resolution, Resolver


@dataclass(frozen=True)
class ChangeCounts:
    """The changes of a batch, in the state that it was tried on last.

    Attributes:
        events: Events of the batch.
        keys: Keys among them.
        late: Events that were left out because the row that is there or a remembered delete is newer, or as new.
        updated: Rows that a newer version replaced.
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
        """Return the counts of two parts of a batch."""
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
    deleted_in: DeletedIn
    written: list[NewDataFile | NewDeleteFile] = field(default_factory=list)
    _known: dict[Hashable, NewDeleteFile] = field(default_factory=dict)

    def changes(self, dying: Sequence[Dying], state: Resolution, files: Sequence[NewDataFile] = ()) -> RowChanges:
        """Return changes of a state that delete the dying rows, and add `files`.

        A delete file of an earlier state with the same content is used again.
        """
        settings, most = self.files.settings, self.policy.max_delete_files
        planned = planned_deletes(dying, state, settings.storage, settings.format_version, most)
        missing = [each for each in planned if each.content not in self._known]
        with rewrite_failed("write the deletes of the batch"):
            for each, file in zip(missing, write_deletes(self.files, self.names, missing), strict=True):
                self._known[each.content] = file
                self.written.append(file)
        deletes = {each: self._known[each.content] for each in planned}
        applied = {plain_path(file.path): frozenset([deletes[each].id]) for each in planned for file in each.rows}
        replaced = {delete.id: delete for each in planned for delete in each.replaced}
        self._remember(dying, applied, replaced)
        return RowChanges(tuple(files), tuple(deletes.values()), tuple(replaced.values()), applied)

    def _remember(
        self, dying: Sequence[Dying], applied: Mapping[str, frozenset[FileId]], replaced: Collection[FileId]
    ) -> None:
        """Remember the deleted rows of each data file, so that the next batch need not read them."""
        has_vectors = self.files.settings.format_version >= FIRST_WITH_LINEAGE
        for each in dying:
            # beside a vector, readers ignore position deletes
            kept = {d.id for d in each.file.deletes if d.id not in replaced and (d.equality_ids or not has_vectors)}
            self.deleted_in.remember(each.file.path, kept | applied[plain_path(each.file.path)], each.all)


@dataclass(eq=False)
class UpsertFiles:
    """A `RowSource`: the new versions of rows, and deletes of the old ones.

    Attributes:
        resolver: Finds the rows that the batch replaces.
        settings: The settings of the table's files.
        policy: The policy, for the most delete files of a data file in format v2.
        names: Names of delete files, with the owner of the run's files.
        write_rows: Writes rows.
        keeps_order: Whether `write_rows` writes the rows of a partition in their order, if the table has no sort order.
        counts: What the batch did in the newest state.
        resolution: The rows of the newest state that the batch concerns.
        written: All files that were written, for any state.
    """

    resolver: Resolver
    settings: WriteSettings
    policy: SizePolicy
    names: FileNames
    write_rows: WriteTable
    keeps_order: bool = False
    counts: ChangeCounts = field(default_factory=ChangeCounts)
    written: list[NewDataFile | NewDeleteFile] = field(default_factory=list)
    _files: list[NewDataFile] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.resolution: Resolution = NOTHING_FOUND
        events = len(self.resolver.events)
        self._in_files: Mask = np.zeros(events, np.bool_)
        self._ids_in_files: Positions = np.full(events, -1, np.int64)
        resolver = self.resolver
        self._deletes = DeleteFiles(resolver.files, self.policy, self.names, resolver.deleted_in, self.written)

    def at(self, state: Loaded) -> RowChanges:
        """Return the changes for a state of the table.

        A row that was written and is late now is deleted in the same commit. An event that was late and is valid now,
        because another writer deleted the row, is written. If a row that was written replaces another row now, or none,
        it has another row id, and all rows are written again.
        """
        check_format(state, self.settings)
        check_rule(state, self.resolver.rule)
        resolution = self.resolution = self.resolver.at(state)
        self._write(resolution)
        dying = [Dying(each.file, each.deleted, each.dying) for each in resolution.found if each.dead.any()]
        dying += self._born_late(resolution)
        self.counts = counts_of(self._events, resolution)
        return self._deletes.changes(dying, resolution, self._files)

    @property
    def _events(self) -> Events:
        return self.resolver.events

    def _write(self, resolution: Resolution) -> None:
        """Write the rows that are in no file yet, or have another row id there."""
        valid, settings = ~self._events.is_delete & ~resolution.is_late, self.settings
        ids = replaced_row_ids(self.resolver, resolution) if settings.has_lineage else None
        if ids is not None and (ids != self._ids_in_files)[valid & self._in_files].any():
            self._files.clear()
            self._in_files[:] = False
        new = valid & ~self._in_files
        if not new.any():
            return
        places = np.flatnonzero(new)
        rows = self._events.rows.take(pa.array(places))
        if ids is not None:
            ids = self._ids_in_files[places] = ids[places]
            if ids.max() >= 0:
                rows, settings = with_row_ids(rows, ids), settings.with_lineage
        files = self.write_rows(rows, settings)
        self.written.extend(files)
        self._files.extend(files)
        self._in_files[places] = True
        if self.keeps_order:
            self._learn(rows, files, places, ids)

    def _learn(self, rows: pa.Table, files: Sequence[NewDataFile], places: Places, row_ids: Positions | None) -> None:
        """Add the positions of the rows in the new files to the lookup."""
        for file, here in places_by_file(rows, files, self.settings):
            codes = self._events.codes.take(places[here])
            self.resolver.lookup.learn(NewRows(_fact(file), codes, None if row_ids is None else row_ids[here]))

    def _born_late(self, resolution: Resolution) -> list[Dying]:
        """Return the rows of new files whose events are late in this state."""
        late = np.flatnonzero(self._in_files & resolution.is_late)
        if not late.size:
            return []
        facts = [_fact(file) for file in self._files]
        born = [Dying(fact, BitMap(), self.resolver.positions(fact, late)) for fact in facts]
        return [each for each in born if len(each.positions)]


def replaced_row_ids(resolver: Resolver, resolution: Resolution) -> Positions:
    """Return the row id of the row that each event replaces, -1 without one."""
    ids: Positions = np.full(len(resolver.events), -1, np.int64)
    replaced = [each for each in resolution.found if each.file.first_row_id is not None and each.dead.any()]
    found = concurrently(lambda each: resolver.row_ids(each.file, each.dying), replaced, workers())
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


def check_rule(state: Loaded, rule: UpsertRule) -> None:
    """Raise ConcurrentChange if the table has another rule than a batch was resolved by."""
    if UpsertRule.of(state.properties) not in (None, rule):
        raise ConcurrentChange("the key of the table was changed while the batch was written")


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
