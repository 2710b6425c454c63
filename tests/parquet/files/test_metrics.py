"""Column metrics: what manifests say about a file, held against its rows."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icesize.parquet.files.new_files import NewFiles
from icesize.parquet.writing.encoding import Encoding
from icesize.parquet.writing.file_writer import FileEncoder, LateNanError
from icesize.parquet.writing.row_writer import RowWriter
from icesize.planning.files import PartitionKey
from tests.support.examples import examples
from tests.support.parquet_files import NAMES, files_below, schema_of, settings_of, write_one

NAN = math.nan
CASES: list[tuple[PrimitiveType, st.SearchStrategy[Any]]] = [
    (BooleanType(), st.booleans()),
    (IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    (LongType(), st.integers(-(2**63), 2**63 - 1)),
    (FloatType(), st.floats(width=32)),
    (DoubleType(), st.floats()),
    (DecimalType(9, 2), st.decimals(-9_999_999, 9_999_999, places=2)),
    (DecimalType(18, 4), st.integers(-(10**18) + 1, 10**18 - 1).map(lambda n: Decimal(n).scaleb(-4))),
    (DecimalType(38, 0), st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal)),
    (StringType(), st.text(max_size=24)),
    (BinaryType(), st.binary(max_size=24)),
    (FixedType(3), st.binary(min_size=3, max_size=3)),
    (UUIDType(), st.uuids()),
    (DateType(), st.integers(-(2**31), 2**31 - 1)),
    (TimeType(), st.integers(0, 86_399_999_999)),
    (TimestampType(), st.integers(-(2**63), 2**63 - 1)),
    (TimestamptzType(), st.integers(-(2**63), 2**63 - 1)),
]


def _column(kind: IcebergType, values: list[Any], arrow: pa.DataType) -> pa.Array:
    if isinstance(kind, UUIDType):
        stored = pa.array([None if v is None else v.bytes for v in values], pa.binary(16))
        return pa.ExtensionArray.from_storage(arrow, stored)
    if isinstance(kind, DateType):
        return pa.array(values, pa.int32()).view(arrow)
    if isinstance(kind, (TimeType, TimestampType, TimestamptzType)):
        return pa.array(values, pa.int64()).view(arrow)
    return pa.array(values, arrow)


def _order(value: Any) -> Any:
    """Iceberg's order: -0.0 before 0.0, uuids by their bytes."""
    if isinstance(value, float):
        return (value, math.copysign(1.0, value))
    return value.bytes if isinstance(value, UUID) else value


