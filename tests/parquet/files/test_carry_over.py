"""Column metrics of files that were made by copying bytes: those of the older files, held against the rows."""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io import InputFile
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
    IntegerType,
    ListType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros

from icesize.environment import Environment, Stopwatch
from icesize.parquet.files.data_file import CopiedFile, CopiedFrom, FileMetrics, MergeResult, NewDataFile, Written
from icesize.parquet.files.metrics import carry_over
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.planning.files import PartitionKey
from icesize.planning.merging.planner import plan_merges
from icesize.policy import SizePolicy
from icesize.storage.table_storage import Storage
from icesize.table.commit.batch_commit import Batch, commit_written
from icesize.table.commit.batch_report import MergeResults, WrittenBatch
from icesize.table.commit.input_metrics import metrics_of, with_carried_over_metrics
from icesize.table.state.handle import TableHandle
from tests.support.examples import examples
from tests.support.parquet_files import RemoteLike, append, fact, schema_of, settings_of, write_one
from tests.support.tables import (
    landed,
    layout_of,
    local,
    merged,
    request_on,
    run,
    small_files,
    sqlite_catalog,
    two_files,
    write,
)

NAN = math.nan
KINDS: dict[str, tuple[PrimitiveType, st.SearchStrategy[Any]]] = {
    "flag": (BooleanType(), st.booleans()),
    "int": (IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    "long": (LongType(), st.integers(-(2**63), 2**63 - 1)),
    "float": (FloatType(), st.floats(width=32) | st.sampled_from([0.0, -0.0])),
    "double": (DoubleType(), st.floats() | st.sampled_from([0.0, -0.0])),
    "money": (DecimalType(9, 2), st.decimals(-9_999_999, 9_999_999, places=2)),
    "big": (DecimalType(38, 0), st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal)),
    "text": (StringType(), st.text("aä\U0001f600", max_size=20)),
    "bytes": (BinaryType(), st.binary(max_size=20)),
    "day": (DateType(), st.dates()),
    "at": (TimestampType(), st.datetimes()),
    "nothing": (LongType(), st.none()),
}
SCHEMA = schema_of(*((name, kind) for name, (kind, _) in KINDS.items()))
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, (_, values) in KINDS.items()}), min_size=1, max_size=5
)


@dataclass(frozen=True)
class Piece:
    """Rows that a new file is made of: `decoded` ones, or those of an older file, the first `kept` of a `part`."""

    rows: list[dict[str, Any]]
    how: str
    kept: int

    @property
    def arrived(self) -> list[dict[str, Any]]:
        return self.rows[: self.kept] if self.how == "part" else self.rows


_PIECE = st.builds(Piece, ROWS, st.sampled_from(["whole", "whole", "part", "decoded"]), st.integers(1, 5))
PIECES = st.lists(_PIECE, min_size=1, max_size=4).filter(lambda pieces: any(p.how != "decoded" for p in pieces))


def _written(options: WriteSettings, rows: list[dict[str, Any]]) -> NewDataFile:
    return write_one(options, pa.Table.from_pylist(rows, options.arrow_schema))


def _as_copied(file: NewDataFile) -> CopiedFile:
    """The file as it is known before anything is carried over to it."""
    return CopiedFile(
        file.path,
        file.size_bytes,
        file.rows,
        file.partition,
        column_sizes=file.column_sizes,
        value_counts=file.value_counts,
        null_value_counts=file.null_value_counts,
        split_offsets=file.split_offsets,
        sequence_number=file.sequence_number,
    )


def _copied_file(options: WriteSettings, pieces: list[Piece]) -> tuple[NewDataFile, NewDataFile]:
    """The file made of the pieces, with metrics carried over, and the same rows written anew."""
    anew = _written(options, [row for piece in pieces for row in piece.arrived])
    decoded = [row for piece in pieces if piece.how == "decoded" for row in piece.rows]
    old = [(_written(options, piece.rows), piece) for piece in pieces if piece.how != "decoded"]
    file = replace(
        _as_copied(anew),
        copied_from=tuple(CopiedFrom(file.path, piece.how == "whole") for file, piece in old),
        decoded=(FileMetrics.of(_written(options, decoded)),) if decoded else (),
    )
    return carry_over(file, options, {file.path: FileMetrics.of(file) for file, _ in old}), anew


