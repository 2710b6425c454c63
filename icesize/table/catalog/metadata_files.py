"""Older metadata files of a table, read as JSON: the table's own state is the catalog's to give.

Java writes them compressed where `write.metadata.compression-codec` says so, as `x.gz.metadata.json`; older releases as
`x.metadata.json.gz`. What is compressed is known by its first bytes.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from pyiceberg.io import FileIO

from icesize.errors import TableError

_GZIP = b"\x1f\x8b"


def read_metadata_file(io: FileIO, location: str) -> dict[str, Any] | None:
    """What a metadata file says; None when it is gone, as old ones are deleted.

    Raises TableError for one that cannot be understood: nobody may conclude anything from it.
    """
    try:
        with io.new_input(location).open() as stream:
            data = stream.read()
    except FileNotFoundError:
        return None
    try:
        return dict(json.loads(uncompressed(data)))
    except (TypeError, ValueError, zlib.error) as error:
        raise TableError(
            f"Cannot read the metadata file {location}: it is damaged ({type(error).__name__})", location=location
        ) from error


def uncompressed(data: bytes) -> bytes:
    """The text of a metadata file, or of the part of it that is given."""
    if not data.startswith(_GZIP):
        return data
    return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(data)
