"""Numbers that compare like rows, of any type, also of values that Python does not have."""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.parquet.keys.ranks import row_ranks
from tests.support.examples import examples

KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int32(): st.integers(-2, 2),
    pa.float64(): st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5]),
    pa.string(): st.sampled_from(["", "a", "ab", "b", "é", "\U0001f600"]),
    pa.large_binary(): st.binary(max_size=2),
    pa.binary(2): st.binary(min_size=2, max_size=2),
    pa.decimal128(9, 2): st.sampled_from([Decimal("-1.00"), Decimal("0.00"), Decimal("1.50")]),
    pa.date32(): st.dates(date(1, 1, 1), date(9999, 12, 31)),
    **({pa.uuid(): st.binary(min_size=16, max_size=16)} if hasattr(pa, "uuid") else {}),
}


def nested(kind: pa.DataType, values: st.SearchStrategy[Any]) -> dict[pa.DataType, st.SearchStrategy[Any]]:
    some = values | st.none()
    structs = st.fixed_dictionaries({"x": some, "y": st.integers(0, 1)})
    return {
        pa.list_(kind): st.lists(some, max_size=2),
        pa.struct({"x": kind, "y": pa.int64()}): structs,
        pa.map_(pa.int64(), kind): st.lists(st.tuples(st.integers(0, 1), some), max_size=2),
        pa.list_(pa.struct({"x": kind, "y": pa.int64()})): st.lists(structs | st.none(), max_size=2),
    }


ALL = KINDS | nested(pa.string(), KINDS[pa.string()]) | nested(pa.float64(), KINDS[pa.float64()])


def ordered(value: Any) -> Any:
    """A value in a form that Python compares as Iceberg does: NULL first, NaN last, text by its bytes."""
    if value is None:
        return ()
    if isinstance(value, float):
        return (1, math.isnan(value), 0.0 if math.isnan(value) else value, math.copysign(1, value))
    if isinstance(value, dict):
        return (1, ordered(value["x"]), ordered(value["y"]))
    if isinstance(value, list | tuple):
        return (1, *map(ordered, value))
    return (1, value.encode() if isinstance(value, str) else value)


@given(st.data())
@examples(300)
def test_ranks_compare_like_rows(data: st.DataObject) -> None:
    """Any two rows have ranks that are less, equal or greater as the rows are, of one column or two, also of slices."""
    kinds = data.draw(st.lists(st.sampled_from(list(ALL)), min_size=1, max_size=2))
    rows = data.draw(st.lists(st.tuples(*(ALL[kind] | st.none() for kind in kinds)), max_size=8))
    columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]
    table = pa.table(columns, [f"c{at}" for at in range(len(kinds))])
    skipped = data.draw(st.integers(0, len(rows)))
    ranks, expected = row_ranks(table.slice(skipped)).tolist(), [tuple(map(ordered, row)) for row in rows[skipped:]]
    for mine, one in zip(ranks, expected, strict=True):
        for theirs, other in zip(ranks, expected, strict=True):
            assert ((mine > theirs) - (mine < theirs)) == ((one > other) - (one < other))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([-(2**62), 0, 2**62]).cast(pa.timestamp("us")),
        pa.array([-(2**30), 0, 2**30], pa.int32()).view(pa.date32()),
        pa.array([b"a\x00", b"a\x80", b"a\xff"]).view(pa.string()),
        pa.array([0, 1, 2**62]).cast(pa.timestamp("us", "Europe/Berlin")).dictionary_encode(),
    ],
)
def test_values_that_python_does_not_have(values: pa.Array) -> None:
    """Times before the year 1 and after 9999, and text that is no UTF-8, are compared all the same."""
    assert np.array_equal(row_ranks(pa.table({"v": values})), [0, 1, 2])
    assert np.array_equal(row_ranks(pa.table({"v": values.take(pa.array([2, None, 0, 2]))})), [2, 0, 1, 2])
