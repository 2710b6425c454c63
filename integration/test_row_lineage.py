"""Row lineage of files whose bytes icesize copies: Iceberg's vectorized reader in Spark reads all its pages."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from integration.tools import data_files, local_path, sized, spark_rows

Lineage = dict[int, tuple[int, int]]
ROWS = 150_000
"""Of a file: more than a page of evenly rising row ids has, and many times the rows of a batch of the reader."""


def lineage(spark: SparkSession, name: str) -> Lineage:
    """Row id and number of the last change by the column `id`, as Spark reads them."""
    spark_rows(spark, f"REFRESH TABLE {name}")
    rows = spark.sql(f"SELECT id, _row_id, _last_updated_sequence_number FROM {name}").toArrow().to_pydict()
    return dict(zip(rows["id"], zip(rows["_row_id"], rows["_last_updated_sequence_number"], strict=True), strict=True))


def insert(spark: SparkSession, name: str, start: int, rows: int) -> None:
    """One file of rows that hardly compress."""
    df = spark.range(start, start + rows, numPartitions=1).selectExpr("id", "rand(7) v", "sha2(string(id), 256) s")
    df.writeTo(name).append()


@pytest.mark.parametrize("is_vectorized", [True, False])
def test_spark_reads_the_columns_of_copies(
    spark: SparkSession, lake: Catalog, namespace: str, is_vectorized: bool
) -> None:
    """Through merges that copy files with and without both columns, with deleted rows, and after changes by Spark."""
    name = f"lake.{namespace}.t"
    modes = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("delete", "update"))
    reader = f"'read.parquet.vectorization.enabled' = '{str(is_vectorized).lower()}'"
    options = f"'format-version' = '3', {modes}, {reader}"
    spark.sql(f"CREATE TABLE {name} (id bigint, v double, s string) USING iceberg TBLPROPERTIES ({options})")

    for start in (0, ROWS):
        insert(spark, name, start, ROWS)
    expected = lineage(spark, name)
    table = sized(spark, name, max_small_files=1, target_file_size_bytes=2**30, small_file_limit_bytes=2**29)
    for number in range(3):
        report = table.compact()
        assert report.files_removed >= 2
        assert report.bytes_copied > report.bytes_decoded
        assert lineage(spark, name) == expected
        insert(spark, name, (2 + number) * ROWS, ROWS)
        spark.sql(f"DELETE FROM {name} WHERE id % 1000 = {number} AND id < {ROWS}")
        spark.sql(f"UPDATE {name} SET v = -1 WHERE id = {500 + number}")
        changed = lineage(spark, name)
        kept = {key: value for key, value in expected.items() if key in changed and key != 500 + number}
        assert changed.items() >= kept.items()
        assert changed[500 + number][0] == expected[500 + number][0]
        expected = changed


def test_pages_of_spark_and_of_icesize_in_one_chunk(spark: SparkSession, lake: Catalog, namespace: str) -> None:
    """Spark stores row ids as plain values. A merge joins such pages with pages of its own, which Spark reads."""
    name = f"lake.{namespace}.t"
    spark.sql(
        f"CREATE TABLE {name} (id bigint, v double, s string) USING iceberg TBLPROPERTIES ('format-version' = '3')"
    )
    insert(spark, name, 0, 30_000)
    insert(spark, name, 30_000, 30_000)
    spark.sql(f"CALL lake.system.rewrite_data_files(table => '{namespace}.t', options => map('rewrite-all', 'true'))")
    insert(spark, name, 60_000, 30_000)
    expected = lineage(spark, name)
    report = sized(spark, name, max_small_files=1, target_file_size_bytes=2**30, small_file_limit_bytes=2**29).compact()
    assert (report.files_removed, report.pages_copied > 0) == (2, True)
    assert lineage(spark, name) == expected
    (file,) = data_files(lake, f"{namespace}.t")
    chunk = pq.read_metadata(local_path(file.file_path)).row_group(0).column(3)
    assert {"PLAIN", "DELTA_BINARY_PACKED"} <= set(chunk.encodings)
