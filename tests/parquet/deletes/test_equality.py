"""Equality deletes against a model that looks at each row by itself, and what cannot be applied."""

from __future__ import annotations

import math
import struct
import tempfile
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
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
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icesize.errors import RewriteFailed
from icesize.parquet.deletes.deleted_rows import NONE_DELETED, deleted_rows
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.reading.prefetch import Fetched
from icesize.planning.files import DeleteFile, FileFact, PartitionKey
from tests.support.examples import examples
from tests.support.parquet_files import REMOTE, settings_of, spec_of, with_limits
from tests.support.unit_deletes import UNPARTITIONED, delete_file, field, position_deletes, written

NAN = math.nan
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]


def same(value: object) -> object:
    """What differs exactly where Java's comparators see a difference."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value.hex()
    return value


@dataclass(frozen=True)
class Kind:
    """A column: its type now, the Arrow types it has had, and values that all of them hold."""

    field_id: int
    type: IcebergType
    stored: Sequence[pa.DataType]
    values: Sequence[Any]

    def read(self, value: Any, stored: pa.DataType) -> Any:
        """The value as the table has it after it was stored so."""
        return float(np.float32(value)) if value is not None and stored == pa.float32() else value


KINDS = {
    "whole": Kind(1, LongType(), [pa.int32(), pa.int64()], [0, 1, -1, 2**31 - 1]),
    "real": Kind(2, DoubleType(), [pa.float32(), pa.float64()], [0.0, -0.0, NAN, OTHER_NAN, 0.1, math.inf]),
    "part": Kind(3, FloatType(), [pa.float32()], [0.0, -0.0, NAN, 1.5]),
    "money": Kind(4, DecimalType(20, 2), [pa.decimal128(9, 2), pa.decimal128(20, 2)], [Decimal("0.10"), Decimal(7)]),
    "text": Kind(
        5, StringType(), [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ["", "a", "ä"]
    ),
    "raw": Kind(6, BinaryType(), [pa.binary(), pa.large_binary()], [b"", b"a", b"\xff\x00"]),
    "mark": Kind(7, FixedType(2), [pa.binary(2)], [b"ab", b"\x00\x00"]),
    "key": Kind(8, UUIDType(), [pa.binary(16)], [uuid.UUID(int=0).bytes, uuid.UUID(int=7).bytes]),
    "day": Kind(9, DateType(), [pa.date32()], [date(1970, 1, 1), date(1969, 12, 31)]),
    "clock": Kind(10, TimeType(), [pa.time64("us")], [time(0), time(1, 2, 3, 4)]),
    "local": Kind(
        11, TimestampType(), [pa.timestamp("us"), pa.timestamp("ms")], [datetime(1970, 1, 1), datetime(1960, 1, 2)]
    ),
    "at": Kind(
        12,
        TimestamptzType(),
        [pa.timestamp("us", "UTC")],
        [datetime(1970, 1, 1, tzinfo=timezone.utc), datetime(2300, 1, 1, tzinfo=timezone.utc)],
    ),
    "flag": Kind(13, BooleanType(), [pa.bool_()], [True, False]),
    "deep": Kind(23, LongType(), [pa.int32(), pa.int64()], [0, 5]),
    "deeper": Kind(25, StringType(), [pa.string()], ["x", "y"]),
}
BY_ID = {kind.field_id: name for name, kind in KINDS.items()}
RECORD = StructType(
    NestedField(21, "other", LongType()),
    NestedField(24, "inner", StructType(NestedField(25, "deeper", StringType()))),
    NestedField(23, "deep", LongType()),
)
SCHEMA = Schema(
    *(NestedField(kind.field_id, name, kind.type) for name, kind in KINDS.items() if kind.field_id < 20),
    NestedField(20, "record", RECORD),
    NestedField(30, "all", ListType(31, LongType())),
)
PARTITIONED = spec_of(SCHEMA, text="identity")
DEFAULTS: Mapping[str, Any] = {name: kind.values[0] for name, kind in KINDS.items()}
"""Values that rows of files without a column have, in some of the cases."""


def with_defaults(struct: StructType) -> StructType:
    """The same columns with their initial defaults; structs have none of their own."""
    fields = []
    for each in struct.fields:
        kind = with_defaults(each.field_type) if isinstance(each.field_type, StructType) else each.field_type
        default = DEFAULTS.get(each.name)
        default = uuid.UUID(bytes=default) if each.name == "key" else default
        fields.append(each.model_copy(update={"field_type": kind, "initial_default": default}))
    return StructType(*fields)


DEFAULTED = Schema(*with_defaults(SCHEMA.as_struct()).fields)
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Stored:
    """Rows and how a file has them: the Arrow type of each column that it has, under what names, and how it is cut."""

    types: Mapping[str, pa.DataType]
    rows: Sequence[Row]
    prefix: str
    group_rows: int

    def table(self) -> pa.Table:
        """The file's rows."""
        arrays, fields = [], []
        for name, kind in self.types.items():
            if KINDS[name].field_id < 20:
                arrays.append(pa.array([row[name] for row in self.rows], kind))
                fields.append(field(KINDS[name].field_id, self.prefix + name, kind))
        if below := [name for name in self.types if KINDS[name].field_id > 20]:
            kind = self._record(below)
            arrays.append(pa.array([self._in_record(row, below) for row in self.rows], kind))
            fields.append(field(20, self.prefix + "record", kind))
        arrays.append(pa.array(range(len(self.rows)), pa.int64()))
        fields.append(field(99, "dropped", pa.int64()))
        return pa.table(arrays, schema=pa.schema(fields))

    def _record(self, below: Sequence[str]) -> pa.DataType:
        fields = [field(23, self.prefix + "deep", self.types["deep"])] if "deep" in below else []
        if "deeper" in below:
            inner = pa.struct([field(25, self.prefix + "deeper", self.types["deeper"])])
            fields.append(field(24, self.prefix + "inner", inner))
        return pa.struct(fields)

    def _in_record(self, row: Row, below: Sequence[str]) -> Mapping[str, Any] | None:
        if all(row[name] is None for name in below):
            return None  # NULL above them, too
        found = {self.prefix + "deep": row["deep"]} if "deep" in below else {}
        if "deeper" in below:
            inner = None if row["deeper"] is None else {self.prefix + "deeper": row["deeper"]}
            found[self.prefix + "inner"] = inner
        return found


