"""Plans that count the new files of a batch among the small ones: k files remain, however few rows are rewritten."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.deletes.delete_reach import is_due
from icesize.planning.files import FileFact, Layout, PartitionKey, SkipReason
from icesize.planning.merging.after_write import divided, plan_absorbing, with_files
from icesize.planning.merging.groups import MergeBudget
from icesize.policy import SizePolicy
from tests.support.layouts import (
    SMALL_TARGET,
    key,
    layout_of,
    layouts,
    mergeable,
    partition,
    policies,
    simulate,
    thorough,
)

LIMIT = SMALL_TARGET.small_file_limit_bytes


def new_file(owner: PartitionKey, size: int, number: int = 0) -> FileFact:
    return FileFact(f"new/{owner.values}/{number}.parquet", size, 1, owner, 71)


def few(k: int) -> SizePolicy:
    """Files of 100,000 bytes, small below 75,000, of which k may remain."""
    return SizePolicy(target_file_size_bytes=100_000, max_small_files=k)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Layout, SizePolicy, list[FileFact]]:
    """A layout, a policy and the new files of a batch: in known partitions and in a new one."""
    policy = draw(policies())
    layout = draw(layouts(policy))
    owners = [*(owner for owner in sorted(layout.partitions, key=repr) if owner.spec_id == layout.spec_id), key("new")]
    chosen = draw(st.lists(st.sampled_from(owners), unique=True, min_size=1))
    sizes = st.lists(st.integers(1, 2 * policy.target_file_size_bytes), min_size=1, max_size=4)
    return layout, policy, [new_file(o, size, n) for o in chosen for n, size in enumerate(draw(sizes))]


def has_deletes(layout: Layout, owner: PartitionKey) -> bool:
    facts = layout.partitions.get(owner)
    return facts is not None and any(file.obstacle is SkipReason.HAS_DELETES for file in facts.small)


@thorough
@given(batches(), st.none() | st.integers(0, 10**9))
def test_every_file_is_planned_or_skipped_once(
    case: tuple[Layout, SizePolicy, list[FileFact]], budget: int | None
) -> None:
    """Old and new files are input files of one group or skipped with one reason, once; new ones are left alone where
    deletes are pending."""
    layout, policy, new = case
    plan = plan_absorbing(layout, policy, new, budget=MergeBudget(budget))
    wider = with_files(layout, (file for file in new if not has_deletes(layout, file.partition)))
    named = Counter(file.path for group in plan.groups for file in group.inputs)
    named.update(skip.file.path for skip in plan.skipped if skip.file)
    small = Counter(file.path for facts in wider.partitions.values() for file in facts.small)
    assert not small - named
    assert (named - small).keys() <= {file.path for facts in wider.partitions.values() for file in facts.large}
    assert plan.files_removed + sum(skip.files for skip in plan.skipped) == wider.files
    assert plan.bytes_to_write + sum(skip.size_bytes for skip in plan.skipped) == wider.size_bytes
    assert plan.head == layout.head


@thorough
@given(batches())
def test_at_most_k_small_files_remain(case: tuple[Layout, SizePolicy, list[FileFact]]) -> None:
    """Without a budget each partition with new files holds at most k small ones, and no well-sized file is touched."""
    layout, policy, new = case
    plan = plan_absorbing(layout, policy, new)
    absorbed = [file for file in new if not has_deletes(layout, file.partition)]
    after = simulate(with_files(layout, absorbed), plan)
    assert all(mergeable(after, file.partition) <= policy.max_small_files for file in absorbed)
    for group in plan.groups:
        assert 1 <= group.outputs < len(group.inputs) or is_due(*group.inputs, policy)
        assert all(f.size_bytes < policy.small_file_limit_bytes or is_due(f, policy) for f in group.inputs)
        assert all(f.obstacle is None for f in group.inputs)
    told = {outcome.partition: outcome.small_files for outcome in plan.outcomes}
    for owner in {file.partition for file in absorbed}:
        assert told.get(owner, 0) == mergeable(after, owner)


@thorough
@given(st.lists(st.integers(1, LIMIT // 8), max_size=7), st.integers(1, LIMIT // 8))
def test_with_one_slot_everything_small_is_merged(sizes: list[int], size: int) -> None:
    """k = 1 far below the limit leaves no choice: all small files become one, and a single file stays as it is."""
    layout = layout_of(partition("a", [*sizes, LIMIT, 2 * LIMIT]))
    plan = plan_absorbing(layout, few(1), [new_file(key("a"), size)])
    assert [len(group.inputs) for group in plan.groups] == ([len(sizes) + 1] if sizes else [])
    assert plan.bytes_to_write == (sum(sizes) + size if sizes else 0)
    assert plan.small_files_max == 1


@thorough
@given(st.integers(1, 5), st.lists(st.integers(1, LIMIT // 8), min_size=1, max_size=6), st.integers(1, LIMIT // 8))
def test_a_merge_of_fewest_files_is_the_cheapest(k: int, sizes: list[int], size: int) -> None:
    """Where one file is too many, nothing is merged before it has to be, and two files only when they are the
    smallest pair: no other pair is cheaper."""
    layout = layout_of(partition("a", sizes))
    plan = plan_absorbing(layout, few(k), [new_file(key("a"), size)])
    everything = [*sizes, size]
    assert bool(plan.groups) is (len(everything) > k)
    for group in plan.groups:
        if len(group.inputs) == 2:
            assert group.size_bytes == min(sum(pair) for pair in combinations(everything, 2))


def test_new_files_that_are_well_sized_stay() -> None:
    """A new file at the limit is no small file: nothing is due for it, and it is counted as well sized."""
    layout = layout_of(partition("a", [1_000]))
    plan = plan_absorbing(layout, few(1), [new_file(key("a"), LIMIT)])
    assert plan.groups == ()
    assert plan.skipped_by_reason == {"WELL_SIZED": 1, "TOO_FEW": 1}


def test_small_files_of_one_batch_are_merged() -> None:
    """Two new small files in a partition that the table does not have yet are one too many for k = 1."""
    plan = plan_absorbing(layout_of(), few(1), [new_file(key("new"), 10, n) for n in range(2)])
    [group] = plan.groups
    assert (group.partition, group.label, len(group.inputs), group.outputs) == (key("new"), "new", 2, 1)


def test_pending_deletes_are_appended_to() -> None:
    """With a delete pending the new file is no input file and counts as small; files without deletes are still
    merged."""
    obstacles: list[SkipReason | None] = [None, SkipReason.HAS_DELETES, None]
    layout = layout_of(partition("a", [10, 20, 30], obstacles=obstacles))
    plan = plan_absorbing(layout, few(1), [new_file(key("a"), 5)])
    assert [[file.size_bytes for file in group.inputs] for group in plan.groups] == [[10, 30]]
    [outcome] = plan.outcomes
    assert (outcome.small_files, outcome.ineligible) == (2, {SkipReason.HAS_DELETES: 1})


@pytest.mark.parametrize("obstacle", [SkipReason.NOT_PARQUET, SkipReason.ENCRYPTED])
def test_other_obstacles_hold_back_their_file_only(obstacle: SkipReason) -> None:
    """A file that cannot be merged for its own sake does not keep new rows out of the others."""
    layout = layout_of(partition("a", [10, 20], obstacles=[obstacle, None]))
    plan = plan_absorbing(layout, few(1), [new_file(key("a"), 5)])
    assert [sorted(file.size_bytes for file in group.inputs) for group in plan.groups] == [[5, 20]]


def test_contested_partitions_are_appended_to() -> None:
    """A partition that others keep rewriting is left alone, new files and old ones."""
    layout = layout_of(partition("a", [10, 20]))
    plan = plan_absorbing(layout, few(1), [new_file(key("a"), 5)], contested={key("a")})
    assert plan.groups == ()
    assert plan.skipped_by_reason == {"CONTESTED": 2}
    assert [outcome.small_files for outcome in plan.outcomes] == [1]


def test_over_budget_is_debt() -> None:
    """What the budget does not pay for stays, with its reason, and the partition is in debt."""
    layout = layout_of(partition("a", [10_000, 20_000]), partition("b", [10]))
    plan = plan_absorbing(layout, few(1), [new_file(key("a"), 5_000), new_file(key("b"), 5)], budget=MergeBudget(0))
    assert plan.groups == ()
    assert plan.skipped_by_reason == {"OVER_BUDGET": 5}
    assert [outcome.small_files for outcome in plan.partitions_over_limit] == [3, 2]
    paid = plan_absorbing(
        layout, few(1), [new_file(key("a"), 5_000), new_file(key("b"), 5)], budget=MergeBudget(35_015)
    )
    assert [group.size_bytes for group in paid.groups] == [15, 35_000]


def test_new_rows_make_a_partition_young() -> None:
    """A partition without rows for long is not cold when the batch writes to it; others are finished beside it."""
    policy = SizePolicy(target_file_size_bytes=100_000, max_small_files=6, cold_after_commits=3)
    layout = layout_of(partition("a", [10, 20], quiet=9), partition("b", [30, 40], quiet=9))
    plan = plan_absorbing(layout, policy, [new_file(key("a"), 5)])
    assert [(group.partition, group.cold) for group in plan.groups] == [(key("b"), True)]


def test_divided() -> None:
    """Groups with new files become the older files that new rows take along; groups of older ones stay groups."""
    policy = SizePolicy(target_file_size_bytes=100_000, max_small_files=1, cold_after_commits=3)
    layout = layout_of(partition("a", [10, 20]), partition("b", [30, 40], quiet=9))
    new = [new_file(key("a"), 5), new_file(key("c"), 5), new_file(key("c"), 6, 1)]
    apart, along = divided(plan_absorbing(layout, policy, new).groups, new)
    assert [group.partition for group in apart] == [key("b")]
    assert [(group.partition, [file.size_bytes for file in group.inputs]) for group in along] == [(key("a"), [10, 20])]
