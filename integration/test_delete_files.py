"""Delete files that tests write without Spark are those that Spark reads, in each of their kinds."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession

import icesize
from icesize.planning.files import PartitionKey
from integration.tools import spark_rows
from tests.support.delete_files import delete_equal, delete_positions, live_deletes, upsert
from tests.support.tables import check, live_paths, local

ROWS: list[tuple[Any, ...]] = [
    *((i, "ab"[i % 2], None if i % 5 == 0 else {"a": i, "b": f"b{i}"}) for i in range(20)),
    (None, "a", None),
]
A = PartitionKey(0, ("a",))


def made(spark: SparkSession, lake: SqlCatalog, namespace: str, partitioned: str = "p") -> Table:
    """ROWS in two commits, each a file for each partition."""
    by = f"PARTITIONED BY ({partitioned})" if partitioned else ""
    name = f"lake.{namespace}.t"
    spark.sql(f"CREATE TABLE {name} (id bigint, p string, s struct<a: int, b: string>) USING iceberg {by}")
    for part in (ROWS[:10], ROWS[10:]):
        df = spark.createDataFrame(part, "id bigint, p string, s struct<a: int, b: string>")
        df.coalesce(1).writeTo(name).append()
    return lake.load_table(f"{namespace}.t")


def ids(spark: SparkSession, table: Table) -> Counter[int | None]:
    check(table)
    return Counter(i for (i,) in spark_rows(spark, f"SELECT id FROM lake.{'.'.join(table.name())}"))


@pytest.mark.parametrize("granularity", ["partition", "file"])
def test_positions(
    spark: SparkSession, lake: SqlCatalog, namespace: str, granularity: Literal["partition", "file"]
) -> None:
    """Rows of two files of a partition are deleted, by one delete file or by one for each of them."""
    table = made(spark, lake, namespace)
    files = [task.file.file_path for task in table.scan(row_filter="p = 'a'").plan_files()]
    table = delete_positions(table, {path: [0, 3] for path in files}, granularity=granularity)
    deletes = [entry.data_file for entry in live_deletes(table)]
    assert len(deletes) == (1 if granularity == "partition" else 2)
    assert all(bool(file.lower_bounds) == (granularity == "file") for file in deletes)
    assert ids(spark, table) == Counter({row[0] for row in ROWS} - {0, 6, 10, 16})
    named = spark_rows(spark, f"SELECT referenced_data_file f FROM lake.{namespace}.t.delete_files")
    assert {path for (path,) in named} == ({None} if granularity == "partition" else set(files))


CASES: list[tuple[list[str], list[tuple[Any, ...]], str, set[int | None]]] = [
    (["id"], [(2,), (3,), (99,)], "p", {2}),
    (["id"], [(2,), (3,), (99,)], "", {2, 3}),
    (["id", "p"], [(2, "a"), (4, "b"), (3, "b")], "", {2, 3}),
    (["id", "p"], [(2, "a"), (None, "a"), (3, None)], "p", {2, None}),
]


@pytest.mark.parametrize(("columns", "rows", "by", "deleted"), CASES)
def test_equality(
    spark: SparkSession,
    lake: SqlCatalog,
    namespace: str,
    columns: list[str],
    rows: list[tuple[Any, ...]],
    by: str,
    deleted: set[int | None],
) -> None:
    """Rows equal in all columns are deleted, null being equal to null, in a partition or, without any, everywhere."""
    table = delete_equal(made(spark, lake, namespace, by), columns, rows, A if by else None, files=len(rows))
    assert len(live_deletes(table)) == len(rows)
    assert ids(spark, table) == Counter({row[0] for row in ROWS} - deleted)


def test_equality_of_a_field_in_a_struct(spark: SparkSession, lake: SqlCatalog, namespace: str) -> None:
    """As Iceberg's Java library reads it; in Spark 4.1 the 1.11.0 release deletes other rows for other projections."""
    table = delete_equal(made(spark, lake, namespace), ["id", "s.a"], [(2, 2), (4, 5)], A)
    assert spark._jvm is not None
    iceberg = spark._jvm.org.apache.iceberg
    loaded = iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, f"lake.{'.'.join(table.name())}")
    rows, found = iceberg.data.IcebergGenerics.read(loaded).build(), set()
    reading = rows.iterator()
    while reading.hasNext():
        found.add(reading.next().getField("id"))
    rows.close()
    assert found == {row[0] for row in ROWS} - {2}


def test_upsert(spark: SparkSession, lake: SqlCatalog, namespace: str) -> None:
    """Written rows replace older ones of their keys, and within the commit the last one of a key stays."""
    table = made(spark, lake, namespace)
    new = [{"id": i, "p": "a", "s": {"a": 100 + n, "b": ""}} for n, i in enumerate((2, 4, 2, 40, 3))]
    table = upsert(table, pa.Table.from_pylist(new, schema=table.schema().as_arrow()), ["p", "id"])
    found = spark_rows(spark, f"SELECT id, s.a FROM lake.{namespace}.t WHERE p = 'a' OR id = 3")
    older = {i: a["a"] if a else None for i, p, a in ROWS if p == "a"} | {2: 102, 4: 101, 40: 103}
    wanted = [*older.items(), (3, 3), (3, 104)]
    assert found == sorted(wanted, key=repr)
    assert len(live_paths(table)) == 5
    assert ids(spark, table) == Counter([*(row[0] for row in ROWS), 40, 3])


