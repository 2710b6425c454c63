"""Locations of files as strings: one spelling for comparisons, and tests for nested locations.

A file has several spellings. Java writes `file:/x` and Python `file:///x`; Hadoop writes `s3a://` and Iceberg's own
FileIO `s3://`. A cleanup of unreferenced files must recognize them as equal.
"""

from __future__ import annotations

import re

from icesize.errors import TableError

_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasbs": "wasb"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_PLAIN = re.compile(r"(?:file:///|(?:s3|gs|abfs)://[^/]+/)(?!/)")
# Characters that URL parsers inside of FileIOs do not treat as a part of the name.
_MISREAD = re.compile(r"[?#\x00-\x1f]")

FOLDER_PROPERTIES = (
    "write.data.path", "write.object-storage.path", "write.folder-storage.path", "write.metadata.path",
)  # fmt: skip
"""Table properties for directories of the table's files besides its location (Iceberg's current and former names)."""


def normalised(location: str) -> str:
    """Return the spelling that all equal spellings share.

    `s3a` and `s3n` become `s3`, `gcs` becomes `gs`, `abfss` becomes `abfs`. Local paths begin with `file:///`. Double
    slashes and a final one are dropped; in local paths, also `.` segments.

    The result is for comparison only: object stores treat `a//b` and `a/b` as two objects, so files are opened by their
    original spelling.
    """
    if _PLAIN.match(location) and "//" not in location[8:] and "/." not in location and location[-1] != "/":
        return location
    scheme, authority, path = split(location)
    segments = [s for s in path.split("/") if s and (s != "." or scheme != "file")]
    return f"{scheme}://{authority}/{'/'.join(segments)}"


def split(location: str) -> tuple[str, str, str]:
    """Return scheme (alias resolved), authority (a bucket, or a container and its account) and path of a location."""
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
    """Return True if a location lies in a store reached by requests, not on local disks or HDFS."""
    return split(location)[0] not in ("file", "hdfs", "viewfs")


def is_inside(location: str, folder: str) -> bool:
    """Return True if `location` lies below `folder`, by path segments; False if either has `..`."""
    if has_parent_segment(location) or has_parent_segment(folder):
        return False
    return normalised(location).startswith(normalised(folder).removesuffix("/") + "/")


def has_parent_segment(location: str) -> bool:
    """Return True if the path has a `..` segment, so that the string does not show where the file lies."""
    return ".." in location and ".." in split(location)[2].split("/")


def is_addressable(location: str) -> bool:
    """Return True if each FileIO opens exactly this file by its location: PyIceberg's cut `a#b` and `a?b` to `a`."""
    return _MISREAD.search(location) is None


def names_one_file(location: str) -> bool:
    """Return True if all storage clients open the same file by this location.

    In object stores and HDFS they do not: Hadoop drops `//`, Iceberg's S3FileIO and PyArrowFileIO cut `a#b` and `a?b`.
    """
    return split(location)[0] == "file" or (is_addressable(location) and "//" not in split(location)[2])


def check_folder(location: str) -> str:
    """Return the location of a table's directory without a final slash.

    Raises TableError for a location that must not be searched for files to delete: an empty one, the root of a file
    system, a whole bucket or container, or a path with `..`.
    """
    if has_parent_segment(location):
        raise TableError(
            f"Cannot list {location!r}: '..' in a location leads outside of it; set the table's location to the real "
            "path",
            location=location,
        )
    if not split(location)[2].strip("/"):
        raise TableError(
            f"Cannot list {location!r}: it is the root of its storage and may contain other files; "
            "set the table's location to a directory of its own",
            location=location,
        )
    return location.rstrip("/")
