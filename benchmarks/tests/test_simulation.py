"""Tests of the simulated shuffle: results of each method of placing rows, none of which loses any."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulation import (
    TARGET_BYTES,
    WRITERS,
    hour_weights,
    key_by,
    round_robin,
    routed,
    simulate,
    skew,
)
from icesize.planning.file_sizes import expected_files

WAYS = (round_robin, key_by, routed)
WEIGHTS = st.dictionaries(st.integers(0, 500), st.floats(1.0, 1e9), min_size=1, max_size=60)
WRITER_COUNTS = st.integers(1, 40)


def test_profile_is_that_of_the_stream() -> None:
    """240 hours share the batch: 60 % the newest, each older one less than the one before."""
    weights = hour_weights(240, 1000.0)
    shares = list(weights.values())
    assert list(weights) == list(range(240))
    assert math.isclose(sum(shares), 1000.0)
    assert math.isclose(shares[0], 600.0)
    assert shares == sorted(shares, reverse=True)
    # The share is 1 / (age + 1) ** 1.2; the ages are 2 and 1.
    assert math.isclose(shares[2] / shares[1], (2 / 3) ** 1.2)


def test_skew_counts_writers_without_rows() -> None:
    """The mean is over all writers, and an empty batch counts as even."""
    assert skew([30.0, 10.0], 2) == 1.5
    assert skew([30.0, 10.0], 4) == 3.0
    assert skew([], 4) == 1.0


def test_round_robin_opens_every_hour_in_every_writer() -> None:
    """The talk's starting point, 500 writers x 240 hours, has 120,000 files, evenly spread."""
    outcome = round_robin(hour_weights(), WRITERS, TARGET_BYTES)
    assert outcome.files == 120_000
    assert outcome.skew == pytest.approx(1.0)


def test_key_by_puts_the_newest_hour_on_one_writer() -> None:
    """There are few files, but one writer has at least 60 % of the load of 500."""
    weights = hour_weights()
    outcome = key_by(weights, WRITERS, TARGET_BYTES)
    assert outcome.files == sum(expected_files(weight, TARGET_BYTES) for weight in weights.values())
    assert outcome.skew >= 0.6 * WRITERS
    assert sum(load > 0 for load in outcome.loads) <= len(weights)


def test_route_has_the_files_of_one_and_the_evenness_of_the_other() -> None:
    """At the talk's size, the number of files is near the floor, and no writer is much above the mean."""
    result = simulate(hour_weights())
    assert result.floor <= result.files["route"] <= 3 * result.floor
    assert result.files["route"] < result.files["round robin"] / 50
    assert result.skew["route"] < 1.3
    assert result.skew["keyBy"] > 100


@given(WEIGHTS, WRITER_COUNTS, st.integers(10**6, 10**9))
def test_no_way_loses_rows(weights: dict[int, float], writers: int, target_bytes: int) -> None:
    """Loads sum to the batch, and each hour has at least one file."""
    for way in WAYS:
        outcome = way(weights, writers, target_bytes)
        assert len(outcome.loads) == writers
        assert sum(outcome.loads) == pytest.approx(sum(weights.values()))
        assert outcome.files >= len(weights)
        assert outcome.skew >= 1.0 - 1e-9


@given(WEIGHTS, WRITER_COUNTS)
def test_files_are_counted_by_hand(weights: dict[int, float], writers: int) -> None:
    """With a target that no file reaches, each pair of an hour and a writer is one file."""
    target_bytes = 10**10
    assert round_robin(weights, writers, target_bytes).files == writers * len(weights)
    assert key_by(weights, writers, target_bytes).files == len(weights)
