"""Functions that decode and encode Avro values: one per schema, built once.

A schema is parsed JSON: the name of a primitive, a list (a union) or a dict. Values have the types of PyIceberg's
reader: decimals and UUIDs are objects, dates and timestamps stay numbers, Iceberg's "logical maps" (arrays of key and
value) are dicts.

`avro_container` compares the speed with fastavro. fastavro also returns other types for dates, timestamps and logical
maps than those by which PyIceberg compares partitions. It does not return the bytes of a record, which keep unknown
fields in a copy.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from operator import methodcaller
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.utils.decimal import bytes_to_decimal, decimal_to_bytes

AvroSchema: TypeAlias = Any
Read: TypeAlias = Callable[[BinaryDecoder], Any]
Write: TypeAlias = Callable[[bytearray, Any], object]
T = TypeVar("T")
_ReadBlock: TypeAlias = Callable[[BinaryDecoder, int, Any], object]

_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED = frozenset({"record", "enum", "fixed"})
_LARGEST = 2**63 - 1
_AT_ONCE = 200
"""Items of a block that are read by one call. The compiled decoder looks only at the start of a call whether bytes are
left, and takes memory for all items: a damaged count would make it read far behind its bytes."""


def inlined(schema: AvroSchema) -> AvroSchema:
    """Return the same schema with each use of a named type spelled out, under a unique name.

    Java defines a type once and then refers to it, which PyIceberg cannot read. PyIceberg defines it twice, which Java
    rejects. Both can read this form, and each part of it is complete. Raises KeyError for an undefined name.
    """
    defined: dict[str, dict[str, Any]] = {}
    taken: set[str] = set()

    def walk(node: AvroSchema) -> AvroSchema:
        if isinstance(node, str):
            return node if node in _PRIMITIVES else walk(defined[_without_namespace(node)])
        if isinstance(node, list):
            return [walk(branch) for branch in node]
        if not isinstance(node["type"], str):
            return walk(node["type"])
        copy = dict(node)
        if node["type"] in _NAMED:
            defined[_without_namespace(node["name"])] = node
            copy["name"] = _unused(node["name"], taken)
        if "fields" in node:
            copy["fields"] = [{**field, **_field_id(field), "type": walk(field["type"])} for field in node["fields"]]
        for part in ("items", "values"):
            if part in node:
                copy[part] = walk(node[part])
        if [field["name"] for field in _fields_of(copy.get("items"))] == ["key", "value"]:
            copy["logicalType"] = "map"  # some writers do not mark it, and Java cannot read that
        return copy

    return walk(schema)


class NoFieldIds(ValueError):
    """The fields of a schema have no field ids."""


def record_fields(schema_json: str, needed: Iterable[int]) -> list[dict[str, Any]]:
    """Return the fields of the record in a file's header, inlined.

    Raises ValueError if that is no schema of a record, or a `needed` field is missing: fields are found by Iceberg's
    field ids only.
    """
    try:
        fields: list[dict[str, Any]] = inlined(json.loads(schema_json))["fields"]
        ids = {field.get("field-id") for field in fields}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("its schema is no valid schema of an Avro record") from error
    check_ids(ids, needed)
    return fields


def check_ids(ids: Collection[int | None], needed: Iterable[int]) -> None:
    """Raise ValueError if a field id is not there."""
    if not any(each is not None for each in ids):
        raise NoFieldIds("the fields of its schema have no field ids")
    if missing := [str(each) for each in needed if each not in ids]:
        raise ValueError(f"its schema has no field with the id {missing[0]}")


def _fields_of(schema: AvroSchema) -> Sequence[Mapping[str, Any]]:
    fields: Sequence[Mapping[str, Any]] = schema.get("fields", ()) if isinstance(schema, dict) else ()
    return fields


def _field_id(field: Mapping[str, Any]) -> dict[str, int]:
    """Return the field id as a number: some writers have it as text."""
    return {"field-id": int(field["field-id"])} if isinstance(field.get("field-id"), str) else {}


def _without_namespace(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _unused(name: str, taken: set[str]) -> str:
    unused, n = name, 1
    while unused in taken:
        n += 1
        unused = f"{name}_{n}"
    taken.add(unused)
    return unused


def structure(schema: AvroSchema) -> str:
    """Return a key that two inlined schemas share exactly if bytes of one mean the same under the other.

    The key contains field ids, their order, physical types, the order of union branches, sizes and decimal scales. It
    ignores names, docs, defaults and logical types.
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


def projected(record: AvroSchema, field_ids: Sequence[int] | None) -> AvroSchema:
    """Return a record for `reader`, which reads the values of these fields in this order, None for a missing one.

    Without `field_ids`, they are read as they are stored.
    """
    stored = [field.get("field-id") for field in record["fields"]]
    if field_ids is None or stored == list(field_ids):
        return record
    return {**record, "order": [stored.index(each) if each in stored else -1 for each in field_ids]}


def is_pairs(node: Mapping[str, Any]) -> bool:
    """Return True if an array is Iceberg's form of a map whose keys are not strings."""
    return node.get("logicalType") == "map"


_READ_EIGHT = methodcaller("read", 8)


def _read_double(decoder: BinaryDecoder) -> float:
    # The compiled decoder's own `read_double` rounds to single precision up to PyIceberg 0.12.0.
    value: float = struct.unpack("<d", _READ_EIGHT(decoder))[0]
    return value


_READ: dict[str, Read] = {
    "null": lambda decoder: None,
    "boolean": methodcaller("read_boolean"),
    "int": methodcaller("read_int"),
    "long": methodcaller("read_int"),
    "float": methodcaller("read_float"),
    "double": _read_double,
    "bytes": methodcaller("read_bytes"),
    "string": methodcaller("read_utf8"),
}


