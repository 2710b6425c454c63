"""Sorted tables: files are in Iceberg's order, and say so only where all of their rows are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
)

from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.ordering.sort_order import sorter_of
from icesize.parquet.rewriting.merge import merge
from icesize.parquet.writing.row_writer import RowWriter, write_rows
from icesize.planning.files import PartitionKey
from icesize.planning.plan import MergeTask
from tests.support import tables
from tests.support.examples import examples
from tests.support.parquet_files import NAMES, fact, local, schema_of, settings_of, spec_of, with_limits, write_one
from tests.support.partition_values import CASES, array_of, wrapped
from tests.support.sort_values import (
    ASC,
    BY_PAIR,
    DESC,
    FIRST,
    LAST,
    PAIR,
    WITH_NAN,
    Field,
    order_of,
    python_key,
    sorted_by,
)


def column(file: NewDataFile, name: str) -> list[Any]:
    """Values in a file, in their order."""
    values: list[Any] = pq.ParquetFile(local(file.path)).read().column(name).to_pylist()
    return values


_DIRECTIONS = st.sampled_from([ASC, DESC])
_NULLS = st.sampled_from([FIRST, LAST])


@pytest.mark.parametrize(
    ("kind", "values", "transform"),
    [(kind, values, transform) for kind, values, transforms in [*CASES, *WITH_NAN] for transform in transforms],
    ids=lambda x: str(x) if isinstance(x, (str, IcebergType)) else "",
)
@examples(25)
@given(data=st.data())
def test_rows_are_in_iceberg_s_order(
    tmp_path: Path, kind: IcebergType, values: st.SearchStrategy[Any], transform: str, data: st.DataObject
) -> None:
    """Every type under every transform sorts as plain Python sorts PyIceberg's values; equal rows keep their order."""
    drawn = data.draw(st.lists(st.none() | values, max_size=12))
    direction, nulls = data.draw(_DIRECTIONS), data.draw(_NULLS)
    options = sorted_by(
        settings_of(tmp_path, schema_of(("v", kind), ("row", LongType()))), (1, transform, direction, nulls)
    )
    array = array_of(kind, drawn, options.arrow_schema.field("v").type)
    rows = pa.table([array, pa.array(range(len(drawn)), pa.int64())], schema=options.arrow_schema)
    apply = parse_transform(transform).transform(kind) if transform != "void" else lambda v: 0
    sorter = sorter_of(options)
    assert sorter is not None
    assert sorter.order_id == 7
    key = python_key(direction, nulls)
    expected = sorted(range(len(drawn)), key=lambda i: key(_value(wrapped(transform, kind, apply(drawn[i])))))
    assert sorter(rows).column("row").to_pylist() == expected


def _value(value: Any) -> Any:
    return value.bytes if hasattr(value, "bytes") else value


@examples(60)
@given(
    pairs=st.lists(st.tuples(st.none() | st.integers(0, 3), st.none() | st.floats()), min_size=1, max_size=40),
    directions=st.tuples(_DIRECTIONS, _DIRECTIONS),
    nulls=st.tuples(_NULLS, _NULLS),
    cut=st.integers(1, 40),
)
def test_files_of_two_fields(
    tmp_path: Path,
    pairs: list[tuple[int | None, float | None]],
    directions: tuple[SortDirection, SortDirection],
    nulls: tuple[NullOrder, NullOrder],
    cut: int,
) -> None:
    """The second field orders rows that are equal in the first; batches do not matter."""
    fields = [(i + 1, "identity", directions[i], nulls[i]) for i in range(2)]
    options = sorted_by(settings_of(tmp_path, PAIR), *fields)
    rows = pa.table(
        {"a": pa.array([a for a, _ in pairs], pa.int64()), "b": pa.array([b for _, b in pairs], pa.float64())}
    )
    (file,) = write_rows(rows.to_batches(max_chunksize=cut), options, NAMES)
    keys = [python_key(directions[i], nulls[i]) for i in range(2)]
    expected = sorted(pairs, key=lambda pair: (keys[0](pair[0]), keys[1](pair[1])))
    assert repr(list(zip(column(file, "a"), column(file, "b"), strict=True))) == repr(expected)
    assert file.sort_order_id == 7


def numbers(count: int, start: int = 0) -> pa.Table:
    """Rows in no order, `a` unique, from `start` on."""
    return pa.table({"a": [start + i * 7_919 % count for i in range(count)], "b": [i / 3 for i in range(count)]})


def test_equal_files_of_a_sorted_partition_follow_each_other(tmp_path: Path) -> None:
    """Rows that are together are sorted before they are cut: each file is sorted, and above the one before."""
    options = sorted_by(settings_of(tmp_path, PAIR, target=20_000), *BY_PAIR)
    files = write_rows([numbers(40_009)], options, NAMES)
    assert len(files) > 2
    assert [value for file in files for value in column(file, "a")] == list(range(40_009))
    assert {file.sort_order_id for file in files} == {7}


def test_a_file_of_several_runs_does_not_claim_an_order(tmp_path: Path) -> None:
    """Rows that come after some were written are sorted among themselves only, and the file does not say it is."""
    options = sorted_by(settings_of(tmp_path, PAIR), *BY_PAIR)
    writer = RowWriter(options, NAMES, max_buffer_bytes=8_000)
    for start in (5_000, 0):
        writer.write(numbers(1_009, start))
    (file,) = writer.close()
    assert column(file, "a") == [*range(5_000, 6_009), *range(1_009)]
    assert file.sort_order_id is None


