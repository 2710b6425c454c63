"""The merge policy of one partition: what it always keeps to, and how close it comes to the optimal schedule."""

from __future__ import annotations

import random
from functools import lru_cache
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.merging.chosen_files import choose_prefix
from tests.support.examples import sampled
from tests.support.merge_optimum import Deferral, Workload, equal_batches, optima, optimum, workloads
from tests.support.one_partition import simulate

LIMIT = 1000.0
SLOTS = st.integers(1, 20)
SIZES = st.lists(
    st.one_of(st.integers(0, 999), st.floats(0, 999.0, allow_subnormal=False), st.just(1)), min_size=0, max_size=60
)


@lru_cache(maxsize=1)
def best() -> list[list[float]]:
    """Optimal W for up to 384 files per finished file and up to 8 slots."""
    return optima(384, 8)


def ratio(workload: Workload, slots: int, deferral: Deferral | None = None) -> float:
    """W over the optimum; the slots are asserted on the way."""
    outcome = simulate(
        lambda small: choose_prefix(small, workload.limit, slots), workload.sizes, workload.limit, deferral
    )
    assert outcome.most_small_files <= slots
    return outcome.write_amplification / best()[slots][workload.files_per_finished]


def total(sizes: list[float]) -> float:
    """Plain sum in the given order (`sum` rounds otherwise since Python 3.12)."""
    return list(accumulate(sizes, initial=0.0))[-1]


def left(sizes: list[float], count: int, limit: float) -> list[float]:
    """Small files after the `count` smallest have become one."""
    ordered = sorted(sizes)
    merged = [total(ordered[:count])] if count else []
    return [size for size in [*ordered[count:], *merged] if size < limit]


@given(SIZES, SLOTS)
def test_at_most_slots_small_files_remain(sizes: list[float], slots: int) -> None:
    """One merge of none or at least two files leaves at most `slots` small ones, whatever is there."""
    count = choose_prefix(sizes, LIMIT, slots)
    assert count == 0 or 2 <= count <= len(sizes)
    assert len(left(sizes, count, LIMIT)) <= slots


@given(SIZES, SLOTS, st.randoms(use_true_random=False))
def test_order_does_not_matter(sizes: list[float], slots: int, order: random.Random) -> None:
    """The same files in another order give the same merge."""
    shuffled = sizes[:]
    order.shuffle(shuffled)
    assert choose_prefix(shuffled, LIMIT, slots) == choose_prefix(sizes, LIMIT, slots)


@given(SIZES, SLOTS, st.integers(-20, 20))
def test_unit_of_size_does_not_matter(sizes: list[float], slots: int, power: int) -> None:
    """Sizes and limit in another unit give the same merge."""
    scaled = [size * 2.0**power for size in sizes]
    assert choose_prefix(scaled, LIMIT * 2.0**power, slots) == choose_prefix(sizes, LIMIT, slots)


@given(SIZES, SLOTS)
def test_nothing_is_merged_without_need(sizes: list[float], slots: int) -> None:
    """With free slots, files are merged exactly where all together reach the limit."""
    count = choose_prefix(sizes, LIMIT, slots)
    if len(sizes) <= slots:
        assert (count > 0) == (total(sorted(sizes)) >= LIMIT)


@given(SIZES, SLOTS)
def test_finishing_merge_takes_no_more_files_than_it_needs(sizes: list[float], slots: int) -> None:
    """A merge that reaches the limit would miss limit or slots with one file less."""
    count = choose_prefix(sizes, LIMIT, slots)
    ordered = sorted(sizes)
    if total(ordered[:count]) >= LIMIT:
        assert count == 2 or total(ordered[: count - 1]) < LIMIT or len(sizes) - count + 1 > slots


@given(SIZES, SLOTS, st.integers(0, 5))
def test_files_of_the_limit_are_not_small(sizes: list[float], slots: int, finished: int) -> None:
    """Files of the limit or more neither count nor get merged."""
    assert choose_prefix([*sizes, *[LIMIT] * finished], LIMIT, slots) == choose_prefix(sizes, LIMIT, slots)


def test_always_merging_with_one_slot() -> None:
    """One slot leaves no choice: two files become one."""
    assert choose_prefix([1, 500], LIMIT, 1) == 2
    assert choose_prefix([500], LIMIT, 1) == 0


def test_large_file_is_left_alone_by_a_tiny_one() -> None:
    """Where a slot can be had among tiny files, the large ones are not rewritten."""
    assert choose_prefix([1, 1, 1, 400, 500], LIMIT, 4) in (2, 3)


