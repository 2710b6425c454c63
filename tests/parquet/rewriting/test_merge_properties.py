"""Any merge of any files: the same rows come out, outputs are what they say, and their metrics hold for every row."""

from __future__ import annotations

import math
import random
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
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

from icesize.parquet.files.carried_over_metrics import FileMetrics, carry_over
from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.files.metrics import Leaf, count_nans, describe, leaves
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.tasks import MergeOutcome, MergeTask
from icesize.parquet.format.sources import LocalSource
from icesize.parquet.format.thrift import bytes_field, read_struct, struct_field
from icesize.parquet.rewriting.merge import merge
from icesize.parquet.verify.file import verify
from icesize.parquet.writing.encoding import leaf_values
from icesize.planning.files import FileFact
from tests.support import copying as lane_tools
from tests.support.copying import KEY, MERGED, content, foreign_bytes, small_strategies, spelt_rows, stored, with_ids
from tests.support.footers import Tree, edited
from tests.support.parquet_files import append, catalog_in, fact, local, settings_of, write_one

Maker = Callable[[random.Random], Any]
WHOLE_ROWS = 250
"""Rows of a row group that is copied whole here."""
LANES = {"GOOD_GROUP_ROWS": WHOLE_ROWS, "LEAST_CHUNK_BYTES": 100, "LEAST_PAGE_ROWS": 20, "LEAST_PAGE_BYTES": 200}


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
_CODEC = "write.parquet.compression-codec"


@st.composite
def files(draw: st.DrawFn) -> Made:
    """An input file of any size and writer."""
    own = draw(st.booleans())
    properties = options = None
    if own:
        properties = {
            "write.parquet.row-group-limit": draw(st.sampled_from(["1000000", "400", "90"])),
            "write.parquet.page-row-limit": draw(st.sampled_from(["20000", "60"])),
            _CODEC: draw(_CODECS),
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


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A merge of one to five files."""
    return Case(
        columns=draw(st.lists(st.sampled_from(list(COLUMNS)), unique=True, min_size=1, max_size=6)),
        required=draw(st.booleans()),
        properties=draw(st.sampled_from([{}, {}, {_CODEC: "zstd"}, {"write.metadata.metrics.default": "full"}])),
        files=draw(st.lists(files(), min_size=1, max_size=5)),
        outputs=draw(st.integers(1, 3)),
        again=draw(st.booleans()),
    )


@dataclass
class Seen:
    """What the examples reached."""

    count: Counter[str] = field(default_factory=Counter)

    def outcome(self, done: MergeOutcome) -> None:
        tiny = sum(file.rows_decoded for file in done.files)
        kinds = {"copied": done.bytes_copied, "paged": done.pages_copied, "decoded": tiny}
        kinds["whole"] = done.bytes_copied and not done.pages_copied
        kinds["mixed"] = done.pages_copied and tiny
        kinds["reencoded"] = done.bytes_copied and done.bytes_decoded and not done.decoded_because
        self.count.update(name for name, value in kinds.items() if value)
        self.count.update(done.decoded_because)


def schema_of_case(case: Case) -> Schema:
    fields = [
        NestedField(i, name, COLUMNS[name][0], required=case.required and name == "id")
        for i, name in enumerate(case.columns, 1)
    ]
    return Schema(*fields)


@dataclass(frozen=True)
class Victim:
    """A file, what its manifest says of it, and its rows under the table's schema."""

    fact: FileFact
    metrics: FileMetrics | None
    rows: Counter[str]


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


def input_file(case: Case, options: WriteSettings, number: int) -> Victim:
    """Make one."""
    how, newest = case.files[number], case.columns[-1]
    old = how.older and len(case.columns) > 1 and not (case.required and newest == "id")
    if old:
        options = replace(options, schema_json=Schema(*options.schema.fields[:-1]).model_dump_json())
    data = rows_of(case, how, options.arrow_schema)
    padded = data.append_column(newest, pa.nulls(how.rows)) if old else data
    rows = Counter(spelt_rows(padded))
    if how.properties is not None and how.rows:
        file = write_one(replace(options, properties={**options.properties, **how.properties}), data)
        return Victim(fact(file), known(FileMetrics.of(file), how.known), rows)
    first = data.schema.field(0)
    if how.strict and first.name != "nothing":
        data = data.cast(data.schema.set(0, first.with_nullable(False)))
    file = stored(Path(local(options.table_location)) / f"{number}", foreign_bytes(data, **how.options), how.rows)
    return Victim(file, known(described(options, file.path, data), how.known), rows)


def described(options: WriteSettings, path: str, data: pa.Table) -> FileMetrics:
    """Metrics of a file of pyarrow, whose bounds are those of the values that are not NaN, as Iceberg's are."""
    floats = [leaf for leaf in leaves(options) if leaf.flat and leaf.is_float]
    nans = {leaf.field_id: count_nans(values) for leaf, values in leaf_values(floats, data)}
    file = describe(options, path, 0, KEY, pq.read_metadata(path), {}, nans)
    return FileMetrics.of(file)


def known(metrics: FileMetrics, what: str) -> FileMetrics | None:
    if what == "nothing":
        return None
    return metrics if what == "all" else FileMetrics(metrics.rows, metrics.null_value_counts)


def merged(options: WriteSettings, inputs: Sequence[Victim], outputs: int, seen: Seen) -> list[Victim]:
    """The outputs with complete metrics, each verified and held against its rows; together the rows of the input
    files."""
    done = merge(MergeTask(tuple(input_file.fact for input_file in inputs), KEY, outputs), options, MERGED)
    seen.outcome(done)
    assert done.bytes_copied + done.bytes_decoded <= done.bytes_read
    manifest_metrics = {
        input_file.fact.path: input_file.metrics for input_file in inputs if input_file.metrics is not None
    }
    complete = [carry_over(file, options, manifest_metrics) for file in done.files]
    for file in complete:
        found = verify(LocalSource(local(file.path)), "merged")
        assert (found.problems, found.rows) == ((), file.rows)
        check_metrics(options, file, seen)
    made = [Victim(fact(file), FileMetrics.of(file), content([file.path])) for file in complete]
    assert sum((each.rows for each in made), Counter()) == sum((input_file.rows for input_file in inputs), Counter())
    return made


def check_metrics(options: WriteSettings, file: WrittenFile, seen: Seen) -> None:
    """Counts that are there are exact, and no value is beyond a bound that is there."""
    data = pq.read_table(local(file.path))
    assert file.copied_from == ()
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
    """Values as Iceberg's bounds give them back: dates and times as numbers."""
    kind = column.type
    if pa.types.is_date32(kind):
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


def run(folder: Path, case: Case, seen: Seen) -> None:
    """Do it, and once more with what came out."""
    options = settings_of(folder, schema_of_case(case), properties=case.properties)
    inputs = [input_file(case, options, number) for number in range(len(case.files))]
    with small_strategies(**LANES):
        made = merged(options, inputs, case.outputs, seen)
        if case.again and made:
            merged(options, made, 1, seen)


def check(tmp_path_factory: pytest.TempPathFactory, examples: int) -> Counter[str]:
    """Run so many examples; what they reached."""
    seen = Seen()

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=examples < 100)
    @given(cases())
    def each(case: Case) -> None:
        run(tmp_path_factory.mktemp("case"), case, seen)

    each()
    return seen.count


