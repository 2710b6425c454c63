"""Manifest lists, read for what is not known yet.

The lists of a table's snapshots name mostly the same manifests: a thousand of them hold some hundred thousand entries,
of which a few are new.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile

from icesize.table.manifests.avro_container import ContainerReader
from icesize.table.manifests.avro_decode import AvroSchema, Read, inlined, reader, skipper
from icesize.table.manifests.entries import without_gc

_PATH = 500
# Names of a manifest's fields by Iceberg field id; summaries of partitions and key metadata are passed over.
_NAMES = {
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
# What bytes that do not fit the schema make the decoders raise.
_DAMAGE = (EOFError, IndexError, MemoryError, SystemError, ValueError)
_ReadRest = Callable[[BinaryDecoder, dict[str, Any]], None]


def read_new(io: FileIO, location: str, known: Callable[[str], bool]) -> Iterator[ManifestFile]:
    """The manifests of a list whose path is not `known`, without partition summaries and key metadata.

    Raises TableError for a damaged list and what `io` raises for a missing one.
    """
    with io.new_input(location).open() as stream:
        container = ContainerReader(stream.read(), location)
    if "avro.schema" not in container.metadata:
        raise container.broken("it has no schema")
    before, path, skip, read = _compiled(container.metadata["avro.schema"])
    with without_gc():
        for block in container.blocks():
            for _ in range(block.count):
                try:
                    values: dict[str, Any] = {}
                    before(block.decoder, values)
                    name = path(block.decoder)
                    if known(name):
                        skip(block.decoder)
                        continue
                    read(block.decoder, values)
                except _DAMAGE as damage:
                    raise container.broken(f"an entry is damaged ({damage})") from damage
                yield _manifest(name, values)


def _manifest(path: str, values: dict[str, Any]) -> ManifestFile:
    values["content"] = ManifestContent(values.get("content", 0))
    return ManifestFile.from_args(manifest_path=path, **{"sequence_number": 0, "min_sequence_number": 0, **values})


@lru_cache(maxsize=64)
def _compiled(schema_json: str) -> tuple[_ReadRest, Read, Callable[[BinaryDecoder], None], _ReadRest]:
    """How the fields before the path are read, the path, and the fields after it: passed over, or read."""
    fields = inlined(json.loads(schema_json))["fields"]
    at = next(i for i, field in enumerate(fields) if field["field-id"] == _PATH)
    return _reads(fields[:at]), reader(fields[at]["type"]), _skips(fields[at + 1 :]), _reads(fields[at + 1 :])


def _reads(fields: list[dict[str, Any]]) -> _ReadRest:
    steps = [(_NAMES.get(f["field-id"]), (reader if f["field-id"] in _NAMES else skipper)(f["type"])) for f in fields]

    def run(decoder: BinaryDecoder, values: dict[str, Any]) -> None:
        for name, step in steps:
            value = step(decoder)
            if name is not None:
                values[name] = value

    return run


def _skips(fields: list[dict[str, Any]]) -> Callable[[BinaryDecoder], None]:
    """Passes over fields; a run of numbers by one call."""
    steps: list[Read] = []
    for number, group in itertools.groupby((field["type"] for field in fields), _is_number):
        types = list(group)
        steps += [_ints(len(types))] if number else [skipper(each) for each in types]

    def run(decoder: BinaryDecoder) -> None:
        for step in steps:
            step(decoder)

    return run


def _is_number(schema: AvroSchema) -> bool:
    return schema in ("int", "long")


def _ints(count: int) -> Read:
    return lambda decoder: decoder.read_ints(count)
