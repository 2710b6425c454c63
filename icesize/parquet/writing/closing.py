"""Closing many files: where that takes round trips, several at a time."""

from __future__ import annotations

import contextlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.files.storage import Storage
from icesize.parquet.writing.file_writer import FileEncoder, remove_files

REMOTE_THREADS = 8
"""An object store needs 2-4 requests to complete an object; one task may write hundreds of small files."""


class Finisher:
    """Finishes encoders and keeps what was written until the task has succeeded.

    Local files are finished at once; remote ones in `REMOTE_THREADS` threads, twice as many at most waiting. An error
    of any file is raised by a later call, at the latest by `files`; after it call `discard`.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[FileEncoder, Future[WrittenFile]]] = deque()
        self._failed: list[FileEncoder] = []
        self._done: list[WrittenFile] = []

    def finish(self, encoder: FileEncoder) -> None:
        """Finish a file now, or soon."""
        if self._storage.local_path(encoder.path) is not None:
            try:
                self._done.append(encoder.finish())
            except BaseException:
                self._failed.append(encoder)
                raise
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(REMOTE_THREADS)
        self._waiting.append((encoder, self._pool.submit(encoder.finish)))
        if len(self._waiting) > 2 * REMOTE_THREADS:
            self._take()

    def files(self) -> list[WrittenFile]:
        """All files, in the order in which they were handed over."""
        while self._waiting:
            self._take()
        self._stop()
        return self._done

    def discard(self) -> None:
        """Delete all files, best effort; those under way are waited for, so that none appears later."""
        while self._waiting:
            with contextlib.suppress(Exception):
                self._take()
        self._stop()
        for encoder in self._failed:
            encoder.discard()
        remove_files(self._storage, self._done)
        self._failed, self._done = [], []

    def _take(self) -> None:
        encoder, future = self._waiting.popleft()
        try:
            self._done.append(future.result())
        except BaseException:
            self._failed.append(encoder)
            raise

    def _stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
