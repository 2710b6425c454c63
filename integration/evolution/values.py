"""Values of Iceberg's types that are known for trouble, how they are told to each engine, and filters over them."""

from __future__ import annotations

import json
import math
import random
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, TypeVar

from pyiceberg import expressions as py
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
)

Thing = TypeVar("Thing")
Row = Mapping[str, Any]
_EPOCH = datetime(1970, 1, 1)
_F32 = struct.unpack("f", struct.pack("f", 0.1))[0]
_TIMES = (
    datetime(2024, 2, 29, 0, 30), datetime(2024, 2, 29, 1), datetime(1969, 12, 31, 23, 59, 59, 999_999), _EPOCH,
    datetime(1900, 1, 1), datetime(9999, 12, 31, 23),
)  # fmt: skip
_POOLS: Mapping[str, Sequence[Any]] = {
    "boolean": (True, False),
    "int": (0, 1, 2, -1, 7, 2**31 - 1, -(2**31)),
    "long": (0, 3_000_000_000, 1, 2, -1, -3_000_000_000, 2**63 - 1, -(2**63)),
    "float": (0.0, -0.0, 1.5, -7.0, _F32, math.nan, math.inf, -math.inf),
    "double": (0.0, -0.0, 0.1, 1.5, -7.0, 1e300, _F32, math.nan, math.inf, -math.inf),
    "string": ("a", "b", "", "ab", "\u00e9\U0001f600", "null", "x=y%/z", "l" + "o" * 30 + "ng", "*"),
    "date": (date(2024, 2, 29), date(2024, 3, 1), date(1970, 1, 1), date(1969, 12, 31), date(9999, 12, 31)),
    "timestamp": _TIMES,
    "timestamptz": tuple(t.replace(tzinfo=timezone.utc) for t in _TIMES),
    "binary": (b"a", b"", b"\x00", b"\xff\xff", b"abc" * 9),
}
"""The first ones come most often, so that rows meet in partitions and filters find some."""
_PROBED = {
    "date": "unix_date({})", "timestamp": "unix_micros(CAST({} AS timestamp))", "timestamptz": "unix_micros({})",
    "binary": "lower(hex({}))",
}  # fmt: skip
SQL_TYPES = {"long": "bigint", "timestamptz": "timestamp", "timestamp": "timestamp_ntz"}


class Skip(Exception):
    """This statement means nothing on the table as it is now."""


class Draw:
    """What a step takes from its own seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def one(self, things: Iterable[Thing], name: Callable[[Thing], str] = str) -> Thing:
        """One of them; which one depends on each thing's name, not on the others, so that it is mostly the same one
        where another step was left out. Skip where there is none."""
        salt = self.chance.getrandbits(32)
        known = list(things)
        if not known:
            raise Skip("there is nothing to choose from")
        return max(known, key=lambda thing: (zlib.crc32(f"{salt}:{name(thing)}".encode()), name(thing)))

    def maybe(self, share: float) -> bool:
        """True in this share of the cases."""
        return self.chance.random() < share

    def few(self, least: int, most: int) -> int:
        """A number from `least` to `most`."""
        return self.chance.randint(least, most)


def pool(kind: IcebergType) -> Sequence[Any]:
    """Values of a type with no fields of its own."""
    if isinstance(kind, DecimalType):
        unit = Decimal(1).scaleb(-kind.scale)
        whole = 10**kind.precision - 1
        return tuple(unit * n for n in (110, whole, -220, 0, -whole, 330))
    return _POOLS[str(kind)]


def value(kind: IcebergType, draw: Draw, required: bool = False) -> Any:
    """A value of any type: a dict for a struct, pairs for a map; None now and then unless required."""
    if not required and draw.maybe(0.12):
        return None
    if isinstance(kind, StructType):
        return {field.name: value(field.field_type, draw, field.required) for field in kind.fields}
    if isinstance(kind, ListType):
        return [value(kind.element_type, draw, kind.element_required) for _ in range(draw.few(0, 2))]
    if isinstance(kind, MapType):
        keys = sorted({str(value(kind.key_type, draw, True)) for _ in range(draw.few(0, 2))})
        return [(key, value(kind.value_type, draw, kind.value_required)) for key in keys]
    known = pool(kind)
    return known[draw.chance.randrange(min(3, len(known)) if draw.maybe(0.65) else len(known))]


def rows(schema: Schema, draw: Draw, most: int = 4) -> list[Row]:
    """A handful of rows of a schema."""
    return [_row(schema, Draw(draw.chance.getrandbits(32))) for _ in range(draw.few(1, most))]


def _row(schema: Schema, draw: Draw) -> Row:
    # a column's values hang on its name: a column more or less does not change the others
    base = draw.chance.getrandbits(32)
    row = {f.name: value(f.field_type, Draw(zlib.crc32(f.name.encode()) ^ base), f.required) for f in schema.fields}
    return row | {"id": draw.few(0, 30)}


def shown(found: Sequence[Row]) -> str:
    """Rows for people."""
    return "; ".join(", ".join(f"{k}={_brief(v)}" for k, v in row.items()) for row in found)


def _brief(given: Any) -> str:
    return repr(given) if isinstance(given, (str, bytes, float)) else str(given)


def as_json(schema: Schema, found: Sequence[Row]) -> str:
    """Rows as `Probe.java` reads them: objects, scalars as text, maps as pairs."""
    return json.dumps([{f.name: _text(f.field_type, row.get(f.name)) for f in schema.fields} for row in found])


def _text(kind: IcebergType, given: Any) -> Any:
    if given is None:
        return None
    if isinstance(kind, StructType):
        return {f.name: _text(f.field_type, given.get(f.name)) for f in kind.fields}
    if isinstance(kind, ListType):
        return [_text(kind.element_type, element) for element in given]
    if isinstance(kind, MapType):
        return [[_text(kind.key_type, k), _text(kind.value_type, v)] for k, v in given]
    return _scalar(given)


def _scalar(given: Any) -> str:
    if isinstance(given, bytes):
        return given.hex()
    if isinstance(given, datetime):
        return str((given.replace(tzinfo=None) - _EPOCH) // timedelta(microseconds=1))
    if isinstance(given, date):
        return str((given - _EPOCH.date()).days)
    if isinstance(given, float):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(given), repr(given))
    return str(given).lower() if isinstance(given, bool) else str(given)


def for_spark(kind: IcebergType, given: Any) -> Any:
    """A value as Spark's `createDataFrame` takes it."""
    if given is None:
        return None
    if isinstance(kind, StructType):
        return tuple(for_spark(f.field_type, given.get(f.name)) for f in kind.fields)
    return dict(given) if isinstance(kind, MapType) else given


