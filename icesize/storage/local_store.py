"""Files on local disks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from icesize.storage.stores import Listed, delete_each


class LocalStore:
    """The `Store` of the operating system's files; `path_of` returns the path of a location."""

    confirms_uploads = False
    deletes_at_once = 1
    lists_in_order = False
    whole_read_bytes = 256 * 2**10  # a read costs as much as copying 50 kB

    def __init__(self, path_of: Callable[[str], Any]) -> None:
        self._path_of = path_of
        self._folders: set[str] = set()

    def read(self, location: str) -> bytes:
        """Return all bytes of a file."""
        with open(self._path_of(location), "rb", buffering=0) as file:
            return file.read()

    def read_range(self, location: str, start: int, size_bytes: int) -> bytes:
        """Return the bytes of a range; fewer if the file ends in it."""
        with open(self._path_of(location), "rb", buffering=0) as file:
            file.seek(start)
            return file.read(size_bytes)

    def can_open(self, location: str) -> bool:
        """Return True: the system opens any name."""
        return True

    def open(self, location: str, size_bytes: int | None = None) -> Any:
        """Return a seekable stream."""
        return pa.OSFile(self._path_of(location), "rb")

    def create(self, location: str) -> Any:
        """Return a binary stream; the directories of the file are created."""
        path = self._path_of(location)
        folder = os.path.dirname(path)
        if folder not in self._folders:
            os.makedirs(folder, exist_ok=True)
            self._folders.add(folder)
        return pa.OSFile(path, "wb")

    def size(self, location: str) -> int:
        """Return the bytes of a file, or of the target of a link."""
        return os.path.getsize(self._path_of(location))

    def inspect(self, location: str) -> Listed:
        """Return size and time of a file."""
        return _listed(location, os.lstat(self._path_of(location)))

    def copy(self, location: str, new_location: str) -> None:
        """Copy a file into an existing directory."""
        shutil.copyfile(self._path_of(location), self._path_of(new_location))

    def delete(self, locations: Sequence[str]) -> dict[str, Exception]:
        """Delete files one by one."""
        return delete_each(lambda location: os.remove(self._path_of(location)), locations)

    def list(self, folder: str) -> Iterator[Listed]:
        """Yield all files below a folder. Links are skipped, because their targets do not belong to the table."""
        return _list(folder, self._path_of(folder))


def _list(folder: str, path: str) -> Iterator[Listed]:
    with os.scandir(path) as entries:
        for entry in entries:
            below = f"{folder}/{entry.name}"
            try:
                if entry.is_dir(follow_symlinks=False):
                    yield from _list(below, entry.path)
                elif entry.is_file(follow_symlinks=False):
                    yield _listed(below, entry.stat(follow_symlinks=False))
            except FileNotFoundError:
                continue  # deleted during the listing


def _listed(location: str, found: os.stat_result) -> Listed:
    return Listed(location, found.st_size, found.st_mtime_ns // 1_000_000)
