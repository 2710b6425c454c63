"""Default values of columns: in rows of older files whatever becomes of them, and in new rows that omit a column."""

from __future__ import annotations

import tempfile
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
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
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icesize.errors import RewriteFailed, SchemaMismatch
from icesize.parquet.files.data_file import FileMetrics, NewDataFile
from icesize.parquet.files.metrics import describe
from icesize.parquet.files.settings import NAME_MAPPING, WriteSettings
from icesize.parquet.ordering.cluster_order import RowOrder
from icesize.parquet.reading.inputs import read_inputs
from icesize.parquet.rewriting.absorb import Absorption, write_with
from icesize.parquet.rewriting.cluster import write_clustered
from icesize.parquet.rewriting.merge import merge
from icesize.planning.cluster_by import SORT
from icesize.planning.files import FileFact, PartitionKey
from icesize.planning.plan import FileGroup, MergeTask
from tests.support.copying import KEY, MERGED, foreign_bytes, stored
from tests.support.examples import examples
from tests.support.merge_cases import Coverage, check_metrics
from tests.support.parquet_files import complete, fact, local, settings_of, spec_of, with_limits, write_one

Row = dict[str, Any]


def column(number: int, name: str, kind: IcebergType, default: Any = None, required: bool = False) -> NestedField:
    """A column whose initial and write default are one value, as right after it was added."""
    return NestedField(number, name, kind, required=required, initial_default=default, write_default=default)


UUIDS = [uuid.UUID(int=number) for number in (0, 7, 2**127 + 1)]
KINDS: dict[str, tuple[IcebergType, list[Any]]] = {
    "flag": (BooleanType(), [False, True]),
    "small": (IntegerType(), [-(2**31), 0, 5]),
    "whole": (LongType(), [2**60, -1]),
    "part": (FloatType(), [-0.0, 1.5]),
    "real": (DoubleType(), [0.1, -0.0]),
    "money": (DecimalType(9, 2), [Decimal("14.20"), Decimal("-0.01")]),
    "much": (DecimalType(38, 10), [Decimal("-1234567890123456789.0000000001"), Decimal("0E-10")]),
    "day": (DateType(), [date(1969, 12, 31), date(2024, 2, 29)]),
    "clock": (TimeType(), [time(22, 31, 8, 123456), time(0)]),
    "local": (TimestampType(), [datetime(1500, 1, 1, 0, 0, 0, 1), datetime(2024, 1, 1)]),
    "at": (TimestamptzType(), [datetime(2024, 1, 1, 12, tzinfo=timezone.utc)]),
    "text": (StringType(), ["", "zażółć 'x'", "long " * 20]),
    "key": (UUIDType(), UUIDS),
    "mark": (FixedType(3), [b"\x00\xff\x01", b"abc"]),
    "raw": (BinaryType(), [b"", b"\xff" * 20]),
}
"""The default of each is the first of its values."""
SCHEMA = Schema(
    column(1, "id", LongType(), required=True),
    *(column(i, name, kind, values[0]) for i, (name, (kind, values)) in enumerate(KINDS.items(), 2)),
    column(30, "must", LongType(), 8, required=True),
    column(31, "bare", StringType()),
    column(
        40,
        "s",
        StructType(
            column(41, "a", LongType()),
            column(42, "b", StringType(), "β"),
            column(43, "inner", StructType(column(44, "y", LongType()), column(45, "z", IntegerType(), 3, True))),
        ),
    ),
    column(
        50, "l", ListType(51, StructType(column(52, "p", LongType()), column(53, "q", FixedType(2), b"\x00q")), False)
    ),
    column(
        60,
        "m",
        MapType(
            61, StringType(), 62, StructType(column(63, "v", LongType()), column(64, "w", DateType(), date.min)), False
        ),
    ),
)
OMITTED = [
    *KINDS, "must", "bare", "s", "s.b", "s.inner", "s.inner.z", "l", "l.element.q", "m", "m.value.w",
]  # fmt: skip
"""Columns and fields that an older file may lack."""


def older(kind: StructType, omitted: frozenset[str], path: str = "") -> StructType:
    """The columns of a file that was written before those `omitted` were added."""
    kept = (each for each in kind.fields if path + each.name not in omitted)
    return StructType(*(each.model_copy(update={"field_type": _older(each, omitted, path)}) for each in kept))


def _older(field: NestedField, omitted: frozenset[str], path: str) -> IcebergType:
    kind, name = field.field_type, path + field.name
    if isinstance(kind, StructType):
        return older(kind, omitted, f"{name}.")
    if isinstance(kind, ListType):
        return ListType(kind.element_id, _older(kind.element_field, omitted, f"{name}."), False)
    if isinstance(kind, MapType):
        return MapType(kind.key_id, kind.key_type, kind.value_id, _older(kind.value_field, omitted, f"{name}."), False)
    return kind


