"""Statistics of a chunk made of the pages of several, against the values."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.schema import (
    BOOLEAN,
    BYTE_ARRAY,
    DOUBLE,
    FIXED_LEN_BYTE_ARRAY,
    FLOAT,
    INT32,
    INT64,
    Element,
    element_of,
)
from icesize.parquet.format.statistics import bound_order, merge_size_statistics, merge_statistics
from icesize.parquet.format.thrift import (
    BINARY,
    I64,
    Fields,
    binary,
    boolean,
    boolean_field,
    bytes_field,
    i32,
    i64,
    integer,
    integers_field,
    struct_field,
    struct_of,
)
from tests.support.examples import examples
from tests.support.footers import footer_of, make_file

NAN = math.nan
UINT_32, UINT_64, INT_16, DECIMAL, INTERVAL = 13, 14, 16, 5, 21
LOGICAL_FLOAT16, LOGICAL_UUID, LOGICAL_STRING = 15, 14, 1


def element(kind: int, converted: int | None = None, length: int | None = None, logical: int | None = None) -> Element:
    """A leaf of the schema."""
    fields: Fields = {1: i32(kind), 4: bytes_field(b"c")}
    if converted is not None:
        fields[6] = i32(converted)
    if length is not None:
        fields[2] = i32(length)
    if logical is not None:
        fields[10] = struct_field({logical: struct_field({})})
    return element_of(fields)


@dataclass(frozen=True)
class Kind:
    """A type of column: how its values are stored in bounds, and which there are."""

    element: Element
    pack: Callable[[Any], bytes]
    values: st.SearchStrategy[Any]


def _big_endian(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)


FLOATS = st.one_of(st.sampled_from([NAN, 0.0, -0.0, math.inf, -math.inf]), st.floats(width=32))
KINDS = {
    "int32": Kind(element(INT32), struct.Struct("<i").pack, st.integers(-(2**31), 2**31 - 1)),
    "int16": Kind(element(INT32, INT_16), struct.Struct("<i").pack, st.integers(-(2**15), 2**15 - 1)),
    "uint32": Kind(element(INT32, UINT_32), struct.Struct("<I").pack, st.integers(0, 2**32 - 1)),
    "int64": Kind(element(INT64), struct.Struct("<q").pack, st.integers(-(2**63), 2**63 - 1)),
    "uint64": Kind(element(INT64, UINT_64), struct.Struct("<Q").pack, st.integers(0, 2**64 - 1)),
    "decimal in int64": Kind(element(INT64, DECIMAL), struct.Struct("<q").pack, st.integers(-(10**18), 10**18)),
    "decimal of 16 bytes": Kind(
        element(FIXED_LEN_BYTE_ARRAY, DECIMAL, 16),
        lambda number: number.to_bytes(16, "big", signed=True),
        st.integers(-(10**38), 10**38),
    ),
    "decimal in bytes": Kind(element(BYTE_ARRAY, DECIMAL), _big_endian, st.integers(-(10**30), 10**30)),
    "bytes": Kind(element(BYTE_ARRAY), bytes, st.binary(max_size=3)),
    "uuid": Kind(element(FIXED_LEN_BYTE_ARRAY, None, 2, LOGICAL_UUID), bytes, st.binary(min_size=2, max_size=2)),
    "boolean": Kind(element(BOOLEAN), lambda flag: bytes([flag]), st.booleans()),
    "float": Kind(element(FLOAT), struct.Struct("<f").pack, FLOATS),
    "double": Kind(element(DOUBLE), struct.Struct("<d").pack, FLOATS),
}


def statistics(kind: Kind, values: Sequence[Any], **changes: Any) -> Fields:
    """What a writer says that ignores NaN, and leaves zeros as they are; `changes` replace bounds, None leaves out."""
    known = [value for value in values if value is not None and value == value]
    claims = {"nulls": sum(v is None for v in values), "exact": True}
    claims |= {"min": min(known), "max": max(known)} if known else {}
    claims |= changes
    fields: Fields = {}
    if claims["nulls"] is not None:
        fields[3] = i64(claims["nulls"])
    for name, field, flag in (("max", 5, 7), ("min", 6, 8)):
        if claims.get(name) is not None:
            fields[field] = bytes_field(kind.pack(claims[name]))
            if claims["exact"] is not None:
                fields[flag] = boolean_field(claims["exact"])
    return fields


def bounds(kind: Kind, fields: Fields | None) -> tuple[Any, Any] | None:
    """Least and greatest as Statistics have them, None without."""
    raw = [binary(fields or {}, field) for field in (6, 5)]
    order = bound_order(kind.element)
    assert order is not None
    assert (raw[0] is None) == (raw[1] is None)
    return None if raw[0] is None or raw[1] is None else (order(raw[0]), order(raw[1]))


@pytest.mark.parametrize("name", KINDS)
@examples(25)
@given(data=st.data())
def test_merged_statistics_are_those_of_all_values(name: str, data: st.DataObject) -> None:
    """Null counts are exact; bounds are the least and greatest value, or missing where a part does not tell."""
    kind = KINDS[name]
    parts = data.draw(st.lists(st.lists(st.none() | kind.values, max_size=4), min_size=1, max_size=4))
    silent = data.draw(st.sets(st.integers(0, 3), max_size=1))
    given_parts: list[tuple[Fields | None, int]] = [
        (None if at in silent else statistics(kind, values), len(values)) for at, values in enumerate(parts)
    ]
    merged = merge_statistics(kind.element, given_parts)
    flat = [value for values in parts for value in values]
    known = [value for value in flat if value is not None and value == value]
    told = not any(parts[at] for at in silent if at < len(parts))
    hidden = any(all(v is None or v != v for v in values) and any(v is not None for v in values) for values in parts)
    nulls = integer(merged or {}, 3)
    assert nulls == (flat.count(None) if told and flat else None)
    expected = (min(known), max(known)) if told and known and not hidden else None
    assert bounds(kind, merged) == expected


@pytest.mark.parametrize("kind", [KINDS["float"], KINDS["double"]], ids=["float", "double"])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zeros_are_the_outermost_ones(kind: Kind, zero: float) -> None:
    """A lower bound of zero is -0.0, an upper one 0.0, whichever zero the parts have."""
    merged = merge_statistics(kind.element, [(statistics(kind, [zero]), 1)] * 2)
    assert merged is not None
    assert (binary(merged, 6), binary(merged, 5)) == (kind.pack(-0.0), kind.pack(0.0))


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("change", [{"min": NAN}, {"max": NAN}, {"min": None}, {"max": None}], ids=str)
def test_one_unknown_bound_drops_both(at: int, change: dict[str, Any]) -> None:
    """A NaN or a missing bound in any part leaves the merged chunk without bounds, with its null count."""
    kind = KINDS["double"]
    parts = [statistics(kind, [1.0, None], **(change if part == at else {})) for part in range(3)]
    merged = merge_statistics(kind.element, [(part, 2) for part in parts])
    assert merged == {3: i64(3)}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (True, True, True),
        (True, False, True),
        (False, False, False),
        (None, None, None),
        (None, False, None),
        (None, True, True),
    ],
)
def test_equal_bounds_are_exact_if_one_is(one: bool | None, other: bool | None, expected: bool | None) -> None:
    """Of two equal bounds the claim of exactness is true if either makes it, unknown if one says nothing."""
    kind = KINDS["bytes"]
    for flags in ((one, other), (other, one)):
        merged = merge_statistics(kind.element, [(statistics(kind, [b"a", b"b"], exact=flag), 2) for flag in flags])
        assert merged is not None
        assert (boolean(merged, 7), boolean(merged, 8)) == (expected, expected)


def test_flags_are_those_of_the_outermost_bound() -> None:
    """A truncated bound that wins stays inexact, whatever the others are."""
    kind = KINDS["bytes"]
    parts = [statistics(kind, [b"b", b"c"]), statistics(kind, [b"a", b"az"], exact=False)]
    merged = merge_statistics(kind.element, [(part, 2) for part in parts])
    assert merged is not None
    assert (bounds(kind, merged), boolean(merged, 7), boolean(merged, 8)) == ((b"a", b"c"), True, False)


def test_a_missing_null_count_is_not_guessed() -> None:
    """Without the null count of one part there is none, the bounds stay; a part of nulls must then have a bound."""
    kind = KINDS["int32"]
    full = statistics(kind, [3, 5])
    merged = merge_statistics(kind.element, [(full, 2), (statistics(kind, [4], nulls=None), 1)])
    assert merged is not None
    assert (integer(merged, 3), bounds(kind, merged)) == (None, (3, 5))
    assert merge_statistics(kind.element, [(full, 2), (statistics(kind, [None], nulls=None), 1)]) is None


@pytest.mark.parametrize("bound", ["min_value", "max_value", "old_min", "old_max"])
def test_a_part_with_a_bound_has_a_value_whatever_its_null_count_is(bound: str) -> None:
    """DuckDB counted all entries of lists as NULLs; with one bound, or old ones alone, the merged chunk has none."""
    kind = KINDS["double"]
    one, other = statistics(kind, [0.1, 0.5], nulls=25), statistics(kind, [0.6, None])
    merged = merge_statistics(kind.element, [(one, 25), (other, 2)])
    assert merged is not None
    assert (integer(merged, 3), bounds(kind, merged)) == (None, (0.1, 0.6))
    field = {"max_value": 5, "min_value": 6, "old_max": 1, "old_min": 2}[bound]
    alone = {3: i64(25), field: bytes_field(kind.pack(0.1))}
    assert merge_statistics(kind.element, [(alone, 25), (other, 2)]) is None


@pytest.mark.parametrize("nulls", [-1, 3])
def test_an_impossible_null_count_counts_as_missing(nulls: int) -> None:
    """A part with fewer nulls than none, or more than values, has no null count."""
    kind = KINDS["int32"]
    assert merge_statistics(kind.element, [(statistics(kind, [None] * 2, nulls=nulls), 2)]) is None


def test_what_cannot_be_merged_is_dropped() -> None:
    """Bounds without a defined order and numbers of distinct values are not in the result."""
    kind = KINDS["int32"]
    old = {1: bytes_field(kind.pack(9)), 2: bytes_field(kind.pack(1)), 4: i64(1), 9: i64(0)}
    merged = merge_statistics(kind.element, [(statistics(kind, [3, 5]) | old, 2)])
    assert merged == statistics(kind, [3, 5])


def test_contradicting_bounds_are_dropped() -> None:
    """A least value above the greatest is not passed on."""
    kind = KINDS["int32"]
    assert merge_statistics(kind.element, [(statistics(kind, [3], min=4), 1)]) == {3: i64(0)}


@pytest.mark.parametrize(
    "unordered",
    [
        element(FIXED_LEN_BYTE_ARRAY, INTERVAL, 12),
        element(FIXED_LEN_BYTE_ARRAY, None, 2, LOGICAL_FLOAT16),
        element(BYTE_ARRAY, None, None, 99),
        element(INT32, None, None, LOGICAL_STRING),
        element(INT32, None, None, 10),
        element(3),
    ],
    ids=["interval", "float16", "unknown", "string of integers", "integer without parameters", "int96"],
)
def test_unknown_orders_have_no_bounds(unordered: Element) -> None:
    """Where the order of values is not known, only nulls are counted."""
    part: Fields = {3: i64(1), 5: bytes_field(bytes(12)), 6: bytes_field(bytes(12))}
    assert bound_order(unordered) is None
    assert merge_statistics(unordered, [(part, 2)]) == {3: i64(1)}


@pytest.mark.parametrize("name", [name for name in KINDS if name != "bytes"])
@pytest.mark.parametrize("field", [5, 6])
def test_bounds_of_a_wrong_length_are_dropped(name: str, field: int) -> None:
    """Bytes that are no value of the type count as a missing bound."""
    kind = KINDS[name]
    value = {"uuid": b"ab", "boolean": True}.get(name, 1)
    wrong = b"" if name == "decimal in bytes" else bytes(17)
    part = {**statistics(kind, [value]), field: bytes_field(wrong)}
    assert merge_statistics(kind.element, [(part, 1)]) == {3: i64(0)}


@pytest.mark.parametrize("part", [{3: bytes_field(b"")}, {5: i64(1), 6: i64(1)}, {5: (BINARY, b"\0"), 6: i64(1)}])
def test_statistics_of_other_types_are_refused(part: Fields) -> None:
    """Fields of a wrong type are damage."""
    with pytest.raises(CopyRefused) as refused:
        merge_statistics(element(INT32), [(part, 1)])
    assert refused.value.code == Refusal.CORRUPT_FOOTER


def test_files_of_pyarrow() -> None:
    """Statistics of row groups that pyarrow wrote become those that it writes for all rows at once."""
    rows = pa.table(
        {
            "unsigned": pa.array([2**64 - 1, 3, None, 0], pa.uint64()),
            "small": pa.array([255, 3, None, 0], pa.uint8()),
            "negative": pa.array([-1, 3, None, 0], pa.int8()),
            "money": pa.array([Decimal("-1.5"), Decimal("2"), None, Decimal("-3")], pa.decimal128(30, 2)),
            "text": ["ü", "a", None, "z"],
            "flag": [True, False, None, True],
            "list": pa.array([[1, 2], [], None, [-3]], pa.list_(pa.int32())),
            "null": pa.nulls(4),
        }
    )
    parts = footer_of(make_file(rows, row_group_size=1))
    whole = footer_of(make_file(rows, row_group_size=4))
    for at, column in enumerate(parts.columns):
        chunks = [group.chunks[at] for group in parts.row_groups]
        (expected,) = (group.chunks[at].metadata for group in whole.row_groups)
        merged = merge_statistics(column.element, [(struct_of(c.metadata, 12), c.values) for c in chunks])
        truth = struct_of(expected, 12) or {}
        assert merged == ({k: v for k, v in truth.items() if k not in (1, 2, 4)} or None), column
        assert merge_size_statistics(chunks) == struct_of(expected, 16), column


def test_sizes_that_a_part_lacks_are_not_summed() -> None:
    """Without one part's sizes there are none, without its histogram there is no such histogram."""
    chunks = [group.chunks[2] for group in footer_of(make_file()).row_groups]
    sizes = struct_of(chunks[0].metadata, 16) or {}
    full = merge_size_statistics(chunks)
    assert full is not None
    assert integer(full, 1) == 2 * (integer(sizes, 1) or 0) + 8  # the second ten names have two digits
    for part, expected in (
        ({1: sizes[1]}, {1: full[1]}),
        ({**sizes, 3: integers_field([1, 2, 3], I64)}, {1: full[1], 2: full[2]}),
        ({**sizes, 4: i64(0)}, None),
    ):
        chunks[0].metadata[16] = struct_field(part)
        assert merge_size_statistics(chunks) == expected
    del chunks[0].metadata[16]
    assert merge_size_statistics(chunks) is None


def test_damaged_sizes_are_refused() -> None:
    """A histogram that is no list is damage."""
    chunk = footer_of(make_file()).row_groups[0].chunks[0]
    chunk.metadata[16] = struct_field({2: i64(1)})
    with pytest.raises(CopyRefused) as refused:
        merge_size_statistics([chunk])
    assert refused.value.code == Refusal.CORRUPT_FOOTER
