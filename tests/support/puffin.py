"""Puffin files with deletion vectors and a footer, as engines write them, and their commit."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from icesize.parquet.files.data_file import NewDeleteFile
from icesize.planning.files import FileFact, FileId
from icesize.table.manifests.packing import Split
from tests.support.tables import commit_built
from tests.support.unit_vectors import BEFORE, vector


def footer(blobs: Sequence[Mapping[str, Any]], compressed: bool = False, padding: int = 0) -> bytes:
    """The footer of a Puffin file."""
    payload = json.dumps({"blobs": blobs, "properties": {"padding": " " * padding}}).encode()
    if compressed:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "lz4") as stream:
            stream.write(payload)
        payload = sink.getvalue().to_pybytes()
    return BEFORE + payload + len(payload).to_bytes(4, "little") + bytes([compressed, 0, 0, 0]) + BEFORE


def vectors_in_puffin(
    table: Table,
    positions: Mapping[FileFact, Sequence[int]],
    footer_of: Callable[[list[dict[str, Any]]], bytes] = footer,
) -> list[NewDeleteFile]:
    """Vectors of data files in one new Puffin file, which is not committed."""
    data, made, blobs = BEFORE, list[NewDeleteFile](), list[dict[str, Any]]()
    path = f"{table.location()}/data/{uuid.uuid4()}-deletes.puffin"
    for file, deleted in positions.items():
        blob = vector(deleted)
        properties = {"referenced-data-file": file.path, "cardinality": str(len(deleted))}
        place = {"offset": len(data), "length": len(blob), "snapshot-id": -1, "sequence-number": -1, "fields": []}
        blobs.append({"type": "deletion-vector-v1", **place, "properties": properties})
        made.append(
            NewDeleteFile(
                path, 0, len(deleted), file.partition, deletes_of=file.path, content_offset=len(data),
                content_size_bytes=len(blob),
            )
        )  # fmt: skip
        data += blob
    data += footer_of(blobs)
    with table.io.new_output(path).create() as stream:
        stream.write(data)
    return [replace(each, size_bytes=len(data)) for each in made]


def add_deletes(catalog: Catalog, deletes: Sequence[NewDeleteFile]) -> Table:
    """Commit delete files or vectors, beside those that are there."""
    return commit_built(catalog, lambda builder: builder.exchange(Operation.DELETE, Split(), deletes, {}))


def exchange_vectors(
    catalog: Catalog, positions: Mapping[FileFact, Sequence[int]], replaced: Sequence[FileId]
) -> Table:
    """Commit vectors with all deleted rows of data files, in place of the vectors that the files have."""
    made = vectors_in_puffin(catalog.load_table("db.t"), positions)
    return commit_built(
        catalog,
        lambda builder: builder.exchange(Operation.DELETE, builder.split(replaced, ManifestContent.DELETES), made, {}),
    )
