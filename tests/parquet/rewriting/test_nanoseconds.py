"""Columns of `timestamp_ns` and `timestamptz_ns`: written, merged, clustered, partitioned and compared."""

from __future__ import annotations

import struct
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.transforms import parse_transform
from pyiceberg.types import IcebergType, LongType, NestedField, StructType, TimestampNanoType, TimestamptzNanoType

from icesize.errors import RewriteFailed, UnsupportedTable
from icesize.parquet.deletes.deleted_rows import deleted_rows
from icesize.parquet.files.data_file import CopiedFile, FileMetrics
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.ordering.cluster_order import RowOrder
from icesize.parquet.rewriting.cluster import write_clustered
from icesize.parquet.rewriting.merge import merge
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.cluster_by import SORT
from icesize.planning.files import FileFact
from icesize.planning.plan import MergeTask
from tests.support.copying import KEY, MERGED, foreign_bytes, stored
from tests.support.examples import examples
from tests.support.parquet_files import NAMES, complete, fact, local, metadata_of, schema_of, with_limits, write_one
from tests.support.unit_deletes import delete_file, field, written

TIMES = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "local", TimestampNanoType()),
    NestedField(3, "at", TimestamptzNanoType()),
    NestedField(4, "s", StructType(NestedField(5, "deep", TimestampNanoType()))),
)
COPIED = {
    "least_chunk_bytes": 0, "least_page_rows": 0, "least_page_bytes": 0, "least_copied_bytes": 0,
    "good_group_bytes": 2**40, "good_group_rows": 2**40,
}  # fmt: skip
LEAST, MOST = -(2**63) + 1, 2**63 - 1
INSTANTS = [0, -1, 1, LEAST, MOST, 1_700_000_000_123_456_789, -3_600_000_000_001, 86_400_000_000_000]
nanos = st.none() | st.sampled_from(INSTANTS) | st.integers(LEAST, MOST)


def table_settings(folder: Path | str, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC) -> WriteSettings:
    """Settings of a table of format v3 with these columns."""
    document = metadata_of(folder, schema_of(("id", LongType()))).model_dump(mode="json", by_alias=True)
    document["format-version"], document["next-row-id"] = 3, 0
    document["schemas"], document["last-column-id"] = [TIMES.model_dump(mode="json", by_alias=True)], 5
    document["partition-specs"] = [spec.model_dump(mode="json", by_alias=True)]
    options = WriteSettings.of(TableMetadataUtil.parse_obj(document), {}, 2**29)
    return replace(options, format_version=2)  # row lineage has tests of its own


def rows_of(values: Sequence[int | None], schema: pa.Schema, first: int = 0) -> pa.Table:
    """A row for each number of nanoseconds."""
    columns = [range(first, first + len(values)), values, values, [{"deep": value} for value in values]]
    kinds = [pa.int64(), pa.int64(), pa.int64(), pa.struct([pa.field("deep", pa.int64())])]
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.table([array.cast(each.type) for array, each in zip(arrays, schema, strict=True)], schema=schema)


def content(paths: Sequence[str]) -> Counter[tuple[Any, ...]]:
    """All rows of these files, times as numbers."""
    kinds = pa.schema([(n, pa.int64()) for n in ("id", "local", "at")] + [("s", pa.struct([("deep", pa.int64())]))])
    rows = (row for path in paths for row in pq.read_table(local(path), partitioning=None).cast(kinds).to_pylist())
    return Counter((row["id"], row["local"], row["at"], row["s"]["deep"]) for row in rows)


def expected(values: Sequence[int | None]) -> Counter[tuple[Any, ...]]:
    """The same, from the values."""
    return Counter((i, value, value, value) for i, value in enumerate(values))


@examples(200)
@given(st.lists(nanos, min_size=2, max_size=30), st.sampled_from(["decoded", "pages", "cluster"]), st.booleans())
def test_every_nanosecond_survives(values: list[int | None], way: str, foreign: bool) -> None:
    """Whether pages are copied, rows are decoded or put in another order; bounds are exact."""
    with tempfile.TemporaryDirectory() as folder:
        options = table_settings(folder)
        options = with_limits(options, **COPIED) if way == "pages" else options
        half = len(values) // 2
        tables = [rows_of(values[:half], options.arrow_schema), rows_of(values[half:], options.arrow_schema, half)]
        done = [write_one(options, table) for table in tables]
        inputs = tuple(fact(file) for file in done)
        if foreign:
            folders = (Path(folder) / str(i) for i in range(2))
            inputs = tuple(stored(at, foreign_bytes(t), len(t)) for at, t in zip(folders, tables, strict=True))
        task = MergeTask(inputs, KEY, 1)
        order = RowOrder(SORT, (("local", ()),))
        result = write_clustered(task, order, options, MERGED) if way == "cluster" else merge(task, options, MERGED)
        metrics = {file.path: FileMetrics.of(each) for file, each in zip(inputs, done, strict=True)}
        assert isinstance(result.files[0], CopiedFile) is (way == "pages")
        (file,) = (complete(each, options, metrics) for each in result.files)
        assert content([file.path]) == expected(values)
        if way == "cluster":
            ordered = pq.read_table(local(file.path))["local"].cast(pa.int64()).drop_null().to_pylist()
            assert ordered == sorted(ordered)
        known = [value for value in values if value is not None]
        for i in (2, 3, 5) if known else ():
            assert struct.unpack("<q", file.lower_bounds[i]) == (min(known),)
            assert struct.unpack("<q", file.upper_bounds[i]) == (max(known),)