def reader(schema: AvroSchema) -> Read:
    """Return a function that reads one value of an inlined schema.

    Records become tuples in the order of their fields, or of `projected`.
    """
    if isinstance(schema, str):
        return _READ[schema]
    if isinstance(schema, list):
        return _union([reader(branch) for branch in schema], nothing_first=schema[0] == "null")
    kind = schema["type"]
    if kind == "record":
        reads = [reader(field["type"]) for field in schema["fields"]]
        if "order" in schema:
            # index -1 selects the appended None
            pick = [*schema["order"]]
            return lambda decoder: tuple(map([*(read(decoder) for read in reads), None].__getitem__, pick))
        return lambda decoder: tuple([read(decoder) for read in reads])
    if kind == "map":
        return _array_reader(_pairs_reader({"fields": [{"type": "string"}, {"type": schema["values"]}]}), dict)
    if kind == "array" and is_pairs(schema):
        return _array_reader(_pairs_reader(schema["items"]), dict)
    if kind == "array":
        item = reader(schema["items"])
        return _array_reader(lambda decoder, count, items: items.extend([item(decoder) for _ in range(count)]), list)
    if kind == "enum":
        symbols = schema["symbols"]
        return lambda decoder: _chosen(symbols, decoder.read_int())
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
    fields: Sequence[Mapping[str, Any]], places: Mapping[Any, Any]
) -> Callable[[BinaryDecoder, Any], None]:
    """Return a function that reads fields of an inlined record into a list or dict, and skips all other fields.

    `places` maps the Iceberg field id of each field to its index in the list or its key in the dict.
    """
    steps: list[tuple[Any, Read]] = []
    for place, run in itertools.groupby(fields, lambda field: places.get(field.get("field-id"))):
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
    """Return a function that skips one value of an inlined schema, fast for maps of statistics.

    The fastest way to skip such a map is to decode it and drop the values: one call into compiled code for all columns.
    """
    if isinstance(schema, list):
        return _union([skipper(branch) for branch in schema], nothing_first=schema[0] == "null")
    if isinstance(schema, dict) and schema["type"] == "record":
        return _fields_skipper([field["type"] for field in schema["fields"]])
    if isinstance(schema, dict) and schema["type"] == "array":
        types = _types_of(schema["items"])
        if all(kind in ("int", "long") for kind in types):
            return _array_reader(lambda decoder, count, _: decoder.read_ints(count * len(types)), list)
        if not is_pairs(schema):
            item = skipper(schema["items"])
            return _array_reader(lambda decoder, count, _: [item(decoder) for _ in range(count)], list)
    return reader(schema)


def _fields_skipper(types: Iterable[AvroSchema]) -> Read:
    """Return a function that skips the fields of a record."""
    steps = [skipper(kind) for kind in types]

    def skip(decoder: BinaryDecoder) -> None:
        for step in steps:
            step(decoder)

    return skip


def _types_of(items: AvroSchema) -> list[AvroSchema]:
    """Return the types of the fields of an array's items, or the single type of items without fields."""
    return [field["type"] for field in items["fields"]] if isinstance(items, dict) and "fields" in items else [items]


def _union(branches: list[Read], *, nothing_first: bool) -> Read:
    if nothing_first and len(branches) == 2:
        inner = branches[1]
        # An entry has many such fields, and comparisons are faster than a call.
        return lambda decoder: (
            inner(decoder) if (number := decoder.read_int()) == 1 else None if number == 0 else _chosen((), number)
        )
    return lambda decoder: _chosen(branches, decoder.read_int())(decoder)


def _chosen(choices: Sequence[T], number: int) -> T:
    """Return the choice with a number from a file. Raises ValueError if there is none, because the file is damaged."""
    if not 0 <= number < len(choices):
        raise ValueError(f"no type or symbol has the number {number}")
    return choices[number]


def _array_reader(read_block: _ReadBlock, make: Callable[[], Any]) -> Read:
    def read(decoder: BinaryDecoder) -> Any:
        values = make()
        while count := decoder.read_int():
            if count < 0:
                # The size of the block follows a negative count, for readers that skip the block.
                count = -count
                decoder.skip_int()
            while count > _AT_ONCE:
                read_block(decoder, _AT_ONCE, values)
                count -= _AT_ONCE
            read_block(decoder, count, values)
        return values

    return read


def _pairs_reader(items: Mapping[str, Any]) -> _ReadBlock:
    """Return a function that reads a block of a map.

    One call reads a map of counts or bounds by field id. A file has six such maps.
    """
    types = _types_of(items)
    if types == ["int", "long"]:
        return _read_counts
    if types == ["int", "bytes"]:
        return lambda decoder, count, values: decoder.read_int_bytes_dict(count, values)
    key, value = map(reader, types)
    return lambda decoder, count, values: values.update([(key(decoder), value(decoder)) for _ in range(count)])


def _read_counts(decoder: BinaryDecoder, count: int, values: dict[int, int]) -> None:
    numbers = decoder.read_ints(2 * count)
    if max(numbers) > _LARGEST:
        # The compiled decoder returns negative numbers as large unsigned ones.
        numbers = tuple(n - 2**64 if n > _LARGEST else n for n in numbers)
    pairs = iter(numbers)
    values.update(zip(pairs, pairs, strict=True))


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


write_long: Callable[[bytearray, int], None] = _integer_writer("long", 64)
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
    """Return a function that appends one value of an inlined schema.

    Records are passed as sequences, logical maps as dicts. Raises ValueError for a type that no manifest has (unions of
    more than null and one type, enums, string maps). The returned function raises ValueError for a number that does not
    fit its type, and never shortens one.
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
    """Raise ValueError for a value of another scale or too many digits.

    The bytes contain only the digits, so a value of another scale would become another number.
    """
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
