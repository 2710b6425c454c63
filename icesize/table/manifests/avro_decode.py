"""Avro values by the schema that they were written with: one function per schema, made once.

A schema is parsed JSON: the name of a primitive, a list (a union) or a dict. Values become what PyIceberg's reader
makes of them: decimals and UUIDs are objects, dates and timestamps stay numbers, Iceberg's "logical maps" (arrays of
key and value) are dicts.

Why not fastavro is told in `avro_container`. Besides its time it gives dates, timestamps and logical maps as other
values than PyIceberg compares partitions by, and not the bytes of a record, by which unknown fields survive a copy.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import methodcaller
from typing import Any, TypeAlias
from uuid import UUID

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.utils.decimal import bytes_to_decimal

AvroSchema: TypeAlias = Any
Read: TypeAlias = Callable[[BinaryDecoder], Any]
_ReadBlock: TypeAlias = Callable[[BinaryDecoder, int, Any], None]

_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED = frozenset({"record", "enum", "fixed"})
_LARGEST = 2**63 - 1


def inlined(schema: AvroSchema) -> AvroSchema:
    """The same schema with each named type spelt out where it is used, under a name of its own.

    Java names a type once and then refers to it, which PyIceberg cannot read; PyIceberg defines it twice, which Java
    refuses. This form is read by both, and any part of it stands alone. Raises KeyError for an undefined name.
    """
    defined: dict[str, dict[str, Any]] = {}
    taken: set[str] = set()

    def walk(node: AvroSchema) -> AvroSchema:
        if isinstance(node, str):
            return node if node in _PRIMITIVES else walk(defined[node])
        if isinstance(node, list):
            return [walk(branch) for branch in node]
        if not isinstance(node["type"], str):
            return walk(node["type"])
        copy = dict(node)
        if node["type"] in _NAMED:
            defined[node["name"]] = node
            copy["name"] = _unused(node["name"], taken)
        if "fields" in node:
            copy["fields"] = [{**field, "type": walk(field["type"])} for field in node["fields"]]
        for part in ("items", "values"):
            if part in node:
                copy[part] = walk(node[part])
        return copy

    return walk(schema)


def _unused(name: str, taken: set[str]) -> str:
    unused, n = name, 1
    while unused in taken:
        n += 1
        unused = f"{name}_{n}"
    taken.add(unused)
    return unused


def structure(schema: AvroSchema) -> str:
    """A key that two inlined schemas share exactly when bytes of one mean the same under the other.

    Names, docs, defaults and logical types do not count; field ids, their order, physical types, the order of union
    branches, sizes and decimal scales do.
    """
    return json.dumps(_structure(schema))


def _structure(node: AvroSchema) -> object:
    if isinstance(node, str):
        return node
    if isinstance(node, list):
        return ["union", *map(_structure, node)]
    kind = node["type"]
    if kind == "record":
        return [kind, *([field.get("field-id", field["name"]), _structure(field["type"])] for field in node["fields"])]
    if kind == "array" or kind == "map":
        return [kind, _structure(node["items" if kind == "array" else "values"])]
    if kind == "enum":
        return [kind, *node["symbols"]]
    if kind in _PRIMITIVES and "scale" not in node:
        return kind
    return [kind, node.get("size"), node.get("scale")]


def is_pairs(node: Mapping[str, Any]) -> bool:
    """Whether an array is Iceberg's way to write a map whose keys are not strings."""
    return node.get("logicalType") == "map"


def _null(_: BinaryDecoder) -> None:
    return None


_READ_EIGHT = methodcaller("read", 8)


def _read_double(decoder: BinaryDecoder) -> float:
    # The compiled decoder's own `read_double` rounds to single precision up to PyIceberg 0.12.0.
    value: float = struct.unpack("<d", _READ_EIGHT(decoder))[0]
    return value


_READ_INT = methodcaller("read_int")
_READ: dict[str, Read] = {
    "null": _null,
    "boolean": methodcaller("read_boolean"),
    "int": _READ_INT,
    "long": _READ_INT,
    "float": methodcaller("read_float"),
    "double": _read_double,
    "bytes": methodcaller("read_bytes"),
    "string": methodcaller("read_utf8"),
}
_SKIP: dict[str, Read] = {
    "null": _null,
    "boolean": methodcaller("skip_boolean"),
    "int": methodcaller("skip_int"),
    "long": methodcaller("skip_int"),
    "float": methodcaller("skip_float"),
    "double": methodcaller("skip_double"),
    "bytes": methodcaller("skip_bytes"),
    "string": methodcaller("skip_utf8"),
}


def reader(schema: AvroSchema) -> Read:
    """A function that reads one value of an inlined schema; records become tuples in the order of their fields."""
    if isinstance(schema, str):
        return _READ[schema]
    if isinstance(schema, list):
        return _union([reader(branch) for branch in schema], nothing_first=schema[0] == "null")
    kind = schema["type"]
    if kind == "record":
        reads = [reader(field["type"]) for field in schema["fields"]]
        return lambda decoder: tuple([read(decoder) for read in reads])
    if kind == "array":
        items = schema["items"]
        return _array_reader(_pairs_reader(items), dict) if is_pairs(schema) else _list_reader(items)
    if kind == "map":
        return _array_reader(_pairs(_pair(_READ["string"], reader(schema["values"]))), dict)
    if kind == "enum":
        symbols = schema["symbols"]
        return lambda decoder: symbols[decoder.read_int()]
    return _logical_reader(schema)


def _logical_reader(schema: Mapping[str, Any]) -> Read:
    kind, logical = schema["type"], schema.get("logicalType")
    read = methodcaller("read", schema["size"]) if kind == "fixed" else _READ[kind]
    if logical == "decimal":
        scale = schema.get("scale", 0)
        return lambda decoder: bytes_to_decimal(read(decoder), scale)
    if logical == "uuid":
        return (lambda decoder: UUID(read(decoder))) if kind == "string" else lambda decoder: UUID(bytes=read(decoder))
    return read


