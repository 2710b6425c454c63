"""Arrays computed from data files, as files of a local directory that are mapped into memory.

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
import secrets
import shutil
import threading
import weakref
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from icesize.parquet.files.storage import local_folder
from icesize.private_folder import PART, PrivateFolder, remove

LOG = logging.getLogger("icesize")

Array = NDArray[Any]

_FOLDER = "icesize-keys"
_SUFFIX = ".arrays"
_MARK = b"icesize arrays\n\x01"
"""Start of each file, with the version of the format."""
_ALIGNED_BYTES = 8
_DIGEST_BYTES = 16
_LENGTH_BYTES = 8
_SECRET_BYTES = 32
_FOOTER_BYTES = 400
"""Bytes of a footer, without the identity, for a few parts of arrays."""
_FREE_SHARE = 4
"""One of so many parts of the free disk is used by default, and never more by one file.

Most of it is left to Spark, which spills and shuffles, and may have filled the disk since the bound was computed.
"""
_OPEN_BYTES = 320 * 2**10
"""Reading a data file costs a constant part, which reading the rows of so many bytes of arrays costs, too.

Measured: 0.6 ms, and 22 ns a row of 12 bytes. On object stores, it is more.
"""
_HALF_LIFE = 8
"""Batches after which a use counts half."""
_BETTER = 1.25
"""Factor by which a file must save more per byte than those that make room for it."""
_UNKNOWN_AT_ONCE = 1_000
"""Files of earlier processes that are looked at in one sweep, in 0.05 s."""
_SWEEP = 16
"""Batches between two sweeps. A file that is gone is not used, so that it would make room first anyway."""

Identity = Sequence[int | str | Sequence[int | str] | None]
"""The sources of the arrays and the way they were computed; the path of the data file comes first."""


_Listed = tuple[np.dtype[Any], int, int]
"""Type, length and start of an array."""
_Version = tuple[int, int, int]
"""Changes with the content of a file."""


@dataclass(frozen=True)
class MapSettings:
    """The directory of arrays, and its limits.

    Attributes:
        directory: A local directory; None for one of `SPARK_LOCAL_DIRS`, or that of temporary files.
        most_bytes: The most bytes for one table; None for a quarter of the free disk.
    """

    directory: str | None = None
    most_bytes: int | None = None


def index_folder(settings: MapSettings, table_uuid: str) -> IndexFolder:
    """Return the arrays of a table in this directory, one object for all callers of this process."""
    return _shared(settings.directory or local_folder(), table_uuid, settings.most_bytes)


@lru_cache(maxsize=64)
def _shared(directory: str, table_uuid: str, most_bytes: int | None) -> IndexFolder:
    return IndexFolder(Path(directory) / f"{_FOLDER}-{table_uuid}", most_bytes)


@dataclass(slots=True)
class _Use:
    """The rate of use of a file, between 0 and 1, in the batch of its last use."""

    path: str
    rate: float
    batch: int


class IndexFolder:
    """Arrays of one table below a directory that only this user may open.

    One process writes, the one that holds the lock; others read. Threads may share the object. Errors of the disk are
    logged, never raised.

    Files are kept by what they save per byte: how often batches use them, times the cost of reading the data file.
    """

    def __init__(self, path: Path, most_bytes: int | None) -> None:
        self._folder = PrivateFolder(path, "maps of keys")
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._held: int | None = None
        self._sizes: dict[str, int] = {}
        self._uses: dict[str, _Use] = {}
        self._verified: dict[str, tuple[_Version, list[_Listed]]] = {}
        self._batch = 0
        self._cheapest: tuple[int, list[tuple[float, str]]] = (-1, [])
        self._usable = False
        self._refused = False
        self._total_bytes = 0
        self._secret = secrets.token_bytes(_SECRET_BYTES)

    def begin_batch(self) -> bytes:
        """Count a batch, and return the secret of its codes: that of the directory, so that the next process has it."""
        with self._lock:
            self._batch += 1
        self._usable = self._folder.is_usable()
        if self._usable:
            place, content = self._folder.path / "secret", b""
            with suppress(OSError):
                content = place.read_bytes()
            if len(content) == _SECRET_BYTES:
                self._secret = content
            elif self._may_write():
                self._folder.write(place.name, lambda out: out.write(self._secret))
        return self._secret

    def read(self, identity: Identity) -> list[Array] | None:
        """Return the arrays of an identity, mapped; None if they are not there. What is damaged is removed."""
        name, path = _name(identity), str(identity[0])
        if not self._usable:
            return None
        self._note(name, path)
        place = self._folder.path / name
        try:
            with open(place, "rb") as file:
                return self._mapped(name, identity, file)
        except OSError:
            with self._lock:
                if not place.exists():  # else another thread has just written it
                    self._drop(name)
            return None
        except Exception as damage:  # of any kind: the bytes may come from anywhere
            LOG.debug("%s is damaged (%s)", place, damage)
            self._remove(name)
            return None

    def write(self, identity: Identity, expected_bytes: int, arrays: Iterable[Array]) -> bool:
        """Keep arrays, if they are worth their bytes; return whether all of them were taken and kept.

        Errors of `arrays` are raised.
        """
        name = _name(identity)
        self._note(name, str(identity[0]))
        expected_bytes += _FOOTER_BYTES + len(json.dumps(identity))
        usable = self._folder.is_usable() and self._may_write() and expected_bytes <= self._spare_bytes()
        if not usable or not self._reserve(name, expected_bytes):
            return False
        listed, is_written = list[_Listed](), False
        try:
            is_written = self._folder.write(name, lambda out: listed.extend(_encode(out, identity, arrays)))
        finally:
            with self._lock:  # at once: no other thread may count on the bytes between
                self._total_bytes -= expected_bytes
                if is_written:
                    self._count(name, listed)
        return is_written

    def sweep(self, live: Callable[[], Iterable[str]]) -> None:
        """Remove the arrays of data files whose paths are not `live`, from time to time.

        Those that this batch used stay: its own files are not live yet.
        """
        with self._lock:
            if self._batch % _SWEEP and not self._refused:
                return
            self._refused = False
        if not self._may_write():
            return
        paths = frozenset(live())
        for name in self._gone(paths):
            self._remove(name)

    def _gone(self, live: Container[str]) -> list[str]:
        with self._lock:
            known = {name: use.path for name, use in self._uses.items() if use.batch < self._batch}
            unknown = [name for name in self._sizes if name not in self._uses][:_UNKNOWN_AT_ONCE]
        for name in unknown:
            path = self._path_in(name)
            self._uses[name] = _Use(path, 0.0, 0)
            known[name] = path
        return [name for name, path in known.items() if path not in live]

    def _path_in(self, name: str) -> str:
        """Return the path of the data file that a file of an earlier process is about; empty if it is damaged."""
        with suppress(Exception), open(self._folder.path / name, "rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            return str(json.loads(bytes(_footer(content)))["identity"][0])
        return ""

    def _mapped(self, name: str, identity: Identity, file: BinaryIO) -> list[Array]:
        """Return the arrays of an open file. Raises an error of any type for other bytes."""
        version = _version(os.fstat(file.fileno()))
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        known = self._verified.get(name)
        if known is None or known[0] != version:
            known = self._verified[name] = version, _verified(content, identity)
        return [np.frombuffer(content, *each) for each in known[1]]

    def _note(self, name: str, path: str) -> None:
        """Note a use; the first one in a batch counts. A new file counts as one that all batches use.

        So small new files displace large old ones: a byte of their maps saves more, though they are merged soon.
        """
        with self._lock:
            use = self._uses.setdefault(name, _Use(path, 1.0, self._batch))
            if use.batch < self._batch:
                faded = use.rate * 0.5 ** ((self._batch - use.batch) / _HALF_LIFE)
                use.rate, use.batch = faded + 1 - 0.5 ** (1 / _HALF_LIFE), self._batch

    def _worth(self, name: str, size: int) -> float:
        """Return what a file saves per byte and batch, in parts of what reading rows of one byte costs."""
        use = self._uses.get(name)
        if use is None:
            return 0.0
        return float(use.rate * 0.5 ** ((self._batch - use.batch) / _HALF_LIFE) * (1 + _OPEN_BYTES / max(1, size)))

    def _reserve(self, name: str, size: int) -> bool:
        """Count bytes that will be written, and remove files that save less per byte; return False without room."""
        with self._lock:
            excess = self._total_bytes + size - (self._most_bytes or 0)
            if excess > 0 and self._cheapest[0] != self._batch:
                ranked = sorted(((self._worth(each, length), each) for each, length in self._sizes.items()))
                self._cheapest = self._batch, ranked
            most, given = self._worth(name, size) / _BETTER, list[str]()
            for worth, each in self._cheapest[1] if excess > 0 else ():
                if excess <= 0 or worth >= most:
                    break
                given.append(each)
                excess -= self._sizes.get(each, 0)
            if excess > 0:
                self._refused = True
                return False
            for each in given:  # at once: no other thread may count on the room that they leave
                self._drop(each)
            self._total_bytes += size
        for each in given:
            self._remove(each)
        return True

    def _remove(self, name: str) -> None:
        with self._lock:  # before the file: another thread may write it again, and the bound counts that one
            self._drop(name)
            self._uses.pop(name, None)
        remove(self._folder.path / name)

    def _count(self, name: str, listed: list[_Listed]) -> None:
        """Count a new file. The caller holds the lock."""
        self._drop(name)
        with suppress(OSError):
            status = (self._folder.path / name).stat()
            self._sizes[name] = status.st_size
            self._total_bytes += status.st_size
            self._verified[name] = _version(status), listed

    def _drop(self, name: str) -> None:
        """Count a file no longer. The caller holds the lock."""
        self._total_bytes -= self._sizes.pop(name, 0)
        self._verified.pop(name, None)

    def _may_write(self) -> bool:
        """Return whether this process holds the lock; the first time, learn what is there."""
        with self._lock:
            if self._held is None:
                with suppress(OSError):
                    self._held = _locked(self._folder.path / "lock")
                    if self._held is not None:
                        weakref.finalize(self, os.close, self._held)
                        self._look()
            return self._held is not None

    def _look(self) -> None:
        for _, _, path in self._folder.files(PART):
            remove(path)  # of a process that was killed: no other process writes
        self._sizes = {path.name: size for _, size, path in self._folder.files(_SUFFIX)}
        self._total_bytes = sum(self._sizes.values())
        if self._most_bytes is None:
            self._most_bytes = self._spare_bytes() + self._total_bytes // _FREE_SHARE

    def _spare_bytes(self) -> int:
        """Return the part of the disk's free bytes that may be used now."""
        try:
            return shutil.disk_usage(self._folder.path).free // _FREE_SHARE
        except OSError:
            return 0


def _locked(place: Path) -> int | None:
    """Return a descriptor of the lock file, locked until it is closed; None if another process has it."""
    descriptor = os.open(place, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        import fcntl
    except ImportError:  # without such locks, several processes write: files are replaced as a whole by equal ones
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _version(status: os.stat_result) -> _Version:
    return status.st_ino, status.st_size, status.st_mtime_ns


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


def _encode(file: BinaryIO, identity: Identity, arrays: Iterable[Array]) -> list[_Listed]:
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
    return listed


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
        raise ValueError("it is of another data file")
    return [(np.dtype(kind), count, start) for kind, count, start in footer["arrays"]]
