"""Arrays computed from files of tables, as files of a local directory that are mapped into memory.

A file has numpy's arrays as they are, then a footer in JSON, and a checksum. Nothing in it is executed. It belongs to
one identity, which it records: a file that is missing, damaged, cut off or of another identity is not used. Losing any
of them costs time, never correctness.

Files are mapped for each use only. So a process needs no file handles for a million of them, and what is mapped is
memory that the system takes back when it needs it. Mapping a file takes 0.05 ms (measured).
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import shutil
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from icesize.private_folder import PART, PrivateFolder, remove_file

LOG = logging.getLogger("icesize")

Array = NDArray[Any]

_SUFFIX = ".arrays"
_MARK = b"icesize arrays\n\x01"
"""Start of each file, with the version of the format."""
_ALIGNED_BYTES = 8
_DIGEST_BYTES = 16
_LENGTH_BYTES = 8
_FOOTER_BYTES = 400
"""Bytes of a footer, without the identity, for a few parts of arrays."""
_FREE_SHARE = 4
"""A quarter of the free disk is used by default, and never more by one file.

Most of it is left to Spark, which spills and shuffles, and may have filled the disk since the bound was computed.
"""
_STEPS = 16
"""A full folder makes room for a sixteenth of its bound, or for a larger file."""
Identity = Sequence[int | str | Sequence[int | str] | None]
"""The sources of the arrays and the way they were computed; the path of the file comes first."""
_Listed = tuple[np.dtype[Any], int, int]
"""Type, length and start of an array."""
_Version = tuple[int, int, int]
"""Changes with the content of a file."""


class ArrayFolder:
    """Arrays below a directory that only this user may open; `what` they are is said in a warning.

    Threads and processes may share the directory. Errors of the disk are logged, never raised. If the bound (None: a
    quarter of the free disk) is reached, the least recently used files go. Files that were used since `begin` stay: of
    more arrays than the bound, each batch would else lose all of them for the next.
    """

    def __init__(self, path: Path, what: str, most_bytes: int | None) -> None:
        self._folder = PrivateFolder(path, what)
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._used, self._begun = set[str](), set[str]()
        self._known: dict[str, tuple[_Version, list[_Listed]]] = {}
        self._is_full = False
        self._room_bytes = self._begun_bytes = 0

    def begin(self) -> None:
        """Let files go that were used before this call."""
        with self._lock:
            # `list`, because other threads read files
            self._known = {name: known for name, known in list(self._known.items()) if name in self._used}
            self._used, self._is_full = set(), False

    def read(self, identity: Identity) -> list[Array] | None:
        """Return the arrays of an identity, mapped; None if they are not there. What is damaged is removed."""
        name = _name(identity)
        if not self._folder.is_usable():
            return None
        place = self._folder.path / name
        self._used.add(name)
        try:
            with open(place, "rb") as file:
                return self._mapped(name, identity, file)
        except OSError:
            return None
        except Exception as damage:  # of any kind: the bytes may come from anywhere
            LOG.debug("%s is damaged (%s)", place, damage)
            remove_file(place)
            return None

    def write(self, identity: Identity, expected_bytes: int, arrays: Iterable[Array]) -> bool:
        """Keep arrays, if there is room; return whether all of them were taken and kept.

        Errors of `arrays` are raised.
        """
        name = _name(identity)
        expected_bytes += _FOOTER_BYTES + len(json.dumps(identity))
        self._used.add(name)
        if not (self._folder.is_usable() and self._make_room(expected_bytes)):
            return False
        self._begun.add(name)
        try:
            return self._folder.write(name, lambda out: _encode(out, identity, arrays))
        finally:
            with self._lock:
                self._begun.discard(name)
                self._begun_bytes -= expected_bytes

    def _make_room(self, size: int) -> bool:
        """Count bytes that will be written, and remove files that were used before; return False without room.

        The directory is listed when the room of the last time is used up, at most once more in a full batch.
        """
        with self._lock, suppress(OSError):
            if size > self._room_bytes and not self._is_full:
                self._evict(size)
            if size <= self._room_bytes:
                self._room_bytes -= size
                self._begun_bytes += size
                return True
        return False

    def _evict(self, size: int) -> None:
        """Measure the room, and remove the least recently used files if these bytes will fit then."""
        files = sorted(self._folder.files(_SUFFIX, PART))
        held, free = sum(length for _, length, _ in files), shutil.disk_usage(self._folder.path).free
        most = (held + free) // _FREE_SHARE if self._most_bytes is None else self._most_bytes
        self._room_bytes = min(most - held, free // _FREE_SHARE) - self._begun_bytes
        # a file that is being written has a longer name
        kept = self._used | self._begun
        old = [each for each in files if each[2].name.partition("-")[0] not in kept]
        # nothing can go before `begin`; otherwise, a smaller file may find room
        self._is_full = not old
        if size > self._room_bytes + sum(length for _, length, _ in old):
            return
        # in steps, or each write in a full folder would list it
        for _, length, path in old:
            if self._room_bytes >= max(size, most // _STEPS):
                break
            remove_file(path)
            self._room_bytes += length

    def _mapped(self, name: str, identity: Identity, file: BinaryIO) -> list[Array]:
        """Return the arrays of an open file. Raises an error of any type for other bytes."""
        status = os.fstat(file.fileno())
        version = status.st_ino, status.st_size, status.st_mtime_ns
        os.utime(self._folder.path / name, ns=(time.time_ns(), status.st_mtime_ns))  # the time of its last use
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        known = self._known.get(name)
        if known is None or known[0] != version:
            known = self._known[name] = version, _verified(content, identity)
        return [np.frombuffer(content, *each) for each in known[1]]


def _name(identity: Identity) -> str:
    return blake2b(json.dumps(identity).encode(), digest_size=20).hexdigest() + _SUFFIX


class _Digested:
    """Writes bytes, and computes their checksum and length."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self.digest = blake2b(digest_size=_DIGEST_BYTES)
        self.length = 0

    def write(self, content: bytes | memoryview) -> None:
        self._out.write(content)
        self.digest.update(content)
        self.length += len(content)


