"""The deleted rows of the input files of a merge, from all kinds of deletes, as one bitmap of positions per file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from pyroaring import BitMap

from icesize.concurrency import IO_THREADS, NOT_AHEAD, Ahead
from icesize.parquet.deletes.equality import EqualRows
from icesize.parquet.deletes.positions import NamedRows
from icesize.parquet.deletes.vectors import VectorRows
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.reading.prefetch import Fetched
from icesize.planning.files import DeleteFile, FileFact, PartitionKey


class DeletedRows(Protocol):
    """Delete files of one kind. A new kind is another class with these two methods."""

    @property
    def least_number(self) -> int:
        """Return the least sequence number that files without the deleted rows may have; 0 if any number will do.

        With a smaller number, the deletes would apply to these files again.
        """

    def mark(
        self, inputs: Sequence[FileFact], positions: Mapping[str, BitMap], ahead: Ahead
    ) -> Mapping[str, frozenset[str]]:
        """Add the deleted rows to the bitmap of each input.

        Each delete file is read once, and the next ones are read `ahead`. Returns the data files that a delete file
        names, by the path of the delete file. The result has only delete files that name several data files and were
        read as a whole. Raises `RewriteFailed` for a delete file that is missing, damaged or does not fit the inputs.
        """


@dataclass(frozen=True)
class DeletedPositions:
    """Rows of data files that readers must not see.

    `positions` has the deleted row numbers, counted before any delete, by `FileFact.path`. It has only files with
    deleted rows. `equality_number` is the greatest sequence number of the applied equality delete files, 0 for none.
    Files written without these rows must carry at least this number (`DeletedRows.least_number`). `named` has the data
    files that a position delete file names, by its path, for position delete files that name several and were read as a
    whole.
    """

    positions: Mapping[str, BitMap]
    equality_number: int = 0
    named: Mapping[str, frozenset[str]] = field(default_factory=dict)

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
    vectors = VectorRows.of(inputs, deletes, settings.storage)
    # position deletes are ignored for a file with a vector (`icesize.planning.deletes.delete_reach`)
    without_vector = [file for file in inputs if file.path not in vectors.by_path]
    kinds: tuple[tuple[DeletedRows, Sequence[FileFact]], ...] = (
        (vectors, inputs),
        (NamedRows(by_position, settings.storage), without_vector),
        (EqualRows(by_equality, partition, settings, fetched), inputs),
    )
    named = dict[str, frozenset[str]]()
    with _ahead(deletes, settings, fetched) as ahead:
        for kind, files in kinds:
            named |= kind.mark(files, positions, ahead)
    number = max(kind.least_number for kind, _ in kinds)
    return DeletedPositions({path: rows for path, rows in positions.items() if rows}, number, named)


@contextmanager
def _ahead(deletes: Sequence[DeleteFile], settings: WriteSettings, fetched: Fetched | None) -> Iterator[Ahead]:
    """Yield the threads that read delete files ahead: the merge's own, or more of them for remote files.

    Most of the time of a remote read is waiting for storage.
    """
    remote = sum(settings.storage.local_path(delete.path) is None for delete in deletes)
    if remote < 2:
        yield NOT_AHEAD if fetched is None else fetched.ahead
        return
    with closing(Ahead(min(IO_THREADS, remote))) as own:
        yield own


def _all_deletes(inputs: Iterable[FileFact]) -> list[DeleteFile]:
    """Return each delete file once; files of one partition usually share their delete files as one value."""
    different = {id(file.deletes): file.deletes for file in inputs}
    return list({delete.id: delete for deletes in different.values() for delete in deletes}.values())
