"""The columns of a batch against those of the table."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark_types

from icesize.errors import SchemaMismatch, UnsupportedTable
from icesize.spark.engine.columns import align, extra_columns, iceberg_type, spark_type
from tests.support.spark_lake import EVENTS, Lake, Make, conf, counted, events, rows_of
from tests.support.v3_tables import with_document

NESTED = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "s", StructType(NestedField(3, "a", LongType()), NestedField(4, "b", StringType()))),
    NestedField(5, "l", ListType(6, StructType(NestedField(7, "x", LongType())), element_required=False)),
    NestedField(8, "m", MapType(9, StringType(), 10, StructType(NestedField(11, "y", LongType())), False)),
)


def test_missing_optional_column_is_null(spark: SparkSession, lake: Lake) -> None:
    """A column that the batch lacks is NULL, and the order of columns does not matter."""
    lake.create()
    lake.open(spark).append(counted(spark, events([1]).select(["hour", "id"])))
    assert lake.rows() == [(1, "h0", None)]


def defaulted(number: int, name: str, kind: object, value: object, *, required: bool = False) -> NestedField:
    """A column with a write default."""
    return NestedField(number, name, kind, required=required, write_default=value)


NEW_YEAR = datetime(1500, 1, 1, 1, 30, 0, 1)
DEFAULTS = {
    "flag": (BooleanType(), False),
    "small": (IntegerType(), -(2**31)),
    "whole": (LongType(), 2**60),
    "part": (FloatType(), 0.5),
    "real": (DoubleType(), 0.1),
    "money": (DecimalType(38, 10), Decimal("-1234567890123456789.0000000001")),
    "none": (DecimalType(38, 10), Decimal("0E-10")),
    "day": (DateType(), date(1, 1, 1)),
    "local": (TimestampType(), NEW_YEAR),
    "at": (TimestamptzType(), NEW_YEAR.replace(tzinfo=timezone.utc)),
    "text `x`": (StringType(), "it's"),
    "raw": (BinaryType(), b"\x00\xff"),
    "mark": (FixedType(2), b"ab"),
    "key": (UUIDType(), UUID(int=7)),
}


def test_missing_columns_have_the_write_default(spark: SparkSession) -> None:
    """Of every type that Spark has, in any time zone of the session; other spellings of a name are the same column."""
    fields = [defaulted(i, name, kind, value) for i, (name, (kind, value)) in enumerate(DEFAULTS.items(), 2)]
    schema = Schema(NestedField(1, "id", LongType()), *fields, defaulted(50, "there", LongType(), 8, required=True))
    with conf(spark, spark__sql__session__timeZone="America/New_York"):
        batch = spark.createDataFrame([(1, None)], "ID long, There long")
        assert extra_columns(batch.schema, schema.as_struct(), str.lower) == []
        (row,) = align(batch, schema, "t", str.lower).toArrow().to_pylist()
    values = {name: value for name, (_, value) in DEFAULTS.items()}
    assert row == {"id": 1, **values, "key": str(UUID(int=7)), "there": None}


def test_missing_fields_of_structs_have_the_write_default(spark: SparkSession) -> None:
    """In lists and maps, too; what is NULL stays NULL, and a struct that is missing as a whole is NULL."""
    struct = StructType(NestedField(20, "a", LongType()), defaulted(21, "b.c", StringType(), "new", required=True))
    schema = Schema(
        NestedField(1, "s", StructType(NestedField(2, "in", struct), defaulted(3, "n", LongType(), 3))),
        NestedField(4, "l", ListType(5, struct, False)),
        NestedField(6, "m", MapType(7, StringType(), 8, struct, False)),
        NestedField(9, "gone", struct),
    )
    batch = spark.sql(
        "SELECT * FROM VALUES (named_struct('IN', named_struct('a', 1L)), array(named_struct('a', 2L), NULL), "
        "map('k', named_struct('a', 3L), 'n', NULL)), (named_struct('IN', NULL), NULL, NULL), (NULL, NULL, NULL) "
        "AS t(s, l, m)"
    )
    rows = [row.asDict(recursive=True) for row in align(batch, schema, "t", str.lower).collect()]
    full = [{"a": i, "b.c": "new"} for i in range(4)]
    empty = {"s": None, "l": None, "m": None, "gone": None}
    assert rows == [
        {"s": {"in": full[1], "n": 3}, "l": [full[2], None], "m": {"k": full[3], "n": None}, "gone": None},
        {**empty, "s": {"in": None, "n": 3}},
        empty,
    ]


def test_a_batch_without_a_required_column_has_its_write_default(spark: SparkSession, lake: Lake) -> None:
    """Also if the column is the source of the partition."""
    lake.create(schema=Schema(*EVENTS.fields, NestedField(9, "must", LongType())))

    def with_defaults(document: dict[str, Any]) -> None:
        for column, value in zip(document["schemas"][0]["fields"], [None, "h7", None, 8], strict=True):
            column |= {} if value is None else {"write-default": value, "required": True}

    with_document(lake.catalog, with_defaults, "db.events")
    lake.open(spark).append(counted(spark, events([1]).select(["id"])))
    assert lake.rows() == [(1, "h7", None, 8)]
    assert list(lake.files_per_partition()) == [("h7",)]


def test_missing_required_column_is_refused(spark: SparkSession, lake: Lake) -> None:
    """Without a column that the table requires nothing is written."""
    lake.create()
    with pytest.raises(SchemaMismatch, match="Cannot write without column 'id': the table requires it"):
        lake.open(spark).append(counted(spark, events([1]).select(["hour", "text"])))
    assert lake.on_disk() == set()


def test_null_in_a_required_column_leaves_nothing(spark: SparkSession, lake: Lake, make: Make) -> None:
    """One NULL in a required column: nothing is committed, and files that other tasks had finished are removed."""
    lake.create()
    rows = events(range(40), hours=4).to_pydict() | {"id": [*range(39), None]}
    table = lake.open(spark, bytes_per_row=10**6)
    with pytest.raises(SchemaMismatch, match="Cannot write null into column 'id'"):
        table.append(make(spark, pa.table(rows)))
    assert lake.rows() == []
    assert lake.on_disk() == set()


@pytest.mark.smoke
def test_extra_column_is_refused(spark: SparkSession, lake: Lake) -> None:
    """By default a column that the table lacks stops the batch, and the message says what can be done."""
    lake.create()
    batch = counted(spark, events([1])).withColumn("more", F.lit(1)).withColumn("most", F.lit("x"))
    message = r"'more' \(int\), 'most' \(string\); drop them, add them .*schema_evolution=\"add\""
    with pytest.raises(SchemaMismatch, match=message) as error:
        lake.open(spark).append(batch)
    assert error.value.columns == ["more", "most"]
    assert lake.on_disk() == set()


@pytest.mark.parametrize(
    ("sql", "extra"),
    [
        ("named_struct('a', 1L, 'b', 'x', 'c', 2) as s", "s.c"),
        ("array(named_struct('x', 1L, 'c', 2)) as l", "l.element.c"),
        ("map('k', named_struct('y', 1L, 'c', 2)) as m", "m.value.c"),
    ],
)
def test_extra_nested_field_is_refused_or_added(spark: SparkSession, lake: Lake, sql: str, extra: str) -> None:
    """A field more inside of a struct, list or map is refused, and added by schema_evolution="add"; never dropped."""
    lake.create(schema=NESTED, by={})
    table, batch = lake.open(spark), spark.sql(f"SELECT 1L AS id, {sql}")
    with pytest.raises(SchemaMismatch, match=f"'{extra}' \\(int\\)"):
        table.append(batch)
    table.sink("s", schema_evolution="add")(batch, 0)
    assert lake.table().schema().find_type(extra) == IntegerType()
    assert "'c': 2" in str(lake.table().scan().to_arrow().to_pylist())


def test_columns_are_added_once(spark: SparkSession, lake: Lake) -> None:
    """schema_evolution="add" adds optional columns of any type; older rows have NULL, and the next batch adds none."""
    lake.create()
    sink = lake.open(spark).sink("s", schema_evolution="add")
    sink(counted(spark, events([1])), 0)
    batch = counted(spark, events([2])).selectExpr(
        "*", "cast(1.5 as decimal(9,2)) as price", "array(1, 2) as list", "cast(7 as smallint) as few"
    )
    sink(batch, 1)
    sink(batch.withColumn("id", F.lit(3)), 2)
    rows = lake.table().scan().to_arrow().sort_by("id").select(["id", "price", "list", "few"]).to_pylist()
    assert [tuple(r.values()) for r in rows] == [
        (1, None, None, None), (2, Decimal("1.50"), [1, 2], 7), (3, Decimal("1.50"), [1, 2], 7)
    ]  # fmt: skip
    assert [f.required for f in lake.table().schema().fields] == [True, False, False, False, False, False]
    assert len(lake.table().schemas()) == 2


def test_names_differ_in_case(spark: SparkSession, lake: Lake) -> None:
    """Names match as Spark compares them: in any case, or exactly under spark.sql.caseSensitive."""
    lake.create()
    batch = counted(spark, events([1])).withColumnRenamed("text", "TEXT")
    lake.open(spark).append(batch)
    assert lake.table().scan().to_arrow().column_names == ["id", "hour", "text"]
    assert lake.rows()[0][2] is not None
    with conf(spark, spark__sql__caseSensitive="true"):
        with pytest.raises(SchemaMismatch, match="'TEXT'"):
            lake.open(spark).append(batch)
        lake.open(spark).sink("s", schema_evolution="add")(batch, 0)
    assert lake.table().schema().column_names == ["id", "hour", "text", "TEXT"]


def test_two_columns_of_one_name(spark: SparkSession, lake: Lake) -> None:
    """A batch with two columns of one name says so."""
    lake.create()
    batch = counted(spark, events([1])).select("*", F.lit("x").alias("Hour"))
    with pytest.raises(SchemaMismatch, match="Cannot write column 'hour': the batch has two of that name"):
        lake.open(spark).append(batch)


def test_type_that_does_not_fit(spark: SparkSession, lake: Lake) -> None:
    """A column of another kind is refused before anything is written, with its name and both types."""
    lake.create()
    with pytest.raises(SchemaMismatch, match=r"(?s)Cannot write to 'lake.db.events'.*`id`.*STRING.*BIGINT"):
        lake.open(spark).append(counted(spark, events([1])).withColumn("id", F.lit("seven")))
    assert lake.on_disk() == set()


def test_value_out_of_range(spark: SparkSession, lake: Lake) -> None:
    """A number too large for the table's type stops the batch; nothing of it stays."""
    lake.create(schema=Schema(NestedField(1, "i", IntegerType())), by={})
    with pytest.raises(SchemaMismatch, match="CAST_OVERFLOW"):
        lake.open(spark).append(spark.createDataFrame(pa.table({"i": [1, 2**40]})))
    assert lake.rows() == []
    assert lake.on_disk() == set()


