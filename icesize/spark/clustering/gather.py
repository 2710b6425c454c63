"""Tasks that write files of a clustering: those of whole groups, and those of rows that `scatter` sends."""

from __future__ import annotations

import pickle
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import Merged, MergeFailure, NewDataFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import NewFiles, rewrite_failed
from icesize.parquet.files.settings import Limits, WriteSettings
from icesize.parquet.files.storage import local_folder
from icesize.parquet.ordering.cluster_order import Ranking, RowOrder
from icesize.parquet.reading.conservation import Counts
from icesize.parquet.rewriting.cluster import TooLarge, cluster
from icesize.parquet.writing.sorted_files import SortedFiles, Target
from icesize.planning.files import PartitionKey
from icesize.planning.plan import MergeGroup
from icesize.spark.clustering.scatter import Header, rows_of
from icesize.spark.engine.worker import as_answer, names_of_task, prepare

LARGEST_PIECE = 2
"""Rows are sorted at once up to so many times `Limits.sorted_bytes` and `sorted_rows`: cuts are made from samples."""

Gathered = list[NewDataFile] | MergeFailure
"""The files of a task assignment, or why there are none."""


@dataclass(frozen=True, slots=True)
class TooLargeForOneTask:
    """One task cannot sort all rows of a group; nothing was left. `why` is a sentence."""

    why: str


def cluster_alone(
    order: RowOrder, group: MergeGroup, settings: WriteSettings, names: FileNames
) -> Merged | TooLargeForOneTask:
    """`cluster` where one task can do it; raises `RewriteFailed`."""
    try:
        return cluster(group, order, settings, names, most_parts=settings.limits.parts_of_one_task)
    except TooLarge as error:
        return TooLargeForOneTask(f"Cannot cluster {len(group.inputs)} files in one task: {error}")


@dataclass(frozen=True)
class Assignment:
    """Consecutive shuffle partitions of a group, which one task makes at most `outputs` files of."""

    group: int
    outputs: int


@dataclass(frozen=True)
class Destination:
    """How the files of a group are written."""

    ranking: Ranking
    prefix: str
    partition: PartitionKey
    sequence_number: int


@dataclass(frozen=True)
class Gather:
    """Sorts and writes the rows of each assignment of a task; answers with its number, `Gathered`, and what tasks have
    counted in the rows of its group that they read, which each of them sends to one assignment.

    Holds one shuffle partition in memory, its rows a second time while they are put together, and
    `Limits.waiting_bytes`. A partition that is much larger than planned, because many rows have equal keys, is sorted
    piece by piece: its files may overlap, and do not claim to be in the table's order.
    """

    assignments: tuple[Assignment, ...]
    destinations: Mapping[int, Destination]
    order: RowOrder
    settings: WriteSettings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare()
        with closing(_Waiting(self.settings.limits)) as waiting:
            failed: dict[int, MergeFailure] = {}
            counted: dict[int, list[Counts]] = defaultdict(list)
            for batch in batches:
                for number, header, blob in _blobs_of(batch):
                    if header.failure is not None:
                        failed[number] = header.failure
                    elif header.counted is not None:
                        counted[number].append(header.counted)
                    else:
                        waiting.put(number, header, blob)
            for number in sorted(waiting.assignments | set(failed) | set(counted)):
                found = failed[number] if number in failed else self._write(number, waiting)
                yield as_answer((number, found, counted[number]))

    def _write(self, number: int, waiting: _Waiting) -> Gathered:
        assignment = self.assignments[number]
        group = self.destinations[assignment.group]
        pieces = waiting.pieces(number)
        rows = sum(piece.rows for piece in pieces)
        in_order = len({piece.partition for piece in pieces}) == len(pieces)
        sort_order_id = self.order.sort_order_id if in_order else None
        target = Target(group.partition, rows, assignment.outputs, sort_order_id, group.sequence_number)
        new_files = NewFiles(self.settings, names_of_task(group.prefix))
        files = SortedFiles(target, new_files)
        try:
            with rewrite_failed("cluster rows of a shuffle"), new_files.all_or_none():
                for i, piece in enumerate(pieces):
                    tables = waiting.read(piece)
                    keys = pa.concat_tables([self.order.keys(table) for table in tables])
                    later_nan = frozenset[int]().union(*(later.nan for later in pieces[i + 1 :]))
                    later_bytes = sum(later.arrow_bytes for later in pieces[i + 1 :])
                    files.write(tables, group.ranking.arrange(keys), later_nan, later_bytes)
                return files.close()
        except RewriteFailed as error:
            return MergeFailure(str(error))


def _blobs_of(batch: pa.RecordBatch) -> Iterator[tuple[int, Header, pa.Buffer]]:
    headers = (pickle.loads(each) for each in batch.column("header").to_pylist())  # noqa: S301 - made by our own workers
    blobs = (value.as_buffer() for value in batch.column("rows"))
    return zip(batch.column("assignment").to_pylist(), headers, blobs, strict=True)


@dataclass(slots=True)
class _Piece:
    """Rows of a shuffle partition that are sorted together, and where their blobs are."""

    partition: int
    rows: int = 0
    arrow_bytes: int = 0
    nan: frozenset[int] = frozenset()
    blobs: list[tuple[int, int]] = field(default_factory=list)

    def with_blob(self, header: Header, blob: tuple[int, int]) -> None:
        self.rows += header.rows
        self.arrow_bytes += header.arrow_bytes
        self.nan |= header.nan
        self.blobs.append(blob)

    def is_full(self, limits: Limits) -> bool:
        return (
            self.arrow_bytes >= LARGEST_PIECE * limits.sorted_bytes or self.rows >= LARGEST_PIECE * limits.sorted_rows
        )


class _Waiting:
    """Blobs until all of them are there: in memory while they are few, then in a temporary file without a name."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._file = tempfile.SpooledTemporaryFile(limits.waiting_bytes, prefix="icesize-", dir=local_folder())  # noqa: SIM115
        self._end = 0
        self._pieces: dict[int, dict[int, list[_Piece]]] = {}

    def close(self) -> None:
        self._file.close()

    @property
    def assignments(self) -> set[int]:
        """Those that rows wait for."""
        return set(self._pieces)

    def put(self, assignment: int, header: Header, blob: pa.Buffer) -> None:
        """Keep rows."""
        self._file.seek(self._end)
        self._file.write(blob)
        pieces = self._pieces.setdefault(assignment, defaultdict(list))[header.partition]
        if not pieces or pieces[-1].is_full(self._limits):
            pieces.append(_Piece(header.partition))
        pieces[-1].with_blob(header, (self._end, blob.size))
        self._end += blob.size

    def pieces(self, assignment: int) -> list[_Piece]:
        """The rows of an assignment, partition by partition."""
        return [piece for _, pieces in sorted(self._pieces.get(assignment, {}).items()) for piece in pieces]

    def read(self, piece: _Piece) -> list[pa.Table]:
        """The rows of a piece."""
        tables = []
        for start, size in piece.blobs:
            self._file.seek(start)
            tables.append(rows_of(self._file.read(size)))
        return tables