def fields_reader(
    fields: Sequence[Mapping[str, Any]], places: Mapping[int, Any]
) -> Callable[[BinaryDecoder, Any], None]:
    """A function that reads some fields of an inlined record, by Iceberg field id, into their `places` of a list or
    dict, and passes over the others.
    """
    steps: list[tuple[Any, Read]] = []
    for place, run in itertools.groupby(fields, lambda field: places.get(field["field-id"])):
        types = [field["type"] for field in run]
        steps.append((place, _fields_skipper(types) if place is None else reader(types[0])))

    def read(decoder: BinaryDecoder, row: Any) -> None:
        for place, step in steps:
            if place is None:
                step(decoder)
            else:
                row[place] = step(decoder)

    return read


def skipper(schema: AvroSchema) -> Read:
    """A function that passes over one value of an inlined schema, cheaply for the maps that carry statistics."""
    if isinstance(schema, str):
        return _SKIP[schema]
    if isinstance(schema, list):
        return _union([skipper(branch) for branch in schema], nothing_first=schema[0] == "null")
    kind = schema["type"]
    if kind == "record":
        return _fields_skipper([field["type"] for field in schema["fields"]])
    if kind == "array":
        return _array_skipper(schema["items"])
    if kind == "map":
        return _skip_each(_sequence([_SKIP["string"], skipper(schema["values"])]))
    if kind == "fixed":
        return methodcaller("skip", schema["size"])
    return _SKIP["int"] if kind == "enum" else _SKIP[kind]


def _is_number(schema: AvroSchema) -> bool:
    return schema in ("int", "long")


def _fields_skipper(types: Iterable[AvroSchema]) -> Read:
    """Passes over the fields of a record; a run of numbers by one call."""
    steps: list[Read] = []
    for numbers, run in itertools.groupby(types, _is_number):
        some = list(run)
        steps += [methodcaller("read_ints", len(some))] if numbers else [skipper(each) for each in some]
    return steps[0] if len(steps) == 1 else _sequence(steps)


def _array_skipper(items: AvroSchema) -> Read:
    types = _types_of(items)
    if all(map(_is_number, types)):
        return _skip_ints(len(types))
    if types == ["int", "bytes"]:
        return _skip_int_bytes
    return _skip_each(skipper(items))


def _types_of(items: AvroSchema) -> list[AvroSchema]:
    """The types of the fields of an array's items, or the one type that they are of."""
    return [field["type"] for field in items["fields"]] if isinstance(items, dict) and "fields" in items else [items]


def _union(branches: list[Read], *, nothing_first: bool) -> Read:
    if nothing_first and len(branches) == 2:
        inner = branches[1]
        return lambda decoder: inner(decoder) if decoder.read_int() else None
    return lambda decoder: branches[decoder.read_int()](decoder)


def _sequence(reads: list[Read]) -> Read:
    def run(decoder: BinaryDecoder) -> None:
        for read in reads:
            read(decoder)

    return run


def _pair(key: Read, value: Read) -> Read:
    return lambda decoder: (key(decoder), value(decoder))


def _list_reader(items: AvroSchema) -> Read:
    item = reader(items)
    return _array_reader(lambda decoder, count, values: values.extend([item(decoder) for _ in range(count)]), list)


def _array_reader(read_block: _ReadBlock, make: Callable[[], Any]) -> Read:
    def read(decoder: BinaryDecoder) -> Any:
        values = make()
        while count := decoder.read_int():
            if count < 0:
                # A negative count is followed by the size of the block, for those who skip it.
                count = -count
                decoder.skip_int()
            read_block(decoder, count, values)
        return values

    return read


def _pairs_reader(items: AvroSchema) -> _ReadBlock:
    """Reads a block of a logical map; one of counts or bounds by field id, of which a file has six, by one call."""
    types = _types_of(items)
    if types == ["int", "long"]:
        return _read_counts
    return _read_bounds if types == ["int", "bytes"] else _pairs(reader(items))


def _pairs(pair: Read) -> _ReadBlock:
    return lambda decoder, count, values: values.update([pair(decoder) for _ in range(count)])


def _read_counts(decoder: BinaryDecoder, count: int, values: dict[int, int]) -> None:
    numbers = decoder.read_ints(2 * count)
    if max(numbers) > _LARGEST:
        # The compiled decoder takes negative numbers for large ones.
        numbers = tuple(n - 2**64 if n > _LARGEST else n for n in numbers)
    pairs = iter(numbers)
    values.update(zip(pairs, pairs, strict=True))


def _read_bounds(decoder: BinaryDecoder, count: int, values: dict[int, bytes]) -> None:
    decoder.read_int_bytes_dict(count, values)


def _skip_each(skip: Read) -> Read:
    def run(decoder: BinaryDecoder) -> None:
        while count := decoder.read_int():
            if count < 0:
                decoder.skip(decoder.read_int())
            else:
                for _ in range(count):
                    skip(decoder)

    return run


# Decoding into values that are dropped is the fastest way past statistics: one call into compiled code for all columns.
def _skip_ints(width: int) -> Read:
    def run(decoder: BinaryDecoder) -> None:
        while count := decoder.read_int():
            if count < 0:
                decoder.skip(decoder.read_int())
            else:
                decoder.read_ints(count * width)

    return run


def _skip_int_bytes(decoder: BinaryDecoder) -> None:
    while count := decoder.read_int():
        if count < 0:
            decoder.skip(decoder.read_int())
        else:
            decoder.read_int_bytes_dict(count, {})
