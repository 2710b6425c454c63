"""Functions that run inside Spark's Python workers, from Arrow batches to pickled results.

An error that a retry does not repair (a batch that does not fit the table, a damaged file) is a result too. If a
function raised it, Spark would run the task four times, and the caller would have to parse a traceback.
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
from icesize.parquet.files.new_files import rewrite_failed
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.rewriting.absorb import NOTHING, Absorption, write_with
from icesize.parquet.writing.row_writer import use_system_memory
from icesize.planning.plan import MergeTask

T = TypeVar("T")

Bins = Sequence[Sequence[tuple[int, MergeTask]]]
"""The groups of each task of a job, with their numbers."""

_OF_SPARK = ("/pyspark.zip", "-src.zip", ".jar")
"""Archives that Spark puts on the path of its workers: its Python code, Py4J, and its core jar."""


@dataclass(frozen=True)
class Answering:
    """A function for `mapInArrow` that yields each result of another function, pickled, in the column `answer`."""

    function: Callable[[Iterable[pa.RecordBatch]], Iterator[object]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare()
        for value in self.function(batches):
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(value)], pa.binary())], names=["answer"])


def names_of_task(prefix: str) -> FileNames:
    """Return file names with the numbers of the task and its attempt."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return FileNames(prefix, 0, 0)
    return FileNames(prefix, context.partitionId(), context.attemptNumber())


def prepare() -> None:
    """Use the system's memory allocator in this process, and drop Spark's archives from Python's import caches.

    PySpark invalidates Python's import caches at the beginning of each task. Python before 3.12 then reads the
    directories of all cached archives again: Spark's core jar and its Python code, ten times, at 0.1-0.2 s of a core.
    An archive that is dropped here is read only if a later import needs it.
    """
    use_system_memory()
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and finder.archive.endswith(_OF_SPARK):
            del sys.path_importer_cache[path]


@dataclass(frozen=True)
class WriteRows:
    """Writes the rows of one task with the older files that it absorbs; yields the written files, or an error."""

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
    """Rewrites groups, from bin numbers to pairs of a group's number and the result of `rewrite`, or a MergeFailure.

    The names of a group's new files begin with its prefix.
    """

    bins: Bins
    settings: WriteSettings
    prefixes: Mapping[int, str]
    rewrite: Callable[[MergeTask, WriteSettings, FileNames], object]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, object]]:
        return results_of(batches, self.bins, "rewrite", self._rewrite)

    def _rewrite(self, number: int, group: MergeTask) -> object:
        return self.rewrite(group, self.settings, names_of_task(self.prefixes[number]))


def results_of(
    batches: Iterable[pa.RecordBatch], bins: Bins, verb: str, work: Callable[[int, MergeTask], T]
) -> Iterator[tuple[int, T | MergeFailure]]:
    """Yield the number of each group of a task, and the result of `work(number, group)`, or a MergeFailure."""
    for _, groups in bins_of(batches, bins):
        for number, group in groups:
            try:
                with rewrite_failed(f"{verb} {len(group.inputs)} files"):
                    result: T | MergeFailure = work(number, group)
            except RewriteFailed as error:
                result = MergeFailure.of(error, in_worker=True)
            yield number, result


def bins_of(batches: Iterable[pa.RecordBatch], bins: Sequence[T]) -> Iterator[tuple[int, T]]:
    """Yield the bins whose numbers are in the first column of a task's batches, with the numbers."""
    prepare()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield number, bins[number]
