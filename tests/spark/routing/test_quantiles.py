"""Quantiles of a sample of rows against exact numbers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from icesize.spark.routing.quantiles import QUANTILES, quantiles


def ranks_are_right(found: tuple[Any, ...], values: list[Any], error: float = 0.02) -> None:
    """j / QUANTILES of the values are below quantile j, as nearly as equal values allow."""
    ordered = sorted(values)
    assert len(found) == QUANTILES
    assert list(found) == sorted(found)
    for j, quantile in enumerate(found):
        below, not_above = bisect_left(ordered, quantile), bisect_right(ordered, quantile)
        assert below / len(ordered) - error <= j / QUANTILES <= not_above / len(ordered) + error


def test_quantiles_of_split_partitions(spark: SparkSession) -> None:
    """Within 2 % of their rank for each wanted key, whatever the order of rows; other keys are not looked at."""
    df = spark.range(0, 400_000, 1, 3).withColumn("k", F.col("id") % 4)
    df = df.withColumn("v", F.when(F.col("k") == 1, F.pow("id", F.lit(2))).otherwise(F.col("id") - 1000.5))
    found = quantiles(df, F.col("k"), F.col("v"), [1, 2, 77], 200_000)
    assert sorted(found) == [1, 2]
    ranks_are_right(found[1], [float(i**2) for i in range(1, 400_000, 4)])
    ranks_are_right(found[2], [i - 1000.5 for i in range(2, 400_000, 4)])


def test_sampled_rows_stand_for_all(spark: SparkSession) -> None:
    """Tasks of unequal size, about a tenth of the rows looked at: quantiles are those of all rows."""
    df = spark.range(0, 180_000, 1, 1).union(spark.range(180_000, 200_000, 1, 1)).withColumn("k", F.lit(5))
    found = quantiles(df, F.col("k"), F.col("id"), [5], 200_000, most_sampled=20_000)
    assert list(found) == [5]
    ranks_are_right(found[5], list(range(200_000)))


SINCE = datetime(2026, 3, 1, 2, 30, 0, 1)
TYPED: dict[str, tuple[str, list[Any]]] = {
    "int": ("int", [-(2**31), 0, 5, 2**31 - 1]),
    "bigint": ("bigint", [-(2**53), 0, 5, 2**53]),
    "float": ("float", [-1.5, 0.0, 0.25, 1e9]),
    "double": ("double", [float("-inf"), -1.5, 1e-300, 2.5e10]),
    "decimal": ("decimal(38,10)", [Decimal("-1.5"), Decimal("0E-10"), Decimal("0.0000000001"), Decimal(2**90)]),
    "text": ("string", ["", "a", "日本", "🧊"]),
    "day": ("date", [date(1, 1, 2), date(1969, 12, 31), date(2026, 3, 1), date(9999, 12, 30)]),
    "local": ("timestamp_ntz", [datetime(1900, 1, 2), SINCE, SINCE + timedelta(hours=1), datetime(2200, 12, 30)]),
    "instant": (
        "timestamp",
        [t.replace(tzinfo=timezone.utc) for t in (datetime(1900, 1, 1), SINCE, datetime(2200, 1, 1))],
    ),
}


@pytest.mark.parametrize("name", TYPED)
def test_values_keep_their_type(spark: SparkSession, name: str) -> None:
    """Quantiles are values of the column, as Python has them; null and NaN are none."""
    kind, values = TYPED[name]
    odd = [None, float("nan")] if kind in ("float", "double") else [None]
    table = pa.table({"v": pa.array(values + odd)})
    df = spark.createDataFrame(table).select(F.lit(3).cast("long").alias("k"), F.col("v").cast(kind))
    found = quantiles(df, F.col("k"), F.col("v"), [3], 10)[3]
    assert list(dict.fromkeys(found)) == values
    assert {type(value) for value in found} == {type(value) for value in values}
    ranks_are_right(found, values, 0.001)


@pytest.mark.parametrize(
    "kind", ["date'0001-01-01'", "timestamp_ntz'+12000-01-01 00:00:00'", "timestamp'-5000-01-01 00:00:00'"]
)
def test_times_that_python_does_not_have(spark: SparkSession, kind: str) -> None:
    """The first day there is, and years before 1 and after 9999, become the nearest time that can be told."""
    df = spark.range(3).select("id", F.expr(kind).alias("v"))
    (value, *others) = quantiles(df, F.col("id"), F.col("v"), [1], 3)[1]
    assert set(others) == {value}
    assert value.year in (1, 9999)


@pytest.mark.parametrize("column", ["array(id)", "id > 3", "cast(null as void)", "named_struct('a', id)"])
def test_columns_without_an_order(spark: SparkSession, column: str) -> None:
    """There are no quantiles of values that cannot be cut into ranges."""
    assert quantiles(spark.range(9).withColumn("v", F.expr(column)), F.col("id"), F.col("v"), [1, 2], 9) == {}


def test_nothing_to_look_at(spark: SparkSession) -> None:
    """No wanted keys, no rows of them, or no values: no quantiles."""
    df = spark.range(9).withColumn("v", F.when(F.col("id") != 4, F.col("id")))
    assert quantiles(df, F.col("id"), F.col("v"), [], 9) == {}
    assert quantiles(df, F.col("id"), F.col("v"), [55], 0) == {}
    assert quantiles(df, F.col("id"), F.col("v"), [4], 1) == {}


def test_instants_ascend_when_clocks_are_set_back(spark: SparkSession) -> None:
    """Times in a zone are told by UTC, where two an hour apart may show the same on its clocks."""
    df = spark.range(2).select(F.lit(3).cast("long").alias("k"), F.timestamp_seconds(F.col("id") + 1_793_519_999))
    before, after = dict.fromkeys(quantiles(df, F.col("k"), F.col(df.columns[1]), [3], 2)[3])
    assert before < after
    assert before.utcoffset() == after.utcoffset() == timedelta(0)


def test_long_texts_count_by_how_they_begin(spark: SparkSession) -> None:
    """Quantiles are no longer than a thousand characters, whatever the rows hold."""
    df = spark.range(4).select(F.lit(3).cast("long").alias("k"), F.repeat(F.col("id").cast("string"), 5_000).alias("v"))
    assert list(dict.fromkeys(quantiles(df, F.col("k"), F.col("v"), [3], 4)[3])) == [c * 1_000 for c in "0123"]


def test_text_that_is_no_utf8_does_not_count(spark: SparkSession) -> None:
    """Spark makes such text of binary values, and Python cannot read it; the other rows have their quantiles."""
    texts = F.expr("cast(unhex(element_at(array('61', '61FF62', 'FFFE', 'E697A5'), cast(id + 1 as int))) as string)")
    df = spark.range(4).select(F.lit(3).cast("long").alias("k"), texts.alias("v"))
    assert list(dict.fromkeys(quantiles(df, F.col("k"), F.col("v"), [3], 4)[3])) == ["a", "日"]
    assert quantiles(df.where("length(v) > 2"), F.col("k"), F.col("v"), [3], 2) == {}