def ddl(kind: IcebergType) -> str:
    """A type as Spark's SQL spells it."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'`{f.name}`: {ddl(f.field_type)}' for f in kind.fields)}>"
    if isinstance(kind, ListType):
        return f"array<{ddl(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{ddl(kind.key_type)}, {ddl(kind.value_type)}>"
    return SQL_TYPES.get(str(kind), str(kind))


def probed(column: str, kind: IcebergType) -> str:
    """SQL for a column cast to a type, as the text that `Probe.java` reads."""
    cast = f"CAST(`{column}` AS {ddl(kind)})"
    return f"CAST({_PROBED.get(str(kind), '{}').format(cast)} AS string) AS `{column}`"


def literal(kind: PrimitiveType, given: Any) -> str:
    """A value in Spark's SQL."""
    if given is None:
        return f"CAST(NULL AS {ddl(kind)})"
    if isinstance(given, bytes):
        return f"X'{given.hex()}'"
    text = given.isoformat(sep=" ") if isinstance(given, datetime) else str(given)
    return f"CAST('{text}' AS {ddl(kind)})"


@dataclass(frozen=True)
class Filter:
    """A comparison of one column, nested ones by their path, with values of its type."""

    operation: str
    column: str
    kind: IcebergType
    values: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.column} {self.operation} {', '.join(map(repr, self.values))}".strip()

    @property
    def java(self) -> str:
        """As Iceberg's `ExpressionParser` reads it.

        Iceberg's planning has neither NULL nor NaN smaller or larger than anything, its evaluator of rows has: the
        filter says it. Of lists too, see `_fails_at_null`.
        """
        given = [_json_value(self.kind, v) for v in self.values]
        values = {"values": given} if self.operation in ("in", "not-in") else {"value": given[0]} if given else {}
        made: dict[str, Any] = {"type": self.operation, "term": self.column, **values}
        if self.operation in _ORDERED:
            without = ("not-null", "not-nan") if _is_floating(self.kind) else ("not-null",)
            for also in without:
                made = {"type": "and", "left": made, "right": {"type": also, "term": self.column}}
        if self._fails_at_null:
            made = {"type": "and", "left": {"type": "not-null", "term": self.column}, "right": made}
        return json.dumps(made)

    @property
    def _fails_at_null(self) -> bool:
        """Iceberg 1.11.0 fails with "Invalid object: null" where a NULL, be it a row's or a partition's in a manifest
        that it opens, is looked for among strings (its pull request 17014): such filters ask for NULL first."""
        return self.operation in ("in", "not-in") and str(self.kind) == "string"

    @property
    def is_null_float_in_struct(self) -> bool:
        """Whether it looks for NULL in a float or double within a struct."""
        return self.operation == "is-null" and "." in self.column and _is_floating(self.kind)

    @property
    def pyiceberg(self) -> py.BooleanExpression:
        """As PyIceberg takes it."""
        made = _PYICEBERG[self.operation]
        if self.operation in ("in", "not-in"):
            return made(self.column, self.values)
        return made(self.column, *self.values)

    @property
    def sql(self) -> str:
        """As Spark's and DuckDB's SQL have it.

        NaN is larger than anything there, and nothing in Iceberg's planning, which skips a file of NaN alone: the
        filter says that it means no NaN.
        """
        name = ".".join(f"`{part}`" for part in self.column.split("."))
        given = [literal(self.kind, v) for v in self.values]
        if self.operation in ("in", "not-in"):
            has = f"{name} IS NOT NULL AND " if self._fails_at_null else ""
            return f"{has}{name} {_SQL[self.operation]} ({', '.join(given)})"
        if self.operation == "starts-with":
            return f"{name} LIKE '{self.values[0]}%'"
        if not given:
            return _SQL[self.operation].format(name)
        has = f"NOT isnan({name}) AND " if self.operation in ("gt", "gt-eq") and _is_floating(self.kind) else ""
        return f"{has}{name} {_SQL[self.operation]} {given[0]}"


