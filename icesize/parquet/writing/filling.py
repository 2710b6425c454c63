"""Assigns rows of a partition to its files, and holds rows until their number is known."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.new_files import NewFiles
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.ordering.sort_order import sorter_of
from icesize.parquet.reading.inputs import Stream
from icesize.parquet.writing.encoding import Encoding, dictionary_columns, encoded_bytes, nan_columns, sample
from icesize.parquet.writing.file_writer import FileEncoder, LateNanError
from icesize.parquet.writing.spill import Spill
from icesize.planning.file_sizes import ROUND_DOWN_RATIO, least_output_bytes, merged_files
from icesize.planning.files import PartitionKey
from icesize.storage.object_store import PART_BYTES

OPEN_SHARE = 1 / 16
"""Part of the buffer that rows of one partition must fill to be written before its other rows are there: with the
default buffer row groups of 8 MiB of Arrow memory, some 60,000 rows."""
TOP_UP_SHARE = 1 / 20
"""Part of the target that a file must lack to be filled up: less would be a tiny row group."""
LEARN_BYTES = 8 * 2**10
"""A footer of a dozen columns takes 2 KiB."""


@dataclass(frozen=True)
class _Rows:
    """Rows of one partition that are written now.

    `waiting_bytes` (Arrow) more will follow. `together` means that all of the rows fit in memory.
    """

    tables: Iterable[pa.Table]
    rows: int
    arrow_bytes: int
    encoding: Encoding
    together: bool
    waiting_bytes: int = 0


class Filling:
    """Fills files of the target size with rows that arrive in any order of partitions.

    At most `Limits.open_files` files are open, one for each partition. Rows wait in a `Spill` in three cases: their
    partition has no open file, they are few (`OPEN_SHARE` of `max_buffer_bytes`), or they would begin a file that may
    stay below `small_file_limit_bytes`. Call `close` in the end.
    """

    def __init__(self, new_files: NewFiles, max_buffer_bytes: int) -> None:
        self._settings = settings = new_files.settings
        self._max_buffer_bytes = max_buffer_bytes
        self._least_bytes = least_output_bytes(settings.small_file_limit_bytes)
        self._sorter = sorter_of(settings)
        self._runs = itertools.count()
        self._files = _OpenFiles(new_files)
        self._spill = Spill[PartitionKey](settings.arrow_schema)

    @property
    def some_wait(self) -> bool:
        """True if rows wait on disk."""
        return bool(self._spill)

    def add(self, partition: PartitionKey, rows: pa.Table, encoding: Encoding) -> None:
        """Write rows or let them wait; more may follow."""
        encoding = self._of_rows(encoding, rows)
        has_file = partition in self._files.open or len(self._files.open) < self._settings.limits.open_files
        if not has_file or rows.nbytes < OPEN_SHARE * self._max_buffer_bytes:
            self._spill.put(partition, [rows], encoding.nan)
            return
        held = self._spill.held(partition)
        arrow_bytes = held.arrow_bytes + rows.nbytes
        more = self._files.density.expected_bytes(partition, arrow_bytes, rows, encoding)
        rest = more - bytes_for_file(self._files.size_bytes(partition), more, self._settings, last=False)
        if held.rows and rest >= self._least_bytes:
            self._pour(partition, self._all(partition, rows, encoding), last=False)
        else:
            alone = _Rows([rows], rows.num_rows, rows.nbytes, encoding, True, held.arrow_bytes)
            self._pour(partition, alone, last=False)

    def complete(self, left: Mapping[PartitionKey, Callable[[], pa.Table]], encoding: Encoding) -> list[NewDataFile]:
        """Write all waiting rows and these last ones, and return all files.

        The last rows of a partition are made when that partition is written.
        """
        if self._spill:
            encoding = Encoding(self._dictionary_of_waiting(), encoding.nan)
        # partitions with open files come first, so that no file beyond the limit is opened
        for partition in dict.fromkeys([*self._files.open, *self._spill, *left]):
            rows_of = left.get(partition)
            self._pour(partition, self._all(partition, rows_of and rows_of(), encoding), last=True)
            self._files.finish(partition)
        self._spill.close()
        return self._files.files()

    def close(self) -> None:
        """Drop the waiting rows, and end the threads that finish files."""
        self._spill.close()
        self._files.close()

    def _of_rows(self, encoding: Encoding, rows: pa.Table) -> Encoding:
        return Encoding(encoding.dictionary, nan_columns(self._settings, rows)) if encoding.nan else encoding

    def _dictionary_of_waiting(self) -> tuple[str, ...]:
        """Return the dictionary columns, judged from the partition with the most waiting rows.

        This is a method of its own, so that the rows are freed afterwards.
        """
        largest = max(self._spill, key=lambda partition: self._spill.held(partition).rows)
        some = Stream(self._spill.read(largest), self._max_buffer_bytes // 2).take(self._spill.held(largest).rows)
        return dictionary_columns(self._settings, some)

    def _all(self, partition: PartitionKey, rows: pa.Table | None, encoding: Encoding) -> _Rows:
        """Return the waiting rows and these."""
        held = self._spill.held(partition)
        tables, count, arrow_bytes, nan = self._spill.take(partition), held.rows, held.arrow_bytes, held.nan
        if rows is not None:
            tables = itertools.chain(tables, [rows])
            count, arrow_bytes = count + rows.num_rows, arrow_bytes + rows.nbytes
            nan |= self._of_rows(encoding, rows).nan
        together = not held.rows or arrow_bytes <= self._max_buffer_bytes
        return _Rows(tables, count, arrow_bytes, Encoding(encoding.dictionary, nan), together)

    def _pour(self, partition: PartitionKey, rows: _Rows, *, last: bool) -> None:
        """Write rows to the open file of the partition and to as many more files as they need.

        The plan is updated after each piece, because only then its encoded size is known.
        """
        pieces, run = self._pieces(rows)
        left = rows.rows
        while left:
            arrow_bytes = rows.arrow_bytes * left // rows.rows
            like = pieces.peek()
            more = self._files.density.expected_bytes(partition, arrow_bytes, like, rows.encoding)
            total = more * (1 + rows.waiting_bytes / max(1, arrow_bytes))
            part = bytes_for_file(self._files.size_bytes(partition), total, self._settings, last=last)
            if part < min(total, TOP_UP_SHARE * self._settings.target_file_size_bytes):
                if not last and total - part < self._least_bytes:
                    self._spill.put(partition, pieces.rest(), rows.encoding.nan)
                    return
                self._files.finish(partition)
                continue
            wanted = min(left, math.ceil(left * part / max(1.0, more)))
            left -= self._append(partition, pieces, run, wanted, rows.encoding)

    def _append(self, partition: PartitionKey, pieces: Stream, run: int | None, wanted: int, encoding: Encoding) -> int:
        """Write the next `wanted` rows, or fewer, and return their number.

        The rows are freed before more are taken.
        """
        rows = pieces.take(wanted)
        if self._sorter is not None and run is None:
            rows, run = self._sorter(rows), next(self._runs)
        self._files.append(partition, rows, encoding, run)
        return int(rows.num_rows)

    def _pieces(self, rows: _Rows) -> tuple[Stream, int | None]:
        """Return the rows as a stream of bounded memory, and the number of its run of sorted rows.

        Rows are sorted here if all are in memory and the table has a sort order. Otherwise the number is None, and each
        piece is a run of its own.
        """
        tables, half = rows.tables, self._max_buffer_bytes // 2
        if self._sorter is None or not rows.together:
            return Stream(tables, half), None
        tables = list(tables)
        ordered = [self._sorter(pa.concat_tables(tables))] if tables else []
        return Stream(ordered, half), next(self._runs)


def bytes_for_file(open_bytes: float, more_bytes: float, settings: WriteSettings, *, last: bool) -> float:
    """Return the part of `more_bytes` that goes into a file that holds `open_bytes`; less than all completes the file.

    With `last`, nothing follows, so files are of equal size, and no small file is cut off (`merged_files`). Otherwise
    the file is filled up to the target.
    """
    target, limit = settings.target_file_size_bytes, settings.small_file_limit_bytes
    total = open_bytes + more_bytes
    files = merged_files(int(total), target, limit)
    if total <= ROUND_DOWN_RATIO * target or (last and files == 1):
        return more_bytes
    part = min(max(0.0, (total / files if last else target) - open_bytes), more_bytes)
    return more_bytes if last and more_bytes - part < least_output_bytes(limit) else part


class _OpenFiles:
    """Appends rows to the open file of their partition, in row groups of the table's size, and finishes files.

    Local files are finished immediately. Remote files, which hold up to `PART_BYTES` each, are finished in threads
    within `Limits.requested_bytes`. A later call raises the error of any file, at the latest `files`. `open` files are
    in the order in which they were opened. `density` learns from the rows. Call `close` in the end.
    """

    def __init__(self, new_files: NewFiles) -> None:
        self._settings = settings = new_files.settings
        self.density = _Density(settings)
        self._new_files = new_files
        sorter = sorter_of(settings)
        self._sort_order_id = None if sorter is None else sorter.order_id
        self._runs: dict[PartitionKey, int | None] = {}
        self.open: dict[PartitionKey, FileEncoder] = {}
        self._uploads = max(1, min(settings.limits.requests, settings.limits.requested_bytes // PART_BYTES))
        self._pool = ThreadPoolExecutor(self._uploads)  # starts no threads while all files are local
        self._waiting: deque[Future[NewDataFile]] = deque()
        self._done: list[NewDataFile] = []

    def size_bytes(self, partition: PartitionKey) -> int:
        """Return the encoded bytes in the open file of a partition, 0 without one."""
        return self.open[partition].size_bytes if partition in self.open else 0

    def append(self, partition: PartitionKey, rows: pa.Table, encoding: Encoding, run: int | None = None) -> None:
        """Write rows to the partition's file, and open it if needed; after late NaN, another file replaces it.

        `run` numbers sequences of rows in the table's sort order: a file with rows of only one sequence is sorted.
        """
        size_bytes = self.density.expected_bytes(partition, rows.nbytes, rows, encoding)
        groups = max(1, math.ceil(size_bytes / self._settings.parquet.row_group_bytes))
        step = math.ceil(rows.num_rows / groups) or 1
        for start in range(0, rows.num_rows, step):
            part = rows.slice(start, step)
            try:
                self._append(partition, part, encoding, rows.num_rows, run)
            except LateNanError:
                # the current file has statistics that the new rows would make wrong, so it ends here
                self.finish(partition)
                self._append(partition, part, encoding, rows.num_rows, run)

    def _append(
        self, partition: PartitionKey, rows: pa.Table, encoding: Encoding, expected_rows: int, run: int | None
    ) -> None:
        if partition not in self.open:
            self.open[partition] = FileEncoder(self._new_files, partition, encoding, expected_rows=expected_rows)
            self._runs[partition] = run
        file = self.open[partition]
        file.append(rows, encoding.nan)
        if self._runs[partition] != run:
            self._runs[partition] = None
        self.density.learn(partition, file.arrow_bytes, file.size_bytes)

    def finish(self, partition: PartitionKey) -> None:
        """Close the partition's file, if it has one, now or soon."""
        encoder = self.open.pop(partition, None)
        if encoder is None:
            return
        encoder.sort_order_id = None if self._runs.pop(partition) is None else self._sort_order_id
        if self._settings.storage.local_path(encoder.path) is not None:
            self._done.append(encoder.finish())
            return
        future = self._pool.submit(encoder.finish)
        self._new_files.close_by(encoder.path, partial(_give_up, encoder, future))
        self._waiting.append(future)
        if len(self._waiting) > self._uploads:
            self._done.append(self._waiting.popleft().result())

    def files(self) -> list[NewDataFile]:
        """Return all finished files, in the order in which they were closed."""
        while self._waiting:
            self._done.append(self._waiting.popleft().result())
        self.close()
        return self._done

    def close(self) -> None:
        """End the threads, after the files in progress."""
        self._pool.shutdown()