def test_any_merge_keeps_rows_and_has_true_metrics(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Types flat and nested, writers, codecs, pages, nulls and NaN in any combination, by all ways of merging."""
    reached = check(tmp_path_factory, 40)
    assert min(reached[name] for name in ("copied", "whole", "paged", "decoded", "bounds")) > 0


@pytest.mark.slow
def test_any_merge_keeps_rows_and_has_true_metrics_often(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same with more examples; each way, and each mixture of them, is among them."""
    reached = check(tmp_path_factory, 1_500)
    ways = ("copied", "whole", "paged", "decoded", "mixed", "reencoded", "bounds", "nan counts")
    codes = ("tiny", "codec", "schema-differs", "schema-evolved", "dictionaries", "uneven")
    assert [name for name in (*ways, *codes) if not reached[name]] == []


VALUE = 3
"""Field id of the column `value` of the rows below, which is the third one."""
MR_NAN = struct.pack("<d", math.nan)


def bounded_by_nan(tree: Tree) -> None:
    """Upper bounds of `value` are NaN, as parquet-mr writes them where a row group has one."""
    for chunks in tree.metadata:
        statistics, _ = read_struct(chunks[VALUE - 1][12][1])
        chunks[VALUE - 1][12] = struct_field({**statistics, 5: bytes_field(MR_NAN)})


def with_nan(count: int, start: int, at: int) -> pa.Table:
    """Rows of which one has NaN; the values of others grow."""
    data = lane_tools.rows(count, start)
    values = [math.nan if i == at else (start + i) / 7 for i in range(count)]
    return with_ids(data.set_column(2, "value", pa.array(values, pa.float64())))


PLACES = [(which, at) for which in range(3) for at in (0, 250, -1)]


@pytest.mark.parametrize(
    ("count", "which", "at"),
    [(lane_tools.PAGED_ROWS, *place) for place in PLACES] + [(lane_tools.WHOLE_ROWS, *place) for place in PLACES[::4]],
)
def test_nan_hides_no_row_wherever_it_is(tmp_path: Path, count: int, which: int, at: int) -> None:
    """One NaN first, within or last in the first, second or last file: bounds are those of all other values, and every
    filter finds its rows in the file and through the table."""
    table = catalog_in(tmp_path).create_table(("db", "t"), lane_tools.SCHEMA)
    options = WriteSettings.of(table.metadata, {}, 2**29)
    inputs, known = [], {}
    for number in range(3):
        data = with_nan(count, number * count, at % count if number == which else -1)
        raw = foreign_bytes(data)
        file = stored(tmp_path / f"{number}", edited(raw, bounded_by_nan) if number == which else raw, count)
        inputs.append(file)
        known[file.path] = described(options, str(stored(tmp_path / "true", raw, count).path), data)
    with small_strategies():
        done = merge(MergeTask(tuple(inputs), KEY), options, MERGED)
    assert done.bytes_decoded == 0
    (file_written,) = [carry_over(file, options, known) for file in done.files]
    data = pq.read_table(local(file_written.path))
    values = [value for value in data.column("value").to_pylist() if value == value]
    assert file_written.nan_value_counts == {VALUE: 1}
    assert struct.unpack("<d", file_written.lower_bounds[VALUE]) == (min(values),)
    assert struct.unpack("<d", file_written.upper_bounds[VALUE]) == (max(values),)
    append(table, [file_written])
    for low in (0, count // 7, (2 * count + count // 2) / 7, 3 * count / 7 - 1):
        between = [value for value in values if low <= value < low + 9]
        assert between
        assert table.scan(f"value >= {low} and value < {low + 9}").to_arrow().num_rows == len(between)
        filters = [("value", ">=", low), ("value", "<", low + 9)]
        assert pq.read_table(local(file_written.path), filters=filters).num_rows == len(between)
    assert table.scan("value is nan").to_arrow().num_rows == 1
