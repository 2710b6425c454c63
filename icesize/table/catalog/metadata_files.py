"""Older metadata files of a table."""

from __future__ import annotations

import json
import zlib
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from icesize.errors import TableError


def read_metadata_file(io: FileIO, location: str) -> dict[str, Any] | None:
    """Return the content of an older metadata file; None if it is gone. The current state comes from the catalog alone.

    Raises TableError for a damaged file, because no conclusion may be drawn from it.
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


def superseded_metadata_files(before: TableMetadata, after: TableMetadata) -> list[str]:
    """Return the metadata files that a commit has dropped from the log, if the table wants them to be deleted."""
    if after.properties.get("write.metadata.delete-after-commit.enabled", "").lower() != "true":
        return []
    kept = {entry.metadata_file for entry in after.metadata_log}
    return [entry.metadata_file for entry in before.metadata_log if entry.metadata_file not in kept]


def uncompressed(data: bytes) -> bytes:
    """Return the text of a metadata file, or of a part of it.

    Java compresses the file if `write.metadata.compression-codec` requires it, as `x.gz.metadata.json`; older releases
    used `x.metadata.json.gz`. The first bytes show the compression.
    """
    if not data.startswith(b"\x1f\x8b"):
        return data
    return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(data)
