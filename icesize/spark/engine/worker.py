"""What runs inside Spark's Python workers: functions from Arrow batches to one column of pickled answers.

Errors that another try cannot mend (a batch that does not fit the table, a damaged file) are answers too: raised, Spark
would run the task four times and the caller would have to parse a traceback.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zipimport import zipimporter

import pyarrow as pa

from icesize.errors import IcesizeError, RewriteFailed
from icesize.parquet.files.data_file import MergeFailure
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.reading.projection import ColumnAligner
from icesize.parquet.rewriting.absorb import NOTHING, Absorption, write_with
from icesize.parquet.writing.row_writer import use_system_memory
from icesize.planning.plan import MergeGroup

Bins = Sequence[Sequence[tuple[int, MergeGroup]]]
"""For each task of a job the groups that it works on, with their numbers."""

ANSWERS = "answer binary"
"""Spark schema of what each function yields; the column holds pickles of our own workers, never of stored data."""


_OF_SPARK = ("/pyspark.zip", "-src.zip", ".jar")
"""Archives that Spark puts on the path of its workers: its Python code, Py4J, and its core jar."""


def as_answer(value: object) -> pa.RecordBatch:
    """One answer of a task, to be read by `read_answer`."""
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(value)], pa.binary())], names=["answer"])


def read_answer(data: bytes | bytearray) -> Any:
    """The value of one answer; an error that a worker sent is raised."""
    value = pickle.loads(bytes(data))  # noqa: S301 - made by our own workers in this job
    if isinstance(value, IcesizeError):
        raise value
    return value


def names_of_task(prefix: str) -> FileNames:
    """File names that tell the task and the attempt."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return FileNames(prefix, 0, 0)
    return FileNames(prefix, context.partitionId(), context.attemptNumber())


def prepare() -> None:
    """What each of our functions does first in its process, besides its work.

    At the beginning of each task PySpark invalidates Python's import caches, for which Python before 3.12 reads the
    directories of all archives that modules were looked for in: Spark's own core jar and its Python code, ten times
    over, 0.1-0.2 s of a core. Forgotten here they are found again when something is imported, and not before.
    """
    use_system_memory()
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and finder.archive.endswith(_OF_SPARK):
            del sys.path_importer_cache[path]


@dataclass(frozen=True)
class WriteRows:
    """Writes the rows of one task, and those that it takes along; answers with what was written."""

    settings: WriteSettings
    prefix: str
    absorption: Absorption = NOTHING

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare()
        names = names_of_task(self.prefix)
        try:
            written = write_with(self.absorption, names.task, batches, self.settings, names)
        except IcesizeError as error:
            yield as_answer(error)
            return
        if written.files or written.failed:
            yield as_answer(written)


@dataclass(frozen=True)
class MeasureRows:
    """Encodes a sample of rows in memory; answers with (their RowSize, rows)."""

    settings: WriteSettings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from icesize.parquet.writing.encoding import row_size

        prepare()
        align_columns = ColumnAligner(self.settings)
        try:
            tables = [align_columns(b) for b in batches if b.num_rows]
        except IcesizeError as error:
            yield as_answer(error)
            return
        if tables:
            table = pa.concat_tables(tables)
            yield as_answer((row_size(table, self.settings), table.num_rows))


@dataclass(frozen=True)
class RewriteGroups:
    """Rewrites groups, each under names with its own prefix; its input is the numbers of bins.

    For each bin it answers with {number: what `rewrite` makes of the group, or a MergeFailure}.
    """

    bins: Bins
    settings: WriteSettings
    prefixes: Mapping[int, str]
    rewrite: Callable[[MergeGroup, WriteSettings, FileNames], object]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare()
        for bin_number in numbers_in(batches):
            yield as_answer({number: self._tried(number, group) for number, group in self.bins[bin_number]})

    def _tried(self, number: int, group: MergeGroup) -> object:
        try:
            return self.rewrite(group, self.settings, names_of_task(self.prefixes[number]))
        except RewriteFailed as error:
            return MergeFailure(str(error))


def numbers_in(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """The integers of the first column."""
    for batch in batches:
        yield from batch.column(0).to_pylist()