TYPED = Schema(
    NestedField(1, "i", IntegerType()), NestedField(2, "l", LongType()), NestedField(3, "d", DecimalType(9, 2)),
    NestedField(4, "day", DateType()), NestedField(5, "f", FloatType()), NestedField(6, "t", StringType()),
    NestedField(7, "s", StructType(NestedField(8, "x", LongType()))),
    NestedField(9, "a", ListType(10, IntegerType(), element_required=False)),
)  # fmt: skip
DIGITS, TIME = "digits after the point", "the time of day"


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("cast(1.5 as double) as l", f"'l' (double) as the table's bigint: {DIGITS}"),
        ("cast(1.5 as float) as i", f"'i' (float) as the table's int: {DIGITS}"),
        ("1.5 as i", f"'i' (decimal(2,1)) as the table's int: {DIGITS}"),
        ("1.005 as d", f"'d' (decimal(4,3)) as the table's decimal(9,2): {DIGITS}"),
        ("cast(1.5 as double) as d", f"'d' (double) as the table's decimal(9,2): {DIGITS}"),
        ("timestamp'2026-01-31 12:00:00' as day", f"'day' (timestamp) as the table's date: {TIME}"),
        ("timestamp_ntz'2026-01-31 12:00:00' as day", f"'day' (timestamp_ntz) as the table's date: {TIME}"),
        ("named_struct('x', cast(1.5 as double)) as s", f"'s.x' (double) as the table's bigint: {DIGITS}"),
        ("array(cast(1.5 as double)) as a", f"'a.element' (double) as the table's int: {DIGITS}"),
    ],
)
def test_a_type_that_would_lose_a_part_of_each_value_is_refused(
    spark: SparkSession, lake: Lake, sql: str, said: str
) -> None:
    """An INSERT would cut it off in silence; the message has both types and the way on, and nothing is written."""
    lake.create(schema=TYPED, by={})
    for placement in ("append", "absorb"):
        with pytest.raises(SchemaMismatch) as refused:
            lake.open(spark).sink("s", placement=placement)(spark.sql(f"SELECT {sql}"), 0)
        assert str(refused.value).startswith(f"Cannot write column {said} would be lost silently. If intended")
    assert (lake.rows(), lake.on_disk()) == ([], set())


