"""Locations of files as text: one spelling for comparing, and what lies below what.

The same file is spelt in several ways: Java writes `file:/x` where Python writes `file:///x`, Hadoop `s3a://` where
Iceberg's own FileIO writes `s3://`. Whoever deletes what nobody refers to must see that they are equal.
"""

from __future__ import annotations

import re

from icesize.errors import TableError

_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasbs": "wasb"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_PLAIN = re.compile(r"(?:file:///|(?:s3|gs|abfs)://[^/]+/)(?!/)")
# What URL parsers inside of FileIOs take for something else than a part of the name.
_MISREAD = re.compile(r"[?#\x00-\x1f]")

FOLDER_PROPERTIES = (
    "write.data.path", "write.object-storage.path", "write.folder-storage.path", "write.metadata.path",
)  # fmt: skip
"""Table properties that name folders for the table's files besides its location (Iceberg, with the names it had)."""


def normalised(location: str) -> str:
    """The spelling that all equal spellings share: `s3a` and `s3n` become `s3`, `gcs` `gs`, `abfss` `abfs`; local paths
    begin with `file:///`; doubled slashes and one at the end are dropped, of local paths also `.` segments.

    For comparing only: object stores take `a//b` and `a/b` for two objects, so files are opened as they were spelt.
    """
    if _PLAIN.match(location) and "//" not in location[8:] and "/." not in location and location[-1] != "/":
        return location
    scheme, authority, path = split(location)
    segments = [s for s in path.split("/") if s and (s != "." or scheme != "file")]
    return f"{scheme}://{authority}/{'/'.join(segments)}"


def split(location: str) -> tuple[str, str, str]:
    """Scheme (its alias resolved), authority (a bucket, or a container and its account) and path of a location."""
    match = _SCHEME.fullmatch(location)
    if match is None:
        return "file", "", location
    scheme, rest = match[1].lower(), match[2]
    scheme = _ALIASES.get(scheme, scheme)
    if not rest.startswith("//"):
        return scheme, "", rest
    authority, slash, path = rest[2:].partition("/")
    if scheme == "file" and authority == "localhost":
        authority = ""
    return scheme, authority, slash + path


def is_object_store(location: str) -> bool:
    """Return whether a location lies in a store that is reached by requests, not on local disks or HDFS."""
    return split(location)[0] not in ("file", "hdfs", "viewfs")


def is_inside(location: str, folder: str) -> bool:
    """Whether `location` lies below `folder`, segment by segment; one with `..` in either never does."""
    if has_parent_segment(location) or has_parent_segment(folder):
        return False
    return normalised(location).startswith(normalised(folder).removesuffix("/") + "/")


def has_parent_segment(location: str) -> bool:
    """Whether `..` is a segment of the path, so that the text does not say where the file lies."""
    return ".." in location and ".." in split(location)[2].split("/")


def is_addressable(location: str) -> bool:
    """Whether each FileIO opens exactly this file by its location: PyIceberg's cut `a#b` and `a?b` to `a`."""
    return _MISREAD.search(location) is None


def check_folder(location: str) -> str:
    """The location of a table's folder without a slash at its end.

    Raises TableError for one that must not be searched for files to delete: nothing, the root of a file system, a
    whole bucket or container, or one with `..` in its path.
    """
    if has_parent_segment(location):
        raise TableError(
            f"Cannot list {location!r}: '..' in a location leads outside of it; set the table's location to the real "
            "path",
            location=location,
        )
    if not split(location)[2].strip("/"):
        raise TableError(
            f"Cannot list {location!r}: it is the root of its storage, and files of others may lie there; "
            "a table needs a folder of its own",
            location=location,
        )
    return location.rstrip("/")
