"""Footers of files that Spark writes, plain ones and those of Iceberg tables, as icesize copies them."""

from __future__ import annotations

from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from icesize.parquet.format.footer import Footer, read_footer
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.sources import LocalSource
from icesize.parquet.row_groups.compatibility import check_file, check_together
from integration.tools import data_files, local_path
from tests.support.footers import raw_footer, rebuilt

_ROWS = """
    SELECT id, cast(id % 7 AS int) AS small, if(id % 5 = 0, null, concat('text ', id)) AS text,
        if(id % 3 = 0, double('NaN'), id / 4) AS number, cast(id AS decimal(9, 2)) AS money,
        date_add(date'2024-01-01', cast(id AS int)) AS day, timestamp_seconds(id) AS at, id % 2 = 0 AS flag,
        cast(cast(id AS string) AS binary) AS bytes, sequence(0, id % 4) AS items,
        named_struct('a', id, 'b', named_struct('c', cast(id AS string))) AS record, map('k', id) AS pairs
    FROM range({first}, {first} + 1000, 1, 1)
"""


def _footer(path: str) -> Footer:
    """Read from a file, and found to be written again as it was."""
    footer = read_footer(LocalSource(path))
    assert rebuilt(footer) == raw_footer(Path(path).read_bytes())
    return footer


def test_footers_of_iceberg_tables_are_written_as_they_were(
    spark: SparkSession, lake: SqlCatalog, namespace: str
) -> None:
    """Files of two jobs, one of them with a bloom filter, have equal meaning, page indexes and all of their rows."""
    table = f"lake.{namespace}.t"
    spark.sql(f"CREATE TABLE {table} USING iceberg AS {_ROWS.format(first=0)}")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.parquet.bloom-filter-enabled.column.id'='true')")
    spark.sql(f"INSERT INTO {table} {_ROWS.format(first=1000)}")
    footers = [_footer(local_path(file.file_path)) for file in data_files(lake, f"{namespace}.t")]
    assert [footer.rows for footer in footers] == [1000, 1000]
    for footer in footers:
        assert footer.created_by.startswith("parquet-mr version 1.")
        assert all(chunk.offset_index for group in footer.row_groups for chunk in group.chunks)
        check_file(footer)
    check_together(footers)
    filters = [
        [chunk.bloom_filter is not None for chunk in footer.row_groups[0].chunks].count(True) for footer in footers
    ]
    assert sorted(filters) == [0, 1]


def test_footers_of_plain_spark_are_written_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    """Files outside of tables as well: those with INT96 timestamps are refused, those without are not."""
    refused = []
    for kind in ("INT96", "TIMESTAMP_MICROS"):
        folder = tmp_path / kind
        spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
        try:
            spark.sql(_ROWS.format(first=0)).write.parquet(str(folder))
        finally:
            spark.conf.unset("spark.sql.parquet.outputTimestampType")
        (path,) = folder.glob("*.parquet")
        footer = _footer(str(path))
        assert footer.rows == 1000
        try:
            check_file(footer)
        except CopyRefused as reason:
            refused.append((kind, reason.code))
    assert refused == [("INT96", Refusal.INT96)]