def _give_up(encoder: FileEncoder, future: Future[NewDataFile]) -> None:
    """Wait for a file in progress, so that it does not appear later."""
    future.exception()
    encoder.close()


class _Density:
    """Encoded bytes per Arrow byte of the rows of one task.

    The first value is from `settings.bytes_per_row`, or from a sample encoded in memory. Each row group written
    corrects it. The value of the same partition counts if it has one, otherwise the last value of any partition.
    """

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings
        self._ratio: float | None = None
        self._ratios: dict[PartitionKey, float] = {}

    def expected_bytes(self, partition: PartitionKey, arrow_bytes: int, like: pa.Table, encoding: Encoding) -> float:
        """Return the expected encoded size of rows of `arrow_bytes` that are `like` these.

        Rows that fit a file even without compression are not measured.
        """
        if partition in self._ratios:
            return self._ratios[partition] * arrow_bytes
        if self._ratio is None:
            if arrow_bytes <= self._settings.target_file_size_bytes:
                return arrow_bytes
            if self._settings.bytes_per_row:
                self._ratio = self._settings.bytes_per_row * int(like.num_rows) / max(1, int(like.nbytes))
            else:
                some = sample(like)
                self._ratio = encoded_bytes(some, self._settings, encoding.dictionary) / max(1, int(some.nbytes))
        return self._ratio * arrow_bytes

    def learn(self, partition: PartitionKey, arrow_bytes: int, encoded_bytes: int) -> None:
        """Record that rows of `arrow_bytes` took `encoded_bytes` in one file.

        Tiny files do not count, because they are mostly footer.
        """
        if encoded_bytes >= LEARN_BYTES:
            self._ratio = self._ratios[partition] = encoded_bytes / max(1, arrow_bytes)
