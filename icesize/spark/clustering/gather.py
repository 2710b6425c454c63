"""Tasks that write the files of a clustering, from whole groups or from the rows that `scatter` sends."""

from __future__ import annotations

import pickle
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import Merged, MergeFailure, NewDataFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import NewFiles, rewrite_failed
from icesize.parquet.files.settings import Limits, WriteSettings
from icesize.parquet.files.storage import local_folder
from icesize.parquet.ordering.cluster_order import Ranking, RowOrder
from icesize.parquet.reading.conservation import Counts
from icesize.parquet.rewriting.cluster import TooLarge, write_clustered
from icesize.parquet.writing.sorted_files import SortedFiles, Target
from icesize.planning.files import PartitionKey
from icesize.planning.plan import MergeTask
from icesize.spark.clustering.scatter import BlobHeader, rows_of
from icesize.spark.engine.worker import names_of_task

LARGEST_PIECE = 2
"""Most rows and bytes sorted together, in multiples of `Limits.sorted_rows` and `Limits.sorted_bytes`.

A partition can exceed these limits, because cuts are made from samples.
"""

Gathered = list[NewDataFile] | MergeFailure
"""The files of a task assignment, or of all assignments of a group; a MergeFailure if there are none."""


def cluster_alone(order: RowOrder, group: MergeTask, settings: WriteSettings, names: FileNames) -> Merged | None:
    """Cluster a group in one task; return None, and leave no files, if one task cannot sort all rows.

    Raises `RewriteFailed`.
    """
    try:
        return write_clustered(group, order, settings, names, most_parts=settings.limits.parts_of_one_task)
    except TooLarge:
        return None


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

    Yields the number of the assignment, `Gathered`, and counts of rows. Tasks that read rows of a group count them;
    each task sends its counts to one assignment of the group.

    A task holds in memory one shuffle partition, a second copy of its rows while they are concatenated, and
    `Limits.waiting_bytes`. A partition is much larger than planned if many rows have equal keys. It is then sorted
    piece by piece: its files may overlap, and do not claim to be in the table's order.
    """

    assignments: Sequence[Assignment]
    destinations: Mapping[int, Destination]
    order: RowOrder
    settings: WriteSettings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Gathered, list[Counts]]]:
        with closing(_Waiting(self.settings.limits)) as waiting:
            failed: dict[int, MergeFailure] = {}
            counted: dict[int, list[Counts]] = defaultdict(list)
            for batch in batches:
                for number, header, blob in _blobs_of(batch):
                    if isinstance(header, MergeFailure):
                        failed[number] = header
                    elif isinstance(header, BlobHeader):
                        waiting.put(number, header, blob)
                    else:
                        counted[number].append(header)
            for number in sorted({*waiting.blobs, *failed, *counted}):
                yield number, failed.get(number) or self._write(number, waiting), counted[number]

    def _write(self, number: int, waiting: _Waiting) -> Gathered:
        assignment = self.assignments[number]
        group = self.destinations[assignment.group]
        pieces = waiting.pieces(number)
        in_order = len({piece[0].header.partition for piece in pieces}) == len(pieces)
        sort_order_id = self.order.sort_order_id if in_order else None
        rows = sum(blob.header.rows for piece in pieces for blob in piece)
        target = Target(group.partition, rows, assignment.outputs, sort_order_id, group.sequence_number)
        new_files = NewFiles(self.settings, names_of_task(group.prefix))
        files = SortedFiles(target, new_files)
        try:
            with rewrite_failed("cluster rows of a shuffle"), new_files.all_or_none():
                while pieces:
                    tables = waiting.read(pieces.pop(0))
                    keys = pa.concat_tables([self.order.keys(table) for table in tables])
                    later = [blob.header for piece in pieces for blob in piece]
                    later_nan = frozenset[int]().union(*(header.nan for header in later))
                    later_bytes = sum(header.arrow_bytes for header in later)
                    files.write(tables, group.ranking.arrange(keys), later_nan, later_bytes)
                return files.close()
        except RewriteFailed as error:
            return MergeFailure.of(error, in_worker=True)


def _blobs_of(batch: pa.RecordBatch) -> Iterator[tuple[int, BlobHeader | MergeFailure | Counts, pa.Buffer]]:
    headers = (pickle.loads(each) for each in batch.column("header").to_pylist())  # noqa: S301 - made by icesize's workers
    blobs = (value.as_buffer() for value in batch.column("rows"))
    return zip(batch.column("assignment").to_pylist(), headers, blobs, strict=True)


class _Blob(NamedTuple):
    """Rows of a shuffle partition, and their position in the temporary file."""

    header: BlobHeader
    start: int
    size: int


class _Waiting:
    """Blobs kept until all have arrived: in memory while they are few, then in a temporary file without a name."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._file = tempfile.SpooledTemporaryFile(limits.waiting_bytes, prefix="icesize-", dir=local_folder())  # noqa: SIM115
        self._end = 0
        self.blobs: dict[int, list[_Blob]] = defaultdict(list)

    def close(self) -> None:
        self._file.close()

    def put(self, assignment: int, header: BlobHeader, rows: pa.Buffer) -> None:
        """Keep rows."""
        self._file.seek(self._end)
        self._file.write(rows)
        self.blobs[assignment].append(_Blob(header, self._end, rows.size))
        self._end += rows.size

    def pieces(self, assignment: int) -> list[list[_Blob]]:
        """Return the rows of an assignment in the order of their partitions, in pieces that are sorted one by one."""
        pieces, rows, size_bytes = list[list[_Blob]](), 0, 0
        for blob in sorted(self.blobs[assignment], key=lambda blob: blob.header.partition):
            is_full = (
                size_bytes >= LARGEST_PIECE * self._limits.sorted_bytes
                or rows >= LARGEST_PIECE * self._limits.sorted_rows
            )
            if is_full or not pieces or pieces[-1][0].header.partition != blob.header.partition:
                pieces.append([])
                rows = size_bytes = 0
            pieces[-1].append(blob)
            rows += blob.header.rows
            size_bytes += blob.header.arrow_bytes
        return pieces

    def read(self, piece: list[_Blob]) -> list[pa.Table]:
        """Return the rows of a piece."""
        tables = []
        for blob in piece:
            self._file.seek(blob.start)
            tables.append(rows_of(self._file.read(blob.size)))
        return tables