def _order(value: Any) -> Any:
    """A value, or what Iceberg's bounds give back for it, in Iceberg's order: -0.0 before 0.0, text by its bytes."""
    if isinstance(value, datetime):
        return datetime_to_micros(value)
    if isinstance(value, date):
        return date_to_days(value)
    if isinstance(value, float):
        return value, math.copysign(1.0, value)
    return value.encode() if isinstance(value, str) else value


def _is_nan(value: Any) -> bool:
    return bool(value != value)


@examples(60)
@given(pieces=PIECES)
def test_inherited_metrics_hold_for_every_row(tmp_path: Path, pieces: list[Piece]) -> None:
    """Whatever is copied, in part or decoded: counts are exact, every value is within the bounds, and both are there
    and tight wherever they can be known."""
    file, anew = _copied_file(settings_of(tmp_path, SCHEMA), pieces)
    assert file == replace(
        anew,
        nan_value_counts=file.nan_value_counts,
        lower_bounds=file.lower_bounds,
        upper_bounds=file.upper_bounds,
    )
    in_part = [piece.rows for piece in pieces if piece.how == "part"]
    sources = [piece.rows for piece in pieces if piece.how != "decoded"]
    sources.append([row for piece in pieces if piece.how == "decoded" for row in piece.rows])
    for column in SCHEMA.fields:
        number, name = column.field_id, column.name
        values = [row[name] for piece in pieces for row in piece.arrived if row[name] is not None]
        known = isinstance(column.field_type, (FloatType, DoubleType)) and not any(_has_nan(r, name) for r in in_part)
        assert file.nan_value_counts.get(number) == (sum(map(_is_nan, values)) if known else None)
        bounded = any(not _is_nan(row[name]) for rows in sources for row in rows if row[name] is not None)
        assert (number in file.lower_bounds, number in file.upper_bounds) == (bounded, bounded)
        if bounded:
            lower, upper = (
                _order(from_bytes(KINDS[name][0], b[number])) for b in (file.lower_bounds, file.upper_bounds)
            )
            assert all(lower <= _order(value) <= upper for value in values if not _is_nan(value))
        if not in_part and number in anew.lower_bounds:
            assert file.lower_bounds[number] == anew.lower_bounds[number]
            assert file.upper_bounds[number] == anew.upper_bounds[number]


def _has_nan(rows: list[dict[str, Any]], name: str) -> bool:
    return any(_is_nan(row[name]) for row in rows)


NESTED = Schema(
    NestedField(
        1, "s",
        StructType(
            NestedField(2, "x", DoubleType()),
            NestedField(3, "deep", StructType(NestedField(4, "n", LongType()), NestedField(5, "t", StringType()))),
        ),
    )
)  # fmt: skip
_DEEP = st.none() | st.fixed_dictionaries({"n": st.none() | st.integers(-9, 9), "t": st.none() | st.text("ab")})
_RECORD = st.fixed_dictionaries({"x": st.none() | st.floats() | st.sampled_from([0.0, -0.0, NAN]), "deep": _DEEP})
_NESTED_ROWS = st.lists(st.fixed_dictionaries({"s": st.none() | _RECORD}), min_size=1, max_size=5)
_NESTED_PIECE = st.builds(Piece, _NESTED_ROWS, st.sampled_from(["whole", "part", "decoded"]), st.integers(1, 5))


def _leaf(row: dict[str, Any], *path: str) -> Any:
    value: Any = row
    for name in path:
        value = None if value is None else value[name]
    return value