@st.composite
def stored(draw: st.DrawFn, names: Sequence[str]) -> Stored:
    """Rows of these columns; of few values, so that some are equal."""
    kinds = {name: draw(st.sampled_from(KINDS[name].stored)) for name in names}
    row = st.fixed_dictionaries({n: st.sampled_from([None, *KINDS[n].values]) for n in names})
    prefix = draw(st.sampled_from(["", "", "old_"]))
    return Stored(kinds, draw(st.lists(row, max_size=12)), prefix, draw(st.sampled_from([1, 4, 100])))


@dataclass(frozen=True)
class Case:
    """Data files with their numbers, delete files with theirs, limits and the partition's value of `text`.

    `defaults` are the initial defaults of the table's columns.
    """

    data: Sequence[tuple[Stored, int]]
    deletes: Sequence[tuple[Stored, int]]
    limits: Mapping[str, int]
    partition: PartitionKey
    threads: int
    defaults: Mapping[str, Any]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Few columns of many kinds, each in some of the data files and in most of the delete files."""
    names = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4, unique=True))
    columns = st.lists(st.sampled_from(names), unique=True, min_size=1)
    numbers = st.integers(1, 5)
    data = draw(st.lists(st.tuples(columns.flatmap(stored), numbers), min_size=1, max_size=4))
    deletes = draw(st.lists(st.tuples(columns.flatmap(stored), numbers), min_size=1, max_size=5))
    limits = {
        "delete_keys_bytes": draw(st.sampled_from([1, 60, 400, 2**20])),
        "batch_bytes": draw(st.sampled_from([1, 3, 1000])),
        "whole_file_bytes": draw(st.sampled_from([0, 2**20])),
        "decoded_bytes": draw(st.sampled_from([0, 2**20])),
    }
    partition = draw(st.sampled_from([UNPARTITIONED, PartitionKey(0, ("a",)), PartitionKey(0, (None,))]))
    return Case(
        data, deletes, limits, partition, draw(st.sampled_from([0, 1, 3])), draw(st.sampled_from([{}, DEFAULTS]))
    )


def settings_for(folder: Path, partition: PartitionKey = UNPARTITIONED, **limits: int) -> WriteSettings:
    """Settings of the table, partitioned by `text` where a partition has a value."""
    settings = settings_of(folder, SCHEMA, PARTITIONED) if partition.values else settings_of(folder, SCHEMA)
    return with_limits(settings.with_schema(SCHEMA), **limits)  # a new table gets other field ids


def read_as(file: Stored, row: Row, names: Sequence[str], case: Case) -> tuple[object, ...]:
    """What these columns of a row are to Iceberg, by column projection."""
    found: list[object] = []
    for name in names:
        if name in file.types:
            found.append(same(KINDS[name].read(row[name], file.types[name])))
        elif name == "text" and case.partition.values:
            found.append(case.partition.values[0])
        elif name == "deep":  # the struct is NULL if it is missing, and if all that it has is NULL
            is_there = "deeper" in file.types and row["deeper"] is not None
            found.append(same(case.defaults.get(name)) if is_there else None)
        else:  # so is the struct around `deeper`
            found.append(None if name == "deeper" else same(case.defaults.get(name)))
    return tuple(found)


def deleted(case: Case) -> list[set[int]]:
    """The specification: a row is deleted if it equals a row of a delete file with a greater number, in the delete
    file's columns; NULL equals NULL."""
    found = []
    for file, number in case.data:
        positions = set()
        for position, row in enumerate(file.rows):
            for delete, later in case.deletes:
                names = list(delete.types)
                mine = read_as(file, row, names, case)
                if later > number and any(mine == read_as(delete, key, names, case) for key in delete.rows):
                    positions.add(position)
        found.append(positions)
    return found


