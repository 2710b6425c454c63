"""Partition values: twin tables, one written by Iceberg's own Spark writer, one by icesize, are partitioned alike."""

from __future__ import annotations

from collections import Counter

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, VoidTransform
from pyiceberg.types import LongType, NestedField, StringType, UUIDType
from pyspark.sql import DataFrame, SparkSession

from icesize.errors import SchemaMismatch
from integration.tools import data_files, rows_per_partition, sized, spark_rows
from tests.support.spark_lake import conf

INTS = ["0", "1", "-1", "9", "10", "-10", "-11", "34", "2147483647", "-2147483647", "NULL"]
LONGS = ["0", "1", "-1", "99", "-100", "-101", "34L", "9223372036854775807L", "-9223372036854775807L", "NULL"]
DECIMALS = ["0", "14.20", "-14.20", "10.65", "-10.65", "-0.05", "9999999.99", "-9999899.99", "0.01", "NULL"]
WIDE = ["0", "14.20", "-14.20", "99999999999999999999999999999999.99", "-12345678901234567890.12", "0.1", "NULL"]
STRINGS = ["''", "'iceberg'", "'ice'", "'zażółć'", "'日本語テキスト'", "'🧊🧊🧊🧊'", "'a/b=c d%'", "' x '", "NULL"]
BINARIES = ["X''", "X'00010203'", "X'FFFEFD'", "X'00'", "X'6963656265726700'", "NULL"]
DATES = ["0001-01-01", "1582-10-15", "1899-12-31", "1969-12-31", "1970-01-01", "2000-02-29", "2026-11-20", "9999-12-31"]
TIMES = [
    "0001-01-02 00:00:00", "1582-10-04 23:59:59.999999", "1899-12-31 23:59:59.5", "1969-12-31 23:59:59.999999",
    "1969-12-31 00:00:00", "1970-01-01 00:00:00", "1970-01-01 00:59:59.999999", "2000-02-29 12:30:00",
    "2024-03-31 02:30:00", "2026-11-20 08:00:00.000001", "9999-12-30 23:59:59.999999",
]  # fmt: skip
FLOATS = ["0.0", "-0.0", "1.5", "-1.5", "1e30", "NULL"]

DATE = [f"date'{d}'" for d in DATES] + ["NULL"]
ZONED = [f"timestamp'{t} UTC'" for t in TIMES] + ["NULL"]
LOCAL = [f"timestamp_ntz'{t}'" for t in TIMES] + ["NULL"]

COLUMNS: dict[str, tuple[str, list[str]]] = {
    "b": ("boolean", ["true", "false", "NULL"]),
    "i": ("int", INTS),
    "l": ("bigint", LONGS),
    "d": ("decimal(9,2)", DECIMALS),
    "w": ("decimal(38,2)", WIDE),
    "s": ("string", STRINGS),
    "x": ("binary", BINARIES),
    "f": ("float", FLOATS),
    "g": ("double", FLOATS),
    "day": ("date", DATE),
    "z": ("timestamp", ZONED),
    "n": ("timestamp_ntz", LOCAL),
}
ROWS = 24


def values(spark: SparkSession, kinds: dict[str, tuple[str, list[str]]]) -> DataFrame:
    """24 rows in which each column goes through its values, null among them, at its own pace."""
    rows = (
        "(" + ", ".join(
            f"cast({literals[(row * (1 + at % 3) + at) % len(literals)]} as {kind})"
            for at, (kind, literals) in enumerate(kinds.values())
        ) + ")"
        for row in range(ROWS)
    )  # fmt: skip
    return spark.sql(f"SELECT * FROM VALUES {', '.join(rows)} AS t({', '.join(kinds)})")


def assert_twins(spark: SparkSession, rest: Catalog, namespace: str, columns: str, spec: str, df: DataFrame) -> None:
    """The same rows through both writers: the same values of each partition field, and the same partitions."""
    for name in ("ours", "theirs"):
        spark.sql(f"CREATE TABLE rest.{namespace}.{name} ({columns}) USING iceberg PARTITIONED BY ({spec})")
    assert_same(spark, rest, namespace, df)


