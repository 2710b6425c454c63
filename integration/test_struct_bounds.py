"""Bounds of columns within structs: Iceberg's Spark writes them, and merged files have them as well."""

from __future__ import annotations

import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from integration.tools import data_files, sized, spark_rows

FILTERS = {"st.x > 5": 1, "st.x < 5": 1, "st.deep.n = 12": 1, "st.x > 50": 0, "st.deep.t = 't3'": 1}


def _planned_by_java(spark: SparkSession, table: str, where: str) -> int:
    """How many files Iceberg's own planning reads for a filter."""
    jvm = spark._jvm
    assert jvm is not None
    loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, table)
    expression = jvm.org.apache.spark.sql.execution.datasources.SparkExpressionConverter
    converted = expression.convertToIcebergExpression(
        expression.collectResolvedSparkExpression(spark._jsparkSession, table, where)
    )
    tasks = loaded.newScan().filter(converted).planFiles()
    try:
        files, found = tasks.iterator(), 0
        while files.hasNext():
            files.next()
            found += 1
        return found
    finally:
        tasks.close()


@pytest.mark.parametrize("writer", ["spark", "icesize"])
def test_filters_on_structs_prune_merged_files(spark: SparkSession, rest: Catalog, namespace: str, writer: str) -> None:
    """Java and PyIceberg open only the files that can match, with null structs and NaN among the rows, and Spark finds
    the same rows as before.
    """
    table = f"rest.{namespace}.t"
    spark.sql(
        f"CREATE TABLE {table} (p int, st struct<x: double, deep: struct<n: bigint, t: string>>) USING iceberg "
        "PARTITIONED BY (p)"
    )
    for start in (0, 2, 10, 12):
        rows = (
            spark.sql(
                f"SELECT {start // 10} AS p, if(id = 9, null, named_struct('x', if(id = 8, double('NaN'), double(id)), "
                "'deep', if(id % 2 = 1 OR id = 8, null, named_struct('n', id, 't', concat('t', id + 1))))) AS st "
                f"FROM (SELECT explode(array({start}, {start + 1}, {start + 2}, 8, 9)) AS id)"
            )
            .selectExpr("p", "cast(st AS struct<x: double, deep: struct<n: bigint, t: string>>) AS st")
            .coalesce(1)
        )
        if writer == "spark":
            rows.writeTo(table).append()
        else:
            sized(spark, table, max_small_files=6).append(rows)
    select = f"SELECT p, cast(st AS string) FROM {table} WHERE "
    found = {where: spark_rows(spark, select + where) for where in FILTERS}
    assert sized(spark, table, max_small_files=1).compact().files_removed == 4
    assert len(data_files(rest, f"{namespace}.t")) == 2
    assert {where: spark_rows(spark, select + where) for where in FILTERS} == found
    scans = {where: rest.load_table(f"{namespace}.t").scan(row_filter=where) for where in FILTERS}
    assert {where: len(list(scan.plan_files())) for where, scan in scans.items()} == FILTERS
    assert {where: _planned_by_java(spark, table, where) for where in FILTERS} == FILTERS
