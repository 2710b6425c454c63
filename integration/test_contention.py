"""Spark changes rows of a table, or merges its files, while icesize keeps it well sized."""

from __future__ import annotations

import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession

from icesize.environment import Environment
from icesize.planning.merging.contention import QUIET_MS
from icesize.sized_table import SizedTable
from integration.tools import files_per_partition, sized, spark_rows
from tests.support.spark_lake import with_options


def rows_of(spark: SparkSession, batch: int) -> DataFrame:
    """Forty rows in four partitions."""
    return spark.range(batch * 40, batch * 40 + 40).selectExpr("id", "concat('h', id % 4) AS hour")


def three_batches(spark: SparkSession, table: str) -> SizedTable:
    """A table that will merge with the fourth."""
    spark.sql(f"CREATE TABLE {table} (id bigint, hour string) USING iceberg PARTITIONED BY (hour)")
    opened = sized(spark, table)
    for batch in range(3):
        opened.sink("s", query_id="q").run(rows_of(spark, batch), batch)
    return opened


@pytest.mark.parametrize("merge", ["inline", "async"])
def test_partitions_that_spark_changes_are_left_alone(
    spark: SparkSession, rest: Catalog, namespace: str, merge: str
) -> None:
    """Merges wait where a row was just deleted, and the report names the files; once it is quiet they are merged."""
    table = f"rest.{namespace}.t"
    opened = three_batches(spark, table)
    spark.sql(f"DELETE FROM {table} WHERE id = 1")
    sink = opened.sink("s", query_id="q", merge=merge)
    report = sink.run(rows_of(spark, 3), 3)
    if merge == "async":
        merged = sink.drain()
        assert merged is not None
        report = merged
    files = files_per_partition(rest, f"{namespace}.t")
    assert files.pop(("h1",)) == 4
    assert max(files.values()) <= 3
    assert list(report.ineligible) == ["hour=h1"]
    assert report.skipped["CONTESTED"] == report.ineligible["hour=h1"]

    later = Environment(now_ms=lambda: Environment().now_ms() + QUIET_MS)
    with_options(sink, environment=later).run(rows_of(spark, 4), 4)
    if merge == "async":
        with_options(sink, environment=later).drain()
    assert max(files_per_partition(rest, f"{namespace}.t").values()) <= 3
    assert spark_rows(spark, table) == sorted(((i, f"h{i % 4}") for i in range(200) if i != 1), key=repr)


def test_another_compactor_is_named(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """After Iceberg's own `rewrite_data_files` every report says that one of the two should be turned off."""
    table = f"rest.{namespace}.t"
    opened = three_batches(spark, table)
    assert [advice for advice in opened.inspect().advice if "compactor" in advice.sentence] == []
    spark.sql(f"CALL rest.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
    report = opened.sink("s", query_id="q").run(rows_of(spark, 3), 3)
    expected = f"another compactor (spark) works on '{table}': turn one off"
    for notes in (report.notes, opened.inspect().advice, opened.compact().notes):
        assert [note for note in notes if str(note).startswith(expected)] != []


def test_rewritten_manifests_are_no_compactor(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """A REPLACE that moved no file keeps nobody waiting and is not told of."""
    table = f"rest.{namespace}.t"
    opened = three_batches(spark, table)
    spark.sql(f"CALL rest.system.rewrite_manifests('{table}')")
    report = opened.sink("s", query_id="q").run(rows_of(spark, 3), 3)
    assert (report.notes, report.ineligible) == ((), {})
    assert max(files_per_partition(rest, f"{namespace}.t").values()) <= 3
