"""Whole tables of many columns in several files, as different writers make them: each column's dictionaries differ from
file to file, are the same, begin alike, are given up half way, or there are none.
"""

from __future__ import annotations

import io
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from numpy.typing import NDArray
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
)

from icesize.parquet.files.settings import Limits, WriteSettings
from icesize.planning.files import DeleteFile, FileFact
from tests.support.copying import KEY
from tests.support.parquet_files import fact, local, settings_of, write_one
from tests.support.unit_deletes import position_deletes

WHOLE_ROWS = 400
"""Rows of a row group that is copied whole here."""
LIMITS = Limits(
    good_group_rows=WHOLE_ROWS,
    least_chunk_bytes=24,
    least_page_rows=10,
    least_page_bytes=64,
    least_copied_bytes=200,
)
"""Small files go the ways of large ones."""
ROW = "row"
"""The first column of each table: a number that no other row has."""
_EPOCH = datetime(2026, 1, 1)
_FEW = (math.nan, -0.0, 0.0, math.inf)


def _number(n: int) -> float:
    return _FEW[n] if n < len(_FEW) else (n - 60) / 4


COLUMNS: dict[str, tuple[IcebergType, Callable[[int], Any]]] = {
    "flag": (StringType(), lambda n: "RANOF"[n % 5] * (n % 3)),
    "mode": (StringType(), lambda n: f"ship mode {n % 23}"),
    "comment": (StringType(), lambda n: "é" * (n % 4) + f"carefully final deposits {n}"),
    "key": (LongType(), lambda n: 2**40 * n - 5),
    "line": (IntegerType(), lambda n: 7 * n - 90),
    "quantity": (DecimalType(9, 2), lambda n: Decimal(n * 100 - 3).scaleb(-2)),
    "price": (DecimalType(15, 2), lambda n: Decimal(n * 90_001 - 10**7).scaleb(-2)),
    "total": (DecimalType(30, 4), lambda n: Decimal(10**20 - n * 10**17).scaleb(-4)),
    "discount": (DoubleType(), _number),
    "tax": (FloatType(), _number),
    "ship_date": (DateType(), lambda n: date(1960, 1, 1) + timedelta(days=31 * n)),
    "at": (TimestamptzType(), lambda n: (_EPOCH + timedelta(minutes=n)).replace(tzinfo=timezone.utc)),
    "local": (TimestampType(), lambda n: _EPOCH - timedelta(microseconds=n)),
    "clock": (TimeType(), lambda n: (_EPOCH + timedelta(seconds=61 * n)).time()),
    "returned": (BooleanType(), lambda n: n % 3 == 0),
    "raw": (BinaryType(), lambda n: bytes([n % 256]) * (n % 7)),
    "mark": (FixedType(16), lambda n: uuid.UUID(int=n << 60).bytes),
    "record": (
        StructType(
            NestedField(101, "a", StringType()),
            NestedField(102, "b", StructType(NestedField(103, "c", LongType()), NestedField(104, "d", DoubleType()))),
        ),
        lambda n: {"a": None if n % 3 == 0 else f"{n % 11}", "b": None if n % 7 == 0 else {"c": n, "d": _number(n)}},
    ),
    "items": (
        ListType(111, IntegerType(), element_required=False),
        lambda n: [n + i if i % 2 else None for i in range(n % 4)],
    ),
    "deep": (
        ListType(
            121, StructType(NestedField(122, "x", DateType()), NestedField(123, "y", ListType(124, StringType())))
        ),
        lambda n: [{"x": date(2000, 1, 1 + n % 28), "y": [f"{n}"] * i} for i in range(n % 3)],
    ),
    "pairs": (
        MapType(131, StringType(), 132, DecimalType(5, 1)),
        lambda n: [(f"{n % 9}-{i}", Decimal(n % 100)) for i in range(n % 3)],
    ),
}
"""Columns of the lineitem kind and nested ones, and the value that stands for a number."""

DICTIONARIES = ("different", "same", "prefix", "overflowing", "none")
_MOST = 4_096
"""Numbers of values that there are."""


@dataclass(frozen=True)
class Writer:
    """How one file is made: by our own writer if `options` is None, else by pyarrow with these.

    `strict` is whether it says that columns without nulls are required. Columns of `empty` hold only nulls.
    """

    rows: int
    seed: int
    strict: bool = False
    empty: frozenset[str] = frozenset()
    options: Mapping[str, object] | None = field(default_factory=dict)


@dataclass(frozen=True)
class WholeTable:
    """A table and its files.

    `columns` tell of each how its dictionaries are, `distinct` how many values one has about, `nulls` the share of
    nulls of columns that are not in `full`, which has those without any.
    `again` has the outputs merged once more. `copying` False decodes everything. `properties` are the table's.
    `deleted` says which rows are, by position.
    """

    columns: Mapping[str, str]
    files: tuple[Writer, ...]
    distinct: int = 12
    nulls: float = 0.1
    full: frozenset[str] = frozenset()
    limits: Limits = LIMITS
    outputs: int = 1
    again: bool = False
    copying: bool = True
    properties: Mapping[str, str] = field(default_factory=dict)
    deleted: str = "none"


