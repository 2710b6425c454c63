"""The columns of a batch, matched by name to those of the table as Spark compares names.

A missing column has its write default; without one, an optional column becomes NULL. An extra column is refused or
added. Types are cast as in an INSERT, by the store assignment rules of Spark's `DataFrame.to`. A number out of range
stops the batch.

An INSERT drops digits after the point or the time of day without an error; icesize refuses such a batch. Floats are
rounded to the table's precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timezone
from decimal import Decimal
from typing import Any, cast

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark

from icesize.errors import SchemaMismatch, UnsupportedTable
from icesize.table.upserts.conditions import ExpressionEngine, Operand, located

_PRIMITIVES: dict[type[iceberg.IcebergType], Callable[[], spark.DataType]] = {
    iceberg.BooleanType: spark.BooleanType,
    iceberg.IntegerType: spark.IntegerType,
    iceberg.LongType: spark.LongType,
    iceberg.FloatType: spark.FloatType,
    iceberg.DoubleType: spark.DoubleType,
    iceberg.DateType: spark.DateType,
    iceberg.TimestampType: spark.TimestampNTZType,
    iceberg.TimestamptzType: spark.TimestampType,
    iceberg.StringType: spark.StringType,
    iceberg.UUIDType: spark.StringType,
    iceberg.BinaryType: spark.BinaryType,
    iceberg.FixedType: spark.BinaryType,
}


def spark_schema(columns: Schema | iceberg.StructType, path: tuple[str, ...] = ()) -> spark.StructType:
    """Return the Spark type of rows with these columns; raise as `spark_type` does."""
    return spark.StructType(
        [spark.StructField(f.name, spark_type(f.field_type, (*path, f.name))) for f in columns.fields]
    )


def spark_type(kind: iceberg.IcebergType, path: tuple[str, ...] = ()) -> spark.DataType:
    """Return the Spark type of an Iceberg type, as Iceberg's own Spark integration maps it.

    Every field is nullable, because the writer checks required values. Raises UnsupportedTable for types without a
    match, with the `path` of the column.
    """
    if isinstance(kind, iceberg.StructType):
        return spark_schema(kind, path)
    if isinstance(kind, iceberg.ListType):
        return spark.ArrayType(spark_type(kind.element_type, (*path, "element")))
    if isinstance(kind, iceberg.MapType):
        return spark.MapType(spark_type(kind.key_type, (*path, "key")), spark_type(kind.value_type, (*path, "value")))
    if isinstance(kind, iceberg.DecimalType):
        return spark.DecimalType(kind.precision, kind.scale)
    if type(kind) in _PRIMITIVES:
        return _PRIMITIVES[type(kind)]()
    name = ".".join(path)
    raise UnsupportedTable(f"Cannot use column '{name}' from Spark: it has no type for Iceberg's '{kind}'", column=name)


@dataclass(frozen=True)
class Extra:
    """A column of the batch that the table lacks: its path from the top, and its Spark type."""

    path: tuple[str, ...]
    kind: spark.DataType


def extra_columns(
    batch: spark.StructType,
    table: iceberg.StructType,
    fold: Callable[[str], str],
    path: tuple[str, ...] = (),
    *,
    is_whole: bool = True,
) -> list[Extra]:
    """Return the columns of the batch that the table lacks, nested ones included.

    `fold` maps all spellings of one name to the same string. A batch that is not whole may lack required columns: its
    rows may be deletes, and the writer checks the others. Raises SchemaMismatch if a required column of the table
    without a write default is missing or two columns have one name. It does so too if the table's type would silently
    drop a part of the values.
    """
    names = [fold(f.name) for f in batch.fields]
    twice = next((f.name for f in batch.fields if names.count(fold(f.name)) > 1), None)
    if twice is not None:
        raise SchemaMismatch(f"Cannot write column '{_dotted(path, twice)}': the batch has two of that name")
    known = {fold(f.name): f for f in table.fields}
    missing = [f.name for f in table.fields if f.required and f.write_default is None and fold(f.name) not in names]
    if missing and is_whole:
        raise SchemaMismatch(
            f"Cannot write without column '{_dotted(path, missing[0])}': the table requires it",
            column=_dotted(path, missing[0]),
        )
    extras = []
    for field in batch.fields:
        match = known.get(fold(field.name))
        if match is None:
            extras.append(Extra((*path, field.name), field.dataType))
        else:
            extras += _inside(field.dataType, match.field_type, (*path, match.name), fold)
    return extras


def _inside(
    batch: spark.DataType, table: iceberg.IcebergType, path: tuple[str, ...], fold: Callable[[str], str]
) -> list[Extra]:
    """Return extra fields of structs at any depth, because Spark would drop them without an error."""
    if isinstance(batch, spark.StructType) and isinstance(table, iceberg.StructType):
        return extra_columns(batch, table, fold, path)
    if isinstance(batch, spark.ArrayType) and isinstance(table, iceberg.ListType):
        return _inside(batch.elementType, table.element_type, (*path, "element"), fold)
    if isinstance(batch, spark.MapType) and isinstance(table, iceberg.MapType):
        return [
            *_inside(batch.keyType, table.key_type, (*path, "key"), fold),
            *_inside(batch.valueType, table.value_type, (*path, "value"), fold),
        ]
    _check_kept(batch, table, ".".join(path))
    return []


def _check_kept(batch: spark.DataType, table: iceberg.IcebergType, column: str) -> None:
    """Raise SchemaMismatch if a cast would cut off a part of a value.

    Spark's casts report values out of range, but not the digits or times that they cut off.
    """
    lost = None
    if _digits_after_point(batch) > _digits_after_point_of(table):
        lost = "digits after the point"
    elif isinstance(batch, (spark.TimestampType, spark.TimestampNTZType)) and isinstance(table, iceberg.DateType):
        lost = "the time of day"
    if lost is not None:
        kind = spark_type(table).simpleString()
        raise SchemaMismatch(
            f"Cannot write column '{column}' ({batch.simpleString()}) as the table's {kind}: {lost} would be lost "
            f"silently. If intended, cast it in the batch: CAST({column} AS {kind})",
            column=column,
        )


def _digits_after_point(kind: spark.DataType) -> float:
    if isinstance(kind, (spark.FloatType, spark.DoubleType)):
        return math.inf
    return kind.scale if isinstance(kind, spark.DecimalType) else 0


def _digits_after_point_of(kind: iceberg.IcebergType) -> float:
    """Return the digits after the point that a type keeps; infinity for types that are not numbers.

    Casts to such types drop no digits, or Spark refuses them.
    """
    if isinstance(kind, (iceberg.IntegerType, iceberg.LongType)):
        return 0
    return kind.scale if isinstance(kind, iceberg.DecimalType) else math.inf


def _dotted(path: tuple[str, ...], name: str) -> str:
    return ".".join((*path, name))


def refuse(extras: list[Extra], table: str, way_on: str = "drop them") -> None:
    """Raise SchemaMismatch that names the columns that the table lacks, if there are any."""
    if extras:
        names = ", ".join(f"'{'.'.join(e.path)}' ({e.kind.simpleString()})" for e in extras)
        raise SchemaMismatch(
            f"Cannot write to '{table}': the batch has columns that the table lacks: {names}; {way_on}, add them to "
            'the table, or use schema_evolution="add"',
            columns=[".".join(e.path) for e in extras],
        )


def align(
    df: DataFrame, schema: Schema, table: str, fold: Callable[[str], str], *, kept: Sequence[spark.StructField] = ()
) -> DataFrame:
    """Return the batch with exactly the table's columns, in the table's order and types, and then the `kept` ones.

    Columns and nested fields that the batch lacks have their write default, or are NULL. `fold` maps all spellings of
    one name to the same string. Raises SchemaMismatch that names the column that does not fit, with the reason.
    """
    target = spark.StructType([*spark_schema(schema).fields, *kept])
    filled = _filled(df.schema, schema.as_struct(), fold, lambda name: F.col(_quoted(name)))
    try:
        return (df.withColumns(filled) if filled else df).to(target)
    except AnalysisException as error:
        reason = str(error).split("\n")[0]
        raise SchemaMismatch(f"Cannot write to '{table}': {reason}", table=table) from error


def _filled(
    batch: spark.StructType, table: iceberg.StructType, fold: Callable[[str], str], get: Callable[[str], Column]
) -> dict[str, Column]:
    """Return the fields of a struct that write defaults add, or add something to; `get` returns its other fields."""
    present = {fold(field.name): field for field in batch.fields}
    filled = dict[str, Column]()
    for field in table.fields:
        here = present.get(fold(field.name))
        if here is None and field.write_default is not None:
            filled[field.name] = _literal(field.field_type, field.write_default)
        elif here is not None and _has_gaps(here.dataType, field.field_type, fold):
            filled[here.name] = _with_defaults(get(here.name), here.dataType, field.field_type, fold)
    return filled


def _has_gaps(batch: spark.DataType, table: iceberg.IcebergType, fold: Callable[[str], str]) -> bool:
    """Return whether structs of a nested type lack a field with a write default."""
    if isinstance(batch, spark.StructType) and isinstance(table, iceberg.StructType):
        present = {fold(field.name): field.dataType for field in batch.fields}
        return any(
            _has_gaps(present[fold(field.name)], field.field_type, fold)
            if fold(field.name) in present
            else field.write_default is not None
            for field in table.fields
        )
    if isinstance(batch, spark.ArrayType) and isinstance(table, iceberg.ListType):
        return _has_gaps(batch.elementType, table.element_type, fold)
    if isinstance(batch, spark.MapType) and isinstance(table, iceberg.MapType):
        return _has_gaps(batch.valueType, table.value_type, fold)
    return False


def _with_defaults(column: Column, batch: Any, table: Any, fold: Callable[[str], str]) -> Column:
    """Return values of a nested type that has gaps with their write defaults; what is NULL stays NULL."""
    if isinstance(batch, spark.ArrayType):
        return F.transform(column, lambda each: _with_defaults(each, batch.elementType, table.element_type, fold))
    if isinstance(batch, spark.MapType):
        return F.transform_values(column, lambda _, each: _with_defaults(each, batch.valueType, table.value_type, fold))
    for name, value in _filled(batch, table, fold, column.getField).items():
        column = column.withField(_quoted(name), value)
    return column


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(kind: iceberg.IcebergType, value: Any) -> Column:
    """Return a default as a column; times pass as text, which no time zone of a session changes."""
    if isinstance(value, bytes):
        return F.unhex(F.lit(value.hex()))
    if isinstance(value, Decimal):
        value = format(value, "f")
    elif not isinstance(value, (bool, int, float, str)):
        value = value.isoformat() if isinstance(value, date) else str(value)
    return F.lit(value).cast(spark_type(kind))


def iceberg_type(kind: spark.DataType) -> iceberg.IcebergType:
    """Return the Iceberg type for a column to be added; the schema update replaces its placeholder ids."""
    for iceberg_class, spark_class in _PRIMITIVES.items():
        if iceberg_class not in (iceberg.UUIDType, iceberg.FixedType) and isinstance(kind, type(spark_class())):
            return iceberg_class()
    if isinstance(kind, (spark.ByteType, spark.ShortType)):
        return iceberg.IntegerType()
    if isinstance(kind, spark.DecimalType):
        return iceberg.DecimalType(kind.precision, kind.scale)
    if isinstance(kind, spark.StructType) and kind.fields:
        fields = [iceberg.NestedField(i + 1, f.name, iceberg_type(f.dataType)) for i, f in enumerate(kind.fields)]
        return iceberg.StructType(*fields)
    if isinstance(kind, spark.ArrayType):
        return iceberg.ListType(1, iceberg_type(kind.elementType), element_required=False)
    if isinstance(kind, spark.MapType):
        return iceberg.MapType(1, iceberg_type(kind.keyType), 2, iceberg_type(kind.valueType), value_required=False)
    raise SchemaMismatch(f"Cannot add a column of type '{kind.simpleString()}': Iceberg has no such type")


def create_table(name: str, batch: spark.StructType) -> str:
    """Return the statement that creates a table for a batch; the user adds a partitioning."""
    quoted = ".".join(f"`{part}`" for part in name.split("."))
    # Iceberg has no integers below 32 bits.
    kinds: dict[spark.DataType, str] = {spark.ByteType(): "int", spark.ShortType(): "int"}
    columns = ", ".join(f"`{f.name}` {kinds.get(f.dataType, f.dataType.simpleString())}" for f in batch.fields)
    return f"CREATE TABLE {quoted} ({columns}) USING iceberg"


@dataclass(frozen=True)
class Conditions(ExpressionEngine):
    """Spark's expressions on a batch. `fold` maps all spellings of one name to the same string."""

    batch: spark.StructType
    fold: Callable[[str], str]

    def column(self, name: str) -> Operand:
        path, own = located(self.fold(name), cast(spark.DataType, self.batch), self._fields)
        value, kind = F.col(".".join(map(_quoted, path))), _compared(own)
        if kind is None:
            return Operand(value, None, own.simpleString(), F.lit)
        return Operand(value.cast(spark_type(kind)), kind, own.simpleString(), lambda each: _constant(kind, each))

    def is_null(self, value: Column) -> Column:
        return value.isNull()

    def is_nan(self, value: Column) -> Column:
        return F.when(value.isNotNull(), F.isnan(value))

    def starts_with(self, value: Column, prefix: str) -> Column:
        return value.startswith(prefix)

    def _fields(self, kind: spark.DataType) -> dict[str, spark.DataType]:
        fields = kind.fields if isinstance(kind, spark.StructType) else ()
        return {self.fold(field.name): field.dataType for field in fields}


def _compared(kind: spark.DataType) -> iceberg.PrimitiveType | None:
    """Return the type in which values of a type are compared with constants; None if they are not."""
    if isinstance(kind, spark.IntegralType):
        return iceberg.LongType()
    if isinstance(kind, spark.FractionalType) and not isinstance(kind, spark.DecimalType):
        return iceberg.DoubleType()
    if isinstance(kind, spark.AtomicType) and not isinstance(kind, spark.BinaryType):
        with suppress(SchemaMismatch):
            return cast(iceberg.PrimitiveType, iceberg_type(kind))
    return None


def _constant(kind: iceberg.IcebergType, value: Any) -> Column:
    """Return a constant of a type; a point in time is in UTC."""
    if isinstance(kind, iceberg.TimestamptzType):
        value = value.replace(tzinfo=timezone.utc)
    return _literal(kind, value)
