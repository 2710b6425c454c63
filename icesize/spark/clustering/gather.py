"""Tasks that write the files of a clustering, from whole groups or from the rows that `scatter` sends."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import Merged, MergeFailure, NewDataFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import NewFiles, rewrite_failed
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.ordering.cluster_order import Ranking, RowOrder
from icesize.parquet.reading.conservation import Counts
from icesize.parquet.rewriting.cluster import Divided, TooLarge, write_clustered
from icesize.parquet.writing.sorted_files import SortedFiles, Target
from icesize.planning.files import PartitionKey
from icesize.planning.plan import MergeTask
from icesize.spark.clustering.scatter import BlobHeader, rows_of
from icesize.spark.engine.worker import names_of_task

MOST_NUMBERED_ROWS = 2**26
"""Most rows of a job whose places come back to the driver: 256 MiB of the 1 GiB that results of a job may have by
Spark's default (`spark.driver.maxResultSize`). Groups with more than their share have no map of rows."""
RowNumbers = list[npt.NDArray[np.uint32]]
"""The numbers of rows among the live ones of their group, in the order in which they were written."""
Gathered = list[NewDataFile] | MergeFailure
"""The files of a task assignment, or of all assignments of a group; a MergeFailure if there are none."""


def cluster_alone(
    order: RowOrder, numbered_rows: int, group: MergeTask, settings: WriteSettings, names: FileNames
) -> Merged | None:
    """Cluster a group in one task; return None, and leave no files, if one task cannot sort all rows.

    A group with more than `numbered_rows` has no map of its rows. Raises `RewriteFailed`.
    """
    try:
        merged = write_clustered(group, order, settings, names, most_parts=settings.limits.parts_of_one_task)
    except TooLarge:
        return None
    return merged if merged.rows_in <= numbered_rows else replace(merged, row_map=None)


@dataclass(frozen=True)
class Assignment:
    """Consecutive shuffle partitions of a group, from which one task writes at most `outputs` files."""

    group: int
    outputs: int


@dataclass(frozen=True)
class Destination:
    """The settings for the files of a group."""

    ranking: Ranking
    prefix: str
    partition: PartitionKey
    sequence_number: int


@dataclass(frozen=True)
class Gather:
    """Sorts and writes the rows of each assignment of a task.

    Yields the number of the assignment, `Gathered`, counts of rows, and the numbers of the rows that were written, in
    their order, if `keeps_numbers`. Tasks that read rows of a group count them; each task sends its counts to one
    assignment of the group.

    Rows wait on the local disk until all have arrived. A task holds in memory one shuffle partition, and a second copy
    of its rows while they are concatenated. A partition that is much larger than planned is divided again.
    """

    assignments: Sequence[Assignment]
    destinations: Mapping[int, Destination]
    order: RowOrder
    settings: WriteSettings
    keeps_numbers: bool = True

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Gathered, list[Counts], RowNumbers]]:
        failed: dict[int, MergeFailure] = {}
        counted: dict[int, list[Counts]] = defaultdict(list)
        with ExitStack() as waits:
            waiting: dict[int, Divided] = {}
            for batch in batches:
                for number, header, blob in _blobs_of(batch):
                    if isinstance(header, MergeFailure):
                        failed[number] = header
                    elif isinstance(header, BlobHeader):
                        if number not in waiting:
                            ranking = self.destinations[self.assignments[number].group].ranking
                            waiting[number] = waits.enter_context(closing(Divided(self.order, self.settings, ranking)))
                        waiting[number].add((header.partition,), rows_of(blob), header.nan)
                    else:
                        counted[number].append(header)
            for number in sorted({*waiting, *failed, *counted}):
                written: RowNumbers = []
                found = failed.get(number) or self._write(number, waiting.get(number), written)
                yield number, found, counted[number], written if self.keeps_numbers else []

    def _write(self, number: int, divided: Divided | None, written: RowNumbers) -> Gathered:
        if divided is None:
            return []
        assignment = self.assignments[number]
        group = self.destinations[assignment.group]
        target = Target(
            group.partition, divided.rows, assignment.outputs, self.order.sort_order_id, group.sequence_number
        )
        new_files = NewFiles(self.settings, names_of_task(group.prefix))
        files = SortedFiles(target, new_files)
        try:
            with rewrite_failed("cluster rows of a shuffle"), new_files.all_or_none():
                for part in divided.parts():
                    part.write(self.order, files, written.append)
                return files.close()
        except RewriteFailed as error:
            return MergeFailure.of(error, in_worker=True)


def _blobs_of(batch: pa.RecordBatch) -> Iterator[tuple[int, BlobHeader | MergeFailure | Counts, pa.Buffer]]:
    headers = (pickle.loads(each) for each in batch.column("header").to_pylist())  # noqa: S301 - made by icesize's workers
    blobs = (value.as_buffer() for value in batch.column("rows"))
    return zip(batch.column("assignment").to_pylist(), headers, blobs, strict=True)