def as_table_has_it(value: Any, kind: IcebergType, default: str) -> Any:
    """The specification, value by value: missing fields have their default, a missing struct is NULL."""
    if value is None:
        return None
    if isinstance(kind, StructType):
        return {
            each.name: as_table_has_it(value[each.name], each.field_type, default)
            if each.name in value
            else getattr(each, default)
            for each in kind.fields
        }
    if isinstance(kind, ListType):
        return [as_table_has_it(each, kind.element_type, default) for each in value]
    if isinstance(kind, MapType):
        return [(key, as_table_has_it(each, kind.value_type, default)) for key, each in value]
    return value


def values_of(kind: IcebergType, name: str) -> st.SearchStrategy[Any]:
    """Values of a column, of which few differ; NULL among them."""
    if isinstance(kind, StructType):
        struct = st.fixed_dictionaries({f.name: fields_of(f) for f in kind.fields})
        return st.none() | struct
    if isinstance(kind, ListType):
        return st.none() | st.lists(values_of(kind.element_type, name), max_size=3)
    if isinstance(kind, MapType):
        keys = st.lists(st.sampled_from("abc"), max_size=2, unique=True)
        value = values_of(kind.value_type, name)
        return st.none() | keys.flatmap(lambda chosen: st.tuples(*(st.tuples(st.just(key), value) for key in chosen)))
    pool = KINDS[name][1] if name in KINDS else _POOLS[type(kind)]
    return st.sampled_from([None, *pool])


def fields_of(field: NestedField) -> st.SearchStrategy[Any]:
    """Values of a column, never NULL if it is required."""
    values = values_of(field.field_type, field.name)
    return values.filter(lambda value: value is not None) if field.required else values


_POOLS: dict[type[IcebergType], list[Any]] = {
    LongType: [1, -9],
    IntegerType: [3, 4],
    StringType: ["x", ""],
    FixedType: [b"\x00q", b"zz"],
    DateType: [date(2024, 2, 29)],
}


@dataclass(frozen=True)
class Stored:
    """An older file: the columns that it has, its rows, and how it was written."""

    kind: StructType
    rows: Sequence[Row]
    writer: str


@st.composite
def stored_files(draw: st.DrawFn) -> Stored:
    """One of any writer."""
    omitted = frozenset(draw(st.lists(st.sampled_from(OMITTED), unique=True)) if draw(st.booleans()) else ())
    kind = older(SCHEMA.as_struct(), omitted)
    row = st.fixed_dictionaries({each.name: fields_of(each) for each in kind.fields})
    few, times = draw(st.lists(row, min_size=1, max_size=4)), draw(st.sampled_from([1, 1, 60]))
    return Stored(kind, few * times, draw(st.sampled_from(list(WRITERS))))


WRITERS: Mapping[str, Mapping[str, Any]] = {
    "icesize": {},
    "ids": {},
    "dictionaries": {"use_dictionary": True, "data_page_version": "2.0", "compression": "snappy"},
    "names": {},
    "small groups": {"row_group_size": 3},
}
"""Arguments of pyarrow's writer; a file of `names` has no field ids."""


def input_file(file: Stored, number: int, options: WriteSettings) -> FileFact:
    """Write one."""
    own = options.with_schema(Schema(*file.kind.fields, schema_id=options.schema_id))
    data = pa.Table.from_pylist(list(file.rows), schema=own.arrow_schema)
    if file.writer == "icesize":
        return fact(write_one(own, data), number)
    if file.writer == "names":
        data = data.cast(without_ids(data.schema))
    return stored(
        Path(local(options.table_location)) / f"{number}", foreign_bytes(data, **WRITERS[file.writer]), len(data)
    )


