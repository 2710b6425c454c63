"""Upserts of streams and DataFrames: the rule, the columns of a batch, and what an append may not do."""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestampType
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from icesize import failpoints
from icesize.errors import ArgumentError, BatchError, SchemaMismatch, StreamMismatch, TableError, TableNotFound
from icesize.sized_table import SizedTable
from icesize.spark.stream.sink import Sink
from tests.support.spark_lake import Lake, conf, forget_commit, write_json
from tests.support.v3_tables import as_v3

ORDERS = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "state", StringType(), required=True),
    NestedField(3, "at", TimestampType(), required=True),
)
CHANGES = "id long, state string, at timestamp_ntz, op string"
RULE: dict[str, Any] = {"key": "id", "order_by": "at", "delete_when": "op = 'd'", "except_columns": "op"}

Change = tuple[int | None, str | None, int, str]


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second)


def changes(spark: SparkSession, *rows: Change) -> DataFrame:
    """A batch of changes: key, state, second of the order, kind of the change."""
    return spark.createDataFrame([(key, state, at(second), op) for key, state, second, op in rows], CHANGES)


@pytest.fixture(params=[2, 3])
def orders(request: pytest.FixtureRequest, spark: SparkSession, lake: Lake) -> SizedTable:
    """An empty table of orders by state, in format v2 and v3."""
    make_orders(lake, request.param)
    return lake.open(spark, "orders")


def make_orders(lake: Lake, version: int = 2) -> None:
    lake.create("orders", ORDERS, {"state": IdentityTransform()})
    if version == 3:
        as_v3(lake.catalog, "db.orders")


def states(lake: Lake) -> list[tuple[int, str, int]]:
    return [(key, state, time.second) for key, state, time in lake.rows("orders")]


@pytest.mark.smoke
def test_batches_become_one_row_per_key(spark: SparkSession, lake: Lake, orders: SizedTable) -> None:
    """New versions replace old ones, deletes remove rows, late changes are left out, all exactly once."""
    sink = orders.sink("s", mode="upsert", **RULE)
    first = sink.run(changes(spark, (1, "new", 1, "i"), (2, "new", 1, "i"), (1, "paid", 2, "u")), 0)
    second = changes(spark, (1, "new", 1, "u"), (2, None, 3, "d"), (3, "new", 3, "i"))
    report = sink.run(second, 1)

    assert states(lake) == [(1, "paid", 2), (3, "new", 3)]
    assert (first.operations, report.operations[:1]) == (("append",), ("overwrite",))
    assert report.upsert == {"events": 3, "keys": 3, "updated": 0, "deleted": 1, "late": 1, "doubled": 0}
    assert sink.run(second, 1).already_committed
    assert lake.orphans("orders") == set()


def test_a_stream_upserts(spark: SparkSession, lake: Lake, orders: SizedTable) -> None:
    """A query upserts from its checkpoint on; a batch that Spark delivers again changes nothing."""
    for number, ids in enumerate(([1, 2, 3], [2, 3, 4], [4])):
        rows = pa.table(
            {
                "id": ids,
                "state": [f"s{number}"] * len(ids),
                "at": [str(at(number))] * len(ids),
                "op": ["d" if id == 3 and number else "u" for id in ids],
            }
        )
        write_json(lake.folder / "in", number, rows)
    sink = orders.sink("s", mode="upsert", **RULE)

    def query() -> None:
        source = spark.readStream.schema(CHANGES).option("maxFilesPerTrigger", 1).json(f"{lake.folder}/in")
        writer = source.writeStream.foreachBatch(sink).option("checkpointLocation", f"{lake.folder}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()

    query()
    head = lake.table("orders").metadata.current_snapshot_id
    forget_commit(lake, 2)
    query()
    assert states(lake) == [(1, "s0", 0), (2, "s1", 1), (4, "s2", 2)]
    assert lake.table("orders").metadata.current_snapshot_id == head


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "merge"}, "'mode' ('merge') must be one of 'append', 'upsert'"),
        ({"key": "id"}, "'key' ('id') needs mode='upsert': an append has no key"),
        ({"mode": "upsert", "null_key": "drop"}, "'null_key' ('drop') must be one of 'error', 'skip'"),
        ({"mode": "upsert", "ties": "first"}, "'ties' ('first') must be one of 'error', 'last_delete', 'max_row'"),
        ({"mode": "upsert", "delete_when": True}, "'delete_when' (True) must be text, such as \"op = 'd'\""),
        ({"mode": "upsert", "placement": "absorb"}, "'placement' ('absorb') must be 'append' with mode='upsert'"),
        ({"mode": "upsert", "allow_duplicate_keys": True}, "'allow_duplicate_keys' (True) needs mode='append'"),
    ],
)
def test_options_are_checked(spark: SparkSession, lake: Lake, options: dict[str, Any], message: str) -> None:
    """An argument outside its choices is refused when the sink is made."""
    make_orders(lake)
    with pytest.raises(ValueError) as error:
        lake.open(spark, "orders").sink("s", **options)
    assert message in str(error.value)