def test_rows_that_waited_on_disk_are_sorted(tmp_path: Path) -> None:
    """Rows of a partition that come together from disk are sorted like others, as far as memory goes."""
    schema = schema_of(("a", LongType()), ("b", DoubleType()), ("h", LongType()))
    spec = spec_of(schema, h="identity")
    options = sorted_by(settings_of(tmp_path, schema, spec), *BY_PAIR)
    writer = RowWriter(options, NAMES, max_buffer_bytes=20_000)
    rows = numbers(4_001).append_column("h", pa.array([i % 40 for i in range(4_001)]))
    for batch in rows.to_batches(max_chunksize=200):
        writer.write(batch)
    files = writer.close()
    assert len(files) == 40
    assert all(column(file, "a") == sorted(column(file, "a")) and file.sort_order_id == 7 for file in files)


def test_merged_files_are_sorted(tmp_path: Path) -> None:
    """Unsorted input files become a sorted file; beyond the decode buffer each run is sorted and nothing is claimed."""
    plain = settings_of(tmp_path, PAIR, properties={"write.parquet.row-group-limit": "300"})
    options = sorted_by(plain, *BY_PAIR)
    inputs = tuple(fact(write_one(plain, numbers(401, start))) for start in (802, 0, 401))
    (file,) = merge(MergeTask(inputs, PartitionKey(0), 1), options, NAMES).files
    assert (column(file, "a"), file.sort_order_id) == (list(range(1_203)), 7)
    footer = pq.read_metadata(local(file.path))
    assert max(footer.row_group(i).num_rows for i in range(footer.num_row_groups)) <= 300
    outputs = merge(MergeTask(inputs, PartitionKey(0), 2), options, NAMES).files
    assert [column(each, "a") == sorted(column(each, "a")) for each in outputs] == [True, True]
    assert [each.sort_order_id for each in outputs] == [7, 7]
    (unsorted,) = merge(MergeTask(inputs, PartitionKey(0), 1), plain, NAMES).files
    assert (column(unsorted, "a")[:2], unsorted.sort_order_id) == ([802, 802 + 7_919 % 401], None)

    few = with_limits(options, decoded_bytes=6_000)
    (file,) = merge(MergeTask(inputs, PartitionKey(0), 1), few, NAMES).files
    assert column(file, "a") == [*range(802, 1_203), *range(401), *range(401, 802)]
    assert file.sort_order_id is None


def test_a_source_inside_a_struct(tmp_path: Path) -> None:
    """A null struct has a null source; fields under void order nothing."""
    inner = StructType(NestedField(3, "x", IntegerType(), False))
    schema = Schema(NestedField(1, "id", LongType(), False), NestedField(2, "s", inner, False))
    options = sorted_by(settings_of(tmp_path, schema), (1, "void", DESC, FIRST), (3, "bucket[4]", ASC, LAST))
    structs = [None, {"x": 5}, {"x": None}, {"x": 2}, {"x": 34}]
    (file,) = write_rows([pa.table({"id": range(5), "s": structs})], options, NAMES)
    bucket = parse_transform("bucket[4]").transform(IntegerType())
    expected = sorted((1, 3, 4), key=lambda i: bucket(structs[i]["x"]))  # type: ignore[index, arg-type, return-value]
    assert (column(file, "id"), file.sort_order_id) == ([*expected, 0, 2], 7)


@pytest.mark.parametrize(
    "field", [(1, "zorder", ASC, FIRST), (99, "identity", ASC, FIRST), (3, "identity", ASC, FIRST)]
)
def test_an_order_that_cannot_be_honoured_is_not_claimed(tmp_path: Path, field: Field) -> None:
    """An unknown transform, a dropped column, an element of a list: rows stay as they come."""
    schema = Schema(
        NestedField(1, "a", LongType(), False), NestedField(2, "l", ListType(3, StringType(), False), False)
    )
    options = sorted_by(settings_of(tmp_path, schema), (1, "identity", ASC, FIRST), field)
    assert sorter_of(options) is None
    (file,) = write_rows([pa.table({"a": [3, 1, 2]})], options, NAMES)
    assert (column(file, "a"), file.sort_order_id) == ([3, 1, 2], None)


def test_settings_take_the_order_of_the_table(tmp_path: Path) -> None:
    """The table's current sort order travels with the settings; a table without one has none."""
    assert settings_of(tmp_path, PAIR).sort_order_json == ""
    metadata = new_table_metadata(PAIR, UNPARTITIONED_PARTITION_SPEC, order_of(*BY_PAIR), str(tmp_path), {})
    options = WriteSettings.of(metadata, {}, 2**29)
    assert SortOrder.model_validate_json(options.sort_order_json) == metadata.sort_order()
    sorter = sorter_of(options)
    assert sorter is not None
    assert sorter.order_id == metadata.default_sort_order_id


def test_pyiceberg_reads_the_order_of_a_file(lake: SqlCatalog) -> None:
    """After an append the manifest names the sort order of files that are sorted, and of no others."""
    spec, order = tables.spec_of({"kind": "identity"}), SortOrder(SortField(1, parse_transform("identity"), DESC, LAST))
    table = lake.create_table("db.t", tables.SCHEMA, partition_spec=spec, sort_order=order)
    unsorted = replace(tables.write(table, [1, 3, 2], "b"), sort_order_id=None)
    tables.run(lake, tables.request_on(table, [tables.write(table, [4, 6, 5], "a"), unsorted]), table)
    table = lake.load_table("db.t")
    head = table.current_snapshot()
    assert head is not None
    manifests = head.manifests(table.io)
    entries = [entry.data_file for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]
    found = {entry.partition[0]: entry.sort_order_id for entry in entries}
    assert found == {"a": table.metadata.default_sort_order_id, "b": None}
    assert table.metadata.default_sort_order_id == 1
    (path,) = (entry.file_path for entry in entries if entry.partition[0] == "a")
    assert pq.ParquetFile(local(path)).read().column("id").to_pylist() == [6, 5, 4]
