"""Structured Streaming queries: real checkpoints and replays."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from icesize.errors import BatchInterrupted
from icesize.spark.stream.sink import Sink
from icesize.spark.stream.stopping import was_interrupted
from tests.support.spark_lake import SCHEMA, Lake, await_file, events, feed, forget_commit, rows_of, run, write_json


@pytest.mark.smoke
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


def test_small_batches_of_a_query_are_fetched_once_they_are_expected(spark: SparkSession, lake: Lake) -> None:
    """Nothing is known of the first batch; those that are as small as the ones before are computed once, in the driver,
    and one with more rows than it takes once more, by Spark; each row lands once."""
    lake.create()
    lake.limits = replace(lake.limits, driver_rows=100)
    rows = [events(range(start, end), hours=3) for start, end in ((0, 30), (30, 60), (60, 200), (200, 230))]
    for number, each in enumerate(rows):
        write_json(lake.folder / "in", number, each)
    sink, seen, computed = lake.open(spark).sink("s"), lake.folder / "seen", list[int]()

    def counting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with seen.open("a") as file:
                file.write("." * batch.num_rows)
            yield batch

    def take(df: DataFrame, batch_id: int) -> None:
        seen.write_text("")
        sink(df, batch_id)
        computed.append(seen.stat().st_size)

    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(f"{lake.folder}/in")
    query = source.mapInArrow(counting, source.schema).writeStream.foreachBatch(take)
    query = query.option("checkpointLocation", f"{lake.folder}/checkpoint").trigger(availableNow=True)
    query.start().awaitTermination()
    assert computed == [30, 30, 2 * 140, 30]
    assert lake.rows() == rows_of(events(range(230), hours=3))


def test_a_stopped_query_logs_no_failure(spark: SparkSession, lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """A query that is stopped in the middle of a batch ends without an error, in a log or elsewhere; what Spark gets to
    read is short, since it searches long texts until its stack overflows; started again it takes the batch."""
    lake.create()
    feed(lake, 0, 1)
    begun, go = lake.folder / "begun", lake.folder / "go"

    def waiting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begun.touch()
        await_file(go, 60)
        yield from batches

    sink, texts = lake.open(spark).sink("s"), list[str]()
    source = spark.readStream.schema(SCHEMA).json(f"{lake.folder}/in")
    told = _telling(sink, texts)
    writer = source.mapInArrow(waiting, source.schema).writeStream.foreachBatch(told)
    query = writer.option("checkpointLocation", f"{lake.folder}/checkpoint").start()
    await_file(begun, 60)
    query.stop()
    go.touch()
    assert query.exception() is None
    [text] = texts
    assert "BatchInterrupted: Batch 0 of stream 's' was not finished: its query was stopped" in text
    assert "py4j.protocol.Py4JJavaError: An error occurred while calling" in text
    assert len(text) < 2_000
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
    run(spark, lake, sink)
    assert lake.rows() == rows_of(events(range(30), hours=3))


def _telling(sink: Sink, texts: list[str]) -> Callable[[DataFrame, int], None]:
    """The sink, and the text of what it raises as Spark gets it."""

    def told(df: DataFrame, batch_id: int) -> None:
        try:
            sink(df, batch_id)
        except BatchInterrupted:
            texts.append(traceback.format_exc())
            raise

    return told


@pytest.mark.parametrize(
    ("text", "interrupted"),
    [
        ("An error occurred while calling o1.collectToPython.\n: java.lang.InterruptedException\n\tat x", True),
        ("[SPARK_JOB_CANCELLED] Job 5 cancelled part of cancelled job group 1", True),
        (
            "[SPARK_JOB_CANCELLED] Job 7 cancelled Query [id = 0f2a-8bb5, runId = 003e-fa7b] was stopped",
            True,
        ),
        (
            "An error occurred while calling o1.x.\n: x.SparkException\nCaused by: java.lang.InterruptedException",
            False,
        ),
        ("java.io.InterruptedIOException: no answer in time", False),
        ("[SPARK_JOB_CANCELLED] Job 7 cancelled because SparkContext was shut down", False),
    ],
)
def test_what_counts_as_stopped(text: str, interrupted: bool) -> None:
    """The interrupted call itself and a cancelled job are no failures, wherever in a chain; what tasks met is one."""
    error = RuntimeError("Cannot write the batch")
    error.__cause__ = ValueError(text)
    assert was_interrupted(error) is interrupted
