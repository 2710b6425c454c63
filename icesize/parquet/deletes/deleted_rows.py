"""The deleted rows of the input files of a merge, from all kinds of deletes, as one bitmap of positions per file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from pyroaring import BitMap

from icesize.concurrency import NOT_AHEAD, Ahead, requests_at_once
from icesize.parquet.deletes.equality import EqualRows
from icesize.parquet.deletes.positions import mark_named
from icesize.parquet.deletes.vectors import mark_vectors, vectors_of
from icesize.parquet.files.row_map import RowMap
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.reading.prefetch import Fetched
from icesize.planning.deletes.delete_reach import only_path, plain_path
from icesize.planning.files import DeleteFile, FileFact, PartitionKey
from icesize.storage.table_storage import Storage


@dataclass(frozen=True)
class DeletedPositions:
    """Rows of data files that readers must not see.

    `positions` has the deleted row numbers, counted before any delete, by `FileFact.path`. It has only files with
    deleted rows. `equality_number` is the greatest sequence number of the applied equality delete files, 0 for none.
    Files written without these rows must carry at least this number, or the deletes would apply to them again. `named`
    has the data files that a position delete file names, by its path, for position delete files that name several and
    were read as a whole. `by_equality` has those of the `positions` that only equality deletes name.
    """

    positions: Mapping[str, BitMap]
    equality_number: int = 0
    named: Mapping[str, frozenset[str]] = field(default_factory=dict)
    by_equality: Mapping[str, BitMap] = field(default_factory=dict)

    @classmethod
    def together(cls, parts: Iterable[DeletedPositions]) -> DeletedPositions:
        """Return the deleted rows of different inputs; parts that have read the same delete file name the same."""
        positions, named, by_equality, number = dict[str, BitMap](), dict[str, frozenset[str]](), dict[str, BitMap](), 0
        for part in parts:
            positions |= part.positions
            named |= part.named
            by_equality |= part.by_equality
            number = max(number, part.equality_number)
        return cls(positions, number, named, by_equality)

    @property
    def rows(self) -> int:
        """All deleted rows."""
        return sum(map(len, self.positions.values()))

    def live_rows(self, file: FileFact) -> int:
        """Return the number of rows of an input that are not deleted."""
        return file.rows - len(self.positions.get(file.path, ()))

    def merged_sequence_number(self, inputs: Iterable[FileFact]) -> int:
        """Return the data sequence number of files with the live rows of these inputs.

        `icesize.planning.deletes.delete_reach` explains the rule.
        """
        return max(self.equality_number, *(file.sequence_number for file in inputs))

    def left_out_of(self, row_map: RowMap | None) -> RowMap | None:
        """Return the map of a merge that left these rows out."""
        return row_map and replace(row_map, left_out=self.positions, by_equality=self.by_equality)


NONE_DELETED = DeletedPositions({})


def deleted_rows(
    inputs: Sequence[FileFact], settings: WriteSettings, partition: PartitionKey, fetched: Fetched | None = None
) -> DeletedPositions:
    """Return the rows of each input that the inputs' delete files delete; all inputs are of one partition.

    A delete applies to an input according to the sequence numbers of both. Each input takes a bitmap in memory: two
    bytes per deleted row, or one bit per row, if that is less. Equality deletes take at most some hundred MB
    (`Limits.delete_keys_bytes`). For equality deletes, only key columns are read, and only of inputs that the deletes
    may apply to. `fetched` keeps files that were fetched for that.

    Raises `RewriteFailed` with the attribute `path` of a delete file that is missing, damaged, of another format or
    does not fit the table or the inputs. The `path` can also be that of an input.
    """
    inputs = [file for file in inputs if file.deletes]  # new files of a batch have none
    deletes = _all_deletes(inputs)
    if not deletes:
        return NONE_DELETED
    positions = {file.path: BitMap() for file in inputs}
    least = min(file.sequence_number for file in inputs)
    by_position = [delete for delete in deletes if not (delete.equality_ids or delete.is_vector)]
    by_equality = [delete for delete in deletes if delete.equality_ids and delete.sequence_number > least]
    vectors = vectors_of(inputs, deletes)
    # For a file with a vector, position deletes are ignored (`icesize.planning.deletes.delete_reach`). Those that name
    # several files are read nevertheless: they may be dangling after the merge, and only their rows name these files.
    ignored = {path: BitMap() for path in vectors}
    replaced = {plain_path(path) for path in vectors}
    by_position = [each for each in by_position if plain_path(only_path(each) or "") not in replaced]
    with _ahead(deletes, settings, fetched) as ahead:
        mark_vectors(vectors, inputs, positions, settings.storage, ahead)
        named = mark_named(by_position, inputs, positions | ignored, settings.storage, ahead)
        before = {path: rows.copy() for path, rows in positions.items()} if by_equality else positions
        EqualRows(by_equality, partition, settings, fetched).mark(inputs, positions, ahead)
    number = max((delete.sequence_number for delete in by_equality), default=0)
    equal = {path: rows - before[path] for path, rows in positions.items()} if by_equality else {}
    return DeletedPositions({path: rows for path, rows in positions.items() if rows}, number, named, equal)


def rows_named(deletes: Mapping[FileFact, Sequence[DeleteFile]], storage: Storage) -> dict[str, BitMap]:
    """Return the rows of data files, which may be of different partitions, that these delete files name, by path.

    The delete files of each data file are position deletes or a vector. Raises the errors of `deleted_rows`.
    """
    positions = {file.path: BitMap() for file in deletes}
    every = {delete.id: delete for some in deletes.values() for delete in some}
    vectors = vectors_of([*deletes], [*every.values()])
    with closing(Ahead(max(1, min(requests_at_once(), len(every))))) as ahead:
        mark_vectors(vectors, [*deletes], positions, storage, ahead)
        others = [delete for delete in every.values() if not delete.is_vector]
        mark_named(others, [file for file in deletes if file.path not in vectors], positions, storage, ahead)
    return positions


@contextmanager
def _ahead(deletes: Sequence[DeleteFile], settings: WriteSettings, fetched: Fetched | None) -> Iterator[Ahead]:
    """Yield the threads that read delete files ahead: the merge's own, or more of them for remote files.

    Most of the time of a remote read is waiting for storage.
    """
    remote = sum(settings.storage.local_path(delete.path) is None for delete in deletes)
    if remote < 2:
        yield NOT_AHEAD if fetched is None else fetched.ahead
        return
    with closing(Ahead(min(settings.limits.requests, remote))) as own:
        yield own


def _all_deletes(inputs: Iterable[FileFact]) -> list[DeleteFile]:
    """Return each delete file once; files of one partition usually share their delete files as one value."""
    different = {id(file.deletes): file.deletes for file in inputs}
    return list({delete.id: delete for deletes in different.values() for delete in deletes}.values())
