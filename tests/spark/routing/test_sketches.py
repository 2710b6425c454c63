"""Heavy keys and quantiles by sketches against exact numbers, in real Spark workers."""

from __future__ import annotations

import pickle
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasketches import frequent_strings_sketch, kll_doubles_sketch
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import IdentityTransform
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from icesize.parquet.files.settings import WriteSettings
from icesize.planning.files import PartitionKey
from icesize.spark.engine.worker import read_answer
from icesize.spark.routing import sketches
from icesize.spark.routing.sketches import HeavyKeys, Utf8, ValueSketches, heavy_keys, quantiles
from tests.support.spark_lake import Lake, counted, events

MOST_ROWS = 60_000
"""Rows of the heaviest of very many keys."""


def settings_of(lake: Lake, by: str = "hour") -> WriteSettings:
    """Settings to write into a new table of events."""
    table = lake.create(by={by: IdentityTransform()})
    return WriteSettings.of(table.metadata, table.io.properties, 512 * 2**20)


def hash_of(spark: SparkSession, values: Iterable[Any]) -> dict[Any, int]:
    """Value -> its routing key."""
    df = spark.createDataFrame(pa.table({"v": list(values)}))
    return {row["v"]: row["key"] for row in df.select("v", F.xxhash64("v").alias("key")).collect()}


def test_counts_of_few_keys_are_exact(spark: SparkSession, lake: Lake) -> None:
    """Below the size of the sketch nothing is estimated, and each key has its partition."""
    settings = settings_of(lake)
    batch = counted(spark, events([*range(5000), 5000, 5017], hours=17)).repartition(3)
    keys = hash_of(spark, {f"h{i}" for i in range(17)})
    found, rows = heavy_keys(batch, settings, ["hour"], F.xxhash64("hour"))
    wanted = Counter(f"h{i % 17}" for i in [*range(5000), 5000, 5017])
    assert rows == 5002
    assert found == {(keys[hour], PartitionKey(0, (hour,))): n for hour, n in wanted.items()}


def test_an_empty_batch(spark: SparkSession, lake: Lake) -> None:
    """No rows, no keys."""
    assert heavy_keys(counted(spark, events([])), settings_of(lake), ["hour"], F.xxhash64("hour")) == ({}, 0)


@pytest.mark.slow
def test_heavy_keys_among_very_many(spark: SparkSession, lake: Lake) -> None:
    """100,000 keys, the n-th with a n-th of the rows of the first: the heaviest are found, with the sketch's error."""
    settings = settings_of(lake, "id")
    sizes = {n: MOST_ROWS // (n + 1) + 1 for n in range(100_000)}
    ids = np.repeat(np.fromiter(sizes, np.int64), np.fromiter(sizes.values(), np.int64))
    np.random.default_rng(5).shuffle(ids)
    batch = counted(spark, pa.table({"id": ids})).repartition(4)
    found, rows = heavy_keys(batch, settings, ["id"], F.xxhash64("id"))
    error = frequent_strings_sketch.get_epsilon_for_lg_size(sketches.LG_SIZE) * rows
    counts = {partition.values[0]: n for (_, partition), n in found.items()}
    assert rows == len(ids)
    assert len(found) == sketches.MOST_KEYS
    assert {n: counts[n] for n in range(100)} == pytest.approx({n: sizes[n] for n in range(100)}, abs=error)
    assert {key for key, partition in found if partition.values[0] == 0} == {hash_of(spark, [0])[0]}


def test_more_keys_than_are_told_of(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heaviest are told of, all rows are counted."""
    monkeypatch.setattr(sketches, "MOST_KEYS", 2)
    hours = ["a"] * 5 + ["b"] * 4 + ["c"] * 3
    batch = counted(spark, pa.table({"id": range(12), "hour": hours, "text": hours}))
    found, rows = heavy_keys(batch, settings_of(lake), ["hour"], F.xxhash64("hour"))
    assert rows == 12
    assert {partition.values: n for (_, partition), n in found.items()} == {("a",): 5, ("b",): 4}


@given(
    batches=st.lists(st.lists(st.integers(0, 60), max_size=40), max_size=12),
    lg_size=st.integers(3, 6),
)
def test_each_key_of_a_sketch_has_a_sample(batches: list[list[int]], lg_size: int) -> None:
    """However many keys come and go, every key that the sketch holds has one row, its own; memory stays bounded."""
    sources = [pa.record_batch({"key": pa.array(b, pa.int64()), "v": pa.array([f"v{k}" for k in b])}) for b in batches]
    answers = [read_answer(a.column(0)[0].as_py()) for a in HeavyKeys(lg_size)(sources)]
    total = Counter(key for b in batches for key in b)
    if not total:
        assert answers == []
        return
    ((data, samples, rows),) = answers
    sketch = frequent_strings_sketch.deserialize(data)
    assert rows == total.total()
    assert sketch.is_empty() or sketch.total_weight == rows
    assert len(samples) == sketch.num_active_items <= 0.75 * 2**lg_size
    for key, value in zip(samples["key"].to_pylist(), samples["v"].to_pylist(), strict=True):
        assert value == f"v{key}"
        assert sketch.get_lower_bound(str(key)) <= total[key] <= sketch.get_upper_bound(str(key))


def test_a_sketch_stays_small() -> None:
    """200,000 keys of one task become an answer of about a megabyte."""
    batches = [
        pa.record_batch({"key": np.arange(start, start + 10_000) * 2**40 + 1, "v": np.arange(10_000)})
        for start in range(0, 200_000, 10_000)
    ]
    (answer,) = HeavyKeys()(batches)
    assert len(answer.column(0)[0].as_py()) < 3 * 2**20


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


def test_sampled_rows_stand_for_all(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of unequal size, every tenth row of each looked at: quantiles are those of all rows."""
    monkeypatch.setattr(sketches, "MOST_SAMPLED", 20_000)
    df = spark.range(0, 180_000, 1, 1).union(spark.range(180_000, 200_000, 1, 1)).withColumn("k", F.lit(5))
    found = quantiles(df, F.col("k"), F.col("id"), [5], 200_000)
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
    """The functions that run in workers keep what they were told."""
    for function in (HeavyKeys(9), ValueSketches(7)):
        assert pickle.loads(pickle.dumps(function)) == function


def test_values_stay_within_their_types() -> None:
    """A double near the largest number of a type is above it, and a time in a zone is told by UTC."""
    most = 2**63 - 1
    assert sketches._values([float(most), -float(most) - 1], pa.int64()) == (most, -most - 1)
    assert sketches._values([1e9], pa.decimal128(5, 2)) == (Decimal("999.99"),)
    autumn = [1_793_519_999_000_000.0, 1_793_520_000_000_000.0]
    before, after = sketches._values(autumn, pa.timestamp("us", "America/Los_Angeles"))
    assert before < after
    assert before.utcoffset() == timedelta(0)
