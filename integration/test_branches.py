"""Streams into branches that Spark and PyIceberg publish: each row is on `main` once."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from pyspark.sql import SparkSession

import icesize
from icesize.errors import BatchOutOfOrder, TableError, UnsupportedTable
from icesize.failpoints import armed
from icesize.planning.retention.ancestry import TOMBSTONE_BRANCH
from integration.streams import created, rows_of
from integration.tools import POLICY, sized, spark_rows
from tests.support.spark_lake import conf

ROWS = 8


def ids_in(spark: SparkSession, table: str, branch: str = "main") -> list[int]:
    """All rows that Spark reads from a branch, by id."""
    return sorted(row[0] for row in spark_rows(spark, f"SELECT id FROM {table} VERSION AS OF '{branch}'"))


def ids_of(catalog: Catalog, name: str, branch: str = "main") -> list[int]:
    """All rows that PyIceberg reads from a branch, by id."""
    table = catalog.load_table(name)
    return sorted(table.scan(snapshot_id=table.metadata.refs[branch].snapshot_id).to_arrow()["id"].to_pylist())


def publish(spark: SparkSession, catalog: Catalog, name: str, by: str) -> None:
    """Move `main` to the head of the branch `audit`, by Spark or by PyIceberg."""
    if by == "spark":
        spark.sql(f"CALL rest.system.fast_forward('{name}', 'main', 'audit')")
        return
    table = catalog.load_table(name)
    table.manage_snapshots().set_current_snapshot(table.metadata.refs["audit"].snapshot_id).commit()


@pytest.mark.parametrize(
    ("version", "by"),
    [(3, "spark"), pytest.param(2, "pyiceberg", marks=pytest.mark.slow)],
)
def test_a_stream_that_is_audited(spark: SparkSession, rest: Catalog, namespace: str, version: int, by: str) -> None:
    """A stream into a branch that is published every ten batches, with replays, merges, expiry and a branch that is
    thrown away: each row is on `main` once, for Spark and for PyIceberg."""
    name = f"{namespace}.t"
    table = created(spark, f"rest.{name}", version)
    sized(spark, table).append(rows_of(spark, -ROWS, ROWS))
    spark.sql(f"ALTER TABLE {table} CREATE BRANCH audit")
    sink = icesize.open(spark, table, policy=POLICY, branch="audit").sink("s", query_id="q")
    for batch in range(25):
        rows = rows_of(spark, batch * ROWS, ROWS)
        assert sink.run(rows, batch).rows == ROWS
        if batch % 4 == 0:
            assert sink.run(rows, batch).already_committed
        if batch % 10 == 9:
            publish(spark, rest, name, by)
            sized(spark, table).expire_snapshots(older_than=timedelta(0), retain_last=2)
            assert sink.run(rows, batch).already_committed
    assert ids_in(spark, table) == ids_of(rest, name) == [*range(-ROWS, 20 * ROWS)]
    assert ids_in(spark, table, "audit") == ids_of(rest, name, "audit") == [*range(-ROWS, 25 * ROWS)]
    spark.sql(f"ALTER TABLE {table} DROP BRANCH audit")
    spark.sql(f"ALTER TABLE {table} CREATE BRANCH audit")
    with pytest.raises(BatchOutOfOrder, match="lacks batches 20 to 24"):
        sink.run(rows_of(spark, 25 * ROWS, ROWS), 25)
    for batch in range(20, 26):
        assert sink.run(rows_of(spark, batch * ROWS, ROWS), batch).rows == ROWS
    publish(spark, rest, name, by)
    assert ids_in(spark, table) == ids_of(rest, name) == [*range(-ROWS, 26 * ROWS)]
    assert sized(spark, table).verify().findings == ()
    sized(spark, table).remove_orphan_files(dry_run=False)
    assert ids_in(spark, table) == [*range(-ROWS, 26 * ROWS)]


def test_batches_that_are_cherry_picked(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """A batch that Spark picks to `main` counts there; one that it does not pick does not."""
    name = f"{namespace}.t"
    table = created(spark, f"rest.{name}")
    sized(spark, table).append(rows_of(spark, -ROWS, ROWS))
    spark.sql(f"ALTER TABLE {table} CREATE BRANCH audit")
    audit = icesize.open(spark, table, policy=POLICY, branch="audit").sink("s", query_id="q", merge="off")
    [first] = audit.run(rows_of(spark, 0, ROWS), 0).snapshot_ids
    [second] = audit.run(rows_of(spark, ROWS, ROWS), 1).snapshot_ids
    sized(spark, table).append(rows_of(spark, 1000, ROWS))
    main = sized(spark, table).sink("s", query_id="q", merge="off")
    spark.sql(f"CALL rest.system.cherrypick_snapshot('{name}', {first})")
    assert main.run(rows_of(spark, 0, ROWS), 0).already_committed
    with pytest.raises(BatchOutOfOrder, match="lacks batches 1 to 1"):
        main.run(rows_of(spark, 2 * ROWS, ROWS), 2)
    spark.sql(f"CALL rest.system.cherrypick_snapshot('{name}', {second})")
    assert main.run(rows_of(spark, ROWS, ROWS), 1).already_committed
    assert main.run(rows_of(spark, 2 * ROWS, ROWS), 2).rows == ROWS
    expected = [*range(-ROWS, 3 * ROWS), *range(1000, 1000 + ROWS)]
    assert ids_in(spark, table) == ids_of(rest, name) == expected


@pytest.mark.parametrize("first", ["icesize", "spark"])
def test_write_audit_publish(spark: SparkSession, rest: Catalog, namespace: str, first: str) -> None:
    """In a session with `spark.wap.branch`, icesize and Spark write to one branch, which the first of them creates."""
    name = f"{namespace}.t"
    table = created(spark, f"rest.{name}")
    sized(spark, table).append(rows_of(spark, 0, ROWS))
    sink = sized(spark, table).sink("s", query_id="q")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.wap.enabled'='true')")
    with conf(spark, spark__wap__branch="audit"):
        if first == "spark":
            rows_of(spark, 100, ROWS).writeTo(table).append()
        assert sink.run(rows_of(spark, ROWS, ROWS), 0).rows == ROWS
        if first == "icesize":
            rows_of(spark, 100, ROWS).writeTo(table).append()
        assert sink.run(rows_of(spark, ROWS, ROWS), 0).already_committed
        assert sized(spark, table).compact().files_removed > 0
        with pytest.raises(TableError, match="Unset one of them"):
            icesize.open(spark, table, branch="other")
    assert ids_of(rest, name) == [*range(ROWS)]
    audited = [*range(2 * ROWS), *range(100, 100 + ROWS)]
    assert ids_of(rest, name, "audit") == ids_in(spark, table, "audit") == audited
    spark.sql(f"CALL rest.system.fast_forward('{name}', 'main', 'audit')")
    assert sink.run(rows_of(spark, ROWS, ROWS), 0).already_committed
    assert sink.run(rows_of(spark, 2 * ROWS, ROWS), 1).rows == ROWS
    assert ids_in(spark, table) == ids_of(rest, name) == [*range(3 * ROWS), *range(100, 100 + ROWS)]
    with (
        conf(spark, spark__wap__id="7"),
        pytest.raises(UnsupportedTable, match=r"set 'spark\.wap\.branch' to a branch"),
    ):
        sink.run(rows_of(spark, 500, ROWS), 2)


def test_the_first_commit_of_a_table_remembers_a_delete(rest: Catalog, namespace: str) -> None:
    """It is on a branch alone, beside the first batch of another stream, which must notice it."""
    name = f"{namespace}.t"
    columns = (("id", LongType()), ("ts", LongType()), ("op", StringType()))
    schema = Schema(*(NestedField(number, *column) for number, column in enumerate(columns, 1)))
    rest.create_table(name, schema, properties={"format-version": "2"})

    def upsert(stream: str, ts: int, op: str) -> None:
        rows = pa.table({"id": [1], "ts": [ts], "op": [op]})
        icesize.open(None, name, catalog=rest).upsert(
            rows, key="id", order_by="ts", delete_when="op = 'd'", tombstones="2 days", stream_id=stream, batch_id=0
        )

    # the first commit stores the rule
    others = iter([int, lambda: upsert("other", 20, "d")])
    with armed("before-swap", lambda: next(others, int)()):
        upsert("s", 15, "a")
    metadata = rest.load_table(name).metadata
    assert TOMBSTONE_BRANCH in metadata.refs
    assert rest.load_table(name).scan().to_arrow().num_rows == 0
