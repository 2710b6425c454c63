"""How a batch and its merges share the cores."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.routing.router import MERGE_COST, MOST_TASK_BYTES, side_by_side, tasks_for

MIB = 2**20
TASK_BYTES = MIB


def test_tasks_follow_bytes_and_cores() -> None:
    """Little work takes few tasks, more takes all cores, very much takes whole waves of them."""
    assert [tasks_for(b, 8, TASK_BYTES) for b in (0, 1, TASK_BYTES, 2.5 * TASK_BYTES, 10**9)] == [1, 1, 1, 3, 8]
    assert tasks_for(8 * MOST_TASK_BYTES + 1, 8, TASK_BYTES) == 16
    assert tasks_for(40 * MOST_TASK_BYTES, 8, TASK_BYTES) == 40


@given(st.floats(0, 1e15), st.integers(1, 500))
def test_no_task_writes_too_much(work_bytes: float, cores: int) -> None:
    """Each task has at most a GiB, and there are whole waves of tasks when there is more than one."""
    tasks = tasks_for(work_bytes, cores, TASK_BYTES)
    assert tasks >= 1
    assert work_bytes / tasks <= MOST_TASK_BYTES * (1 + 1e-9)
    assert tasks <= cores or tasks % cores == 0


def test_without_merges_nothing_changes() -> None:
    """No merge group, no core for merging."""
    assert side_by_side(100 * MIB, [], 8, 8) == (8, 1)


def test_one_large_group_gets_a_core_from_the_start() -> None:
    """A group as long as the batch on all cores but one runs beside it, not after it."""
    assert side_by_side(700 * MIB, [200 * MIB], 8, 8) == (7, 1)


def test_small_groups_follow_the_rows() -> None:
    """Merges that are nothing beside the rows run when these are written."""
    assert side_by_side(800 * MIB, [MIB] * 4, 8, 8) == (8, 4)


def test_free_cores_are_merged_on() -> None:
    """A batch for two tasks leaves the other cores to the merges."""
    assert side_by_side(100 * MIB, [60 * MIB] * 10, 2, 8) == (2, 6)


def test_batches_of_several_waves_are_not_divided() -> None:
    """Where tasks queue anyway, merges fill the gaps."""
    assert side_by_side(1e12, [10**9], 16, 8) == (16, 1)


@given(st.floats(1, 1e12), st.lists(st.integers(1, 10**10), max_size=20), st.integers(1, 64), st.integers(1, 64))
def test_division_is_never_worse_than_one_after_the_other(
    work_bytes: float, merges: list[int], tasks: int, cores: int
) -> None:
    """What is chosen ends no later than writing first and merging then, on cores that exist."""
    writers, merge_tasks = side_by_side(work_bytes, merges, tasks, cores)
    assert 1 <= writers <= tasks
    assert merge_tasks >= 1
    if not merges or tasks > cores:
        assert writers == tasks
        return
    merging, longest = MERGE_COST * sum(merges), MERGE_COST * max(merges)
    after = work_bytes / tasks + max(merging / min(cores, len(merges)), longest)
    together = max(work_bytes / writers, merging / merge_tasks, longest)
    ends = together if writers + merge_tasks <= cores else after
    assert ends <= after * (1 + 1e-9)