def test_a_sink_is_pickled(spark: SparkSession, lake: Lake) -> None:
    """A sink of upserts is a plain value, which another process can run."""
    make_orders(lake)
    sink = lake.open(spark, "orders").sink("s", mode="upsert", **RULE)
    sink(changes(spark, (1, "new", 1, "i")), 0)
    again: Sink = cloudpickle.loads(cloudpickle.dumps(sink))
    again(changes(spark, (1, "paid", 2, "u")), 1)
    assert states(lake) == [(1, "paid", 2)]


def test_readers_of_streams_are_warned_once(spark: SparkSession, lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """The first batch says that Spark cannot read the table as a stream, the second does not."""
    make_orders(lake)
    sink = lake.open(spark, "orders").sink("s", mode="upsert", **RULE)
    with caplog.at_level(logging.WARNING, "icesize"):
        notes = [sink.run(changes(spark, (1, "new", second, "i")), second).notes for second in range(2)]
    assert ["unreadable for Spark's readStream" in "".join(each) for each in notes] == [True, False]
    assert caplog.text.count("unreadable for Spark's readStream, which stops at the first overwrite") == 1


def test_appends_to_a_table_with_a_key_are_refused(spark: SparkSession, lake: Lake) -> None:
    """Neither a sink nor `append` adds rows beside older ones of their key, unless it is told to."""
    make_orders(lake)
    table = lake.open(spark, "orders")
    table.upsert(changes(spark, (1, "new", 1, "i")), **RULE)
    rows = changes(spark, (1, "paid", 2, "u")).drop("op")
    message = r"has the key \(id\), and an append does not look for older rows.*mode=\"upsert\".*allow_duplicate_keys"
    with pytest.raises(TableError, match=message):
        table.append(rows)
    with pytest.raises(TableError, match=message):
        table.sink("s")(rows, 0)
    table.append(rows, allow_duplicate_keys=True)
    table.sink("s", allow_duplicate_keys=True)(rows, 0)
    assert len(lake.rows("orders")) == 3
    report = table.upsert(changes(spark, (1, "sent", 3, "u")), except_columns="op")
    assert report.upsert is not None
    assert report.upsert["doubled"] == 1
    assert states(lake) == [(1, "sent", 3)]


def test_a_batch_without_its_key(spark: SparkSession, lake: Lake) -> None:
    """A batch that lacks a column of the key or of the order is refused by name."""
    make_orders(lake)
    table = lake.open(spark, "orders")
    with pytest.raises(SchemaMismatch, match="the batch has no column 'at', which is part of 'order_by'"):
        table.upsert(changes(spark, (1, "new", 1, "i")).drop("at"), **RULE)
    with pytest.raises(SchemaMismatch, match="the batch has no column 'kind', which is part of 'except_columns'"):
        table.upsert(changes(spark, (1, "new", 1, "i")), **{**RULE, "except_columns": ["kind"]})


def test_only_deletes_may_lack_values(spark: SparkSession, lake: Lake) -> None:
    """A delete needs only key and order; a new row needs all required columns."""
    make_orders(lake)
    table = lake.open(spark, "orders")
    table.upsert(changes(spark, (1, "new", 1, "i"), (2, "new", 1, "i")), **RULE)
    deletes = changes(spark, (1, None, 2, "d"), (7, None, 2, "d"))
    table.upsert(deletes.drop("state"), except_columns="op")
    assert states(lake) == [(2, "new", 1)]
    with pytest.raises(SchemaMismatch, match="Cannot write null into column 'state': the table requires a value"):
        table.upsert(changes(spark, (2, None, 3, "u")), except_columns="op")


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("op ==", "Cannot read 'delete_when' from the mark on"),
        ("java_method('java.lang.System', 'exit', 1)", "Cannot read 'delete_when' from the mark on"),
        ("kind = 'd'", r"'delete_when' \(\"kind = 'd'\"\) cannot be computed: the batch has no column 'kind'"),
        ("op", "column 'op' is a string, not a boolean"),
    ],
)
def test_conditions_that_are_no_conditions(spark: SparkSession, lake: Lake, condition: str, message: str) -> None:
    """A condition for deletes compares columns of the batch with literals; nothing is stored before."""
    make_orders(lake)
    with pytest.raises((ArgumentError, SchemaMismatch), match=message):
        lake.open(spark, "orders").upsert(changes(spark, (1, "new", 1, "i")), **{**RULE, "delete_when": condition})
    assert "icesize.upsert" not in lake.table("orders").properties


