"""Manifests, manifest lists and metadata as other writers make them: the same facts in another shape."""

from __future__ import annotations

import bz2
import json
import lzma
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table

from icesize.table.manifests.avro_container import ContainerReader
from icesize.table.manifests.avro_values import inlined, reader, write_bytes, write_long, writer
from tests.support.v3_tables import with_document

Change = Callable[[Any], Any]
_MANIFEST_PATH, _MANIFEST_LENGTH, _PARTITION = 500, 501, 102
_MAP_ITEMS = ("key", "value")
UNKNOWN: tuple[tuple[Any, Any], ...] = (
    (["null", "string"], "unknown"), ("bytes", b"xyz"), ({"type": "array", "items": "long"}, [7, -7]),
)  # fmt: skip
"""Types of fields that no version of Iceberg has, with their values."""


def _snappy(data: bytes) -> bytes:
    return pa.Codec("snappy").compress(data, asbytes=True) + zlib.crc32(data).to_bytes(4, "big")


def _deflate(data: bytes) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflate.compress(data) + deflate.flush()


def _zstandard(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:  # a frame without the size of its content
        stream.write(data)
    return sink.getvalue().to_pybytes()


CODECS: Mapping[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _deflate,
    "snappy": _snappy,
    "zstandard": _zstandard,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}
"""All codecs of the Avro specification."""


def same(items: Sequence[Any]) -> Sequence[Any]:
    """The items in their order."""
    return items


@dataclass(frozen=True)
class Shape:
    """How a writer encodes its metadata.

    Attributes:
        order: The order of a record's fields, from the order that they have.
        partition_order: The same for partition values.
        name: The name of a field, from its name and id.
        lacks: Ids of fields that are not written.
        unknown: Number of unknown fields at the end of each record.
        has_unknown_ids: Whether unknown fields have field ids.
        unions: The order of the types of a union.
        codec: Codec of the blocks.
        block_records: Records of a block.
        header: The keys of the header that are written, beside those of Avro.
        has_field_ids: Whether fields have field ids.
        has_text_ids: Whether they are text.
        marks_maps: Whether arrays of keys and values are marked as maps.
        text: The spelling of file formats.
        more_partitions: Fields of a partition that the partition spec does not have, by field id: type and value.
    """

    order: Callable[[Sequence[Any]], Sequence[Any]] = same
    partition_order: Callable[[Sequence[Any]], Sequence[Any]] = same
    name: Callable[[str, int | None], str] = lambda name, _: name
    lacks: frozenset[int] = frozenset()
    unknown: int = 0
    has_unknown_ids: bool = True
    unions: Callable[[Sequence[Any]], Sequence[Any]] = same
    codec: str = "deflate"
    block_records: int = 100
    header: Callable[[str], bool] = lambda key: True
    has_field_ids: bool = True
    has_text_ids: bool = False
    marks_maps: bool = True
    text: Callable[[str], str] = str
    more_partitions: Mapping[int, tuple[Any, Any]] = field(default_factory=dict)

    def schema(self, node: Any) -> tuple[Any, Change]:
        """The schema in this shape, and what changes a value of the given one into a value of it."""
        if isinstance(node, str):
            return node, _unchanged
        if isinstance(node, list):
            kinds = [self.schema(each) for each in node]
            change = next((change for kind, change in kinds if kind != "null"), _unchanged)
            return list(self.unions([kind for kind, _ in kinds])), lambda v: None if v is None else change(v)
        if node["type"] == "record":
            return self._record(node)
        if node["type"] == "array":
            items, change = self.schema(node["items"])
            kept = {k: v for k, v in node.items() if self.marks_maps or k != "logicalType"}
            if not self.has_field_ids:
                kept.pop("element-id", None)
            is_map = node.get("logicalType") == "map"
            return {**kept, "items": items}, _unchanged if is_map else lambda v: list(map(change, v))
        return node, _unchanged

    def _record(self, node: Any, *, partition: bool = False) -> tuple[Any, Change]:
        parts = list[tuple[Any, Callable[[Sequence[Any]], Any]]]()
        is_map = tuple(each["name"] for each in node["fields"]) == _MAP_ITEMS
        for place, each in enumerate(node["fields"]):
            number = each.get("field-id")
            if number in self.lacks:
                continue
            values = number == _PARTITION
            kind, change = self._record(each["type"], partition=True) if values else self.schema(each["type"])
            change = self.text if number == 101 else change
            what = {**each, "type": kind} if is_map else self._field(each, kind)
            parts.append((what, lambda values, at=place, how=change: how(values[at])))
        for number, (kind, value) in self.more_partitions.items() if partition else ():
            parts.append((self._field({"name": f"more{number}", "field-id": number}, kind), lambda _, it=value: it))
        if not is_map:
            parts = [*(self.partition_order if partition else self.order)(parts), *self._unknown()]
        changes = [change for _, change in parts]
        fields = {"fields": [each for each, _ in parts]}
        return {**node, **fields}, lambda values: tuple(change(values) for change in changes)

    def _field(self, given: Mapping[str, Any], kind: Any) -> Any:
        kept = {key: value for key, value in given.items() if key not in ("default", "doc")}
        if not self.has_field_ids:
            kept.pop("field-id", None)
        if self.has_text_ids and "field-id" in kept:
            kept["field-id"] = str(kept["field-id"])
        return {**kept, "name": self.name(given["name"], given.get("field-id")), "type": kind}

    def _unknown(self) -> list[tuple[Any, Callable[[Any], Any]]]:
        found = []
        for number in range(self.unknown):
            kind, value = UNKNOWN[number % len(UNKNOWN)]
            what: dict[str, Any] = {"name": f"unknown_{number}", "type": kind}
            if self.has_unknown_ids and self.has_field_ids:
                what["field-id"] = 90_000 + number
            found.append((what, lambda _, it=value: it))
        return found


def _unchanged(value: Any) -> Any:
    return value


def reshaped(data: bytes, shape: Shape, change: Change = _unchanged) -> bytes:
    """The records of an Avro file in another shape; `change` changes a record's values by field id before."""
    container = ContainerReader(data, "foreign")
    before = inlined(json.loads(container.schema))
    read, ids = reader(before), [each["field-id"] for each in before["fields"]]
    stored = container.records(lambda schema: lambda decoder, _: read(decoder))
    records = [tuple(change(dict(zip(ids, values, strict=True))).values()) for values in stored]
    schema, convert = shape.schema(before)
    schema = inlined(schema)
    header = {key: value for key, value in container.metadata.items() if not key.startswith("avro.")}
    return avro_file(schema, map(convert, records), {k: v for k, v in header.items() if shape.header(k)}, shape)


def avro_file(schema: Any, records: Any, header: Mapping[str, str], shape: Shape) -> bytes:
    """An Avro container file of records."""
    write, sync = writer(schema), os.urandom(16)
    out = bytearray(b"Obj\x01")
    header = {"avro.codec": shape.codec, **header, "avro.schema": json.dumps(schema)}
    write_long(out, len(header))
    for key, value in header.items():
        write_bytes(out, key.encode())
        write_bytes(out, value.encode())
    out += b"\0" + sync
    every = list(records)
    for start in range(0, len(every), shape.block_records):
        block = bytearray()
        for record in every[start : start + shape.block_records]:
            write(block, record)
        write_long(out, len(every[start : start + shape.block_records]))
        write_bytes(out, CODECS[shape.codec](bytes(block)))
        out += sync
    return bytes(out)


def as_written_by(
    catalog: Catalog,
    manifests: Shape,
    lists: Shape | None = None,
    name: str = "db.t",
    document: Change = _unchanged,
) -> Table:
    """The table after all of its manifests and lists were written again in these shapes, in files of other names.

    `document` changes the metadata document in place.
    """
    table = catalog.load_table(name)
    new = dict[str, tuple[str, int]]()

    def moved(manifest: dict[int, Any]) -> dict[int, Any]:
        path = manifest[_MANIFEST_PATH]
        if path not in new:
            data = reshaped(_read(table.io, path), manifests)
            new[path] = _write(table.io, f"{table.metadata.location}/metadata/foreign-{len(new)}-m.avro", data)
        at, size_bytes = new[path]
        return {**manifest, _MANIFEST_PATH: at, _MANIFEST_LENGTH: size_bytes}

    places = {}
    for snapshot in table.metadata.snapshots:
        data = reshaped(_read(table.io, snapshot.manifest_list), lists or Shape(), moved)
        place = f"{table.metadata.location}/metadata/foreign-{snapshot.snapshot_id}.avro"
        places[snapshot.snapshot_id], _ = _write(table.io, place, data)

    def changed(whole: dict[str, Any]) -> None:
        for snapshot in whole["snapshots"]:
            snapshot["manifest-list"] = places[snapshot["snapshot-id"]]
        document(whole)

    return with_document(catalog, changed, name)


def _read(io: FileIO, location: str) -> bytes:
    with io.new_input(location).open() as stream:
        return stream.read()


def _write(io: FileIO, location: str, data: bytes) -> tuple[str, int]:
    with io.new_output(location).create(overwrite=True) as stream:
        stream.write(data)
    return location, len(data)
