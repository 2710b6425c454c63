"""Clustering by columns of every type: the same rows, tight bounds, and nothing left to do."""

from __future__ import annotations

import math
import random
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
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

import icesize
from icesize.errors import TableError
from icesize.parquet.files.metrics import count_nans
from icesize.report import Report
from tests.support.copying import spelt_rows
from tests.support.merge_cases import ordered, physical
from tests.support.tables import check, local, sqlite_catalog

APPENDS, ROWS = 16, 170
POLICY = {"target-file-size-bytes": 36_000, "small-file-limit-bytes": 16_000}
NULLS = 0.06
Maker = Callable[[random.Random], Any]


def _number(rng: random.Random) -> float:
    special = (-0.0, 0.0, math.inf, -math.inf, math.nan)
    return rng.choice(special) if rng.random() < 0.05 else rng.uniform(-1e9, 1e9)


def _small_number(rng: random.Random) -> float:
    """One that a float of 32 bits holds."""
    special = (-0.0, 0.0, math.inf, -math.inf, math.nan)
    return rng.choice(special) if rng.random() < 0.05 else rng.randrange(-(2**24), 2**24) / 8


def _text(rng: random.Random) -> str:
    return "".join(rng.choice("aäz\ud7ff\ue000\uffff\U0001f600\U0010ffff") for _ in range(rng.randrange(24)))


def _at(rng: random.Random) -> datetime:
    return datetime(1970, 1, 1) + timedelta(microseconds=rng.randrange(-(10**15), 10**15))


KEYS: dict[str, tuple[IcebergType, Maker]] = {
    "id": (LongType(), lambda rng: rng.randrange(-(2**63), 2**63)),
    "small": (IntegerType(), lambda rng: rng.randrange(-(2**31), 2**31)),
    "flag": (BooleanType(), lambda rng: rng.random() < 0.5),
    "number": (DoubleType(), _number),
    "part": (FloatType(), _small_number),
    "money": (DecimalType(9, 2), lambda rng: Decimal(rng.randrange(-(10**9) + 1, 10**9)).scaleb(-2)),
    "more": (DecimalType(18, 4), lambda rng: Decimal(rng.randrange(-(10**18) + 1, 10**18)).scaleb(-4)),
    "large": (DecimalType(38, 10), lambda rng: Decimal(f"{rng.randrange(-(10**38) + 1, 10**38)}e-10")),
    "day": (DateType(), lambda rng: date.fromordinal(rng.randrange(1, 3_652_060))),
    "clock": (TimeType(), lambda rng: time(rng.randrange(24), rng.randrange(60), 1, rng.randrange(10**6))),
    "local": (TimestampType(), _at),
    "at": (TimestamptzType(), lambda rng: _at(rng).replace(tzinfo=timezone.utc)),
    "text": (StringType(), _text),
    "near": (StringType(), lambda rng: f"a prefix, {rng.randrange(10**6):06}, and more"),
    "same": (StringType(), lambda rng: f"a prefix of more than sixteen characters {rng.random()}"),
    "uid": (UUIDType(), lambda rng: uuid.UUID(int=rng.getrandbits(128))),
    "mark": (FixedType(4), lambda rng: rng.randbytes(4)),
    "raw": (BinaryType(), lambda rng: rng.randbytes(rng.randrange(22))),
    "nothing": (LongType(), lambda rng: None),
}
NESTED: dict[str, tuple[IcebergType, Maker]] = {
    "record": (
        StructType(NestedField(101, "a", LongType()), NestedField(102, "b", DoubleType())),
        lambda rng: {"a": rng.randrange(9), "b": _number(rng)},
    ),
    "items": (
        ListType(111, DoubleType(), element_required=False),
        lambda rng: [rng.choice((None, _number(rng))) for _ in range(rng.randrange(3))],
    ),
    "pairs": (
        MapType(131, StringType(), 132, DoubleType()),
        lambda rng: [(str(i), _number(rng)) for i in range(rng.randrange(3))],
    ),
}
COLUMNS = KEYS | NESTED
IN_ORDER = ("nothing", "same")
"""Columns in which no order can be seen: bounds have the first sixteen characters of a text."""