@pytest.mark.parametrize(("kind", "values"), CASES, ids=lambda x: str(x) if isinstance(x, IcebergType) else "")
@examples(30)
@given(data=st.data())
def test_counts_and_bounds_hold_for_every_value(
    tmp_path: Path, kind: PrimitiveType, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    """Counts are exact; bounds enclose all values, in every row group, and are absent where only NaN or null is."""
    drawn = data.draw(st.lists(st.none() | values, min_size=1, max_size=8))
    options = settings_of(tmp_path, schema_of(("v", kind)), properties={"write.parquet.row-group-limit": "3"})
    file = write_one(options, pa.table([_column(kind, drawn, options.arrow_schema.field("v").type)], ["v"]))

    present = [v for v in drawn if v is not None]
    numbers = [v for v in present if v == v]
    assert file.value_counts == {1: len(drawn)}
    assert file.null_value_counts == {1: drawn.count(None)}
    is_float = isinstance(kind, (FloatType, DoubleType))
    assert file.nan_value_counts == ({1: len(present) - len(numbers)} if is_float else {})
    assert len(file.split_offsets) == math.ceil(len(drawn) / 3)
    if not numbers:
        assert (file.lower_bounds, file.upper_bounds) == ({}, {})
        return
    lower = from_bytes(kind, file.lower_bounds[1])
    assert _order(_as_uuid(kind, lower)) <= min(map(_order, numbers))
    if 1 in file.upper_bounds:
        assert _order(_as_uuid(kind, from_bytes(kind, file.upper_bounds[1]))) >= max(map(_order, numbers))
    else:
        assert isinstance(kind, (StringType, BinaryType))
    if not isinstance(kind, (StringType, BinaryType, FloatType, DoubleType)):
        assert _as_uuid(kind, lower) == min(numbers, key=_order)
        assert _as_uuid(kind, from_bytes(kind, file.upper_bounds[1])) == max(numbers, key=_order)


def _as_uuid(kind: IcebergType, value: Any) -> Any:
    return UUID(bytes=value) if isinstance(kind, UUIDType) else value


def test_metrics_modes_of_the_table_are_honoured(tmp_path: Path) -> None:
    """none: sizes only; counts: no bounds; truncate(n): shortened bounds, the upper one raised; full: all of it."""
    schema = schema_of(*((name, StringType()) for name in ("a", "b", "c", "d", "e")))
    modes = {"a": "none", "b": "counts", "c": "truncate(2)", "d": "full"}
    properties = {f"write.metadata.metrics.column.{name}": mode for name, mode in modes.items()}
    options = settings_of(tmp_path, schema, properties=properties)
    long = "abcdefghijklmnopqrstuvwxyz"
    file = write_one(options, pa.table({name: [long, None] for name in "abcde"}))
    assert set(file.column_sizes) == {1, 2, 3, 4, 5}
    assert file.value_counts == {2: 2, 3: 2, 4: 2, 5: 2}
    assert file.null_value_counts == {2: 1, 3: 1, 4: 1, 5: 1}
    assert file.lower_bounds == {3: b"ab", 4: long.encode(), 5: b"abcdefghijklmnop"}
    assert file.upper_bounds == {3: b"ac", 4: long.encode(), 5: b"abcdefghijklmnoq"}


def test_an_upper_bound_that_cannot_be_raised_is_left_out(tmp_path: Path) -> None:
    """The highest character has no successor, nor has the one before surrogates; truncation counts characters."""
    options = settings_of(tmp_path, schema_of(("a", StringType()), ("b", BinaryType())))
    file = write_one(options, pa.table({"a": ["\U0010ffff" * 20], "b": [b"\xff" * 20]}))
    assert file.upper_bounds == {}
    assert file.lower_bounds == {1: ("\U0010ffff" * 16).encode(), 2: b"\xff" * 16}
    before_surrogates = "a" * 15 + "\ud7ff" + "b"
    assert write_one(options, pa.table({"a": [before_surrogates], "b": [b"c"]})).upper_bounds == {2: b"c"}


def test_wide_tables_have_metrics_for_their_first_columns(tmp_path: Path) -> None:
    """Beyond `max-inferred-column-defaults` columns have no metrics unless the table names a default or the column."""
    schema = schema_of(*((f"c{i}", LongType()) for i in range(6)))
    rows = pa.table({f"c{i}": [i] for i in range(6)})
    limit = {"write.metadata.metrics.max-inferred-column-defaults": "3"}
    named = {**limit, "write.metadata.metrics.column.c5": "full"}
    assert set(write_one(settings_of(tmp_path, schema, properties=named), rows).lower_bounds) == {1, 2, 3, 6}
    default = {**limit, "write.metadata.metrics.default": "full"}
    assert len(write_one(settings_of(tmp_path, schema, properties=default), rows).lower_bounds) == 6


def test_wide_tables_have_metrics_level_by_level(tmp_path: Path) -> None:
    """Iceberg counts the columns of a struct before those of the structs in it, so these are the first without."""
    schema = Schema(
        NestedField(1, "s", StructType(NestedField(4, "x", LongType()), NestedField(5, "y", LongType()))),
        NestedField(2, "a", LongType()),
        NestedField(3, "b", LongType()),
    )
    rows = pa.table({"s": [{"x": 1, "y": 2}], "a": [3], "b": [4]})
    limit = {"write.metadata.metrics.max-inferred-column-defaults": "3"}
    assert set(write_one(settings_of(tmp_path, schema, properties=limit), rows).lower_bounds) == {2, 3, 4}
    named = {**limit, "write.metadata.metrics.column.s.y": "full", "write.metadata.metrics.column.s.x": "counts"}
    file = write_one(settings_of(tmp_path, schema, properties=named), rows)
    assert (set(file.lower_bounds), set(file.value_counts)) == ({2, 3, 5}, {2, 3, 4, 5})


def test_columns_below_lists_and_maps_have_counts_and_no_bounds(tmp_path: Path) -> None:
    """What a bound of many values per row means is not defined; sizes and counts are there for each leaf."""
    items = ListType(4, StructType(NestedField(5, "x", DoubleType())), False)
    schema = Schema(
        NestedField(1, "s", StructType(NestedField(3, "l", items, False)), False),
        NestedField(2, "m", MapType(6, StringType(), 7, LongType(), False), False),
    )
    rows = pa.table({"s": [{"l": [{"x": NAN}, None]}, None]}).append_column(
        "m", pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64()))
    )
    file = write_one(settings_of(tmp_path, schema), rows)
    assert set(file.column_sizes) == {5, 6, 7}
    assert file.value_counts == {5: 3, 6: 2, 7: 2}
    assert (file.lower_bounds, file.upper_bounds, file.nan_value_counts) == ({}, {}, {})


NESTED_KINDS: list[tuple[PrimitiveType, st.SearchStrategy[Any]]] = [
    (LongType(), st.integers(-9, 9)),
    (DoubleType(), st.floats() | st.sampled_from([0.0, -0.0, NAN])),
    (StringType(), st.text("abé", max_size=3)),
    (DecimalType(9, 2), st.decimals(-99, 99, places=2)),
]


