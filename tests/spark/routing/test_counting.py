"""Rows per partition as Spark counts them, against exact numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.transforms import IdentityTransform
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from icesize.parquet.files.settings import WriteSettings
from icesize.planning.files import PartitionKey
from icesize.planning.routing.traffic import MOST_KEYS
from icesize.spark.routing.statistics import count_rows
from tests.support.spark_lake import Lake, counted, events


def settings_of(lake: Lake, by: str = "hour") -> WriteSettings:
    """Settings to write into a new table of events."""
    table = lake.create(by={by: IdentityTransform()})
    return WriteSettings.of(table.metadata, table.io.properties, 512 * 2**20)


def hash_of(spark: SparkSession, values: Iterable[Any]) -> dict[Any, int]:
    """Value -> its routing key."""
    df = spark.createDataFrame(pa.table({"v": list(values)}))
    return {row["v"]: row["key"] for row in df.select("v", F.xxhash64("v").alias("key")).collect()}


@pytest.mark.smoke
def test_each_key_has_its_partition_and_its_rows(spark: SparkSession, lake: Lake) -> None:
    """Counts are exact, and each key is that of its partition, the heaviest first."""
    settings = settings_of(lake)
    batch = counted(spark, events([*range(5000), 5000, 5017], hours=17)).repartition(3)
    found = count_rows(batch, settings)
    wanted = Counter(f"h{i % 17}" for i in [*range(5000), 5000, 5017])
    assert (found.in_all, found.is_complete) == (5002, True)
    assert found.rows == {PartitionKey(0, (hour,)): n for hour, n in wanted.items()}
    keys = hash_of(spark, {f"h{i}" for i in range(17)})
    assert found.keys == {keys[hour]: PartitionKey(0, (hour,)) for hour in wanted}
    assert next(iter(found.rows.values())) == max(wanted.values())


def test_an_empty_batch(spark: SparkSession, lake: Lake) -> None:
    """No rows, no keys."""
    found = count_rows(counted(spark, events([])), settings_of(lake))
    assert (found.rows, found.keys, found.in_all) == ({}, {}, 0)


def test_heavy_keys_among_very_many(spark: SparkSession, lake: Lake) -> None:
    """30,000 keys, the n-th with a n-th of the rows of the first: of `MOST_KEYS` keys, exactly the heaviest."""
    settings = settings_of(lake, "id")
    sizes = {n: 20_000 // (n + 1) + (n < MOST_KEYS) + 1 for n in range(30_000)}
    ids = np.repeat(np.fromiter(sizes, np.int64), np.fromiter(sizes.values(), np.int64))
    np.random.default_rng(5).shuffle(ids)
    found = count_rows(counted(spark, pa.table({"id": ids})).repartition(4), settings)
    assert (found.in_all, found.is_complete) == (len(ids), False)
    assert {key.values[0]: n for key, n in found.rows.items()} == {n: sizes[n] for n in range(MOST_KEYS)}
    assert len(found.keys) == MOST_KEYS
    assert {key for key, partition in found.keys.items() if partition.values[0] == 0} == {hash_of(spark, [0])[0]}


def test_more_keys_than_are_told_of(spark: SparkSession, lake: Lake) -> None:
    """The heaviest are told of, all rows are counted."""
    hours = ["a"] * 5 + ["b"] * 4 + ["c"] * 3
    batch = counted(spark, pa.table({"id": range(12), "hour": hours, "text": hours}))
    found = count_rows(batch, settings_of(lake), most_keys=2)
    assert (found.in_all, found.is_complete) == (12, False)
    assert {partition.values: n for partition, n in found.rows.items()} == {("a",): 5, ("b",): 4}
