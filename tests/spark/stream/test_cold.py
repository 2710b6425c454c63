"""A stream that moves on: partitions that get no more rows end with the fewest files, without any maintenance."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.spark_lake import EVENTS, Lake, counted

BATCHES = 72
COLD_AFTER = 12
LATEST = 6


def _batch(number: int) -> pa.Table:
    """Rows of one hour per batch, and of the six hours before it, fewer the older."""
    hours = [number - age for age in range(LATEST + 1) for _ in range(64 >> age) if number >= age]
    ids = range(number * 1000, number * 1000 + len(hours))
    text = [f"{i * 2654435761 % 2**32:x}" for i in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "hour": [f"h{h:03}" for h in hours], "text": text})


@pytest.mark.slow
def test_hours_gone_cold_have_one_file(spark: SparkSession, lake: Lake) -> None:
    """72 batches, one per hour, rows at most 6 hours late: each hour without rows for 12 commits has one file."""
    lake.create(schema=EVENTS)
    sink = lake.open(spark, max_small_files=6, cold_after_commits=COLD_AFTER).sink("s")
    most = [sink.run(counted(spark, _batch(number)), number).small_files_max for number in range(BATCHES)]
    files = lake.files_per_partition()
    cold = [f"h{hour:03}" for hour in range(BATCHES - LATEST - COLD_AFTER)]
    assert max(most) <= 6
    assert {hour: files[(hour,)] for hour in cold} == dict.fromkeys(cold, 1)
    assert len(lake.rows()) == sum(_batch(number).num_rows for number in range(BATCHES))
