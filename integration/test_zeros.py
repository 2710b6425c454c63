"""-0.0 and 0.0 as partition values: two partitions to Iceberg, one number to filters."""

from __future__ import annotations

import math

from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from integration.tools import data_files, sized, spark_rows

FILTERS = ["k = 0.0", "k = -0.0", "k >= 0.0", "k <= 0.0", "k IN (0.0, 3.0)", "k < 0", "k > -1 AND k < 1"]


def _found(spark: SparkSession, table: str) -> list[object]:
    return [spark_rows(spark, f"SELECT * FROM {table} WHERE {where}") for where in ["true", *FILTERS]]


def test_filters_find_both_zeros_in_rewritten_manifests(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """Zeros of either sign are found after their manifest was rewritten by a merge of other partitions, by a merge of
    their own, and by `rewrite_manifests`; files of the two are never merged into one.
    """
    table = f"rest.{namespace}.t"
    spark.sql(
        f"CREATE TABLE {table} (k double, v string) USING iceberg PARTITIONED BY (k) "
        "TBLPROPERTIES ('write.distribution-mode'='none')"
    )
    rows = spark.createDataFrame([(-7.0, "a"), (-0.0, "b"), (0.0, "c")], "k double, v string").coalesce(1)
    rows.writeTo(table).option("fanout-enabled", "true").append()
    spark.sql(f"INSERT INTO {table} VALUES (double(-7), 'd')")
    expected = _found(spark, table)
    assert sized(spark, table, max_small_files=1).compact().files_removed == 2
    assert _found(spark, table) == expected
    for v in "ef":
        spark.sql(f"INSERT INTO {table} VALUES (double('-0.0'), '{v}'), (double('0.0'), '{v}')")
    expected = _found(spark, table)
    sized(spark, table).rewrite_manifests()
    assert _found(spark, table) == expected
    assert sized(spark, table, max_small_files=1).compact().files_removed == 6
    assert _found(spark, table) == expected
    signs = sorted((f.partition[0], math.copysign(1, f.partition[0])) for f in data_files(rest, f"{namespace}.t"))
    assert signs == [(-7.0, -1.0), (0.0, -1.0), (0.0, 1.0)]
