"""Merging keeps away from partitions that others change all the time, but not for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.files import PartitionKey
from icesize.planning.merging.contention import (
    COOLDOWN_MS,
    MAX_PAUSE_BATCHES,
    QUIET_MS,
    BackOff,
    CommittedChange,
    contended,
    contested,
    waiting_since,
)

A, B = PartitionKey(0, ("a",)), PartitionKey(0, ("b",))
NOW_MS = 1_700_000_000_000


def change(ago_ms: int, *partitions: PartitionKey) -> CommittedChange:
    return CommittedChange(NOW_MS - ago_ms, frozenset(partitions))


def test_a_partition_is_restless_for_ten_minutes() -> None:
    """One change makes it so; of several that follow each other without a pause the first is remembered."""
    assert contended([change(QUIET_MS - 1, A), change(QUIET_MS, B)], NOW_MS) == {A: NOW_MS - QUIET_MS + 1}
    minute_ms = 60_000
    often = [change(m * minute_ms, A) for m in (1, 9, 17, 25, 33)]
    assert contended(often, NOW_MS) == {A: NOW_MS - 33 * minute_ms}
    # what was hours ago, before a quiet time, is another story
    assert contended([change(180 * minute_ms, A), change(minute_ms, A)], NOW_MS) == {A: NOW_MS - minute_ms}


def test_patience_ends_and_a_merge_begins_it_anew() -> None:
    """A partition that is never quiet is merged once in twenty minutes."""
    since = {A: NOW_MS - COOLDOWN_MS, B: NOW_MS - COOLDOWN_MS + 1}
    assert contested(since, NOW_MS) == {B}
    merged = waiting_since(since, [change(1000, A), change(5000, A)])
    assert merged == {A: NOW_MS - 1000, B: since[B]}
    assert contested(merged, NOW_MS) == {A, B}
    assert contested(merged, NOW_MS - 1000 + COOLDOWN_MS) == set()


def test_a_clock_that_jumps_blocks_nothing_for_long() -> None:
    """Changes that seem to come from tomorrow, or from yesterday, are not recent."""
    day_ms = 86_400_000
    assert contended([change(-day_ms, A), change(day_ms, B)], NOW_MS) == {}
    assert contested({A: NOW_MS + day_ms}, NOW_MS) == set()


@given(
    st.lists(st.tuples(st.integers(0, 3 * COOLDOWN_MS), st.sets(st.sampled_from([A, B])))),
    st.lists(st.tuples(st.integers(0, 3 * COOLDOWN_MS), st.sets(st.sampled_from([A, B])))),
)
def test_only_what_others_changed_lately_waits(
    rivals: list[tuple[int, set[PartitionKey]]], merges: list[tuple[int, set[PartitionKey]]]
) -> None:
    """A partition waits only when somebody else changed it within ten minutes, and always when we merged since then."""
    changes = [change(ago, *keys) for ago, keys in rivals]
    ours = [change(ago, *keys) for ago, keys in merges]
    waits = contested(waiting_since(contended(changes, NOW_MS), ours), NOW_MS)
    for key in (A, B):
        newest = min((ago for ago, keys in rivals if key in keys), default=None)
        merged = min((ago for ago, keys in merges if key in keys), default=None)
        assert key not in waits or (newest is not None and newest < QUIET_MS)
        if newest is not None and newest < QUIET_MS and merged is not None and merged < COOLDOWN_MS:
            assert key in waits


def test_pauses_double_while_merges_lose_and_are_forgotten_later() -> None:
    """A partition that keeps losing waits longer each time; one that lost long ago begins with the shortest pause."""
    backoff = BackOff[PartitionKey]()

    def pause() -> int:
        backoff.lost([A])
        waited = 0
        while A in backoff.next_batch():
            waited += 1
        return waited

    assert [pause() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 32, 32]
    for _ in range(MAX_PAUSE_BATCHES):
        assert backoff.next_batch() == set()
    assert pause() == 1
