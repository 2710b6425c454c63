"""Partition columns that Spark promotes: Iceberg's Spark and PyIceberg read what icesize makes of old and new files."""

from __future__ import annotations

import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from integration.tools import data_files, sized, spark_rows

PROMOTIONS = {
    "int": ("int", "bigint", "k", ["1", "-7", "2147483647"], ["3000000000", "1"], "k > 2147483647"),
    "truncated": ("int", "bigint", "truncate(10, k)", ["1", "-7"], ["3000000000", "5"], "k = 3000000000"),
    "float": ("float", "double", "k", ["1.5", "0.1"], ["1e300", "double('0.1')", "1.5"], "k > 1e200"),
    "decimal": ("decimal(9,2)", "decimal(18,2)", "k", ["1.10", "-2.20"], ["1234567890123.45", "1.10"], "k > 1000"),
}


@pytest.mark.parametrize("case", PROMOTIONS)
def test_promoted_partition_columns_keep_their_values(
    spark: SparkSession, rest: Catalog, namespace: str, case: str
) -> None:
    """Appended, merged and with manifests rewritten, each row stays in its partition and is found by filters; files of
    one value from before and after the promotion are of one partition.
    """
    before, after, transform, old, new, above = PROMOTIONS[case]
    table = f"rest.{namespace}.t"
    spark.sql(f"CREATE TABLE {table} (k {before}, v string) USING iceberg PARTITIONED BY ({transform})")
    for turn in range(2):
        spark.sql(f"INSERT INTO {table} VALUES " + ", ".join(f"(cast({k} AS {before}), 'old{turn}')" for k in old))
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN k TYPE {after}")
    for turn in range(2):
        spark.sql(f"INSERT INTO {table} VALUES " + ", ".join(f"(cast({k} AS {after}), 'new{turn}')" for k in new))
    wanted = [f"SELECT * FROM {table}", f"SELECT * FROM {table} WHERE {above}"]
    rows = [spark_rows(spark, query) for query in wanted]
    partitions = f"SELECT partition, sum(record_count) FROM {table}.files GROUP BY partition"
    held = spark_rows(spark, partitions)
    assert sized(spark, table, max_small_files=1).compact().files_removed > 0
    assert [spark_rows(spark, query) for query in wanted] == rows
    assert spark_rows(spark, partitions) == held
    assert len(data_files(rest, f"{namespace}.t")) == len(held)
    assert len(spark_rows(spark, f"SELECT path FROM {table}.manifests")) == 1
    spark.sql(f"INSERT INTO {table} VALUES ({new[0]}, 'last')")
    sized(spark, table).rewrite_manifests()
    assert spark_rows(spark, f"SELECT * FROM {table} WHERE v <> 'last'") == rows[0]
    assert len(spark_rows(spark, wanted[1])) == len(rows[1]) + 1
