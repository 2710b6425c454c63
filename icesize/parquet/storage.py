"""Files as the table's FileIO sees them, with a short cut for local paths."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from icesize import failpoints
from icesize.errors import RewriteFailed
from icesize.redaction import remember_secrets

LOG = logging.getLogger("icesize")

WHOLE_READ_BYTES = 32 * 2**20
"""Remote files up to this size are fetched by one request instead of one per column chunk."""


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
            return self._io.new_output(location).create(overwrite=True)
        folder = os.path.dirname(path)
        if folder not in self._folders:
            os.makedirs(folder, exist_ok=True)
            self._folders.add(folder)
        return pa.OSFile(path, "wb")

    def open(self, location: str, size_bytes: int) -> Any:
        """A seekable stream on an existing file of `size_bytes`."""
        path = self.local_path(location)
        if path is not None:
            return pa.OSFile(path, "rb")
        if size_bytes > WHOLE_READ_BYTES:
            return self._io.new_input(location).open()
        return pa.BufferReader(self.fetch(location))

    def fetch(self, location: str) -> bytes:
        """All bytes of a file, by one request."""
        with self._io.new_input(location).open() as stream:
            return bytes(stream.read())

    def pieces(self, location: str, piece_bytes: int) -> Iterator[bytes]:
        """All bytes of a file, so many by each request."""
        with self._io.new_input(location).open() as stream:
            while piece := stream.read(piece_bytes):
                yield bytes(piece)

    def tail(self, location: str, size_bytes: int, wanted_bytes: int) -> bytes:
        """The last bytes of a file of `size_bytes`."""
        path = self.local_path(location)
        with pa.OSFile(path, "rb") if path is not None else self._io.new_input(location).open() as stream:
            stream.seek(size_bytes - wanted_bytes)
            return bytes(stream.read(wanted_bytes))

    def size(self, location: str) -> int:
        """Bytes of the file as storage reports them."""
        path = self.local_path(location)
        return len(self._io.new_input(location)) if path is None else os.path.getsize(path)

    def check_whole(self, location: str, written_bytes: int) -> None:
        """Raise `RewriteFailed` unless storage holds all that was written to a new file."""
        stored = self.size(location)
        if stored != written_bytes:
            raise RewriteFailed(
                f"Cannot finish {location}: storage holds {stored} bytes of {written_bytes}, try again", path=location
            )

    def delete(self, location: str) -> None:
        """Remove a file that must not stay, best effort: a failure is logged, orphan cleanup finds the rest."""
        try:
            failpoints.reach("cleanup")
            path = self.local_path(location)
            if path is None:
                self._io.delete(location)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(path)
        except Exception as error:
            LOG.warning("Cannot delete %s, it stays as an orphan: %s", location, error)
