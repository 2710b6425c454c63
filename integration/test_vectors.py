"""Deletion vectors between icesize and Iceberg's Java library: each reads what the other writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyroaring import BitMap
from pyspark.sql import SparkSession

import icesize
from icesize.parquet.deletes.deleted_rows import deleted_rows
from icesize.parquet.deletes.vectors import write_vectors
from icesize.parquet.files.data_file import NewDeleteFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import NewFiles
from icesize.parquet.files.settings import WriteSettings
from icesize.planning.files import DeleteFile, FileFact, PartitionKey
from integration.tools import spark_rows

A = PartitionKey(0, ("a",))
ROWS, FEW = 150_000, 100
"""Of the two data files; their ids count on."""


def made(spark: SparkSession, namespace: str) -> str:
    """A table of format v3 with two files in partition `a`, whose rows are in the order of their ids."""
    name = f"lake.{namespace}.t"
    spark.sql(
        f"CREATE TABLE {name} (id bigint, p string) USING iceberg PARTITIONED BY (p) "
        "TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')"
    )
    for start, end in ((0, ROWS), (ROWS, ROWS + FEW)):
        spark.range(start, end, 1, 1).selectExpr("id", "'a' p").coalesce(1).writeTo(name).append()
    return name


def data_files(spark: SparkSession, name: str) -> list[FileFact]:
    """The data files, the large one first."""
    files = spark.sql(f"SELECT file_path, file_size_in_bytes, record_count FROM {name}.data_files").collect()
    return [FileFact(path, size, rows, A, 1) for path, size, rows in sorted(files, key=lambda each: -each[2])]


def vectors(spark: SparkSession, name: str) -> dict[str, DeleteFile]:
    """The vectors of the table, as its metadata has them, by their data file."""
    columns = "file_path, file_size_in_bytes, record_count, referenced_data_file, content_offset, content_size_in_bytes"
    rows = spark.sql(f"SELECT {columns} FROM {name}.delete_files WHERE file_format = 'PUFFIN'").collect()
    return {
        of: DeleteFile(path, size, count, A, 9, "PUFFIN", referenced_path=of, content_offset=offset,
                       content_size_bytes=length)
        for path, size, count, of, offset, length in rows
    }  # fmt: skip


def settings(lake: SqlCatalog, name: str) -> WriteSettings:
    """Settings of the table."""
    return WriteSettings.of(lake.load_table(name.removeprefix("lake.")).metadata, {}, 2**29)


def ids(spark: SparkSession, name: str) -> set[int]:
    return {number for (number,) in spark_rows(spark, f"SELECT id FROM {name}")}


def positions(spark: SparkSession, lake: SqlCatalog, name: str) -> Mapping[str, BitMap]:
    """The deleted rows of each data file, read by icesize."""
    listed = tuple(vectors(spark, name).values())
    inputs = [FileFact(f.path, f.size_bytes, f.rows, A, 1, deletes=listed) for f in data_files(spark, name)]
    return deleted_rows(inputs, settings(lake, name), A).positions


CONDITIONS = {
    "runs": "id BETWEEN 1000 AND 140000",
    "half": "id % 2 = 0",
    "few": "id % 9999 = 7",
    "some": "id < 20000 AND id % 3 = 0 OR id BETWEEN 70000 AND 80000 OR id >= 150050",
}


@pytest.mark.parametrize("kind", CONDITIONS)
def test_vectors_that_spark_writes(spark: SparkSession, lake: SqlCatalog, namespace: str, kind: str) -> None:
    """Their rows are the ones that Spark does not read any more, whatever containers the bitmaps have."""
    name = made(spark, namespace)
    spark.sql(f"DELETE FROM {name} WHERE {CONDITIONS[kind]}")
    large, small = data_files(spark, name)
    found = positions(spark, lake, name)
    deleted = {*found.get(large.path, ()), *(ROWS + position for position in found.get(small.path, ()))}
    assert deleted == set(range(ROWS + FEW)) - ids(spark, name)
    assert deleted


def added(spark: SparkSession, name: str, files: tuple[NewDeleteFile, ...]) -> None:
    """Commit vectors by Iceberg's Java library."""
    assert spark._jvm is not None
    iceberg: Any = spark._jvm.org.apache.iceberg
    table = iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)
    entries = [
        {
            "spec-id": 0, "content": "position-deletes", "file-path": file.path, "file-format": "puffin",
            "partition": ["a"], "file-size-in-bytes": file.size_bytes, "record-count": file.rows,
            "referenced-data-file": file.deletes_of, "content-offset": file.content_offset,
            "content-size-in-bytes": file.content_size_bytes,
        }
        for file in files
    ]  # fmt: skip
    nodes = iceberg.util.JsonUtil.mapper().readTree(json.dumps(entries))
    delta = table.newRowDelta()
    for place in range(len(entries)):
        delta.addDeletes(iceberg.ContentFileParser.fromJson(nodes.get(place), table.spec()))
    delta.commit()
    table.refresh()


