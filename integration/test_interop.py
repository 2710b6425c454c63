"""icesize and Iceberg's Spark runtime on the same tables: each reads, merges and outlives what the other wrote."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from icesize import failpoints
from icesize.report import Report
from integration.streams import created, rows_of
from integration.tools import data_files, files_per_partition, local_path, operations, sized, spark_rows
from tests.support.delete_files import live_deletes
from tests.support.spark_lake import conf

WIDE = (
    "id int, flag boolean, big bigint, small float, wide double, d9 decimal(9,2), d18 decimal(18,4), "
    "d38 decimal(38,10), name string, raw binary, day date, at timestamp, local timestamp_ntz, "
    "tags array<string>, counts map<string, int>, place struct<city: string, geo: struct<x: double, y: double>>, "
    "steps array<struct<n: int, what: string>>, by_key map<string, struct<a: int>>, grid array<array<int>>"
)


def wide_row(i: int) -> tuple[Any, ...]:
    """One row of all column types; every third is null from the second column on, others hold nulls deeper down."""
    if i % 3 == 2:
        return (i, *[None] * 18)
    far = datetime(1500 if i % 2 else 2400, 1 + i % 12, 5, 23, 59, 59, 999_999)
    return (
        i, i % 2 == 0, 2**62 - i, i / 4, -i / 3, Decimal(f"-{i}.25"), Decimal(f"{i}.0001"), Decimal(f"{10**20 + i}.5"),
        f"zażółć {i} 🧊", bytes([0, 255, i]), date(1969, 12, 1 + i % 28), far.replace(tzinfo=timezone.utc), far,
        [] if i % 5 == 0 else ["a", None, str(i)], {} if i % 7 == 0 else {"k": i, "none": None},
        None if i % 4 == 0 else ("Oslo", None if i % 4 == 1 else (0.5, float(i))),
        None if i % 4 == 1 else [(i, None), None], None if i % 4 == 3 else {"s": (i,), "none": None},
        [[i], [], None],
    )  # fmt: skip


FILTERS: dict[str, Callable[[int], bool]] = {
    "d38 > 0": lambda i: True,
    "day < date'1970-01-01'": lambda i: True,
    "at < timestamp'1900-01-01'": lambda i: i % 2 == 1,
    "place.geo.y > 4": lambda i: i % 4 > 1 and i > 4,
    "name = 'zażółć 7 🧊'": lambda i: i == 7,
}


def texts(spark: SparkSession, table: str) -> list[str]:
    """All rows as JSON, which shows nulls, empty collections and years that Python's dates cannot convert."""
    options = "map('ignoreNullFields', 'false')"
    return sorted(row[0] for row in spark.sql(f"SELECT to_json(struct(*), {options}) FROM {table}").collect())


