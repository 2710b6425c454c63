"""Values of partition fields in three forms: stored in manifests, printed by Iceberg, and passed by callers."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
from pyiceberg.transforms import IdentityTransform, TimeTransform, Transform, VoidTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    FloatType,
    IcebergType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)
from pyiceberg.utils.datetime import datetime_to_micros

from icesize.planning.files import distinct_zeros

Test = Callable[[object], bool]

_DAY_MICROS = 86_400_000_000
_POINTS_IN_TIME = TimestampType | TimestamptzType | TimestampNanoType | TimestamptzNanoType


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

        None means NULL. In a field of strings, a string is the value itself. In other fields, it is the value as
        Iceberg prints it.
        """
        if wanted is None or (wanted == "null" and not self._may_print_null):
            return lambda stored: stored is None
        if isinstance(wanted, date) and self._has_times:
            ordinal = self._ordinal(wanted)
            return lambda stored: stored == ordinal
        text, number = text_of_value(wanted), self._number(wanted)
        # an equal fraction may be printed in another form
        return lambda stored: self.printed(stored) == text or (isinstance(stored, float | Decimal) and stored == number)

    def _number(self, wanted: object) -> object:
        """Return a number, or text of one, as a column of fractions stores it; None for others."""
        if isinstance(wanted, bool) or not isinstance(wanted, int | float | Decimal | str):
            return None
        with suppress(ArithmeticError, ValueError), np.errstate(over="ignore"):
            if isinstance(self.source, DecimalType):
                number: float | Decimal = Decimal(str(wanted))
            else:
                number = float(np.float32(wanted) if isinstance(self.source, FloatType) else wanted)
            return distinct_zeros((number,))[0] if math.isfinite(number) else None
        return None

    @property
    def _has_times(self) -> bool:
        """Return True if the values are points in time, or numbers of units of time since 1970."""
        has_times = isinstance(self.transform, TimeTransform | IdentityTransform)
        return has_times and isinstance(self.source, DateType | _POINTS_IN_TIME)

    @property
    def _may_print_null(self) -> bool:
        """Return True if a value other than NULL may be printed as `null`; Iceberg prints bytes in base 64."""
        kind = self.source and self.transform.result_type(self.source)
        return isinstance(kind, StringType | BinaryType | FixedType) and self.transform != VoidTransform()

    def _ordinal(self, wanted: date) -> object:
        """Return a point in time as the field stores it; a time without a zone is UTC, and a date is its midnight."""
        micros = datetime_to_micros(wanted if isinstance(wanted, datetime) else datetime.combine(wanted, time()))
        if isinstance(self.source, DateType):
            micros //= _DAY_MICROS
        elif isinstance(self.source, TimestampNanoType | TimestamptzNanoType):
            micros *= 1_000
        return self.transform.transform(self.source)(micros) if self.source else None
