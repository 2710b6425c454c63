"""Tasks that take the rows of large groups apart: `Look` reads keys, `Scatter` sends whole rows where they belong.

The order of a group is cut into *parts*, so small that one is sorted in memory. Consecutive parts are a *place*: whole
files, made by one task (`gather`). Rows go there as blobs, Arrow IPC streams of the rows of one part:
Spark moves few large values and never sees a column.

Where a row goes is a function of the row, its bin and its place therein: a stage that is computed again sends it where
it went before.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.files.merge_result import MergeFailure
from icesize.parquet.files.settings import WriteSettings, pruned
from icesize.parquet.ordering.cluster_order import Cuts, RowOrder
from icesize.parquet.reading.inputs import read_inputs
from icesize.parquet.writing.encoding import nan_columns
from icesize.planning.plan import MergeGroup
from icesize.spark.engine.worker import Bins, as_answer, numbers_in, prepare
from icesize.spark.routing.repartition import TASK

BLOBS = f"{TASK} int, place int, head binary, rows binary"
"""What `Scatter` yields: rows of one part for a task, and a pickled `Head`, made by our own workers."""

SCATTERED_BYTES = 64 * 2**20
"""Arrow bytes of the rows that are divided at once: with 300 parts blobs still have 0.2 MB."""

BLOB_BYTES = 16 * 2**20
"""Most Arrow bytes of one blob."""

_TO_BLOBS = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1), use_threads=False)
"""Of 60 MB (two longs, a double, three texts) zstd makes 20 MB at 540 MB/s, LZ4 35 MB at 920. Clustering 560 MB
takes 21.7 s of all cores together, with LZ4 22.5, uncompressed 23.9."""

_FROM_BLOBS = pa.ipc.IpcReadOptions(use_threads=False)


@dataclass(frozen=True)
class Seen:
    """Of some input files of a group: keys of some of their rows, and Arrow bytes of some whole rows."""

    keys: pa.Table
    weighed_rows: int
    weighed_bytes: int


@dataclass(frozen=True, slots=True)
class Head:
    """What there is to know of a blob: its part, its rows, their Arrow bytes, field ids of columns in which they hold
    NaN; or why there are no rows.
    """

    part: int
    rows: int = 0
    arrow_bytes: int = 0
    nan: frozenset[int] = frozenset()
    failure: MergeFailure | None = None


@dataclass(frozen=True)
class Division:
    """Where the rows of a group go: `places` by part. Those of a part with several go to each of them in turn."""

    cuts: Cuts
    places: tuple[range, ...]


@dataclass(frozen=True)
class Look:
    """Reads keys; answers for each group of a bin with (number, `Seen` or a `MergeFailure`).

    Of the rows of a group in one bin each n-th counts, n being its stride.
    """

    bins: Bins
    strides: Mapping[int, int]
    order: RowOrder
    settings: WriteSettings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare()
        for number in numbers_in(batches):
            for group, task in self.bins[number]:
                try:
                    yield as_answer((group, self._look(group, task)))
                except RewriteFailed as error:
                    yield as_answer((group, MergeFailure(str(error))))

    def _look(self, group: int, task: MergeGroup) -> Seen:
        rows, stride, kept = 0, self.strides[group], list[pa.Table]()
        for table in read_inputs(task, pruned(self.settings, self.order.columns)):
            some = table.take(pa.array(np.arange(-rows % stride, table.num_rows, stride)))
            kept.append(self.order.keys(some))
            rows += table.num_rows
        return Seen(pa.concat_tables(kept), *self._weighed(task))

    def _weighed(self, task: MergeGroup) -> tuple[int, int]:
        """The first whole rows that can be had, and their bytes."""
        tables = read_inputs(task, self.settings)
        return next(((table.num_rows, table.nbytes) for table in tables if table.num_rows), (0, 0))


@dataclass(frozen=True)
class Scatter:
    """Reads whole rows and yields them as `BLOBS`; each place of a group with a damaged input file hears of that,
    too."""

    bins: Bins
    divisions: Mapping[int, Division]
    order: RowOrder
    settings: WriteSettings
    tasks: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare()
        for number in numbers_in(batches):
            for group, task in self.bins[number]:
                try:
                    yield from self._scatter(task, self.divisions[group], number)
                except RewriteFailed as error:
                    places = {place for places in self.divisions[group].places for place in places}
                    head = Head(0, failure=MergeFailure(str(error)))
                    yield from (self._row(place, head, pa.py_buffer(b"")) for place in sorted(places))

    def _scatter(self, task: MergeGroup, division: Division, turn: int) -> Iterator[pa.RecordBatch]:
        for rows in _of_size(read_inputs(task, self.settings), SCATTERED_BYTES):
            parts = division.cuts.part_of(self.order.keys(rows)).astype(np.int32)
            by_part = np.argsort(parts, kind="stable")
            starts = np.searchsorted(parts[by_part], np.arange(len(division.places) + 1))
            nan = nan_columns(self.settings, rows)
            rows = rows.take(pa.array(by_part))
            for part in np.flatnonzero(np.diff(starts)).tolist():
                places = division.places[part]
                for piece in _pieces(rows.slice(starts[part], starts[part + 1] - starts[part])):
                    head = Head(part, piece.num_rows, piece.nbytes, nan and nan_columns(self.settings, piece))
                    yield self._row(places[turn % len(places)], head, _blob(piece))
            turn += 1

    def _row(self, place: int, head: Head, rows: pa.Buffer) -> pa.RecordBatch:
        numbers = (pa.array([number], pa.int32()) for number in (place % self.tasks, place))
        values = (_binary(value) for value in (pa.py_buffer(pickle.dumps(head)), rows))
        return pa.record_batch([*numbers, *values], names=[TASK, "place", "head", "rows"])


def _binary(value: pa.Buffer) -> pa.Array:
    """One value, not copied."""
    offsets = pa.array([0, value.size], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, value])


def _of_size(tables: Iterable[pa.Table], size_bytes: int) -> Iterator[pa.Table]:
    """The rows of all tables, so many Arrow bytes at once and one table more, at most."""
    waiting: list[pa.Table] = []
    size = 0
    for table in tables:
        waiting.append(table)
        size += table.nbytes
        if size >= size_bytes:
            yield pa.concat_tables(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    step = max(1, rows.num_rows * BLOB_BYTES // max(1, rows.nbytes))
    return (rows.slice(start, step) for start in range(0, rows.num_rows, step))


def _blob(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_TO_BLOBS) as writer:
        writer.write_table(rows.combine_chunks())
    return sink.getvalue()


def rows_of(blob: bytes | pa.Buffer) -> pa.Table:
    """What a blob was made of."""
    return pa.ipc.open_stream(blob, options=_FROM_BLOBS).read_all()
