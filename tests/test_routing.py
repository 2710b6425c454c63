"""The routing of partitions to tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.routing import route
from icesize.planning.sizing import expected_files

TARGET = 1_000
KEYS = st.one_of(st.none(), st.text(max_size=3), st.integers())
WEIGHTS = st.dictionaries(KEYS, st.sampled_from([100.0, 700.0, 3_000.0]) | st.floats(0, 20_000), max_size=30)


@given(WEIGHTS, st.integers(1, 40), st.integers(1, 12))
def test_every_partition_is_routed_within_its_bounds(weights: dict[object, float], tasks: int, slots: int) -> None:
    """Each partition has distinct existing tasks, at most max(expected files, k // 2) of them."""
    routing = route(weights, tasks, TARGET, slots)
    assert routing.tasks == tasks
    assert set(routing.assignment) == set(routing.files) == set(weights)
    for key, chosen in routing.assignment.items():
        assert len(set(chosen)) == len(chosen) >= 1
        assert all(0 <= task < tasks for task in chosen)
        assert len(chosen) <= max(1, expected_files(weights[key], TARGET), slots // 2)
        assert routing.files[key] >= len(chosen)


@given(WEIGHTS, st.integers(1, 40), st.randoms(use_true_random=False))
def test_routing_does_not_depend_on_order(weights: dict[object, float], tasks: int, dice: object) -> None:
    """The same weights in another order give the same routing."""
    items = list(weights.items())
    dice.shuffle(items)  # type: ignore[attr-defined]
    assert route(dict(items), tasks, TARGET, 6) == route(weights, tasks, TARGET, 6)


@given(WEIGHTS, st.integers(1, 20))
def test_load_is_balanced_as_far_as_splitting_goes(weights: dict[object, float], tasks: int) -> None:
    """No task carries more than the mean plus the largest share of a partition."""
    routing = route(weights, tasks, TARGET, 6)
    load = [0.0] * tasks
    shares = [0.0]
    for key, chosen in routing.assignment.items():
        shares.append(weights[key] / len(chosen))
        for task in chosen:
            load[task] += weights[key] / len(chosen)
    # distinct tasks for the shares of one partition may cost one more share
    assert max(load) <= sum(weights.values()) / tasks + 2 * max(shares) + 1e-6


def test_small_partitions_get_one_task_each() -> None:
    """Four equal partitions of one file on four tasks: one file each, one partition per task."""
    routing = route(dict.fromkeys("abcd", 900.0), 4, TARGET, 6)
    assert routing.files == dict.fromkeys("abcd", 1)
    assert sorted(routing.assignment.values()) == [(0,), (1,), (2,), (3,)]


def test_a_large_partition_gets_a_task_per_expected_file() -> None:
    """Ten targets of bytes are ten tasks, or all tasks with several files each where there are fewer."""
    assert route({"a": 10_000.0}, 20, TARGET, 6).assignment["a"] == tuple(range(10))
    few = route({"a": 10_000.0}, 4, TARGET, 6)
    assert few.assignment["a"] == (0, 1, 2, 3)
    assert few.files["a"] == 12


def test_a_skewed_partition_is_split_up_to_half_of_the_slots() -> None:
    """A partition of half a file that holds all bytes is split over k // 2 tasks, not over more."""
    assert len(route({"a": 500.0}, 8, TARGET, 6).assignment["a"]) == 3
    assert len(route({"a": 500.0}, 2, TARGET, 6).assignment["a"]) == 2
    assert len(route({"a": 600.0, "b": 300.0}, 3, TARGET, 6).assignment["a"]) == 2
    assert len(route({"a": 500.0}, 8, TARGET, 1).assignment["a"]) == 1


def test_tolerance_decides_when_to_split() -> None:
    """A share of 1.2 x the fair one is carried at a tolerance of 0.25 and split at 0.1."""
    weights = {"a": 600.0, "b": 400.0}
    assert len(route(weights, 2, TARGET, 6).assignment["a"]) == 1
    assert len(route(weights, 2, TARGET, 6, tolerance=0.1).assignment["a"]) == 2


def test_no_tasks_are_refused() -> None:
    """Zero tasks cannot write anything."""
    with pytest.raises(ValueError, match="no task would write the rows"):
        route({"a": 1.0}, 0, TARGET, 6)


def test_nothing_to_route() -> None:
    """An empty batch has an empty routing."""
    nothing: dict[str, float] = {}
    routing = route(nothing, 3, TARGET, 6)
    assert (dict(routing.assignment), dict(routing.files)) == ({}, {})
