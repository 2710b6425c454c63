"""What runs inside Spark's Python workers: functions from Arrow batches to answers, which `Answering` pickles.

Errors that another try does not repair (a batch that does not fit the table, a damaged file) are answers too: raised,
Spark would run the task four times and the caller would have to parse a traceback.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from zipimport import zipimporter

import pyarrow as pa

from icesize.errors import IcesizeError, RewriteFailed
from icesize.parquet.files.data_file import MergeFailure, Written
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.rewriting.absorb import NOTHING, Absorption, write_with
from icesize.parquet.writing.row_writer import use_system_memory
from icesize.planning.plan import MergeTask

T = TypeVar("T")

Bins = Sequence[Sequence[tuple[int, MergeTask]]]
"""For each task of a job the groups that it works on, with their numbers."""

_OF_SPARK = ("/pyspark.zip", "-src.zip", ".jar")
"""Archives that Spark puts on the path of its workers: its Python code, Py4J, and its core jar."""


@dataclass(frozen=True)
class Answering:
    """A function for `mapInArrow`: yields what another one answers, pickled, in the column `answer`."""

    function: Callable[[Iterable[pa.RecordBatch]], Iterator[object]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare()
        for value in self.function(batches):
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(value)], pa.binary())], names=["answer"])


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
    """Writes the rows of one task, and those that it takes along; answers with what was written, or an error."""

    settings: WriteSettings
    prefix: str
    absorption: Absorption = NOTHING

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Written | IcesizeError]:
        names = names_of_task(self.prefix)
        try:
            written = write_with(self.absorption, names.task, batches, self.settings, names)
        except IcesizeError as error:
            yield error
            return
        if written.files or written.failed:
            yield written


@dataclass(frozen=True)
class RewriteGroups:
    """Rewrites groups, each under names with its own prefix; its input is the numbers of bins.

    It answers with the number of each group and what `rewrite` makes of it, or a MergeFailure.
    """

    bins: Bins
    settings: WriteSettings
    prefixes: Mapping[int, str]
    rewrite: Callable[[MergeTask, WriteSettings, FileNames], object]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, object]]:
        for _, groups in bins_of(batches, self.bins):
            for number, group in groups:
                try:
                    yield number, self.rewrite(group, self.settings, names_of_task(self.prefixes[number]))
                except RewriteFailed as error:
                    yield number, MergeFailure(str(error))


def bins_of(batches: Iterable[pa.RecordBatch], bins: Sequence[T]) -> Iterator[tuple[int, T]]:
    """The bins whose numbers a task has in its first column, with these."""
    prepare()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield number, bins[number]
