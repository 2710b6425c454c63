"""Lists the files below a table's location, through the table's own FileIO.

PyIceberg's FileIO opens and deletes files but cannot list them, so this module uses the filesystem behind it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlparse

from pyarrow.fs import FileSelector, FileSystem, FileType
from pyiceberg.io import FileIO
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from icesize.concurrency import concurrently
from icesize.errors import TableError, UnsupportedTable
from icesize.parquet.files.storage import local_path
from icesize.table.catalog.access_errors import storage_errors
from icesize.table.catalog.locations import check_folder, split
from icesize.units import time_of

LOG = logging.getLogger("icesize")

_MODIFIED = ("mtime", "LastModified", "last_modified", "updated")  # of local, S3, Azure and Google Cloud filesystems


@dataclass(frozen=True, slots=True)
class Listed:
    """A file in storage: location, bytes, and milliseconds since 1970 of its last change.

    The location has the table's own spelling. The time is from the clock of the storage.
    """

    location: str
    size_bytes: int
    modified_ms: int


LISTERS = 4
"""Directories that are listed at the same time."""
MOST_SPREAD = 1_000
"""Most entries of a directory whose subdirectories are listed one by one: those of one request.

A table of 365,000 partitions has so many directories that listing each of them would take far longer.
"""
_SKEW_MS = 5 * 60_000
"""Difference of two clocks from which a note is added."""

Lister = Callable[[FileIO, str], Iterator[Listed]]
"""Lists files: `list_files`, or its replacement in a test."""


def list_files(io: FileIO, location: str) -> Iterator[Listed]:
    """Yield all files below `location`, at any depth, in no order. Their locations begin with `location` unchanged.

    Local directories are read one by one. Links in them are skipped, because their targets do not belong to the table.
    In object stores, directories are listed at the same time, each with everything below it: the direct ones, and
    those in a direct one that has few. A store answers a thousand names per request, one request after another.

    Raises TableError if the listing fails, even after it yielded files, and for locations that must not be searched
    (see `check_folder`). Raises UnsupportedTable for a FileIO other than PyIceberg's two.
    """
    folder = check_folder(location)
    with storage_errors(f"Cannot list {folder}", "nothing was deleted", location=folder):
        path = local_path(io, folder)
        if path is not None:
            yield from _list_local(folder, path)
        elif isinstance(io, PyArrowFileIO):
            yield from _list_arrow(folder, *arrow_filesystem(io, folder))
        elif isinstance(io, FsspecFileIO):
            yield from _list_fsspec(folder, fsspec_filesystem(io, folder))
        else:
            raise _unknown(io, folder)


def _unknown(io: FileIO, folder: str) -> UnsupportedTable:
    return UnsupportedTable(
        f"Cannot list {folder}: icesize cannot list files with '{type(io).__name__}'; set 'py-io-impl' to PyIceberg's "
        "PyArrowFileIO or FsspecFileIO",
        location=folder,
    )


def _list_local(folder: str, path: str) -> Iterator[Listed]:
    with os.scandir(path) as entries:
        for entry in entries:
            below = f"{folder}/{entry.name}"
            try:
                if entry.is_dir(follow_symlinks=False):
                    yield from _list_local(below, entry.path)
                    continue
                if not entry.is_file(follow_symlinks=False):
                    continue
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # deleted during the listing
            yield Listed(below, found.st_size, found.st_mtime_ns // 1_000_000)


def _list_arrow(folder: str, filesystem: FileSystem, path: str) -> Iterator[Listed]:
    def infos(place: str, everything: bool) -> list[Any]:
        selector = FileSelector(place, allow_not_found=place != path, recursive=everything)
        return list(filesystem.get_file_info(selector))

    for info in _spread(infos, path, lambda info: info.path if info.type == FileType.Directory else None):
        if info.type == FileType.File:
            yield Listed(_below(folder, path, info.path), info.size, _arrow_ms(info))


def _list_fsspec(folder: str, filesystem: Any) -> Iterator[Listed]:
    path = filesystem._strip_protocol(folder).rstrip("/")
    filesystem.invalidate_cache()

    def infos(place: str, everything: bool) -> list[Any]:
        found = filesystem.find(place, detail=True).values() if everything else filesystem.ls(place, detail=True)
        # not an empty object that represents the directory itself
        return [info for info in found if info["name"].rstrip("/") != place or info["type"] == "directory"]

    for info in _spread(infos, path, lambda info: info["name"].rstrip("/") if info["type"] == "directory" else None):
        if info["type"] == "file" and not info["name"].endswith("/"):
            yield Listed(_below(folder, path, info["name"]), info["size"], _fsspec_ms(info))


def _spread(
    infos: Callable[[str, bool], list[Any]], path: str, folder_of: Callable[[Any], str | None]
) -> Iterator[Any]:
    """Yield everything below a path. `infos` lists a directory: what is directly in it, or everything below it.

    A directory that contains itself has keys with `//`, which only a listing of everything below it shows once each.
    """
    whole, tops = list[str](), infos(path, False)
    if path in map(folder_of, tops):
        whole, tops = [path], []
    for top in tops:
        place = folder_of(top)
        if place is None:
            yield top
            continue
        below = infos(place, False)
        inner = [folder for info in below if (folder := folder_of(info)) is not None]
        if len(below) > MOST_SPREAD or place in inner:
            whole.append(place)
        else:
            yield from (info for info in below if folder_of(info) is None)
            whole += inner
    for found in concurrently(lambda place: infos(place, True), whole, LISTERS, LISTERS):
        yield from found


def _below(folder: str, path: str, found: str) -> str:
    """Return the location of a path that the filesystem found below `path`, its name for `folder`."""
    if not found.startswith(path + "/"):
        raise TableError(f"Cannot list {folder}: its storage answered with {found!r}, which does not lie below {path}")
    return folder + found[len(path) :]


def modified_ms(io: FileIO, location: str) -> int:
    """Return the time of a file's last change, by the clock of its storage.

    Raises FileNotFoundError if the file is missing.
    """
    path = local_path(io, location)
    if path is not None:
        return os.lstat(path).st_mtime_ns // 1_000_000
    if isinstance(io, PyArrowFileIO):
        filesystem, path = arrow_filesystem(io, location)
        info = filesystem.get_file_info(path)
        if info.type == FileType.NotFound:
            raise FileNotFoundError(location)
        return _arrow_ms(info)
    if isinstance(io, FsspecFileIO):
        cached = fsspec_filesystem(io, location)
        cached.invalidate_cache()
        return _fsspec_ms(cached.info(location))
    raise _unknown(io, location)


def storage_now_ms(io: FileIO, folder: str, new_id: Callable[[], str]) -> int:
    """Return the time of the storage's clock in milliseconds since 1970.

    It is read from a small file written below `folder` and deleted again. The clock that dates files must also measure
    their ages; the local clock may be hours off. Raises TableError if the file cannot be written, examined or deleted.
    """
    location = f"{folder}/metadata/icesize-clock-{new_id()}"
    advice = "icesize writes a small file there to measure the age of other files"
    with storage_errors(f"Cannot read the clock of the storage of {folder}", advice, location=folder):
        with io.new_output(location).create() as stream:
            stream.write(b"icesize asks for the time of this storage\n")
        try:
            return modified_ms(io, location)
        finally:
            io.delete(location)


def clock_difference(skew_ms: int) -> str | None:
    """Return the words of a note on a clock, such as `600 s ahead of this machine`; None if the difference is small."""
    if abs(skew_ms) <= _SKEW_MS:
        return None
    return f"{abs(skew_ms) // 1000:,} s {'ahead of' if skew_ms > 0 else 'behind'} this machine"


def incomplete_uploads(io: FileIO, location: str) -> int | None:
    """Return the number of unfinished multipart uploads below `location`; None if it is unknown.

    No listing of files shows them. Only S3 reports them, and only through the package s3fs (PyArrow has no call for
    it), with the settings of the table's own FileIO. They are counted, never aborted, because one of them may be a file
    still being written. A lifecycle rule of the bucket (AbortIncompleteMultipartUpload) removes them.
    """
    scheme, bucket, path = split(location)
    if scheme != "s3":
        return None
    count, answer = 0, {"IsTruncated": True}
    try:
        filesystem = FsspecFileIO(io.properties).get_fs("s3")
        while answer["IsTruncated"]:
            after = {mark: answer[f"Next{mark}"] for mark in ("KeyMarker", "UploadIdMarker") if f"Next{mark}" in answer}
            answer = filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=path.strip("/") + "/", **after)
            count += len(answer.get("Uploads", ()))
    except Exception as error:  # s3fs is missing, the store has no such call, or the right to it is missing
        LOG.debug("Cannot count unfinished uploads below %s: %s", location, type(error).__name__)
        return None
    return count


def arrow_filesystem(io: PyArrowFileIO, location: str) -> tuple[FileSystem, str]:
    scheme, authority, path = io.parse_location(location, io.properties)
    return io.fs_by_scheme(scheme, authority), path


def fsspec_filesystem(io: FsspecFileIO, location: str) -> Any:
    uri = urlparse(location)
    azure = uri.scheme in ("abfs", "abfss", "wasb", "wasbs")
    return io.get_fs(uri.scheme, uri.hostname if azure else None)


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
