"""From bytes to numbers of files, and learning bytes per row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.sizing import expected_files, learn_bytes_per_row, merged_files

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


def test_default_without_samples() -> None:
    """A table without files has the default bytes per row."""
    assert learn_bytes_per_row([], 80.0) == pytest.approx(80.0)
    assert learn_bytes_per_row([(0, 0, 1.0), (500, 0, 1.0), (500, 5, 0.0)], 80.0) == pytest.approx(80.0)


def test_real_files_outweigh_the_default() -> None:
    """A single file of 100 MB decides, whatever the default."""
    assert learn_bytes_per_row([(100_000_000, 1_000_000, 1.0)], 30.0) == pytest.approx(100.0, rel=0.01)


def test_tiny_files_tell_little() -> None:
    """A thousand files of one row, all footer, do not move what one real file says by more than a tenth."""
    real = (50_000_000, 500_000, 1.0)
    tiny = [(2_000, 1, 1.0)] * 1_000
    assert learn_bytes_per_row([real, *tiny], 100.0) == pytest.approx(100.0, rel=0.1)


def test_recent_files_weigh_more() -> None:
    """With weights 1 and 0.1 the answer is nearer to the recent file."""
    recent, old = (10_000_000, 100_000, 1.0), (10_000_000, 400_000, 0.1)
    assert learn_bytes_per_row([recent, old], 50.0) > 70
    assert learn_bytes_per_row([(*recent[:2], 0.1), (*old[:2], 1.0)], 50.0) < 35


@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40), st.floats(0, 1e6))),
    st.floats(0.01, 1e6),
)
def test_learned_value_is_positive_and_clamped(samples: list[tuple[int, int, float]], default: float) -> None:
    """Absurd manifests cannot move the value by more than a factor of 32."""
    learned = learn_bytes_per_row(samples, default)
    assert default / 32 <= learned <= default * 32
