"""Which merges of many tables a budget pays for, and in which order tables have their turn."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.files import PartitionKey
from icesize.planning.shared_budget import FAIR_SHARE, DueMerge, choose, order_of

ROOT = PartitionKey(0)
MIB = 2**20


def jobs_of(*values: tuple[str, float, int]) -> list[DueMerge]:
    return [DueMerge(table, ROOT, benefit, size) for table, benefit, size in values]


def best_benefit(jobs: list[DueMerge], budget_bytes: int) -> float:
    """The benefit of the best of all choices, each of which is looked at."""
    return max(
        sum(job.benefit for job in chosen)
        for number in range(len(jobs) + 1)
        for chosen in combinations(jobs, number)
        if sum(job.size_bytes for job in chosen) <= budget_bytes
    )


SOME_JOBS = st.lists(
    st.builds(DueMerge, st.sampled_from("abc"), st.just(ROOT), st.integers(1, 100), st.integers(0, 100)), max_size=9
)


@given(SOME_JOBS, st.integers(1, 300))
def test_a_choice_loses_at_most_the_share_of_one_merge(jobs: list[DueMerge], budget_bytes: int) -> None:
    """No job is chosen twice and all fit; half of the best benefit is sure, and nearly all of it if jobs are small."""
    chosen = choose(jobs, budget_bytes)
    assert not Counter(chosen) - Counter(jobs)
    assert sum(job.size_bytes for job in chosen) <= budget_bytes
    fitting = [job.size_bytes for job in jobs if job.size_bytes <= budget_bytes]
    share = max(0.5, 1 - max(fitting, default=0) / budget_bytes)
    assert sum(job.benefit for job in chosen) >= (1 - FAIR_SHARE) * share * best_benefit(jobs, budget_bytes) - 1e-9


def test_a_greedy_choice_would_not_do() -> None:
    """A dense job that keeps a large one out is left where the large one brings more."""
    dense, large = jobs_of(("a", 2, 1), ("b", 100, 100))
    assert choose([dense, large], 100) == [large]


def test_without_a_budget_all_jobs_are_chosen() -> None:
    """They come in the order of their benefit per byte."""
    little, much = jobs_of(("a", 1, 10), ("b", 5, 10))
    assert choose([little, much], None) == choose([little, much], 20) == [much, little]


def test_a_small_table_has_its_turn_beside_a_large_backlog() -> None:
    """A table with few, larger files gets its part of the equal shares, although each merge of the other saves more."""
    backlog = jobs_of(*[("large", 100, MIB)] * 1_000)
    (small,) = jobs_of(("small", 1, MIB))
    assert small in choose([*backlog, small], 100 * MIB)


def test_equal_shares_that_cost_too_much_are_left_out() -> None:
    """One merge that takes the whole budget and brings all of the benefit is not given up for a small table."""
    large, small = jobs_of(("large", 1_000, 100 * MIB), ("small", 1, MIB))
    assert choose([large, small], 100 * MIB) == [large]


def test_tables_with_much_benefit_come_first() -> None:
    """A factor of ten decides between tables; tables without a merge come last."""
    benefits = {"none": 0.0, "little": 1e-6, "more": 1e-4, "most": 1e-2}
    assert order_of(benefits, "one") == ["most", "more", "little", "none"]


def test_two_maintainers_rarely_meet() -> None:
    """Of 100 alike tables that two maintainers take in their orders, fewer than a tenth are taken at the same time."""
    orders = [iter(order_of(dict.fromkeys(map(str, range(100)), 1.0), maintainer)) for maintainer in ("one", "two")]
    done = set[str]()
    meetings = 0
    while len(done) < 100:
        taken = [next((table for table in order if table not in done), None) for order in orders]
        meetings += taken[0] == taken[1]
        done.update(filter(None, taken))
    assert meetings < 10
