"""Structured Streaming queries: real checkpoints and replays."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from icesize.spark.sink import Sink
from tests.spark.tools import SCHEMA, Lake, events, rows_of, write_json


def feed(lake: Lake, first: int, last: int) -> None:
    """Source files `first` .. `last` - 1: each one batch of 30 rows in three partitions."""
    for number in range(first, last):
        write_json(lake.folder / "in", number, events(range(number * 30, number * 30 + 30), hours=3))


def run(spark: SparkSession, lake: Lake, sink: Sink, checkpoint: str = "checkpoint") -> StreamingQuery:
    """All files that are there, one per batch; returns the ended query."""
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(f"{lake.folder}/in")
    writer = source.writeStream.foreachBatch(sink).option("checkpointLocation", f"{lake.folder}/{checkpoint}")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def forget_commit(lake: Lake, batch: int) -> None:
    """As if the driver had died between the sink's commit and Spark's own note of it."""
    for name in (f"{batch}", f".{batch}.crc"):
        (lake.folder / "checkpoint" / "commits" / name).unlink()


def test_stream_and_replay(spark: SparkSession, lake: Lake) -> None:
    """A query over files lands each batch once with bounded files, goes on after a stop, and skips a replayed batch."""
    lake.create()
    feed(lake, 0, 4)
    table = lake.open(spark)
    sink = table.sink("s")
    query = run(spark, lake, sink)
    assert [(s.query_id, s.batch_id) for s in table.streams()] == [(query.id, 3)]
    assert max(lake.files_per_partition().values()) <= 3
    snapshots = len(lake.operations())

    forget_commit(lake, 3)
    run(spark, lake, sink)
    assert sink.last_report is not None
    assert (sink.last_report.batch_id, sink.last_report.already_committed) == (3, True)
    assert len(lake.operations()) == snapshots

    feed(lake, 4, 6)
    run(spark, lake, sink)
    assert sink.last_report.batch_id == 5
    assert lake.rows() == rows_of(events(range(180), hours=3))
    assert set(lake.operations()) == {"append", "replace"}


def test_new_checkpoint_is_refused(spark: SparkSession, lake: Lake) -> None:
    """A wiped checkpoint fails the query with the way on; accepted, its rows are taken again as the user wants."""
    lake.create()
    feed(lake, 0, 2)
    table = lake.open(spark)
    run(spark, lake, table.sink("s"))
    with pytest.raises(StreamingQueryException, match="accept_new_checkpoint=True"):
        run(spark, lake, table.sink("s"), "another")
    assert len(lake.rows()) == 60
    run(spark, lake, table.sink("s", accept_new_checkpoint=True), "third")
    assert len(lake.rows()) == 120
