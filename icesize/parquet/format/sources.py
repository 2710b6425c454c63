"""Sources of the bytes of older files: a file on this machine, or bytes in memory."""

from __future__ import annotations

import io
import os
from typing import Any, Protocol

from icesize.parquet.format.refusals import CopyRefused, DamagedFile, Refusal

JOIN_GAP_BYTES = 64 * 2**10
"""Ranges that lie nearer to each other than this are read at once."""
MOST_JOINED_BYTES = 64 * 2**20


class Readable(Protocol):
    """A whole file of `size_bytes`, readable at any position; raises `CopyRefused` if the file ends too early."""

    @property
    def size_bytes(self) -> int: ...

    def read(self, at: int, size_bytes: int) -> bytes: ...


class Source(Readable, Protocol):
    """A file that can be copied and decoded."""

    def read_into(self, at: int, target: memoryview) -> None: ...

    def stream(self) -> Any:
        """Return a stream for pyarrow; the caller closes it."""


class BytesSource:
    """A file in memory."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data).cast("B")  # a buffer of pyarrow holds signed bytes
        self.size_bytes: int = len(self._data)

    def read(self, at: int, size_bytes: int) -> bytes:
        _check_range(at, size_bytes, self)
        return bytes(self._data[at : at + size_bytes])

    def read_into(self, at: int, target: memoryview) -> None:
        _check_range(at, len(target), self)
        target[:] = self._data[at : at + len(target)]

    def stream(self) -> Any:
        import pyarrow as pa

        return pa.BufferReader(self._data)


class StreamSource:
    """A stream as a file that is readable at any position."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        stream.seek(0, os.SEEK_END)
        self.size_bytes = int(stream.tell())

    def read(self, at: int, size_bytes: int) -> bytes:
        self._stream.seek(at)
        data = bytes(self._stream.read(size_bytes))
        if len(data) != size_bytes:
            raise DamagedFile(f"bytes {at}-{at + size_bytes} of a file of {self.size_bytes}")
        return data


class LocalSource:
    """A file on a local disk, opened for each read: a merge may have more files than a process may open."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.size_bytes: int = os.path.getsize(path)

    def read(self, at: int, size_bytes: int) -> bytes:
        with open(self._path, "rb", buffering=0) as file:
            return SectionSource(file.fileno(), 0, self.size_bytes).read(at, size_bytes)

    def read_into(self, at: int, target: memoryview) -> None:
        with open(self._path, "rb", buffering=0) as file:
            SectionSource(file.fileno(), 0, self.size_bytes).read_into(at, target)

    def stream(self) -> Any:
        import pyarrow as pa

        return pa.OSFile(self._path, "rb")


class SectionSource:
    """A file that lies in another file, from `start` on; the caller keeps the outer file open."""

    def __init__(self, descriptor: int, start: int, size_bytes: int) -> None:
        self._descriptor = descriptor
        self._start = start
        self.size_bytes = size_bytes

    def read(self, at: int, size_bytes: int) -> bytes:
        _check_range(at, size_bytes, self)
        data = os.pread(self._descriptor, size_bytes, self._start + at)
        if len(data) == size_bytes:
            return data
        target = bytearray(size_bytes)  # the system may return fewer bytes than the file has
        self.read_into(at, memoryview(target))
        return bytes(target)

    def read_into(self, at: int, target: memoryview) -> None:
        _check_range(at, len(target), self)
        got = 0
        while got < len(target):
            count = os.preadv(self._descriptor, [target[got:]], self._start + at + got)
            if not count:
                raise CopyRefused(Refusal.SHORT_READ, "a file became shorter")
            got += count

    def stream(self) -> Any:
        import pyarrow as pa

        return pa.PythonFile(_Section(self), "r")


class _Section(io.RawIOBase):
    """A source as a stream."""

    def __init__(self, source: SectionSource) -> None:
        super().__init__()
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        from_where = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size_bytes}
        self._position = max(0, from_where[whence] + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._source.size_bytes - self._position))
        self._source.read_into(self._position, memoryview(buffer)[:count])
        self._position += count
        return count


def _check_range(at: int, size_bytes: int, source: Source) -> None:
    """Check a range before it is read, because a damaged file may claim more bytes than memory has."""
    if min(at, size_bytes) < 0 or at + size_bytes > source.size_bytes:
        raise CopyRefused(Refusal.SHORT_READ, f"bytes {at}-{at + size_bytes} of a file of {source.size_bytes}")


def read_ranges(
    source: Readable, ranges: set[tuple[int, int]], gap_bytes: int = JOIN_GAP_BYTES, most_bytes: int = MOST_JOINED_BYTES
) -> dict[tuple[int, int], bytes]:
    """Return the bytes of each (offset, length); near ranges are read together, at most `most_bytes` at a time."""
    joined: list[list[tuple[int, int]]] = []
    low = high = 0
    for at, size_bytes in sorted(ranges):
        if not joined or at > high + gap_bytes or at + size_bytes - low > most_bytes:
            joined.append([])
            low = high = at
        joined[-1].append((at, size_bytes))
        high = max(high, at + size_bytes)
    found: dict[tuple[int, int], bytes] = {}
    for near in joined:
        low = near[0][0]
        data = source.read(low, max(map(sum, near)) - low)
        found |= {(at, size_bytes): data[at - low : at - low + size_bytes] for at, size_bytes in near}
    return found
