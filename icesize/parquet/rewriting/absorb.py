"""New rows and the rows of older small files, written together: each once, into the same files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.reading.inputs import read_inputs
from icesize.parquet.writing.row_writer import RowWriter, write_rows
from icesize.planning.files import FileFact
from icesize.planning.plan import MergeGroup


@dataclass(frozen=True, slots=True)
class Absorption:
    """Older files whose rows are written together with new ones.

    `by_writer` says which Spark task or thread takes which files along: the one that writes their partition, whatever
    rows it sees.
    """

    by_writer: Mapping[int, tuple[MergeGroup, ...]] = field(default_factory=dict)

    @property
    def most_bytes(self) -> int:
        """Bytes of the older files of the writer that takes most along."""
        return max((sum(task.size_bytes for task in tasks) for tasks in self.by_writer.values()), default=0)


NOTHING = Absorption()


@dataclass(frozen=True, slots=True)
class Written:
    """Finished files, the older files whose rows are in them too, and in sentences why others were not taken along."""

    files: tuple[WrittenFile, ...] = ()
    absorbed: tuple[FileFact, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def new_rows(self) -> int:
        """Rows that were in none of the older files."""
        return sum(f.rows for f in self.files) - sum(f.rows for f in self.absorbed)

    @classmethod
    def together(cls, parts: Iterable[Written]) -> Written:
        """What several writers of one batch did."""
        all_of = list(parts)
        return cls(
            tuple(f for part in all_of for f in part.files),
            tuple(f for part in all_of for f in part.absorbed),
            tuple(e for part in all_of for e in part.failed),
        )


def write_with(
    absorption: Absorption,
    writer: int,
    batches: Iterable[pa.RecordBatch | pa.Table],
    settings: WriteSettings,
    names: FileNames,
) -> Written:
    """Write all batches, after the rows of the files that this writer takes along.

    Where one file of a partition cannot be read, those of that partition stay as they are, and `failed` tells why.
    Raises `SchemaMismatch` when new rows do not fit the table, `RewriteFailed` or `OSError` when storage fails; on any
    error what was written is removed, best effort.
    """
    tasks = absorption.by_writer.get(writer, ())
    rows, taken, failed = _with_inputs(tasks, settings, names)
    files = write_rows(batches, settings, names, rows)
    return Written(tuple(files), tuple(input_file for task in taken for input_file in task.inputs), failed)


class _DamagedError(Exception):
    """An input file of `task` cannot be read."""

    def __init__(self, task: MergeGroup, why: str) -> None:
        super().__init__(why)
        self.task = task


def _with_inputs(
    tasks: tuple[MergeGroup, ...], settings: WriteSettings, names: FileNames
) -> tuple[RowWriter, list[MergeGroup], tuple[str, ...]]:
    """A writer that holds the input files' rows; begun anew without a partition that turns out to be damaged, because
    some of its rows may be in a file by then."""
    taken, failed = list(tasks), list[str]()
    while True:
        writer = RowWriter(settings, names)
        try:
            for task in taken:
                for rows in _rows_of(task, settings):
                    writer.take_along(task.partition, rows)
        except _DamagedError as damaged:
            writer.abort()
            taken.remove(damaged.task)
            failed.append(str(damaged))
            continue
        except BaseException:
            writer.abort()
            raise
        return writer, taken, tuple(failed)


def _rows_of(task: MergeGroup, settings: WriteSettings) -> Iterator[pa.Table]:
    try:
        yield from read_inputs(task, settings)
    except RewriteFailed as error:
        raise _DamagedError(task, str(error)) from error
