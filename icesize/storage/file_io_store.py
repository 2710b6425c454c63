"""Other storage and other settings through PyIceberg's FileIO, with the filesystem behind it.

A FileIO opens and deletes files, but cannot list or copy them, so those verbs use its filesystem.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, cast
from urllib.parse import urlparse

from pyarrow.fs import FileSelector, FileSystem, FileType
from pyiceberg.io import FileIO, InputFile
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from icesize.errors import TableError, UnsupportedTable, is_from_outside
from icesize.storage.stores import WHOLE_READ_BYTES, Listed, delete_each
from icesize.units import time_of

_MODIFIED = ("mtime", "LastModified", "last_modified", "updated")  # of local, S3, Azure and Google Cloud filesystems


class FileIOStore:
    """The `Store` behind a FileIO of any make, which can open, create and delete files, but not list or copy them."""

    confirms_uploads = False
    deletes_at_once = 1
    lists_in_order = False
    whole_read_bytes = WHOLE_READ_BYTES

    def __init__(self, io: FileIO) -> None:
        self._io: Any = io

    def read(self, location: str) -> bytes:
        """Return all bytes of a file."""
        with _as_os_error(), self.open(location) as stream:
            return bytes(stream.read())

    def read_range(self, location: str, start: int, size_bytes: int) -> bytes:
        """Return the bytes of a range; fewer if the file ends in it."""
        with _as_os_error(), self.open(location) as stream:
            stream.seek(start)
            return bytes(stream.read(size_bytes))

    def open(self, location: str, size_bytes: int | None = None) -> Any:
        """Return a seekable stream that requests only the bytes that are read."""
        with _as_os_error():
            return self._input(location).open()

    def _input(self, location: str) -> InputFile:
        """Return a file of the FileIO; raises `OSError`, like storage, for a location that it does not support."""
        if not self.can_open(location):
            raise OSError("PyArrow cannot open names with `//`; set 'py-io-impl' to PyIceberg's FsspecFileIO")
        try:
            return cast(InputFile, self._io.new_input(location))
        except ValueError as error:
            raise OSError(str(error)) from error

    def can_open(self, location: str) -> bool:
        """Return False for a name that the FileIO rejects."""
        return True

    def create(self, location: str) -> Any:
        """Return a binary stream that becomes the file when closed."""
        with _as_os_error():
            return self._io.new_output(location).create(overwrite=True)

    def size(self, location: str) -> int:
        """Return the bytes of a file."""
        with _as_os_error():
            if not (file := self._input(location)).exists():
                raise FileNotFoundError(location)
            return len(file)

    def inspect(self, location: str) -> Listed:
        """Return size and time of a file, by another look at the storage."""
        raise self._unknown(location)

    def copy(self, location: str, new_location: str) -> None:
        """Copy a file inside of the store."""
        raise self._unknown(location)

    def delete(self, locations: Sequence[str]) -> dict[str, Exception]:
        """Delete files one by one."""
        return delete_each(self._remove, locations)

    def _remove(self, location: str) -> None:
        self._io.delete(location)

    def list(self, folder: str) -> Iterator[Listed]:
        """Yield everything below a folder."""
        raise self._unknown(folder)

    def _unknown(self, location: str) -> UnsupportedTable:
        return UnsupportedTable(
            f"Cannot list {location}: icesize cannot list files with '{type(self._io).__name__}'; set 'py-io-impl' to "
            "PyIceberg's PyArrowFileIO or FsspecFileIO",
            location=location,
        )


class _ArrowStore(FileIOStore):
    """In S3, PyArrow leaves an empty object for the directory of a deleted file; listings skip such objects."""

    def _place(self, location: str) -> tuple[FileSystem, str]:
        scheme, authority, path = self._io.parse_location(location, self._io.properties)
        return self._io.fs_by_scheme(scheme, authority), path

    def can_open(self, location: str) -> bool:
        """Return False for a name with `//`, which PyArrow's object stores do not have."""
        return "//" not in location.partition("://")[2]

    def size(self, location: str) -> int:
        return self.inspect(location).size_bytes

    def inspect(self, location: str) -> Listed:
        with _as_os_error():
            filesystem, path = self._place(location)
            info = filesystem.get_file_info(path)
            if info.type == FileType.NotFound:
                raise FileNotFoundError(location)
            return Listed(location, info.size or 0, _arrow_ms(info))

    def copy(self, location: str, new_location: str) -> None:
        filesystem, source = self._place(location)
        filesystem.copy_file(source, self._place(new_location)[1])

    def list(self, folder: str) -> Iterator[Listed]:
        filesystem, path = self._place(folder)
        for info in filesystem.get_file_info(FileSelector(path, recursive=True)):
            if info.type == FileType.File:
                yield Listed(_below(folder, path, info.path), info.size, _arrow_ms(info))


