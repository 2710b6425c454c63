"""Batches replayed under policies: the planner's own promises hold, and one partition is the simulated schedule."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.files import PartitionKey
from icesize.planning.merging.chosen_files import choose_prefix
from icesize.planning.merging.simulation import BatchSizes, ReplayedTable, compare, replay
from icesize.policy import SizePolicy
from tests.support.examples import sampled
from tests.support.layouts import thorough
from tests.support.one_partition import simulate

TARGET = 100_000
BATCHES = st.lists(
    st.dictionaries(
        st.integers(0, 4).map(lambda value: PartitionKey(0, (value,))),
        st.integers(1, 3 * TARGET) | st.integers(1, TARGET // 50),
        min_size=1,
    ),
    min_size=1,
    max_size=40,
)
WHOLE = PartitionKey(0)


def few(k: int, **others: int) -> SizePolicy:
    """Files of 100,000 bytes, of whose small ones k may stay."""
    return SizePolicy(target_file_size_bytes=TARGET, max_small_files=k, **others)


def in_one_partition(*sizes: int) -> list[BatchSizes]:
    return [{WHOLE: size} for size in sizes]


@thorough
@given(BATCHES, st.integers(2, 8), st.integers(1, 30))
def test_replayed_batches_keep_to_k(batches: list[BatchSizes], k: int, cold: int) -> None:
    """At most k small files, or as many as one batch brings and one; no byte is lost; the most is at least the mean."""
    replayed = replay("p", batches, few(k, cold_after_commits=cold))
    # 2.2 targets are three files of 0.73 targets, all of them small
    assert replayed.small_files_max <= max(k, 3 + 1)
    assert replayed.write_amplification >= 1
    assert replayed.rewritten_bytes_max >= replayed.rewritten_bytes_mean >= 0
    ingested = sum(sum(batch.values()) for batch in batches)
    rewritten = replayed.rewritten_bytes_mean * len(batches)
    assert replayed.write_amplification == pytest.approx(1 + rewritten / ingested)
    partitions = {key for batch in batches for key in batch}
    assert len(partitions) <= replayed.files
    assert replay("p", batches, few(k, cold_after_commits=cold)) == replayed


@thorough
@given(BATCHES)
def test_without_merging_every_file_stays(batches: list[BatchSizes]) -> None:
    """W is 1, nothing is rewritten, and a scan opens all files that were ever written."""
    replayed = replay("off", batches, SizePolicy(target_file_size_bytes=10 * TARGET, small_file_limit_bytes=0))
    assert (replayed.write_amplification, replayed.rewritten_bytes_max) == (1, 0)
    assert replayed.files == sum(map(len, batches))


@thorough
@given(st.lists(st.integers(1, TARGET // 10), min_size=2, max_size=80), st.integers(2, 7))
def test_one_partition_is_the_schedule_of_one_partition(sizes: list[int], k: int) -> None:
    """The planner makes place for a batch before it comes: what it rewrites is what `choose_prefix` with one place less
    rewrites of all batches but the last."""
    policy = few(k)
    limit = policy.small_file_limit_bytes
    by_prefix = simulate(lambda small: choose_prefix(small, limit, k - 1), sizes[:-1], limit)
    replayed = replay("p", in_one_partition(*sizes), policy)
    rewritten = (by_prefix.write_amplification - 1) * sum(sizes[:-1])
    assert replayed.rewritten_bytes_mean * len(sizes) == pytest.approx(rewritten)


def test_a_partition_that_goes_cold_is_finished() -> None:
    """After so many batches elsewhere its small files become one."""
    other = PartitionKey(0, ("other",))
    batches: list[BatchSizes] = [*in_one_partition(10, 10, 10), *({other: 7} for _ in range(3))]
    assert replay("p", batches[:-1], few(6, cold_after_commits=3)).files == 3 + 2
    assert replay("p", batches, few(6, cold_after_commits=3)).files == 1 + 3


@pytest.mark.parametrize("pause", sampled([18, 22, 60], 3))
def test_regular_pauses_do_not_finish_a_partition_each_time(pause: int) -> None:
    """Rows in every so many batches are merged as rows in each, and twice the pause without rows finishes them."""
    table, other, written = ReplayedTable(few(6)), PartitionKey(0, ("other",)), 0
    for batch in [batch for _ in range(60) for batch in ({WHOLE: 1000}, *[{other: 7}] * pause)]:
        planned = table.plan(batch)
        written += sum(change.written_bytes for change in planned.changes if change.outputs[0].partition == WHOLE)
        table.apply(planned.changes)
    # 4.8 at each pause; merging in each pause writes 31 bytes per byte
    assert written < 6 * 60 * 1000
    assert len(table.layout.partitions[WHOLE].small) > 1
    for _ in range(pause + 3):
        table.apply(table.plan({other: 7}).changes)
    assert len(table.layout.partitions[WHOLE].small) == 1


def test_a_larger_k_rewrites_less_and_leaves_more_files() -> None:
    """What everybody wants to know of k."""
    batches = in_one_partition(*[1000] * 300)
    two, six, twelve = (replay("p", batches, few(k)) for k in (2, 6, 12))
    assert two.write_amplification > six.write_amplification > twelve.write_amplification
    assert (two.small_files_max, six.small_files_max, twelve.small_files_max) == (2, 6, 12)
    assert two.files_scanned < six.files_scanned < twelve.files_scanned


def test_a_comparison_prints_one_line_for_each_policy() -> None:
    """A heading, and numbers below each other."""
    compared = compare("lake.db.t", in_one_partition(*[1000] * 16), {"current": few(2), "max-small-files 4": few(4)})
    lines = str(compared).splitlines()
    assert lines[0] == "lake.db.t: the newest 16 batches replayed, 15.6 KiB in 1 partition"
    assert lines[1].split("  ")[0] == "policy"
    assert [line.split("  ")[0] for line in lines[2:]] == ["current", "max-small-files 4"]
    assert len(set(map(len, lines[1:]))) == 1
    document = json.loads(json.dumps(compared.to_dict()))
    assert [one["name"] for one in document["replayed"]] == ["current", "max-small-files 4"]
    assert (document["batches"], document["bytes_ingested"]) == (16, 16_000)


def test_nothing_to_replay_is_said() -> None:
    """A table without rows has no batches."""
    compared = compare("lake.db.t", [{}, {WHOLE: 0}], {"current": few(2)})
    assert str(compared) == "lake.db.t: no batch to replay: no commit in its history added rows"
    assert compared.replayed == ()


def test_of_very_many_batches_the_newest_are_replayed() -> None:
    """What is replayed is bounded by partitions of all batches together; the newest batch always is."""
    assert compare("t", in_one_partition(1, 2, 3, 4), {}, most_arrivals=2).bytes_ingested == 3 + 4
    three = {PartitionKey(0, (n,)): 5 for n in range(3)}
    assert compare("t", [*in_one_partition(1), three], {}, most_arrivals=2).bytes_ingested == 15
