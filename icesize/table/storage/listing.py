"""Lists the files below a table's location, reads the clock of their storage, and counts unfinished uploads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from pyiceberg.io import FileIO
from pyiceberg.io.fsspec import FsspecFileIO

from icesize.storage.locations import check_folder, split
from icesize.storage.stores import Listed
from icesize.storage.table_storage import Storage
from icesize.table.catalog.access_errors import storage_errors

LOG = logging.getLogger("icesize")

_SKEW_MS = 5 * 60_000
"""Difference of two clocks from which a note is added."""

Lister = Callable[[FileIO, str], Iterator[Listed]]
"""Lists files: `list_files`, or its replacement in a test."""


def list_files(io: FileIO, location: str) -> Iterator[Listed]:
    """Yield all files below `location`, at any depth, in no order. Their locations begin with `location` unchanged.

    Local directories are read one by one. Links in them are skipped, because their targets do not belong to the table.

    Raises TableError if the listing fails, even after it yielded files, and for locations that must not be searched
    (see `check_folder`). Raises UnsupportedTable for a FileIO other than PyIceberg's two.
    """
    folder, storage = check_folder(location), Storage.of(io)
    with storage_errors(f"Cannot list {folder}", "nothing was deleted", location=folder):
        yield from storage.list(folder)


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
            return Storage.of(io).inspect(location).modified_ms
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
