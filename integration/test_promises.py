"""What icesize refuses on real servers, one sentence each, and that nothing was written when it does."""

from __future__ import annotations

import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

import icesize
from icesize.errors import SchemaMismatch, TableError, TableNotFound, UnsupportedTable
from integration.streams import created, rows_of
from integration.tools import sized, spark_rows
from tests.support.spark_lake import conf


def test_a_view_is_refused(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """A view in the REST catalog is called a view, not an unknown table."""
    table = created(spark, f"rest.{namespace}.t")
    spark.sql(f"CREATE VIEW rest.{namespace}.v AS SELECT * FROM {table}")
    with pytest.raises(UnsupportedTable, match="it is a view"):
        sized(spark, f"rest.{namespace}.v")


def test_a_stream_goes_on_after_an_upgrade(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """A table that is upgraded to format v3 between two batches gets the rows of both, and ids for all of them."""
    table = created(spark, f"rest.{namespace}.t")
    sink = sized(spark, table).sink("s", query_id="q")
    sink(rows_of(spark, 0), 0)
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('format-version'='3')")
    sink(rows_of(spark, 40), 1)
    sink(rows_of(spark, 80), 2)
    assert len(spark_rows(spark, table)) == 120
    ids = spark_rows(spark, f"SELECT _row_id FROM {table}")
    assert len({*ids} - {(None,)}) == 120
    assert sized(spark, table).verify().findings == ()


def test_catalogs_without_an_atomic_commit_are_refused(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Spark's `hadoop` and `nessie` catalogs are refused with what to use in their place."""
    warehouse = tmp_path_factory.mktemp("hadoop")
    settings = {
        "spark.sql.catalog.paths": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.paths.type": "hadoop",
        "spark.sql.catalog.paths.warehouse": f"file://{warehouse}",
        "spark.sql.catalog.git": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.git.catalog-impl": "org.apache.iceberg.nessie.NessieCatalog",
    }
    with conf(spark, **{key.replace(".", "__"): value for key, value in settings.items()}):
        spark.sql("CREATE TABLE paths.db.t (id bigint) USING iceberg")
        with pytest.raises(UnsupportedTable, match="no atomic commit; use a REST, JDBC, Hive or Glue catalog"):
            icesize.open(spark, "paths.db.t")
        with pytest.raises(UnsupportedTable, match="use Nessie's Iceberg REST endpoint"):
            icesize.open(spark, "git.db.t")


def test_unknown_names_are_told_with_the_nearest(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """An unknown catalog, namespace or table is named, with the nearest known one."""
    created(spark, f"rest.{namespace}.events")
    with pytest.raises(TableNotFound, match="did you mean 'events'"):
        sized(spark, f"rest.{namespace}.event")
    with pytest.raises(TableNotFound, match="there is no namespace 'nowhere'"):
        sized(spark, "rest.nowhere.t")
    with pytest.raises(TableNotFound, match="Cannot open catalog 'rset'"):
        sized(spark, f"rset.{namespace}.events")


def test_a_recreated_table_gets_nothing(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """A table that Spark dropped and recreated under its name gets no row of a sink made for the old one."""
    table = created(spark, f"rest.{namespace}.t")
    sink = sized(spark, table).sink("s", query_id="q")
    sink(rows_of(spark, 0), 0)
    spark.sql(f"DROP TABLE {table}")
    created(spark, table)
    with pytest.raises(TableError, match="dropped and recreated"):
        sink(rows_of(spark, 40), 1)
    assert rest.load_table(f"{namespace}.t").current_snapshot() is None


def test_rows_that_do_not_fit_leave_nothing(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """A null in a column that Spark made NOT NULL, and an unknown column, are refused by name; nothing is visible."""
    table = f"rest.{namespace}.t"
    spark.sql(f"CREATE TABLE {table} (id bigint NOT NULL, hour string, v double) USING iceberg PARTITIONED BY (hour)")
    with pytest.raises(SchemaMismatch, match="'id'"):
        sized(spark, table).append(rows_of(spark, 0).selectExpr("nullif(id, 7) AS id", "hour", "v"))
    with pytest.raises(SchemaMismatch, match="'extra'"):
        sized(spark, table).append(rows_of(spark, 0).selectExpr("*", "1 AS extra"))
    assert rest.load_table(f"{namespace}.t").current_snapshot() is None
    sized(spark, table).append(rows_of(spark, 0))
    assert len(spark_rows(spark, table)) == 40
