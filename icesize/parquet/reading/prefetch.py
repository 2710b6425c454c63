"""The input files of a merge where their bytes can be read at any place: local files, and remote ones fetched whole."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import IO

from icesize.parquet.files.storage import Storage, local_folder
from icesize.parquet.format.refusals import UNREADABLE, CopyRefused, Refusal
from icesize.parquet.format.sources import BytesSource, LocalSource, SectionSource, Source
from icesize.planning.files import FileFact

MEMORY_BYTES = 32 * 2**20
"""Remote files of one merge that are kept in memory; further ones wait on the local disk."""
WHOLE_BYTES = 64 * 2**20
"""Larger files are not held in memory, but go to the disk piece by piece."""
PIECE_BYTES = 16 * 2**20
"""What one request asks for then; object stores recommend 8-16 MiB."""


class Fetched:
    """What one merge reads its input files from; the sources can be read until its context ends.

    Each remote file is fetched once, whether it is copied or decoded then, by one request unless it is larger than
    `WHOLE_BYTES`, while the one before it is put away: at most two are in memory besides those that stay there. What
    does not stay there waits in one temporary file without a name.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._stack = ExitStack()
        self._room = _Room(self._stack)
        self._sources: dict[str, Source] = {}

    def __enter__(self) -> Fetched:
        return self

    def __exit__(self, *_: object) -> None:
        self._sources.clear()
        self._stack.close()

    def get(self, path: str) -> Source | None:
        """An input file that was fetched."""
        return self._sources.get(path)

    def fetch(self, inputs: Sequence[FileFact]) -> list[Source | CopyRefused]:
        """One source for each input file, or why there is none."""
        if all(self._storage.local_path(input_file.path) is not None for input_file in inputs):
            return [_local(self._storage, input_file) for input_file in inputs]
        found: list[Source | CopyRefused] = []
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(self._fetch, inputs[0])
            for following in (*inputs[1:], None):
                data = waiting.result()
                if following is not None:
                    waiting = pool.submit(self._fetch, following)
                found.append(self._room.keep(data) if isinstance(data, bytes) else data)
        kept = zip(inputs, found, strict=True)
        self._sources |= {input_file.path: source for input_file, source in kept if not isinstance(source, CopyRefused)}
        return found

    def _fetch(self, input_file: FileFact) -> bytes | Source | CopyRefused:
        try:
            if input_file.size_bytes > WHOLE_BYTES:
                return self._room.put(self._storage.pieces(input_file.path, PIECE_BYTES), input_file.size_bytes)
            data = self._storage.fetch(input_file.path)
        except UNREADABLE as error:
            return CopyRefused(Refusal.SHORT_READ, str(error))
        return data if len(data) == input_file.size_bytes else _other_length(len(data), input_file.size_bytes)


def _local(storage: Storage, input_file: FileFact) -> Source | CopyRefused:
    path = storage.local_path(input_file.path)
    try:
        return LocalSource(path or input_file.path)
    except OSError as error:
        return CopyRefused(Refusal.SHORT_READ, str(error))


def _other_length(found_bytes: int, size_bytes: int) -> CopyRefused:
    return CopyRefused(Refusal.SHORT_READ, f"{found_bytes} bytes of {size_bytes}")


class _Room:
    """Keeps files in memory while there is room, then one behind the other on the disk."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._left_bytes = MEMORY_BYTES
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()

    def keep(self, data: bytes) -> Source | CopyRefused:
        """In memory or on the disk."""
        if len(data) <= self._left_bytes:
            self._left_bytes -= len(data)
            return BytesSource(data)
        try:
            return self.put([data], len(data))
        except OSError as error:
            return CopyRefused(Refusal.SHORT_READ, str(error))

    def put(self, pieces: Iterable[bytes], size_bytes: int) -> Source | CopyRefused:
        """On the disk; raises what `pieces` raises."""
        with self._lock:
            if self._file is None:
                temporary = tempfile.TemporaryFile(prefix="icesize-", dir=local_folder())  # noqa: SIM115 (the stack)
                self._file = self._stack.enter_context(temporary)
            start = self._file.seek(0, os.SEEK_END)
            for piece in pieces:
                self._file.write(piece)
            self._file.flush()
            found_bytes = self._file.tell() - start
            if found_bytes != size_bytes:
                return _other_length(found_bytes, size_bytes)
            return SectionSource(self._file.fileno(), start, size_bytes)