def schema() -> Schema:
    """Every type that icesize supports, in format version 2."""
    return Schema(*(NestedField(i, name, kind, False) for i, (name, (kind, _)) in enumerate(COLUMNS.items(), 1)))


def some_rows(rng: random.Random) -> pa.Table:
    """Rows in no order, nulls in each column."""
    arrow, arrays = schema_to_pyarrow(schema(), include_field_ids=False), []
    for name, (kind, make) in COLUMNS.items():
        values = [None if rng.random() < NULLS else make(rng) for _ in range(ROWS)]
        if isinstance(kind, UUIDType):
            values = [value and value.bytes for value in values]
            stored = pa.array(values, pa.binary(16))
            arrays.append(pa.ExtensionArray.from_storage(arrow.field(name).type, stored))
        else:
            arrays.append(pa.array(values, arrow.field(name).type))
    return pa.Table.from_arrays(arrays, schema=arrow)


@dataclass(frozen=True)
class Filled:
    """A table that PyIceberg filled; each test has it under a name of its own, as it was."""

    catalog: SqlCatalog
    metadata_location: str
    rows: Counter[str]

    def named(self, name: str) -> Table:
        """The table, with the same files."""
        self.catalog.register_table(f"db.{name}", self.metadata_location)
        return self.catalog.load_table(f"db.{name}")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Sixteen appends of 170 rows."""
    catalog, rng = sqlite_catalog(tmp_path_factory.mktemp("types")), random.Random(8)
    table = catalog.create_table("db.t", schema(), properties={"format-version": "2"})
    for _ in range(APPENDS):
        table.append(some_rows(rng))
    rows = rows_in(table)
    assert rows.total() == APPENDS * ROWS
    return Filled(catalog, table.metadata_location, rows)


def rows_in(table: Table) -> Counter[str]:
    """What a reader sees: NaN equals itself and -0.0 is not 0.0."""
    return Counter(spelt_rows(table.scan().to_arrow()))


def entries_of(table: Table) -> list[DataFile]:
    """Live data files, as their manifests describe them."""
    head = table.metadata.current_snapshot()
    assert head is not None
    return [entry.data_file for m in head.manifests(table.io) for entry in m.fetch_manifest_entry(table.io)]


def check_bounds(file: DataFile) -> int:
    """Counts are exact and no value is beyond a bound; how many columns have both."""
    data, both = pq.read_table(local(file.file_path)), 0
    for field in schema().fields:
        kind = field.field_type
        if not isinstance(kind, PrimitiveType):
            continue
        column = data.column(field.name)
        assert file.null_value_counts[field.field_id] == column.null_count
        if isinstance(kind, (FloatType, DoubleType)):
            assert file.nan_value_counts[field.field_id] == count_nans(column)
        values = [value for value in map(comparable, physical(column)) if value is not None]
        lower, upper = (bounds.get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
        assert lower is None or comparable(from_bytes(kind, lower)) <= min(values)
        assert upper is None or comparable(from_bytes(kind, upper)) >= max(values)
        both += lower is not None and upper is not None
    return both


def comparable(value: Any) -> Any:
    """A value in Iceberg's order: uuids by their bytes."""
    return value.bytes if isinstance(value, uuid.UUID) else ordered(value)