def assert_same(spark: SparkSession, rest: Catalog, namespace: str, df: DataFrame) -> None:
    df.writeTo(f"rest.{namespace}.theirs").append()
    report = sized(spark, f"rest.{namespace}.ours").append(df)
    ours = rows_per_partition(data_files(rest, f"{namespace}.ours"))
    theirs = rows_per_partition(data_files(rest, f"{namespace}.theirs"))
    fields = [f.name for f in rest.load_table(f"{namespace}.ours").spec().fields]
    for at, field in enumerate(fields):
        assert {field: _by_value(ours, at)} == {field: _by_value(theirs, at)}
    assert ours == theirs
    assert sum(ours.values()) == report.rows == ROWS
    assert report.files_added == len(ours)
    difference = spark.sql(
        f"SELECT count(*) FROM (SELECT * FROM rest.{namespace}.ours EXCEPT ALL SELECT * FROM rest.{namespace}.theirs)"
    )
    assert difference.first()[0] == 0  # type: ignore[index]


def _by_value(counts: Counter[tuple[object, ...]], at: int) -> Counter[object]:
    found: Counter[object] = Counter()
    for key, rows in counts.items():
        found[key[at]] += rows
    return found


def described(kinds: dict[str, tuple[str, list[str]]]) -> str:
    return ", ".join(f"{name} {kind}" for name, (kind, _) in kinds.items())