def test_vectors_that_icesize_writes(spark: SparkSession, lake: SqlCatalog, namespace: str) -> None:
    """Spark reads all other rows, its Puffin reader the footer, and its next DELETE adds to them."""
    name = made(spark, namespace)
    large, small = data_files(spark, name)
    rows = {large: BitMap([*range(0, 70_000, 2), *range(90_000, 100_000), ROWS - 1]), small: BitMap([0, 99])}
    files = write_vectors(NewFiles(settings(lake, name), FileNames("run", 0, 0)), A, rows, 2)
    added(spark, name, files)
    left = set(range(ROWS + FEW)) - {*rows[large], ROWS, ROWS + 99}
    assert ids(spark, name) == left
    assert spark._jvm is not None
    iceberg: Any = spark._jvm.org.apache.iceberg
    table = iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)
    reader = iceberg.puffin.Puffin.read(table.io().newInputFile(files[0].path)).build()
    blobs = [(blob.offset(), blob.length(), blob.type()) for blob in reader.fileMetadata().blobs()]
    reader.close()
    assert blobs == [(file.content_offset, file.content_size_bytes, "deletion-vector-v1") for file in files]
    spark.sql(f"DELETE FROM {name} WHERE id IN (1, {ROWS + 50})")
    found = positions(spark, lake, name)
    assert {path: set(some) for path, some in found.items()} == {
        large.path: {*rows[large], 1}, small.path: {0, 50, 99}
    }  # fmt: skip


def test_an_upgraded_table(spark: SparkSession, lake: SqlCatalog, namespace: str) -> None:
    """Position deletes of format v2 become vectors, to which Spark's next DELETE adds; Spark's compaction goes on."""
    name = f"lake.{namespace}.t"
    spark.sql(
        f"CREATE TABLE {name} (id bigint, p string) USING iceberg PARTITIONED BY (p) TBLPROPERTIES ("
        "'format-version' = '2', 'write.delete.mode' = 'merge-on-read', 'write.delete.granularity' = 'partition')"
    )
    for start in (0, 1000):
        spark.range(start, start + 1000, 1, 1).selectExpr("id", "'a' p").coalesce(1).writeTo(name).append()
    for remainder in range(3):
        spark.sql(f"DELETE FROM {name} WHERE id % 100 = {remainder}")
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('format-version' = '3')")
    policy = {"target_file_size_bytes": 1, "small_file_limit_bytes": 1, "close_file_cost_bytes": 0,
              "max_delete_files": 1}  # fmt: skip
    table = icesize.open(None, f"{namespace}.t", catalog=lake, policy=policy)
    left = {i for i in range(2000) if i % 100 > 2}
    report = table.rewrite_deletes()
    assert (report.files_added, report.rows, ids(spark, name)) == (2, 60, left)
    assert (len(vectors(spark, name)), spark.table(f"{name}.delete_files").count()) == (2, 2)
    assert table.rewrite_deletes().snapshot_ids == ()
    spark.sql(f"DELETE FROM {name} WHERE id = 77")
    assert ids(spark, name) == left - {77}
    assert sorted(delete.rows for delete in vectors(spark, name).values()) == [30, 31]
    assert table.verify().findings == ()
    spark.sql(f"CALL lake.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")
    assert ids(spark, name) == left - {77}
    assert vectors(spark, name) == {}
    assert table.verify().findings == ()
