"""The history of a stream: each batch is in it as its report told, whatever the placement."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from icesize.report import Report
from tests.support.spark_lake import Lake, counted, events

PLACEMENTS = [{}, {"placement": "absorb"}, {"placement": "absorb", "stream_safe": False}]


@pytest.mark.parametrize("options", PLACEMENTS, ids=["append", "absorb", "absorb, written once"])
def test_batches_are_told_as_their_reports_told_them(spark: SparkSession, lake: Lake, options: dict[str, Any]) -> None:
    """Stream, batch, rows, files, bytes, W, small files and the seconds before the commit, for five batches."""
    lake.create()
    table = lake.open(spark, max_small_files=2)
    sink = table.sink("clicks", **options)
    reports: list[Report] = [sink.run(counted(spark, events(range(n * 10, n * 10 + 10), 2)), n) for n in range(5)]
    commits = table.history().commits[::-1]
    names = ("snapshot_ids", "batch_id", "rows", "rows_deleted", "files_added", "files_removed", "bytes_ingested",
             "bytes_written", "write_amplification", "small_files_max")  # fmt: skip
    assert [[getattr(c, n) for n in names] for c in commits] == [[getattr(r, n) for n in names] for r in reports]
    assert {(c.kind, c.stream_id) for c in commits} == {("batch", "clicks")}
    assert [c.operation for c in commits] == ["+".join(r.operations) for r in reports]
    assert all(0 < (c.seconds or 0) < r.seconds["total"] for c, r in zip(commits, reports, strict=True))
    total = sum(r.bytes_written for r in reports) / sum(r.bytes_ingested for r in reports)
    assert table.history().write_amplification == pytest.approx(total)
    assert table.append(counted(spark, events(range(60, 70), 2))).rows == 10
    newest = table.history(limit=1).commits[0]
    assert (newest.kind, newest.author, newest.rows) == ("append", "icesize", 10)
