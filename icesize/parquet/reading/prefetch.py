"""Random access to the input files of a merge: local files, and remote files that are fetched whole."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO

from icesize.concurrency import NOT_AHEAD, Ahead, within_bytes
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.sources import BytesSource, LocalSource, SectionSource, Source
from icesize.planning.files import FileFact
from icesize.storage.stores import WHOLE_READ_BYTES
from icesize.storage.table_storage import local_folder

LOG = logging.getLogger("icesize")


class Fetched:
    """Sources of the input files of one merge, readable until its context ends.

    Each remote file is fetched once, for copying and for decoding. One request fetches a file of up to
    `Limits.fetched_whole_bytes`. Several requests are in flight, within `Limits.requested_bytes`. Files that do not
    stay in memory go to one temporary file without a name. `threads` of the merge's own work `ahead` on the input.
    """

    def __init__(self, settings: WriteSettings, threads: int = 1) -> None:
        self._storage = settings.storage
        self._limits = settings.limits
        self._stack = ExitStack()
        self._room = _Room(self._stack, self._limits.fetched_in_memory_bytes)
        self._sources: dict[str, Source] = {}
        self.ahead: Ahead = Ahead(threads) if threads > 1 else NOT_AHEAD

    def __enter__(self) -> Fetched:
        return self

    def __exit__(self, *_: object) -> None:
        self.ahead.close()
        self._sources.clear()
        self._stack.close()

    def get(self, path: str) -> Source | None:
        """Return an input file that was fetched."""
        return self._sources.get(path)

    def fetch(self, inputs: Sequence[FileFact]) -> list[Source | Refusal]:
        """Return one source for each input file, or the reason why there is none; no file is fetched twice."""
        paths = [path for file in inputs if (path := self._storage.local_path(file.path)) is not None]
        if len(paths) == len(inputs):
            return [_local(path) for path in paths]
        limits, missing = self._limits, [file for file in inputs if file.path not in self._sources]
        fetched = within_bytes(self._fetch, missing, _size_bytes, limits.requested_bytes, limits.requests)
        kept = iter([self._room.keep(data) if isinstance(data, bytes) else data for data in fetched])
        found = [self._sources.get(file.path) or next(kept) for file in inputs]
        self._sources |= {f.path: s for f, s in zip(inputs, found, strict=True) if not isinstance(s, Refusal)}
        return found

    def fetch_remote(self, inputs: Sequence[FileFact]) -> None:
        """Fetch the inputs that are not local, before they are read more than once."""
        self.fetch([file for file in inputs if self._storage.local_path(file.path) is None])

    def _fetch(self, input_file: FileFact) -> bytes | Source | Refusal:
        try:
            if input_file.size_bytes > self._limits.fetched_whole_bytes:
                pieces = self._storage.pieces(input_file.path, input_file.size_bytes, self._limits.fetched_piece_bytes)
                return self._room.put(pieces, input_file.size_bytes)
            data = self._storage.fetch(input_file.path)
        except OSError:
            return Refusal.SHORT_READ
        except CopyRefused as refused:
            return refused.code
        return data if len(data) == input_file.size_bytes else Refusal.SHORT_READ


def with_bytes(
    settings: WriteSettings, inputs: Sequence[FileFact], known: Fetched | None
) -> Iterator[tuple[FileFact, Source | OSError | None]]:
    """Yield the input files in their order, small remote ones with their bytes, which are requested ahead.

    A file without bytes is to be opened in storage. An error of storage takes the place of the bytes. What is `known`
    is not requested again.
    """
    storage, limits = settings.storage, settings.limits

    def read(file: FileFact) -> Source | OSError | None:
        if (source := known.get(file.path) if known else None) is not None:
            return source
        if file.size_bytes > WHOLE_READ_BYTES:
            return None
        try:
            return BytesSource(storage.fetch(file.path))
        except OSError as error:
            return error

    if all(storage.local_path(file.path) is not None for file in inputs):
        return ((file, None) for file in inputs)
    return zip(inputs, within_bytes(read, inputs, _size_bytes, limits.requested_bytes, limits.requests), strict=True)


class ReadInPlace(Fetched):
    """Sources for work that reads few columns of its inputs: nothing is fetched whole."""

    def fetch_remote(self, inputs: Sequence[FileFact]) -> None:
        """Do nothing: each read requests only the ranges that it needs."""


def _size_bytes(file: FileFact) -> int:
    return file.size_bytes


def _local(path: str) -> Source | Refusal:
    try:
        return LocalSource(path)
    except OSError:
        return Refusal.SHORT_READ


class _Room:
    """Keeps files in memory up to a limit, and appends all others to one file on disk."""

    def __init__(self, stack: ExitStack, memory_bytes: int) -> None:
        self._stack = stack
        self._left_bytes = memory_bytes
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()

    def keep(self, data: bytes) -> Source | Refusal:
        """Keep a file in memory, or on disk if it does not fit."""
        if len(data) <= self._left_bytes:
            self._left_bytes -= len(data)
            return BytesSource(data)
        try:
            return self.put([data], len(data))
        except CopyRefused as refused:
            return refused.code

    def put(self, pieces: Iterable[bytes], size_bytes: int) -> Source | Refusal:
        """Keep a file on disk; raises the errors of `pieces`, and `CopyRefused` if the disk fails."""
        with self._lock:
            with _on_disk():
                file = self._opened()
                start = file.seek(0, os.SEEK_END)
            for piece in pieces:
                with _on_disk():
                    file.write(piece)
            with _on_disk():
                file.flush()
            if file.tell() - start != size_bytes:
                return Refusal.SHORT_READ
            return SectionSource(file.fileno(), start, size_bytes)

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            temporary = tempfile.TemporaryFile(prefix="icesize-", dir=local_folder())  # noqa: SIM115 (the stack)
            self._file = self._stack.enter_context(temporary)
        return self._file


@contextmanager
def _on_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        LOG.warning("Cannot keep fetched files in %s: %s", local_folder(), error)
        raise CopyRefused(Refusal.NO_ROOM, str(error)) from error
