"""Plans that are completed once the files of a batch are known."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from icesize.planning.files import Layout, PartitionKey
from icesize.planning.merging.after_write import complete_plan
from icesize.planning.merging.groups import MergeBudget
from icesize.planning.merging.planner import Occasion, plan_merges
from tests.support.layouts import LIMIT, SMALL_TARGET, key, layout_of, partition

SIZES = st.lists(st.integers(1, LIMIT - 1), max_size=12)
INCOMING = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3), max_size=4)


def _by_key(files: dict[str, int]) -> dict[PartitionKey, int]:
    return {key(name): count for name, count in files.items()}


def _layout(sizes: list[list[int]]) -> Layout:
    return layout_of(*(partition(name, some) for name, some in zip("abc", sizes, strict=True)))


@given(st.lists(SIZES, min_size=3, max_size=3), INCOMING, INCOMING, st.none() | st.integers(1, 10 * LIMIT))
@example([[], [1] * 7, [1, 74_999]], {"a": 0, "b": 0}, {"c": 0}, 1)
def test_every_file_is_planned_once(
    sizes: list[list[int]], expected: dict[str, int], actual: dict[str, int], budget_bytes: int | None
) -> None:
    """The completed plan begins with the first one's groups, but for those of partitions without rows, and has each
    file of the layout in one place."""
    layout = _layout(sizes)
    first = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, _by_key(expected), budget=MergeBudget(budget_bytes))
    whole = complete_plan(first, layout, SMALL_TARGET, _by_key(actual), budget=MergeBudget(budget_bytes))
    kept = tuple(group for group in first.groups if str(group.partition.values[0]) in actual)
    assert whole.groups[: len(kept)] == kept
    inputs = Counter(file.path for group in whole.groups for file in group.inputs)
    skipped = Counter(skip.file.path for skip in whole.skipped if skip.file)
    paths = {file.path for facts in layout.partitions.values() for file in facts.small}
    assert inputs + skipped == Counter(paths)
    if not kept:
        # what the merges that are given up have written counts
        left = None if budget_bytes is None else max(0, budget_bytes - first.bytes_to_write)
        again = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, _by_key(actual), budget=MergeBudget(left))
        assert (whole.groups, whole.outcomes) == (again.groups, again.outcomes)


@given(st.lists(SIZES, min_size=3, max_size=3), INCOMING, INCOMING)
def test_the_bound_holds_whatever_was_expected(
    sizes: list[list[int]], expected: dict[str, int], actual: dict[str, int]
) -> None:
    """Without a budget no partition with rows exceeds k, also where more files came than it was merged for."""
    layout = _layout(sizes)
    first = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, _by_key(expected))
    whole = complete_plan(first, layout, SMALL_TARGET, _by_key(actual))
    assert [outcome for outcome in whole.partitions_over_limit if str(outcome.partition.values[0]) in actual] == []


def test_partitions_that_nobody_expected_are_merged() -> None:
    """A partition at its bound that gets a file against expectation is merged, the others stay as planned."""
    layout = _layout([[1_000] * 6, [1_000] * 6, []])
    first = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, _by_key({"a": 1}))
    whole = complete_plan(first, layout, SMALL_TARGET, _by_key({"a": 1, "b": 1}))
    assert [group.partition for group in first.groups] == [key("a")]
    assert [group.partition for group in whole.groups] == [key("a"), key("b")]
    assert whole.small_files_max <= SMALL_TARGET.max_small_files
    assert whole.incoming == _by_key({"a": 1, "b": 1})


def test_a_spent_budget_stays_spent() -> None:
    """What the first plan rewrites is not available to the second."""
    layout = _layout([[1_000] * 6, [1_000] * 6, []])
    first = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, _by_key({"a": 1}), budget=MergeBudget(6_000))
    whole = complete_plan(
        first, layout, SMALL_TARGET, _by_key({"a": 1, "b": 1}), budget=MergeBudget(first.bytes_to_write)
    )
    assert whole.groups == first.groups
    assert [outcome.partition for outcome in whole.partitions_over_limit] == [key("b")]


def test_more_files_than_expected_are_made_place_for() -> None:
    """A partition merged for one new file that got three is merged once more, of the files that are left."""
    layout = _layout([[100, 100, *[60_000] * 5], [], []])
    first = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, _by_key({"a": 1}))
    whole = complete_plan(first, layout, SMALL_TARGET, _by_key({"a": 3}))
    assert len(whole.groups) > len(first.groups) == 1
    inputs = [file.path for group in whole.groups for file in group.inputs]
    assert len(inputs) == len(set(inputs))
    assert whole.small_files_max <= SMALL_TARGET.max_small_files


def test_merges_of_partitions_that_got_nothing_are_given_up() -> None:
    """A partition that was expected to have rows and has none keeps its files, unless it is cold."""
    quiet = partition("b", [1_000] * 3, quiet=SMALL_TARGET.cold_after_commits)
    layout = layout_of(partition("a", [1_000] * 6), quiet)
    first = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, _by_key({"a": 1}))
    whole = complete_plan(first, layout, SMALL_TARGET, {})
    assert [group.partition for group in first.groups] == [key("a"), key("b")]
    assert [group.partition for group in whole.groups] == [key("b")]