@pytest.mark.parametrize(("kind", "values"), NESTED_KINDS, ids=lambda x: str(x) if isinstance(x, IcebergType) else "")
@examples(40)
@given(data=st.data())
def test_columns_within_structs_have_metrics_as_others_have(
    tmp_path: Path, kind: PrimitiveType, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    """Each row has a value, null where a struct above it is; bounds, nulls and NaN are counted as at the top."""
    inner = StructType(NestedField(4, "w", kind, False))
    record = StructType(NestedField(2, "v", kind, False), NestedField(3, "deep", inner, False))
    options = settings_of(
        tmp_path, Schema(NestedField(1, "s", record, False)), properties={"write.parquet.row-group-limit": "3"}
    )
    deep = st.none() | st.fixed_dictionaries({"w": st.none() | values})
    some = st.none() | st.fixed_dictionaries({"v": st.none() | values, "deep": deep})
    rows = data.draw(st.lists(some, min_size=1, max_size=8))
    arrow = options.arrow_schema.field("s").type
    file = write_one(options, pa.table([pa.array(rows, arrow)], ["s"]))
    leaves_of = {2: [row and row["v"] for row in rows], 4: [row and row["deep"] and row["deep"]["w"] for row in rows]}
    for field_id, drawn in leaves_of.items():
        present = [value for value in drawn if value is not None]
        numbers = [value for value in present if value == value]
        assert file.value_counts[field_id] == len(drawn)
        assert file.null_value_counts[field_id] == len(drawn) - len(present)
        nans = len(present) - len(numbers) if isinstance(kind, DoubleType) else None
        assert file.nan_value_counts.get(field_id) == nans
        assert (field_id in file.lower_bounds) == (field_id in file.upper_bounds) == bool(numbers)
        if field_id in file.lower_bounds:
            lower, upper = (_order(from_bytes(kind, b[field_id])) for b in (file.lower_bounds, file.upper_bounds))
            assert lower <= min(map(_order, numbers))
            assert upper >= max(map(_order, numbers))


def test_a_column_with_nan_has_no_bounds_in_the_footer(tmp_path: Path) -> None:
    """Some readers take Parquet bounds for the absence of NaN, nested columns included; others keep their bounds.

    The manifest has the bounds of all other values.
    """
    schema = Schema(
        NestedField(1, "x", DoubleType(), False),
        NestedField(2, "y", FloatType(), False),
        NestedField(3, "l", ListType(5, DoubleType(), False), False),
        NestedField(4, "id", LongType(), False),
    )
    rows = pa.table({"x": [1.0, NAN, None], "y": [1.0, 2.0, None], "l": [[NAN], None, [1.0]], "id": [1, 2, 3]})
    file = write_one(settings_of(tmp_path, schema), rows)
    group = pq.read_metadata(file.path).row_group(0)
    statistics = [group.column(i).statistics for i in range(4)]
    assert [s is not None and s.has_min_max for s in statistics] == [False, True, False, True]
    assert file.nan_value_counts == {1: 1, 2: 0}
    assert file.null_value_counts == {1: 1, 2: 1, 4: 0, 5: 1}
    assert set(file.lower_bounds) == {1, 2, 4}
    assert file.lower_bounds[1] == file.upper_bounds[1] == struct.pack("<d", 1.0)
    assert file.upper_bounds[2] == struct.pack("<f", 2.0)


def test_nan_in_later_rows_of_a_file(tmp_path: Path) -> None:
    """A file whose statistics were begun takes no NaN: the encoder says so and the writer begins another file."""
    options = settings_of(tmp_path, schema_of(("x", DoubleType())))
    plain = pa.table({"x": [1.0, 2.0]}).cast(options.arrow_schema)
    late = pa.table({"x": [NAN, 3.0]}).cast(options.arrow_schema)
    new_files = NewFiles(options, NAMES)

    def write_late() -> None:
        with new_files.all_or_none():
            encoder = FileEncoder(new_files, PartitionKey(0), Encoding(), expected_rows=4)
            encoder.append(plain)
            assert len(files_below(tmp_path)) == 1
            encoder.append(late)

    with pytest.raises(LateNanError) as caught:
        write_late()
    assert caught.value.nan == {1}
    assert files_below(tmp_path) == []

    writer = RowWriter(options, NAMES, max_buffer_bytes=1)
    for rows in (plain, late, plain):
        writer.write(rows)
    first, second = writer.close()
    assert (first.rows, first.nan_value_counts, set(first.lower_bounds)) == (2, {1: 0}, {1})
    assert (second.rows, second.nan_value_counts) == (4, {1: 1})
    assert (second.lower_bounds, second.upper_bounds) == ({1: struct.pack("<d", 1.0)}, {1: struct.pack("<d", 3.0)})
    assert second.null_value_counts == {1: 0}


def test_a_decimal_of_too_many_digits_is_no_bound(tmp_path: Path) -> None:
    """Damaged pages give such values; they stay what they are, and the file has bounds without them."""
    options = settings_of(tmp_path, schema_of(("price", DecimalType(15, 2))))
    stored = pa.array([Decimal(1), None], pa.decimal128(15, 2)).buffers()
    too_long = pa.Array.from_buffers(
        pa.decimal128(15, 2), 2, [None, pa.py_buffer(stored[1].to_pybytes()[:16] + (10**17).to_bytes(16, "little"))]
    )
    file = write_one(options, pa.table({"price": too_long}))
    assert pq.read_table(file.path.removeprefix("file://")).column("price").to_pylist() == [Decimal(1), Decimal(10**15)]
    assert from_bytes(DecimalType(15, 2), file.lower_bounds[1]) == Decimal(1)
    assert file.upper_bounds == {}
