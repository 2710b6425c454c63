"""Where rows go: one key per partition, the task that is wanted, and partition values as Iceberg computes them."""

from __future__ import annotations

import struct
from collections import Counter
from datetime import date, datetime, timezone
from typing import Any
from uuid import UUID

import mmh3
import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from icesize.errors import SchemaMismatch
from icesize.planning.files import PartitionKey
from icesize.spark.routing import partition_keys as keys
from icesize.spark.routing import task_column
from tests.support.spark_lake import Lake, Make, conf

TIMES = [
    "0001-01-02 00:00:00", "1899-12-31 23:59:59.5", "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00",
    "2024-03-10 02:30:00", "2024-03-10 03:30:00", "2026-11-20 08:00:00.000001", "9999-12-30 23:59:59.999999",
]  # fmt: skip
DATES = ["date'0001-01-01'", "date'1582-10-15'", "date'1969-12-31'", "date'1970-01-01'", "date'2000-02-29'", "NULL"]
UUIDS = [f"'{'%08x' % (i * 99_999_989)}-e7c4-4e11-9a3b-00000000000{i}'" for i in range(6)]
VALUES: dict[str, tuple[IcebergType, str, list[str]]] = {
    "b": (BooleanType(), "boolean", ["true", "false", "NULL"]),
    "i": (IntegerType(), "int", ["0", "-1", "9", "-11", "2147483647", "-2147483648", "NULL"]),
    "l": (LongType(), "bigint", ["0", "-1L", "99L", "-101L", "9223372036854775807L", "-9223372036854775807L", "NULL"]),
    "f": (FloatType(), "float", ["0.0", "1.5", "-1.5", "NULL"]),
    "g": (DoubleType(), "double", ["0.0", "1.5", "1180591620717411303424D", "NULL"]),
    "d": (DecimalType(9, 2), "decimal(9,2)", ["0", "14.20", "-14.20", "-0.05", "9999999.99", "NULL"]),
    "w": (DecimalType(38, 10), "decimal(38,10)", ["0.0000000001", "-0.0000000001", "1234567890123456789012345678"]),
    "s": (StringType(), "string", ["''", "'iceberg'", "'ice'", "'日本語'", "'🧊🧊🧊🧊'", "'a/b=c %'", "NULL"]),
    "x": (BinaryType(), "binary", ["X''", "X'00010203'", "X'FFFEFD'", "NULL"]),
    "u": (UUIDType(), "string", [*UUIDS, "NULL"]),
    "day": (DateType(), "date", DATES),
    "z": (TimestamptzType(), "timestamp", [*(f"timestamp'{t} UTC'" for t in TIMES), "NULL"]),
    "n": (TimestampType(), "timestamp_ntz", [*(f"timestamp_ntz'{t}'" for t in TIMES), "NULL"]),
}
CALENDAR = [("day", [YearTransform(), MonthTransform(), DayTransform()])] + [
    (name, [YearTransform(), MonthTransform(), DayTransform(), HourTransform()]) for name in ("z", "n")
]
TRANSFORMS: dict[str, list[tuple[str, Transform[Any, Any]]]] = {
    "identity": [(name, IdentityTransform()) for name in VALUES],
    "bucket": [(name, BucketTransform(16)) for name in VALUES if name not in ("b", "f", "g")],
    "truncate": [(name, TruncateTransform(3)) for name in ("i", "l", "d", "w", "s", "x")],
    "calendar": [(name, transform) for name, transforms in CALENDAR for transform in transforms],
    "void": [("i", VoidTransform()), ("s", IdentityTransform())],
}
ROWS = 24
EPOCH = datetime(1970, 1, 1)


def batch_of(spark: SparkSession, names: list[str]) -> DataFrame:
    """24 rows in which each column goes through its values, null among them, at its own pace."""
    picks = [VALUES[name][2] for name in names]
    rows = (
        ", ".join(values[(row * (1 + at % 3) + at) % len(values)] for at, values in enumerate(picks))
        for row in range(ROWS)
    )
    casts = ", ".join(f"cast({name} as {VALUES[name][1]}) as {name}" for name in names)
    return spark.sql(f"SELECT {casts} FROM VALUES {', '.join(f'({row})' for row in rows)} AS t({', '.join(names)})")