class _FsspecStore(FileIOStore):
    def _filesystem(self, location: str) -> Any:
        uri = urlparse(location)
        azure = uri.scheme in ("abfs", "abfss", "wasb", "wasbs")
        return self._io.get_fs(uri.scheme, uri.hostname if azure else None)

    def size(self, location: str) -> int:
        return self.inspect(location).size_bytes

    def inspect(self, location: str) -> Listed:
        with _as_os_error():
            cached = self._filesystem(location)
            cached.invalidate_cache()
            found = cached.info(location)
            return Listed(location, int(found["size"]), _fsspec_ms(found))

    def copy(self, location: str, new_location: str) -> None:
        self._filesystem(location).cp_file(location, new_location)

    def _remove(self, location: str) -> None:
        # Java writes `*` of a partition value into file names, and PyIceberg's class would delete all files that match
        exactly = self._filesystem(location).rm_file if type(self._io) is FsspecFileIO else self._io.delete
        exactly(location)

    def list(self, folder: str) -> Iterator[Listed]:
        filesystem = self._filesystem(folder)
        path = filesystem._strip_protocol(folder).rstrip("/")
        filesystem.invalidate_cache()
        found = filesystem.find(path, detail=True)
        if not found:
            filesystem.info(path)  # raises FileNotFoundError: `find` has no error for a folder that does not exist
        for info in found.values():
            # not an empty object that stands for a folder
            if info["type"] == "file" and not info["name"].endswith("/") and info["name"] != path:
                yield Listed(_below(folder, path, info["name"]), info["size"], _fsspec_ms(info))


def file_io_store(io: FileIO) -> FileIOStore:
    """Return the store behind a FileIO. The filesystems of PyArrow and fsspec can also list and copy."""
    kinds: dict[type[FileIO], type[FileIOStore]] = {PyArrowFileIO: _ArrowStore, FsspecFileIO: _FsspecStore}
    return next((kinds[kind] for kind in type(io).__mro__ if kind in kinds), FileIOStore)(io)


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Turn exceptions of the packages that reach storage into `OSError`, because few of these exceptions are one."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (OSError, TableError)) or not is_from_outside(error):
            raise
        raise OSError(f"{type(error).__name__}: {error}") from error


def _below(folder: str, path: str, found: str) -> str:
    """Return the location of a path that the filesystem found below `path`, its name for `folder`."""
    if not found.startswith(path + "/"):
        raise TableError(f"Cannot list {folder}: its storage answered with {found!r}, which does not lie below {path}")
    return folder + found[len(path) :]


def _arrow_ms(info: Any) -> int:
    if info.mtime_ns is None:
        raise TableError(f"Cannot find the age of {info.path}: its storage does not report when it was modified")
    return int(info.mtime_ns // 1_000_000)


def _fsspec_ms(info: Mapping[str, Any]) -> int:
    for key in _MODIFIED:
        value = info.get(key)
        if isinstance(value, str):
            value = time_of(value)
        if isinstance(value, datetime):
            return int(value.timestamp() * 1000)
        if value is not None:
            return int(value * 1000)
    raise TableError(f"Cannot find the age of {info.get('name')}: its storage does not report when it was modified")
