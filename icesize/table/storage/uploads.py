"""Multipart uploads that nobody finished: invisible to every listing of files, and paid for."""

from __future__ import annotations

import logging
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.io.fsspec import FsspecFileIO

from icesize.table.catalog.locations import split

LOG = logging.getLogger("icesize")


def incomplete_uploads(io: FileIO, location: str) -> int | None:
    """How many unfinished multipart uploads lie below `location`; None where that cannot be told.

    Only S3 can tell, and only through the package s3fs (PyArrow has no call for it), with the settings of the table's
    own FileIO. They are counted, never aborted: one of them may be a file that is being written now. A lifecycle rule
    of the bucket (AbortIncompleteMultipartUpload) is what removes them.
    """
    scheme, bucket, path = split(location)
    if scheme != "s3":
        return None
    try:
        filesystem = FsspecFileIO(io.properties).get_fs("s3")
        return _count(filesystem, bucket, path.strip("/") + "/")
    except Exception as error:  # s3fs is missing, the store has no such call, or the right to it is missing
        LOG.debug("Cannot count unfinished uploads below %s: %s", location, type(error).__name__)
        return None


def _count(filesystem: Any, bucket: str, prefix: str) -> int:
    count = 0
    markers: dict[str, str] = {}
    while True:
        answer = filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **markers)
        count += len(answer.get("Uploads", ()))
        if not answer.get("IsTruncated"):
            return count
        markers = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}
