"""Rows of one schema that holds every type and nesting, and rows of any writer in one spelling."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from icesize.parquet.files.settings import NAME_MAPPING

_COLUMNS = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "few", StringType()),
    NestedField(3, "many", StringType()),
    NestedField(4, "small", IntegerType()),
    NestedField(5, "number", DoubleType()),
    NestedField(6, "flag", BooleanType()),
    NestedField(7, "at", TimestamptzType()),
    NestedField(8, "day", DateType()),
    NestedField(9, "money", DecimalType(9, 2)),
    NestedField(10, "raw", BinaryType()),
    NestedField(11, "items", ListType(21, LongType(), element_required=False)),
    NestedField(
        12, "record", StructType(NestedField(22, "a", LongType()), NestedField(23, "b", StringType(), required=False))
    ),
    NestedField(13, "pairs", MapType(24, StringType(), 25, LongType(), value_required=False)),
    NestedField(
        14,
        "deep",
        ListType(
            26,
            StructType(NestedField(27, "x", DoubleType()), NestedField(28, "y", ListType(29, StringType(), False))),
            element_required=False,
        ),
    ),
    NestedField(15, "vector", ListType(30, FloatType(), element_required=False)),
    NestedField(
        16,
        "points",
        ListType(31, StructType(NestedField(32, "u", LongType()), NestedField(33, "v", StringType())), False),
    ),
)
SCHEMA = assign_fresh_schema_ids(_COLUMNS)
"""A new table gets the same field ids."""
_BETWEEN = "\x1f"
FLAT = ("id", "few", "many", "small", "number", "flag", "at", "day", "money", "raw")
NESTED = ("items", "record", "pairs", "deep", "vector", "points")
_POINT = pa.struct([("u", pa.int64()), ("v", pa.string())])
_START = datetime(2024, 1, 1, tzinfo=timezone.utc)


def metadata_of(columns: Collection[str], location: str, properties: Mapping[str, str] | None = None) -> str:
    """Return the metadata, as JSON, of a new table of these columns; files without field ids are read by name."""
    return TableMetadataV2(
        location=location,
        last_column_id=SCHEMA.highest_field_id,
        schemas=[Schema(*(field for field in SCHEMA.fields if field.name in columns))],
        partition_specs=[UNPARTITIONED_PARTITION_SPEC],
        last_partition_id=UNPARTITIONED_PARTITION_SPEC.last_assigned_field_id,
        sort_orders=[UNSORTED_SORT_ORDER],
        properties={NAME_MAPPING: SCHEMA.name_mapping.model_dump_json(), **(properties or {})},
    ).model_dump_json()


def arrow_types(fixed: bool, category: bool) -> dict[str, pa.DataType]:
    """Return the Arrow type of each column; some writers have lists of a fixed size and categories."""
    deep = pa.struct([("x", pa.float64()), ("y", pa.list_(pa.string()))])
    size = 3 if fixed else -1
    return {
        "id": pa.int64(),
        "few": pa.dictionary(pa.int8(), pa.string()) if category else pa.string(),
        "many": pa.string(),
        "small": pa.int32(),
        "number": pa.float64(),
        "flag": pa.bool_(),
        "at": pa.timestamp("us", "UTC"),
        "day": pa.date32(),
        "money": pa.decimal128(9, 2),
        "raw": pa.binary(),
        "items": pa.list_(pa.int64()),
        "record": pa.struct([("a", pa.int64()), ("b", pa.string())]),
        "pairs": pa.map_(pa.string(), pa.int64()),
        "deep": pa.list_(deep),
        "vector": pa.list_(pa.float32(), size),
        "points": pa.list_(_POINT, size),
    }


def make_rows(
    seed: str, count: int, columns: tuple[str, ...], nulls: float, few: int, kinds: Mapping[str, pa.DataType]
) -> pa.Table:
    """Return rows that are the same each time: `few` distinct texts in one column, NULLs in this share of values."""
    chance = random.Random(seed)
    base = chance.randrange(10**6) * 10_000

    def value(name: str, i: int) -> Any:
        if name == "id":
            return base + i
        # pyarrow writes no NULL list of a fixed size
        if chance.random() < nulls and not pa.types.is_fixed_size_list(kinds[name]):
            return None
        return _VALUES[name](chance, i, few)

    arrays = [pa.array([value(name, i) for i in range(count)], kinds[name]) for name in columns]
    return pa.Table.from_arrays(arrays, names=list(columns))


def _number(chance: random.Random, i: int, few: int) -> float:
    return chance.choice((-0.0, 0.0, 1.5, math.inf, chance.random(), math.nan if i % 97 == 5 else 2.0))


_VALUES: Mapping[str, Any] = {
    "few": lambda c, i, few: f"shop {c.randrange(few)}",
    "many": lambda c, i, few: f"customer-{i:012d}" if few % 2 else c.randbytes(c.randrange(12)).hex(),
    "small": lambda c, i, few: c.randrange(-few, few),
    "number": _number,
    "flag": lambda c, i, few: c.random() < 0.5,
    "at": lambda c, i, few: _START + timedelta(microseconds=c.randrange(10**14)),
    "day": lambda c, i, few: date(2024, 1, 1) + timedelta(days=c.randrange(few)),
    "money": lambda c, i, few: Decimal(c.randrange(-(10**9) + 1, 10**9)).scaleb(-2),
    "raw": lambda c, i, few: c.randbytes(c.randrange(9)),
    "items": lambda c, i, few: [c.choice((None, 1, 2**40)) for _ in range(c.randrange(4))],
    "record": lambda c, i, few: {"a": c.randrange(few), "b": c.choice((None, f"b{c.randrange(few)}"))},
    "pairs": lambda c, i, few: [(f"k{n}", c.choice((None, n))) for n in range(c.randrange(3))],
    "deep": lambda c, i, few: [
        c.choice((None, {"x": c.random(), "y": [None, "y"][: c.randrange(3)]})) for _ in range(c.randrange(3))
    ],
    "vector": lambda c, i, few: [0.5, c.choice((None, 1.5)), float(c.randrange(few))],
    "points": lambda c, i, few: [{"u": c.randrange(few), "v": c.choice((None, f"v{n}"))} for n in range(3)],
}


def spelt(table: pa.Table) -> list[str]:
    """Return each row in one spelling, sorted: writers differ in types, in the order of columns, in zones."""
    names = [field.name for field in SCHEMA.fields]
    missing = ["None"] * table.num_rows
    columns = [
        [repr(_plain(value)) for value in table[name].to_pylist()] if name in table.column_names else missing
        for name in names
    ]
    return sorted(map(_BETWEEN.join, zip(*columns, strict=True)))


_LISTS_OF_STRUCTS = frozenset(i for i, field in enumerate(SCHEMA.fields) if field.name in ("deep", "points"))


def with_empty_lists(rows: Sequence[str]) -> list[str]:
    """Return spelt rows with empty lists for NULL ones of structs: PyIceberg 0.12 drops their null mask
    (`ArrowProjectionVisitor.list`)."""
    split = (row.split(_BETWEEN) for row in rows)
    alike = ("[]" if i in _LISTS_OF_STRUCTS and v == "None" else v for row in split for i, v in enumerate(row))
    return sorted(map(_BETWEEN.join, zip(*[alike] * len(SCHEMA.fields), strict=True)))


_AS_THEY_ARE = frozenset({int, str, float, bool, bytes, type(None)})


def _plain(value: Any) -> Any:
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, Mapping):
        return [(key, _plain(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


def id_of(spelling: str) -> int:
    """Return the id of a spelt row."""
    return int(spelling[: spelling.index(_BETWEEN)])