def _encode(file: BinaryIO, identity: Identity, arrays: Iterable[Array]) -> None:
    out, listed = _Digested(file), list[_Listed]()
    out.write(_MARK)
    for array in arrays:
        out.write(bytes(-out.length % _ALIGNED_BYTES))
        listed.append((array.dtype, len(array), out.length))
        if len(array):
            out.write(np.ascontiguousarray(array).data.cast("B"))
    types = [(kind.str, count, start) for kind, count, start in listed]
    footer = json.dumps({"identity": identity, "arrays": types}).encode()
    out.write(footer + len(footer).to_bytes(_LENGTH_BYTES, "little"))
    file.write(out.digest.digest())


def _footer(content: memoryview) -> memoryview:
    end = len(content) - _DIGEST_BYTES - _LENGTH_BYTES
    return content[end - int.from_bytes(content[end : end + _LENGTH_BYTES], "little") : end]


def _verified(content: memoryview, identity: Identity) -> list[_Listed]:
    """Return the arrays of a file. Raises ValueError and others for a damaged or foreign file."""
    end = len(content) - _DIGEST_BYTES
    if end < 0 or bytes(content[: len(_MARK)]) != _MARK:
        raise ValueError("it is another file")
    if blake2b(content[:end], digest_size=_DIGEST_BYTES).digest() != content[end:]:
        raise ValueError("the checksum differs")
    footer = json.loads(bytes(_footer(content)))
    if json.dumps(footer["identity"]) != json.dumps(identity):
        raise ValueError("it is of another file")
    return [(np.dtype(kind), count, start) for kind, count, start in footer["arrays"]]
