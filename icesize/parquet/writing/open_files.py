"""The files that one writer has open, at most one for each partition, and how they are closed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import NewFiles
from icesize.parquet.ordering.sort_order import sorter_of
from icesize.parquet.writing.encoding import Encoding
from icesize.parquet.writing.file_writer import FileEncoder, LateNanError
from icesize.parquet.writing.size_estimates import Density
from icesize.planning.files import PartitionKey

REMOTE_THREADS = 8
"""An object store needs 2-4 requests to complete an object; one task may write hundreds of small files."""


@dataclass
class _Open:
    encoder: FileEncoder
    run: int | None
    arrow_bytes: int = 0


class OpenFiles:
    """Appends rows to the open file of their partition, in row groups of the table's size, and finishes files.

    Local files are finished at once; remote ones in `REMOTE_THREADS` threads, twice as many at most waiting. An error
    of any file is raised by a later call, at the latest by `files`. `density` learns from the rows. Call `close` in
    the end.
    """

    def __init__(self, settings: WriteSettings, names: FileNames, new_files: NewFiles) -> None:
        self.density = Density(settings)
        self._settings = settings
        self._names = names
        self._new_files = new_files
        sorter = sorter_of(settings)
        self._sort_order_id = None if sorter is None else sorter.order_id
        self._open: dict[PartitionKey, _Open] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[WrittenFile]] = deque()
        self._done: list[WrittenFile] = []

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, partition: PartitionKey) -> bool:
        return partition in self._open

    def __iter__(self) -> Iterator[PartitionKey]:
        """Partitions with an open file, in the order in which they were opened."""
        return iter(list(self._open))

    def size_bytes(self, partition: PartitionKey) -> int:
        """Encoded bytes in the open file of a partition, 0 without one."""
        return self._open[partition].encoder.size_bytes if partition in self._open else 0

    def append(self, partition: PartitionKey, rows: pa.Table, encoding: Encoding, run: int | None = None) -> None:
        """Write rows to the partition's file, which is opened if need be; another one takes its place for NaN that
        comes late.

        `run` numbers sequences of rows in the table's sort order: a file whose rows are of one of them is sorted.
        """
        size_bytes = self.density.expected_bytes(partition, rows.nbytes, rows, encoding)
        groups = max(1, math.ceil(size_bytes / self._settings.parquet.row_group_bytes))
        step = math.ceil(rows.num_rows / groups) or 1
        for start in range(0, rows.num_rows, step):
            part = rows.slice(start, step)
            try:
                self._append(partition, part, encoding, rows.num_rows, run)
            except LateNanError:
                # the file at hand began with statistics that would now be wrong: its rows end here
                self.finish(partition)
                self._append(partition, part, encoding, rows.num_rows, run)

    def _append(
        self, partition: PartitionKey, rows: pa.Table, encoding: Encoding, expected_rows: int, run: int | None
    ) -> None:
        if partition not in self._open:
            encoder = FileEncoder(
                self._settings, self._names, partition, encoding, expected_rows=expected_rows, new_files=self._new_files
            )
            self._open[partition] = _Open(encoder, run)
        file = self._open[partition]
        file.encoder.append(rows, encoding.nan)
        file.run = run if file.run == run else None
        file.arrow_bytes += rows.nbytes
        self.density.learn(partition, file.arrow_bytes, file.encoder.size_bytes)

    def finish(self, partition: PartitionKey) -> None:
        """Close the partition's file, if it has one, now or soon."""
        file = self._open.pop(partition, None)
        if file is None:
            return
        encoder = file.encoder
        encoder.sort_order_id = None if file.run is None else self._sort_order_id
        if self._settings.storage.local_path(encoder.path) is not None:
            self._done.append(encoder.finish())
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(REMOTE_THREADS)
        future = self._pool.submit(encoder.finish)
        self._new_files.close_by(encoder.path, partial(_give_up, encoder, future))
        self._waiting.append(future)
        if len(self._waiting) > 2 * REMOTE_THREADS:
            self._done.append(self._waiting.popleft().result())

    def files(self) -> list[WrittenFile]:
        """All finished files, in the order in which they were closed."""
        while self._waiting:
            self._done.append(self._waiting.popleft().result())
        self.close()
        return self._done

    def close(self) -> None:
        """End the threads, after the files under way."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _give_up(encoder: FileEncoder, future: Future[WrittenFile]) -> None:
    """Wait for a file under way, so that it does not appear later."""
    future.exception()
    encoder.close()
