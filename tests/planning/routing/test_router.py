"""The routing of partitions to tasks."""

from __future__ import annotations

import itertools
import math
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icesize.planning.file_sizes import expected_files
from icesize.planning.files import PartitionKey
from icesize.planning.routing.router import Routing, route
from tests.support.routing import file_floor, loads, total_files

TARGET = 1_000_000
HUGE = 2**40
KEYS = st.one_of(st.none(), st.text(max_size=3), st.integers(), st.tuples(st.integers()))
WEIGHT = st.sampled_from([0.0, 100_000.0, 700_000.0, 3_000_000.0]) | st.integers(0, 20_000_000).map(float)
WEIGHTS = st.dictionaries(KEYS, WEIGHT, max_size=30)
COSTS = st.sampled_from([0, 1_000, 65_536, 2_000_000])
MOST = st.none() | st.integers(0, 8)
TOLERANCES = st.sampled_from([0.0, 0.1, 0.25])


def hours(count: int, total_bytes: float) -> dict[object, float]:
    """Hourly partitions of a stream with late rows: 60% in the newest, the rest in proportion to 1 / (age + 1)^1.2."""
    late = [(age + 1) ** -1.2 for age in range(1, count)]
    weights = [0.6, *(0.4 * part / sum(late) for part in late)]
    return {PartitionKey(0, (500_000 - age,)): part * total_bytes for age, part in enumerate(weights)}


def skew(routing: Routing[object], weights: dict[object, float], target: int) -> float:
    """Bytes of the busiest task, as a multiple of the mean."""
    carried = loads(routing, weights, target, 0)
    return max(carried) * len(carried) / sum(carried)


def most(weight: float, tasks: int, most_files: int | None) -> int:
    """Files that a partition may get."""
    files = max(1, expected_files(weight, TARGET))
    return max(files, files + tasks if most_files is None else most_files)


@given(WEIGHTS, st.integers(1, 40), COSTS, TOLERANCES, MOST)
def test_every_partition_is_routed_once(
    weights: dict[object, float], tasks: int, cost: float, tolerance: float, most_files: int | None
) -> None:
    """Distinct existing tasks in order, shares above 0 that add up to 1, no file too large or too many."""
    routing = route(weights, tasks, TARGET, cost, tolerance, most_files=most_files)
    assert routing.tasks == tasks
    assert set(routing.assignment) == set(routing.files) == set(weights)
    for key, shares in routing.assignment.items():
        chosen = [task for task, _ in shares]
        assert chosen == sorted(set(chosen))
        assert 0 <= chosen[0] <= chosen[-1] < tasks
        assert all(share > 0 for _, share in shares)
        assert math.fsum(share for _, share in shares) == pytest.approx(1, abs=1e-9)
        files = routing.files[key]
        assert max(len(chosen), math.ceil(weights[key] / (1.1 * TARGET) - 1e-6)) <= files
        assert files <= most(weights[key], tasks, most_files)
    assert total_files(routing) == sum(routing.files.values())
    assert total_files(routing) <= file_floor(weights, tasks, TARGET, tolerance) + tasks - 1


NINE = {None: 0.0, "": 3e6, "0": 7e5, "1": 1e5, "2": 7e5, "3": 7e5, "4": 0.0, "00": 1_322_557.0, 0: 0.0}


@given(WEIGHTS, st.integers(1, 40), COSTS)
@example(NINE, 18, 65_536)  # an item without bytes on a task that is levelled
def test_loads_are_bytes_and_files(weights: dict[object, float], tasks: int, cost: float) -> None:
    """Loads add up to all bytes and the cost of all files."""
    routing = route(weights, tasks, TARGET, cost)
    carried = loads(routing, weights, TARGET, cost)
    assert len(carried) == tasks
    assert sum(carried) == pytest.approx(sum(weights.values()) + cost * total_files(routing))


@given(WEIGHTS.filter(lambda weights: sum(weights.values()) > 0), st.integers(1, 40), st.sampled_from([0.1, 0.25]))
def test_no_task_exceeds_the_bound(weights: dict[object, float], tasks: int, tolerance: float) -> None:
    """Where a partition may have as many files as balance needs, all tasks stay within the tolerance."""
    carried = loads(route(weights, tasks, TARGET, 0, tolerance), weights, TARGET, 0)
    fair = sum(weights.values()) / tasks
    # no cut is lighter than a byte
    assert max(carried) <= fair * (1 + tolerance) * (1 + 1e-6) + 2


@given(WEIGHTS.filter(lambda weights: sum(weights.values()) > 0), st.integers(1, 40), st.integers(0, 6))
def test_only_what_may_not_be_split_exceeds_the_bound(
    weights: dict[object, float], tasks: int, most_files: int
) -> None:
    """On a task above the bound, and above the largest file, a partition has all the files it may have."""
    routing = route(weights, tasks, TARGET, 0, 0.25, most_files=most_files)
    parts = [weight / min(most(weight, tasks, most_files), tasks) for weight in weights.values()]
    limit = max(1.25 * sum(weights.values()) / tasks, *parts) * (1 + 1e-6) + 2
    for task, load in enumerate(loads(routing, weights, TARGET, 0)):
        here = [key for key, shares in routing.assignment.items() if task in dict(shares)]
        assert load <= limit or any(routing.files[key] >= most(weights[key], tasks, most_files) for key in here)


