"""Avro values into bytes: one function per schema, made once; the counterpart of `avro_decode`."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

from pyiceberg.utils.decimal import decimal_to_bytes

from icesize.table.manifests.avro_decode import AvroSchema, is_pairs

Write: TypeAlias = Callable[[bytearray, Any], object]


def _integer_writer(kind: str, bits: int) -> Callable[[bytearray, int], None]:
    most = 2**bits - 1  # after zigzag

    def write(out: bytearray, number: int) -> None:
        value = (number << 1) ^ (number >> 63)
        if value > most:
            raise ValueError(f"Cannot write {number} as an Avro {kind}")
        while value > 0x7F:
            out.append((value & 0x7F) | 0x80)
            value >>= 7
        out.append(value)

    return write


write_long = _integer_writer("long", 64)
"""Append a long: zigzag, seven bits per byte, low bits first. Raises ValueError for a number of more than 64 bits."""


def write_bytes(out: bytearray, value: bytes) -> None:
    """Append bytes after their length."""
    write_long(out, len(value))
    out += value


def _write_null(_: bytearray, value: object) -> None:
    if value is not None:
        raise ValueError(f"Cannot write {value!r} as an Avro null")


def _float_writer(kind: str, layout: struct.Struct) -> Write:
    def write(out: bytearray, value: float) -> None:
        try:
            packed = layout.pack(value)
        except OverflowError as error:
            raise ValueError(f"Cannot write {value!r} as an Avro {kind}") from error
        if layout.unpack(packed)[0] != value and value == value:
            raise ValueError(f"Cannot write {value!r} as an Avro {kind}: it would not be the same number")
        out += packed

    return write


_WRITE: dict[str, Write] = {
    "null": _write_null,
    "boolean": lambda out, value: out.append(1 if value else 0),
    "int": _integer_writer("int", 32),
    "long": write_long,
    "float": _float_writer("float", struct.Struct("<f")),
    "double": _float_writer("double", struct.Struct("<d")),
    "bytes": write_bytes,
    "string": lambda out, value: write_bytes(out, value.encode()),
}


def writer(schema: AvroSchema) -> Write:
    """A function that appends one value of an inlined schema; records are given as sequences, logical maps as dicts.

    Raises ValueError for a type that no manifest has (unions of more than null and one type, enums, string maps). So
    does the function for a number that has no place in its type: it is never shortened.
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
            _check_decimal(value, schema)
            return decimal_to_bytes(value, byte_length=size)
        return value.bytes if isinstance(value, UUID) else bytes(value)  # type: ignore[call-overload]

    if kind == "fixed":
        return lambda out, value: out.extend(_sized(raw(value), size))
    if kind == "bytes":
        return lambda out, value: write_bytes(out, raw(value))
    return (lambda out, value: write_bytes(out, str(value).encode())) if logical == "uuid" else _WRITE[kind]


def _check_decimal(value: Decimal, schema: Mapping[str, Any]) -> None:
    """Bytes hold the digits alone, so a value of another scale would become another number."""
    _, digits, exponent = value.as_tuple()
    scale, precision = schema.get("scale", 0), schema["precision"]
    if exponent != -scale or len(digits) > precision:
        raise ValueError(f"Cannot write {value} as an Avro decimal({precision}, {scale})")


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
