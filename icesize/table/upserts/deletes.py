"""The delete files that a batch writes for the rows that it deletes, and the older ones that they replace.

| format | one for | replaces |
|---|---|---|
| v3 | each data file: a vector, all in one Puffin file | the vector and position deletes of this data file |
| v2, few data files | each data file | the position deletes of this data file |
| v2, more of them | each partition | for one data file: its position deletes; for several: some of the partition's |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property

from pyroaring import BitMap

from icesize.concurrency import NOT_AHEAD
from icesize.parquet.deletes.position_files import write_positions
from icesize.parquet.deletes.positions import mark_named
from icesize.parquet.deletes.vectors import write_vectors
from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import NewFiles, rewrite_failed
from icesize.planning.deletes.delete_reach import only_path, plain_path
from icesize.planning.files import DeleteFile, FileFact, PartitionKey
from icesize.planning.merging.chosen_files import choose_prefix
from icesize.policy import SizePolicy
from icesize.storage.table_storage import Storage
from icesize.table.commit.steps.row_delta import RowChanges
from icesize.table.upserts.lookup import TableFiles
from icesize.table.upserts.state_files import FilesWithBounds

MOST_SINGLE_DELETES = 16
"""The most data files that get a position delete file each (format v2); with more, each partition gets one.

A commit then writes at most as many small files as a batch into 16 partitions.
"""
_NO_LIMIT = 2.0**60


@dataclass(frozen=True, eq=False)
class Dying:
    """The positions of the rows of one data file that a batch deletes; `deleted` are those that are deleted already."""

    file: FileFact
    deleted: BitMap
    rows: BitMap

    @cached_property
    def all(self) -> BitMap:
        """All deleted rows of the file after the batch."""
        return self.deleted | self.rows

    @cached_property
    def own_deletes(self) -> tuple[DeleteFile, ...]:
        """Vectors and position delete files that apply to this data file, and to no other."""
        of_rows = (delete for delete in self.file.deletes if not delete.equality_ids)
        return tuple(delete for delete in of_rows if only_path(delete) is not None)


@dataclass(frozen=True, eq=False)
class PlannedDelete:
    """A delete file to write: the rows of data files, and the delete files that it replaces."""

    rows: Mapping[FileFact, BitMap]
    replaced: tuple[DeleteFile, ...]

    @cached_property
    def content(self) -> Hashable:
        """The content of the file: a file of an earlier attempt with the same content is used again."""
        return frozenset((file.path, rows.serialize()) for file, rows in self.rows.items())

    @property
    def spec_id(self) -> int:
        """The partition spec of the data files, which are of one partition in format v2."""
        return next(iter(self.rows)).partition.spec_id


def planned_deletes(
    dying: Sequence[Dying], live: FilesWithBounds, storage: Storage, format_version: int, most_delete_files: int
) -> list[PlannedDelete]:
    """Return the delete files for the dying rows, at most one of them for each data file.

    Args:
        dying: Rows of data files.
        live: The files of the state of the table.
        storage: Reads delete files that are replaced.
        format_version: Format version of the table, 2 or 3.
        most_delete_files: The most delete files that may apply to one data file (format v2).
    """
    if format_version >= FIRST_WITH_LINEAGE or len(dying) <= MOST_SINGLE_DELETES:
        return [_of_file(each) for each in dying]
    by_partition = defaultdict[PartitionKey, list[Dying]](list)
    for each in dying:
        by_partition[each.file.partition].append(each)
    return [
        _of_partition(some, live, storage, most_delete_files) if len(some) > 1 else _of_file(some[0])
        for some in by_partition.values()
    ]


def _of_file(dying: Dying) -> PlannedDelete:
    return PlannedDelete({dying.file: dying.all}, dying.own_deletes)


def _of_partition(
    dying: Sequence[Dying], live: FilesWithBounds, storage: Storage, most_delete_files: int
) -> PlannedDelete:
    """Return the delete file of a partition, which takes the place of the smallest others if they are too many.

    One more file may apply to a data file: its own, from a batch that deleted rows of few data files.
    """
    key = dying[0].file.partition
    shared = [
        delete for delete in live.deletes.by_partition.get(key, ())
        if not delete.equality_ids and only_path(delete) is None
    ]  # fmt: skip
    shared.sort(key=lambda delete: (delete.rows, delete.path))
    folded = _folded(shared, max(1, most_delete_files - 2))
    rows = {each.file: each.rows for each in dying}
    if folded:
        files = live.by_partition.get(key, ())
        by_path = {file.path: file for file in rows}
        marked = {file.path: BitMap() for file in files}
        mark_named(folded, files, marked, storage, NOT_AHEAD)
        for file in files:
            if marked[file.path]:
                target = by_path.get(file.path, file)
                rows[target] = rows.get(target, BitMap()) | marked[file.path]
    return PlannedDelete(rows, tuple(folded))


def _folded(shared: Sequence[DeleteFile], slots: int) -> Sequence[DeleteFile]:
    """Return the smallest delete files of a partition if `slots` would be exceeded, by the schedule of merges."""
    if len(shared) < slots:
        return ()
    return shared[: max(1, choose_prefix([delete.rows for delete in shared], _NO_LIMIT, max(1, slots - 1)))]


def write_deletes(files: TableFiles, names: FileNames, planned: Sequence[PlannedDelete]) -> list[NewDeleteFile]:
    """Write the delete files, and return them in the same order; after an error, none stays."""
    settings, by_spec = files.settings, dict[int, NewFiles]()
    with ExitStack() as undone:

        def of_spec(spec_id: int) -> NewFiles:
            if spec_id not in by_spec:
                by_spec[spec_id] = NewFiles(settings.of_spec(spec_id), names)
                undone.enter_context(by_spec[spec_id].all_or_none())
            return by_spec[spec_id]

        if settings.format_version < FIRST_WITH_LINEAGE:
            # the location of a delete file follows from the spec of its data files
            return [write_positions(of_spec(each.spec_id), each.rows) for each in planned]
        if not planned:
            return []
        # all vectors lie in one file, whose location is that of no partition
        vectors = {file: rows.copy() for each in planned for file, rows in each.rows.items()}
        return list(write_vectors(of_spec(settings.spec_id), PartitionKey(settings.spec_id), vectors))


@dataclass(eq=False)
class DeleteFiles:
    """Writes delete files for states of the table; one of an earlier state with the same content is used again."""

    files: TableFiles
    policy: SizePolicy
    names: FileNames
    _known: dict[Hashable, NewDeleteFile] = field(default_factory=dict)

    @property
    def written(self) -> Sequence[NewDeleteFile]:
        """All files that were written, for any state."""
        return list(self._known.values())

    def changes(self, dying: Sequence[Dying], live: FilesWithBounds, files: Sequence[NewDataFile] = ()) -> RowChanges:
        """Return changes of a state with these live files that delete the dying rows, and add `files`."""
        settings, most = self.files.settings, self.policy.max_delete_files
        planned = planned_deletes(dying, live, settings.storage, settings.format_version, most)
        missing = [each for each in planned if each.content not in self._known]
        with rewrite_failed("write the deletes of the batch"):
            made = write_deletes(self.files, self.names, missing)
        self._known |= zip((each.content for each in missing), made, strict=True)
        deletes = {each: self._known[each.content] for each in planned}
        applied = {plain_path(file.path): frozenset([deletes[each].id]) for each in planned for file in each.rows}
        replaced = {delete.id: delete for each in planned for delete in each.replaced}
        changes = RowChanges(tuple(files), tuple(deletes.values()), tuple(replaced.values()), applied)
        self._remember(dying, changes, live)
        return changes

    def _remember(self, dying: Sequence[Dying], changes: RowChanges, live: FilesWithBounds) -> None:
        """Remember the deleted rows of each data file, so that the next batch need not read them."""
        has_vectors = self.files.settings.format_version >= FIRST_WITH_LINEAGE
        replaced = {delete.id for delete in changes.replaced}
        for each in dying:
            # beside a vector, readers ignore position deletes
            others = (delete for delete in each.file.deletes if delete.equality_ids or not has_vectors)
            kept = frozenset(delete.id for delete in others if delete.id not in replaced)
            live.remember_deleted(each.file.path, kept | changes.applied[plain_path(each.file.path)], each.all)