def in_files(case: Case, folder: Path) -> list[FileFact]:
    """The case as files."""
    deletes = []
    for i, (file, number) in enumerate(case.deletes):
        path, size = written(folder, f"delete{i}.parquet", file.table(), row_group_size=file.group_rows)
        ids = [KINDS[name].field_id for name in file.types]
        deletes.append(delete_file(path, size, len(file.rows), number, ids, partition=case.partition))
    found = []
    for i, (file, number) in enumerate(case.data):
        path, size = written(folder, f"data{i}.parquet", file.table(), row_group_size=file.group_rows)
        found.append(FileFact(path, size, len(file.rows), case.partition, number, deletes=tuple(deletes)))
    return found


@pytest.mark.engine
@examples(2000)
@given(cases())
def test_exactly_the_rows_are_deleted_that_equal_a_later_one(case: Case) -> None:
    """Whatever the types, names and columns of the files were, however the keys are divided into passes."""
    with tempfile.TemporaryDirectory() as name:
        inputs = in_files(case, Path(name))
        settings = settings_for(Path(name), case.partition, **case.limits)
        settings = settings.with_schema(DEFAULTED) if case.defaults else settings
        with Fetched(settings, case.threads) as fetched:
            found = deleted_rows(inputs, settings, case.partition, fetched if case.threads else None)
    expected = {file.path: rows for file, rows in zip(inputs, deleted(case), strict=True) if rows}
    assert {path: set(rows) for path, rows in found.positions.items()} == expected
    least = min(number for _, number in case.data)
    assert found.equality_number == max((number for _, number in case.deletes if number > least), default=0)


def ids_file(folder: Path, name: str, ids: Sequence[int | None]) -> tuple[str, int]:
    """A file with the column `whole`."""
    return written(
        folder, name, pa.table([pa.array(ids, pa.int64())], schema=pa.schema([field(1, "whole", pa.int64())]))
    )


def input_file(folder: Path, ids: Sequence[int | None], deletes: Sequence[DeleteFile], number: int = 1) -> FileFact:
    """An input with the column `whole`."""
    path, size = ids_file(folder, f"data{number}.parquet", ids)
    return FileFact(path, size, len(ids), UNPARTITIONED, number, deletes=tuple(deletes))


def ids_deleted(folder: Path, name: str, ids: Sequence[int | None], number: int = 2) -> DeleteFile:
    """An equality delete of values of `whole`."""
    return delete_file(*ids_file(folder, name, ids), len(ids), number, [1])


def test_both_kinds_of_deletes_count_each_row_once(tmp_path: Path) -> None:
    """A row that both delete is one deleted row."""
    both = [ids_deleted(tmp_path, "e.parquet", [7, 8])]
    named = position_deletes(tmp_path, "p.parquet", [(str(tmp_path / "data1.parquet"), p) for p in (0, 1)], 1)
    file = input_file(tmp_path, [5, 7, 8, None], [*both, named])
    found = deleted_rows([file], settings_for(tmp_path), UNPARTITIONED)
    assert ({path: list(rows) for path, rows in found.positions.items()}, found.rows, found.equality_number) == (
        {file.path: [0, 1, 2]},
        3,
        2,
    )


