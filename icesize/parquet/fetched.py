"""The victims of a merge where their bytes can be read at any place: local files, and remote ones fetched whole."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from icesize.parquet.refusal import CopyRefused, Refusal
from icesize.parquet.source import BytesSource, LocalSource, Source
from icesize.parquet.spill import local_folder
from icesize.parquet.storage import Storage
from icesize.planning.layout import FileFact

MEMORY_BYTES = 32 * 2**20
"""Remote files of one merge that are kept in memory; further ones wait on the local disk."""


def fetched(storage: Storage, victims: Sequence[FileFact]) -> list[Source | CopyRefused]:
    """One source for each victim, or why there is none.

    Each remote file is fetched once, by one request, while the one before it is put away: at most two are in memory
    besides those that stay there.
    """
    if all(storage.local_path(victim.path) is not None for victim in victims):
        return [_local(storage, victim) for victim in victims]
    room = _Room()
    sources: list[Source | CopyRefused] = []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(_fetch, storage, victims[0])
        for following in (*victims[1:], None):
            found = waiting.result()
            if following is not None:
                waiting = pool.submit(_fetch, storage, following)
            sources.append(found if isinstance(found, CopyRefused) else room.keep(found))
    return sources


def _local(storage: Storage, victim: FileFact) -> Source | CopyRefused:
    path = storage.local_path(victim.path)
    try:
        return LocalSource(path or victim.path)
    except OSError as error:
        return CopyRefused(Refusal.SHORT_READ, str(error))


def _fetch(storage: Storage, victim: FileFact) -> bytes | CopyRefused:
    try:
        data = storage.fetch(victim.path)
    except OSError as error:
        return CopyRefused(Refusal.SHORT_READ, str(error))
    if len(data) != victim.size_bytes:
        return CopyRefused(Refusal.SHORT_READ, f"{len(data)} bytes of {victim.size_bytes}")
    return data


class _Room:
    """Keeps files in memory while there is room, then in temporary files without names, which are mapped."""

    def __init__(self) -> None:
        self._left_bytes = MEMORY_BYTES

    def keep(self, data: bytes) -> Source | CopyRefused:
        if len(data) <= self._left_bytes:
            self._left_bytes -= len(data)
            return BytesSource(data)
        try:
            with tempfile.TemporaryFile(prefix="icesize-", dir=local_folder()) as file:
                file.write(data)
                file.flush()
                # the mapping keeps the file, and both go with the source
                return BytesSource(memoryview(mmap.mmap(file.fileno(), len(data), prot=mmap.PROT_READ)))
        except OSError as error:
            return CopyRefused(Refusal.SHORT_READ, str(error))
