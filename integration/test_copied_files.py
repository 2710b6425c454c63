"""Files whose bytes were copied, read by others: Spark's and Iceberg's vectorised readers, DuckDB and polars.

Spark's vectorised reader is the one that a page in the wrong place makes silently wrong, so its batches (4,096 rows)
end inside pages here, flat and nested columns are read, and filters make it skip pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession

from icesize.parquet.format.sources import LocalSource
from icesize.parquet.verify.file import verify_file
from integration.tools import data_files, local_path, sized
from tests.support.spark_lake import conf

FLAT = (
    "id bigint, small int, flag boolean, part float, wide double, d9 decimal(9,2), d38 decimal(38,10), status string, "
    "name string, raw binary, day date, at timestamp, local timestamp_ntz, nothing string"
)
NESTED = "place struct<city: string, geo: struct<x: double, y: bigint>>, tags array<string>, counts map<string, bigint>"
ROWS = """
  SELECT id, CAST(id % 1000 AS int) AS small, id % 3 = 0 AS flag, CAST(rand(5) AS float) AS part,
    CASE WHEN id % 1001 = 5 THEN double('NaN') WHEN id % 11 = 0 THEN NULL ELSE rand(7) - 0.5 END AS wide,
    CAST(rand(3) * 1000 AS decimal(9,2)) AS d9, CAST(id * 1000003.5 AS decimal(38,10)) AS d38,
    concat('status-', id % 4) AS status, IF(id % 13 = 0, NULL, md5(CAST(id AS string))) AS name,
    unhex(md5(CAST(id + 1 AS string))) AS raw, date_add(date'2020-01-01', CAST(id % 900 AS int)) AS day,
    timestamp_micros(1600000000000000 + id * 1234567) AS at,
    CAST(timestamp_micros(1600000000000000 + id * 7654321) AS timestamp_ntz) AS local, CAST(NULL AS string) AS nothing,
    named_struct('city', sha1(CAST(id AS string)), 'geo', IF(id % 5 = 0, NULL, named_struct('x', rand(9), 'y', id)))
      AS place,
    transform(sequence(1, CAST(id % 4 AS int)), n -> md5(CAST(id * n AS string))) AS tags,
    IF(id % 6 = 0, NULL, map('a', id, 'b', id * 3)) AS counts
  FROM range({first}, {last}, 1, 1)"""
FILTERS = (
    "id BETWEEN 41111 AND 41142",
    "status = 'status-2' AND id > 30000",
    "name = md5('61003')",
    "wide > 0.49 AND wide < 1",
    "day = date'2021-03-04'",
    "place.geo.y BETWEEN 25000 AND 25010",
    "counts['b'] = 90003",
)


@pytest.fixture
def table(spark: SparkSession, rest: Catalog, namespace: str) -> str:
    """Three files that Iceberg's own writer made of rows of all types, none large enough for a row group of its own."""
    name = f"rest.{namespace}.t"
    spark.sql(f"CREATE TABLE {name} ({FLAT}, {NESTED}) USING iceberg")
    for first, last in ((0, 25_003), (25_003, 47_111), (47_111, 70_001)):
        rows = ROWS.format(first=first, last=last)
        spark.sql(f"INSERT INTO {name} {rows}")
    return name


def answers(rows: DataFrame) -> list[tuple[Any, ...]]:
    """Number and hash of all rows, of a flat projection, of a nested one if there is any, and of what filters leave."""
    is_nested = "place" in rows.columns
    hashable = ", ".join("map_entries(counts)" if column == "counts" else column for column in rows.columns)
    everything = ["count(*)", f"sum(xxhash64({hashable}) % 1000003)"]
    flat = ["sum(id)", "count(name)", "sum(xxhash64(name, status, d38, wide) % 1000003)"]
    nested = ["sum(xxhash64(place.city, place.geo.y) % 1000003)", "sum(size(tags))", "sum(xxhash64(tags) % 1000003)"]
    found = [tuple(rows.selectExpr(*chosen).first() or ()) for chosen in (everything, flat, *[nested] * is_nested)]
    for condition in (f for f in FILTERS if is_nested or not f.startswith(("place", "counts"))):
        found.append((condition, *(rows.where(condition).selectExpr(*everything).first() or ())))
    return found


