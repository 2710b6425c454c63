"""`read_version`: rows of a partition as they were, under the columns that the table has now."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    IntegerType,
    LongType,
    NestedField,
    StringType,
)
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from icesize.errors import TableError
from icesize.planning.files import PartitionKey
from icesize.spark.engine.read_version import read_version
from icesize.table.manifests.store import ManifestStore
from icesize.table.past.versions import versions
from icesize.table.state.handle import TableHandle
from icesize.table.state.live_files import files_at
from icesize.table.state.naming import known_snapshot
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.spark_lake import ALL_TYPES, Lake, counted, events, rows_of
from tests.support.v3_tables import with_document

H0 = PartitionKey(0, ("h0",))


def read(spark: SparkSession, lake: Lake, partition: PartitionKey, snapshot_id: int, name: str = "events") -> DataFrame:
    return read_version(spark, TableHandle(lake.catalog, ("db", name)).load(), partition, snapshot_id)


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    return rows_of(df.toArrow())


def snapshot_ids(table: Table) -> list[int]:
    return [s.snapshot_id for s in table.metadata.snapshots]


def test_every_version_has_the_rows_that_its_snapshot_shows(spark: SparkSession, lake: Lake) -> None:
    """Of each partition, by PyIceberg's own scan; also those whose files were merged since, and the empty one."""
    lake.create()
    table = lake.open(spark)
    for i in range(5):
        table.append(counted(spark, events(range(i * 10, i * 10 + 10), hours=2)))
    table.compact()
    lake.table().delete(EqualTo("hour", "h0"))
    loaded = lake.table()
    found = versions(loaded.metadata, loaded.io, ManifestStore())
    assert {v.operation for v in found} == {"append", "append+replace", "replace", "delete"}
    assert len([v for v in found if v.key == H0]) == 7
    for version in found:
        chosen = EqualTo("hour", version.key.values[0])
        expected = loaded.scan(chosen, snapshot_id=version.snapshot_id).to_arrow()
        df = read(spark, lake, version.key, version.snapshot_id)
        assert rows(df) == rows_of(expected)
        assert df.count() == version.rows
    assert rows(read(spark, lake, PartitionKey(0, ("never",)), found[0].snapshot_id)) == []


def test_columns_that_came_later_have_their_initial_default(spark: SparkSession, lake: Lake) -> None:
    """A required one, too; the write default is for new rows only."""
    lake.create()
    lake.open(spark).append(counted(spark, events([1])))
    (before,) = snapshot_ids(lake.table())
    added = {"id": 9, "name": "must", "type": "long", "required": True, "initial-default": 8, "write-default": 9}

    def with_column(document: dict[str, Any]) -> None:
        schema = document["schemas"][0]
        document["schemas"].append({**schema, "schema-id": 1, "fields": [*schema["fields"], added]})
        document["current-schema-id"], document["last-column-id"] = 1, 9

    with_document(lake.catalog, with_column, "db.events")
    assert [row[-1] for row in rows(read(spark, lake, H0, before))] == [8]


def test_nothing_is_read_before_an_action_and_files_are_spread(spark: SparkSession, lake: Lake) -> None:
    """One task for each slot, the files dealt out among them; each file is opened by one task only."""
    lake.create(properties={"icesize.policy.max-small-files": "9"})
    table = lake.open(spark, max_small_files=9)
    for i in range(5):
        table.append(counted(spark, events([i])))
    head = snapshot_ids(lake.table())[-1]
    df = read(spark, lake, H0, head)
    assert df.rdd.getNumPartitions() == 2
    assert sorted(len(part) for part in df.rdd.glom().collect()) == [2, 3]
    assert sorted(row["id"] for row in df.collect()) == [0, 1, 2, 3, 4]
    assert df.select("text").where("id = 3").count() == 1


def test_columns_are_those_of_now(spark: SparkSession, lake: Lake) -> None:
    """Old files under a schema that has since gained, renamed, widened, moved and lost columns."""
    schema = Schema(
        NestedField(1, "id", IntegerType(), required=True),
        NestedField(2, "hour", StringType()),
        NestedField(3, "text", StringType()),
        NestedField(4, "gone", StringType()),
    )
    lake.create(schema=schema)
    table = lake.open(spark)
    df = spark.createDataFrame(
        [(1, "h0", "x", "y"), (2, "h0", None, "z")], "id int, hour string, text string, gone string"
    )
    table.append(df)
    old = snapshot_ids(lake.table())[-1]
    with lake.table().update_schema(allow_incompatible_changes=True) as update:
        update.add_column("added", StringType())
        update.rename_column("text", "words")
        update.update_column("id", LongType())
        update.delete_column("gone")
        update.move_first("hour")
    table.append(spark.createDataFrame([(3, "h0", "w", "a")], "id long, hour string, words string, added string"))
    table.compact()
    now = read(spark, lake, H0, old)
    assert [(f.name, f.dataType.simpleString(), f.nullable) for f in now.schema.fields] == [
        ("hour", "string", True),
        ("id", "bigint", True),
        ("words", "string", True),
        ("added", "string", True),
    ]
    assert rows(now) == [("h0", 1, "x", None), ("h0", 2, None, None)]
    newest = snapshot_ids(lake.table())[-1]
    assert rows(read(spark, lake, H0, newest)) == [("h0", 1, "x", None), ("h0", 2, None, None), ("h0", 3, "w", "a")]