CONVERTING = {
    "target_file_size_bytes": 1, "small_file_limit_bytes": 1, "close_file_cost_bytes": 0, "delete_ratio_threshold": 1,
}  # fmt: skip
"""Every file is well sized, one more file costs nothing, and few rows may be left in a file."""


def test_delete_files_that_were_put_together(spark: SparkSession, lake: SqlCatalog, namespace: str) -> None:
    """Spark, Iceberg's Java library and PyIceberg see the rows that were there before, and Spark's own statements,
    which read and write the manifests again, go on from there."""
    table = made(spark, lake, namespace)
    files = [task.file.file_path for task in table.scan(row_filter="p = 'a'").plan_files()]
    for number in range(7):
        table = delete_equal(table, ["id"], [(2 * number,)], A)
    table = delete_positions(table, {path: [4] for path in files})
    before = ids(spark, table)
    report = icesize.open(None, f"{namespace}.t", catalog=lake, policy=CONVERTING).rewrite_deletes()
    assert (report.operations, report.files_removed, report.files_added) == (("delete",), 8, 2)
    table = lake.load_table(f"{namespace}.t")
    assert ids(spark, table) == before
    assert Counter(table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()) == before
    name = f"lake.{namespace}.t"
    listed = spark_rows(spark, f"SELECT content, referenced_data_file, record_count FROM {name}.delete_files")
    assert {(content, path) for content, path, _ in listed} == {(1, path) for path in files}
    positions = spark_rows(spark, f"SELECT file_path, pos FROM {name}.position_deletes")
    assert len(positions) == sum(rows for _, _, rows in listed)
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    spark.sql(f"DELETE FROM {name} WHERE id = 14")
    every = "options => map('rewrite-all', 'true')"
    spark.sql(f"CALL lake.system.rewrite_position_delete_files(table => '{name}', {every})")
    spark.sql(f"CALL lake.system.rewrite_manifests('{name}', false)")
    before.pop(14)
    assert ids(spark, lake.load_table(f"{namespace}.t")) == before
    spark.sql(f"CALL lake.system.rewrite_data_files(table => '{name}', {every})")
    assert ids(spark, lake.load_table(f"{namespace}.t")) == before


def test_a_compaction_that_began_before_a_delete_fails(spark: SparkSession, lake: SqlCatalog, namespace: str) -> None:
    """Iceberg's, under the number it began with: the delete by equality that would have hit what it wrote is gone, and
    its positions are those of the older files."""
    table = made(spark, lake, namespace, "")
    old = table.metadata.current_snapshot()
    assert old is not None
    assert spark._jvm is not None
    jvm = spark._jvm.org.apache.iceberg
    loaded = jvm.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, f"lake.{namespace}.t")
    planned = loaded.newScan().planFiles()
    files = [task.file() for task in planned.iterator()]
    planned.close()
    rewrite = loaded.newRewrite().validateFromSnapshot(old.snapshot_id).dataSequenceNumber(old.sequence_number)
    for file in files:
        copy = Path(local(file.location()))
        shutil.copyfile(copy, copy.with_name(f"again-{copy.name}"))
        again = str(file.location()).replace(copy.name, f"again-{copy.name}")
        rewrite = rewrite.deleteFile(file)
        rewrite = rewrite.addFile(jvm.DataFiles.builder(loaded.spec()).copy(file).withPath(again).build())
    for number in range(7):
        table = delete_equal(table, ["id"], [(2 * number,)])
    before = ids(spark, table)
    report = icesize.open(None, f"{namespace}.t", catalog=lake, policy=CONVERTING).rewrite_deletes()
    assert (report.operations, report.files_removed) == (("delete",), 7)
    with pytest.raises(Py4JJavaError, match="found new position delete for replaced data file"):
        rewrite.commit()
    assert ids(spark, lake.load_table(f"{namespace}.t")) == before


@pytest.mark.parametrize("kind", ["delete", "upsert"])
def test_what_stream_readers_make_of_it(spark: SparkSession, lake: SqlCatalog, namespace: str, kind: str) -> None:
    """Where equality deletes go, the snapshot is of the operation that brought them: a reader that was told to skip it
    goes on, and reads each row that comes after it once."""
    table = made(spark, lake, namespace, "")
    name = f"lake.{namespace}.t"
    for number in range(7):
        if kind == "delete":
            table = delete_equal(table, ["id"], [(2 * number,)])
        else:
            new = [{"id": 2 * number, "p": "a", "s": None}]
            table = upsert(table, pa.Table.from_pylist(new, schema=table.schema().as_arrow()), ["id"])
    option = f"streaming-skip-{'delete' if kind == 'delete' else 'overwrite'}-snapshots"
    found = list[int | None]()

    def read(folder: Path) -> None:
        def take(df: DataFrame, batch: int) -> None:
            found.extend(row.id for row in df.select("id").collect())

        stream = spark.readStream.format("iceberg").option(option, "true").load(name)
        query = stream.writeStream.option("checkpointLocation", str(folder)).trigger(availableNow=True)
        query.foreachBatch(take).start().awaitTermination()

    folder = Path(local(table.location())) / "checkpoint"
    read(folder)
    assert Counter(found) == Counter(row[0] for row in ROWS)
    report = icesize.open(None, f"{namespace}.t", catalog=lake, policy=CONVERTING).rewrite_deletes()
    assert report.operations == (("delete",) if kind == "delete" else ("overwrite",))
    spark.createDataFrame([(500, "a", None)], "id bigint, p string, s struct<a: int, b: string>").writeTo(name).append()
    found.clear()
    read(folder)
    assert found == [500]