def test_files_say_that_they_hold_nanoseconds(tmp_path: Path) -> None:
    """INT64, adjusted to UTC for the type with a zone, as the specification has it."""
    options = table_settings(tmp_path)
    file = write_one(options, rows_of([1], options.arrow_schema))
    columns = pq.ParquetFile(local(file.path)).schema
    kinds = [(columns.column(i).physical_type, str(columns.column(i).logical_type)) for i in (1, 2)]
    assert [kind for kind, _ in kinds] == ["INT64", "INT64"]
    assert all("nanoseconds" in name for _, name in kinds)
    assert ["isAdjustedToUTC=true" in name for _, name in kinds] == [False, True]


@examples(200)
@given(
    st.lists(nanos, min_size=1, max_size=20),
    st.sampled_from(["hour", "day", "month", "year", "bucket[7]"]),
    st.sampled_from([2, 3, 5]),
)
def test_partitions_are_those_of_iceberg(values: list[int | None], transform: str, source: int) -> None:
    """PyIceberg computes them one value at a time, except for years that Python lacks; floors are below zero, too."""
    spec = PartitionSpec(PartitionField(source, 1000, parse_transform(transform), "p"), spec_id=0)
    with tempfile.TemporaryDirectory() as folder:
        options = table_settings(folder, spec)
        files = write_rows([rows_of(values, options.arrow_schema)], options, NAMES)
        of_value = parse_transform(transform).transform(TIMES.find_type(source))
        wanted = Counter(None if value is None else of_value(value) for value in values)
        assert {file.partition.values[0]: file.rows for file in files} == dict(wanted)


def test_equal_nanoseconds_are_deleted(tmp_path: Path) -> None:
    """Rows that differ by a nanosecond from the key of an equality delete stay."""
    options = table_settings(tmp_path)
    key = pa.table([pa.array([7], pa.timestamp("ns"))], schema=pa.schema([field(2, "local", pa.timestamp("ns"))]))
    delete = delete_file(*written(tmp_path, "e.parquet", key), 1, 2, [2])
    file = fact(write_one(options, rows_of([6, 7, 8, None], options.arrow_schema)), 1)
    found = deleted_rows([FileFact(file.path, file.size_bytes, 4, KEY, 1, deletes=(delete,))], options, KEY)
    assert {path: list(rows) for path, rows in found.positions.items()} == {file.path: [1]}


@pytest.mark.parametrize("unit", ["us", "ms"])
def test_coarser_times_are_read_by_what_the_file_says(tmp_path: Path, unit: str) -> None:
    """A file of another writer with microseconds is read as such."""
    options = table_settings(tmp_path)
    kinds = [
        pa.field(f.name, pa.timestamp(unit, f.type.tz), metadata=f.metadata) for f in list(options.arrow_schema)[1:3]
    ]
    rows = pa.table([pa.array([1], kind.type) for kind in kinds], pa.schema(kinds))
    rows = rows.add_column(0, options.arrow_schema.field(0), pa.array([0], pa.int64()))
    file = stored(tmp_path, foreign_bytes(rows), 1)
    (done,) = merge(MergeTask((file,), KEY, 1), options, MERGED).files
    scale = 10**3 if unit == "us" else 10**6
    assert pq.read_table(local(done.path))["local"].cast(pa.int64()).to_pylist() == [scale]


def test_times_of_96_bits_are_refused(tmp_path: Path) -> None:
    """They are read as microseconds, which would drop three digits without a word."""
    options = table_settings(tmp_path)
    rows = rows_of([1], options.arrow_schema)
    file = stored(tmp_path, foreign_bytes(rows, use_deprecated_int96_timestamps=True), 1)
    with pytest.raises(RewriteFailed, match=r"column 'local' is stored as INT96, and the table has columns with nano"):
        merge(MergeTask((file,), KEY, 1), options, MERGED)


@pytest.mark.parametrize("kind", [TimestampNanoType(), TimestamptzNanoType()])
def test_partition_values_with_nanoseconds_are_refused(tmp_path: Path, kind: IcebergType) -> None:
    """PyIceberg reads no manifest that has them."""
    source = next(each for each in TIMES.fields if each.field_type == kind)
    spec = PartitionSpec(PartitionField(source.field_id, 1000, parse_transform("identity"), "p"), spec_id=0)
    with pytest.raises(
        UnsupportedTable, match=f"partition field 'p': PyIceberg does not read values of type {kind} in"
    ):
        table_settings(tmp_path, spec)


def test_a_date_is_no_timestamp(tmp_path: Path) -> None:
    """Iceberg's promotion of dates to timestamps is refused with the name of the column."""
    options = table_settings(tmp_path)
    kinds = [options.arrow_schema.field(0), options.arrow_schema.field(1).with_type(pa.date32())]
    rows = pa.table([pa.array([0], pa.int64()), pa.array([9], pa.date32())], pa.schema(kinds))
    file = stored(tmp_path, foreign_bytes(rows), 1)
    with pytest.raises(RewriteFailed, match=r"column 'local' is date32\[day\], the table has timestamp\[ns\]"):
        merge(MergeTask((file,), KEY, 1), options, MERGED)