def _is_floating(kind: IcebergType) -> bool:
    return str(kind) in ("float", "double")


_PYICEBERG: Mapping[str, Any] = {
    "eq": py.EqualTo, "not-eq": py.NotEqualTo, "lt": py.LessThan, "lt-eq": py.LessThanOrEqual, "gt": py.GreaterThan,
    "gt-eq": py.GreaterThanOrEqual, "in": py.In, "not-in": py.NotIn, "is-null": py.IsNull, "not-null": py.NotNull,
    "is-nan": py.IsNaN, "not-nan": py.NotNaN, "starts-with": py.StartsWith,
}  # fmt: skip
_SQL: Mapping[str, str] = {
    "eq": "=", "not-eq": "<>", "lt": "<", "lt-eq": "<=", "gt": ">", "gt-eq": ">=", "in": "IN", "not-in": "NOT IN",
    "is-null": "{} IS NULL", "not-null": "{} IS NOT NULL", "is-nan": "isnan({})", "not-nan": "NOT isnan({})",
}  # fmt: skip
_ORDERED = ("lt", "lt-eq", "gt", "gt-eq")
_COMPARISONS = ("eq", "eq", "not-eq", "lt", "lt-eq", "gt", "gt-eq")


def leaves(schema: Schema) -> Iterator[tuple[str, IcebergType]]:
    """Path and type of each column, and of each field in a struct."""

    def walk(fields: Sequence[NestedField], path: str) -> Iterator[tuple[str, IcebergType]]:
        for field in fields:
            if isinstance(field.field_type, StructType):
                yield from walk(field.field_type.fields, f"{path}{field.name}.")
            elif isinstance(field.field_type, PrimitiveType):
                yield f"{path}{field.name}", field.field_type

    return walk(schema.fields, "")


def filters(schema: Schema, seed: int, each: int = 3) -> list[Filter]:
    """Some filters on each column: comparisons with values that rows may have, nulls, NaNs, lists, beginnings."""
    found = []
    for name, kind in leaves(schema):
        draw = Draw(seed ^ zlib.crc32(name.encode()))
        known = [v for v in pool(kind) if not (isinstance(v, float) and not math.isfinite(v))]
        if name == "id":
            known = list(range(31))
        for _ in range(each):
            found.append(_filter(name, kind, known, draw))
    return found


def _filter(name: str, kind: IcebergType, known: Sequence[Any], draw: Draw) -> Filter:
    chance = draw.chance
    operations = [*_COMPARISONS, "in", "not-in", "is-null", "not-null"]
    operations += ["is-nan", "not-nan"] if _is_floating(kind) else []
    operations += ["starts-with"] * 2 if str(kind) == "string" else []
    operation = chance.choice(operations)
    if operation in ("in", "not-in"):
        return Filter(operation, name, kind, tuple(dict.fromkeys(chance.choices(known, k=2))))
    if operation == "starts-with":
        return Filter(operation, name, kind, (chance.choice(("a", "l", "lo", "x=", "\u00e9", "n")),))
    unary = operation in ("is-null", "not-null", "is-nan", "not-nan")
    return Filter(operation, name, kind, () if unary else (chance.choice(known),))


def _json_value(kind: IcebergType, given: Any) -> Any:
    if isinstance(given, bytes):
        return given.hex().upper()
    if isinstance(given, datetime):
        return given.isoformat(timespec="microseconds")
    if isinstance(given, date):
        return given.isoformat()
    return str(given) if isinstance(given, Decimal) else given