@examples(60)
@given(pieces=st.lists(_NESTED_PIECE, min_size=1, max_size=4))
def test_columns_within_structs_inherit_as_others_do(tmp_path: Path, pieces: list[Piece]) -> None:
    """Whatever is copied, in part or decoded, counts are exact and no value is beyond a bound; of whole files bounds
    are those of the rows written anew."""
    assume(any(piece.how != "decoded" for piece in pieces))
    file, anew = _copied_file(settings_of(tmp_path, NESTED), pieces)
    rows = [row for piece in pieces for row in piece.arrived]
    for field_id, path in {2: ("s", "x"), 4: ("s", "deep", "n"), 5: ("s", "deep", "t")}.items():
        found = [value for row in rows if (value := _leaf(row, *path)) is not None]
        values = [value for value in found if not _is_nan(value)]
        assert file.null_value_counts.get(field_id) in (None, len(rows) - len(found))
        assert file.nan_value_counts.get(field_id) in (None, len(found) - len(values))
        kind = NESTED.find_type(field_id)
        lower, upper = (b.get(field_id) for b in (file.lower_bounds, file.upper_bounds))
        assert lower is None or all(_order(from_bytes(kind, lower)) <= _order(value) for value in values)
        assert upper is None or all(_order(from_bytes(kind, upper)) >= _order(value) for value in values)
        if all(piece.how != "part" for piece in pieces) and field_id in anew.lower_bounds:
            assert (lower, upper) == (anew.lower_bounds[field_id], anew.upper_bounds[field_id])


def test_rows_that_java_leaves_out_of_counts_are_null() -> None:
    """Where a struct is null Java counts no value of the floats in it, so a file of null structs alone needs no bound
    and has as many nulls as rows."""
    schema = Schema(NestedField(1, "s", StructType(NestedField(2, "x", DOUBLE, False)), False))
    low, high = ({2: to_bytes(DOUBLE, bound)} for bound in (1.0, 5.0))
    some = FileMetrics(3, {2: 0}, {2: 0}, low, high, {2: 2})
    none = FileMetrics(2, {2: 0}, {2: 0}, value_counts={2: 0})
    file = replace(copied(some, none), value_counts={2: 5}, null_value_counts={})
    made = carry_over(file, settings_of("/t", schema), {"old-0": some, "old-1": none})
    assert (made.null_value_counts, made.nan_value_counts) == ({2: 3}, {2: 0})
    assert (made.lower_bounds, made.upper_bounds) == (low, high)


X = 1
"""Field id of the only column of the tables below."""


def metrics(kind: PrimitiveType, *values: Any, nulls: int | None = 0, nans: int | None = None) -> FileMetrics:
    """What a manifest says of a file with these values, and with nulls and NaN besides."""
    return FileMetrics(
        rows=len(values) + (nulls or 0) + (nans or 0),
        null_value_counts={} if nulls is None else {X: nulls},
        nan_value_counts={} if nans is None else {X: nans},
        lower_bounds={X: to_bytes(kind, min(values))} if values else {},
        upper_bounds={X: to_bytes(kind, max(values))} if values else {},
    )


def raw(lower: bytes | None, upper: bytes | None) -> FileMetrics:
    """A file with these bounds as its manifest has them."""
    bounds = [{} if bound is None else {X: bound} for bound in (lower, upper)]
    return FileMetrics(3, {X: 0}, {X: 0}, *bounds)


def copied(*inputs: FileMetrics, in_part: Sequence[int] = (), **others: Any) -> CopiedFile:
    """A file that copies these, some only in part, before any metrics are carried over."""
    sources = tuple(CopiedFrom(f"old-{i}", i not in in_part) for i in range(len(inputs)))
    rows = sum(old.rows for old in inputs)
    footer: dict[str, Any] = {"column_sizes": {X: 99}, "value_counts": {X: rows}, "null_value_counts": {X: 7}}
    return CopiedFile("new", 1, rows, PartitionKey(0), **footer | others, split_offsets=(4,), copied_from=sources)


def bounds(
    kind: PrimitiveType, *inputs: FileMetrics, mode: str = "truncate(16)", in_part: Sequence[int] = (), **others: Any
) -> tuple[bytes | None, bytes | None]:
    """The bounds that a file made of these inherits."""
    file = completed(kind, *inputs, mode=mode, in_part=in_part, **others)
    return file.lower_bounds.get(X), file.upper_bounds.get(X)