def without_ids(schema: pa.Schema) -> pa.Schema:
    """The same types, without metadata at any depth."""

    def bare(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct([field(kind.field(i)) for i in range(kind.num_fields)])
        if pa.types.is_map(kind):
            return pa.map_(field(kind.key_field), field(kind.item_field))
        return pa.large_list(field(kind.value_field)) if pa.types.is_large_list(kind) else kind

    def field(each: pa.Field) -> pa.Field:
        return pa.field(each.name, bare(each.type), each.nullable)

    return pa.schema([field(each) for each in schema])


COPIED = {"least_chunk_bytes": 0, "least_page_rows": 0, "least_page_bytes": 0, "least_copied_bytes": 0}
WAYS: Mapping[str, Mapping[str, int]] = {
    "merge": {},
    "row groups": {**COPIED, "good_group_bytes": 0},
    "pages": {**COPIED, "good_group_bytes": 2**40, "good_group_rows": 2**40},
    "absorb": {},
    "cluster": {},
    "spill": {"sorted_rows": 5},
    "in batches": {"whole_file_bytes": 0, "decoded_bytes": 0, "batch_bytes": 100},
}
"""Limits by which rows take each way into new files."""


def rewritten(way: str, inputs: tuple[FileFact, ...], options: WriteSettings) -> list[NewDataFile | Any]:
    """The new files."""
    task = MergeTask(inputs, KEY, 1)
    if way == "absorb":
        return list(write_with(Absorption({0: (task,)}), 0, [], options, MERGED).files)
    if way in ("cluster", "spill"):
        return list(write_clustered(task, RowOrder(SORT, (("id", ()),)), options, MERGED).files)
    return list(merge(task, options, MERGED).files)


def table_settings(folder: Path, schema: Schema, way: str = "merge") -> WriteSettings:
    """Settings whose schema has these field ids, a name mapping, and limits by which rows take this way."""
    settings = settings_of(folder, schema, properties={NAME_MAPPING: schema.name_mapping.model_dump_json()})
    return with_limits(settings.with_schema(schema), **WAYS[way])  # a new table gets other field ids


def content(paths: Sequence[str], schema: pa.Schema) -> Counter[str]:
    """All rows of these files, spelt."""
    tables = [pq.read_table(local(path), partitioning=None).cast(without_ids(schema)) for path in paths]
    return Counter(repr(row) for table in tables for row in table.to_pylist())


def expected(rows: Sequence[Row], options: WriteSettings, default: str = "initial_default") -> Counter[str]:
    """Rows as the table has them, spelt."""
    full = [as_table_has_it(row, options.schema.as_struct(), default) for row in rows]
    return Counter(repr(row) for row in pa.Table.from_pylist(full, schema=options.arrow_schema).to_pylist())


SEEN = Coverage()


@pytest.mark.engine
@examples(600)
@given(st.lists(stored_files(), min_size=1, max_size=4), st.sampled_from(list(WAYS)))
def test_rows_of_older_files_have_the_initial_default(files: Sequence[Stored], way: str) -> None:
    """Whoever wrote them, at the top, in structs, lists and maps, on every way into new files; metrics hold, too."""
    with tempfile.TemporaryDirectory() as folder:
        options = table_settings(Path(folder), SCHEMA, way)
        inputs = tuple(input_file(file, number, options) for number, file in enumerate(files))
        outputs = rewritten(way, inputs, options)
        known = {file.path: FileMetrics(file.rows) for file in inputs}
        done = [complete(file, options, known) for file in outputs]
        rows = [row for file in files for row in file.rows]
        assert content([file.path for file in done], options.arrow_schema) == expected(rows, options)
        for file in done:
            check_metrics(options, file, SEEN)


MEANT = Schema(
    column(1, "id", LongType(), required=True),
    column(2, "text", StringType(), "new"),
    column(3, "must", LongType(), 8, required=True),
    column(4, "s", StructType(column(5, "x", LongType()), column(6, "y", IntegerType(), 3, True))),
)


def test_files_with_all_columns_are_copied_beside_older_ones(tmp_path: Path) -> None:
    """A file that lacks a column is decoded alone, and the bounds of the new file include the default."""
    options = table_settings(tmp_path, MEANT, "pages")
    rows = [{"id": i, "text": f"t{i}", "must": i, "s": {"x": i, "y": i}} for i in range(10, 14)]
    new = Stored(MEANT.as_struct(), rows, "ids")
    old = Stored(older(MEANT.as_struct(), frozenset(["text", "must", "s.y"])), [{"id": 1, "s": {"x": 5}}], "ids")
    inputs = tuple(input_file(file, number, options) for number, file in enumerate([new, new, old]))
    result = merge(MergeTask(inputs, KEY, 1), options, MERGED)
    assert (result.bytes_copied > 0, result.decode_reasons) == (True, {"schema-evolved": 1})
    metrics = {file.path: FileMetrics.of(described(options, file.path)) for file in inputs[:2]}
    (file,) = (complete(each, options, metrics) for each in result.files)
    assert content([file.path], options.arrow_schema) == expected([*rows, *rows, *old.rows], options)
    assert (file.lower_bounds[2], file.lower_bounds[3], file.lower_bounds[6]) == (b"new", _long(8), _int(3))
    assert {i: file.null_value_counts[i] for i in (2, 3, 5, 6)} == {2: 0, 3: 0, 5: 0, 6: 0}


def described(options: WriteSettings, path: str) -> NewDataFile:
    """A file's metrics, as its manifest entry has them."""
    return describe(NewDataFile(path, 0, 0, KEY), options, pq.read_metadata(path), {})


def _long(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def _int(value: int) -> bytes:
    return value.to_bytes(4, "little", signed=True)


@pytest.mark.parametrize("value", ["new", None])
def test_the_value_of_the_partition_precedes_the_default(tmp_path: Path, value: str | None) -> None:
    """Also NULL: an imported file does not store the source of an identity field, and has the partition's value."""
    schema = Schema(column(1, "id", LongType()), column(2, "text", StringType(), "default"))
    options = settings_of(tmp_path, schema, spec_of(schema, text="identity")).with_schema(schema)
    file = input_file(Stored(StructType(schema.fields[0]), [{"id": 1}], "ids"), 0, options)
    key = PartitionKey(0, (value,))
    (rows,) = read_inputs(FileGroup((replace(file, partition=key),), key), options)
    assert rows.to_pylist() == [{"id": 1, "text": value}]


def test_a_column_without_a_field_id_may_be_the_missing_one(tmp_path: Path) -> None:
    """It is not given the default: the file is refused, as without a default."""
    schema = Schema(column(1, "id", LongType()), column(2, "text", StringType(), "default"))
    options = table_settings(tmp_path, schema)
    kinds = pa.schema([options.arrow_schema.field("id"), pa.field("other", pa.string())])
    rows = pa.Table.from_pylist([{"id": 1, "other": "x"}], kinds)
    file = stored(tmp_path, foreign_bytes(rows), 1)
    with pytest.raises(RewriteFailed, match="column 'text' may be 'other' of the file"):
        merge(MergeTask((file,), KEY, 1), options, MERGED)


@examples(200)
@given(stored_files())
def test_new_rows_that_omit_columns_have_the_write_default(file: Stored) -> None:
    """At any depth; the initial default does not matter to them."""
    with tempfile.TemporaryDirectory() as folder:
        schema = Schema(*without_initial_defaults(SCHEMA.as_struct()).fields)
        options = table_settings(Path(folder), schema)
        own = options.with_schema(Schema(*file.kind.fields))
        batch = pa.Table.from_pylist(list(file.rows), schema=without_ids(own.arrow_schema))
        done = write_with(Absorption(), 0, [batch], options, MERGED).files
        written = content([each.path for each in done], options.arrow_schema)
        assert written == expected(file.rows, options, "write_default")


def without_initial_defaults(kind: StructType) -> StructType:
    """The same columns with initial defaults that differ from the write defaults: none."""

    def changed(kind: IcebergType) -> IcebergType:
        if isinstance(kind, StructType):
            return without_initial_defaults(kind)
        if isinstance(kind, ListType):
            return ListType(kind.element_id, changed(kind.element_type), False)
        if isinstance(kind, MapType):
            return MapType(kind.key_id, kind.key_type, kind.value_id, changed(kind.value_type), False)
        return kind

    fields = (f.model_copy(update={"field_type": changed(f.field_type), "initial_default": None}) for f in kind.fields)
    return StructType(*fields)


def test_a_required_column_without_a_write_default_must_be_written(tmp_path: Path) -> None:
    """Its initial default is only for rows of older files."""
    must = NestedField(2, "must", LongType(), required=True, initial_default=8)
    options = table_settings(tmp_path, Schema(column(1, "id", LongType()), must))
    with pytest.raises(SchemaMismatch, match="Cannot write without column 'must': the table requires it"):
        write_one(options, pa.table({"id": [1]}))


def test_a_missing_struct_with_a_uuid_is_null(tmp_path: Path) -> None:
    """pyarrow makes no NULL of such a type by itself."""
    pair = StructType(column(3, "key", UUIDType(), UUIDS[0]), column(4, "must", UUIDType(), None, True))
    schema = Schema(column(1, "id", LongType()), column(2, "pair", pair))
    options = table_settings(tmp_path, schema, "pages")
    file = input_file(Stored(StructType(schema.fields[0]), [{"id": 1}] * 3, "ids"), 0, options)
    result = merge(MergeTask((file,), KEY, 1), options, MERGED)
    assert pq.read_table(local(result.files[0].path)).to_pylist() == [{"id": 1, "pair": None}] * 3
    again = merge(MergeTask((fact(result.files[0]),) * 2, KEY, 1), options, MERGED)
    assert (again.bytes_copied > 0, again.rows_out) == (True, 6)
