"""The partition of a row as one number, computed by Spark for rows and here for known partitions.

The module also has the columns that divide the rows of one partition.

The key of a row is a function of its partition's values. The writer alone decides the partition of a row
(`parquet/files/partitioning.py`). If two partitions share a key, or a partition has two keys, that costs balance or one
more file; it never puts a row in a wrong place.
"""

from __future__ import annotations

import itertools
import struct
import uuid
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Context, Decimal
from typing import Any, cast

import xxhash
from pyiceberg import types as iceberg
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
)
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from icesize.planning.files import PartitionKey

_DAY_US = 86_400_000_000
_HOUR_US = 3_600_000_000
_WIDE = Context(prec=80)
_SEED = 42
"""The seed of Spark's `xxhash64`, and its value for nulls alone."""

_UNFIT = (ArithmeticError, ValueError, TypeError, AttributeError, IndexError, struct.error)
"""Errors for values that are not of the spec's types: values of an earlier table with the same name."""

SPREAD_COLUMNS = 4
"""Columns whose hash spreads the rows of a split partition."""

_HASHABLE = (
    iceberg.IntegerType, iceberg.LongType, iceberg.StringType, iceberg.DateType, iceberg.TimestampType,
    iceberg.TimestamptzType, iceberg.DecimalType, iceberg.UUIDType, iceberg.BinaryType, iceberg.FixedType,
    iceberg.DoubleType, iceberg.FloatType,
)  # fmt: skip

Encode = Callable[[Any], "tuple[bytes, ...]"]
"""Returns the bytes that Spark hashes for the rows of a partition value.

Several results mean that rows of one value differ in these bytes. A null has none, because Spark skips nulls.
"""


def partition_key(spec: PartitionSpec, schema: Schema) -> Column:
    """Return a long that is equal for all rows of one partition; a constant for an unpartitioned table."""
    parts = [_part(field, schema) for field in spec.fields if not isinstance(field.transform, VoidTransform)]
    return F.xxhash64(*parts) if parts else F.lit(0).cast("long")


def spread(spec: PartitionSpec, schema: Schema) -> Column | None:
    """Return a hash that spreads rows of one partition, a function of the row; None if no column can be hashed."""
    sources = {field.source_id for field in spec.fields}
    fields = [f for f in schema.fields if isinstance(f.field_type, _HASHABLE)]
    chosen = sorted(fields, key=lambda f: f.field_id in sources)[:SPREAD_COLUMNS]
    return F.xxhash64(*(F.col(f"`{f.name}`") for f in chosen)) if chosen else None


def _part(field: PartitionField, schema: Schema) -> Column:
    # The full name, also of a field inside structs.
    name = cast("str", schema.find_column_name(field.source_id))
    source = F.col(".".join(f"`{part}`" for part in name.split(".")))
    kind = schema.find_type(field.source_id)
    transform = field.transform
    if isinstance(transform, IdentityTransform):
        return source
    if isinstance(transform, BucketTransform):
        return _bucket(source, kind, transform.num_buckets)
    if isinstance(transform, TruncateTransform):
        return _truncate(source, kind, transform.width)
    return _calendar(source, kind, type(transform))


def _bucket(column: Column, kind: iceberg.IcebergType, buckets: int) -> Column:
    if isinstance(kind, iceberg.DateType):
        column, kind = F.unix_date(column), iceberg.IntegerType()
    elif isinstance(kind, iceberg.TimestamptzType):
        column, kind = F.unix_micros(column), iceberg.LongType()
    elif isinstance(kind, iceberg.TimestampType):
        column, kind = _local_micros(column), iceberg.LongType()
    elif isinstance(kind, iceberg.StringType):
        column, kind = column.cast("binary"), iceberg.BinaryType()  # Python has no text that is no UTF-8
    return F.udf(_bucket_of(kind, buckets), "int", useArrow=True)(column)


def _bucket_of(kind: iceberg.IcebergType, buckets: int) -> Callable[[Any], int | None]:
    of_value = BucketTransform(buckets).transform(kind)
    is_uuid = isinstance(kind, iceberg.UUIDType)
    return lambda value: of_value(uuid.UUID(str(value)) if is_uuid and value else value)


def _local_micros(column: Column) -> Column:
    """Return microseconds since 1970 of a timestamp without zone.

    A cast would go through the session's zone, in which hours are missing or occur twice.
    """
    micros = (F.date_part(F.lit("SECOND"), column) * F.lit(1_000_000)).cast("long")
    minutes = (F.unix_date(column.cast("date")).cast("long") * 24 + F.hour(column)) * 60 + F.minute(column)
    return minutes * F.lit(60_000_000) + micros


def _truncate(column: Column, kind: iceberg.IcebergType, width: int) -> Column:
    if _has_bytes(kind):
        return F.substring(column, 1, width)
    step = F.lit(Decimal(width).scaleb(-kind.scale)) if isinstance(kind, iceberg.DecimalType) else F.lit(width)
    towards_zero = column - column % step
    if isinstance(kind, iceberg.DecimalType):
        towards_zero = towards_zero.cast(f"decimal({kind.precision},{kind.scale})")
    # The hash includes the side of zero, because values on both sides round towards zero to the same number.
    # Rounding down instead would overflow near the smallest value.
    return F.xxhash64(towards_zero, column % step < F.lit(0))