def completed(
    kind: PrimitiveType, *inputs: FileMetrics, mode: str = "truncate(16)", in_part: Sequence[int] = (), **others: Any
) -> NewDataFile:
    """A file of one column made of these."""
    options = settings_of("/t", schema_of(("x", kind)), properties={"write.metadata.metrics.default": mode})
    file = copied(*inputs, in_part=in_part, **others)
    return carry_over(file, options, {f"old-{i}": old for i, old in enumerate(inputs)})


INT, LONG, DOUBLE, TEXT = IntegerType(), LongType(), DoubleType(), StringType()


def test_bounds_of_all_its_rows_stay() -> None:
    """Those of the older files may be of rows that are deleted; where the file knows one bound only it has one."""
    lower, old = to_bytes(LONG, 2), metrics(LONG, 1, 5)
    file = completed(LONG, old, in_part=[0], has_bounds=True, lower_bounds={X: lower})
    assert (file.lower_bounds, file.upper_bounds) == ({X: lower}, {})


def test_what_the_footer_says_stays() -> None:
    """Sizes, offsets, value and null counts are the new file's own; nothing is left to be carried over."""
    file = completed(LONG, metrics(LONG, 1, 5), metrics(LONG, -3))
    lower, upper = to_bytes(LONG, -3), to_bytes(LONG, 5)
    plain = NewDataFile(
        "new", 1, 3, PartitionKey(0), {X: 99}, {X: 3}, {X: 7}, {}, {X: lower}, {X: upper}, split_offsets=(4,)
    )
    assert file == plain


@pytest.mark.parametrize(
    ("mode", "counts", "expected"),
    [
        ("none", {}, (None, None)),
        ("counts", {X: 1}, (None, None)),
        ("truncate(2)", {X: 1}, (b"ab", b"be")),
        ("full", {X: 1}, (b"abcd", b"bdef")),
    ],
)
def test_the_tables_metrics_mode_decides(
    mode: str, counts: dict[int, int], expected: tuple[bytes | None, bytes | None]
) -> None:
    """none: no counts; counts: no bounds; bounds are truncated anew, the upper one raised; full bounds stay."""
    file = completed(TEXT, metrics(TEXT, "abcd", "bdef"), mode=mode)
    assert (file.lower_bounds.get(X), file.upper_bounds.get(X)) == expected
    assert (file.value_counts.keys(), file.null_value_counts.keys()) == (counts.keys(), counts.keys())
    assert file.column_sizes == {X: 99}
    assert completed(DOUBLE, metrics(DOUBLE, 1.0, nans=2), mode=mode).nan_value_counts == dict.fromkeys(counts, 2)


def test_an_upper_bound_that_cannot_be_raised_is_left_out() -> None:
    """The lower one stays."""
    assert bounds(BinaryType(), metrics(BinaryType(), b"\xff\xff\xff"), mode="truncate(2)") == (b"\xff\xff", None)


def test_each_bound_is_merged_for_itself() -> None:
    """Iceberg may leave out upper bounds alone."""
    assert bounds(TEXT, raw(b"c", None), raw(b"b", b"d")) == (b"b", None)
    assert bounds(TEXT, raw(None, b"c"), raw(b"b", b"d")) == (None, b"d")


def test_a_bound_that_one_input_lacks_is_left_out() -> None:
    """Unless that input is known to hold nothing that a bound is about."""
    one, five = to_bytes(DOUBLE, 1.0), to_bytes(DOUBLE, 5.0)
    full = metrics(DOUBLE, 1.0, 5.0, nans=0)
    without = replace(full, lower_bounds={}, upper_bounds={})
    assert bounds(DOUBLE, full, without) == (None, None)
    assert bounds(DOUBLE, full, metrics(DOUBLE, nulls=4)) == (one, five)
    assert bounds(DOUBLE, full, metrics(DOUBLE, nulls=4), in_part=[1]) == (one, five)
    assert bounds(DOUBLE, full, metrics(DOUBLE, nulls=1, nans=3)) == (one, five)
    assert bounds(DOUBLE, full, replace(metrics(DOUBLE, nulls=1, nans=3), rows=5)) == (None, None)
    assert bounds(DOUBLE, full, replace(metrics(DOUBLE, nulls=4), null_value_counts={})) == (None, None)
    assert bounds(DOUBLE, metrics(DOUBLE, nulls=4)) == (None, None)
    # a NaN count of a column that cannot hold any says nothing
    assert bounds(LONG, metrics(LONG, 1), FileMetrics(2, {X: 1}, {X: 1})) == (None, None)