@given(WEIGHTS, st.integers(1, 40), COSTS, MOST, st.randoms(use_true_random=False))
def test_routing_does_not_depend_on_order(
    weights: dict[object, float], tasks: int, cost: float, most_files: int | None, dice: object
) -> None:
    """The same weights in another order give the same routing, listed in the same order."""
    items = list(weights.items())
    dice.shuffle(items)  # type: ignore[attr-defined]
    one, other = (route(w, tasks, TARGET, cost, most_files=most_files) for w in (weights, dict(items)))
    assert one == other
    assert list(one.assignment) == list(other.assignment)


def best(weights: list[float], tasks: int, most_files: int) -> float:
    """The lowest possible maximum over all numbers of equal files that are allowed, and all tasks for them."""
    allowed = [range(max(1, expected_files(w, TARGET)), most(w, tasks, most_files) + 1) for w in weights]
    lowest = math.inf
    for counts in itertools.product(*allowed):
        loads = {(0.0,) * tasks}
        for weight, count in zip(weights, counts, strict=True):
            for _ in range(count):
                # tasks are alike: their order does not matter
                loads = {
                    tuple(sorted((*load[:task], load[task] + weight / count, *load[task + 1 :])))
                    for load in loads
                    for task in range(tasks)
                }
        lowest = min(lowest, *(load[-1] for load in loads))
    return lowest


@given(
    st.lists(st.integers(1, 20).map(lambda n: n * 50_000.0), min_size=1, max_size=5),
    st.integers(1, 3),
    st.integers(1, 2),
)
def test_the_maximum_is_near_the_best(weights: list[float], tasks: int, most_files: int) -> None:
    """At most 1.1 x the best of every assignment of equal parts; Graham's bound where partitions may not be cut."""
    named = dict(enumerate(weights))
    carried = loads(route(named, tasks, TARGET, 0, most_files=most_files), named, TARGET, 0)
    factor = 1.1 if most_files > 1 else 4 / 3 - 1 / (3 * tasks)
    assert max(carried) <= factor * best(weights, tasks, most_files) * (1 + 1e-6) + 2


@pytest.mark.parametrize("tasks", [2, 4, 8, 60])
@pytest.mark.parametrize("files", [1, 180])
def test_late_rows_make_few_files(tasks: int, files: int) -> None:
    """192 hours with a long tail: within 5% of the fewest files, and no task has 10% more bytes than the mean."""
    weights = hours(192, tasks * 128e6)
    target = HUGE if files == 1 else int(0.6 * tasks * 128e6 / files)
    routing = route(weights, tasks, target)
    assert total_files(routing) <= 1.05 * file_floor(weights, tasks, target)
    assert routing.files[PartitionKey(0, (500_000,))] >= files
    assert skew(routing, weights, target) <= 1.1


def test_many_writers_of_many_hours() -> None:
    """500 writers and ten days of late rows: round robin makes 500 x 240 files, routed it is a fifteenth at most."""
    weights = hours(240, 500 * 64e6)
    routing = route(weights, 500, 512 * 2**20)
    assert 15 * total_files(routing) <= 500 * 240
    assert skew(routing, weights, 512 * 2**20) <= 1.1


@pytest.mark.engine
@pytest.mark.parametrize("spread", [1, 100_000])
def test_a_hundred_thousand_partitions(spread: int) -> None:
    """All weights equal, or all different: each partition is one file, and the loads are level."""
    weights: dict[object, float] = {PartitionKey(0, (n,)): 1_000.0 + 10 * (n * 7_919 % spread) for n in range(100_000)}
    routing = route(weights, 60, HUGE)
    assert total_files(routing) == 100_000
    assert skew(routing, weights, HUGE) <= 1.01


def test_a_large_partition_has_files_of_equal_size() -> None:
    """Ten targets of bytes are ten files: one per task, or several on each where tasks are fewer."""
    assert route({"a": 10e6}, 10, TARGET, 0).assignment["a"] == tuple((task, 0.1) for task in range(10))
    few = route({"a": 10e6}, 5, TARGET, 0)
    assert few.assignment["a"] == tuple((task, 0.2) for task in range(5))
    assert few.files["a"] == 10


def test_a_million_files_are_not_placed_one_by_one() -> None:
    """10^6 files on three tasks, and 10^300, are shares of a third but for one file."""
    for count, error in ((1e6, 1e-6), (1e300, 1e-9)):
        routing = route({"a": count * TARGET}, 3, TARGET)
        assert [share for _, share in routing.assignment["a"]] == pytest.approx([1 / 3] * 3, abs=error)
        assert routing.files["a"] == pytest.approx(count)


