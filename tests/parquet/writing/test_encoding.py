"""The values of nested columns that decide about statistics and dictionaries are those that a file stores."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import types
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from icesize.parquet.files.metrics import leaves
from icesize.parquet.writing.encoding import leaf_values
from icesize.parquet.writing.row_writer import write_rows
from tests.support.examples import examples
from tests.support.parquet_files import NAMES, local, settings_of

LEAVES = st.sampled_from([DoubleType(), FloatType(), LongType(), StringType(), UUIDType()])
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    pa.float64(): st.sampled_from([math.nan, 0.5]),
    pa.float32(): st.sampled_from([math.nan, 0.5]),
    pa.int64(): st.integers(0, 9),
    pa.large_string(): st.sampled_from("ab"),
    pa.uuid(): st.binary(min_size=16, max_size=16),
}


def _nested(below: st.SearchStrategy[IcebergType]) -> st.SearchStrategy[IcebergType]:
    lists = below.map(lambda kind: ListType(1, kind, False))
    maps = below.map(lambda kind: MapType(1, StringType(), 2, kind, False))
    return lists | maps | st.tuples(below, below).map(_struct)


def _struct(kinds: tuple[IcebergType, ...]) -> StructType:
    return StructType(*(NestedField(i, f"f{i}", kind, False) for i, kind in enumerate(kinds)))


def array_of(draw: st.DrawFn, kind: pa.DataType, rows: int, nullable: bool = True) -> pa.Array:
    """A slice of a longer array, with values behind the NULLs of lists, maps and structs."""
    first, total = draw(st.integers(0, 2)), rows + draw(st.integers(2, 4))
    nulls = draw(st.lists(st.booleans() if nullable else st.just(False), min_size=total, max_size=total))
    if not types.is_nested(kind):
        values = draw(st.lists(VALUES[kind], min_size=total, max_size=total))
        found = [None if is_null else value for value, is_null in zip(values, nulls, strict=True)]
        return pa.array(found, kind).slice(first, rows)
    mask = pa.array(nulls)
    if types.is_struct(kind):
        children = [array_of(draw, field.type, total) for field in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask).slice(first, rows)
    offsets = [0]
    for length in draw(st.lists(st.integers(0, 2), min_size=total, max_size=total)):
        offsets.append(offsets[-1] + length)
    if types.is_map(kind):
        keys = array_of(draw, kind.key_type, offsets[-1], nullable=False)
        items = array_of(draw, kind.item_type, offsets[-1])
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items, kind, mask=mask).slice(first, rows)
    large = types.is_large_list(kind)
    starts = pa.array(offsets, pa.int64() if large else pa.int32())
    lists = pa.LargeListArray if large else pa.ListArray
    elements = array_of(draw, kind.value_type, offsets[-1])
    return lists.from_arrays(starts, elements, type=kind, mask=mask).slice(first, rows)


def stored_values(kind: pa.DataType, values: list[Any]) -> list[list[Any]]:
    """The same of Python values: those of each leaf, without NULLs."""
    present = [value for value in values if value is not None]
    if types.is_struct(kind):
        return [leaf for field in kind for leaf in stored_values(field.type, [value[field.name] for value in present])]
    if types.is_map(kind):
        entries = [entry for value in present for entry in value]
        return stored_values(kind.key_type, [k for k, _ in entries]) + stored_values(
            kind.item_type, [v for _, v in entries]
        )
    if types.is_nested(kind):
        return stored_values(kind.value_type, [element for value in present for element in value])
    return [[value.bytes if isinstance(value, UUID) else value for value in present]]


@examples(100)
@given(data=st.data())
def test_only_values_that_a_file_stores_count(tmp_path: Path, data: st.DataObject) -> None:
    """Arrow has others behind NULL and outside of slices, at any depth; such rows are written with their counts."""
    kind = data.draw(st.recursive(LEAVES, _nested, max_leaves=4))
    options = settings_of(tmp_path, assign_fresh_schema_ids(Schema(NestedField(1, "v", kind, False))))
    stored = options.arrow_schema.field(0).type
    column = array_of(data.draw, stored, data.draw(st.integers(1, 5)))
    rows = pa.table([column], schema=options.arrow_schema)
    found = [values.drop_null().to_pylist() for _, values in leaf_values(leaves(options), rows)]
    assert repr(found) == repr(stored_values(stored, column.to_pylist()))
    (file,) = write_rows([rows], options, NAMES)
    assert repr(pq.read_table(local(file.path)).to_pylist()) == repr(rows.to_pylist())
