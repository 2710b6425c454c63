"""Ranges of a sort column: where the rows of a split partition are cut, so that each task gets its share of them."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
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

    Raises ValueError when a share is not positive, shares do not add up to 1, quantiles are missing although there is
    something to cut, descend, or are NaN.
    """
    _check(shares, quantiles)
    return tuple(_cut(quantiles, below * len(quantiles)) for below in list(accumulate(shares))[:-1])


def _cut(quantiles: Sequence[Value], position: float) -> Value:
    """The first value above the cut, which is at the end of a run of equal quantiles."""
    value = quantiles[min(len(quantiles) - 1, math.floor(position + 0.5))]
    before, after = bisect_left(quantiles, value), bisect_right(quantiles, value)
    nearer_after = after < len(quantiles) and after - position < position - before
    return quantiles[after if nearer_after else before]


def _check(shares: Sequence[float], quantiles: Sequence[Value]) -> None:
    for part, share in enumerate(shares):
        if not 0 < share <= 1 + 1e-6:
            raise ValueError(f"'shares[{part}]' ({share}) must be > 0 and <= 1: it is a part of the rows")
    if abs(math.fsum(shares) - 1) > 1e-6:
        raise ValueError(f"Cannot cut a partition: its shares add up to {math.fsum(shares)}, not to 1")
    if len(shares) > 1 and not quantiles:
        raise ValueError(f"Cannot cut a partition into {len(shares)} ranges: there are no quantiles")
    for value in quantiles:
        if value != value:
            raise ValueError(f"Cannot cut a partition: {value!r} among its quantiles has no place in an order")
    for i, (lower, upper) in enumerate(pairwise(quantiles)):
        if upper < lower:
            raise ValueError(f"'quantiles[{i + 1}]' ({upper!r}) must be >= 'quantiles[{i}]' ({lower!r}): they ascend")
