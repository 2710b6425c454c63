"""Where each row of a batch goes: a key per partition, a task per key, and exact placement of rows in tasks.

The key is a function of the partition, computed by Spark; which partition a row belongs to is decided once, where it
is written (`parquet/partition.py`). So a key that two partitions share, or a partition with two keys, costs balance or
one more file, never a row in the wrong place. The task is a function of the row alone: a stage that is computed again
after a lost shuffle file sends each row where it went before.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from typing import Any, cast

import mmh3
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
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

TASK = "_icesize_task"

PLACED_KEYS = 512
"""Partitions placed one by one, the heaviest first; the others go by their hash. A map literal of 97 keys costs nothing
visible, its look-up is linear."""

SPREAD_COLUMNS = 4
"""Columns whose hash spreads the rows of a split partition."""

_DAY_US = 86_400_000_000
_HOUR_US = 3_600_000_000
_HASHABLE = (
    iceberg.IntegerType, iceberg.LongType, iceberg.StringType, iceberg.DateType, iceberg.TimestampType,
    iceberg.TimestamptzType, iceberg.DecimalType, iceberg.UUIDType, iceberg.BinaryType, iceberg.FixedType,
    iceberg.DoubleType, iceberg.FloatType,
)  # fmt: skip


def partition_key(spec: PartitionSpec, schema: Schema) -> Column:
    """A long that is equal for rows of one partition; a constant for an unpartitioned table."""
    parts = [_part(field, schema) for field in spec.fields if not isinstance(field.transform, VoidTransform)]
    return F.xxhash64(*parts) if parts else F.lit(0).cast("long")


def source_columns(spec: PartitionSpec, schema: Schema) -> list[str]:
    """Top-level columns that partition values are computed from."""
    sources = {field.source_id for field in spec.fields if not isinstance(field.transform, VoidTransform)}
    names = [cast("str", schema.find_column_name(source)).split(".")[0] for source in sources]
    return [f.name for f in schema.fields if f.name in names]


def _part(field: PartitionField, schema: Schema) -> Column:
    name = cast("str", schema.find_column_name(field.source_id))
    column = F.col(".".join(f"`{part}`" for part in name.split(".")))
    kind = schema.find_type(field.source_id)
    transform = field.transform
    if isinstance(transform, IdentityTransform):
        return column
    if isinstance(transform, BucketTransform):
        return _bucket(column, kind, transform.num_buckets)
    if isinstance(transform, TruncateTransform):
        return _truncate(column, kind, transform.width)
    return _calendar(column, kind, type(transform))


def _bucket(column: Column, kind: iceberg.IcebergType, buckets: int) -> Column:
    if isinstance(kind, iceberg.DateType):
        column, kind = F.unix_date(column), iceberg.IntegerType()
    elif isinstance(kind, iceberg.TimestamptzType):
        column, kind = F.unix_micros(column), iceberg.LongType()
    elif isinstance(kind, iceberg.TimestampType):
        column, kind = _local_micros(column), iceberg.LongType()
    return F.udf(_bucket_of(kind, buckets), "int", useArrow=True)(column)


def _bucket_of(kind: iceberg.IcebergType, buckets: int) -> Callable[[Any], int | None]:
    of_value = BucketTransform(buckets).transform(kind)
    is_uuid = isinstance(kind, iceberg.UUIDType)
    return lambda value: of_value(uuid.UUID(str(value)) if is_uuid and value else value)


def _local_micros(column: Column) -> Column:
    """Microseconds since 1970 of a timestamp without zone; a cast would go through the session's zone, in which hours
    are missing or twice."""
    micros = (F.date_part(F.lit("SECOND"), column) * F.lit(1_000_000)).cast("long")
    minutes = (F.unix_date(column.cast("date")).cast("long") * 24 + F.hour(column)) * 60 + F.minute(column)
    return minutes * F.lit(60_000_000) + micros


def _truncate(column: Column, kind: iceberg.IcebergType, width: int) -> Column:
    if isinstance(kind, (iceberg.StringType, iceberg.BinaryType)):
        return F.substring(column, 1, width)
    step = F.lit(Decimal(width).scaleb(-kind.scale)) if isinstance(kind, iceberg.DecimalType) else F.lit(width)
    # towards zero, and on which side of it: towards minus infinity would overflow near the smallest value
    return F.xxhash64(column - column % step, column % step < F.lit(0))


def _calendar(column: Column, kind: iceberg.IcebergType, transform: type) -> Column:
    if isinstance(kind, iceberg.TimestamptzType):
        micros = F.unix_micros(column)
        if transform is HourTransform:
            return micros - F.pmod(micros, F.lit(_HOUR_US))
        days = ((micros - F.pmod(micros, F.lit(_DAY_US))) / F.lit(_DAY_US)).cast("int")
        column = F.date_add(F.lit(date(1970, 1, 1)), days)
    elif isinstance(kind, iceberg.TimestampType):
        if transform is HourTransform:
            return F.unix_date(column.cast("date")) * 24 + F.hour(column)
        column = column.cast("date")
    if transform is DayTransform:
        return column
    return F.trunc(column, "MM" if transform is MonthTransform else "YYYY")


def spread(spec: PartitionSpec, schema: Schema) -> Column | None:
    """A hash that spreads rows of one partition: a function of the row; None when no column can be hashed."""
    sources = {field.source_id for field in spec.fields}
    fields = [f for f in schema.fields if isinstance(f.field_type, _HASHABLE)]
    chosen = sorted(fields, key=lambda f: f.field_id in sources)[:SPREAD_COLUMNS]
    return F.xxhash64(*(F.col(f"`{f.name}`") for f in chosen)) if chosen else None


def task_of(key: Column, tasks: int, placed: Mapping[int, tuple[int, ...]], spread_by: Column | None) -> Column:
    """The task of a row: by its partition's place, split partitions by the row's hash, unknown ones by the key."""
    by_hash = F.pmod(key, F.lit(tasks)).cast("int")
    known = _one_by_one(placed)
    if not known:
        return by_hash
    if all(len(t) == 1 for t in known.values()) or spread_by is None:
        table = F.create_map(*(F.lit(x) for key_, t in known.items() for x in (key_, t[0])))
        return F.coalesce(table[key], by_hash).cast("int")
    arrays = F.create_map(*(x for key_, t in known.items() for x in (F.lit(key_), F.array(*(F.lit(n) for n in t)))))
    choice = arrays[key]
    nth = F.pmod(spread_by, F.size(choice)).cast("int")
    return F.coalesce(F.get(choice, nth), by_hash).cast("int")


def first_tasks(tasks: int, placed: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
    """The first task of each key, as `task_of` places it."""
    known = _one_by_one(placed)
    return {key: known[key][0] if key in known else key % tasks for key in placed}


def _one_by_one(placed: Mapping[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    return dict(list(placed.items())[:PLACED_KEYS])


def place(df: DataFrame, task: Column, tasks: int) -> DataFrame:
    """The rows in `tasks` Spark tasks, exactly where `task` says.

    `repartitionById` is exact since Spark 4.1; before, rows are hashed by a number chosen so that Spark's own hash
    sends it to the wanted task. Both fix the number of tasks, which adaptive execution leaves alone.
    """
    if hasattr(df, "repartitionById"):
        return df.withColumn(TASK, task).repartitionById(tasks, F.col(TASK)).drop(TASK)
    keys = F.array(*(F.lit(key) for key in chosen_keys(tasks)))
    return df.withColumn(TASK, keys[task]).repartition(tasks, F.col(TASK)).drop(TASK)


def gather(df: DataFrame, cheap: bool) -> DataFrame:
    """The rows in one Spark task; where making them is work, that work keeps its own tasks."""
    return df.coalesce(1) if cheap else df.repartition(1)


def chosen_keys(tasks: int) -> list[int]:
    """For each task an int that Spark's hash partitioning sends to it: pmod(murmur3(int, seed 42), tasks)."""
    found: dict[int, int] = {}
    candidate = 0
    while len(found) < tasks:
        found.setdefault(mmh3.hash(struct.pack("<i", candidate), 42) % tasks, candidate)
        candidate += 1
    return [found[task] for task in range(tasks)]