@pytest.mark.parametrize(
    ("sql", "column", "value"),
    [
        ("7L as i", "i", 7),
        ("cast(7 as decimal(20,0)) as l", "l", 7),
        ("cast(1.5 as decimal(20,2)) as d", "d", Decimal("1.50")),
        ("cast(1.5 as double) as f", "f", 1.5),
        ("cast(1.5 as double) as t", "t", "1.5"),
        ("cast(cast(1.5 as double) as bigint) as l", "l", 1),
        ("null as l", "l", None),
        ("date'2026-01-31' as day", "day", date(2026, 1, 31)),
    ],
)
def test_types_that_keep_their_values_are_cast(
    spark: SparkSession, lake: Lake, sql: str, column: str, value: object
) -> None:
    """Within the range of the table's type; what the batch casts itself is its own business."""
    lake.create(schema=TYPED, by={})
    lake.open(spark).append(spark.sql(f"SELECT {sql}"))
    assert lake.table().scan().to_arrow()[column].to_pylist() == [value]


def test_types_of_both_sides() -> None:
    """Every Iceberg type that Spark writes has its Spark type, and back; what has none is named."""
    for iceberg, spark in {
        IntegerType(): "int", LongType(): "bigint", FloatType(): "float", DoubleType(): "double", DateType(): "date",
        DecimalType(9, 2): "decimal(9,2)", StringType(): "string", UUIDType(): "string", BinaryType(): "binary",
        FixedType(3): "binary", TimestamptzType(): "timestamp",
    }.items():  # fmt: skip
        assert spark_type(iceberg).simpleString() == spark
        if not isinstance(iceberg, (UUIDType, FixedType)):
            assert iceberg_type(spark_type(iceberg)) == iceberg
    nested = spark_type(NESTED.as_struct())
    assert spark_type(iceberg_type(nested)) == nested
    for kind in (TimeType(), TimestampNanoType()):
        column = NestedField(1, "s", StructType(NestedField(2, "l", ListType(3, kind))))
        with pytest.raises(UnsupportedTable, match=f"column 's.l.element' from Spark: it has no type for .* '{kind}'"):
            spark_type(StructType(column))
    with pytest.raises(SchemaMismatch, match="Cannot add a column of type 'interval day to second'"):
        iceberg_type(spark_types.DayTimeIntervalType())
    with pytest.raises(SchemaMismatch, match="Cannot add a column of type 'struct<>'"):
        iceberg_type(spark_types.ArrayType(spark_types.StructType()))