def test_shares_level_the_loads() -> None:
    """Three quarters of the bytes in two files take more of the task that has the smaller other one."""
    routing = route({"a": 600_000.0, "b": 150_000.0, "c": 50_000.0}, 2, TARGET, 0)
    assert total_files(routing) == 4
    assert loads(routing, {"a": 600_000.0, "b": 150_000.0, "c": 50_000.0}, TARGET, 0) == pytest.approx([4e5, 4e5])
    assert sorted(share for _, share in routing.assignment["a"]) == pytest.approx([5 / 12, 7 / 12])


def test_a_hot_partition_is_split_up_to_its_limit_and_no_other_in_vain() -> None:
    """At most `most_files` files; a second partition above the mean stays whole where it is not the busiest task."""
    assert route({"a": 500_000.0}, 8, TARGET, 0, most_files=3).files == {"a": 3}
    assert route({"a": 500_000.0}, 2, TARGET, 0, most_files=3).files == {"a": 2}
    assert route({"a": 500_000.0}, 8, TARGET, 0, most_files=0).files == {"a": 1}
    assert route({"a": 900_000.0, "b": 250_000.0}, 8, TARGET, 0, most_files=3).files == {"a": 3, "b": 1}


def test_what_exceeds_the_bound_is_cut() -> None:
    """3 3 2 2 2 on two tasks: longest first gives 7 and 5, so the last one is cut; whole where that is not allowed."""
    weights = dict(zip("abcde", (300_000.0, 300_000.0, 200_000.0, 200_000.0, 200_000.0), strict=True))
    routing = route(weights, 2, TARGET, 0)
    assert routing.files == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 2}
    assert loads(routing, weights, TARGET, 0) == [600_000.0, 600_000.0]
    assert loads(route(weights, 2, TARGET, 0, most_files=1), weights, TARGET, 0) == [700_000.0, 500_000.0]


def test_large_and_small_files_lie_on_every_task() -> None:
    """60 % of the bytes need three of four tasks: as three equal files, so that each task has small ones, too."""
    routing = route(hours(240, 4 * 64e6), 4, HUGE)
    assert [share for _, share in routing.assignment[PartitionKey(0, (500_000,))]] == pytest.approx(
        [1 / 3] * 3, rel=0.1
    )
    assert {shares[0][0] for shares in routing.assignment.values() if len(shares) == 1} == {0, 1, 2, 3}


def test_files_that_cost_more_than_they_carry_are_not_cut() -> None:
    """500 kB are not split where a file more costs ten times as much; small partitions count by their files."""
    assert route({"a": 500_000.0}, 8, HUGE, 5_000_000).files == {"a": 1}
    weights = dict.fromkeys(range(100), 10.0)
    routing = route({**weights, "a": 6_000_000.0}, 2, HUGE, 60_000)
    assert routing.assignment["a"] == ((0, 1.0),)
    assert sum(shares == ((1, 1.0),) for shares in routing.assignment.values()) == 100


def test_tolerance_decides_when_to_split() -> None:
    """1.2 x the mean is carried at a tolerance of 0.25 and split at 0.1."""
    weights = {"a": 600_000.0, "b": 400_000.0}
    assert route(weights, 2, TARGET, 0, 0.25).files == {"a": 1, "b": 1}
    assert route(weights, 2, TARGET, 0, 0.1).files == {"a": 2, "b": 1}
    assert loads(route(weights, 2, TARGET, 0, 0.1), weights, TARGET, 0) == pytest.approx([500_000.0] * 2)


def test_zero_weights_and_nothing_at_all() -> None:
    """A partition without bytes is one file on one task; an empty batch has an empty routing and no files."""
    routing = route({"a": 0.0, None: 0.0}, 3, TARGET)
    assert routing.files == {"a": 1, None: 1}
    assert all(shares[0][1] == 1.0 for shares in routing.assignment.values())
    assert file_floor({"a": 0.0, None: 0.0}, 3, TARGET) == 2
    nothing: dict[str, float] = {}
    assert route(nothing, 3, TARGET) == Routing(3, {}, {})
    assert file_floor(nothing, 3, TARGET) == 0


def test_the_floor_counts_size_and_balance() -> None:
    """Three files for size; 0.9 of the bytes of ten tasks need 9 / 1.1 files, a tenth one."""
    assert file_floor({"a": 3_000_000.0, "b": 1.0}, 1, TARGET) == 4
    assert file_floor({"a": 900_000.0, "b": 100_000.0}, 10, TARGET) == 9 + 1
    assert file_floor({"a": 900_000.0, "b": 100_000.0}, 10, TARGET, 0.5) == 6 + 1


def test_weights_may_be_as_small_and_as_large_as_floats_are() -> None:
    """Shares below a byte are not cut, and the greatest float is divided."""
    assert route({"a": 5e-324, "b": 0.5}, 4, TARGET, 0).files == {"a": 1, "b": 1}
    assert file_floor({"a": 5e-324}, 4, TARGET) == 4
    whole = route({"a": sys.float_info.max}, 2, TARGET, 0)
    assert [share for _, share in whole.assignment["a"]] == pytest.approx([0.5, 0.5])
