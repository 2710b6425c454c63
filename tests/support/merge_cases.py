"""Files of drawn columns and rows, as writers make them, and what a merge of them must keep."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
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

from icesize.parquet.files.data_file import FileMetrics, MergeResult, NewDataFile
from icesize.parquet.files.metrics import Leaf, count_nans, leaves
from icesize.parquet.files.settings import WriteSettings
from tests.support.parquet_files import local, rows_decoded

Maker = Callable[[random.Random], Any]
WHOLE_ROWS = 250
"""Rows of a row group that is copied whole here."""


def _text(rng: random.Random) -> str:
    return "".join(rng.choice("aä\U0001f600z") for _ in range(rng.randrange(22)))


def _number(rng: random.Random) -> float:
    return rng.choice((-0.0, 0.0, math.inf, rng.random(), -rng.random() * 1e9))


def _at(rng: random.Random) -> datetime:
    return datetime(2024, 1, 1) + timedelta(microseconds=rng.randrange(-(10**16), 10**16))


COLUMNS: dict[str, tuple[IcebergType, Maker]] = {
    "id": (LongType(), lambda rng: rng.randrange(-(2**63), 2**63)),
    "small": (IntegerType(), lambda rng: rng.randrange(-9, 9)),
    "kind": (StringType(), lambda rng: rng.choice(("a", "b", "cc"))),
    "text": (StringType(), _text),
    "number": (DoubleType(), _number),
    "part": (FloatType(), lambda rng: rng.choice((-0.0, 0.0, 1.5, -(2.0**40)))),
    "money": (DecimalType(9, 2), lambda rng: Decimal(rng.randrange(-(10**9) + 1, 10**9)).scaleb(-2)),
    "large": (DecimalType(38, 4), lambda rng: Decimal(rng.randrange(-(10**25), 10**25)).scaleb(-4)),
    "at": (TimestamptzType(), lambda rng: _at(rng).replace(tzinfo=timezone.utc)),
    "local": (TimestampType(), _at),
    "day": (DateType(), lambda rng: date.fromordinal(rng.randrange(1, 3_652_060))),
    "clock": (TimeType(), lambda rng: time(rng.randrange(24), 0, 1, rng.randrange(10**6))),
    "flag": (BooleanType(), lambda rng: rng.random() < 0.5),
    "raw": (BinaryType(), lambda rng: rng.randbytes(rng.randrange(22))),
    "mark": (FixedType(4), lambda rng: rng.randbytes(4)),
    "nothing": (LongType(), lambda rng: None),
    "record": (
        StructType(
            NestedField(101, "a", LongType()),
            NestedField(102, "b", StructType(NestedField(103, "c", StringType()), NestedField(104, "d", DoubleType()))),
        ),
        lambda rng: {"a": rng.randrange(9), "b": rng.choice((None, {"c": _text(rng), "d": _number(rng)}))},
    ),
    "items": (
        ListType(111, IntegerType(), element_required=False),
        lambda rng: [rng.choice((None, 1, 2**30)) for _ in range(rng.randrange(4))],
    ),
    "deep": (
        ListType(
            121,
            StructType(NestedField(122, "x", DoubleType()), NestedField(123, "y", ListType(124, StringType()))),
        ),
        lambda rng: [{"x": _number(rng), "y": [_text(rng)] * rng.randrange(3)} for _ in range(rng.randrange(3))],
    ),
    "pairs": (
        MapType(131, StringType(), 132, DoubleType()),
        lambda rng: [(str(i), _number(rng)) for i in range(rng.randrange(3))],
    ),
}


@dataclass(frozen=True)
class Made:
    """How one input file is made: by our own writer if `properties` are given, else by pyarrow with `options`."""

    rows: int
    seed: int
    nulls: float
    nan: bool
    properties: Mapping[str, str] | None
    options: Mapping[str, object]
    known: str
    """What its manifest has: `all`, only `counts` of values and nulls, or `nothing`."""
    strict: bool
    """Whether the writer says that the first column has no nulls."""
    older: bool
    """Whether it is from before the last column was added."""


@dataclass(frozen=True)
class Case:
    """One merge."""

    columns: list[str]
    required: bool
    properties: Mapping[str, str]
    files: list[Made]
    outputs: int
    again: bool
    """Whether the outputs are merged once more."""


_CODECS = st.sampled_from([*["zstd"] * 12, "snappy", "gzip", "lz4", "uncompressed"])
CODEC = "write.parquet.compression-codec"


@st.composite
def files(draw: st.DrawFn) -> Made:
    """An input file of any size and writer."""
    own = draw(st.booleans())
    properties = options = None
    if own:
        properties = {
            "write.parquet.row-group-limit": draw(st.sampled_from(["1000000", "400", "90"])),
            "write.parquet.page-row-limit": draw(st.sampled_from(["20000", "60"])),
            CODEC: draw(_CODECS),
        }
    else:
        options = {
            "compression": draw(_CODECS).replace("uncompressed", "none"),
            "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
            "use_dictionary": draw(st.sampled_from([False, False, True, ["kind", "small"]])),
            "write_page_index": draw(st.booleans()),
            "write_page_checksum": draw(st.booleans()),
            "write_statistics": draw(st.sampled_from([True, True, False])),
            "store_schema": draw(st.booleans()),
            "store_decimal_as_integer": draw(st.sampled_from([True, True, False])),
            "row_group_size": draw(st.sampled_from([10**6, 10**6, 270, 90])),
            "max_rows_per_page": draw(st.sampled_from([20_000, 60])),
        }
    return Made(
        rows=draw(st.sampled_from([0, 1, 15, 120, 160, 200, WHOLE_ROWS, 300])),
        seed=draw(st.integers(0, 2**20)),
        nulls=draw(st.sampled_from([0.0, 0.1, 0.1, 1.0])),
        nan=draw(st.sampled_from([False, False, True])),
        properties=properties,
        options=options or {},
        known=draw(st.sampled_from(["all", "all", "all", "counts", "nothing"])),
        strict=draw(st.sampled_from([False, False, False, True])),
        older=draw(st.sampled_from([False, False, False, False, True])),
    )


@dataclass
class Coverage:
    """What the examples reached."""

    count: Counter[str] = field(default_factory=Counter)

    def outcome(self, done: MergeResult) -> None:
        tiny = rows_decoded(done.files)
        kinds = {"copied": done.bytes_copied, "paged": done.pages_copied, "decoded": tiny}
        kinds["whole"] = done.bytes_copied and not done.pages_copied
        kinds["mixed"] = done.pages_copied and tiny
        kinds["reencoded"] = done.bytes_copied and done.bytes_decoded and not done.decode_reasons
        self.count.update(name for name, value in kinds.items() if value)
        self.count.update(done.decode_reasons)


def rows_of(case: Case, how: Made, schema: pa.Schema) -> pa.Table:
    """Random rows; `nulls` of the values are null, and a float may be NaN."""
    rng = random.Random(how.seed)

    def value(name: str) -> Any:
        required = (case.required and name == "id") or (how.strict and name == schema.names[0])
        if rng.random() < how.nulls and not required:
            return None
        is_float = isinstance(COLUMNS[name][0], (FloatType, DoubleType))
        return math.nan if how.nan and is_float and rng.random() < 0.2 else COLUMNS[name][1](rng)

    arrays = [pa.array([value(f.name) for _ in range(how.rows)], f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def known(metrics: FileMetrics, what: str) -> FileMetrics | None:
    if what == "nothing":
        return None
    return metrics if what == "all" else FileMetrics(metrics.rows, metrics.null_value_counts)


def check_metrics(options: WriteSettings, file: NewDataFile, seen: Coverage) -> None:
    """Counts that are there are exact, and no value is beyond a bound that is there."""
    data = pq.read_table(local(file.path))
    for leaf in leaves(options):
        column = leaf_column(data, leaf)
        if column is None:
            continue
        assert file.value_counts[leaf.field_id] == len(column) == file.rows
        nulls = file.null_value_counts.get(leaf.field_id)
        assert nulls in (None, column.null_count)
        if leaf.is_float and leaf.flat:
            assert file.nan_value_counts.get(leaf.field_id) in (None, count_nans(column))
            seen.count["nan counts"] += file.nan_value_counts.get(leaf.field_id, 0)
        values = [value for value in map(ordered, physical(column)) if value is not None]
        lower, upper = (
            None if bound is None else ordered(from_bytes(leaf.type, bound))
            for bound in (file.lower_bounds.get(leaf.field_id), file.upper_bounds.get(leaf.field_id))
        )
        assert lower is None or all(lower <= value for value in values)
        assert upper is None or all(value <= upper for value in values)
        seen.count["bounds"] += lower is not None and upper is not None and len(values)


def leaf_column(data: pa.Table, leaf: Leaf) -> pa.ChunkedArray | None:
    """The values of a column or of a field of structs, a null for each struct that is null; None below lists."""
    column = data.column(leaf.column)
    for name in leaf.name.split(".")[1:]:
        if not pa.types.is_struct(column.type):
            return None
        column = pa.chunked_array(
            [pc.struct_field(chunk, name) for chunk in column.chunks], column.type.field(name).type
        )
    return column


def physical(column: pa.ChunkedArray) -> list[Any]:
    """Values as Iceberg's bounds give them back: dates and times as numbers, UUIDs as bytes."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], kind.storage_type)
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def ordered(value: Any) -> Any:
    """A value in Iceberg's order: -0.0 before 0.0, text by its bytes; NaN has none."""
    if isinstance(value, float):
        return None if math.isnan(value) else (value, math.copysign(1.0, value))
    return value.encode() if isinstance(value, str) else value