def clustered(filled: Filled, name: str, columns: list[str], strategy: str) -> Report:
    """Cluster and hold everything against it that has to be so, whatever the columns."""
    filled.named(name)
    table = icesize.open(None, f"db.{name}", catalog=filled.catalog, policy=POLICY)
    report = table.cluster(columns, strategy)
    loaded = filled.catalog.load_table(f"db.{name}")
    check(loaded)
    assert rows_in(loaded) == filled.rows
    assert report.operations == ("replace",)
    assert (report.files_removed, report.conflicts) == (APPENDS, ())
    assert report.files_added > 3
    assert min(map(check_bounds, entries_of(loaded))) >= len(KEYS) - 4
    again = table.plan_clustering()
    assert again is not None
    assert again.groups == ()
    assert again.skipped_by_reason == {"CLUSTERED": report.files_added}
    assert table.cluster().snapshot_ids == ()
    return report


def point_files(report: Report, column: str) -> tuple[float, float]:
    """Files that a query for one value of a column opens, before and after."""
    assert report.clustering is not None
    before, after = (report.clustering[when][column]["point_files"] for when in ("before", "after"))
    return before, after


FAST_KEYS = ("number", "large", "text")
SORTS = [
    pytest.param(name, marks=() if name in FAST_KEYS else pytest.mark.slow) for name in KEYS if name not in IN_ORDER
]


@pytest.mark.parametrize("column", SORTS)
def test_a_sort_by_any_type(filled: Filled, column: str) -> None:
    """Rows are the same, each value is in one file or two, and a second plan is empty."""
    before, after = point_files(clustered(filled, f"sort_{column}", [column], "sort"), column)
    assert before >= 0.7 * APPENDS
    # two values, and nulls, are in many files each
    assert after <= (APPENDS / 2 if column == "flag" else 2)


FAST_PAIRS = (("zorder", ["number", "text"]), ("hilbert", ["uid", "at"]))
SLOW_PAIRS = (
    ("zorder", ["part", "large"]),
    ("zorder", ["raw", "clock"]),
    ("zorder", ["more", "near"]),
    ("zorder", ["id", "flag"]),
    ("hilbert", ["mark", "small"]),
    ("hilbert", ["local", "money"]),
    ("hilbert", ["day", "text"]),
    ("hilbert", ["number", "nothing"]),
    ("hilbert", ["id", "at", "uid"]),
    ("zorder", ["id", "at", "uid", "money"]),
)


@pytest.mark.parametrize(
    ("strategy", "columns"), [*FAST_PAIRS, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in SLOW_PAIRS)]
)
def test_a_curve_through_any_types(filled: Filled, strategy: str, columns: list[str]) -> None:
    """Rows are the same, queries by each column open fewer files, and a second plan is empty."""
    report = clustered(filled, f"{strategy}_{'_'.join(columns)}", columns, strategy)
    for column in columns:
        before, after = point_files(report, column)
        assert before >= (0.7 * APPENDS if column != "nothing" else 0)
        assert after <= (0.5 if len(columns) == 2 else 0.7) * before


@pytest.mark.parametrize("column", IN_ORDER)
def test_what_no_order_can_be_seen_in_is_left(filled: Filled, column: str) -> None:
    """Of nulls, and of texts that begin alike, bounds tell nothing: rewriting for ever would help no query."""
    filled.named(column)
    table = icesize.open(None, f"db.{column}", catalog=filled.catalog, policy=POLICY)
    report = table.cluster([column])
    assert report.snapshot_ids == ()
    assert report.skipped == {"CLUSTERED": APPENDS}


def test_nested_columns_cannot_be_keys(filled: Filled) -> None:
    """Structs, lists and maps have no order: told in a sentence, the table stays as it is."""
    before = filled.named("nested").metadata_location
    table = icesize.open(None, "db.nested", catalog=filled.catalog, policy=POLICY)
    for name, kind in (("record", "struct"), ("items", "list"), ("pairs", "map")):
        with pytest.raises(TableError, match=f"Cannot cluster 'lake.db.nested' by '{name}': a {kind} has no order"):
            table.cluster([name])
    with pytest.raises(TableError, match=r"'record\.a': it is nested, and manifests keep no bounds of nested columns"):
        table.cluster(["record.a"])
    assert filled.catalog.load_table("db.nested").metadata_location == before
