"""Codes of keys: equal if and only if the keys are, and found by a search as by comparing all pairs."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.errors import UnsupportedTable
from icesize.parquet.keys.codes import Codes, codes_of
from tests.support.examples import examples

SECRET = b"secret"
DAYS = st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1))
TIMES = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1))
FEW = st.text("ab\0", max_size=3)
"""Texts that are easily equal once they are put together."""


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda digits: Decimal(f"{digits}e-{scale}"))  # arithmetic would round it


KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2)),
    "bool": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), DAYS),
    "timestamp": (pa.timestamp("us"), TIMES),
    "decimal": (pa.decimal128(9, 2), decimals(9, 2)),
    "wide decimal": (pa.decimal128(38, 3), decimals(38, 3) | st.sampled_from([Decimal("0.001"), Decimal("-0.001")])),
    "uuid": (pa.binary(16), st.uuids().map(lambda each: each.bytes)),
    "string": (pa.string(), FEW | st.text(max_size=40)),
    "large string": (pa.large_string(), FEW),
    "binary": (pa.binary(), st.binary(max_size=3)),
    "fixed": (pa.binary(3), st.binary(min_size=3, max_size=3)),
}
Table = tuple[list[str], list[tuple[Any, ...]]]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Kinds of one to three columns, and rows of which some are repeats."""
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3))
    row = st.tuples(*(KINDS[kind][1] for kind in kinds))
    rows = draw(st.lists(row, min_size=1, max_size=12))
    return kinds, rows + draw(st.lists(st.sampled_from(rows), max_size=6))


def codes(kinds: Sequence[str], rows: Sequence[tuple[Any, ...]], cut: int = 0) -> Codes:
    """The codes of rows whose columns are cut in two chunks, the second one a slice of a longer array."""
    columns = []
    for at, kind in enumerate(kinds):
        array = pa.array([row[at] for row in rows], KINDS[kind][0])
        longer = pa.concat_arrays([array[:1], array])
        columns.append(pa.chunked_array([array[:cut], longer[1 + cut :]]))
    return codes_of(columns, SECRET)


def pairs(some: Codes) -> list[tuple[int, int]]:
    return list(zip(some.high.tolist(), [0] * len(some) if some.low is None else some.low.tolist(), strict=True))


@given(tables(), st.integers(0, 10))
@examples(300)
def test_codes_are_equal_if_and_only_if_keys_are(table: Table, cut: int) -> None:
    """In rows of any types, in any chunks, two codes are equal exactly where all columns of the key are."""
    kinds, rows = table
    found = pairs(codes(kinds, rows, cut))
    for one, code in zip(rows, found, strict=True):
        assert [other == code for other in found] == [other == one for other in rows]


@pytest.mark.parametrize("kind", ["int", "long", "date", "timestamp", "bool"])
@given(st.data())
@examples(50)
def test_codes_of_one_column_of_numbers_have_its_order(kind: str, data: st.DataObject) -> None:
    """A code of 64 bits is in the order of the values, negative ones included."""
    values = data.draw(st.lists(KINDS[kind][1], min_size=2, max_size=20))
    found = codes([kind], [(value,) for value in values])
    assert found.low is None
    assert [values[at] for at in found.order()] == sorted(values)


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_have_no_codes(kind: str) -> None:
    """A file whose keys are all NULL has no row with a code."""
    kind_of_column = KINDS[kind][0]
    for columns in (1, 3):
        empty = [pa.chunked_array([], kind_of_column)] * columns
        assert len(codes_of(empty, SECRET)) == 0


Pool = list[tuple[int, int]]
small = st.integers(0, 3)
pools = st.lists(st.tuples(small, small), max_size=12)
"""Codes of which many have the same upper half."""


def wide(some: Sequence[tuple[int, int]]) -> Codes:
    high, low = np.array(some, np.uint64).reshape(-1, 2).T
    return Codes(high.copy(), low.copy())


@given(pools, pools, st.booleans())
@examples(300)
def test_matches_are_those_of_all_pairs(
    known: list[tuple[int, int]], rows: list[tuple[int, int]], narrow: bool
) -> None:
    """A search finds what comparing every pair finds, also among codes with equal upper halves."""
    if narrow:
        known, rows = ([(high, 0) for high, _ in some] for some in (known, rows))
    known = sorted(set(known))
    mine, theirs = wide(known), wide(rows)
    if narrow:
        mine, theirs = Codes(mine.high), Codes(theirs.high)
    at, places = mine.matches(theirs)
    expected = [(n, known.index(row)) for n, row in enumerate(rows) if row in known]
    assert list(zip(at.tolist(), places.tolist(), strict=True)) == expected


@given(pools)
@examples(100)
def test_order_and_repeats_follow_both_halves(some: list[tuple[int, int]]) -> None:
    """Codes of 128 bits are sorted by both halves, and a repeat is equal in both."""
    codes = wide(some)
    in_order = codes.take(codes.order())
    assert pairs(in_order) == sorted(some)
    ordered = sorted(some)
    assert in_order.repeats().tolist() == [n > 0 and ordered[n - 1] == each for n, each in enumerate(ordered)]


def test_a_secret_decides_the_codes_of_long_keys() -> None:
    """Without the secret, nobody can make two keys with one code."""
    column = [pa.chunked_array([["a", "b"]])]
    assert pairs(codes_of(column, b"one")) != pairs(codes_of(column, b"two"))


def test_values_without_codes_are_refused() -> None:
    """A column whose values are no bytes is named with its type."""
    with pytest.raises(UnsupportedTable, match=r"a column of type 'list<item: int64>' as a key"):
        codes_of([pa.chunked_array([[[1]]])], SECRET)


def test_a_uuid_is_its_bytes() -> None:
    """A UUID is exact in 128 bits, and no hash: two that differ in one bit have different codes."""
    values = [uuid.UUID(int=number).bytes for number in (1, 2, 1 << 64)]
    found = codes_of([pa.chunked_array([pa.array(values, pa.binary(16))])], SECRET)
    assert len(set(pairs(found))) == 3
