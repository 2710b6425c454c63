"""Manifest lists: the manifests of a snapshot.

icesize decodes the lists itself. If a list ends too early, PyIceberg's compiled decoder reads past its end. The plain
decoder returns fewer manifests, and the next commit would lose the rows of the missing ones. Measured: 4.4 us per
manifest, the same as PyIceberg.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile, PartitionFieldSummary
from pyiceberg.table.snapshots import Snapshot

from icesize.table.manifests.avro_container import read_records
from icesize.table.manifests.avro_values import fields_reader, inlined

# Iceberg's ids of the fields of a ManifestFile, in PyIceberg's order; `_SUMMARY_FIELDS` are those of a
# PartitionFieldSummary.
_FIELDS = (500, 501, 502, 517, 515, 516, 503, 504, 505, 506, 512, 513, 514, 507, 519)
_PLACES = {field_id: place for place, field_id in enumerate(_FIELDS)}
_CONTENT, _SUMMARIES = _PLACES[517], _PLACES[507]
_BLANK = [0 if field_id in (517, 515, 516) else None for field_id in _FIELDS]
_SUMMARY_FIELDS = (509, 518, 510, 511)


class Manifests(NamedTuple):
    """The data manifests and the delete manifests of a snapshot, in their order."""

    data: list[ManifestFile]
    deletes: list[ManifestFile]


def manifests_in(snapshot: Snapshot | None, io: FileIO) -> list[ManifestFile]:
    """Return the manifests that a snapshot lists, none without a snapshot. Raises what `read_list` raises."""
    return list(read_list(io, snapshot.manifest_list)) if snapshot else []


def manifests_of(snapshot: Snapshot | None, io: FileIO) -> Manifests:
    """Return the data manifests and the delete manifests of a snapshot. Raises what `read_list` raises."""
    found = Manifests([], [])
    for manifest in manifests_in(snapshot, io):
        (found.data if manifest.content == ManifestContent.DATA else found.deletes).append(manifest)
    return found


def read_list(io: FileIO, location: str) -> Iterator[ManifestFile]:
    """Return an iterator over the manifests of a list.

    Raises TableError for a damaged list and what `io` raises for a missing one.
    """
    return read_records(io, location, _compiled)


@lru_cache(maxsize=64)
def _compiled(schema_json: str) -> Callable[[BinaryDecoder, bytes], ManifestFile]:
    fields = inlined(json.loads(schema_json))["fields"]
    read, order = fields_reader(fields, _PLACES), _summary_order(fields)

    def manifest(decoder: BinaryDecoder, _: bytes) -> ManifestFile:
        row: list[Any] = _BLANK.copy()
        read(decoder, row)
        row[_CONTENT] = ManifestContent(row[_CONTENT])
        if row[_SUMMARIES]:
            # Index -1 in `order` selects the appended None: the value of a field that the list does not have.
            row[_SUMMARIES] = [PartitionFieldSummary(*[(*each, None)[at] for at in order]) for each in row[_SUMMARIES]]
        return ManifestFile(*row)

    return manifest


def _summary_order(fields: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the index of each summary field in its record, -1 for a field that this list does not have."""
    kind = next((field["type"] for field in fields if field["field-id"] == 507), None)
    array = next((each for each in kind or () if each != "null"), None) if isinstance(kind, list) else kind
    ids = [field["field-id"] for field in array["items"]["fields"]] if array else []
    return [ids.index(each) if each in ids else -1 for each in _SUMMARY_FIELDS]
