"""Manifest lists, read whole by PyIceberg, or here for what is not known yet.

The lists of a table's snapshots name mostly the same manifests: a thousand of them hold some hundred thousand entries,
of which a few are new.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from io import BytesIO
from typing import Any, NamedTuple

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.io import FileIO, InputFile, InputStream
from pyiceberg.manifest import ManifestContent, ManifestFile, read_manifest_list
from pyiceberg.table.snapshots import Snapshot

from icesize.table.manifests.avro_container import ContainerReader, read_records
from icesize.table.manifests.avro_values import fields_reader, inlined, skipper

_PATH, _ADDED_BY = 500, 503
# Names of a manifest's fields by Iceberg field id; summaries of partitions and key metadata are passed over.
_NAMES = {
    500: "manifest_path",
    501: "manifest_length",
    502: "partition_spec_id",
    517: "content",
    515: "sequence_number",
    516: "min_sequence_number",
    503: "added_snapshot_id",
    504: "added_files_count",
    505: "existing_files_count",
    506: "deleted_files_count",
    512: "added_rows_count",
    513: "existing_rows_count",
    514: "deleted_rows_count",
}


class Manifests(NamedTuple):
    """The manifests of a snapshot by what they list, in their order."""

    data: list[ManifestFile]
    deletes: list[ManifestFile]


def manifests_in(snapshot: Snapshot | None, io: FileIO) -> list[ManifestFile]:
    """The manifests that a snapshot lists, with partition summaries; none of no snapshot.

    The list is checked before PyIceberg decodes it. If a list ends too early, PyIceberg's compiled decoder reads past
    its end, and the plain decoder returns fewer manifests, whose rows the next commit would lose.

    Raises TableError for a damaged list and what `io` raises for a missing one.
    """
    if snapshot is None:
        return []
    with io.new_input(snapshot.manifest_list).open() as stream:
        data = stream.read()
    ContainerReader(data, snapshot.manifest_list).check_whole()
    return list(read_manifest_list(_InMemory(snapshot.manifest_list, data)))


class _InMemory(InputFile):
    """A file that was read."""

    def __init__(self, location: str, data: bytes) -> None:
        super().__init__(location)
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return BytesIO(self._data)


def manifests_of(snapshot: Snapshot | None, io: FileIO) -> Manifests:
    """The manifests that a snapshot lists, with partition summaries; none of no snapshot."""
    found = Manifests([], [])
    for manifest in manifests_in(snapshot, io):
        (found.data if manifest.content == ManifestContent.DATA else found.deletes).append(manifest)
    return found


def read_new(io: FileIO, location: str, known: Callable[[str], bool]) -> Iterator[ManifestFile]:
    """The manifests of a list whose path is not `known`, without partition summaries and key metadata.

    Raises TableError for a damaged list and what `io` raises for a missing one.
    """
    return _unless(io, location, _PATH, known)


def written_by(io: FileIO, snapshot: Snapshot) -> list[ManifestFile]:
    """The manifests that a snapshot has written itself; raises what `read_new` raises."""
    return list(_unless(io, snapshot.manifest_list, _ADDED_BY, lambda writer: writer != snapshot.snapshot_id))


def _unless(io: FileIO, location: str, field_id: int, is_out: Callable[[Any], bool]) -> Iterator[ManifestFile]:
    """The manifests of a list but those whose value of this field is out: these are passed over."""
    for manifest in read_records(io, location, lambda schema: partial(_compiled(schema, field_id), is_out)):
        if manifest is not None:
            yield manifest


@lru_cache(maxsize=64)
def _compiled(
    schema_json: str, field_id: int
) -> Callable[[Callable[[Any], bool], BinaryDecoder, bytes], ManifestFile | None]:
    fields, name = inlined(json.loads(schema_json))["fields"], _NAMES[field_id]
    end = next((i for i, field in enumerate(fields, 1) if field["field-id"] == field_id), len(fields))
    read_before, read_after = (fields_reader(some, _NAMES) for some in (fields[:end], fields[end:]))
    skip_after = skipper({"type": "record", "fields": fields[end:]})

    def read(is_out: Callable[[Any], bool], decoder: BinaryDecoder, _: bytes) -> ManifestFile | None:
        values: dict[str, Any] = {"content": 0, "sequence_number": 0, "min_sequence_number": 0}
        read_before(decoder, values)
        if is_out(values.get(name)):
            skip_after(decoder)
            return None
        read_after(decoder, values)
        values["content"] = ManifestContent(values["content"])
        return ManifestFile.from_args(**values)

    return read
