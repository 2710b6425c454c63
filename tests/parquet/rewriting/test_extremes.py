"""Rows that are decoded have the least and the greatest value that the footers of the input files say."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

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
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
)

from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import MergeResult
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.fields import FileMetaData, Statistics
from icesize.parquet.format.thrift import Fields, boolean_field, bytes_field
from icesize.parquet.reading import projection
from icesize.parquet.rewriting.merge import merge
from icesize.planning.files import FileFact, PartitionKey
from icesize.planning.plan import MergeTask
from tests.support.copying import with_ids
from tests.support.footers import Tree, with_other_bounds
from tests.support.parquet_files import (
    fact,
    files_below,
    foreign_file,
    local,
    schema_of,
    settings_of,
    with_limits,
    write_one,
)

VALUES: dict[str, tuple[Any, pa.DataType, Callable[[int], Any]]] = {
    "long": (LongType(), pa.int64(), lambda n: 2**40 * n),
    "other": (LongType(), pa.int64(), lambda n: -n),
    "int": (IntegerType(), pa.int32(), lambda n: n - 9),
    "double": (DoubleType(), pa.float64(), lambda n: n / 3),
    "float": (FloatType(), pa.float32(), lambda n: n / 2),
    "text": (StringType(), pa.string(), lambda n: f"{n:03} some text that is longer than a bound"),
    "bytes": (BinaryType(), pa.large_binary(), lambda n: bytes([n]) * 20),
    "decimal": (DecimalType(9, 2), pa.decimal128(9, 2), lambda n: Decimal(n) / 100),
    "long_decimal": (DecimalType(30, 2), pa.decimal128(30, 2), lambda n: Decimal(n - 9) * 10**20),
    "date": (DateType(), pa.date32(), lambda n: date(1960, 1, 1) + timedelta(days=n)),
    "at": (TimestampType(), pa.timestamp("us"), lambda n: datetime(1960, 1, 1) + timedelta(hours=n)),
    "flag": (BooleanType(), pa.bool_(), lambda n: n > 5),
}
SPECIAL: dict[str, tuple[Any, pa.DataType, Callable[[int], Any]]] = {
    "zero": (DoubleType(), pa.float64(), lambda n: -0.0 if n % 2 else 0.0),
    "nan": (DoubleType(), pa.float64(), lambda n: math.nan if n == 3 else n),
    "null": (LongType(), pa.int64(), lambda _: None),
    "sparse": (LongType(), pa.int64(), lambda n: n if n > 10 else None),
    "high": (StringType(), pa.string(), lambda n: "\U0010ffff" * 20 + str(n)),
}


def options_of(folder: Path, schema: Schema) -> WriteSettings:
    """Everything is decoded, and footers are read of the smallest files, too."""
    options = with_limits(settings_of(folder, schema), whole_file_bytes=500, compared_chunk_bytes=0)
    return replace(options, merge_by_copying=False)


def small_files(folder: Path) -> tuple[WriteSettings, tuple[FileFact, ...]]:
    """Two files with a column of each kind."""
    columns = {**VALUES, **SPECIAL}
    options = options_of(folder, schema_of(*((name, kind) for name, (kind, _, _) in columns.items())))

    def rows(first: int) -> pa.Table:
        numbers = range(first, first + 8)
        return pa.table({name: pa.array(map(of, numbers), kind) for name, (_, kind, of) in columns.items()})

    return options, tuple(fact(write_one(options, rows(first))) for first in (0, 8))


def merged(options: WriteSettings, inputs: tuple[FileFact, ...]) -> MergeResult:
    """One file of all rows."""
    return merge(MergeTask(inputs, PartitionKey(0), 1), options, FileNames("s1-8", 0, 0))


def lying(file: FileFact, column: str, bounds: Fields, edit: Callable[[Tree], object] = id) -> FileFact:
    """The same file under a footer in which a column has other bounds."""
    return replace(file, size_bytes=with_other_bounds(Path(local(file.path)), [*VALUES].index(column), bounds, edit))


def test_bounds_that_are_right_stay(tmp_path: Path) -> None:
    """Of all types, with NaN, zeros of both signs, NULLs alone, and texts that no bound can be above."""
    options, small = small_files(tmp_path)
    (file,) = merged(options, small).files
    assert pq.read_metadata(local(file.path)).num_rows == 16


@pytest.mark.parametrize("column", VALUES)
def test_other_bounds_fail_and_name_the_files_and_the_column(tmp_path: Path, column: str) -> None:
    """Nothing is left of what was written."""
    options, small = small_files(tmp_path)
    small = tuple(lying(file, column, {}) for file in small)
    with pytest.raises(RewriteFailed, match=f"and 1 more: column '{column}' has another minimum or max") as caught:
        merged(options, small)
    assert (caught.value.column, len(files_below(tmp_path))) == (column, 2)
    assert str(caught.value).startswith(f"Cannot rewrite {min(file.path for file in small)} and")


def _by_an_old_writer(tree: Tree) -> None:
    tree.file[FileMetaData.CREATED_BY] = bytes_field(b"parquet-mr version 1.8.1 (build 4aba4da)")


def _of_no_known_order(tree: Tree) -> None:
    del tree.file[FileMetaData.COLUMN_ORDERS]


@pytest.mark.parametrize("edit", [_by_an_old_writer, _of_no_known_order])
def test_footers_that_readers_do_not_trust_are_not_compared(tmp_path: Path, edit: Callable[[Tree], None]) -> None:
    """Old writers had wrong statistics: their files can be merged."""
    options, small = small_files(tmp_path)
    small = (lying(small[0], "long", {}, edit), small[1])
    assert sum(file.rows for file in merged(options, small).files) == 16


@pytest.mark.parametrize(
    ("column", "bounds"),
    [
        ("long", {Statistics.IS_MIN_VALUE_EXACT: boolean_field(False)}),
        ("text", {Statistics.IS_MIN_VALUE_EXACT: boolean_field(False)}),
        ("double", {Statistics.MIN_VALUE: bytes_field(b"\0\0\0\0\0\0\xf8\x7f")}),
    ],
)
def test_bounds_that_may_not_be_values_are_not_compared(tmp_path: Path, column: str, bounds: Fields) -> None:
    """Shortened ones, and NaN."""
    options, small = small_files(tmp_path)
    small = tuple(lying(file, column, bounds) for file in small)
    assert sum(file.rows for file in merged(options, small).files) == 16


@pytest.mark.parametrize(("kind", "largest"), [(DoubleType(), "ffffffffffffef7f"), (FloatType(), "ffff7f7f")])
def test_the_largest_number_may_stand_for_infinity(tmp_path: Path, kind: Any, largest: str) -> None:
    """Some writers store it as the least value of a chunk of nothing but infinity."""
    options = options_of(tmp_path, schema_of(("n", kind)))
    file = fact(write_one(options, pa.table({"n": [math.inf] * 80})))
    least = {Statistics.MIN_VALUE: bytes_field(bytes.fromhex(largest))}
    file = replace(file, size_bytes=with_other_bounds(Path(local(file.path)), 0, least))
    assert sum(file.rows for file in merged(options, (file, file)).files) == 160


def test_a_field_in_lists_lends_no_bounds_to_a_column_of_its_id(tmp_path: Path) -> None:
    """Elements of lists go by their position, so another writer may give them any id."""
    options = options_of(
        tmp_path, Schema(NestedField(1, "id", LongType()), NestedField(2, "l", ListType(3, LongType())))
    )

    def field(name: str, kind: pa.DataType, own: int) -> pa.Field:
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(own)})

    stored = pa.schema([field("id", pa.int64(), 1), field("l", pa.list_(field("element", pa.int64(), 1)), 2)])
    paths = [
        foreign_file(tmp_path, pa.table([[number] * 10, [[100]] * 10], schema=stored), f"{number}.parquet")
        for number in range(2)
    ]
    inputs = tuple(FileFact(str(path), path.stat().st_size, 10, PartitionKey(0)) for path in paths)
    (file,) = merged(options, inputs).files
    assert set(pq.read_table(local(file.path)).column("id").to_pylist()) == {0, 1}


def test_columns_that_change_places_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that have as many values and NULLs."""
    options, small = small_files(tmp_path)
    right = projection.BoundProjection.__call__

    def swapped(self: projection.BoundProjection, rows: pa.Table) -> pa.Table:
        done = right(self, rows)
        return pa.Table.from_arrays([done.column(1), done.column(0), *done.columns[2:]], schema=done.schema)

    monkeypatch.setattr(projection.BoundProjection, "__call__", swapped)
    with pytest.raises(RewriteFailed, match="column 'long' has another minimum or maximum in the new"):
        merged(options, small)


def test_types_and_names_that_changed_are_read(tmp_path: Path) -> None:
    """Bounds of another type or unit are not compared, and those of a column that some files lack."""
    options = options_of(tmp_path, schema_of(("n", LongType()), ("at", TimestampType()), ("late", LongType())))
    inputs = []
    for number, (kind, unit) in enumerate([(pa.int32(), "ms"), (pa.uint32(), "ns"), (pa.int64(), "us")]):
        times = pa.array(range(1_000 * number, 1_000 * number + 8), pa.timestamp("s")).cast(pa.timestamp(unit))
        rows = pa.table({"old": pa.array(range(8 * number, 8 * number + 8), kind), "at": times})
        path = tmp_path / f"{number}.parquet"
        pq.write_table(with_ids(rows), path, version="2.6", store_schema=False)
        inputs.append(FileFact(str(path), path.stat().st_size, 8, PartitionKey(0)))
    (file,) = merged(options, tuple(inputs)).files
    assert sorted(pq.read_table(local(file.path)).column("n").to_pylist()) == list(range(24))
