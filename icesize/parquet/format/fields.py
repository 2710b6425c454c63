"""Values of single fields of Thrift structs, read and made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from icesize.parquet.format.thrift import (
    BINARY,
    BOOLEAN_FALSE,
    BOOLEAN_TRUE,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    Fields,
    MalformedError,
    list_head,
    read_list_head,
    read_struct,
    read_structs,
    read_varint,
    signed,
    varint,
    write_struct,
    zigzag,
)

_INTEGERS = frozenset((I16, I32, I64))
_ENCODED_BELOW = {I16: 2**16, I32: 2**32}
"""What `zigzag` encodes has as many bits as the type; no number that is read has more than 64."""


def structs_of(fields: Fields, field_id: int) -> list[Fields]:
    """The structs of a field that is a list of them; none when it is absent."""
    if field_id not in fields:
        return []
    return read_structs(raw_of(fields, field_id, LIST))[0]


def struct_of(fields: Fields, field_id: int) -> Fields | None:
    """The struct that a field holds, None when it is absent."""
    return read_struct(raw_of(fields, field_id, STRUCT))[0] if field_id in fields else None


def raw_of(fields: Fields, field_id: int, kind: int) -> Any:
    """The value of a field that must be there with this type."""
    found, raw = fields.get(field_id, (0, b""))
    if found != kind:
        raise MalformedError(f"field {field_id} is missing or of type {found}")
    return raw


def integer(fields: Fields, field_id: int) -> int | None:
    """The value of an integer field, None when it is absent."""
    found = fields.get(field_id)
    if found is None:
        return None
    if found[0] not in _INTEGERS:
        raise MalformedError(f"field {field_id} is not an integer")
    encoded, _ = read_varint(found[1], 0)
    return (encoded >> 1) ^ -(encoded & 1)


def check_widths(fields: Fields) -> None:
    """Raise `MalformedError` where an integer has more bits than its type: other readers would cut them off."""
    for field_id, (kind, raw) in fields.items():
        if kind in _ENCODED_BELOW and len(raw) > 2 and read_varint(raw, 0)[0] >= _ENCODED_BELOW[kind]:
            raise MalformedError(f"field {field_id} is too large for its type")


def required_integer(fields: Fields, field_id: int) -> int:
    """The value of an integer field that must be there."""
    value = integer(fields, field_id)
    if value is None:
        raise MalformedError(f"field {field_id} is missing")
    return value


def binary(fields: Fields, field_id: int) -> bytes | None:
    """The value of a binary or string field, None when it is absent."""
    found = fields.get(field_id)
    if found is None:
        return None
    if found[0] != BINARY:
        raise MalformedError(f"field {field_id} is not binary")
    length, at = read_varint(found[1], 0)
    return bytes(found[1][at : at + length])


def boolean(fields: Fields, field_id: int) -> bool | None:
    """The value of a boolean field, None when it is absent."""
    found = fields.get(field_id)
    if found is None:
        return None
    if found[0] not in (BOOLEAN_TRUE, BOOLEAN_FALSE):
        raise MalformedError(f"field {field_id} is not a boolean")
    return bool(found[0] == BOOLEAN_TRUE)


def integers_of(fields: Fields, field_id: int) -> list[int]:
    """The numbers of a field that is a list of them; none when it is absent."""
    if field_id not in fields:
        return []
    data = raw_of(fields, field_id, LIST)
    count, kind, at = read_list_head(data, 0)
    if count and kind not in (I16, I32, I64):
        raise MalformedError(f"field {field_id} is not a list of integers")
    values = []
    for _ in range(count):
        value, at = read_varint(data, at)
        values.append(signed(value))
    return values


def binaries_of(fields: Fields, field_id: int) -> list[bytes]:
    """The values of a field that is a list of binaries or strings; none when it is absent."""
    if field_id not in fields:
        return []
    data = raw_of(fields, field_id, LIST)
    count, kind, at = read_list_head(data, 0)
    if count and kind != BINARY:
        raise MalformedError(f"field {field_id} is not a list of binaries")
    values = []
    for _ in range(count):
        length, at = read_varint(data, at)
        values.append(bytes(data[at : at + length]))
        at += length
    return values


def i16(value: int) -> tuple[int, bytes]:
    """A field value."""
    return I16, zigzag(value)


def i32(value: int) -> tuple[int, bytes]:
    """A field value."""
    return I32, zigzag(value)


def i64(value: int) -> tuple[int, bytes]:
    """A field value."""
    return I64, zigzag(value)


def bytes_field(value: bytes) -> tuple[int, bytes]:
    """A field value."""
    return BINARY, varint(len(value)) + value


def boolean_field(value: bool) -> tuple[int, bytes]:
    """A field value."""
    return (BOOLEAN_TRUE if value else BOOLEAN_FALSE), b""


def struct_field(fields: Fields) -> tuple[int, bytes]:
    """A field value."""
    return STRUCT, write_struct(fields)


def structs_field(structs: Iterable[Fields]) -> tuple[int, bytes]:
    """A field value: a list of structs."""
    raws = [write_struct(fields) for fields in structs]
    return LIST, list_head(len(raws)) + b"".join(raws)


def integers_field(values: Iterable[int], kind: int) -> tuple[int, bytes]:
    """A field value: a list of integers of this type."""
    raws = [zigzag(value) for value in values]
    return LIST, list_head(len(raws), kind) + b"".join(raws)
