"""Ranges of a sort column: where the rows of a split partition are cut, so that each task gets its share of them."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol, TypeVar


class Ordered(Protocol):
    """A plain value of a column: comparable with those of the same column."""

    def __lt__(self, other: Any, /) -> bool:
        """Whether this value sorts before the other one."""


Value = TypeVar("Value", bound=Ordered)


def range_bounds(shares: Sequence[float], quantiles: Sequence[Value]) -> tuple[Value, ...]:
    """The len(`shares`) - 1 values between the parts of a partition, ascending.

    Part i gets the rows whose value is below bounds[i] and not below bounds[i - 1]; the first part has no lower and
    the last no upper bound, so that values outside of the quantiles have a part too. `quantiles` are equally spaced
    and ascending: j / len(`quantiles`) of the rows are below quantiles[j], as in a sorted sample of the rows. The parts
    differ from their shares by half a quantile at most.

    Rows of one value stay together. A value that many rows have is a run of equal quantiles; the cut goes to that end
    of the run that is nearer to the share, before it where both are equally near or nothing comes after the run.
    Several cuts at the same end are equal bounds, with empty ranges between them.
    """
    return tuple(_cut(quantiles, below * len(quantiles)) for below in list(accumulate(shares))[:-1])


def _cut(quantiles: Sequence[Value], position: float) -> Value:
    """The first value above the cut, which is at the end of a run of equal quantiles."""
    value = quantiles[min(len(quantiles) - 1, math.floor(position + 0.5))]
    before, after = bisect_left(quantiles, value), bisect_right(quantiles, value)
    nearer_after = after < len(quantiles) and after - position < position - before
    return quantiles[after if nearer_after else before]