def model(spark: SparkSession, count: int) -> list[str]:
    df = spark.createDataFrame([wide_row(i) for i in range(count)], WIDE)
    return sorted(row[0] for row in df.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"})).collect())


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
def test_spark_reads_every_type_that_icesize_wrote_and_merged(
    spark: SparkSession, rest: Catalog, namespace: str, version: int
) -> None:
    """All column types, nested, null and empty, are read by Iceberg's runtime as they were written, also after merges.

    Read by Iceberg's vectorised reader and by the other one, and by filters that bounds of the merged files decide.
    """
    table = f"rest.{namespace}.t"
    spark.sql(
        f"CREATE TABLE {table} ({WIDE}) USING iceberg PARTITIONED BY (bucket(2, id)) "
        f"TBLPROPERTIES ('format-version'='{version}')"
    )
    for start in range(0, 20, 5):
        rows = spark.createDataFrame([wide_row(i) for i in range(start, start + 5)], WIDE)
        if start < 10:
            sized(spark, table).append(rows)
        else:
            rows.writeTo(table).append()
    expected = model(spark, 20)
    assert texts(spark, table) == expected
    assert sized(spark, table).compact().files_removed >= 6
    assert len(data_files(rest, f"{namespace}.t")) == 2
    for vectorised in ("true", "false"):
        with conf(spark, spark__sql__iceberg__vectorization__enabled=vectorised):
            assert texts(spark, table) == expected
            for where, holds in FILTERS.items():
                found = {row["id"] for row in spark.table(table).where(where).select("id").collect()}
                assert found == {i for i in range(20) if i % 3 != 2 and holds(i)}, where


def test_codecs_that_spark_wrote_merge_into_the_tables_own(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """Files that Spark wrote with four codecs become one, in the codec of the table; Spark reads the same rows."""
    table = f"rest.{namespace}.t"
    spark.sql(f"CREATE TABLE {table} (id bigint, s string) USING iceberg")
    for codec in ("gzip", "snappy", "uncompressed", "zstd"):
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.parquet.compression-codec'='{codec}')")
        spark.sql(f"INSERT INTO {table} SELECT id, '{codec}' FROM range(50)")
    before = spark_rows(spark, table)
    assert sized(spark, table).compact().files_removed >= 4
    assert len(data_files(rest, f"{namespace}.t")) == 1
    assert spark_rows(spark, table) == before
    assert len(before) == 200


def test_files_of_older_schemas_merge_under_the_new_one(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """Renamed, added, dropped, re-added, widened and nested columns: Spark reads the same rows before and after."""
    table = f"rest.{namespace}.t"
    spark.sql(
        f"CREATE TABLE {table} (id int, f float, d decimal(5,2), old string, gone string, "
        "s struct<a:int, b:string>, l array<struct<x:int>>, m map<string, struct<y:int>>) USING iceberg"
    )
    first = "named_struct('a', 1, 'b', 'x'), array(named_struct('x', 1), null), map('k', named_struct('y', 1))"
    spark.sql(f"INSERT INTO {table} VALUES (1, 1.5, 1.25, 'old', 'gone', {first}), (2, {', '.join(['null'] * 7)})")
    for change in (
        "ALTER COLUMN id TYPE bigint", "ALTER COLUMN f TYPE double", "ALTER COLUMN d TYPE decimal(20,2)",
        "RENAME COLUMN old TO renamed", "DROP COLUMN gone", "ADD COLUMN gone int", "RENAME COLUMN s.b TO bb",
        "ADD COLUMN s.c double", "ALTER COLUMN s.a TYPE bigint", "ALTER COLUMN l.element.x TYPE bigint",
        "ADD COLUMN l.element.z string", "ADD COLUMN m.value.w int", "ALTER COLUMN renamed FIRST",
    ):  # fmt: skip
        spark.sql(f"ALTER TABLE {table} {change}")
    second = (
        "named_struct('a', 3000000000, 'bb', 'y', 'c', 2.5D), array(named_struct('x', 3000000000, 'z', 'q')), "
        "map('k', named_struct('y', 2, 'w', 3))"
    )
    values = f"'new', 3000000000, 2.5D, 123456789012345678.25, {second}, 7"
    spark.sql(f"INSERT INTO {table} VALUES ({values})")
    sized(spark, table, max_small_files=9).append(spark.sql(f"SELECT * FROM {table} WHERE gone = 7"))
    before = texts(spark, table)
    report = sized(spark, table).compact()
    assert (report.files_removed >= 3, len(data_files(rest, f"{namespace}.t"))) == (True, 1)
    assert texts(spark, table) == before
    assert len(before) == 4
    with conf(spark, spark__sql__iceberg__vectorization__enabled="false"):
        assert texts(spark, table) == before


def with_deletes(spark: SparkSession, table: str, mode: str) -> None:
    """Three files with rows 0-119 in four partitions, of which nothing is deleted yet; deletes will be of `mode`."""
    created(spark, table)
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode'='{mode}', 'write.update.mode'='{mode}')")
    for batch in range(3):
        rows_of(spark, batch * 40).repartition(1).sortWithinPartitions("hour").writeTo(table).append()


def ids(spark: SparkSession, table: str) -> list[int]:
    return sorted(row["id"] for row in spark.table(table).select("id").collect())


def test_deletes_of_spark_are_applied(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """Data files that Spark's position deletes apply to are merged without these rows, and the delete files go."""
    table = f"rest.{namespace}.t"
    with_deletes(spark, table, "merge-on-read")
    spark.sql(f"DELETE FROM {table} WHERE id IN (0, 4)")
    assert live_deletes(rest.load_table(f"{namespace}.t"))
    report = sized(spark, table).compact()
    assert (report.rows_deleted, report.ineligible, report.partitions_touched) == (2, {}, 4)
    assert live_deletes(rest.load_table(f"{namespace}.t")) == []
    assert ids(spark, table) == [i for i in range(120) if i not in (0, 4)]
    sized(spark, table).sink("s", query_id="q").run(rows_of(spark, 200), 0)
    assert ids(spark, table) == [i for i in range(120) if i not in (0, 4)] + list(range(200, 240))


RIVALS = {
    "mor-delete": ("merge-on-read", "DELETE FROM {t} WHERE id IN (1, 41)", {1, 41}),
    "cow-delete": ("copy-on-write", "DELETE FROM {t} WHERE id IN (1, 41)", {1, 41}),
    "mor-update": ("merge-on-read", "UPDATE {t} SET id = id + 1000 WHERE id IN (1, 41)", {1, 41}),
    "partition-delete": ("copy-on-write", "DELETE FROM {t} WHERE hour = 'h1'", set(range(1, 120, 4))),
    "rewrite": (
        "copy-on-write",
        "CALL rest.system.rewrite_data_files(table => '{t}', where => 'hour = \"h1\"', "
        "options => map('rewrite-all', 'true'))",
        set(),
    ),
}


@pytest.mark.parametrize("by", ["compact", "sink"])
@pytest.mark.parametrize("rival", RIVALS)
def test_no_row_comes_back_that_spark_deleted_while_we_merged(
    spark: SparkSession, rest: Catalog, namespace: str, rival: str, by: str
) -> None:
    """Spark changes a partition between our writing and our commit: rows are exact, and groups of files that it rewrote
    are dropped. Rows that it deleted by position are deleted in the new files."""
    table = f"rest.{namespace}.t"
    mode, statement, deleted = RIVALS[rival]
    with_deletes(spark, table, mode)
    with failpoints.armed("files-written", lambda: spark.sql(statement.format(t=table))):
        if by == "compact":
            report: Report = sized(spark, table).compact()
        else:
            report = sized(spark, table, max_small_files=2).sink("s", query_id="q").run(rows_of(spark, 200), 0)
    updated = sorted(i + 1000 for i in deleted) if rival == "mor-update" else []
    added = list(range(200, 240)) if by == "sink" else []
    assert ids(spark, table) == [i for i in range(120) if i not in deleted] + added + updated
    assert report.operations == (("append", "replace") if by == "sink" else ("replace",))
    follows = mode == "merge-on-read"
    assert (len(report.conflicts), report.files_removed) == ((0, 12) if follows else (1, 9))
    # a later call, on the state that the rival left, converges
    sized(spark, table).compact()
    kept = [i for i in range(120) if i not in deleted] + added + updated
    assert ids(spark, table) == kept
    assert sized(spark, table).compact().snapshot_ids == ()


@pytest.mark.parametrize("by", ["compact", "sink"])
def test_a_delete_between_staging_and_the_swap_stays(
    spark: SparkSession, rest: Catalog, namespace: str, by: str
) -> None:
    """A delete by Spark after our snapshots were staged costs the first swap; the next attempt has the deletes, too."""
    table = f"rest.{namespace}.t"
    with_deletes(spark, table, "merge-on-read")
    rivals = iter([f"DELETE FROM {table} WHERE id IN (1, 41)", f"INSERT INTO {table} VALUES (500, 'h2', 0)"])

    def rival() -> None:
        if statement := next(rivals, None):
            spark.sql(statement)

    with failpoints.armed("before-swap", rival):
        if by == "compact":
            report = sized(spark, table).compact()
        else:
            report = sized(spark, table, max_small_files=2).sink("s", query_id="q").run(rows_of(spark, 200), 0)
    added = list(range(200, 240)) if by == "sink" else []
    assert ids(spark, table) == [i for i in range(120) if i not in (1, 41)] + added + [500]
    # two losses in a row: a batch gives its merges up, a compaction goes on
    assert report.operations == (("append",) if by == "sink" else ("replace",))
    assert ["other commits kept coming first" in conflict for conflict in report.conflicts] == [True] * (by == "sink")
    metadata = rest.load_table(f"{namespace}.t").metadata
    folder = Path(local_path(metadata.location)) / "metadata"
    assert {p.name for p in folder.glob("snap-*")} == {s.manifest_list.rsplit("/", 1)[1] for s in metadata.snapshots}


def test_rivals_that_change_no_victim_cost_nothing(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """Appends, deletes in other partitions' files and rewritten manifests while we merge drop no group."""
    table = f"rest.{namespace}.t"
    with_deletes(spark, table, "merge-on-read")
    spark.sql(f"INSERT INTO {table} VALUES (500, 'other', 0), (501, 'other', 0)")

    def rivals() -> None:
        spark.sql(f"DELETE FROM {table} WHERE id = 500")
        spark.sql(f"INSERT INTO {table} VALUES (502, 'h1', 0)")
        spark.sql(f"CALL rest.system.rewrite_manifests('{table}')")

    with failpoints.armed("files-written", rivals):
        report = sized(spark, table).compact(where="hour != 'other'")
    assert report.conflicts == ()
    assert report.files_removed == 12
    assert ids(spark, table) == [*range(120), 501, 502]


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
def test_manifests_of_both_outlive_each_other(spark: SparkSession, rest: Catalog, namespace: str, version: int) -> None:
    """Our commits between Spark's append, MERGE, rewrite_manifests, rewrite_data_files and expiry: rows stay exact."""
    table = created(spark, f"rest.{namespace}.t", version)
    call = f"CALL rest.system.{{}}(table => '{namespace}.t'{{}})"
    expected: set[int] = set()
    sink = sized(spark, table).sink("s", query_id="q")
    for turn, batch in enumerate(range(0, 15, 3)):
        for each in range(3):
            sink.run(rows_of(spark, (batch + each) * 40), batch + each)
            expected |= set(range((batch + each) * 40, (batch + each) * 40 + 40))
        if turn == 0:
            rows_of(spark, 5_000).writeTo(table).append()
            expected |= set(range(5_000, 5_040))
        elif turn == 1:
            spark.sql(
                f"MERGE INTO {table} t USING (SELECT id, 'h1' AS hour, 0.5D AS v FROM range(5, 9000, 4000)) c "
                "ON t.id = c.id WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *"
            )
            expected = (expected - {5}) | {4_005, 8_005}
        elif turn == 2:
            spark.sql(call.format("rewrite_manifests", ""))
        elif turn == 3:
            spark.sql(call.format("rewrite_data_files", ", options => map('rewrite-all', 'true')"))
        assert ids(spark, table) == sorted(expected)
    sized(spark, table).compact()
    spark.sql(f"CALL rest.system.expire_snapshots(table => '{namespace}.t', older_than => timestamp'9999-01-01')")
    assert len(operations(rest, f"{namespace}.t")) == 1
    assert ids(spark, table) == sorted(expected)
    sink.run(rows_of(spark, 600), 15)
    spark.sql(f"DELETE FROM {table} WHERE id < 40")
    expected = {i for i in expected | set(range(600, 640)) if i >= 40}
    assert ids(spark, table) == sorted(expected)
    assert sorted(rest.load_table(f"{namespace}.t").scan().to_arrow()["id"].to_pylist()) == sorted(expected)
    entries = spark.sql(f"SELECT sum(record_count) FROM {table}.files").first()
    assert entries is not None
    assert entries[0] == len(expected)


def test_the_sqlite_catalog_shared_with_spark(spark: SparkSession, lake: Catalog, namespace: str) -> None:
    """Through Spark's JDBC catalog settings: batches, merges and Spark's own writes on one table."""
    table = created(spark, f"lake.{namespace}.t")
    sink = sized(spark, table).sink("s", query_id="q")
    for batch in range(3):
        sink.run(rows_of(spark, batch * 80), batch)
        rows_of(spark, batch * 80 + 40).writeTo(table).append()
    assert sized(spark, table).compact().operations == ("replace",)
    assert ids(spark, table) == list(range(240))
    assert set(files_per_partition(lake, f"{namespace}.t").values()) == {1}


def test_partition_evolution_by_spark_in_the_middle_of_a_batch(
    spark: SparkSession, rest: Catalog, namespace: str
) -> None:
    """A partition field or column that Spark adds while a batch is written drops its merges, never its rows."""
    table = f"rest.{namespace}.t"
    with_deletes(spark, table, "copy-on-write")
    sink = sized(spark, table, max_small_files=2).sink("s", query_id="q")
    for batch, change in enumerate(("ADD PARTITION FIELD bucket(2, id)", "ADD COLUMN extra string")):
        with failpoints.armed("files-written", partial(spark.sql, f"ALTER TABLE {table} {change}")):
            report = sink.run(rows_of(spark, 200 + batch * 40), batch)
        assert report.operations == ("append",)
    report = sink.run(rows_of(spark, 280), 2)
    assert report.operations[0] == "append"
    assert ids(spark, table) == [*range(120), *range(200, 320)]
    assert spark.table(table).columns == ["id", "hour", "v", "extra"]
