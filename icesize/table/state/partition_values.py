"""Values of partition fields in three forms: stored in manifests, printed by Iceberg, and passed by callers.

PyIceberg's `literal(value).to(type)` is not used for values of callers, because it would name other partitions: for an
integer, it makes 1 of '1.50' and 2 of Decimal('1.5'). It also refuses Decimal('1.5') for decimals of another scale,
timestamps without a time or with nanoseconds, and labels of bytes in base 64 and of months and hours.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from pyiceberg.transforms import (
    HourTransform,
    MonthTransform,
    TimeTransform,
    Transform,
    UnknownTransform,
    VoidTransform,
    YearTransform,
)
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
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils.datetime import date_str_to_days, date_to_days, datetime_to_micros, time_to_micros

from icesize.planning.files import distinct_zeros
from icesize.units import time_of

Test = Callable[[object], bool]

_HOUR_MICROS = 3_600_000_000


def text_of_value(value: object) -> str:
    """Return a Python value as Iceberg prints it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class NamedField:
    """A field of a partition spec; `source` is the type of its column, None if no schema has the column."""

    name: str
    transform: Transform[Any, Any]
    source: IcebergType | None

    def printed(self, stored: Any) -> str | None:
        """Return a stored value as Iceberg prints it, None for NULL."""
        if stored is None or self.source is None:
            return None if stored is None else str(stored)
        try:
            return self.transform.to_human_string(self.source, stored)
        except OverflowError:  # a time before year 1 or after year 9999, which Python cannot represent
            return f"{stored} since 1970"

    def test(self, wanted: object) -> Test:
        """Return a function that is True for stored values equal to `wanted`, a typed value or a string.

        None means NULL. In a field of strings, a string is the value itself. In other fields, it is parsed in the form
        in which Iceberg prints a value.
        """
        if wanted is None or (wanted == "null" and not self._may_print_null):
            return lambda stored: stored is None
        try:
            (value,) = distinct_zeros((self._stored(wanted),))
        except (ArithmeticError, LookupError, TypeError, ValueError):  # of another type: compare the printed value
            return lambda stored: self.printed(stored) == wanted
        return lambda stored: stored == value or (stored != stored and value != value)

    @property
    def _may_print_null(self) -> bool:
        """Return True if a value other than NULL may be printed as `null`; Iceberg prints bytes in base 64."""
        kind = self.source and self.transform.result_type(self.source)
        return isinstance(kind, StringType | BinaryType | FixedType) and self.transform != VoidTransform()

    def _stored(self, wanted: object) -> object:
        if self.source is None or isinstance(self.transform, UnknownTransform):
            raise LookupError(self.name)
        if not isinstance(self.transform, TimeTransform):
            return _stored(self.transform.result_type(self.source), wanted)
        if isinstance(wanted, date):
            return self.transform.transform(self.source)(_stored(self.source, wanted))
        return _ORDINALS.get(type(self.transform), date_str_to_days)(str(wanted))


def _stored(kind: IcebergType, wanted: object) -> object:
    """Return a typed value, or a parsed string, in the form that manifests store.

    Raises ArithmeticError, LookupError, TypeError or ValueError for a value of another type.
    """
    if isinstance(kind, StringType):
        return text_of_value(wanted)
    accepted, parse, convert = _KINDS[type(kind)]
    value = parse(wanted) if isinstance(wanted, str) else wanted
    if not isinstance(value, accepted) or (isinstance(value, bool) and accepted is not bool):
        raise TypeError(wanted)
    return convert(value)


def _same(value: Any) -> Any:
    return value


def _single(value: float) -> object:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def _days(value: date) -> int:
    return date_to_days(value.date() if isinstance(value, datetime) else value)


def _micros(value: date) -> int:
    """Return microseconds since 1970; a time without a zone is UTC, and a date is its midnight."""
    return datetime_to_micros(value if isinstance(value, datetime) else datetime(value.year, value.month, value.day))


def _nanos(value: date) -> int:
    return _micros(value) * 1_000


def _base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _months(text: str) -> int:
    year, _, month = text.rpartition("-")
    return (int(year) - 1970) * 12 + int(month) - 1


def _hours(text: str) -> int:
    return datetime_to_micros(datetime.strptime(text, "%Y-%m-%d-%H")) // _HOUR_MICROS


_INTEGER = (int, int, _same)
_BYTES = (bytes, _base64, _same)
_TIMESTAMP = (date, time_of, _micros)
_TIMESTAMP_NS = (date, time_of, _nanos)
_KINDS: dict[type[IcebergType], tuple[Any, Callable[[str], Any], Callable[[Any], object]]] = {
    BooleanType: (bool, {"true": True, "false": False}.__getitem__, _same),
    IntegerType: _INTEGER,
    LongType: _INTEGER,
    FloatType: ((int, float), float, _single),
    DoubleType: ((int, float), float, float),
    DecimalType: ((int, float, Decimal), Decimal, lambda value: Decimal(str(value))),
    DateType: (date, date.fromisoformat, _days),
    TimeType: (time, time.fromisoformat, time_to_micros),
    TimestampType: _TIMESTAMP,
    TimestamptzType: _TIMESTAMP,
    TimestampNanoType: _TIMESTAMP_NS,
    TimestamptzNanoType: _TIMESTAMP_NS,
    UUIDType: (UUID, UUID, _same),
    BinaryType: _BYTES,
    FixedType: _BYTES,
}
"""Python's types that are accepted, how text is parsed, how such a value is stored."""
_ORDINALS: dict[type[Any], Callable[[str], int]] = {
    YearTransform: lambda text: int(text) - 1970,
    MonthTransform: _months,
    HourTransform: _hours,
}
