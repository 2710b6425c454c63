"""split_by_partition: every transform on every source type, compared with PyIceberg's value by value."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import mmh3
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icesize.errors import SchemaMismatch
from icesize.parquet.files.names import data_location
from icesize.parquet.files.partitioning import split_by_partition
from icesize.parquet.reading.projection import ColumnAligner
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.files import PartitionKey
from tests.support.examples import examples
from tests.support.parquet_files import NAMES, append, catalog_in, schema_of, settings_of, spec_of
from tests.support.partition_values import CASES, array_of, wrapped

quick = examples(25)


def _bits(value: Any) -> Any:
    return struct.pack("<d", value) if isinstance(value, float) else value


@pytest.mark.parametrize(
    ("kind", "values", "transform"),
    [(kind, values, transform) for kind, values, transforms in CASES for transform in transforms],
    ids=lambda x: str(x) if isinstance(x, (str, IcebergType)) else "",
)
@quick
@given(data=st.data())
def test_each_row_lands_in_the_partition_that_iceberg_computes(
    tmp_path: Path, kind: IcebergType, values: st.SearchStrategy[Any], transform: str, data: st.DataObject
) -> None:
    """All rows come out once, in order within a partition, under the value of PyIceberg's transform."""
    drawn = data.draw(st.lists(st.none() | values, min_size=1, max_size=12))
    schema = schema_of(("v", kind), ("row", LongType()))
    options = settings_of(tmp_path, schema, spec_of(schema, v=transform))
    array = array_of(kind, drawn, options.arrow_schema.field("v").type)
    rows = pa.table([array, pa.array(range(len(drawn)), pa.int64())], schema=options.arrow_schema)
    apply = parse_transform(transform).transform(kind) if transform != "void" else lambda v: None

    groups = split_by_partition(rows, options)

    seen: list[int] = []
    for key, group in groups:
        numbers = group.column("row").to_pylist()
        assert numbers == sorted(numbers)
        seen += numbers
        for number in numbers:
            expected = wrapped(transform, kind, apply(drawn[number]))
            assert _bits(key.values[0]) == _bits(expected)
            # a -0.0 comes back as a float that knows that it is not 0.0
            same = isinstance(expected, float) and isinstance(key.values[0], float)
            assert same or type(key.values[0]) is type(expected)
    assert sorted(seen) == list(range(len(drawn)))
    assert len({(str(key.values), key) for key, _ in groups}) == len(groups)


def test_years_beyond_python_have_partitions_and_paths(tmp_path: Path) -> None:
    """A timestamp in the year 58,000 (milliseconds taken for microseconds) does not fail the batch."""
    schema = schema_of(("ts", TimestampType()))
    micros = pa.array([1_767_225_600_000_000_000, 0], pa.int64())
    texts = {"year": "=57971/", "month": "=57971-02/", "day": "=20454000/", "identity": "=1767225600000000000/"}
    for transform, text in texts.items():
        options = settings_of(tmp_path, schema, spec_of(schema, ts=transform))
        rows = pa.table([micros.view(pa.timestamp("us"))], schema=options.arrow_schema)
        (key, _), (epoch, _) = split_by_partition(rows, options)
        assert epoch.values == (0,)
        assert text in data_location(options, key, "f.parquet")


def test_nan_in_an_identity_field_is_refused(tmp_path: Path) -> None:
    """NaN partition values break PyIceberg's metadata: the error names the field and says what to do."""
    schema = schema_of(("x", DoubleType()))
    options = settings_of(tmp_path, schema, spec_of(schema, x="identity"))
    with pytest.raises(SchemaMismatch, match=r"NaN into partition field 'x'.*replace NaN by null"):
        write_rows([pa.table({"x": [1.0, math.nan]})], options, NAMES)


def test_positive_and_negative_zero_are_two_partitions(tmp_path: Path) -> None:
    """Iceberg orders -0.0 below 0.0: one value for both would hide rows from a filter."""
    schema = schema_of(("x", DoubleType()))
    options = settings_of(tmp_path, schema, spec_of(schema, x="identity"))
    groups = split_by_partition(pa.table({"x": [0.0, -0.0, 0.0]}).cast(options.arrow_schema), options)
    assert [(str(key.values[0]), rows.num_rows) for key, rows in groups] == [("0.0", 2), ("-0.0", 1)]