@pytest.mark.slow
def test_identity_of_every_type(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """Identity partitions of each type that Spark writes are Iceberg's own, null and -0.0 included."""
    assert_twins(spark, rest, namespace, described(COLUMNS), ", ".join(COLUMNS), values(spark, COLUMNS))


def test_bucket_of_every_type(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """Bucket numbers of each type are Iceberg's own, on both sides of 1970 and of zero, null included."""
    kinds = {name: COLUMNS[name] for name in ("i", "l", "d", "w", "s", "x", "day", "z", "n")}
    spec = ", ".join(f"bucket({16 + at}, {name})" for at, name in enumerate(kinds))
    assert_twins(spark, rest, namespace, described(kinds), spec, values(spark, kinds))


def test_truncate_of_every_type(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """Truncated values are Iceberg's own: towards minus infinity, by code points, by bytes, by unscaled decimals."""
    kinds = {name: COLUMNS[name] for name in ("i", "l", "d", "w", "s", "x")}
    spec = ", ".join(f"truncate({width}, {name})" for width, name in zip((10, 100, 50, 7, 3, 2), kinds, strict=True))
    assert_twins(spark, rest, namespace, described(kinds), spec, values(spark, kinds))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_calendar_of_every_type(spark: SparkSession, rest: Catalog, namespace: str, zone: str) -> None:
    """Years, months, days and hours are Iceberg's own, before 1970 and in any session time zone."""
    kinds = {
        f"{name}_{unit}": COLUMNS[name]
        for name in ("day", "z", "n")
        for unit in ("years", "months", "days", "hours")
        if (name, unit) != ("day", "hours")
    }
    spec = ", ".join(f"{name.split('_')[1]}({name})" for name in kinds)
    with conf(spark, spark__sql__session__timeZone=zone):
        assert_twins(spark, rest, namespace, described(kinds), spec, values(spark, kinds))


def test_uuid_partitions(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """UUIDs, strings to Spark, land in Iceberg's own identity and bucket partitions."""
    schema = Schema(NestedField(1, "u", UUIDType()), NestedField(2, "v", UUIDType()), NestedField(3, "id", LongType()))
    spec = PartitionSpec(
        PartitionField(1, 1000, IdentityTransform(), "u"), PartitionField(2, 1001, BucketTransform(7), "v_bucket")
    )
    for name in ("ours", "theirs"):
        rest.create_table(f"{namespace}.{name}", schema, partition_spec=spec)
    texts = [f"'{'%08x' % (i * 99_999_989)}-e7c4-4e11-9a3b-00000000000{i}'" for i in range(6)]
    kinds = {"u": ("string", [*texts, "NULL"]), "v": ("string", [*texts, "NULL"]), "id": ("bigint", ["1"])}
    assert_same(spark, rest, namespace, values(spark, kinds))


def test_void_and_nested_sources(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """A dropped field of a v1 spec stays as void, and a partition source may lie inside of a struct."""
    for name in ("ours", "theirs"):
        table = f"rest.{namespace}.{name}"
        spark.sql(
            f"CREATE TABLE {table} (id bigint, p struct<city:string, at:timestamp>) USING iceberg "
            "PARTITIONED BY (id, p.city, days(p.at)) TBLPROPERTIES ('format-version'='1')"
        )
        spark.sql(f"ALTER TABLE {table} DROP PARTITION FIELD id")
    fields = rest.load_table(f"{namespace}.ours").spec().fields
    assert [type(f.transform) for f in fields][:1] == [VoidTransform]
    nested = "CASE WHEN id % 5 = 0 THEN NULL ELSE struct({} AS city, {} AS at) END AS p"
    city = "CASE WHEN id % 3 = 0 THEN NULL ELSE concat('c', id % 4) END"
    time = "CASE WHEN id % 7 = 0 THEN NULL ELSE timestamp_seconds((id - 12) * 40000) END"
    df = spark.range(ROWS).selectExpr("id", nested.format(city, time))
    assert_same(spark, rest, namespace, df)


def test_iceberg_functions_agree_with_our_partitions(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """What `system.bucket`, `truncate`, `years`, `months`, `days`, `hours` say of rows is where icesize put them."""
    kinds = {"i": COLUMNS["i"], "s": COLUMNS["s"], "w": COLUMNS["w"], **{f"z{n}": COLUMNS["z"] for n in range(4)}}
    calls = ["bucket(16, i)", "truncate(3, s)", "truncate(7, w)", "years(z0)", "months(z1)", "days(z2)", "hours(z3)"]
    table = f"rest.{namespace}.t"
    spark.sql(f"CREATE TABLE {table} ({described(kinds)}) USING iceberg PARTITIONED BY ({', '.join(calls)})")
    sized(spark, table).append(values(spark, kinds))
    asked = [f"rest.system.{call}" for call in calls]
    asked[5] = f"unix_date({asked[5]})"
    expected = Counter(spark_rows(spark, f"SELECT {', '.join(asked)} FROM {table}"))
    assert rows_per_partition(data_files(rest, f"{namespace}.t")) == expected


def test_the_smallest_integers_wrap_as_in_java(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """Truncating the smallest int and long wraps around, as Iceberg's Java does, and fails no batch."""
    kinds = {"i": ("int", ["-2147483648", "5"]), "l": ("bigint", ["-9223372036854775807L - 1", "NULL"])}
    spec = "truncate(10, i), truncate(100, l)"
    assert_twins(spark, rest, namespace, described(kinds), spec, values(spark, kinds))


def test_nan_has_no_partition(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """NaN in an identity partition field is refused with the field's name; nothing of the batch is visible."""
    table = f"rest.{namespace}.t"
    spark.sql(f"CREATE TABLE {table} (id bigint, g double) USING iceberg PARTITIONED BY (g)")
    df = spark.range(4).selectExpr("id", "CASE WHEN id = 2 THEN double('NaN') ELSE 1.5D END AS g")
    with pytest.raises(SchemaMismatch, match="NaN into partition field 'g'"):
        sized(spark, table).append(df)
    assert rest.load_table(f"{namespace}.t").current_snapshot() is None


def test_text_partitions_that_look_like_paths(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """Slashes, blanks, percent signs and an empty string as partition values are read back by Spark's filters."""
    schema = Schema(NestedField(1, "s", StringType()), NestedField(2, "id", LongType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "s"))
    rest.create_table(f"{namespace}.t", schema, partition_spec=spec)
    texts = ["", "a/b", "x=y", "50%", "a b", "..", "#?&", "null", "__HIVE_DEFAULT_PARTITION__"]
    df = spark.createDataFrame([(text, n) for n, text in enumerate(texts * 2)], "s string, id bigint")
    table = f"rest.{namespace}.t"
    sized(spark, table).append(df)
    sized(spark, table).append(df)
    sized(spark, table).compact()
    for text in texts:
        quoted = text.replace("'", "''")
        assert spark_rows(spark, f"SELECT count(*) FROM {table} WHERE s = '{quoted}'") == [(4,)]
