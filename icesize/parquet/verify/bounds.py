"""Whether bounds and counts that a file gives for some of its values are true of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from icesize.parquet.format.fields import SizeStatistics, Statistics
from icesize.parquet.format.schema import BYTE_ARRAY, Column
from icesize.parquet.format.statistics import Order, order_of
from icesize.parquet.format.thrift import Fields, binary, boolean, integer, integers_of
from icesize.parquet.verify.values import Extremes, Leaves, extremes_of, is_unsigned

_NUMBERS = range(6)
"""Physical types that are numbers, booleans among them."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound as it is stored; `exact` is the claim that a value equals it."""

    name: str
    raw: bytes
    is_lower: bool
    exact: bool = False


def check_statistics(column: Column, fields: Fields, leaves: Leaves, ordered: bool) -> Iterator[str]:
    """Compare Statistics of a chunk with its values; raises `MalformedError`.

    Bounds are compared when the column is `ordered` as its type defines. The number of distinct values is not.
    """
    nulls = integer(fields, Statistics.NULL_COUNT)
    if nulls is not None and nulls != leaves.nulls:
        yield f"statistics have null_count {nulls}, there are {leaves.nulls}"
    order, find = order_of(column.element), extremes_of(column.element)
    bounds = list(_bounds_of(column, fields))
    if order is None or find is None or not ordered or not bounds:
        return
    extremes = find(leaves.values)
    for bound in bounds:
        yield from check_bound(bound, order, extremes)


def check_bound(bound: Bound, order: Order, extremes: Extremes | None) -> Iterator[str]:
    """Compare a bound with the least and greatest of its values, None when there are none but nulls and NaN."""
    key = order(bound.raw)
    if key is None:
        yield f"{bound.name} {bound.raw!r} is no value of the type"
    elif key != key:
        yield f"{bound.name} is NaN"
    elif extremes is not None:
        value = extremes[0] if bound.is_lower else extremes[1]
        within = _rank(key) <= _rank(value) if bound.is_lower else _rank(key) >= _rank(value)
        extreme = "least" if bound.is_lower else "greatest"
        if not within:
            yield f"{bound.name} is {key!r}, the {extreme} value {value!r}"
        elif bound.exact and key != value:
            yield f"{bound.name} {key!r} is called exact, the {extreme} value is {value!r}"


def check_size_statistics(column: Column, fields: Fields, leaves: Leaves) -> Iterator[str]:
    """Compare SizeStatistics with the values; raises `MalformedError`.

    Of histograms of levels only sums, the number of rows and the number of values are compared.
    """
    claimed = integer(fields, SizeStatistics.UNENCODED_BYTE_ARRAY_DATA_BYTES)
    if (
        claimed is not None
        and column.element.type == BYTE_ARRAY
        and claimed != (real := byte_array_bytes(leaves.values))
    ):
        yield f"size statistics have {claimed} bytes of byte arrays, there are {real}"
    repetition = integers_of(fields, SizeStatistics.REPETITION_LEVEL_HISTOGRAM)
    definition = integers_of(fields, SizeStatistics.DEFINITION_LEVEL_HISTOGRAM)
    entries = int(leaves.entries[-1])
    for name, histogram in (("repetition", repetition), ("definition", definition)):
        if histogram and sum(histogram) != entries:
            yield f"the histogram of {name} levels has {sum(histogram)} entries of {entries}"
    if repetition and repetition[0] != leaves.rows:
        yield f"the histogram of repetition levels has {repetition[0]} rows of {leaves.rows}"
    if definition and definition[-1] != entries - leaves.nulls:
        yield f"the histogram of definition levels has {definition[-1]} values of {entries - leaves.nulls}"


def byte_array_bytes(values: Any) -> int:
    """Bytes of byte arrays as they would be without encoding, lengths left out."""
    return pc.sum(pc.binary_length(values)).as_py() or 0


def _bounds_of(column: Column, fields: Fields) -> Iterator[Bound]:
    lower_exact = bool(boolean(fields, Statistics.IS_MIN_VALUE_EXACT))
    upper_exact = bool(boolean(fields, Statistics.IS_MAX_VALUE_EXACT))
    if (raw := binary(fields, Statistics.MIN_VALUE)) is not None:
        yield Bound("min_value", raw, True, lower_exact)
    if (raw := binary(fields, Statistics.MAX_VALUE)) is not None:
        yield Bound("max_value", raw, False, upper_exact)
    if column.element.type in _NUMBERS and not is_unsigned(column.element):
        for name, field in (("min", Statistics.MIN), ("max", Statistics.MAX)):
            if (raw := binary(fields, field)) is not None:
                yield Bound(name, raw, field == Statistics.MIN)


def _rank(key: Any) -> tuple[Any, float]:
    """-0.0 before 0.0."""
    return key, math.copysign(1.0, key) if isinstance(key, float) else 0.0