def test_a_condition_that_is_null_deletes_nothing(spark: SparkSession, lake: Lake) -> None:
    """NULL is not true."""
    make_orders(lake)
    row = spark.createDataFrame([(1, "new", at(1), None)], CHANGES)
    lake.open(spark, "orders").upsert(row, **RULE)
    assert states(lake) == [(1, "new", 1)]


def test_columns_that_the_table_lacks(spark: SparkSession, lake: Lake) -> None:
    """They are refused with the way on, or added."""
    make_orders(lake)
    table = lake.open(spark, "orders")
    rows = changes(spark, (1, "new", 1, "i")).selectExpr("*", "7 as note")
    with pytest.raises(SchemaMismatch, match=r"'note' \(int\); leave them out with 'except_columns', drop them, add"):
        table.sink("s", mode="upsert", **RULE)(rows, 0)
    table.sink("s", mode="upsert", schema_evolution="add", **RULE)(rows, 0)
    assert [row[-1] for row in lake.rows("orders")] == [7]


def test_columns_match_as_spark_compares_names(spark: SparkSession, lake: Lake) -> None:
    """Case does not matter, unless the session says that it does."""
    make_orders(lake)
    table = lake.open(spark, "orders")
    rows = changes(spark, (1, "new", 1, "i")).withColumnsRenamed({"id": "ID", "at": "At"})
    table.upsert(rows, **{**RULE, "except_columns": "OP"})
    assert states(lake) == [(1, "new", 1)]
    with conf(spark, spark__sql__caseSensitive="true"), pytest.raises(SchemaMismatch, match="no column 'OP'"):
        lake.open(spark, "orders").upsert(rows, except_columns="OP")


def test_the_rule_of_the_table_holds(spark: SparkSession, lake: Lake) -> None:
    """A stream with another condition for deletes is refused; without one, it has the table's."""
    make_orders(lake)
    table = lake.open(spark, "orders")
    table.upsert(changes(spark, (1, "new", 1, "i")), **RULE)
    with pytest.raises(TableError, match=r"'delete_when' is \"op = 'd'\" in the table and \"op = 'x'\" here"):
        table.sink("s", mode="upsert", delete_when="op = 'x'", except_columns="op")(changes(spark), 0)
    table.sink("s", mode="upsert", except_columns="op")(changes(spark, (1, None, 2, "d")), 0)
    assert states(lake) == []


def test_ties_and_null_keys(spark: SparkSession, lake: Lake) -> None:
    """Different rows of one key and order are refused, as are NULL keys, unless the caller has an answer."""
    make_orders(lake)
    table = lake.open(spark, "orders")
    tied = changes(spark, (1, "new", 1, "i"), (1, "paid", 1, "u"))
    with pytest.raises(BatchError, match="1 key has different events of the same order"):
        table.upsert(tied, **RULE)
    unkeyed = changes(spark, (None, "new", 1, "i"), (2, "new", 1, "i"))
    with pytest.raises(SchemaMismatch, match="'id' of the key is NULL in 1 of 2 rows"):
        table.upsert(unkeyed, **RULE)
    table.upsert(tied, ties="max_row", **RULE)
    table.upsert(unkeyed, null_key="skip", except_columns="op")
    assert states(lake) == [(1, "paid", 1), (2, "new", 1)]


def test_batches_of_a_name_are_upserted_once(spark: SparkSession, lake: Lake) -> None:
    """With a stream and a number, a repeated call of `upsert` changes nothing; half of them is refused."""
    make_orders(lake)
    table = lake.open(spark, "orders")
    rows = changes(spark, (1, "new", 1, "i"))
    assert not table.upsert(rows, **RULE, stream_id="s", batch_id=0).already_committed
    assert table.upsert(rows, **RULE, stream_id="s", batch_id=0).already_committed
    with pytest.raises(ValueError, match="Cannot upsert: 'stream_id' and 'batch_id' are given together"):
        table.upsert(rows, stream_id="s")
    # the name of the stream stands for a query without an id, and a query with one continues it once
    table.sink("s", mode="upsert", query_id="other", except_columns="op")(changes(spark, (1, "paid", 2, "u")), 1)
    with pytest.raises(StreamMismatch, match="query other wrote batch 1"):
        table.sink("s", mode="upsert", query_id="another", except_columns="op")(rows, 2)


