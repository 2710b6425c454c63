"""Structured Streaming queries: real checkpoints, replays, and drivers that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from icesize.spark.sink import Sink
from tests.spark.tools import SCHEMA, Lake, events, rows_of, write_json

ROOT = Path(__file__).parents[2]
BATCHES = 5
CHILD_TIMEOUT_S = 300


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


def child(lake: Lake, failpoints: str) -> int:
    """Exit code of a driver that streams everything, with the given failpoints armed."""
    command = [sys.executable, "-m", "tests.spark.child", str(lake.folder), "stream", "local[2]"]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "ICESIZE_FAILPOINTS": failpoints}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=CHILD_TIMEOUT_S
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stdout + done.stderr
    return done.returncode


@pytest.mark.parametrize(
    ("point", "lost", "left"),
    [
        pytest.param("planned", True, False, marks=pytest.mark.slow),
        pytest.param("files-written", True, True, marks=pytest.mark.slow),
        ("before-swap", True, True),
        pytest.param("after-swap", False, False, marks=pytest.mark.slow),
    ],
)
def test_killed_driver(java: None, lake: Lake, point: str, lost: bool, left: bool) -> None:
    """SIGKILL in batch 3 and a restart: rows are exact; only files of the batch that died may be left behind."""
    lake.create()
    feed(lake, 0, BATCHES)
    assert child(lake, f"{point}@4=kill") == -signal.SIGKILL
    rows = 90 if lost else 120
    assert lake.rows() == rows_of(events(range(rows), hours=3))
    assert bool(lake.orphans()) is left
    orphans = lake.orphans()
    assert child(lake, "") == 0
    assert lake.rows() == rows_of(events(range(BATCHES * 30), hours=3))
    assert lake.orphans() == orphans
    assert max(lake.files_per_partition().values()) <= 3