def test_nested_values_survive_batches_and_merges(spark: SparkSession, lake: Lake) -> None:
    """Structs, lists and maps keep their values, NULLs at every level and empty ones, through writing and merging."""
    lake.create(schema=NESTED, by={})
    sink = lake.open(spark, max_small_files=2).sink("s")
    kinds = (
        "(1L, named_struct('a', 1L, 'b', 'x'), array(named_struct('x', 1L), null), map('k', named_struct('y', 5L)))",
        "(2L, null, null, null)",
        "(3L, named_struct('a', null, 'b', null), array(), map('k', null))",
    )
    for batch in range(5):
        sink(spark.sql(f"SELECT * FROM VALUES {', '.join(kinds)} AS t(id, s, l, m)"), batch)
    # PyIceberg's scan reads a NULL list as an empty one, so the files are asked
    rows = rows_of(pa.concat_tables(pq.ParquetFile(f.file_path.removeprefix("file://")).read() for f in lake.files()))
    assert sorted(set(map(repr, rows))) == [
        repr((1, {"a": 1, "b": "x"}, [{"x": 1}, None], [("k", {"y": 5})])),
        repr((2, None, None, None)),
        repr((3, {"a": None, "b": None}, [], [("k", None)])),
    ]
    assert len(rows) == 15
    assert "replace" in lake.operations()


def test_session_zone_does_not_change_instants(spark: SparkSession, lake: Lake) -> None:
    """Instants written under another session time zone are the same instants."""
    lake.create(schema=Schema(NestedField(1, "at", TimestamptzType())), by={})
    with conf(spark, spark__sql__session__timeZone="America/New_York"):
        lake.open(spark).append(spark.sql("SELECT timestamp'2024-03-10 03:30:00' AS at"))
    assert lake.rows() == [(datetime(2024, 3, 10, 7, 30, tzinfo=timezone.utc),)]
