"""Sort orders, and how Python sorts values as Iceberg orders them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DoubleType, FloatType, LongType

from icesize.parquet.files.settings import WriteSettings
from tests.support.parquet_files import schema_of

ASC = SortDirection.ASC
DESC = SortDirection.DESC
FIRST = NullOrder.NULLS_FIRST
LAST = NullOrder.NULLS_LAST
PAIR = schema_of(("a", LongType()), ("b", DoubleType()))
BY_PAIR = ((1, "identity", ASC, FIRST), (2, "identity", DESC, LAST))
Field = tuple[int, str, SortDirection, NullOrder]


def order_of(*fields: Field) -> SortOrder:
    """Sort order number 7."""
    return SortOrder(*(SortField(i, parse_transform(t), d, n) for i, t, d, n in fields), order_id=7)


def sorted_by(options: WriteSettings, *fields: Field) -> WriteSettings:
    """Settings of a table with this sort order."""
    return replace(options, sort_order_json=order_of(*fields).model_dump_json())


def compare(one: Any, two: Any) -> int:
    """Iceberg's order of two values that are not null, NaN above all numbers and -0.0 below 0.0."""
    if isinstance(one, float):
        one, two = ((math.isnan(v), 0.0 if math.isnan(v) else v, math.copysign(1.0, v)) for v in (one, two))
        if one[0] and two[0]:
            return 0
    return int(one > two) - int(one < two)


def python_key(direction: SortDirection, nulls: NullOrder) -> Callable[[Any], Any]:
    """A key for Python's own sort."""

    def order(one: Any, two: Any) -> int:
        if one is None or two is None:
            return (int(one is None) - int(two is None)) * (-1 if nulls == FIRST else 1)
        return compare(one, two) * (1 if direction == ASC else -1)

    return functools.cmp_to_key(order)


WITH_NAN = [
    (FloatType(), st.floats(width=32), ("identity",)),
    (DoubleType(), st.floats() | st.sampled_from([0.0, -0.0, math.nan]), ("identity",)),
]
