"""Clustering beside a stream, as Iceberg's own runtime sees it: readers, queries, metadata tables, and its writer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession

from icesize.report import Report
from integration.streams import created, reading
from integration.tools import local_path, operations, sized, spark_rows
from tests.support.background import WAIT_S, end_backgrounds

ROWS = 4_000
BATCHES = 6
TARGET_BYTES = 10_000


@pytest.fixture(autouse=True)
def no_background_thread_left() -> Iterator[None]:
    """Whatever a test does, its merges end with it."""
    yield
    end_backgrounds()


def batch_of(spark: SparkSession, number: int) -> DataFrame:
    """Rows in two partitions, whose values of `v` are spread over each batch."""
    ids = spark.range(number * ROWS, number * ROWS + ROWS, 1, 1)
    return ids.selectExpr("id", "concat('h', id % 2) AS hour", "cast(pmod(hash(id), 1000000) AS double) AS v")


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["inline", "async"])
def test_readers_and_writers_of_a_clustered_stream(
    spark: SparkSession, rest: Catalog, namespace: str, tmp_path: Path, cluster: str
) -> None:
    """A stream reader sees each row once, queries see the same rows, and files carry the sort order, Iceberg's too."""
    name = created(spark, f"rest.{namespace}.t")
    table = sized(spark, name, target_file_size_bytes=TARGET_BYTES)
    batch_of(spark, 0).writeTo(name).append()
    table.cluster(by=["v"])
    heard: list[Report] = []
    sink = table.sink("s", query_id="q", cluster=cluster, listener=heard.append)
    with reading(spark, name, tmp_path / "reader") as reader:
        for number in range(1, BATCHES):
            sink(batch_of(spark, number), number)
            reader.catch_up()
        sink.drain(WAIT_S)
        reader.catch_up()
        seen = reader.seen
    passes = [r for r in heard if r.batch_id is None and r.snapshot_ids]
    assert passes
    assert {r.operations for r in passes} == {("replace",)}
    assert seen == Counter(range(BATCHES * ROWS))
    whole = [batch_of(spark, number).collect() for number in range(BATCHES)]
    assert spark_rows(spark, name) == sorted((tuple(row) for rows in whole for row in rows), key=repr)
    assert set(operations(rest, f"{namespace}.t")) == {"append", "replace"}
    orders = Counter(row[0] for row in spark.sql(f"SELECT sort_order_id FROM {name}.files").collect())
    assert set(orders) == {rest.load_table(f"{namespace}.t").metadata.default_sort_order_id}
    assert referenced(spark, name) == on_disk(rest, f"{namespace}.t")
    check_own_append(spark, rest, f"{namespace}.t", name)


def check_own_append(spark: SparkSession, rest: Catalog, short: str, name: str) -> None:
    """What Iceberg appends by itself is sorted by the columns and says so."""
    before = data_paths(spark, name)
    spark.sql(f"INSERT INTO {name} SELECT id, 'h0', double(pmod(hash(id), 1000)) FROM range(1000000, 1002000)")
    new = data_paths(spark, name) - before
    assert new
    order = rest.load_table(short).metadata.default_sort_order_id
    for path in new:
        values = [row["v"] for row in spark.read.parquet(path).coalesce(1).collect()]
        assert values == sorted(values)
    listed = spark.sql(f"SELECT file_path, sort_order_id FROM {name}.files").collect()
    assert {row[1] for row in listed if row[0] in new} == {order}


def data_paths(spark: SparkSession, name: str) -> set[str]:
    return {row[0] for row in spark.sql(f"SELECT file_path FROM {name}.files").collect()}


def referenced(spark: SparkSession, name: str) -> set[str]:
    return {local_path(row[0]) for row in spark.sql(f"SELECT file_path FROM {name}.all_files").collect()}


def on_disk(rest: Catalog, short: str) -> set[str]:
    folder = Path(local_path(rest.load_table(short).location())) / "data"
    return {str(path) for path in folder.rglob("*.parquet")}
