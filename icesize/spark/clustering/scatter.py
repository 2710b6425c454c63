"""Tasks that take the rows of large groups apart: `ScanKeys` reads keys, `Scatter` sends rows where they belong.

The order of a group is cut into *shuffle partitions*, so small that one is sorted in memory. Consecutive ones are a
*task assignment*: whole files, made by one task (`gather`). Rows go there as blobs, Arrow IPC streams of the rows of
one shuffle partition: Spark moves few large values and never sees a column.

Where a row goes is a function of the row, its bin and its position therein: a stage that is computed again sends it
where it went before.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.deletes.deleted_rows import deleted_rows
from icesize.parquet.files.data_file import MergeFailure
from icesize.parquet.files.settings import WriteSettings, pruned
from icesize.parquet.ordering.cluster_order import Cuts, RowOrder, by_part
from icesize.parquet.reading.conservation import Conservation, Counts
from icesize.parquet.reading.inputs import of_size, read_inputs
from icesize.parquet.writing.encoding import nan_columns
from icesize.planning.plan import FileGroup
from icesize.spark.engine.worker import Bins, bins_of
from icesize.spark.routing.task_column import TASK

BLOBS = f"{TASK} int, assignment int, header binary, rows binary"
"""What `Scatter` yields: rows of one shuffle partition for a task, and a pickled `Header`, made by our own workers. In
place of rows comes why there are none (a MergeFailure), or what a task has counted in the rows of the group."""

_TO_BLOBS = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1), use_threads=False)
"""Of 60 MB (two longs, a double, three texts) zstd makes 20 MB at 540 MB/s, LZ4 35 MB at 920. Clustering 560 MB
takes 21.7 s of all cores together, with LZ4 22.5, uncompressed 23.9."""

_NONE = pa.py_buffer(b"")
_FROM_BLOBS = pa.ipc.IpcReadOptions(use_threads=False)


@dataclass(frozen=True)
class KeySample:
    """Of some input files of a group: keys of some of their live rows, Arrow bytes of some whole rows, how many of
    their rows are deleted, the data sequence number that their rows take along, and the data files that position
    delete files name (`DeletedPositions.named`)."""

    keys: pa.Table
    weighed_rows: int
    weighed_bytes: int
    rows_deleted: int
    sequence_number: int
    named: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Header:
    """What there is to know of a blob: its shuffle partition, its rows, their Arrow bytes, field ids of columns in
    which they hold NaN."""

    partition: int
    rows: int
    arrow_bytes: int
    nan: frozenset[int]


@dataclass(frozen=True)
class Division:
    """Where the rows of a group go: the numbers of task assignments by shuffle partition. The rows of a skewed
    partition, which has several, go to each of them in turn."""

    cuts: Cuts
    assignments: tuple[range, ...]


@dataclass(frozen=True)
class ScanKeys:
    """Reads keys; answers for each group of a bin with (number, `KeySample` or a `MergeFailure`).

    Of the rows of a group in one bin each n-th counts, n being its stride.
    """

    bins: Bins
    strides: Mapping[int, int]
    order: RowOrder
    settings: WriteSettings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, KeySample | MergeFailure]]:
        for _, groups in bins_of(batches, self.bins):
            for n, group in groups:
                try:
                    yield n, self._scan(group, self.strides[n])
                except RewriteFailed as error:
                    yield n, MergeFailure(str(error))

    def _scan(self, group: FileGroup, stride: int) -> KeySample:
        rows, kept = 0, list[pa.Table]()
        deleted = deleted_rows(group.inputs, self.settings, group.partition)
        for table in read_inputs(group, pruned(self.settings, self.order.columns), deleted=deleted.positions):
            some = table.take(pa.array(np.arange(-rows % stride, table.num_rows, stride)))
            kept.append(self.order.keys(some))
            rows += table.num_rows
        whole = (table for table in read_inputs(group, self.settings) if table.num_rows)
        weighed = next(whole, pa.table({}))
        number = deleted.number_of(group.inputs)
        keys = pa.concat_tables(kept)
        return KeySample(keys, weighed.num_rows, weighed.nbytes, deleted.rows, number, deleted.named)


@dataclass(frozen=True)
class Scatter:
    """Reads whole rows and yields them as `BLOBS`; each assignment of a group with a damaged input file hears of that,
    too."""

    bins: Bins
    divisions: Mapping[int, Division]
    order: RowOrder
    settings: WriteSettings
    tasks: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, groups in bins_of(batches, self.bins):
            for n, group in groups:
                division = self.divisions[n]
                try:
                    yield from self._scatter(group, division, number)
                except RewriteFailed as error:
                    for assignment in sorted({each for several in division.assignments for each in several}):
                        yield self._row(assignment, MergeFailure(str(error)))

    def _scatter(self, group: FileGroup, division: Division, turn: int) -> Iterator[pa.RecordBatch]:
        limits = self.settings.limits
        deleted = deleted_rows(group.inputs, self.settings, group.partition)
        counted = Conservation(self.settings)
        live = read_inputs(group, self.settings, deleted=deleted.positions, counted=counted)
        for rows in of_size(live, limits.scattered_bytes, limits.sorted_rows):
            nan = nan_columns(self.settings, rows)
            for partition, some in by_part(rows, division.cuts.part_of(self.order.keys(rows))):
                assignments = division.assignments[partition]
                for piece in _pieces(some, limits.blob_bytes):
                    header = Header(partition, piece.num_rows, piece.nbytes, nan and nan_columns(self.settings, piece))
                    yield self._row(assignments[turn % len(assignments)], header, _blob(piece))
            turn += 1
        yield self._row(division.assignments[0][0], counted.sums)

    def _row(self, assignment: int, header: Header | MergeFailure | Counts, rows: pa.Buffer = _NONE) -> pa.RecordBatch:
        numbers = (pa.array([number], pa.int32()) for number in (assignment % self.tasks, assignment))
        values = (_binary(value) for value in (pa.py_buffer(pickle.dumps(header)), rows))
        return pa.record_batch([*numbers, *values], names=[TASK, "assignment", "header", "rows"])


def _binary(value: pa.Buffer) -> pa.Array:
    """One value, not copied."""
    offsets = pa.array([0, value.size], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, value])


def _pieces(rows: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    step = max(1, rows.num_rows * most_bytes // max(1, rows.nbytes))
    return (rows.slice(start, step) for start in range(0, rows.num_rows, step))


def _blob(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_TO_BLOBS) as writer:
        writer.write_table(rows.combine_chunks())
    return sink.getvalue()


def rows_of(blob: bytes | pa.Buffer) -> pa.Table:
    """What a blob was made of."""
    return pa.ipc.open_stream(blob, options=_FROM_BLOBS).read_all()