def by_every_reader(
    spark: SparkSession, table: str, paths: Sequence[str], readers: int = 5
) -> list[list[tuple[Any, ...]]]:
    """The same questions to Spark's vectorised reader on the bare files (nested columns too, then in batches that end
    elsewhere), to Iceberg's, and to the row-wise ones of both; the first `readers` of these."""
    bare = spark.read.parquet
    odd = {"spark__sql__parquet__columnarReaderBatchSize": "1000", "spark__sql__files__maxPartitionBytes": "400000"}
    found = []
    with conf(spark, spark__sql__parquet__enableNestedColumnVectorizedReader="true"):
        found.append(answers(bare(*paths)))
    with conf(spark, **odd):
        found.append(answers(bare(*paths)))
    for iceberg in (spark.table(table), spark.read.option("vectorization-enabled", "false").table(table))[
        : readers - 2
    ]:
        found.append(answers(iceberg))
    with conf(spark, spark__sql__parquet__enableVectorizedReader="false"):
        found += [answers(bare(*paths))] if readers > 4 else []
    return found


def paths_of(catalog: Catalog, table: str) -> list[str]:
    """Data files as local paths, each found to be what its footer says; Iceberg's writer has NaN in some bounds."""
    paths = [local_path(file.file_path) for file in data_files(catalog, table.removeprefix("rest."))]
    found = [problem for path in paths for problem in verify_file(LocalSource(path), path).problems]
    assert found == []
    return paths


def asked(query: str) -> tuple[Any, ...]:
    """DuckDB's answer of one row."""
    with duckdb.connect() as connection:
        return tuple(connection.execute(query).fetchall()[0])


