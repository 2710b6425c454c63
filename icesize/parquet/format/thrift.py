"""Thrift's compact protocol, read and written without loss.

A struct is a dictionary from field id to (type, raw bytes of the value): what is not understood is kept byte for byte,
also in structs that newer versions of Parquet extend. Fields that have to be changed are read one by one.
Specification: thrift/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

BOOLEAN_TRUE, BOOLEAN_FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(1, 14)
_FIXED_BYTES = {BYTE: 1, DOUBLE: 8, UUID: 16}
_VARINTS = frozenset((I16, I32, I64))
_LONGEST_VARINT = 10
_LARGEST = 2**64 - 1
_LARGEST_FIELD_ID = 2**15 - 1
_MOST_NESTING = 32
"""Structs and lists in each other, far more than Parquet has."""
_MOST_STRUCTS = 2**20
"""In one list. An empty struct takes one byte in a file and 70 in memory."""
_STOP = b"\0"

Bytes: TypeAlias = "bytes | memoryview"
Fields: TypeAlias = "dict[int, tuple[int, Any]]"
"""Field id -> (compact type, raw value), or a parsed value in its place where a parser was given."""
Parser: TypeAlias = Callable[[Bytes, int], "tuple[Any, int]"]
"""(buffer, position) -> (value, position after it)."""


class MalformedError(ValueError):
    """The bytes are not what the protocol allows."""


def read_varint(data: Bytes, at: int) -> tuple[int, int]:
    """An unsigned number of at most 64 bits and the position after it."""
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    result = shift = 0
    for byte in data[at : at + _LONGEST_VARINT]:
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if result > _LARGEST:
                break
            return result, at
        shift += 7
    raise MalformedError("a number is cut off or longer than 64 bits")


def varint(value: int) -> bytes:
    """An unsigned number, encoded."""
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value: int) -> bytes:
    """A signed number of up to 64 bits, encoded."""
    return varint((value << 1) ^ (value >> 63))


def signed(value: int) -> int:
    """What `zigzag` encoded, from its unsigned number."""
    return (value >> 1) ^ -(value & 1)


def read_list_head(data: Bytes, at: int) -> tuple[int, int, int]:
    """Number of elements, their type, position of the first."""
    if at >= len(data):
        raise MalformedError("a list is cut off")
    head = data[at]
    at += 1
    count, kind = head >> 4, head & 15
    if count == 15:
        count, at = read_varint(data, at)
    return count, kind, at


def list_head(count: int, kind: int = STRUCT) -> bytes:
    """What stands before the elements of a list."""
    return bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + varint(count)


def skip(data: Bytes, at: int, kind: int, depth: int = 0) -> int:
    """Position after a value of this type, which is not that of a boolean field: those have no bytes."""
    if kind == STRUCT:
        end = _skip_struct(data, at, depth)
    elif kind == BINARY:
        length, at = read_varint(data, at)
        end = at + length
    elif kind in (LIST, SET):
        end = _skip_list(data, at, depth)
    elif kind in _VARINTS:
        end = _after_varint(data, at)
    elif kind in _FIXED_BYTES:
        end = at + _FIXED_BYTES[kind]
    else:  # maps do not occur in Parquet
        raise MalformedError(f"type {kind}")
    if end > len(data):
        raise MalformedError("a value is cut off")
    return end


def _after_varint(data: Bytes, at: int) -> int:
    """Position after a number of any length, which may be behind the end of the data."""
    size = len(data)
    while at < size and data[at] > 0x7F:
        at += 1
    return at + 1


def _skip_struct(data: Bytes, at: int, depth: int) -> int:
    if depth > _MOST_NESTING:
        raise MalformedError("nested too deeply")
    size = len(data)
    while at < size:
        head = data[at]
        at += 1
        if head == 0:
            return at
        if head < 16:
            _, at = read_varint(data, at)
        kind = head & 15
        if kind in _VARINTS:
            while at < size and data[at] > 0x7F:
                at += 1
            at += 1
        elif kind == 0:
            raise MalformedError("a field without type")
        elif kind > BOOLEAN_FALSE:
            at = skip(data, at, kind, depth + 1)
    raise MalformedError("a struct is cut off")


def _skip_list(data: Bytes, at: int, depth: int) -> int:
    if depth > _MOST_NESTING:
        raise MalformedError("nested too deeply")
    count, kind, at = read_list_head(data, at)
    if kind in (BOOLEAN_TRUE, BOOLEAN_FALSE, BYTE):
        return at + count
    if kind in _FIXED_BYTES:
        return at + count * _FIXED_BYTES[kind]
    if count > len(data) - at:
        raise MalformedError("a list is longer than the data")
    if kind in _VARINTS:
        for _ in range(count):
            at = _after_varint(data, at)
        return at
    for _ in range(count):
        at = skip(data, at, kind, depth + 1)
    return at


def read_struct(
    data: Bytes, at: int = 0, parsers: Mapping[int, tuple[int, Parser]] | None = None
) -> tuple[Fields, int]:
    """The fields of a struct and the position after it.

    `parsers` maps field ids to (type, parser): such values are parsed in place, and the caller encodes them again.
    """
    fields: Fields = {}
    field_id, size = 0, len(data)
    while at < size:
        head = data[at]
        at += 1
        if head == 0:
            return fields, at
        kind = head & 15
        if head < 16:
            number, at = read_varint(data, at)
            field_id = signed(number)
        else:
            field_id += head >> 4
        if kind == 0 or field_id in fields or not 0 < field_id <= _LARGEST_FIELD_ID:
            raise MalformedError(f"field {field_id} of type {kind}")
        if parsers is not None and field_id in parsers and parsers[field_id][0] == kind:
            value, at = parsers[field_id][1](data, at)
            fields[field_id] = (kind, value)
            continue
        end = at
        if kind in _VARINTS:
            while end < size and data[end] > 0x7F:
                end += 1
            end += 1
        elif kind > BOOLEAN_FALSE:
            end = skip(data, at, kind)
        fields[field_id] = (kind, data[at:end])
        at = end
    raise MalformedError("a struct is cut off")


def write_struct(fields: Fields) -> bytes:
    """A struct whose values are all raw."""
    out, last = bytearray(), 0
    for field_id in sorted(fields):
        kind, raw = fields[field_id]
        step = field_id - last
        if 0 < step <= 15:
            out.append(step << 4 | kind)
        else:
            out.append(kind)
            out += zigzag(field_id)
        out += raw
        last = field_id
    return bytes(out + _STOP)


def read_structs(
    data: Bytes, at: int = 0, parsers: Mapping[int, tuple[int, Parser]] | None = None
) -> tuple[list[Fields], int]:
    """The structs of a list and the position after it."""
    return read_list(data, at, lambda data, at: read_struct(data, at, parsers))


def read_list(data: Bytes, at: int, parser: Parser) -> tuple[list[Any], int]:
    """What the parser makes of the structs of a list, and the position after it."""
    count, kind, at = read_list_head(data, at)
    if count and kind != STRUCT:
        raise MalformedError("not a list of structs")
    if count > min(len(data) - at, _MOST_STRUCTS):
        raise MalformedError("a list is longer than the data, or than any of Parquet")
    values = []
    for _ in range(count):
        value, at = parser(data, at)
        values.append(value)
    return values, at