def test_of_an_input_without_metrics_nothing_is_known() -> None:
    """Its manifest may be gone: no bounds and no NaN counts; what the footer says stays."""
    options = settings_of("/t", schema_of(("x", DOUBLE)))
    full = metrics(DOUBLE, 1.0, nans=0)
    file = carry_over(copied(full, full), options, {"old-0": full})
    assert (file.lower_bounds, file.upper_bounds, file.nan_value_counts) == ({}, {}, {})
    assert (file.value_counts, file.null_value_counts) == ({X: 2}, {X: 7})


def test_a_bound_that_is_nan_counts_as_absent() -> None:
    """Old writers took NaN for the largest value, or the smallest."""
    plain, nan = to_bytes(DOUBLE, 1.0), to_bytes(DOUBLE, NAN)
    assert bounds(DOUBLE, raw(plain, nan), raw(plain, plain)) == (plain, None)
    assert bounds(DOUBLE, raw(plain, plain), raw(nan, plain)) == (None, plain)


def test_zeros_stay_inside() -> None:
    """A bound that is zero has the sign that keeps the other zero inside, as Parquet has it; others keep theirs."""
    low, high = to_bytes(DOUBLE, -0.0), to_bytes(DOUBLE, 0.0)
    assert bounds(DOUBLE, raw(high, low)) == (low, high)
    assert bounds(FloatType(), raw(bytes(4), bytes(4))) == (struct.pack("<f", -0.0), bytes(4))
    assert bounds(LONG, raw(bytes(8), bytes(8))) == (bytes(8), bytes(8))
    assert bounds(DOUBLE, raw(high, high), raw(to_bytes(DOUBLE, -1.0), low)) == (to_bytes(DOUBLE, -1.0), high)


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        (LONG, struct.pack("<i", -7), struct.pack("<q", -7)),
        (DOUBLE, struct.pack("<f", 0.25), struct.pack("<d", 0.25)),
        (DecimalType(38, 2), b"\x00\x00\x07", b"\x07"),
        (BooleanType(), b"\x01", b"\x01"),
        (FixedType(4), b"ab", b"ab"),
        (UUIDType(), bytes(range(16)), bytes(range(16))),
        (TimeType(), bytes(8), bytes(8)),
        (TimestamptzType(), bytes(8), bytes(8)),
        (DateType(), bytes(4), bytes(4)),
    ],
    ids=str,
)
def test_bounds_of_an_older_type_are_written_anew(kind: PrimitiveType, old: bytes, new: bytes) -> None:
    """A promoted column has bounds of its old type in old manifests; decimals may have leading zeros."""
    assert bounds(kind, raw(old, old)) == (new, new)


@pytest.mark.parametrize(
    ("kind", "bound"),
    [
        (INT, bytes(8)),
        (LONG, bytes(5)),
        (LONG, b""),
        (FloatType(), bytes(8)),
        (DateType(), bytes(8)),
        (TimestampType(), bytes(4)),
        (BooleanType(), b""),
        (DecimalType(4, 2), b""),
        (DecimalType(4, 2), (10_000).to_bytes(4, "big")),
        (UUIDType(), bytes(15)),
        (FixedType(2), bytes(3)),
        (TEXT, b"\xc3"),
    ],
    ids=str,
)
def test_a_bound_that_cannot_be_read_counts_as_absent(kind: PrimitiveType, bound: bytes) -> None:
    """Of a wrong length, not UTF-8, or no number of the column's precision."""
    assert bounds(kind, raw(bound, bound)) == (None, None)