def test_inputs_that_are_newer_than_all_equality_deletes_are_not_read(tmp_path: Path) -> None:
    """Neither is the delete file, nor does its number count."""
    delete = delete_file("/gone/delete", 10, 1, 2, [1])
    newer = FileFact("/gone/data", 10, 1, UNPARTITIONED, 2, deletes=(delete,))
    found = deleted_rows([newer], settings_for(tmp_path), UNPARTITIONED)
    assert (found, found.positions) == (NONE_DELETED, {})
    applied = ids_deleted(tmp_path, "e.parquet", [5], 2)
    older = input_file(tmp_path, [5], [applied], 1)
    found = deleted_rows([replace(newer, deletes=(applied,)), older], settings_for(tmp_path), UNPARTITIONED)
    assert {path: list(rows) for path, rows in found.positions.items()} == {older.path: [0]}


@pytest.mark.parametrize("rows", [1, 3])
def test_an_input_with_other_rows_than_its_entry_says(tmp_path: Path, rows: int) -> None:
    """Its rows could be taken for those of the next one, also when they come one by one."""
    file = replace(input_file(tmp_path, [5, 5], [ids_deleted(tmp_path, "e.parquet", [5])]), rows=rows)
    limits = {"whole_file_bytes": 0, "decoded_bytes": 0, "batch_bytes": 1}
    with pytest.raises(RewriteFailed) as caught:
        deleted_rows([file], settings_for(tmp_path, **limits), UNPARTITIONED)
    assert caught.value.path == file.path
    assert str(caught.value) == (
        f"Cannot read {file.path}: it has 2 rows, its manifest records {rows}, check the table's metadata"
    )


def test_remote_inputs_are_fetched_once(tmp_path: Path) -> None:
    """However many passes read their keys, and when they are merged then."""
    deletes = [ids_deleted(tmp_path, f"e{i}.parquet", [i]) for i in range(3)]
    files = [input_file(tmp_path, [i, 7], deletes, i) for i in range(3)]
    settings = with_limits(replace(settings_for(tmp_path), io_properties=REMOTE), delete_keys_bytes=1)
    asked, fetch = list[str](), settings.storage.fetch

    def counted(path: str) -> bytes:
        asked.append(path)
        return fetch(path)

    settings.storage.__dict__["fetch"] = counted
    with Fetched(settings) as fetched:
        found = deleted_rows(files, settings, UNPARTITIONED, fetched)
        sources = fetched.fetch(files)
    assert {path: list(rows) for path, rows in found.positions.items()} == {f.path: [0] for f in files[:2]}
    assert (len(sources), sorted(asked)) == (3, sorted(file.path for file in [*files, *deletes]))


@pytest.mark.parametrize("kind", ["equality", "position"])
def test_remote_delete_files_are_read_ahead(tmp_path: Path, kind: str) -> None:
    """Two of them are under way at the same time, also where merges have no thread to spare; the rows are the same."""
    file = input_file(tmp_path, [0, 1, 2, 3, 7], [])
    if kind == "equality":
        deletes = [ids_deleted(tmp_path, f"e{i}.parquet", [i]) for i in range(4)]
    else:
        deletes = [position_deletes(tmp_path, f"p{i}.parquet", [(file.path, i)]) for i in range(4)]
    settings = replace(settings_for(tmp_path), io_properties=REMOTE)
    fetch, both = settings.storage.fetch, threading.Barrier(2)

    def together(path: str) -> bytes:
        if path != file.path:
            both.wait(60)
        return fetch(path)

    settings.storage.__dict__["fetch"] = together
    found = deleted_rows([replace(file, deletes=tuple(deletes))], settings, UNPARTITIONED)
    assert list(found.positions[file.path]) == [0, 1, 2, 3]


def refused(folder: Path, delete: DeleteFile, settings: WriteSettings | None = None) -> str:
    """Why a delete file cannot be applied, without its path."""
    with pytest.raises(RewriteFailed) as caught:
        deleted_rows([input_file(folder, [5], [delete])], settings or settings_for(folder), UNPARTITIONED)
    assert caught.value.path == delete.path
    beginning = f"Cannot apply the deletes in {delete.path}: "
    assert str(caught.value).startswith(beginning)
    return str(caught.value).removeprefix(beginning)


