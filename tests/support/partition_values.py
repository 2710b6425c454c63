"""Values of each type and the transforms that take it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
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
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

_INT32 = st.integers(-(2**31), 2**31 - 1)
_INT64 = st.integers(-(2**63), 2**63 - 1)
_DAYS = st.integers(-719_162, 2_932_896)  # the years Python knows
_MICROS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)


# (type, values as Arrow's physical ones, transforms)
CASES: list[tuple[IcebergType, st.SearchStrategy[Any], tuple[str, ...]]] = [
    (BooleanType(), st.booleans(), ("identity", "void")),
    (IntegerType(), _INT32, ("identity", "bucket[7]", "truncate[10]", "void")),
    (LongType(), _INT64, ("identity", "bucket[7]", "truncate[10]")),
    (FloatType(), st.floats(width=32, allow_nan=False), ("identity",)),
    (DoubleType(), st.floats(allow_nan=False), ("identity", "void")),
    (DecimalType(9, 2), st.decimals(-9_999_999, 9_999_999, places=2), ("identity", "bucket[7]", "truncate[50]")),
    (DecimalType(38, 0), st.integers(-(10**38) + 100, 10**38 - 1).map(Decimal), ("identity", "bucket[16]")),
    (StringType(), st.text(max_size=8), ("identity", "bucket[7]", "truncate[2]")),
    (BinaryType(), st.binary(max_size=8), ("identity", "bucket[7]", "truncate[2]")),
    (FixedType(4), st.binary(min_size=4, max_size=4), ("bucket[7]",)),
    (UUIDType(), st.uuids(), ("identity", "bucket[7]", "void")),
    (DateType(), _DAYS, ("identity", "bucket[7]", "year", "month", "day", "void")),
    (TimeType(), st.integers(0, 86_399_999_999), ("identity", "bucket[7]")),
    (TimestampType(), _MICROS, ("identity", "bucket[7]", "year", "month", "day", "hour")),
    (TimestamptzType(), _MICROS, ("identity", "bucket[7]", "year", "month", "day", "hour")),
]


def array_of(kind: IcebergType, values: list[Any], arrow: pa.DataType) -> pa.Array:
    """Drawn values of `CASES` as a column."""
    if isinstance(kind, UUIDType):
        storage = pa.array([None if v is None else v.bytes for v in values], pa.binary(16))
        return pa.ExtensionArray.from_storage(arrow, storage)
    if isinstance(kind, DateType):
        return pa.array(values, pa.int32()).view(arrow)
    if isinstance(kind, (TimeType, TimestampType, TimestamptzType)):
        return pa.array(values, pa.int64()).view(arrow)
    return pa.array(values, arrow)


def wrapped(transform: str, kind: IcebergType, value: Any) -> Any:
    """PyIceberg's value of a transform as Java has it."""
    if transform.startswith("truncate") and isinstance(kind, (IntegerType, LongType)) and value is not None:
        half = 2**31 if isinstance(kind, IntegerType) else 2**63
        return (value + half) % (2 * half) - half  # as Java's integers wrap
    return value
