"""Quantiles by sketches against exact numbers, in real Spark workers."""

from __future__ import annotations

import pickle
from bisect import bisect_left, bisect_right
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from datasketches import kll_doubles_sketch
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from icesize.spark.engine.worker import read_answer
from icesize.spark.routing import sketches
from icesize.spark.routing.sketches import Utf8, ValueSketches, quantiles


def ranks_are_right(found: tuple[Any, ...], values: list[Any], error: float = 0.02) -> None:
    """j / QUANTILES of the values are below quantile j, as nearly as equal values allow."""
    ordered = sorted(values)
    assert len(found) == sketches.QUANTILES
    assert list(found) == sorted(found)
    for j, quantile in enumerate(found):
        below, not_above = bisect_left(ordered, quantile), bisect_right(ordered, quantile)
        assert below / len(ordered) - error <= j / sketches.QUANTILES <= not_above / len(ordered) + error


def test_quantiles_of_split_partitions(spark: SparkSession) -> None:
    """Within 2 % of their rank for each wanted key, whatever the order of rows; other keys are not looked at."""
    df = spark.range(0, 400_000, 1, 3).withColumn("k", F.col("id") % 4)
    df = df.withColumn("v", F.when(F.col("k") == 1, F.pow("id", F.lit(2))).otherwise(F.col("id") - 1000.5))
    found = quantiles(df, F.col("k"), F.col("v"), [1, 2, 77], 200_000)
    assert sorted(found) == [1, 2]
    ranks_are_right(found[1], [float(i**2) for i in range(1, 400_000, 4)])
    ranks_are_right(found[2], [i - 1000.5 for i in range(2, 400_000, 4)])


def test_sampled_rows_stand_for_all(spark: SparkSession) -> None:
    """Tasks of unequal size, every tenth row of each looked at: quantiles are those of all rows."""
    df = spark.range(0, 180_000, 1, 1).union(spark.range(180_000, 200_000, 1, 1)).withColumn("k", F.lit(5))
    found = quantiles(df, F.col("k"), F.col("id"), [5], 200_000, most_sampled=20_000)
    ranks_are_right(found[5], list(range(200_000)))
    assert sum(int(v) % 10 == 0 for v in found[5]) == sketches.QUANTILES


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


@given(rows=st.lists(st.integers(0, 30), max_size=12), step=st.integers(1, 7))
def test_every_nth_row(rows: list[int], step: int) -> None:
    """Over batches of any size exactly the rows 0, step, 2 step, .. of a task are looked at."""
    starts = [sum(rows[:i]) for i in range(len(rows))]
    batches = [
        pa.record_batch({"key": pa.array([1] * n, pa.int64()), "v": pa.array(range(start, start + n), pa.int64())})
        for start, n in zip(starts, rows, strict=True)
    ]
    taken = range(0, sum(rows), step)
    answers = [read_answer(a.column(0)[0].as_py()) for a in ValueSketches(step)(batches)]
    assert len(answers) == bool(taken)
    for _, found in answers:
        sketch = kll_doubles_sketch.deserialize(found[1])
        assert (sketch.n, sketch.get_min_value(), sketch.get_max_value()) == (len(taken), taken[0], taken[-1])


@given(st.text())
def test_text_of_any_kind_can_be_stored(text: str) -> None:
    """What is read is what was written, and the size that was told is that of the bytes."""
    text = text.encode(errors="replace").decode()
    serde = Utf8()
    data = serde.to_bytes(text)
    assert serde.get_size(text) == len(data)
    assert serde.from_bytes(b"xy" + data + b"z", 2) == (text, len(data))


def test_workers_are_told_by_pickle() -> None:
    """The function that runs in workers keeps what it was told."""
    assert pickle.loads(pickle.dumps(ValueSketches(7))) == ValueSketches(7)


def test_values_stay_within_their_types() -> None:
    """A double near the largest number of a type is above it, and a time in a zone is told by UTC."""
    most = 2**63 - 1
    assert sketches._values([float(most), -float(most) - 1], pa.int64()) == (most, -most - 1)
    assert sketches._values([1e9], pa.decimal128(5, 2)) == (Decimal("999.99"),)
    autumn = [1_793_519_999_000_000.0, 1_793_520_000_000_000.0]
    before, after = sketches._values(autumn, pa.timestamp("us", "America/Los_Angeles"))
    assert before < after
    assert before.utcoffset() == timedelta(0)