def test_a_file_with_bounds_has_values_whatever_its_null_count_is() -> None:
    """The manifest may have a null count out of the footer of a writer that counts wrongly."""
    wrong = replace(metrics(LONG, 1, 5), null_value_counts={X: 2})
    assert bounds(LONG, wrong, metrics(LONG, 3)) == (to_bytes(LONG, 1), to_bytes(LONG, 5))


def test_bounds_are_compared_as_values() -> None:
    """Little-endian numbers and decimals of different lengths by value, text by its UTF-8 bytes."""
    assert bounds(LONG, metrics(LONG, 256), metrics(LONG, 2, -1)) == (to_bytes(LONG, -1), to_bytes(LONG, 256))
    assert bounds(DecimalType(9, 2), raw(b"\xff", b"\x7f"), raw(b"\x00", b"\x00\x80")) == (b"\xff", b"\x00\x80")
    assert bounds(TEXT, metrics(TEXT, "\uffff"), metrics(TEXT, "\U00010000")) == (
        "\uffff".encode(),
        "\U00010000".encode(),
    )


@pytest.mark.parametrize(
    ("counts", "in_part", "expected"),
    [((2, 3), [], 5), ((2, None), [], None), ((2, 0), [1], 2), ((2, 3), [1], None), ((2, None), [1], None)],
)
def test_nan_counts_are_summed_where_they_are_known(
    counts: tuple[int | None, ...], in_part: list[int], expected: int | None
) -> None:
    """Of a file that was copied in part nobody knows how many of its NaN came along, unless it has none."""
    file = completed(DOUBLE, *(metrics(DOUBLE, 1.0, nans=nans) for nans in counts), in_part=in_part)
    assert file.nan_value_counts.get(X) == expected


@pytest.mark.parametrize(
    ("counts", "in_part", "expected"), [((2, 3), [], 5), ((2, None), [], None), ((2, 0), [1], 2), ((2, 3), [1], None)]
)
def test_null_counts_that_the_footer_lacks_are_summed(
    counts: tuple[int | None, ...], in_part: list[int], expected: int | None
) -> None:
    """Footers of ours have none where a column holds NaN; manifests do."""
    inputs = [metrics(DOUBLE, 1.0, nulls=nulls, nans=1) for nulls in counts]
    file = completed(DOUBLE, *inputs, in_part=in_part, null_value_counts={})
    assert file.null_value_counts.get(X) == expected


def test_decoded_rows_count_like_a_file() -> None:
    """With their own bounds and counts."""
    low, one, five = (to_bytes(DOUBLE, value) for value in (-9.0, 1.0, 5.0))
    old = metrics(DOUBLE, 1.0, 5.0, nans=1)
    own = FileMetrics(4, lower_bounds={X: low}, upper_bounds={X: one}, nan_value_counts={X: 2})
    assert bounds(DOUBLE, old, decoded=(own,)) == (low, five)
    assert completed(DOUBLE, old, decoded=(own,)).nan_value_counts == {X: 3}
    assert bounds(DOUBLE, replace(old, lower_bounds={}, upper_bounds={}), decoded=(own,)) == (None, None)
    # no bounds of their own: nothing but nulls, or not known
    assert bounds(DOUBLE, old, decoded=(FileMetrics(4, {X: 4}),)) == (one, five)
    assert bounds(DOUBLE, old, decoded=(FileMetrics(4, {X: 2}, {X: 2}),)) == (one, five)
    assert bounds(DOUBLE, old, decoded=(FileMetrics(4, {X: 3}),)) == (None, None)
    assert completed(DOUBLE, old, decoded=(FileMetrics(4),)).nan_value_counts == {}


