"""Advice about triggers and small files: only what the numbers say, and the numbers with it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.advice.merging import Arrivals, advise_merging, amplification
from icesize.policy import MIB, SizePolicy
from icesize.results import Advice
from tests.support.layouts import thorough

DEFAULT = SizePolicy()
LIMIT = DEFAULT.small_file_limit_bytes
CALM = Arrivals(batches=100, partition_bytes=LIMIT / 24, seconds_between=60.0, seconds_per_batch=5.0, is_ours=True)


def test_nothing_is_advised_to_a_table_that_is_fed_well() -> None:
    """24 batches to a file, one a minute, six small files: nothing to say."""
    assert advise_merging(CALM, DEFAULT) == ()


@pytest.mark.parametrize(
    "arrivals", [None, replace(CALM, batches=19, partition_bytes=1.0), replace(CALM, partition_bytes=0.0)]
)
def test_nothing_is_concluded_from_little(arrivals: Arrivals | None) -> None:
    """No history, fewer than 20 batches, or batches without bytes say nothing."""
    assert advise_merging(arrivals, DEFAULT) == ()


def test_tiny_batches_want_a_longer_trigger() -> None:
    """768 batches to a file: the sentence says how many, what that costs, and the trigger that makes it 64."""
    [sentence] = map(str, advise_merging(replace(CALM, partition_bytes=LIMIT / 384, seconds_between=10.0), DEFAULT))
    assert sentence == (
        "a batch every 10 s adds 1 MiB per partition: 384 batches fill a file, and write amplification "
        f"is {amplification(384, 6):.1f}. Use trigger(processingTime='60 seconds'): write amplification "
        f"{amplification(64, 6):.1f}"
    )


def test_a_busy_stream_wants_a_longer_trigger() -> None:
    """A batch that takes nearly as long as until the next one is told, with the shortest trigger of twice the time."""
    [sentence] = map(str, advise_merging(replace(CALM, seconds_between=10.0, seconds_per_batch=9.0), DEFAULT))
    assert sentence.startswith("a batch every 10 s takes 9 s and adds ")
    assert "trigger(processingTime='30 seconds')" in sentence
    [sentence] = map(str, advise_merging(replace(CALM, seconds_between=0.2, seconds_per_batch=0.18), DEFAULT))
    assert sentence.startswith("a batch every 200 ms takes 180 ms and adds ")


def test_a_trigger_that_writes_no_less_is_not_advised() -> None:
    """So small batches that ten minutes of them do not help: W is known to be large both ways, and nothing more. Where
    the stream is busy the shortest trigger leaves it time all the same."""
    tiny = replace(CALM, partition_bytes=LIMIT / 273_380, seconds_between=1.0, seconds_per_batch=0.4)
    assert amplification(273_380 / 600, 6) > amplification(273_380, 6)
    assert advise_merging(tiny, DEFAULT) == ()
    assert advise_merging(replace(tiny, seconds_per_batch=1.1), DEFAULT) == (
        Advice("a batch every 1 s takes 1.1 s: use trigger(processingTime='15 seconds')"),
    )


def test_who_waits_long_already_is_left_alone() -> None:
    """There is no trigger to advise to a stream with a batch every ten minutes."""
    assert advise_merging(replace(CALM, partition_bytes=1.0, seconds_between=600.0), DEFAULT) == ()


def test_few_small_files_that_cost_much_are_told() -> None:
    """k = 1 at 24 batches to a file rewrites a lot, k = 6 little."""
    [sentence] = map(str, advise_merging(CALM, SizePolicy(max_small_files=1)))
    assert sentence == (
        f"24 batches fill a file: max-small-files 6 gives write amplification {amplification(24, 6):.1f}, the present "
        f"1 gives {amplification(24, 1):.1f}; to change it, set icesize.policy.max-small-files = 6"
    )


def test_half_as_many_small_files_for_little() -> None:
    """At 14 batches to a file six small files instead of twelve cost little more."""
    assert amplification(14, 6) - amplification(14, 12) <= 0.5
    [sentence] = map(str, advise_merging(replace(CALM, partition_bytes=LIMIT / 14), SizePolicy(max_small_files=12)))
    assert sentence.endswith("set icesize.policy.max-small-files = 6")


def test_small_files_of_others_are_not_advised_about() -> None:
    """Where icesize merges nothing its policy says nothing."""
    assert advise_merging(replace(CALM, is_ours=False), SizePolicy(max_small_files=1)) == ()


@thorough
@given(
    st.builds(
        Arrivals,
        st.integers(0, 1000),
        st.floats(0, 1024 * MIB),
        st.floats(0, 10_000),
        st.none() | st.floats(0, 10_000),
        st.booleans(),
    ),
    st.integers(1, 16),
    st.sampled_from([0, LIMIT]),
)
def test_what_is_advised_is_better(arrivals: Arrivals, slots: int, limit: int) -> None:
    """A trigger is at least twice as long and never writes a byte more often; k is another one than now."""
    policy = SizePolicy(max_small_files=slots, small_file_limit_bytes=limit)
    for sentence in map(str, advise_merging(arrivals, policy)):
        if trigger := re.search(r"processingTime='(\d+) seconds'", sentence):
            assert int(trigger[1]) >= 2 * arrivals.seconds_between
            for now, then in re.findall(r"([\d.]+) times, .* ([\d.]+) times", sentence):
                assert float(then) <= float(now)
        else:
            [advised] = map(int, re.findall(r"max-small-files = (\d+)", sentence))
            assert advised in (6, slots // 2)
            assert advised != slots
