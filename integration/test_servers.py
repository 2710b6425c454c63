"""Spark with Iceberg's own runtime and PyIceberg work on the same tables, in both catalogs that the suite starts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from tests.support.rest_server import MiniRest

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("city", pa.string())])


def spark_rows(spark: SparkSession, name: str) -> list[tuple[int, str]]:
    return sorted((row.id, row.city) for row in spark.table(name).collect())


def pyiceberg_rows(catalog: Catalog, name: str) -> list[tuple[int, str]]:
    scanned = catalog.load_table(name).scan().to_arrow()
    return sorted(zip(scanned["id"].to_pylist(), scanned["city"].to_pylist(), strict=True))


@pytest.fixture(params=["rest", "lake"])
def catalog(request: pytest.FixtureRequest) -> Catalog:
    """Each of the two catalogs, as PyIceberg sees it; its name is Spark's name for it."""
    found: Catalog = request.getfixturevalue(request.param)
    return found


def test_pyiceberg_reads_what_spark_wrote(spark: SparkSession, catalog: Catalog, namespace: str) -> None:
    """A partitioned table made and filled by Spark has the same rows and partitions for PyIceberg."""
    table = f"{catalog.name}.{namespace}.t"
    spark.sql(f"CREATE TABLE {table} (id bigint, city string) USING iceberg PARTITIONED BY (city)")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'Oslo'), (2, 'Rome'), (3, NULL)")
    loaded = catalog.load_table(f"{namespace}.t")
    partitions = {task.file.partition[0] for task in loaded.scan().plan_files()}
    assert loaded.scan(row_filter="id < 3").to_arrow().num_rows == 2
    assert partitions == {"Oslo", "Rome", None}


def test_spark_reads_what_pyiceberg_wrote(spark: SparkSession, catalog: Catalog, namespace: str) -> None:
    """A table made and filled by PyIceberg is read, and appended to, by Spark; PyIceberg reads the result."""
    table = f"{catalog.name}.{namespace}.t"
    created = catalog.create_table(f"{namespace}.t", SCHEMA)
    created.append(pa.table({"id": [1, 2], "city": ["Oslo", "Rome"]}, schema=SCHEMA))
    assert spark_rows(spark, table) == [(1, "Oslo"), (2, "Rome")]
    spark.sql(f"INSERT INTO {table} VALUES (3, 'Bonn')")
    assert pyiceberg_rows(catalog, f"{namespace}.t") == [(1, "Oslo"), (2, "Rome"), (3, "Bonn")]


def test_a_cached_catalog_needs_refresh_table(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """Through Spark's default catalog cache a PyIceberg commit is invisible until REFRESH TABLE."""
    table = f"rest.{namespace}.t"
    spark.sql(f"CREATE TABLE {table} (id bigint, city string) USING iceberg")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'Oslo')")
    more = pa.table({"id": [2], "city": ["Rome"]}, schema=SCHEMA)
    rest.load_table(f"{namespace}.t").append(more)
    assert spark_rows(spark, table) == [(1, "Oslo")]
    spark.sql(f"REFRESH TABLE {table}")
    assert spark_rows(spark, table) == [(1, "Oslo"), (2, "Rome")]


def test_an_uncached_catalog_needs_no_refresh(spark: SparkSession, lake: Catalog, namespace: str) -> None:
    """With `cache-enabled=false` Spark sees a PyIceberg commit at once."""
    table = f"lake.{namespace}.t"
    spark.sql(f"CREATE TABLE {table} (id bigint, city string) USING iceberg")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'Oslo')")
    more = pa.table({"id": [2], "city": ["Rome"]}, schema=SCHEMA)
    lake.load_table(f"{namespace}.t").append(more)
    assert spark_rows(spark, table) == [(1, "Oslo"), (2, "Rome")]


def test_spark_works_with_the_mini_rest_catalog(spark: SparkSession, tmp_path: Path) -> None:
    """The in-process catalog of the commit tests serves Spark too: create, append, delete, and both sides read."""
    name = f"mini_{tmp_path.name}"
    with MiniRest(tmp_path) as mini:
        spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set(f"spark.sql.catalog.{name}.type", "rest")
        spark.conf.set(f"spark.sql.catalog.{name}.uri", mini.uri)
        spark.conf.set(f"spark.sql.catalog.{name}.cache-enabled", "false")
        spark.sql(f"CREATE NAMESPACE {name}.db")
        spark.sql(f"CREATE TABLE {name}.db.t (id bigint, city string) USING iceberg PARTITIONED BY (city)")
        spark.sql(f"INSERT INTO {name}.db.t VALUES (1, 'Oslo'), (2, 'Rome')")
        table = mini.catalog().load_table("db.t")
        table.append(pa.table({"id": [3], "city": ["Bonn"]}, schema=SCHEMA))
        spark.sql(f"DELETE FROM {name}.db.t WHERE city = 'Rome'")
        assert spark_rows(spark, f"{name}.db.t") == [(1, "Oslo"), (3, "Bonn")]
        assert pyiceberg_rows(mini.catalog(), "db.t") == [(1, "Oslo"), (3, "Bonn")]


def test_spark_columns_arrive_in_workers_as_arrow(spark: SparkSession) -> None:
    """Python workers of the session run this interpreter, so that they have its packages."""
    doubled = spark.range(8, numPartitions=2).mapInArrow(
        lambda batches: (pa.record_batch({"id": [2 * i for i in b["id"].to_pylist()]}) for b in batches), "id long"
    )
    assert sorted(row.id for row in doubled.collect()) == [0, 2, 4, 6, 8, 10, 12, 14]
