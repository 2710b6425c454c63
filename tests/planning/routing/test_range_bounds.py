"""Ranges of a sort column for the parts of a partition."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.routing.router import range_bounds

SHARES = st.lists(st.integers(1, 20), min_size=1, max_size=8).map(lambda parts: [n / sum(parts) for n in parts])


def rows_of_parts(bounds: tuple[int, ...], rows: list[int]) -> list[int]:
    """Rows of each part: those below its bound and not below the one before."""
    counts = [0] * (len(bounds) + 1)
    for row in rows:
        counts[bisect_right(bounds, row)] += 1
    return counts


def test_cuts_are_where_the_shares_say() -> None:
    """Half, three tenths and a fifth of 0 .. 99 are cut at 50 and at 80."""
    bounds = range_bounds([0.5, 0.3, 0.2], range(100))
    assert bounds == (50, 80)
    assert rows_of_parts(bounds, list(range(100))) == [50, 30, 20]


@given(SHARES, st.integers(1, 300))
def test_parts_of_distinct_values_follow_their_shares(shares: list[float], count: int) -> None:
    """No part differs from its share by more than a quantile: half of one at each end."""
    counts = rows_of_parts(range_bounds(shares, range(count)), list(range(count)))
    assert sum(counts) == count
    # a cut cannot be above the last quantile
    assert all(abs(rows - share * count) <= 1.5 for rows, share in zip(counts, shares, strict=True))


@given(SHARES, st.lists(st.integers(0, 9), min_size=1, max_size=60).map(sorted))
def test_cuts_ascend_whatever_is_repeated(shares: list[float], quantiles: list[int]) -> None:
    """There is one bound less than parts, bounds are values that were given, and never descend."""
    bounds = range_bounds(shares, quantiles)
    assert len(bounds) == len(shares) - 1
    assert set(bounds) <= set(quantiles)
    assert list(bounds) == sorted(bounds)


@given(st.floats(0.05, 0.95), st.lists(st.integers(0, 9), min_size=1, max_size=60).map(sorted))
def test_a_cut_is_at_the_best_value(share: float, quantiles: list[int]) -> None:
    """No other value that is there gets the first of two parts nearer to its share, but for rounding to a quantile."""
    first, _ = rows_of_parts(range_bounds([share, 1 - share], quantiles), quantiles)
    wanted = share * len(quantiles)
    best = min(abs(rows_of_parts((value,), quantiles)[0] - wanted) for value in quantiles)
    assert abs(first - wanted) <= best + 1


def test_a_frequent_value_is_one_range() -> None:
    """A value that 80% of the rows have takes a part for itself, and the cut inside of it leaves an empty range."""
    rows = [0] * 10 + [1] * 80 + [2] * 10
    bounds = range_bounds([0.25, 0.25, 0.5], rows)
    assert bounds == (1, 1)
    assert rows_of_parts(bounds, rows) == [10, 0, 90]
    assert range_bounds([0.7, 0.3], rows) == (2,)


def test_a_cut_near_the_end_of_a_run_is_after_it() -> None:
    """Half of 0 1 1 1 1 2 2 3: the cut is after the ones, not before them."""
    assert range_bounds([0.5, 0.5], [0, 1, 1, 1, 1, 2, 2, 3]) == (2,)


def test_any_comparable_value_will_do() -> None:
    """Strings and dates are cut like numbers; one part needs no quantiles."""
    assert range_bounds([0.5, 0.5], ["a", "b", "c", "d"]) == ("c",)
    days = [dt.date(2026, 1, day) for day in range(1, 11)]
    assert range_bounds([0.2, 0.8], days) == (dt.date(2026, 1, 3),)
    nothing: list[int] = []
    assert range_bounds([1.0], nothing) == ()
