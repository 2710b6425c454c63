"""From bytes to numbers of files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.file_sizes import expected_files, merged_files

TARGETS = st.integers(1_000, 2**40)


@pytest.mark.parametrize(
    ("total", "files"),
    [(0, 0), (1, 1), (999, 1), (1_000, 1), (1_099, 1), (1_100, 2), (2_000, 2), (2_199, 2), (2_200, 3), (10_100, 10)],
)
def test_expected_files_rounds_down_below_a_tenth_too_much(total: int, files: int) -> None:
    """Files are up to 10% too large before there is one more, and never full ones plus a crumb."""
    assert expected_files(total, 1_000) == files


@given(st.integers(1, 2**50), TARGETS)
def test_equal_parts_are_near_the_target(total: int, target: int) -> None:
    """One file more or less would be further away: parts are below 1.1 x target and, but for one, above half."""
    files = expected_files(total, target)
    assert total / files < 1.1 * target * (1 + 1e-9)
    assert files == 1 or total / files >= 0.55 * target * (1 - 1e-9)


@given(st.integers(0, 2**45), st.integers(0, 2**45), TARGETS)
def test_more_bytes_are_never_fewer_files(one: int, other: int, target: int) -> None:
    """The number of files grows with the bytes."""
    low, high = sorted((one, other))
    assert expected_files(low, target) <= expected_files(high, target)


@given(st.floats(0.01, 15), TARGETS, st.floats(0.3, 1))
def test_merged_files_are_not_small_again(targets: float, target: int, ratio: float) -> None:
    """Several outputs are each above the limit even at 5% off; one output is allowed to be small."""
    total = max(1, int(targets * target))
    limit = int(ratio * target)
    files = merged_files(total, target, limit)
    assert 1 <= files <= expected_files(total, target)
    assert files == 1 or 0.95 * total / files >= limit
    assert ratio > 0.75 or total / files <= 1.6 * target