def test_columns_that_the_table_has_dropped(tmp_path: Path) -> None:
    """Their values in data files cannot be read any more."""
    delete = replace(ids_deleted(tmp_path, "e.parquet", [5]), equality_ids=(1, 77))
    assert refused(tmp_path, delete) == "rows are equal in the column of field id 77, which was dropped"


def test_columns_that_are_no_single_values(tmp_path: Path) -> None:
    """A struct, a list, and what is in a list."""
    delete = ids_deleted(tmp_path, "e.parquet", [5])
    for field_id, name in ((20, "record"), (24, "record.inner"), (30, "all"), (31, "all.element")):
        wrong = replace(delete, equality_ids=(field_id,))
        assert refused(tmp_path, wrong) == f"rows are equal in column '{name}', which has not one value in each row"


def test_columns_that_the_delete_file_lacks(tmp_path: Path) -> None:
    """They would be NULL in a data file."""
    delete = replace(ids_deleted(tmp_path, "e.parquet", [5]), equality_ids=(1, 23))
    assert refused(tmp_path, delete) == "it lacks column 'record.deep'"


def test_columns_of_other_types(tmp_path: Path) -> None:
    """A number is no text."""
    rows = pa.table([pa.array(["5"])], schema=pa.schema([field(1, "whole", pa.string())]))
    delete = delete_file(*written(tmp_path, "e.parquet", rows), 1, 2, [1])
    assert refused(tmp_path, delete) == "column 'whole' is string, the table has int64"


def test_files_without_field_ids(tmp_path: Path) -> None:
    """They are read by the table's name mapping, where it has one."""
    rows = pa.table({"w": pa.array([5], pa.int64())})
    delete = delete_file(*written(tmp_path, "e.parquet", rows), 1, 2, [1])
    assert refused(tmp_path, delete) == "has no field ids and the table has no 'schema.name-mapping.default'"
    mapping = {"schema.name-mapping.default": '[{"field-id": 1, "names": ["w"]}]'}
    settings = settings_of(tmp_path, SCHEMA, properties=mapping)
    file = input_file(tmp_path, [4, 5], [delete])
    assert [*deleted_rows([file], settings, UNPARTITIONED).positions[file.path]] == [1]
    other = {"schema.name-mapping.default": '[{"field-id": 1, "names": ["v"]}]'}
    assert refused(tmp_path, delete, settings_of(tmp_path, SCHEMA, properties=other)) == "it lacks column 'whole'"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Of another format, with other rows than its entry says, cut or gone."""
    delete = ids_deleted(tmp_path, "e.parquet", [5])
    assert refused(tmp_path, replace(delete, file_format="ORC")) == "its format is ORC, only PARQUET is read"
    wrong = replace(delete, rows=7)
    assert refused(tmp_path, wrong) == "it has 1 rows, its manifest records 7, check the table's metadata"
    Path(delete.path).write_bytes(Path(delete.path).read_bytes()[:-9])
    assert refused(tmp_path, delete).startswith("Parquet magic bytes not found in footer.")
    Path(delete.path).unlink()
    assert refused(tmp_path, delete) == (
        f"[Errno 2] No such file or directory: '{delete.path}', check that the file exists and is whole"
    )


def test_required_columns_around_the_key(tmp_path: Path) -> None:
    """Delete files have the key columns only: other fields of their structs are missing, though they are required."""
    record = StructType(NestedField(2, "id", LongType(), True), NestedField(3, "other", LongType(), True))
    schema = Schema(NestedField(1, "r", record, True), NestedField(4, "x", StringType(), True))
    kind = pa.struct([field(2, "id", pa.int64())])
    rows = pa.table([pa.array([{"id": 5}], kind)], schema=pa.schema([field(1, "r", kind)]))
    delete = delete_file(*written(tmp_path, "e.parquet", rows), 1, 2, [2])
    full = pa.struct([field(2, "id", pa.int64()), field(3, "other", pa.int64())])
    fields = [field(1, "r", full), field(4, "x", pa.string())]
    data = pa.table([pa.array([{"id": i, "other": 0} for i in (4, 5)], full), ["a", "b"]], schema=pa.schema(fields))
    file = FileFact(*written(tmp_path, "data.parquet", data), 2, UNPARTITIONED, 1, deletes=(delete,))
    found = deleted_rows([file], settings_of(tmp_path, schema).with_schema(schema), UNPARTITIONED)
    assert [*found.positions[file.path]] == [1]
