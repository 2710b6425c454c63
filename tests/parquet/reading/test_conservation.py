"""Rows are counted as Parquet's footers count them, whatever Arrow types they have."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.metrics import leaves
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.footer import read_footer
from icesize.parquet.format.sources import BytesSource
from icesize.parquet.format.statistics import bounds_differ, count_of
from icesize.parquet.reading.casting import CastingError
from icesize.parquet.reading.conservation import Conservation, Count
from icesize.parquet.reading.extremes import NO_ENDS, OPEN, Ends
from icesize.planning.files import PartitionKey
from tests.support.examples import examples
from tests.support.parquet_files import settings_of

SCHEMA = Schema(
    NestedField(1, "a", LongType(), False),
    NestedField(
        2, "s", StructType(NestedField(4, "x", LongType(), False), NestedField(5, "l", ListType(6, LongType()))), False
    ),
    NestedField(3, "m", MapType(7, StringType(), 8, ListType(9, StructType(NestedField(10, "y", LongType())))), False),
)
NUMBERS = st.integers(0, 9) | st.none()
LISTS = {"list": pa.list_, "large": pa.large_list, "view": pa.list_view, "fixed": lambda kind: pa.list_(kind, 2)}


@cache
def options() -> WriteSettings:
    return settings_of("/nowhere", SCHEMA)


LEAVES = [leaf.field_id for leaf in leaves(options())]


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Rows with some kind of lists, NULLs at all levels, and empty lists where the kind has them."""
    kind = draw(st.sampled_from(sorted(LISTS)))
    size: dict[str, Any] = {"min_size": 2, "max_size": 2} if kind == "fixed" else {"max_size": 3}
    lists = st.lists(NUMBERS, **size) | st.none()
    structs = st.fixed_dictionaries({"x": NUMBERS, "l": lists}) | st.none()
    points = st.lists(st.fixed_dictionaries({"y": NUMBERS}) | st.none(), **size) | st.none()
    maps = st.lists(st.tuples(st.sampled_from("kl"), points), max_size=2) | st.none()
    rows = draw(st.lists(st.fixed_dictionaries({"a": NUMBERS, "s": structs, "m": maps}), max_size=8))
    of = LISTS[kind]
    fields = {"a": pa.int64(), "s": pa.struct([("x", pa.int64()), ("l", of(pa.int64()))])}
    fields["m"] = pa.map_(pa.string(), of(pa.struct([("y", pa.int64())])))
    first = draw(st.integers(0, len(rows)))
    return pa.Table.from_pylist(rows, schema=pa.schema(list(fields.items()))).slice(first)


def counted(rows: pa.Table) -> dict[int, Count]:
    found = Conservation(options())
    found.add_new(rows)
    return {leaf: Count(*count[:2]) for leaf, count in found.sums.items()}


@given(tables())
@examples(200)
def test_arrow_rows_are_counted_as_footers_count_them(rows: pa.Table) -> None:
    """pyarrow writes plain lists of the same values, from rows made of Python values."""
    fields = {"a": pa.int64(), "s": pa.struct([("x", pa.int64()), ("l", pa.list_(pa.int64()))])}
    fields["m"] = pa.map_(pa.string(), pa.list_(pa.struct([("y", pa.int64())])))
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows.to_pylist(), schema=pa.schema(list(fields.items()))), out)
    footer = read_footer(BytesSource(memoryview(out.getvalue())))
    chunks = [group.chunks for group in footer.row_groups] or [[]]
    found = [Count(*count_of(*each)) for each in zip(chunks[0], footer.columns, strict=False)]
    assert [counted(rows)[leaf] for leaf in LEAVES] == (found or [Count()] * len(LEAVES))


def test_a_null_in_a_dictionary_counts() -> None:
    """An index may be there that means NULL."""
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1, None]), pa.array([7, None]))
    assert counted(pa.table({"a": column}))[LEAVES[0]] == Count(4, 3)


def test_rows_of_files_and_new_ones_do_not_mix() -> None:
    """A file has an older column of the name that new rows have, and of their type."""
    found = Conservation(options())
    fields = [pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "99"})]
    rows = pa.table([pa.array([1, 2])], schema=pa.schema(fields))
    found.add_rows(rows, rows.schema, None)
    found.add_new(rows)
    assert found.sums[LEAVES[0]][:2] == (4, 2)


def test_values_behind_a_null_do_not_count() -> None:
    """Arrow may have some in lists and structs that are NULL."""
    hidden = pa.ListArray.from_arrays([0, 2, 3], pa.array([1, 2, None]), mask=pa.array([True, False]))
    structs = pa.StructArray.from_arrays([pa.array([1, 2]), hidden], ["x", "l"], mask=pa.array([False, True]))
    found = counted(pa.table({"s": structs}))
    assert [found[leaf] for leaf in LEAVES[1:3]] == [Count(2, 1), Count(2, 2)]


def test_new_rows_go_by_name_whatever_ids_they_have() -> None:
    """Rows that were read from another table have that table's field ids."""
    fields = [pa.field("a", pa.int64(), metadata={"PARQUET:field_id": str(LEAVES[1])})]
    found = counted(pa.table([pa.array([1, 2])], schema=pa.schema(fields)))
    assert [found[leaf] for leaf in LEAVES[:2]] == [Count(2, 0), Count(2, 2)]


