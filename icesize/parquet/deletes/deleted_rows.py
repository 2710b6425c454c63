"""The deleted rows of the input files of a merge, of all kinds of deletes, as one bitmap of positions for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from pyroaring import BitMap

from icesize.concurrency import IO_THREADS, NOT_AHEAD, Ahead
from icesize.parquet.deletes.equality import EqualRows
from icesize.parquet.deletes.positions import NamedRows
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.reading.prefetch import Fetched
from icesize.planning.files import DeleteFile, FileFact, PartitionKey


class DeletedRows(Protocol):
    """Delete files of one kind. A new kind (deletion vectors) is another class with these two methods."""

    @property
    def least_number(self) -> int:
        """Return the sequence number that files without the deleted rows must have at least, or the deletes hit them
        again; 0 if they never do."""

    def mark(
        self, inputs: Sequence[FileFact], positions: Mapping[str, BitMap], ahead: Ahead
    ) -> Mapping[str, frozenset[str]]:
        """Add the deleted rows to the bitmap of each input, each delete file read once, the next ones `ahead`.

        Returns the data files that delete files name, by path, of those that name several and were read as a whole.
        Raises `RewriteFailed` for a delete file that is missing, damaged or does not fit the inputs.
        """


@dataclass(frozen=True)
class DeletedPositions:
    """Rows of data files that readers must not see.

    `positions` are row numbers before any delete, by `FileFact.path`, of those files that have deleted rows.
    `equality_number` is the greatest sequence number of the equality delete files that were applied, 0 for none: what
    is written without these rows must carry at least this number (`DeletedRows.least_number`). `named` are the data
    files that position delete files name, by their paths, of those that name several and were read as a whole.
    """

    positions: Mapping[str, BitMap]
    equality_number: int = 0
    named: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """All deleted rows."""
        return sum(map(len, self.positions.values()))

    def live_rows(self, file: FileFact) -> int:
        """Rows of an input that are not deleted."""
        return file.rows - len(self.positions.get(file.path, ()))

    def number_of(self, inputs: Iterable[FileFact]) -> int:
        """The data sequence number of files with the live rows of these inputs (`icesize.planning.delete_reach`)."""
        return max(self.equality_number, *(file.sequence_number for file in inputs))


NONE_DELETED = DeletedPositions({})


def deleted_rows(
    inputs: Sequence[FileFact], settings: WriteSettings, partition: PartitionKey, fetched: Fetched | None = None
) -> DeletedPositions:
    """What the delete files of the inputs, all of one partition, delete from each of them, by its own number.

    Takes a bitmap for each input (two bytes a deleted row, or one bit a row, if that is less) and some hundred MB at
    most for equality deletes (`Limits.delete_keys_bytes`), for which only key columns are read, and only of inputs that
    they may hit; `fetched` keeps what had to be fetched for that. Raises `RewriteFailed` with the attribute `path` of a
    delete file that is missing, damaged, of another format or does not fit the table or the inputs; or of an input.
    """
    inputs = [file for file in inputs if file.deletes]  # nothing can have hit rows that were not visible
    deletes = _all_deletes(inputs)
    if not deletes:
        return NONE_DELETED
    positions = {file.path: BitMap() for file in inputs}
    least = min(file.sequence_number for file in inputs)
    by_position = [delete for delete in deletes if not delete.equality_ids]
    by_equality = [delete for delete in deletes if delete.equality_ids and delete.sequence_number > least]
    kinds: tuple[DeletedRows, ...] = (
        NamedRows(by_position, settings.storage),
        EqualRows(by_equality, partition, settings, fetched),
    )
    named = dict[str, frozenset[str]]()
    with _ahead(deletes, settings, fetched) as ahead:
        for kind in kinds:
            named |= kind.mark(inputs, positions, ahead)
    number = max(kind.least_number for kind in kinds)
    return DeletedPositions({path: rows for path, rows in positions.items() if rows}, number, named)


@contextmanager
def _ahead(deletes: Sequence[DeleteFile], settings: WriteSettings, fetched: Fetched | None) -> Iterator[Ahead]:
    """Who reads delete files ahead: the threads of the merge, or more where most of the time is waiting for storage."""
    remote = sum(settings.storage.local_path(delete.path) is None for delete in deletes)
    if remote < 2:
        yield NOT_AHEAD if fetched is None else fetched.ahead
        return
    with closing(Ahead(min(IO_THREADS, remote))) as own:
        yield own


def _all_deletes(inputs: Iterable[FileFact]) -> list[DeleteFile]:
    """Each once; files of one partition mostly share them as one value."""
    different = {id(file.deletes): file.deletes for file in inputs}
    return list({delete.path: delete for deletes in different.values() for delete in deletes}.values())
