"""`append()` without a stream, and with one."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from icesize.errors import EngineUnavailable
from tests.spark.tools import Lake, counted, events, rows_of

import icesize


def test_append_without_ids_adds_each_time(spark: SparkSession, lake: Lake) -> None:
    """Rows that belong to no stream are appended as often as they are given."""
    lake.create()
    table = lake.open(spark)
    rows = events(range(100), hours=2)
    for _ in range(2):
        report = table.append(counted(spark, rows))
        assert (report.rows, report.files_added, report.operations) == (100, 2, ("append",))
    assert lake.rows() == sorted(rows_of(rows) * 2, key=repr)
    assert table.streams() == []
