"""Commands on tables whose metadata other writers made, with Spark as the second reader."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

import icesize
from icesize.planning.files import PartitionKey
from integration.tools import spark_rows
from tests.support.delete_files import delete_equal
from tests.support.foreign_metadata import Shape, as_written_by

pytestmark = pytest.mark.engine


def test_spark_finds_the_rows_of_swapped_partition_values(
    spark: SparkSession, lake: SqlCatalog, namespace: str
) -> None:
    """Iceberg's own library finds the same rows by their partitions before and after a merge."""
    name = f"{namespace}.t"
    spark.sql(f"CREATE TABLE lake.{name} (id bigint, p string, q string) PARTITIONED BY (p, q)")
    for number in range(3):
        lake.load_table(name).append(
            pa.table({"id": pa.array([number, 10], pa.int64()), "p": ["a", "b"], "q": ["b", "a"]})
        )
    delete_equal(lake.load_table(name), ["id"], [[0]], PartitionKey(0, ("a", "b")))
    swapped = Shape(partition_order=lambda fields: [*reversed(fields)])
    as_written_by(lake, swapped, name=name)
    spark.catalog.refreshTable(f"lake.{name}")
    query = f"SELECT id FROM lake.{name} WHERE p = 'a' AND q = 'b'"
    assert spark_rows(spark, query) == [(1,), (2,)]
    sized = icesize.open(None, f"lake.{name}", catalog=lake)
    report = sized.compact()
    assert (report.files_removed, report.files_added) == (6, 2)
    spark.catalog.refreshTable(f"lake.{name}")
    assert spark_rows(spark, query) == [(1,), (2,)]
    assert spark_rows(spark, f"SELECT DISTINCT partition.p, partition.q FROM lake.{name}.files") == [
        ("a", "b"),
        ("b", "a"),
    ]
    assert sized.verify().findings == ()