def test_only_columns_of_the_tables_schema_have_metrics() -> None:
    """A column that was dropped has none; nested ones have the counts of the footer, as in files written anew."""
    schema = Schema(NestedField(1, "x", LONG), NestedField(2, "l", ListType(3, DOUBLE, False), required=False))
    five = to_bytes(LONG, 5)
    per_column = dict.fromkeys((1, 3, 8), five)
    old = FileMetrics(2, dict.fromkeys((1, 3, 8), 0), dict.fromkeys((1, 3, 8), 0), per_column, per_column)
    file = replace(copied(old), value_counts={1: 2, 3: 4, 8: 2}, null_value_counts={1: 0, 3: 1, 8: 0})
    made = carry_over(file, settings_of("/t", schema), {"old-0": old})
    assert (made.value_counts, made.null_value_counts, made.nan_value_counts) == ({1: 2, 3: 4}, {1: 0, 3: 1}, {})
    assert (made.lower_bounds, made.upper_bounds) == ({1: five}, {1: five})


MEASURED = schema_of(("id", LONG), ("name", TEXT), ("x", DOUBLE), ("money", DecimalType(9, 2)), ("nothing", INT))


NULL_MAPS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
"""What Java leaves null in manifests of columns without metrics."""


def _measured(n: int) -> dict[str, Any]:
    return {"id": n, "name": f"a long name that is truncated {n}", "x": NAN if n % 3 else n / 2, "money": Decimal(n)}


def _of_pyiceberg(table: Table) -> dict[str, FileMetrics]:
    """Metrics of the table's live files as PyIceberg reads them."""
    manifests = table.current_snapshot().manifests(table.io)  # type: ignore[union-attr]
    return {
        file.file_path: FileMetrics(
            file.record_count,
            *(
                dict(found or {})
                for found in (
                    file.null_value_counts,
                    file.nan_value_counts,
                    file.lower_bounds,
                    file.upper_bounds,
                    file.value_counts,
                )
            ),
        )
        for manifest in manifests
        for file in (entry.data_file for entry in manifest.fetch_manifest_entry(table.io))
    }


@pytest.mark.parametrize("version", [1, 2])
def test_metrics_are_read_as_pyiceberg_reads_them(tmp_path: Path, version: int) -> None:
    """From manifests by PyIceberg and by icesize; only of the files that are asked for, each manifest opened once."""
    catalog = sqlite_catalog(tmp_path)
    table = catalog.create_table("db.t", MEASURED, properties={"format-version": str(version)})
    options = WriteSettings.of(table.metadata, table.io.properties, 2**29)
    rows = [[_measured(10 * file + n) for n in range(4)] for file in range(5)]
    for part in rows[:2]:
        table.append(pa.Table.from_pylist(part, options.arrow_schema))
    table = catalog.load_table("db.t")
    run(catalog, request_on(table, [_written(options, part) for part in rows[2:]]), table)
    bare = replace(_written(options, rows[0]), **dict.fromkeys(NULL_MAPS))  # type: ignore[arg-type]
    append(catalog.load_table("db.t"), [bare])
    table = catalog.load_table("db.t")
    files, expected = small_files(table), _of_pyiceberg(table)
    assert expected.pop(bare.path) == FileMetrics(4)
    assert len(expected) == 5
    assert all(each.lower_bounds.keys() >= {1, 2, 4} for each in expected.values())
    assert sum(4 in each.null_value_counts and 3 in each.nan_value_counts for each in expected.values()) == 3
    expected[bare.path] = FileMetrics(4)
    io = Counting()
    assert metrics_of(files, io) == expected
    assert sorted(io.opened) == sorted({file.manifest_path for file in files})
    assert metrics_of(files[1:3], table.io) == {file.path: expected[file.path] for file in files[1:3]}


class Counting(RemoteLike):
    """Files that remember when they were opened."""

    def __init__(self) -> None:
        super().__init__({})
        self.opened: list[str] = []

    def new_input(self, location: str) -> InputFile:
        self.opened.append(location)
        return super().new_input(location)