def test_a_source_inside_a_struct(tmp_path: Path) -> None:
    """A null struct has a null source; other structs count with their field."""
    inner = StructType(NestedField(3, "a", LongType(), False), NestedField(4, "day", DateType(), False))
    schema = Schema(NestedField(1, "id", LongType(), False), NestedField(2, "s", inner, False))
    spec = PartitionSpec(PartitionField(4, 1000, parse_transform("month"), "m"), spec_id=0)
    options = settings_of(tmp_path, schema, spec)
    structs = [{"a": 1, "day": dt.date(2026, 2, 3)}, None, {"a": 2, "day": None}, {"a": 3, "day": dt.date(2026, 2, 9)}]
    rows = ColumnAligner(options)(pa.table({"id": [0, 1, 2, 3], "s": structs}))
    groups = {key.values: group.column("id").to_pylist() for key, group in split_by_partition(rows, options)}
    assert groups == {(673,): [0, 3], (None,): [1, 2]}


def test_several_fields_and_two_over_one_column(tmp_path: Path) -> None:
    """Each combination is a partition; two fields over one source column have a path too."""
    schema = schema_of(("ts", TimestampType()), ("kind", StringType()))
    options = settings_of(tmp_path, schema, spec_of(schema, ts="day", ts__2="bucket[2]", kind="identity"))
    base = dt.datetime(2026, 1, 1)
    stamps = [base + dt.timedelta(hours=h) for h in range(48)]
    rows = pa.table({"ts": stamps, "kind": ["a b", None] * 24}).cast(options.arrow_schema)
    groups = split_by_partition(rows, options)
    assert sum(group.num_rows for _, group in groups) == 48
    assert {key.values[0] for key, _ in groups} == {20454, 20455}
    assert {key.values[2] for key, _ in groups} == {"a b", None}
    assert len({key for key, _ in groups}) == len(groups) == 8
    assert "/data/ts_day=2026-01-01/ts__2_bucket=" in data_location(options, groups[0][0], "f.parquet")
    assert "/kind=a+b/f.parquet" in data_location(options, groups[0][0], "f.parquet")


def test_unpartitioned_rows_stay_together(tmp_path: Path) -> None:
    """Without partition fields there is one group with an empty key, and no folder below `data`."""
    schema = schema_of(("id", LongType()))
    options = settings_of(tmp_path, schema)
    ((key, rows),) = split_by_partition(pa.table({"id": [3, 1, 2]}).cast(options.arrow_schema), options)
    assert (key, rows.column("id").to_pylist()) == (PartitionKey(0), [3, 1, 2])
    assert data_location(options, key, "f.parquet") == f"{tmp_path}/data/f.parquet"


def test_partition_values_pass_through_manifests(tmp_path: Path) -> None:
    """Files of every kind of value are committed, and the manifest gives the same values back."""
    schema = schema_of(
        ("d", DecimalType(9, 2)), ("u", UUIDType()), ("b", BinaryType()), ("ts", TimestamptzType()), ("t", TimeType())
    )
    catalog = catalog_in(tmp_path)
    spec = spec_of(schema, d="identity", u="identity", b="truncate[2]", ts="hour", ts__2="identity", t="bucket[3]")
    table = catalog.create_table("db.t", schema, partition_spec=spec)
    options = settings_of(table.location(), table.schema(), table.spec())
    utc = dt.timezone.utc
    rows = pa.table(
        {
            "d": pa.array([Decimal("-1.28"), None], pa.decimal128(9, 2)),
            "u": [str(UUID(int=5)), None],
            "b": [b"\x00\xffz", None],
            "ts": [dt.datetime(1969, 12, 31, 23, 59, tzinfo=utc), None],
            "t": pa.array([dt.time(1, 2), None], pa.time64("us")),
        }
    )
    files = write_rows([rows], options, NAMES)
    append(table, files)
    stored = [task.file.partition for task in table.scan().plan_files()]
    assert {tuple(record[i] for i in range(6)) for record in stored} == {file.partition.values for file in files}
    assert files[0].partition.values[:5] == (Decimal("-1.28"), UUID(int=5), b"\x00\xff", -1, -60_000_000)
    assert table.scan("d is null").to_arrow().num_rows == 1


@pytest.mark.parametrize("transform", ["identity", "truncate[2]"])
def test_text_that_is_no_utf_8_has_no_partition(tmp_path: Path, transform: str) -> None:
    """Metadata cannot store such a value: the message names the field. Buckets are computed from the bytes."""
    schema = Schema(NestedField(1, "t", StringType()))
    rows = pa.table({"t": pa.array([b"a\xffb", b"ok"]).view(pa.string())})
    with pytest.raises(SchemaMismatch, match=r"Cannot write into partition field 't.*': a value is no UTF-8 text"):
        split_by_partition(rows, settings_of(tmp_path, schema, spec_of(schema, t=transform)))
    groups = split_by_partition(rows, settings_of(tmp_path, schema, spec_of(schema, t="bucket[100]")))
    assert [key.values for key, _ in groups] == [
        ((mmh3.hash(text) & 0x7FFF_FFFF) % 100,) for text in (b"a\xffb", b"ok")
    ]
