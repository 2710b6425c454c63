"""Avro values into bytes: one function per schema, made once; the counterpart of `avro_types`."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

from pyiceberg.utils.decimal import decimal_to_bytes

from icesize.table.avro_types import AvroSchema, is_pairs

Write: TypeAlias = Callable[[bytearray, Any], object]


def write_long(out: bytearray, value: int) -> None:
    """Append an int or long: zigzag, seven bits per byte, low bits first."""
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def write_bytes(out: bytearray, value: bytes) -> None:
    """Append bytes after their length."""
    write_long(out, len(value))
    out += value


_WRITE: dict[str, Write] = {
    "null": lambda out, value: None,
    "boolean": lambda out, value: out.append(1 if value else 0),
    "int": write_long,
    "long": write_long,
    "float": lambda out, value: out.extend(struct.pack("<f", value)),
    "double": lambda out, value: out.extend(struct.pack("<d", value)),
    "bytes": write_bytes,
    "string": lambda out, value: write_bytes(out, value.encode()),
}


def writer(schema: AvroSchema) -> Write:
    """A function that appends one value of an inlined schema; records are given as sequences, logical maps as dicts.

    Raises ValueError for a type that no manifest has (unions of more than null and one type, enums, string maps).
    """
    if isinstance(schema, str):
        return _WRITE[schema]
    if isinstance(schema, list) and len(schema) == 2 and "null" in schema:
        return _optional(schema.index("null"), writer(schema[1 - schema.index("null")]))
    if not isinstance(schema, dict) or schema["type"] in ("enum", "map"):
        raise ValueError(f"Cannot write a value of the Avro type {json.dumps(schema)}")
    if schema["type"] == "record":
        return _record_writer([writer(field["type"]) for field in schema["fields"]])
    if schema["type"] == "array":
        return _array_writer(writer(schema["items"]), pairs=is_pairs(schema))
    return _logical_writer(schema)


def _logical_writer(schema: Mapping[str, Any]) -> Write:
    kind, logical, size = schema["type"], schema.get("logicalType"), schema.get("size")

    def raw(value: object) -> bytes:
        if isinstance(value, Decimal):
            return decimal_to_bytes(value, byte_length=size)
        return value.bytes if isinstance(value, UUID) else bytes(value)  # type: ignore[call-overload]

    if kind == "fixed":
        return lambda out, value: out.extend(_sized(raw(value), size))
    if kind == "bytes":
        return lambda out, value: write_bytes(out, raw(value))
    return (lambda out, value: write_bytes(out, str(value).encode())) if logical == "uuid" else _WRITE[kind]


def _sized(value: bytes, size: int | None) -> bytes:
    if len(value) != size:
        raise ValueError(f"Cannot write {len(value)} bytes as an Avro fixed of {size}")
    return value


def _optional(null_branch: int, write: Write) -> Write:
    nothing, something = null_branch << 1, (1 - null_branch) << 1

    def run(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(nothing)
        else:
            out.append(something)
            write(out, value)

    return run


def _record_writer(writes: Sequence[Write]) -> Write:
    def run(out: bytearray, values: Sequence[Any]) -> None:
        for write, value in zip(writes, values, strict=True):
            write(out, value)

    return run


def _array_writer(write: Write, *, pairs: bool) -> Write:
    def run(out: bytearray, values: Any) -> None:
        if values:
            write_long(out, len(values))
            for value in values.items() if pairs else values:
                write(out, value)
        out.append(0)

    return run