def expected(kind: IcebergType, transform: Transform[Any, Any], value: Any) -> object:
    """The partition value of one value as PyIceberg read it back, by PyIceberg's own transform."""
    if isinstance(kind, UUIDType) and isinstance(value, str):
        return transform.transform(kind)(UUID(value))
    if isinstance(value, datetime):
        moment = value.astimezone(timezone.utc).replace(tzinfo=None) if value.tzinfo else value
        apart = moment - EPOCH
        value = (apart.days * 86_400 + apart.seconds) * 1_000_000 + apart.microseconds
    elif isinstance(value, date):
        value = (value - EPOCH.date()).days
    if isinstance(transform, TruncateTransform) and isinstance(value, int):
        # PyIceberg's integers grow where Iceberg's wrap
        bits = 32 if isinstance(kind, IntegerType) else 64
        return (value - value % transform.width + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
    return transform.transform(kind)(value)


@pytest.mark.parametrize(
    ("family", "zone"),
    [
        ("identity", "UTC"),
        ("bucket", "America/New_York"),
        ("truncate", "UTC"),
        ("calendar", "America/New_York"),
        ("void", "UTC"),
    ],
)
def test_partition_values(by_spark: None, spark: SparkSession, lake: Lake, family: str, zone: str) -> None:
    """Manifests hold the partition values that PyIceberg computes for the rows: every transform and type, null too."""
    fields = TRANSFORMS[family]
    names = list(dict.fromkeys(name for name, _ in fields))
    schema = Schema(*(NestedField(i + 1, name, VALUES[name][0]) for i, name in enumerate(names)))
    lake.create(schema=schema, by={f"{name}|{i}": transform for i, (name, transform) in enumerate(fields)})
    with conf(spark, spark__sql__session__timeZone=zone):
        report = lake.open(spark).append(batch_of(spark, names))
    wanted = Counter(
        tuple(expected(VALUES[name][0], transform, row[name]) for name, transform in fields)
        for row in lake.table().scan().to_arrow().to_pylist()
    )
    found: Counter[tuple[object, ...]] = Counter()
    for file in lake.files():
        found[tuple(file.partition._data)] += file.record_count
    assert found == wanted
    assert report.rows == ROWS
    assert report.files_added == report.partitions_touched == len(wanted)


def test_keys_are_those_of_partitions(spark: SparkSession) -> None:
    """Rows have one routing key exactly when they are of one partition, before 1970 and where summer time begins, and
    it is among those computed from the partition's values."""
    for family in ("identity", "bucket", "truncate", "calendar"):
        for name, transform in TRANSFORMS[family]:
            kind = VALUES[name][0]
            spec = PartitionSpec(PartitionField(1, 1000, transform, "p"))
            schema = Schema(NestedField(1, name, kind))
            key, of = keys.partition_key(spec, schema), keys.keys_of(spec, schema)
            values = ", ".join(f"(cast({v} as {VALUES[name][1]}))" for v in VALUES[name][2])
            with conf(spark, spark__sql__session__timeZone="America/New_York"):
                found = spark.sql(f"SELECT * FROM VALUES {values} AS t({name})").select(name, key).toArrow().to_pylist()
            pairs = {(expected(kind, transform, row[name]), list(row.values())[1]) for row in found}
            assert len(pairs) == len({k for _, k in pairs}) == len({v for v, _ in pairs}), (name, str(transform))
            # the largest numbers below zero wrap in the partition value, not in the key
            wrapped = {v for v, _ in pairs if isinstance(v, int) and v > 2**30 and name in ("i", "l")}
            assert all(k in of(PartitionKey(0, (v,))) for v, k in pairs if v not in wrapped), (name, str(transform))


def test_nan_partition_is_refused(spark: SparkSession, lake: Lake, make: Make) -> None:
    """NaN under an identity transform stops the batch with a sentence, counted or not; nothing stays."""
    lake.create(schema=Schema(NestedField(1, "g", DoubleType())), by={"g": IdentityTransform()})
    with pytest.raises(SchemaMismatch, match="Cannot write NaN into partition field 'p0_g'"):
        lake.open(spark).append(make(spark, pa.table({"g": [1.0, float("nan")]})))
    assert lake.on_disk() == set()


def _tasks(df: DataFrame) -> dict[int, int]:
    """id -> Spark task that held the row."""
    return {row["id"]: row["task"] for row in df.select("id", F.spark_partition_id().alias("task")).collect()}


def test_placement_is_exact(spark: SparkSession) -> None:
    """Each row is in the task that was asked for."""
    batch = spark.range(200).withColumn("wanted", (F.col("id") * 7 % 5).cast("int"))
    placed = task_column.to_tasks(batch.withColumn(task_column.TASK, F.col("wanted")), 5)
    assert placed.columns == ["id", "wanted"]
    assert _tasks(placed) == {i: i * 7 % 5 for i in range(200)}


@pytest.mark.parametrize("tasks", [1, 2, 7, 64])
def test_chosen_keys_hash_to_their_tasks(tasks: int) -> None:
    """The n-th key is sent to the n-th task by Spark's hash partitioning."""
    chosen = task_column.chosen_keys(tasks)
    assert [mmh3.hash(struct.pack("<i", key), 42) % tasks for key in chosen] == list(range(tasks))


def test_only_nested_columns_cannot_be_spread() -> None:
    """A table without a column that can be hashed is not split."""
    schema = Schema(NestedField(1, "l", ListType(2, LongType(), element_required=False)))
    assert keys.spread(PartitionSpec(), schema) is None