def test_a_table_that_does_not_exist(spark: SparkSession, lake: Lake) -> None:
    """The error has the statement that creates a table for the batch."""
    make_orders(lake)
    sink = lake.open(spark, "orders").sink("s", mode="upsert", **RULE)
    lake.catalog.drop_table("db.orders")
    with pytest.raises(TableNotFound, match=r"create it first: CREATE TABLE `lake`.`db`.`orders` \(`id` bigint"):
        sink(changes(spark, (1, "new", 1, "i")), 0)
    make_orders(lake)
    with pytest.raises(TableError, match="the table was dropped and recreated after it was opened"):
        sink(changes(spark, (1, "new", 1, "i")), 0)


def test_merges_run_in_the_commit_of_the_batch(spark: SparkSession, lake: Lake, orders: SizedTable) -> None:
    """Files with many dead rows are rewritten by the merges of the sink, inline only."""
    first = changes(spark, *((key, "new", 1, "i") for key in range(100)))
    second = changes(spark, *((key, "new", 2, "u") for key in range(50)))
    sink = orders.sink("s", mode="upsert", merge="off", **RULE)
    sink(first, 0)
    assert sink.run(second, 1).operations == ("overwrite",)
    third = changes(spark, *((key, "new", 3, "u") for key in range(50)))
    report = orders.sink("s", mode="upsert", **RULE).run(third, 2)
    assert report.operations == ("overwrite", "replace")
    assert sorted(states(lake)) == [(key, "new", 3 if key < 50 else 1) for key in range(100)]


def test_a_batch_interrupted_before_its_commit_is_upserted_again(spark: SparkSession, lake: Lake) -> None:
    """A batch that stops when its files are written leaves nothing, and is committed by its replay."""
    make_orders(lake)
    sink = lake.open(spark, "orders").sink("s", mode="upsert", **RULE)
    sink(changes(spark, (1, "new", 1, "i"), (2, "new", 1, "i")), 0)

    def stop() -> None:
        raise KeyboardInterrupt

    rows = changes(spark, (1, "paid", 2, "u"))
    with failpoints.armed("files-written", stop), pytest.raises(KeyboardInterrupt):
        sink(rows, 1)
    assert lake.orphans("orders") == set()
    sink(rows, 1)
    assert states(lake) == [(1, "paid", 2), (2, "new", 1)]


def test_arrow_tables_need_no_dataframe(spark: SparkSession, lake: Lake, orders: SizedTable) -> None:
    """An Arrow table is upserted in this process, with the rule that Spark's batches have."""
    orders.upsert(changes(spark, (1, "new", 1, "i"), (2, "new", 1, "i")), **RULE)
    rows = pa.table({"id": [1, 2], "state": ["paid", None], "at": [at(2), at(2)], "op": ["u", "d"]})
    orders.upsert(rows, except_columns="op")
    assert states(lake) == [(1, "paid", 2)]


def test_maps_of_keys_stay_where_they_are_wanted(
    spark: SparkSession, lake: Lake, orders: SizedTable, tmp_path: Path
) -> None:
    """With `index_dir`, a sink keeps maps of files that it searched; "scan" keeps none, and both find the same rows."""
    with_maps = orders.sink("s", mode="upsert", index_dir=str(tmp_path / "keys"), index_bytes="1MiB", **RULE)
    with_maps.run(changes(spark, (1, "new", 1, "i"), (2, "new", 1, "i")), 0)
    with_maps.run(changes(spark, (1, "paid", 2, "u")), 1)
    assert [*(tmp_path / "keys").rglob("*.arrays")]
    orders.sink("s", mode="upsert", lookup="scan", **RULE).run(changes(spark, (2, "paid", 2, "u")), 2)

    assert states(lake) == [(1, "paid", 2), (2, "paid", 2)]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"lookup": "guess"}, r"'lookup' \('guess'\) must be one of 'auto', 'scan'"),
        ({"lookup": "scan", "index_dir": "/x"}, "'index_bytes' and 'index_dir' need lookup='auto'"),
        ({"index_bytes": "much"}, r"'index_bytes' \('much'\) must be a size such as 64MiB"),
        ({"tombstones": "soon"}, r"'tombstones' \('soon'\) must be a time such as 90s"),
    ],
)
def test_options_of_lookups_are_checked(orders: SizedTable, options: dict[str, Any], why: str) -> None:
    """A sink is not made with an option that has no meaning."""
    with pytest.raises(ValueError, match=why):
        orders.sink("s", mode="upsert", **RULE, **options)
