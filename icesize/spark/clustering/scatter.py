"""Tasks that divide the rows of large groups: `ScanKeys` reads keys, `Scatter` sends rows to assignments.

The order of a group is cut into *shuffle partitions*, so small that each is sorted in memory. Consecutive partitions
form a *task assignment*: whole files that one task writes (`gather`). Rows go there as blobs, Arrow IPC streams of the
rows of one shuffle partition: Spark moves a few large values and never sees a column.

The destination of a row is a function of the row, its bin and its position in the bin. A stage that is computed again
therefore sends each row to the same place.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.deletes.deleted_rows import DeletedPositions, deleted_rows
from icesize.parquet.files.data_file import MergeFailure
from icesize.parquet.files.new_files import rewrite_failed
from icesize.parquet.files.settings import WriteSettings, pruned
from icesize.parquet.ordering.cluster_order import Cuts, RowOrder, by_part
from icesize.parquet.reading.conservation import Conservation, Counts
from icesize.parquet.reading.inputs import of_size, read_inputs
from icesize.parquet.rewriting.cluster import numbered
from icesize.parquet.writing.encoding import nan_columns
from icesize.planning.plan import FileGroup
from icesize.spark.engine.worker import Bins, bins_of, results_of
from icesize.spark.routing.task_column import TASK

BLOBS = f"{TASK} int, assignment int, header binary, rows binary"
"""The columns that `Scatter` yields: the task, the assignment, a pickled `BlobHeader` from icesize's workers, and rows.

The rows belong to one shuffle partition. A MergeFailure, or the counts of the rows that a task read of the group,
replaces the header of a row that carries none.
"""

_TO_BLOBS = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1), use_threads=False)
"""Compression of blobs: zstd, because clustering takes the least core time with it.

For 560 MB, clustering takes 21.7 s of all cores together with zstd, 22.5 s with LZ4, and 23.9 s without compression.
From 60 MB (two longs, a double, three strings), zstd makes 20 MB at 540 MB/s, and LZ4 makes 35 MB at 920 MB/s.
"""

_NONE = pa.py_buffer(b"")
_FROM_BLOBS = pa.ipc.IpcReadOptions(use_threads=False)


@dataclass(frozen=True)
class KeySample:
    """Keys and counts from some input files of a group.

    It has the keys of some live rows, the Arrow bytes of some whole rows, and the deleted rows. It also has the data
    sequence number for the new files.
    """

    keys: pa.Table
    weighed_rows: int
    weighed_bytes: int
    deleted: DeletedPositions
    sequence_number: int


@dataclass(frozen=True, slots=True)
class BlobHeader:
    """Facts of a blob: its shuffle partition, and the field ids of columns with NaN."""

    partition: int
    nan: frozenset[int]


@dataclass(frozen=True)
class Division:
    """Destinations of the rows of a group: the numbers of task assignments, by shuffle partition.

    A skewed partition has several assignments, which receive its rows in turn. `numbers` maps the path of each input
    file to the number of its first live row, among those of the group.
    """

    cuts: Cuts
    assignments: tuple[range, ...]
    numbers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ScanKeys:
    """Reads keys, from bin numbers to pairs of a group's number and a `KeySample`, or a `MergeFailure`.

    The sample has each n-th row of the group's rows in one bin; n is the stride of the group.
    """

    bins: Bins
    strides: Mapping[int, int]
    order: RowOrder
    settings: WriteSettings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, KeySample | MergeFailure]]:
        return results_of(batches, self.bins, "read the keys of", self._scan)

    def _scan(self, number: int, group: FileGroup) -> KeySample:
        rows, kept, stride = 0, list[pa.Table](), self.strides[number]
        deleted = deleted_rows(group.inputs, self.settings, group.partition)
        for table in read_inputs(group, pruned(self.settings, self.order.columns), deleted=deleted.positions):
            some = table.take(pa.array(np.arange(-rows % stride, table.num_rows, stride)))
            kept.append(self.order.keys(some))
            rows += table.num_rows
        whole = (table for table in read_inputs(group, self.settings) if table.num_rows)
        weighed = next(whole, pa.table({}))
        sequence_number = deleted.merged_sequence_number(group.inputs)
        keys = pa.concat_tables(kept)
        return KeySample(keys, weighed.num_rows, weighed.nbytes, deleted, sequence_number)


@dataclass(frozen=True)
class Scatter:
    """Reads whole rows and yields them as `BLOBS`.

    If an input file is damaged, each assignment of its group receives the failure.
    """

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
                    with rewrite_failed(f"read {len(group.inputs)} files"):
                        yield from self._scatter(group, division, number)
                except RewriteFailed as error:
                    for assignment in sorted({each for several in division.assignments for each in several}):
                        yield self._row(assignment, MergeFailure.of(error, in_worker=True))

    def _scatter(self, group: FileGroup, division: Division, turn: int) -> Iterator[pa.RecordBatch]:
        limits = self.settings.limits
        deleted = deleted_rows(group.inputs, self.settings, group.partition)
        counted = Conservation(self.settings)
        live = read_inputs(group, self.settings, deleted=deleted.positions, counted=counted)
        firsts = ((division.numbers[file.path], deleted.live_rows(file)) for file in group.inputs)
        numbers = np.concatenate([np.arange(first, first + rows).astype(np.uint32) for first, rows in firsts])
        for rows in of_size(numbered(live, numbers), limits.scattered_bytes, limits.sorted_rows):
            nan = nan_columns(self.settings, rows)
            for partition, some in by_part(rows, division.cuts.part_of(self.order.keys(rows))):
                assignments = division.assignments[partition]
                for piece in _pieces(some, limits.blob_bytes):
                    header = BlobHeader(partition, nan and nan_columns(self.settings, piece))
                    yield self._row(assignments[turn % len(assignments)], header, _blob(piece))
            turn += 1
        yield self._row(division.assignments[0][0], counted.sums)

    def _row(
        self, assignment: int, header: BlobHeader | MergeFailure | Counts, rows: pa.Buffer = _NONE
    ) -> pa.RecordBatch:
        numbers = (pa.array([number], pa.int32()) for number in (assignment % self.tasks, assignment))
        values = (_binary(value) for value in (pa.py_buffer(pickle.dumps(header)), rows))
        return pa.record_batch([*numbers, *values], names=[TASK, "assignment", "header", "rows"])


def _binary(value: pa.Buffer) -> pa.Array:
    """Return an array of one value, without a copy."""
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
    """Return the rows of a blob."""
    return pa.ipc.open_stream(blob, options=_FROM_BLOBS).read_all()
