"""The sink: what it accepts, what it remembers, what it tells."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, cast
from uuid import uuid4

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from icesize.errors import BatchError, BatchOutOfOrder, EngineUnavailable, StreamMismatch
from icesize.report import Report
from icesize.spark.stream import process_state
from icesize.spark.stream.options import SinkOptions
from icesize.spark.stream.sink import Sink
from tests.support.spark_lake import Lake, counted, events, rows_of

CONNECT = cast("Any", object())
"""A session without a JVM on this side, which is all that one of Spark Connect is told by."""


@pytest.mark.smoke
def test_replayed_batch_is_skipped(spark: SparkSession, lake: Lake) -> None:
    """A batch that is in the table is not written again, and the report says so."""
    lake.create()
    sink = lake.open(spark).sink("s")
    first = sink.run(counted(spark, events(range(10))), 0)
    assert not first.already_committed
    files = lake.on_disk()
    again = sink.run(counted(spark, events(range(10))), 0)
    assert (again.already_committed, again.rows, again.snapshot_ids) == (True, 0, ())
    assert str(again) == "batch 0 already committed to lake.db.events"
    assert lake.on_disk() == files
    assert lake.rows() == rows_of(events(range(10)))


def test_gaps_go_on_and_steps_back_are_refused(spark: SparkSession, lake: Lake) -> None:
    """Batch ids may leave gaps; a smaller one is refused before anything is written, with the way on."""
    lake.create()
    sink = lake.open(spark).sink("s")
    sink(counted(spark, events([1])), 2)
    sink(counted(spark, events([2])), 7)
    files = lake.on_disk()
    with pytest.raises(BatchOutOfOrder, match=r"batch 7 is committed already.*accept_new_checkpoint=True") as error:
        sink(counted(spark, events([3])), 6)
    assert error.value.stream_id == "s"
    assert lake.on_disk() == files


def test_other_query_is_refused(spark: SparkSession, lake: Lake) -> None:
    """Another query under the stream id is refused, with the way on; accepted when told to, it shuts the first out."""
    lake.create()
    table = lake.open(spark)
    table.sink("s", query_id="one")(counted(spark, events([1])), 5)
    with pytest.raises(StreamMismatch, match=r"query one wrote batch 5.*accept_new_checkpoint=True.*--forget s"):
        table.sink("s", query_id="two")(counted(spark, events([2])), 0)
    new = table.sink("s", query_id="two", accept_new_checkpoint=True)
    new(counted(spark, events([2])), 0)
    assert new.run(counted(spark, events([2])), 0).already_committed
    with pytest.raises(StreamMismatch):
        table.sink("s", query_id="one")(counted(spark, events([3])), 6)
    assert [row[0] for row in lake.rows()] == [1, 2]


def test_two_streams_one_table(spark: SparkSession, lake: Lake) -> None:
    """Two streams have their own batch ids, and both are listed."""
    lake.create()
    table = lake.open(spark)
    for batch in range(2):
        for stream, first in (("a", 0), ("b", 100)):
            table.sink(stream)(counted(spark, events(range(first + batch * 10, first + batch * 10 + 10))), batch)
    assert lake.rows() == rows_of(events([*range(20), *range(100, 120)]))
    assert [(s.stream_id, s.batch_id) for s in table.streams()] == [("a", 1), ("b", 1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"placement": "mix"}, "'placement' ('mix') must be one of 'append', 'absorb'"),
        ({"merge": "later"}, "'merge' ('later') must be one of 'inline', 'async', 'off'"),
        ({"stream_safe": "no"}, "'stream_safe' ('no') must be one of True, False"),
        (
            {"stream_safe": False},
            "'stream_safe' (False) needs placement='absorb': with 'append' every snapshot is safe",
        ),
        (
            {"placement": "absorb", "merge": "async"},
            "'merge' ('async') must be 'inline' with placement='absorb': absorb merges with the rows, so there are no",
        ),
        (
            {"placement": "absorb", "stream_safe": False, "statistics": "recent"},
            "'statistics' ('recent') needs stream_safe=True: rows that are written together with older ones have to be",
        ),
        ({"placement": "absorb", "merge": "off"}, "'merge' ('off') must be 'inline' with placement='absorb'"),
        ({"expire_every": 0}, "'expire_every' (0) must be a number of batches >= 1, or None"),
        ({"expire_every": True}, "'expire_every' (True) must be a number of batches >= 1, or None"),
        ({"expire_every": "3"}, "'expire_every' ('3') must be a number of batches >= 1, or None"),
        ({"schema_evolution": "ignore"}, "'schema_evolution' ('ignore') must be one of 'refuse', 'add'"),
        ({"stream_id": ""}, "'stream_id' is empty"),
    ],
)
def test_options_are_checked(options: dict[str, object], message: str) -> None:
    """An option outside its choices is refused when the sink is made."""
    stream_id = str(options.pop("stream_id", "s"))
    with pytest.raises(ValueError) as error:
        Sink(process_state.TableSource("lake.db.events"), stream_id, SinkOptions(**options))  # type: ignore[arg-type]
    assert message in str(error.value)


@pytest.mark.parametrize("batch_id", [-1, "3", None])
def test_batch_ids_are_numbers(spark: SparkSession, lake: Lake, batch_id: object) -> None:
    """A batch id that is no number from 0 on is refused."""
    lake.create()
    with pytest.raises(BatchError, match="a batch id is a number from 0 on"):
        lake.open(spark).sink("s")(counted(spark, events([1])), batch_id)  # type: ignore[arg-type]


def test_listener_and_last_report(spark: SparkSession, lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """The listener gets each report; its failure is logged and the batch stays committed."""
    lake.create()
    heard: list[Report] = []

    def listen(report: Report) -> None:
        heard.append(report)
        raise ZeroDivisionError

    sink = lake.open(spark).sink("s", listener=listen)
    assert sink.last_report is None
    for batch in range(2):
        sink(counted(spark, events([batch])), batch)
    assert [r.batch_id for r in heard] == [0, 1]
    assert sink.last_report is heard[1]
    assert len(lake.rows()) == 2
    assert "the listener failed after batch 1 was committed" in caplog.text


def test_log_line(spark: SparkSession, lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """Each batch logs one line: batch, rows, files, W, most small files, seconds."""
    lake.create()
    sink = lake.open(spark, max_small_files=2).sink("s")
    caplog.set_level(logging.INFO, "icesize")
    for batch in range(3):
        sink(counted(spark, events(range(1000 * batch, 1000 * batch + 1000))), batch)
    lines = [r.message for r in caplog.records if r.name == "icesize" and "rows" in r.message]
    assert len(lines) == 3
    assert lines[0].startswith(
        "lake.db.events: batch 0: 1,000 rows  files +1 -0  write amplification 1.00  max small files 1 per partition"
    )
    assert lines[2].startswith("lake.db.events: batch 2: 1,000 rows  files +2 -2  write amplification ")
    assert all(line.endswith(" s") for line in lines)


def test_sink_pickles_without_secrets(spark: SparkSession, lake: Lake) -> None:
    """A sink is a plain value: it pickles, works after that, and holds neither a catalog nor its credentials."""
    lake.catalog.properties["s3.secret-access-key"] = "hush-hush"
    lake.create()
    table = lake.open(spark)
    sink = table.sink("s")
    data = cloudpickle.dumps(sink)
    assert b"hush-hush" not in data
    assert b"SqlCatalog" not in data
    assert "hush-hush" not in repr(sink) + repr(table._handle)
    copy = cloudpickle.loads(data)
    copy(counted(spark, events([1])), 0)
    assert sink.run(counted(spark, events([1])), 0).already_committed
    assert copy.last_report is sink.last_report


def in_another_process(source: process_state.TableSource) -> process_state.TableSource:
    """The source as another process unpacks it: nothing there has this catalog."""
    given = source.catalog
    assert given is not None
    return replace(source, catalog=replace(given, text=f"lake-{uuid4().hex}", catalog=None))


def test_sink_in_a_process_without_the_catalog(spark: SparkSession, lake: Lake) -> None:
    """Where the catalog object is not known, a sink says what to do instead."""
    lake.create()
    source = in_another_process(lake.open(spark).sink("s").source)
    sink = cloudpickle.loads(cloudpickle.dumps(Sink(source, "s", SinkOptions())))
    with pytest.raises(EngineUnavailable, match=r"lives in another process; configure the catalog in Spark"):
        sink(counted(spark, events([1])), 0)


def test_a_catalog_object_travels_to_a_connect_server(spark: SparkSession, lake: Lake) -> None:
    """On Spark Connect a sink takes the properties of its catalog along, and the server opens that anew."""
    lake.create()
    source = process_state.for_its_server(CONNECT, lake.open(spark).sink("s").source)
    data = cloudpickle.dumps(Sink(in_another_process(source), "s", SinkOptions()))
    cloudpickle.loads(data)(counted(spark, events([1])), 0)
    assert lake.rows() == rows_of(events([1]))


def test_credentials_do_not_travel_to_a_connect_server(spark: SparkSession, lake: Lake) -> None:
    """A catalog object with credentials is refused when the sink is made, naming them and the way on, not telling
    them."""
    lake.create()
    source = lake.open(spark).sink("s").source
    lake.catalog.properties |= {"s3.secret-access-key": "hush-hush", "uri": "postgresql://me:hush-hush@host/db"}
    given = process_state.remember_catalog(lake.catalog)
    with pytest.raises(EngineUnavailable) as raised:
        process_state.for_its_server(CONNECT, replace(source, catalog=given))
    assert "holds credentials (s3.secret-access-key, uri)" in str(raised.value)
    assert "spark.sql.catalog.lake.*" in str(raised.value)
    assert "hush" not in str(raised.value)
