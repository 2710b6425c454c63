"""File access through the table's FileIO, with a shortcut for local paths."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from icesize import failpoints
from icesize.concurrency import concurrently
from icesize.errors import RewriteFailed, is_from_outside
from icesize.redaction import remember_secrets

LOG = logging.getLogger("icesize")

WHOLE_READ_BYTES = 32 * 2**20
"""Remote files up to this size are fetched by one request instead of one per column chunk."""
LOCAL_READ_BYTES = 256 * 2**10
"""Local files up to this size are read at once, too: a read costs as much as copying 50 kB."""


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Turn exceptions of the packages that reach storage into `OSError`, because few of these exceptions are one."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) or not is_from_outside(error):
            raise
        raise OSError(f"{type(error).__name__}: {error}") from error


_LOCAL = re.compile(r"file:(?://(?:localhost)?(?=/)|(?!//))(/.*)", re.DOTALL | re.IGNORECASE)


def local_path(io: FileIO, location: str) -> str | None:
    """Return the path in the local file system, for both of PyIceberg's FileIOs; None if the file is elsewhere.

    The path is the name as Iceberg's Java library writes it: `?`, `#` and `%` belong to it. PyArrowFileIO opens `a` if
    it is to open `a#b`. A subclass of FsspecFileIO may open local files in its own way.
    """
    if not isinstance(io, PyArrowFileIO) and type(io) is not FsspecFileIO:
        return None
    if isinstance(io, PyArrowFileIO) and io.parse_location(location, io.properties)[0] != "file":
        return None
    match = _LOCAL.fullmatch(location)
    has_scheme = ":" in location.partition("/")[0]
    return match[1] if match else None if has_scheme else os.path.abspath(location)


def cannot_open(io: FileIO, location: str) -> bool:
    """Return whether the FileIO rejects the name: PyArrow's filesystems of object stores have no keys with `//`."""
    is_remote = isinstance(io, PyArrowFileIO) and local_path(io, location) is None
    return is_remote and "//" in location.partition("://")[2]


def missing_files(io: FileIO, paths: Sequence[str]) -> list[str]:
    """Return the paths that are not in storage. Raises the errors of the storage."""
    there = concurrently(Storage(io).exists, paths)
    return [path for path, exists in zip(paths, there, strict=True) if not exists]


class Storage:
    """Opens, measures and deletes data files.

    `file:/x`, `file:///x` and `/x` go straight to the operating system (see `local_path`). Each file created through a
    FileIO costs an extra look-up and a directory creation.
    """

    def __init__(self, io: FileIO) -> None:
        # a worker process has not registered these secrets yet
        remember_secrets(io.properties)
        self._io = io
        self._folders: set[str] = set()

    def local_path(self, location: str) -> str | None:
        """Return the path in the local file system, or None if `location` is elsewhere."""
        return local_path(self._io, location)

    def create(self, location: str) -> Any:
        """Return a binary stream that becomes the file `location` when closed.

        Names are unique, so nothing is overwritten.
        """
        path = self.local_path(location)
        if path is None:
            with _as_os_error():
                return self._io.new_output(location).create(overwrite=True)
        folder = os.path.dirname(path)
        if folder not in self._folders:
            os.makedirs(folder, exist_ok=True)
            self._folders.add(folder)
        return pa.OSFile(path, "wb")

    def open(self, location: str, size_bytes: int) -> Any:
        """Return a seekable stream on an existing file of `size_bytes`."""
        path = self.local_path(location)
        if path is None:
            small = size_bytes <= WHOLE_READ_BYTES
            return pa.BufferReader(self.fetch(location)) if small else self.stream(location)
        if size_bytes > LOCAL_READ_BYTES:
            return pa.OSFile(path, "rb")
        with open(path, "rb", buffering=0) as file:
            return pa.BufferReader(file.read())

    def _input(self, location: str) -> InputFile:
        """Return a file of the FileIO; raises `OSError`, like storage, for a location that it does not support."""
        if cannot_open(self._io, location):
            raise OSError("PyArrow cannot open names with `//`; set 'py-io-impl' to PyIceberg's FsspecFileIO")
        try:
            with _as_os_error():
                return self._io.new_input(location)
        except ValueError as error:
            raise OSError(str(error)) from error

    def fetch(self, location: str) -> bytes:
        """Return all bytes of a file, with one request."""
        with _as_os_error(), self.stream(location) as stream:
            return bytes(stream.read())

    def pieces(self, location: str, piece_bytes: int) -> Iterator[bytes]:
        """Yield all bytes of a file, `piece_bytes` per request."""
        with _as_os_error(), self.stream(location) as stream:
            while piece := stream.read(piece_bytes):
                yield bytes(piece)

    def stream(self, location: str) -> Any:
        """Return a seekable stream that requests only the bytes that are read."""
        path = self.local_path(location)
        with _as_os_error():
            return pa.OSFile(path, "rb") if path is not None else self._input(location).open()

    def tail(self, location: str, size_bytes: int, wanted_bytes: int) -> bytes:
        """Return the last `wanted_bytes` bytes of a file of `size_bytes`."""
        with _as_os_error(), self.stream(location) as stream:
            stream.seek(size_bytes - wanted_bytes)
            return bytes(stream.read(wanted_bytes))

    def size(self, location: str) -> int:
        """Return the bytes of the file as storage reports them."""
        path = self.local_path(location)
        with _as_os_error():
            return len(self._input(location)) if path is None else os.path.getsize(path)

    def exists(self, location: str) -> bool:
        """Return whether the file is in storage. Raises the errors of the storage."""
        path = self.local_path(location)
        return self._io.new_input(location).exists() if path is None else os.path.exists(path)

    def check_whole(self, location: str, written_bytes: int) -> None:
        """Raise `RewriteFailed` unless storage holds all bytes that were written to a new file."""
        stored = self.size(location)
        if stored != written_bytes:
            raise RewriteFailed(
                f"Cannot finish {location}: storage holds {stored} bytes of {written_bytes}, try again", path=location
            )

    def delete(self, location: str) -> bool:
        """Remove a file that must not stay, best effort, and return whether it is gone.

        A failure is logged; the cleanup of orphan files finds the file.
        """
        try:
            failpoints.reach("cleanup")
            path = self.local_path(location)
            with contextlib.suppress(FileNotFoundError):
                if path is None:
                    self._io.delete(location)
                else:
                    os.remove(path)
        except Exception as error:
            LOG.warning("Cannot delete %s, it stays as an orphan: %s", location, error)
            return False
        return True


FOLDERS = "SPARK_LOCAL_DIRS"
"""The directories of Spark's shuffle files, separated by commas: Spark sets this variable for its Python workers."""


def local_folder() -> str:
    """Return a directory for temporary files.

    The process id selects one of Spark's directories, so that tasks on one machine share its disks.
    """
    folders = [folder for folder in os.environ.get(FOLDERS, "").split(",") if os.path.isdir(folder)]
    return folders[os.getpid() % len(folders)] if folders else tempfile.gettempdir()