@pytest.mark.slow
@pytest.mark.parametrize("readers", [3, 5])
def test_pages_that_were_moved_read_alike_everywhere(
    spark: SparkSession, rest: Catalog, table: str, readers: int
) -> None:
    """Rows of all types are the same for every reader and filter before and after their pages were merged."""
    before = answers(spark.table(table))
    report = sized(spark, table, target_file_size_bytes=100_000_000).compact()
    assert (report.files_removed, report.files_added, report.decode_reasons) == (3, 1, {})
    # columns of few values have a dictionary of their own in each file
    assert report.bytes_copied > 2 * report.bytes_decoded > 0
    assert report.pages_copied >= 3 * 20
    (path,) = paths_of(rest, table)
    assert pq.read_metadata(path).num_row_groups == 1
    assert by_every_reader(spark, table, [path], readers) == [before] * readers
    frame = pl.read_parquet(path)
    wanted = (70_001, 70_001 * 70_000 // 2, frame["name"].count(), frame["tags"].list.len().sum())
    assert asked(f"SELECT count(*), sum(id), count(name), sum(len(tags)) FROM '{path}'") == wanted
    assert before[1][:2] == (wanted[1], wanted[2])
    for low in (4_090, 25_000, 47_100):
        between = f"id BETWEEN {low} AND {low + 31}"
        assert asked(f"SELECT count(DISTINCT name || id) FROM '{path}' WHERE {between} AND name > ''") == (
            frame.filter(pl.col("id").is_between(low, low + 31))["name"].count(),
        )


@pytest.mark.slow
def test_row_groups_that_were_moved_read_alike_everywhere(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """Row groups that are large enough are moved whole with their bloom filters; what is small beside is decoded."""
    name = f"rest.{namespace}.t"
    bloom = "'write.parquet.bloom-filter-enabled.column.id'='true'"
    spark.sql(f"CREATE TABLE {name} ({FLAT}) USING iceberg TBLPROPERTIES ({bloom})")
    columns = ", ".join(spark.table(name).columns)
    for first, last in ((0, 100_100), (100_100, 200_300), (200_300, 200_350)):
        rows = ROWS.format(first=first, last=last)
        spark.sql(f"INSERT INTO {name} SELECT {columns} FROM ({rows})")
    before = answers(spark.table(name))
    report = sized(spark, name, target_file_size_bytes=400_000_000).compact()
    assert (report.files_removed, report.files_added) == (3, 1)
    assert (report.decode_reasons, report.pages_copied) == ({"tiny": 1}, 0)
    (path,) = paths_of(rest, name)
    groups = pq.read_metadata(path)
    assert sorted(groups.row_group(i).num_rows for i in range(groups.num_row_groups)) == [50, 100_100, 100_200]
    assert by_every_reader(spark, name, [path]) == [before] * 5
    # an id between those of the file, which only its filters exclude
    assert spark.read.parquet(path).where("id = 100099 OR id = -5").count() == 1


def test_page_indexes_of_merged_files_skip_rows(spark: SparkSession, rest: Catalog, table: str) -> None:
    """A range of ids makes Spark read a part of the merged row group only, and gives the rows of the range."""
    sized(spark, table, target_file_size_bytes=100_000_000).compact()
    (path,) = paths_of(rest, table)
    found = spark.read.parquet(path).where("id BETWEEN 41111 AND 41142").select("id", "name")
    assert sorted(row.id for row in found.collect()) == list(range(41_111, 41_143))
    assert 32 <= _rows_scanned(found) < 70_001


def _rows_scanned(df: DataFrame) -> int:
    plan: Any = df._jdf.queryExecution().executedPlan()
    plan = plan.inputPlan() if "Adaptive" in plan.getClass().getName() else plan
    leaves = plan.collectLeaves()
    metrics = leaves.apply(0).metrics()
    return int(metrics.apply("numOutputRows").value())


@pytest.mark.parametrize("plain_first", [False, True])
def test_dictionaries_and_plain_pages_in_one_file_read_right(
    spark: SparkSession, rest: Catalog, namespace: str, tmp_path: Path, plain_first: bool
) -> None:
    """Files with and without dictionaries merge in either order; the vectorised reader finds each row of a range."""
    name = f"rest.{namespace}.t"
    spark.sql(f"CREATE TABLE {name} (id bigint, word string, twice bigint) USING iceberg")
    counts = [(0, 20_100, not plain_first), (20_100, 43_000, plain_first)]
    for first, last, dictionary in counts:
        fields = [("id", pa.int64(), "1"), ("word", pa.string(), "2"), ("twice", pa.int64(), "3")]
        schema = pa.schema([pa.field(n, t, metadata={"PARQUET:field_id": i}) for n, t, i in fields])
        ids = range(first, last)
        rows = pa.table([list(ids), [f"w{i * 7919 % 99_991}" for i in ids], [2 * i for i in ids]], schema=schema)
        path = tmp_path / f"{first}.parquet"
        pq.write_table(
            rows, path, compression="zstd", use_dictionary=["id"] if dictionary else False, store_schema=False,
            write_page_index=True, max_rows_per_page=5_000,
        )  # fmt: skip
        rest.load_table(f"{namespace}.t").add_files([f"file://{path}"])
    spark.sql(f"REFRESH TABLE {name}")
    sized(spark, name, target_file_size_bytes=100_000_000).compact()
    (path_of_merged,) = paths_of(rest, name)
    for low in (0, 4_090, 20_095, 24_570, 42_960):
        wanted = [(i, f"w{i * 7919 % 99_991}", 2 * i) for i in range(low, low + 40)]
        for rows in (spark.table(name), spark.read.parquet(path_of_merged)):
            kept = rows.where(f"id BETWEEN {low} AND {low + 39}").collect()
            assert sorted(tuple(row) for row in kept) == wanted
