"""Closing many files: where that takes round trips, several at a time."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.files.storage import Storage
from icesize.parquet.files.uncommitted import NewFiles
from icesize.parquet.writing.file_writer import FileEncoder

REMOTE_THREADS = 8
"""An object store needs 2-4 requests to complete an object; one task may write hundreds of small files."""


class Finisher:
    """Finishes encoders and keeps what was written until the task has succeeded.

    Local files are finished at once; remote ones in `REMOTE_THREADS` threads, twice as many at most waiting. An error
    of any file is raised by a later call, at the latest by `files`.
    """

    def __init__(self, storage: Storage, new_files: NewFiles) -> None:
        self._storage = storage
        self._new_files = new_files
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[WrittenFile]] = deque()
        self._done: list[WrittenFile] = []

    def finish(self, encoder: FileEncoder) -> None:
        """Finish a file now, or soon."""
        if self._storage.local_path(encoder.path) is not None:
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
        """All files, in the order in which they were handed over."""
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