ALL_TYPES_SQL = (
    "id long, hour string, day date, at timestamp_ntz, attz timestamp, money decimal(20,3), key string, fixed binary, "
    "bytes binary, double double, nested array<struct<key: string, m: map<string, binary>>>"
)


def test_types_are_those_that_spark_gives_the_table(spark: SparkSession, lake: Lake) -> None:
    """Every type comes back from the table's files as it was given, UUIDs as text, nested ones too, and NULL."""
    lake.create(schema=ALL_TYPES)
    key = "00000000-0000-0000-0000-00000000000a"
    given = spark.sql(
        f"""
        SELECT 1L id, 'h0' hour, DATE'2020-02-29' day, TIMESTAMP_NTZ'1900-01-01 00:00:00.000001' at,
            TIMESTAMP'2020-01-01 00:00:00+02:00' attz, CAST(1.5 AS DECIMAL(20,3)) money, '{key}' key, X'0102' fixed,
            X'' bytes, CAST('NaN' AS DOUBLE) double, array(struct('{key}' AS key, map('k', X'07') AS m)) nested
        UNION ALL SELECT 2L, 'h0', NULL, NULL, NULL, NULL, NULL, NULL, X'FF', NULL, NULL
        """
    )
    given = given.to(spark.createDataFrame([], ALL_TYPES_SQL).schema).coalesce(1)
    lake.open(spark).append(given)
    found = read(spark, lake, H0, snapshot_ids(lake.table())[-1])
    assert found.schema == spark.createDataFrame([], ALL_TYPES_SQL).schema
    assert repr(rows(found)) == repr(rows(given)), "by their text, as one is NaN"
    (stored,) = lake.table().scan(EqualTo("id", 1)).to_arrow().to_pylist()
    assert stored["key"] == UUID(key)


@pytest.mark.smoke
def test_an_unpartitioned_table_is_one_partition(spark: SparkSession, lake: Lake) -> None:
    """Its versions are the whole table's."""
    lake.create(by={})
    table = lake.open(spark)
    for i in range(3):
        table.append(counted(spark, events([i], hours=3)))
    ids = snapshot_ids(lake.table())
    key = PartitionKey(0)
    assert [len(rows(read(spark, lake, key, i))) for i in ids] == [1, 2, 3]
    assert rows(read(spark, lake, key, ids[-1])) == lake.rows()


def test_versions_of_an_older_partition_spec(spark: SparkSession, lake: Lake) -> None:
    """Files of a spec that is no longer the table's are read, with NULL where their partition value is NULL."""
    lake.create()
    table = lake.open(spark)
    table.append(spark.createDataFrame([(1, None, "x")], "id long, hour string, text string"))
    with lake.table().update_spec() as update:
        update.add_identity("text")
    table.append(counted(spark, events([0])))
    assert rows(read(spark, lake, PartitionKey(0, (None,)), snapshot_ids(lake.table())[-1])) == [(1, None, "x")]


def test_a_file_that_is_gone_is_named(spark: SparkSession, lake: Lake) -> None:
    """An action fails, and says which file it was and why that may be."""
    lake.create()
    lake.open(spark).append(counted(spark, events([1])))
    (file,) = lake.files()
    df = read(spark, lake, H0, snapshot_ids(lake.table())[-1])
    Path(file.file_path.removeprefix("file://")).unlink()
    with pytest.raises(PySparkException) as raised:
        df.collect()
    assert f"icesize.errors.TableError: Cannot read {file.file_path}: " in str(raised.value)
    assert "when its snapshot has expired, read another version" in str(raised.value)


def test_a_file_of_another_length_than_its_manifest_says(spark: SparkSession, lake: Lake) -> None:
    """Rows that nobody vouches for are an error, not a result."""
    lake.create()
    table = lake.open(spark, max_small_files=9)
    table.append(counted(spark, events([1])))
    table.append(counted(spark, events([2, 3])))
    one, two = sorted(lake.files(), key=lambda f: f.record_count)
    paths = [Path(f.file_path.removeprefix("file://")) for f in (one, two)]
    paths[0].write_bytes(paths[1].read_bytes())
    with pytest.raises(PySparkException, match="it has 2 rows, its manifest records 1, check the table's metadata"):
        read(spark, lake, H0, snapshot_ids(lake.table())[-1]).collect()


def test_pending_deletes_are_applied(spark: SparkSession, lake: Lake) -> None:
    """Rows that were deleted by position and by equality do not come back; versions before the delete have them."""
    lake.create("t")
    lake.open(spark, "t").append(counted(spark, events([1, 2, 3])))
    table = lake.table("t")
    (before,) = snapshot_ids(table)
    (input_file,) = files_at(table.metadata, table.io, known_snapshot(table.metadata, before), H0)
    delete_rows(lake.catalog, input_file)
    delete_ids(lake.catalog, input_file, [3])
    after = snapshot_ids(lake.table("t"))[-1]
    found = rows(read(spark, lake, H0, after, "t"))
    assert found == rows_of(events([2]))
    assert len(rows(read(spark, lake, H0, before, "t"))) == 3


def test_an_unknown_snapshot_is_refused_at_once(spark: SparkSession, lake: Lake) -> None:
    """Before anything is read."""
    lake.create()
    lake.open(spark).append(counted(spark, events([1])))
    with pytest.raises(TableError, match="Cannot find snapshot 5: it has expired or is of another table"):
        read(spark, lake, H0, 5)