def test_no_slots_are_refused() -> None:
    """A caller without a slot to spare has to decide by itself."""
    with pytest.raises(ValueError, match=r"'slots' \(0\) must be >= 1"):
        choose_prefix([1, 2], LIMIT, 0)


@pytest.mark.parametrize("slots", [1, 2, 6, 20])
@pytest.mark.parametrize("size", [0, 1e-9, 1, 0.1, 999])
def test_backlog_of_equal_files(size: float, slots: int) -> None:
    """Hundreds of files that others left, empty ones too, are brought to the slots by one merge."""
    debt = [size] * 700
    assert len(left(debt, choose_prefix(debt, LIMIT, slots), LIMIT)) <= slots


@pytest.mark.parametrize(("n", "slots", "expected"), [(24, 1, 13.46), (24, 6, 3.12), (96, 4, 5.85), (384, 6, 6.07)])
def test_optimum_is_the_known_one(n: int, slots: int, expected: float) -> None:
    """The oracle gives the known optima of the binomial schedule."""
    assert optimum(n, slots) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize(("n", "slots"), [(11, 2), (16, 3), (13, 4)])
def test_optimum_agrees_with_search_over_all_schedules(n: int, slots: int) -> None:
    """Trying every schedule without a slot for the merging arrival gives at most the oracle's W, and little less."""
    cheapest: dict[tuple[int, ...], int] = {(): 0}
    for arrived in range(1, n + 1):
        after: dict[tuple[int, ...], int] = {}
        for stack, cost in cheapest.items():
            for kept in range(len(stack) + 1):
                merged = arrived - sum(stack[:kept])
                paid = cost + (merged if kept < len(stack) else 0)
                state = (*stack[:kept], merged)
                if len(state) <= slots and paid < after.get(state, paid + 1):
                    after[state] = paid
        cheapest = after
    least = 1 + cheapest[(n,)] / n
    assert least <= optimum(n, slots) <= 1.25 * least


@pytest.mark.parametrize("slots", sampled([6, 4, 8], 3))
def test_close_to_the_optimum_for_equal_batches(slots: int) -> None:
    """Over numbers of equal batches per file, the worst ones among them, W is 1.10 x the optimum or less on average."""
    numbers = [*range(17, 384, 26), 172, 384]
    ratios = {n: ratio(Workload("equal", [1.0] * (10 * n), n), slots) for n in numbers}
    assert sum(ratios.values()) / len(ratios) <= 1.10
    assert max(ratios.values()) <= 1.30, ratios


@pytest.mark.parametrize("slots", [4, 6, 8])
def test_close_to_the_optimum_for_uneven_batches(slots: int) -> None:
    """Log-normal, heavy-tailed and uniform sizes cost no more than 1.10 x the optimum at their mean size."""
    for workload in list(workloads())[3:]:
        assert ratio(workload, slots) <= 1.10, workload.name


@pytest.mark.parametrize("slots", [4, 6, 8])
def test_merges_put_off_are_made_up_for(slots: int) -> None:
    """Where a budget puts merges off, the next merge gets back to the slots and W stays near the optimum."""
    for n in (24, 96, 172):
        assert ratio(equal_batches(n), slots, Deferral(seed=n)) <= 1.10


@pytest.mark.parametrize(("files", "slots"), [(2, 4), (3, 3), (2, 2)])
def test_several_files_per_batch(files: int, slots: int) -> None:
    """With two or three files per batch, W stays near the optimum for batches that are one file."""
    n, written = 96, 0.0
    small: list[float] = []
    for _ in range(10 * n):
        count = choose_prefix(small, n * files, slots)
        written += sum(sorted(small)[:count])
        small = [*left(small, count, n * files), *[1.0] * files]
        assert len(small) <= slots + files
    assert 1 + written / (10 * n * files) <= 1.30 * best()[slots][n]


def test_time_grows_with_the_number_of_slots() -> None:
    """A policy may allow thousands of small files: twice as many take twice the time, not four times."""
    divided = 0

    class Size(float):
        def __truediv__(self, other: float) -> float:
            nonlocal divided
            divided += 1
            return float(self) / other

    def work(slots: int) -> int:
        before = divided
        assert 2 <= choose_prefix([Size(1 + i / 10_000) for i in range(slots + 1)], 1e9, slots) <= slots + 1
        return divided - before

    assert work(2_000) < 3 * work(1_000)