@pytest.mark.parametrize("damage", ["gone", "cut off", "not Avro"])
def test_a_manifest_that_cannot_be_read_makes_its_files_unknown(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log tells, and other files are known as before."""
    table = two_files(sqlite_catalog(tmp_path))
    lost, found = small_files(table)
    expected = {found.path: _of_pyiceberg(table)[found.path]}
    manifest = local(lost.manifest_path)
    content = manifest.read_bytes()
    manifest.unlink()
    if damage != "gone":
        manifest.write_bytes(b"?" if damage == "not Avro" else content[:-60])
    with caplog.at_level(logging.INFO, "icesize"):
        assert metrics_of([lost, found], table.io) == expected
    assert "column metrics of 1 merged files are not known" in caplog.text


def _bare(group: MergeResult, *, whole: bool = True) -> MergeResult:
    """The group as if its only output had been made by copying the input files' bytes."""
    (file,) = group.files
    sources = tuple(CopiedFrom(input_file.path, whole) for input_file in group.inputs)
    return replace(group, files=(replace(_as_copied(file), copied_from=sources),))


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_commit_completes_what_was_copied(tmp_path: Path, version: str, caplog: pytest.LogCaptureFixture) -> None:
    """Merged files come into the table with the bounds of their input files, be these old or new with the same
    commit."""
    caplog.set_level(logging.INFO, "icesize")
    catalog = sqlite_catalog(tmp_path)
    table = two_files(catalog, properties={"format-version": version})
    new = write(table, [9])
    group = merged(table, [*small_files(table), fact(new)])
    handle, layout, environment = TableHandle(catalog, ("db", "t")), layout_of(table), Environment()
    written = WrittenBatch(
        handle.load(), layout, plan_merges(layout, SizePolicy()), MergeResults((_bare(group),)), Written((new,))
    )
    owner, batch = Uncommitted(Storage.of(table.io), "p"), Batch(handle, environment, Stopwatch(environment))
    outcome = commit_written(written, batch, owner, environment)
    assert outcome.merged == (group,)
    assert caplog.text == ""
    table = landed(catalog, [1, 2, 9])
    (file,) = _of_pyiceberg(table).values()
    assert file == FileMetrics.of(group.files[0])
    assert (file.lower_bounds[1], file.upper_bounds[1]) == (to_bytes(LONG, 1), to_bytes(LONG, 9))


def test_a_merge_of_input_files_that_nobody_can_describe_lands(tmp_path: Path) -> None:
    """It has no bounds then."""
    catalog = sqlite_catalog(tmp_path)
    table = two_files(catalog)
    group = _bare(merged(table, small_files(table)))
    nowhere = tuple(replace(v, manifest_path=f"{v.manifest_path}.gone") for v in group.inputs)
    (made,) = with_carried_over_metrics(
        (replace(group, inputs=nowhere),), (), table.io, TableHandle(catalog, ("db", "t")).load().settings
    )
    run(catalog, request_on(table, groups=[replace(made, inputs=group.inputs)]), table)
    (file,) = _of_pyiceberg(landed(catalog, [1, 2])).values()
    assert (file.rows, file.null_value_counts[1], file.lower_bounds, file.upper_bounds) == (2, 0, {}, {})


def test_only_manifests_of_copied_files_are_read(tmp_path: Path) -> None:
    """A merge may decode some of its input files and copy others."""
    table = two_files(sqlite_catalog(tmp_path))
    group = _bare(merged(table, small_files(table)))
    (file,) = group.files
    group = replace(group, files=(replace(file, copied_from=file.copied_from[:1]),))
    io = Counting()
    with_carried_over_metrics((group,), (), io, lambda: WriteSettings.of(table.metadata, {}, 2**29))
    assert io.opened == [group.inputs[0].manifest_path]


def test_merges_that_decoded_cost_nothing(tmp_path: Path) -> None:
    """No manifest is opened and no settings are asked for; the files stay the same objects."""
    table = two_files(sqlite_catalog(tmp_path))
    groups = (merged(table, small_files(table)),)
    io = Counting()
    asked: list[str] = []

    def ask() -> WriteSettings:
        asked.append("settings")
        return WriteSettings.of(table.metadata, {}, 2**29)

    (done,) = with_carried_over_metrics(groups, (), io, ask)
    assert done.files[0] is groups[0].files[0]
    assert (io.opened, asked) == ([], [])
