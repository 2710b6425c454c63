"""Default values that Iceberg's Java library gives to columns: Spark reads the same rows before and after rewrites."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from integration.tools import sized, spark_rows

DEFAULTS: dict[str, tuple[str, Any]] = {
    "flag": ("Boolean", False),
    "small": ("Integer", -5),
    "whole": ("Long", 2**60),
    "real": ("Double", 0.1),
    "day": ("Date", "1969-12-31"),
    "at": ("Timestamp", "2024-02-29T12:30:00.000001+00:00"),
    "local": ("Timestamp", "1500-01-01T00:00:00.000001"),
    "text": ("String", "it's 'new'"),
    "key": ("UUID", "f79c3e09-677c-4bbd-a479-3f349cb785e7"),
    "money": ("Decimal", "14.20"),
}
"""Iceberg's name of the type, and the value as Java makes a literal of it."""


def add_columns(spark: SparkSession, name: str) -> None:
    """Add the columns by Iceberg's own API; Spark's SQL has no statement for it."""
    jvm: Any = spark._jvm  # type: ignore[union-attr]
    iceberg = jvm.org.apache.iceberg
    update = iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name).updateSchema()
    types, lit = iceberg.types.Types, iceberg.expressions.Expressions.lit
    for column, (kind, value) in DEFAULTS.items():
        if kind == "Decimal":
            java = types.DecimalType.of(9, 2)
        elif kind == "Timestamp":
            java = types.TimestampType.withZone() if column == "at" else types.TimestampType.withoutZone()
        else:
            java = getattr(types, f"{kind}Type").get()
        update = update.addColumn(column, java, None, lit(value).to(java))
    update = update.addRequiredColumn("must", types.LongType.get(), None, lit(8).to(types.LongType.get()))
    update = update.addColumn("s", "y", types.StringType.get(), None, lit("deep"))
    update.addColumn("s", "bare", types.StringType.get(), None).commit()


@pytest.mark.parametrize("catalog_name", ["lake", "rest"])
def test_spark_reads_the_same_defaults_before_and_after_a_merge(
    spark: SparkSession, catalog_name: str, namespace: str, request: pytest.FixtureRequest
) -> None:
    """Rows of Spark's older files, beside rows of an icesize batch that omits the columns; PyIceberg agrees."""
    catalog: Catalog = request.getfixturevalue(catalog_name)
    name = f"{catalog_name}.{namespace}.t"
    spark.sql(
        f"CREATE TABLE {name} (id bigint, s struct<x: bigint>) USING iceberg TBLPROPERTIES ('format-version'='3')"
    )
    for first in (0, 2):
        spark.sql(f"INSERT INTO {name} VALUES ({first}, named_struct('x', {first})), ({first + 1}, NULL)")
    add_columns(spark, name)
    spark.sql(f"REFRESH TABLE {name}")
    rows = spark_rows(spark, f"SELECT * FROM {name}")
    assert [row[-1] for row in rows] == [8] * 4
    batch = spark.createDataFrame([(4, (4,)), (5, None)], "id bigint, s struct<x: bigint>")
    sized(spark, name).append(batch)
    spark.sql(f"REFRESH TABLE {name}")
    both = spark_rows(spark, f"SELECT * FROM {name}")
    assert both[:4] == rows
    assert [row[2:] for row in both] == [rows[0][2:]] * 6
    structs = spark_rows(spark, f"SELECT id, s.x, s.y, s.bare FROM {name}")
    assert structs == [(i, i, "deep", None) if i % 2 == 0 else (i, None, None, None) for i in range(6)]
    assert sized(spark, name).compact().files_added == 1
    spark.sql(f"REFRESH TABLE {name}")
    assert spark_rows(spark, f"SELECT * FROM {name}") == both
    assert spark_rows(spark, f"SELECT id, s.x, s.y, s.bare FROM {name}") == structs
    assert spark.sql(f"SELECT count(*) FROM {name} WHERE must = 8 AND text = \"it's 'new'\"").first()[0] == 6
    assert sized(spark, name).verify().is_valid
    scanned = catalog.load_table(f"{namespace}.t").scan(selected_fields=("id", "whole")).to_arrow()
    assert set(scanned["whole"].to_pylist()) == {2**60}