DELETED = ("some", "a run", "a row group", "a file", "all")
"""Which rows are deleted: every seventh of all files but the first, a fifth of them one after the other, or all of the
first row group, of the first file, or of all files."""


@dataclass(frozen=True)
class Stored:
    """A file, its live rows under the table's schema, and how many of them each of its row groups has."""

    fact: FileFact
    rows: pa.Table
    groups: tuple[int, ...]


def schema_of_table(table: WholeTable) -> Schema:
    """The row's number, which is required, and the columns."""
    fields = [NestedField(i, name, COLUMNS[name][0]) for i, name in enumerate(table.columns, 2)]
    return Schema(NestedField(1, ROW, LongType(), required=True), *fields)


def settings_of_table(table: WholeTable, folder: Path) -> WriteSettings:
    """Settings of a table in this folder whose files are large."""
    settings = settings_of(folder, schema_of_table(table), properties=table.properties)
    return replace(settings, limits=table.limits, merge_by_copying=table.copying)


def store(table: WholeTable, settings: WriteSettings) -> list[Stored]:
    """Write all files."""
    return [_store(table, settings, number) for number in range(len(table.files))]


def without_deleted(table: WholeTable, inputs: Sequence[Stored], settings: WriteSettings) -> list[Stored]:
    """The files with the deletes that hit them, all in one delete file."""
    kept = [_kept(table.deleted, number, stored) for number, stored in enumerate(inputs)]
    named = [(stored.fact.path, at) for stored, keep in zip(inputs, kept, strict=True) for at in np.flatnonzero(~keep)]
    if not named:
        return list(inputs)
    delete = position_deletes(Path(local(settings.table_location)), "deletes.parquet", named, 1_000, partition=KEY)
    return [_without(stored, keep, delete) for stored, keep in zip(inputs, kept, strict=True)]


def _kept(deleted: str, number: int, stored: Stored) -> NDArray[np.bool_]:
    rows = stored.rows.num_rows
    places = np.arange(rows)
    gone = {
        "some": places % 7 == 3 if number else places < 0,
        "a run": (places >= rows // 3) & (places < rows // 3 + rows // 5),
        "a row group": places < (stored.groups[0] if stored.groups and not number else 0),
        "a file": places < (0 if number else rows),
        "all": places >= 0,
    }
    return ~gone.get(deleted, places < 0)


def _without(stored: Stored, kept: NDArray[np.bool_], delete: DeleteFile) -> Stored:
    ends = np.cumsum([0, *stored.groups])
    groups = tuple(int(kept[start:end].sum()) for start, end in pairwise(ends.tolist()))
    return Stored(replace(stored.fact, deletes=(delete,)), stored.rows.filter(pa.array(kept)), groups)


def _store(table: WholeTable, settings: WriteSettings, number: int) -> Stored:
    rows, writer = rows_of(table, settings.arrow_schema, number), table.files[number]
    if writer.options is None and rows.num_rows:
        file = fact(write_one(settings, rows), number)
    else:
        path = Path(local(settings.table_location)) / "data" / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file_bytes(table, rows, writer))
        file = FileFact(str(path), path.stat().st_size, rows.num_rows, KEY, number)
    footer = pq.read_metadata(local(file.path))
    return Stored(file, rows, tuple(footer.row_group(i).num_rows for i in range(footer.num_row_groups)))


def file_bytes(table: WholeTable, rows: pa.Table, writer: Writer) -> bytes:
    """These rows as pyarrow writes them."""
    coded = [name for name, how in table.columns.items() if how != "none"]
    flat = [path for path in _leaf_paths(rows.schema) if path.split(".")[0] in coded]
    arguments: dict[str, object] = {"compression": "zstd", "write_page_index": True, "write_batch_size": 32}
    arguments |= {"use_dictionary": flat or False, "store_schema": False, "store_decimal_as_integer": True}
    arguments |= writer.options or {}
    if writer.strict:
        kept = [f.with_nullable(f.nullable and bool(c.null_count)) for f, c in zip(rows.schema, rows, strict=True)]
        rows = pa.Table.from_arrays(rows.columns, schema=pa.schema(kept))
    out = io.BytesIO()
    pq.write_table(rows, out, **arguments)
    return out.getvalue()


def _leaf_paths(schema: pa.Schema) -> list[str]:
    out = io.BytesIO()
    pq.write_table(schema.empty_table(), out, store_schema=False)
    columns = pq.read_metadata(out).schema
    return [columns.column(at).path for at in range(len(columns))]


def rows_of(table: WholeTable, schema: pa.Schema, number: int) -> pa.Table:
    """The rows of a file, the same ones each time."""
    writer = table.files[number]
    chance = np.random.default_rng([writer.seed, number])
    arrays = [pa.array(np.arange(writer.rows) + number * 10**6, pa.int64())]
    for column in schema.names[1:]:
        found = _numbers(table, column, number, chance)
        nulls = table.nulls if column not in table.full else 0.0
        missing = chance.random(writer.rows) < nulls
        missing[: 3 * table.distinct] = False  # a null instead of a value would change the dictionary
        missing |= column in writer.empty
        values = _values(column, schema.field(column).type)
        arrays.append(values.take(pa.array(found, pa.int32(), mask=missing)))
    return pa.Table.from_arrays(arrays, schema=schema)