def _calendar(column: Column, kind: iceberg.IcebergType, transform: type) -> Column:
    """Return hours (a long), days, months or years since 1970."""
    if isinstance(kind, iceberg.TimestamptzType):
        micros = F.unix_micros(column)
        if transform is HourTransform:
            return _whole(micros, _HOUR_US)
        column = F.date_add(F.lit(date(1970, 1, 1)), _whole(micros, _DAY_US).cast("int"))
    elif transform is HourTransform:
        return F.unix_date(column.cast("date")).cast("long") * 24 + F.hour(column)
    else:
        column = column.cast("date")
    if transform is DayTransform:
        return F.unix_date(column)
    years = F.year(column) - 1970
    return years * 12 + F.month(column) - 1 if transform is MonthTransform else years


def _whole(micros: Column, unit: int) -> Column:
    """Return whole units, rounded down; a double holds multiples of an hour exactly."""
    return ((micros - F.pmod(micros, F.lit(unit))) / F.lit(unit)).cast("long")


def keys_of(spec: PartitionSpec, schema: Schema) -> Callable[[PartitionKey], tuple[int, ...]]:
    """Return a function from a partition to the keys that `partition_key` computes for its rows.

    The function returns `()` for values that no row in Spark has. It returns several keys if rows of one partition
    differ in their keys: numbers below zero that are truncated.
    """
    fields = [
        (at, _encoder(field, schema)) for at, field in enumerate(spec.fields)
        if not isinstance(field.transform, VoidTransform)
    ]  # fmt: skip

    def keys(partition: PartitionKey) -> tuple[int, ...]:
        try:
            parts = [part for at, encode in fields if (part := encode(partition.values[at]))]
        except _UNFIT:
            return ()
        return tuple(_hashed(chosen) for chosen in itertools.product(*parts)) if fields else (0,)

    return keys


def _hashed(parts: tuple[bytes, ...]) -> int:
    """Return Spark's `xxhash64` of several values: each hash is the seed of the next one, and nulls are skipped."""
    seed = _SEED
    for data in parts:
        seed = xxhash.xxh64_intdigest(data, seed)
    return seed - 2**64 if seed >= 2**63 else seed


def _encoder(field: PartitionField, schema: Schema) -> Encode:
    kind, transform = schema.find_type(field.source_id), field.transform
    if isinstance(transform, IdentityTransform):
        return _one(_identity(kind))
    if isinstance(transform, TruncateTransform):
        return _one(_identity(kind)) if _has_bytes(kind) else _truncated(kind, transform.width)
    return _one(_long if isinstance(transform, HourTransform) else _int)


def _one(encode: Callable[[Any], bytes]) -> Encode:
    return lambda value: () if value is None else (encode(value),)


def _has_bytes(kind: iceberg.IcebergType) -> bool:
    return isinstance(kind, (iceberg.StringType, iceberg.BinaryType))


def _identity(kind: iceberg.IcebergType) -> Callable[[Any], bytes]:
    return _decimal(kind) if isinstance(kind, iceberg.DecimalType) else _ENCODERS.get(type(kind), _long)


def _decimal(kind: iceberg.DecimalType) -> Callable[[Any], bytes]:
    def encode(value: Any) -> bytes:
        number = int(value.scaleb(kind.scale, _WIDE))
        if kind.precision <= 18:
            return _long(number)
        return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)

    return encode


def _truncated(kind: iceberg.IcebergType, width: int) -> Encode:
    step = Decimal(width).scaleb(-kind.scale) if isinstance(kind, iceberg.DecimalType) else width
    encode = _identity(kind)

    def both_sides(value: Any) -> Iterator[bytes]:
        yield _long(_SEED if value is None else _hashed((encode(value), _int(0))))
        if value is not None and value < 0:
            yield _long(_hashed((encode(value + step), _int(1))))

    return lambda value: tuple(both_sides(value))


def _int(value: Any) -> bytes:
    return struct.pack("<i", int(value))


def _long(value: Any) -> bytes:
    return struct.pack("<q", int(value))


_ENCODERS: dict[type[iceberg.IcebergType], Callable[[Any], bytes]] = {
    iceberg.StringType: lambda value: str(value).encode(),
    iceberg.UUIDType: lambda value: str(value).encode(),
    iceberg.BinaryType: bytes,
    iceberg.FixedType: bytes,
    iceberg.BooleanType: _int,
    iceberg.IntegerType: _int,
    iceberg.DateType: _int,
    iceberg.FloatType: lambda value: struct.pack("<f", value + 0.0),
    iceberg.DoubleType: lambda value: struct.pack("<d", value + 0.0),
}
"""Encoders of the values of these types, as Spark hashes them; all other types except decimals are longs."""
