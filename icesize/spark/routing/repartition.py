"""By what rows of one partition are divided, and exact placement of rows in tasks.

The task is a function of the row alone: a stage that is computed again after a lost shuffle file sends each row where
it went before.
"""

from __future__ import annotations

import struct

import mmh3
from pyiceberg import types as iceberg
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortOrder
from pyiceberg.transforms import VoidTransform
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from icesize.parquet.files.settings import WriteSettings
from icesize.spark.routing.partition_keys import column

TASK = "_icesize_task"

SPREAD_COLUMNS = 4
"""Columns whose hash spreads the rows of a split partition."""

_HASHABLE = (
    iceberg.IntegerType, iceberg.LongType, iceberg.StringType, iceberg.DateType, iceberg.TimestampType,
    iceberg.TimestamptzType, iceberg.DecimalType, iceberg.UUIDType, iceberg.BinaryType, iceberg.FixedType,
    iceberg.DoubleType, iceberg.FloatType,
)  # fmt: skip


def spread(spec: PartitionSpec, schema: Schema) -> Column | None:
    """A hash that spreads rows of one partition: a function of the row; None when no column can be hashed."""
    sources = {field.source_id for field in spec.fields}
    fields = [f for f in schema.fields if isinstance(f.field_type, _HASHABLE)]
    chosen = sorted(fields, key=lambda f: f.field_id in sources)[:SPREAD_COLUMNS]
    return F.xxhash64(*(F.col(f"`{f.name}`") for f in chosen)) if chosen else None


def sort_column(settings: WriteSettings) -> tuple[Column, bool] | None:
    """What rows are sorted by first, and whether nulls come first; None for a table without a sort order, or one that
    does not go with the order of a column."""
    if not settings.sort_order_json:
        return None
    fields = SortOrder.model_validate_json(settings.sort_order_json).fields
    first = next((field for field in fields if not isinstance(field.transform, VoidTransform)), None)
    if first is None or not first.transform.preserves_order:
        return None
    name = settings.schema.find_column_name(first.source_id)
    return (column(name), first.null_order == NullOrder.NULLS_FIRST) if name else None


def to_tasks(df: DataFrame, tasks: int) -> DataFrame:
    """The rows in `tasks` Spark tasks, exactly where their column `TASK` says, without it.

    `repartitionById` is exact since Spark 4.1; before, rows are hashed by a number chosen so that Spark's own hash
    sends it to the wanted task. Both fix the number of tasks, which adaptive execution leaves alone.
    """
    if hasattr(df, "repartitionById"):
        return df.repartitionById(tasks, F.col(TASK)).drop(TASK)
    keys = F.array(*(F.lit(key) for key in chosen_keys(tasks)))
    return df.withColumn(TASK, keys[F.col(TASK)]).repartition(tasks, F.col(TASK)).drop(TASK)


def chosen_keys(tasks: int) -> list[int]:
    """For each task an int that Spark's hash partitioning sends to it: pmod(murmur3(int, seed 42), tasks)."""
    found: dict[int, int] = {}
    candidate = 0
    while len(found) < tasks:
        found.setdefault(mmh3.hash(struct.pack("<i", candidate), 42) % tasks, candidate)
        candidate += 1
    return [found[task] for task in range(tasks)]