def _numbers(table: WholeTable, column: str, number: int, chance: np.random.Generator) -> NDArray[np.int32]:
    """The number of each value: those of a dictionary first, in their order, and then any of them, often in runs."""
    how, rows, distinct = table.columns[column], table.files[number].rows, table.distinct
    start, count = {
        "different": (number * distinct * 2 // 3, distinct),
        "same": (0, distinct),
        "prefix": (0, distinct * (1 + (number * 5) % 3)),
        "overflowing": (number * 31, 12 * distinct + 400),
        "none": (number * 7, distinct),
    }[how]
    first = np.arange(count)[:rows]
    runs = chance.choice([1, 1, 1, 4, 40], max(1, rows))
    more = np.repeat(chance.integers(0, count, len(runs)), runs)[: rows - len(first)]
    return ((start + np.concatenate([first, more])) % _MOST).astype(np.int32)


@cache
def _values(column: str, type_: pa.DataType) -> pa.Array:
    return pa.array([COLUMNS[column][1](n) for n in range(_MOST)], type_)


@st.composite
def whole_tables(draw: st.DrawFn) -> WholeTable:
    """Two to eight columns in two to five files."""
    names = draw(st.lists(st.sampled_from(list(COLUMNS)), unique=True, min_size=2, max_size=8))
    # where most columns can be copied, the others are encoded again rather than all decoded
    common = draw(st.sampled_from(DICTIONARIES))
    kinds = st.sampled_from([common, common, common, *DICTIONARIES])
    codec = draw(st.sampled_from(["zstd", "zstd", "none", "snappy", "gzip", "lz4", "brotli"]))
    version = draw(st.sampled_from(["1.0", "2.0"]))
    strict = draw(st.sampled_from([(False,), (False,), (True,), (False, False, True)]))
    files = draw(st.lists(writers(names, codec, version, strict), min_size=2, max_size=5))
    return WholeTable(
        columns={name: draw(kinds) for name in names},
        files=tuple(files),
        distinct=draw(st.sampled_from([1, 2, 12, 12, 40, 150])),
        nulls=draw(st.sampled_from([0.0, 0.1, 0.1, 0.6])),
        full=frozenset(draw(st.lists(st.sampled_from(names), unique=True))),
        limits=replace(
            LIMITS,
            least_chunk_bytes=draw(st.sampled_from([24, 24, 10**6])),
            whole_file_bytes=draw(st.sampled_from([LIMITS.whole_file_bytes, 1_500, 20_000])),
            batch_bytes=draw(st.sampled_from([LIMITS.batch_bytes, 1, 5_000])),
            decoded_bytes=draw(st.sampled_from([LIMITS.decoded_bytes, LIMITS.decoded_bytes, 9_000])),
        ),
        outputs=draw(st.sampled_from([1, 1, 1, 2])),
        again=draw(st.booleans()),
        copying=draw(st.sampled_from([True] * 5 + [False])),
        properties=draw(st.sampled_from([{}, {}, {"write.parquet.dict-size-bytes": "250"}])),
        deleted=draw(st.sampled_from(["none"] * 6 + [*DELETED])),
    )


@st.composite
def writers(draw: st.DrawFn, names: Sequence[str], codec: str, version: str, strict: Sequence[bool]) -> Writer:
    """A file; mostly with the codec and page version that the others have, too."""
    options: dict[str, object] = {
        "compression": draw(st.sampled_from([codec] * 20 + ["gzip"])),
        "data_page_version": draw(st.sampled_from([version] * 6 + ["1.0", "2.0"])),
        "write_page_index": draw(st.sampled_from([True, True, True, False])),
        "write_page_checksum": draw(st.booleans()),
        "write_statistics": draw(st.sampled_from([True] * 5 + [False])),
        "row_group_size": draw(st.sampled_from([10**6, 10**6, 130, 450])),
        "max_rows_per_page": draw(st.sampled_from([20_000, 110, 33])),
        "data_page_size": draw(st.sampled_from([2**20, 700])),
        "dictionary_pagesize_limit": draw(st.sampled_from([2**20, 600])),
        "store_decimal_as_integer": draw(st.sampled_from([True] * 12 + [False])),
        "store_schema": draw(st.sampled_from([False] * 5 + [True])),
    }
    return Writer(
        rows=draw(st.sampled_from([0, 1, 40, *[120, 200, 250, 300] * 3, WHOLE_ROWS, 700])),
        seed=draw(st.integers(0, 2**20)),
        strict=draw(st.sampled_from(strict)),
        empty=frozenset(draw(st.lists(st.sampled_from(names), max_size=1)))
        if draw(st.integers(0, 4)) == 0
        else frozenset(),
        options=draw(st.sampled_from([options] * 7 + [None])),
    )
