"""Files as the table's FileIO sees them, with a short cut for local paths."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile
from pyiceberg.io.pyarrow import PyArrowFileIO

from icesize import failpoints
from icesize.errors import RewriteFailed, is_from_outside
from icesize.redaction import remember_secrets

LOG = logging.getLogger("icesize")

WHOLE_READ_BYTES = 32 * 2**20
"""Remote files up to this size are fetched by one request instead of one per column chunk."""
LOCAL_READ_BYTES = 256 * 2**10
"""Local files up to this size are read at once, too: a read costs as much as copying 50 kB."""


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Make an `OSError` of what the packages raise that reach storage: few of their exceptions are one."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) or not is_from_outside(error):
            raise
        raise OSError(f"{type(error).__name__}: {error}") from error


class Storage:
    """Opens, measures and deletes data files.

    `file:/x`, `file:///x` and `/x` go straight to the operating system when the table's FileIO is PyArrow's (the
    default): creating a file through it costs an extra look-up and a directory creation each.
    """

    def __init__(self, io: FileIO) -> None:
        # in a worker nobody else has seen them
        remember_secrets(io.properties)
        self._io = io
        self._folders: set[str] = set()

    def local_path(self, location: str) -> str | None:
        """The path in the local file system, or None when `location` is elsewhere."""
        if not isinstance(self._io, PyArrowFileIO):
            return None
        scheme, _, path = PyArrowFileIO.parse_location(location, self._io.properties)
        return path if scheme == "file" else None

    def create(self, location: str) -> Any:
        """A binary stream that becomes the file `location` when closed. Names are unique: nothing is overwritten."""
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
        """A seekable stream on an existing file of `size_bytes`."""
        path = self.local_path(location)
        if path is None:
            small = size_bytes <= WHOLE_READ_BYTES
            return pa.BufferReader(self.fetch(location)) if small else self.stream(location)
        if size_bytes > LOCAL_READ_BYTES:
            return pa.OSFile(path, "rb")
        with open(path, "rb", buffering=0) as file:
            return pa.BufferReader(file.read())

    def _input(self, location: str) -> InputFile:
        """A file of the FileIO; an `OSError`, as storage raises it, for a location that it does not know."""
        try:
            with _as_os_error():
                return self._io.new_input(location)
        except ValueError as error:
            raise OSError(str(error)) from error

    def fetch(self, location: str) -> bytes:
        """All bytes of a file, by one request."""
        with _as_os_error(), self._input(location).open() as stream:
            return bytes(stream.read())

    def pieces(self, location: str, piece_bytes: int) -> Iterator[bytes]:
        """All bytes of a file, so many by each request."""
        with _as_os_error(), self._input(location).open() as stream:
            while piece := stream.read(piece_bytes):
                yield bytes(piece)

    def stream(self, location: str) -> Any:
        """A seekable stream that asks storage for no more than is read."""
        path = self.local_path(location)
        with _as_os_error():
            return pa.OSFile(path, "rb") if path is not None else self._input(location).open()

    def tail(self, location: str, size_bytes: int, wanted_bytes: int) -> bytes:
        """The last bytes of a file of `size_bytes`."""
        with _as_os_error(), self.stream(location) as stream:
            stream.seek(size_bytes - wanted_bytes)
            return bytes(stream.read(wanted_bytes))

    def size(self, location: str) -> int:
        """Bytes of the file as storage reports them."""
        path = self.local_path(location)
        with _as_os_error():
            return len(self._input(location)) if path is None else os.path.getsize(path)

    def check_whole(self, location: str, written_bytes: int) -> None:
        """Raise `RewriteFailed` unless storage holds all that was written to a new file."""
        stored = self.size(location)
        if stored != written_bytes:
            raise RewriteFailed(
                f"Cannot finish {location}: storage holds {stored} bytes of {written_bytes}, try again", path=location
            )

    def delete(self, location: str) -> bool:
        """Remove a file that must not stay, best effort: a failure is logged, orphan cleanup finds the rest. Returns
        whether it is gone."""
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
"""Spark tells its Python workers in this variable, separated by commas, where its own shuffle files are."""


def local_folder() -> str:
    """Where temporary files go; another folder for each process, as tasks on one machine share its disks."""
    folders = [folder for folder in os.environ.get(FOLDERS, "").split(",") if os.path.isdir(folder)]
    return folders[os.getpid() % len(folders)] if folders else tempfile.gettempdir()