def test_elements_keys_and_values_count_whatever_ids_they_have() -> None:
    """Rows of files have them by their position; fields of a struct within them go by id."""

    def field(name: str, kind: pa.DataType, own: int) -> pa.Field:
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(own)})

    (map_id,) = (top.field_id for top in options().schema.fields if top.name == "m")
    points = pa.list_(field("element", pa.struct([field("renamed", pa.int64(), LEAVES[-1])]), 98))
    fields = [field("m", pa.map_(pa.field("key", pa.string(), False, {"PARQUET:field_id": "99"}), points), map_id)]
    maps = pa.array([[("k", [{"renamed": 1}, {"renamed": 2}, None])]], fields[0].type)
    rows, found = pa.table([maps], schema=pa.schema(fields)), Conservation(options())
    found.add_rows(rows, rows.schema, None)
    assert [found.sums[leaf] for leaf in LEAVES[-2:]] == [Count(1, 0), Count(3, 1)]


def test_a_field_id_at_another_place_is_refused() -> None:
    """A field in a struct has the id of a top-level column: its values are none of that column, nor is that NULL."""
    inner = pa.field("x", pa.int64(), metadata={"PARQUET:field_id": str(LEAVES[0])})
    (struct_id,) = (top.field_id for top in options().schema.fields if top.name == "s")
    fields = [pa.field("s", pa.struct([inner]), metadata={"PARQUET:field_id": str(struct_id)})]
    rows = pa.table([pa.array([{"x": 1}], fields[0].type)], schema=pa.schema(fields))
    with pytest.raises(CastingError, match=f"field id {LEAVES[0]} is not where the table has it"):
        Conservation(options()).add_rows(rows, rows.schema, None)


def test_columns_that_rows_lack_are_null_once_for_each_slot() -> None:
    """A field of structs has as many slots as their lists have elements."""
    maps = pa.array([[("k", [{}, {}]), ("l", None)], None], pa.map_(pa.string(), pa.list_(pa.struct([]))))
    found = counted(pa.table({"m": maps}))
    assert (found[LEAVES[0]], found[LEAVES[-1]]) == (Count(2, 2), Count(4, 4))


def test_what_is_unknown_agrees_with_everything() -> None:
    """A footer may lack null counts; the entries are compared all the same."""
    count = Conservation(options())
    count.add(dict.fromkeys(LEAVES, Count(3, 1)))
    file = NewDataFile("f", 1, 3, PartitionKey(0), counts=dict.fromkeys(LEAVES, (3, None)))
    assert count.difference([file]) is None
    leaf = count.difference([replace(file, counts={**file.counts, LEAVES[2]: (4, None)})])
    assert leaf is leaves(options())[2]
    file = replace(file, counts={**dict.fromkeys(LEAVES, (3, 1)), LEAVES[0]: (3, 2)})
    with pytest.raises(
        RewriteFailed, match="column 'a' has 3 entries, 1 of them NULL, in the input files, and 3 entries, 2 of"
    ) as caught:
        count.check([file])
    assert caught.value.column == "a"


def test_only_exact_bounds_are_compared() -> None:
    """Bounds that are cut, missing or not a number say nothing."""

    def chunk(*values: float | str) -> Any:
        out = io.BytesIO()
        pq.write_table(pa.table({"v": values}), out)
        footer = read_footer(BytesSource(memoryview(out.getvalue())))
        return footer.columns[0].element, footer.row_groups[0].chunks[0].statistics

    (kind, one), (_, other), (_, zeros) = chunk(1.0, 2.0), chunk(1.0, 3.0), chunk(-0.0, 2.0)
    assert bounds_differ(kind, one, other)
    assert not bounds_differ(kind, one, {field_id: value for field_id, value in other.items() if field_id < 7})
    assert not bounds_differ(kind, one, {})
    assert not bounds_differ(kind, zeros, chunk(0.0, 2.0)[1])
    (text, short), (_, long) = chunk("a", "b"), chunk("a", "c")
    assert bounds_differ(text, short, long)


@given(st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=3), st.booleans()), max_size=4))
@examples(200)
def test_ends_of_some_files_enclose_no_more_than_all_rows(files: list[tuple[list[int], bool]]) -> None:
    """Right ends always agree. Other ones do not where all files are known, nor do those that lack a known value."""

    def ends(values: list[int]) -> Ends:
        return Ends(min(values), max(values)) if values else NO_ENDS

    read, written = NO_ENDS, ends([value for values, _ in files for value in values])
    for values, is_known in files:
        read = read.plus(ends(values) if is_known else OPEN)
    assert read.agrees(written)
    if read.lower is not None:
        assert not read.agrees(Ends(read.lower + 1, 10))
        assert not read.agrees(Ends(0, read.upper - 1))
        assert read.agrees(Ends(-1, 10)) == read.is_open
        assert read.agrees(Ends(5, 5, is_open=True)) == (read.is_open or read.lower <= 5 <= read.upper)
