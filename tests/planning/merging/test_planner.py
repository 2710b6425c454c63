"""Plans over layouts: what is merged, what stays and why, and that it converges."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.deletes.delete_reach import is_due
from icesize.planning.file_sizes import SAFE_RATIO, merged_files
from icesize.planning.files import FileFact, Layout, PartitionFacts, PartitionKey, Partitions, SkipReason
from icesize.planning.merging import chosen_files, planner
from icesize.planning.merging.groups import MergeBudget, Work, groups_of
from icesize.planning.merging.planner import Occasion, plan_merges
from icesize.policy import MIB, SizePolicy
from tests.support.examples import sampled
from tests.support.layouts import (
    DEFAULT,
    LIMIT,
    SMALL_TARGET,
    due,
    equal_parts,
    key,
    layout_of,
    layouts,
    mergeable,
    partition,
    policies,
    simulate,
    thorough,
)


def shuffled(layout: Layout, seed: int) -> Layout:
    """The same layout with partitions and small files in another order."""
    dice = random.Random(seed)
    partitions = list(layout.partitions.values())
    dice.shuffle(partitions)
    mixed = [dataclasses.replace(f, small=tuple(dice.sample(f.small, len(f.small)))) for f in partitions]
    return dataclasses.replace(layout, partitions=Partitions.of({facts.key: facts for facts in mixed}))


def budgets(policy: SizePolicy) -> st.SearchStrategy[MergeBudget]:
    """Budgets of up to eight files of the target size, or none."""
    return st.builds(MergeBudget, st.none() | st.integers(0, 8 * policy.target_file_size_bytes))


@st.composite
def planned(draw: st.DrawFn) -> tuple[Layout, SizePolicy, dict[str, object]]:
    """A layout, a policy and the other arguments of a plan of any mode."""
    policy = draw(policies())
    layout = draw(layouts(policy))
    mode = draw(st.sampled_from(["maintenance", "batch", "after batch"]))
    owners = sorted(layout.partitions, key=repr)
    arguments: dict[str, object] = {"budget": draw(budgets(policy))}
    if mode == "batch":
        chosen = draw(st.lists(st.sampled_from([*owners, key("new")]), unique=True))
        arguments["occasion"] = Occasion.BATCH
        arguments["hot"] = {owner: draw(st.integers(0, policy.max_small_files + 1)) for owner in chosen}
    elif mode == "after batch":
        written = draw(st.lists(st.sampled_from(owners), unique=True)) if owners else []
        arguments |= {"occasion": Occasion.COMMIT, "hot": dict.fromkeys(written, 0)}
    elif owners:
        arguments["hot"] = dict.fromkeys(draw(st.lists(st.sampled_from(owners), unique=True)), 0)
    arguments["contested"] = draw(st.lists(st.sampled_from(owners), unique=True, max_size=1)) if owners else []
    return layout, policy, arguments


@thorough
@given(planned())
def test_every_file_is_planned_or_skipped_once(case: tuple[Layout, SizePolicy, dict[str, object]]) -> None:
    """Each file is an input file of one group or counted under one reason, and files and bytes add up."""
    layout, policy, arguments = case
    plan = plan_merges(layout, policy, **arguments)  # type: ignore[arg-type]
    named = Counter(file.path for group in plan.groups for file in group.inputs)
    named.update(skip.file.path for skip in plan.skipped if skip.file)
    small = Counter(file.path for facts in layout.partitions.values() for file in facts.small)
    large = {file.path for facts in layout.partitions.values() for file in facts.large}
    assert not small - named
    assert set((named - small).values()) <= {1}
    assert (named - small).keys() <= large
    assert plan.files_removed + sum(skip.files for skip in plan.skipped) == layout.files == plan.files_before
    assert plan.bytes_to_write + sum(skip.size_bytes for skip in plan.skipped) == layout.size_bytes
    assert all(skip.reason is SkipReason.WELL_SIZED for skip in plan.skipped if skip.file is None)


@thorough
@given(planned())
def test_groups_are_of_one_partition_and_lower_the_number_of_files(
    case: tuple[Layout, SizePolicy, dict[str, object]],
) -> None:
    """A group holds mergeable files of one partition of any spec, small or with deletes that are due, and becomes
    fewer files, or is one file with deletes."""
    layout, policy, arguments = case
    plan = plan_merges(layout, policy, **arguments)  # type: ignore[arg-type]
    for group in plan.groups:
        assert {file.partition for file in group.inputs} == {group.partition}
        assert group.partition not in arguments["contested"]  # type: ignore[operator]
        assert all(f.size_bytes < policy.small_file_limit_bytes or is_due(f, policy) for f in group.inputs)
        assert all(f.obstacle is None for f in group.inputs)
        assert 1 <= group.outputs < len(group.inputs) or is_due(*group.inputs, policy)
        assert group.outputs == 1 or group.output_size_bytes >= SAFE_RATIO * policy.small_file_limit_bytes
        assert group.size_bytes == sum(file.size_bytes for file in group.inputs)
    assert plan.files_after == simulate(layout, plan).files


@thorough
@given(planned(), st.integers())
def test_order_of_the_layout_does_not_matter(case: tuple[Layout, SizePolicy, dict[str, object]], seed: int) -> None:
    """Shuffled partitions and files give an equal plan."""
    layout, policy, arguments = case
    mixed = shuffled(layout, seed)
    assert plan_merges(mixed, policy, **arguments) == plan_merges(layout, policy, **arguments)  # type: ignore[arg-type]


@thorough
@given(planned(), st.integers(0, 3))
def test_a_budget_is_exceeded_by_one_odd_merge_at_most(
    case: tuple[Layout, SizePolicy, dict[str, object]], beyond: int
) -> None:
    """Groups that fit the budget stay within it together; one larger than the whole budget comes on top, if the most
    allows it."""
    layout, policy, arguments = case
    budget = arguments.pop("budget").size_bytes  # type: ignore[attr-defined]
    if isinstance(budget, int):
        most = budget * beyond if beyond else None
        plan = plan_merges(layout, policy, **arguments, budget=MergeBudget(budget, most))  # type: ignore[arg-type]
        odd = [group for group in plan.groups if group.size_bytes > budget]
        assert len(odd) <= (1 if budget else 0)
        assert plan.bytes_to_write - sum(group.size_bytes for group in odd) <= budget
        assert sum("exceeds the budget" in note for note in plan.notes) == len(odd)
        assert most is None or plan.bytes_to_write <= most


@thorough
@given(st.data())
def test_plans_within_a_hard_budget_end_where_no_two_files_fit(data: st.DataObject) -> None:
    """Plan after plan merges what fits. In the end, no two mergeable files of a partition do, and a note says what the
    rest needs."""
    policy = data.draw(policies())
    layout = data.draw(layouts(policy, deletes=False))
    most = data.draw(st.integers(1, 3 * policy.target_file_size_bytes))
    plan = plan_merges(layout, policy, budget=MergeBudget.hard(most))
    for _ in range(layout.files):
        if not plan.groups:
            break
        assert plan.bytes_to_write <= most
        layout = simulate(layout, plan)
        plan = plan_merges(layout, policy, budget=MergeBudget.hard(most))
    assert not plan.groups
    waits = [facts for key, facts in layout.partitions.items() if mergeable(layout, key) > 1]
    for facts in waits:
        sizes = sorted(file.size_bytes for file in facts.small if file.obstacle is None)
        assert sum(sizes[:2]) > most
    assert any("needs a budget of" in note for note in plan.notes) == bool(waits)


def test_small_files_of_different_groups_are_merged_within_a_hard_budget() -> None:
    """If each group of a partition exceeds the budget, its two smallest files are merged, wherever they lie."""
    sizes = [1, 20_000, *[LIMIT - 1] * 5, 1, 20_000, *[LIMIT - 1] * 5]
    layout = layout_of(partition("p", sizes))
    smallest = [min(file.size_bytes for file in group.inputs) for group in plan_merges(layout, SMALL_TARGET).groups]
    assert smallest == [1, 1]
    plan = plan_merges(layout, SMALL_TARGET, budget=MergeBudget.hard(2))
    assert [[file.size_bytes for file in group.inputs] for group in plan.groups] == [[1, 1]]


@thorough
@given(st.data())
def test_hot_partitions_hold_k_files_after_the_batch(data: st.DataObject) -> None:
    """Without a budget no partition of the batch keeps more than k mergeable small files, new ones included."""
    policy = data.draw(policies())
    layout = data.draw(layouts(policy))
    incoming = {owner: data.draw(st.integers(0, policy.max_small_files)) for owner in layout.partitions}
    plan = plan_merges(layout, policy, Occasion.BATCH, incoming)
    after = simulate(layout, plan)
    assert due(after, policy) == []
    for owner in layout.partitions:
        slots = max(1, policy.max_small_files - incoming[owner])
        assert mergeable(after, owner) <= slots
    small = [incoming[owner] + mergeable(after, owner) for owner in incoming]
    assert plan.small_files_max == max(small, default=0)
    assert len(plan.partitions_over_limit) == sum(files > policy.max_small_files for files in small)


@thorough
@given(st.data())
def test_maintenance_converges_although_sizes_deviate(data: st.DataObject) -> None:
    """After an unlimited plan whose outputs come out up to 5% larger or smaller, a second plan is empty."""
    policy = data.draw(policies())
    layout = data.draw(layouts(policy))
    seed = data.draw(st.integers())
    dice = random.Random(seed)
    trend = data.draw(st.sampled_from([0.95, 1.0, 1.05, None]))
    plan = plan_merges(layout, policy)
    after = simulate(layout, plan, lambda size: round(size * (trend or dice.uniform(0.95, 1.05))))
    assert plan_merges(after, policy).groups == ()
    assert due(after, policy) == []
    for owner in after.partitions:
        assert mergeable(after, owner) <= 1


@thorough
@given(st.data())
def test_maintenance_plans_the_fewest_files_in_groups(data: st.DataObject) -> None:
    """However a partition is cut into groups, their outputs together are as few as for the whole."""
    policy = data.draw(policies())
    layout = data.draw(layouts(policy, obstacles=False, deletes=False))
    plan = plan_merges(layout, policy)
    outputs: Counter[PartitionKey] = Counter()
    for group in plan.groups:
        outputs[group.partition] += group.outputs
    for owner, facts in layout.partitions.items():
        total = sum(file.size_bytes for file in facts.small)
        fewest = merged_files(total, policy.target_file_size_bytes, policy.small_file_limit_bytes)
        assert outputs[owner] == (fewest if len(facts.small) > 1 else 0)


@thorough
@given(st.data())
def test_no_size_starves_under_any_budget(data: st.DataObject) -> None:
    """Repeated plans under a budget, however small, end where one plan without a budget would end."""
    policy = data.draw(policies())
    layout = data.draw(layouts(policy, obstacles=False))
    budget = data.draw(st.integers(1, 3 * policy.target_file_size_bytes))
    for _ in range(layout.files + len(due(layout, policy)) + 1):
        plan = plan_merges(layout, policy, budget=MergeBudget(budget))
        if not plan.groups:
            break
        layout = simulate(layout, plan)
    assert plan.groups == ()
    assert due(layout, policy) == []
    assert all(mergeable(layout, owner) <= 1 for owner in layout.partitions)


@thorough
@given(st.data())
def test_hot_backlog_reaches_its_slots_under_any_budget(data: st.DataObject) -> None:
    """A debt of any sizes, and of deletes, in a hot partition is worked off, batch by batch, under any budget."""
    policy = data.draw(policies())
    layout = data.draw(layouts(policy, obstacles=False))
    budget = data.draw(st.integers(1, 3 * policy.target_file_size_bytes))
    incoming = dict.fromkeys(layout.partitions, 0)
    for _ in range(layout.files + len(due(layout, policy)) + 1):
        plan = plan_merges(layout, policy, Occasion.BATCH, incoming, budget=MergeBudget(budget))
        if not plan.groups:
            break
        layout = simulate(layout, plan)
    assert plan.partitions_over_limit == ()
    assert due(layout, policy) == []


@thorough
@given(policies(), st.lists(st.floats(0.001, 0.999), min_size=2, max_size=80), st.integers(1, 4))
def test_groups_are_cut_where_every_output_keeps_its_size(
    policy: SizePolicy, fractions: list[float], most_outputs: int
) -> None:
    """However coarse the files are, a cut leaves outputs that are above the limit for sure and near the target."""
    sizes = [max(1, int(fraction * policy.small_file_limit_bytes)) for fraction in fractions]
    facts = partition("a", sizes, limit=policy.small_file_limit_bytes)
    groups = groups_of(Work(facts), facts.small, policy, most_outputs)
    assert sum(len(group.inputs) for group in groups) == len(facts.small)
    outputs = sum(group.outputs for group in groups)
    largest = max(1.1 * policy.target_file_size_bytes, sum(file.size_bytes for file in facts.small) / outputs)
    for group in groups:
        assert group.size_bytes / group.outputs <= largest
        assert outputs == 1 or group.size_bytes / group.outputs >= SAFE_RATIO * policy.small_file_limit_bytes


@pytest.mark.parametrize("ratio", sampled([0.75, 0.5, 0.9, 1.0], 4))
@pytest.mark.parametrize("trend", [0.95, 1.0, 1.05])
def test_maintenance_converges_for_every_total(ratio: float, trend: float) -> None:
    """Totals from 1 to 4 targets in steps of a hundredth: merged once, nothing is left to merge."""
    policy = SizePolicy(target_file_size_bytes=100_000, small_file_limit_bytes=int(100_000 * ratio))
    for total in range(100_000, 400_000, 1_000):
        layout = layout_of(
            partition("a", equal_parts(total, 50), limit=policy.small_file_limit_bytes),
            limit=policy.small_file_limit_bytes,
        )
        after = simulate(layout, plan_merges(layout, policy), lambda size: round(trend * size))
        assert after.files < 5
        assert plan_merges(after, policy).groups == ()


def test_choose_prefix_is_the_public_one() -> None:
    """`merging.choose_prefix` is the function that the planner uses."""
    assert planner.choose_prefix is chosen_files.choose_prefix


def test_nothing_but_hot_and_cold_partitions_is_touched() -> None:
    """A batch leaves partitions alone that it does not write to and that are not cold yet."""
    layout = layout_of(
        partition("hot", [1_000] * 8),
        partition("warm", [1_000] * 8, quiet=DEFAULT.cold_after_commits - 2),
        partition("cold", [1_000] * 8, quiet=DEFAULT.cold_after_commits - 1),
        partition("lone", [1_000], quiet=99),
    )
    plan = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, {key("hot"): 1})
    assert [(group.label, group.cold) for group in plan.groups] == [("hour=hot", False), ("hour=cold", True)]
    assert len(plan.groups[1].inputs) == 8
    reasons = Counter((skip.partition.values[0], skip.reason) for skip in plan.skipped)
    assert reasons["warm", SkipReason.TOO_FEW] == 8
    assert reasons["lone", SkipReason.TOO_FEW] == 1
    assert [outcome.label for outcome in plan.partitions_over_limit] == ["hour=warm"]


def test_a_partition_of_the_batch_is_never_finished_as_cold() -> None:
    """A late batch makes a long quiet partition hot: it keeps its slots."""
    layout = layout_of(partition("late", [1_000] * 5, quiet=50))
    assert plan_merges(layout, SMALL_TARGET, Occasion.BATCH, {key("late"): 1}).groups == ()
    assert len(plan_merges(layout, SMALL_TARGET, Occasion.BATCH).groups) == 1


def test_a_finished_cold_partition_is_left_alone() -> None:
    """A cold partition is finished once: the next batch finds nothing to do in it."""
    layout = layout_of(partition("cold", [30_000] * 20, quiet=50))
    first = plan_merges(layout, SMALL_TARGET, Occasion.BATCH)
    assert sum(group.outputs for group in first.groups) == 6
    assert plan_merges(simulate(layout, first), SMALL_TARGET, Occasion.BATCH).groups == ()


def test_incoming_files_take_slots() -> None:
    """The more files a batch adds, the fewer older small files may remain; without slots all become one."""
    layout = layout_of(partition("a", [1_000, 1_001, 1_002, 1_003]))
    left = []
    for files in range(8):
        plan = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, {key("a"): files})
        left.append(mergeable(simulate(layout, plan), key("a")))
    assert left[:3] == [4, 4, 4]
    assert all(count <= max(1, 6 - files) for files, count in enumerate(left))
    assert left[6:] == [1, 1]


def test_a_new_partition_counts_with_its_incoming_files() -> None:
    """Files for a partition that the table does not have yet are in the outlook of the plan."""
    plan = plan_merges(layout_of(), SMALL_TARGET, Occasion.BATCH, {key("new"): 7})
    assert plan.small_files_max == 7
    assert [(outcome.partition, outcome.label) for outcome in plan.partitions_over_limit] == [(key("new"), "new")]


def test_after_batch_keeps_slots_and_touches_only_what_changed() -> None:
    """With `touched` the changed partitions go down to k, not to the minimum, and cold ones stay as they are."""
    sizes = [20_000] * 7
    layout = layout_of(partition("a", sizes), partition("b", sizes, quiet=50))
    plan = plan_merges(layout, SMALL_TARGET, Occasion.COMMIT, dict.fromkeys([key("a")], 0))
    assert {group.label for group in plan.groups} == {"hour=a"}
    assert 1 < mergeable(simulate(layout, plan), key("a")) <= 6
    assert plan.files_removed == chosen_files.choose_prefix(sizes, LIMIT, 6)


@given(planned(), st.data())
def test_growing_partitions_keep_their_slots_in_a_pass(
    case: tuple[Layout, SizePolicy, dict[str, object]], data: st.DataObject
) -> None:
    """They are merged as after a batch that wrote to them, all others as if there were none."""
    layout, policy, _ = case
    owners = sorted(layout.partitions, key=repr)
    growing = data.draw(st.lists(st.sampled_from(owners), unique=True)) if owners else []
    plan = plan_merges(layout, policy, Occasion.MAINTENANCE, dict.fromkeys(growing, 0))
    as_after_batch = plan_merges(layout, policy, Occasion.COMMIT, dict.fromkeys(growing, 0)).groups
    others = [group for group in plan_merges(layout, policy).groups if group.partition not in growing]
    assert Counter(plan.groups) == Counter([*as_after_batch, *others])


def test_a_partition_grows_that_was_merged_and_got_rows_lately() -> None:
    """One that was never merged, got its newest rows before, or is cold for the batches since does not."""

    def of(value: str, *numbers: tuple[int, int], quiet: int = 0) -> PartitionFacts:
        facts = partition(value, [1_000] * len(numbers), quiet=quiet)
        files = zip(facts.small, numbers, strict=True)
        numbered = [dataclasses.replace(f, sequence_number=n, file_sequence_number=by) for f, (n, by) in files]
        return dataclasses.replace(facts, small=tuple(numbered))

    layout = layout_of(
        of("grows", (7, 9), (12, 12)),
        of("all of it merged", (12, 13)),
        of("never merged", (3, 3), (12, 12)),
        of("long ago", (7, 9), (11, 11)),
        of("cold", (7, 9), (12, 12), quiet=DEFAULT.cold_after_commits),
        of("format 1", (0, 0)),
    )
    assert {*layout.growing(12, DEFAULT.cold_after_commits)} == {key("grows"), key("all of it merged")}


def test_backlog_in_a_hot_partition_becomes_files_near_the_target() -> None:
    """Hundreds of small files in a partition of the batch become several well-sized files, in several groups."""
    layout = layout_of(partition("a", [4_000] * 500))
    plan = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, {key("a"): 1})
    outputs = sum(group.outputs for group in plan.groups)
    assert outputs >= 18
    assert len(plan.groups) >= 4
    assert all(75_000 < group.output_size_bytes < 115_000 for group in plan.groups)


def test_large_partitions_are_cut_into_groups_of_neighbours_in_time() -> None:
    """2 MB at a target of 100 kB is 20 outputs in groups of about four, each with consecutive files."""
    layout = layout_of(partition("a", [10_000] * 200))
    groups = plan_merges(layout, SMALL_TARGET).groups
    assert sum(group.outputs for group in groups) == 20
    assert all(group.outputs <= 5 for group in groups)
    for group in groups:
        numbers = [file.sequence_number for file in group.inputs]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_files_that_would_be_small_again_become_one_fewer() -> None:
    """1.2 x target is one file, not two of 0.6 x target that the next plan would merge again."""
    layout = layout_of(partition("a", [40_000] * 3))
    (group,) = plan_merges(layout, SMALL_TARGET).groups
    assert (group.outputs, group.output_size_bytes) == (1, 120_000)


def test_ineligible_files_are_named_and_warned_about() -> None:
    """Files with deletes, other formats, keys or specs are counted by reason; more than k of them give a note."""
    reasons = [SkipReason.HAS_DELETES] * 5 + [SkipReason.NOT_PARQUET, SkipReason.ENCRYPTED, None, None]
    old = partition("old", [1_000] * 2, spec_id=0, obstacles=[SkipReason.OLD_SPEC] * 2)
    layout = layout_of(partition("a", [1_000] * 9, obstacles=reasons), old)
    plan = plan_merges(layout, SMALL_TARGET)
    assert [len(group.inputs) for group in plan.groups] == [2]
    assert [dict(outcome.ineligible) for outcome in plan.ineligible] == [
        {SkipReason.OLD_SPEC: 2},
        {SkipReason.HAS_DELETES: 5, SkipReason.NOT_PARQUET: 1, SkipReason.ENCRYPTED: 1},
    ]
    assert plan.notes == (
        "hour=a: 7 small files are ineligible (HAS_DELETES 5, ENCRYPTED 1, NOT_PARQUET 1), "
        "more than 'max-small-files' (6): icesize cannot merge them",
    )


def test_partitions_beyond_help_are_one_note() -> None:
    """After the source column of an old spec was dropped nearly all are: a note for each would hide all else."""
    counts = {"a": 7, "b": 1_000, "c": 6}
    old = [partition(name, [1_000] * count, obstacles=[SkipReason.OLD_SPEC] * count) for name, count in counts.items()]
    assert plan_merges(layout_of(*old), SMALL_TARGET).notes == (
        "2 partitions: 1,007 small files are ineligible (OLD_SPEC 1,007), "
        "more than 'max-small-files' (6) in each: icesize cannot merge them, but `icesize compact --into-current-spec` "
        "moves the rows of OLD_SPEC files",
    )


def test_contested_partitions_are_left_to_other_writers() -> None:
    """A partition that others keep rewriting is skipped as CONTESTED in every mode."""
    layout = layout_of(partition("a", [1_000] * 9))
    for occasion in Occasion:
        plan = plan_merges(layout, SMALL_TARGET, occasion, {key("a"): 1}, contested=[key("a")])
        assert plan.groups == ()
        assert {skip.reason for skip in plan.skipped} == {SkipReason.CONTESTED}


def test_limit_zero_turns_merging_off() -> None:
    """With a limit of 0 nothing is planned, and all files count as well sized."""
    off = SizePolicy(small_file_limit_bytes=0)
    plan = plan_merges(layout_of(partition("a", [1_000] * 9)), off, Occasion.BATCH, {key("a"): 1})
    assert plan.groups == ()
    assert [(skip.reason, skip.files) for skip in plan.skipped] == [(SkipReason.WELL_SIZED, 9)]


def test_files_at_the_limit_are_not_rewritten() -> None:
    """A file of exactly the limit is well sized, one byte less is small."""
    layout = layout_of(partition("a", [LIMIT, LIMIT, LIMIT - 1, LIMIT - 1]))
    (group,) = plan_merges(layout, SMALL_TARGET).groups
    assert [file.size_bytes for file in group.inputs] == [LIMIT - 1, LIMIT - 1]


def test_a_layout_with_a_higher_limit_is_judged_by_the_policy() -> None:
    """Files that are small for the layout and not for the policy are counted as well sized."""
    layout = layout_of(partition("a", [LIMIT, LIMIT - 1, 5, 5], limit=2 * LIMIT), limit=2 * LIMIT)
    plan = plan_merges(layout, SMALL_TARGET)
    assert [file.size_bytes for group in plan.groups for file in group.inputs] == [LIMIT - 1, 5, 5]
    (skip,) = plan.skipped
    assert (skip.file, skip.reason, skip.files, skip.size_bytes) == (None, SkipReason.WELL_SIZED, 1, LIMIT)


def test_budget_goes_to_hot_partitions_then_to_the_best_value() -> None:
    """Hot merges come before cold ones; among equals those that remove most files per byte; the rest waits."""
    layout = layout_of(
        partition("cold", [10] * 50, quiet=50),
        partition("costly", [5_000] * 7),
        partition("cheap", [1_000] * 7),
    )
    hot = {key("costly"): 0, key("cheap"): 0}
    plan = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, hot, budget=MergeBudget(50_000))
    assert [group.label for group in plan.groups] == ["hour=cheap", "hour=costly", "hour=cold"]
    frugal = plan_merges(layout, SMALL_TARGET, budget=MergeBudget(36_000))
    assert [group.label for group in frugal.groups] == ["hour=cold", "hour=cheap"]
    waiting = [skip for skip in frugal.skipped if skip.reason is SkipReason.OVER_BUDGET]
    assert {skip.partition for skip in waiting} == {key("costly")}
    assert len(waiting) == 7


def test_a_budget_of_nothing_plans_nothing() -> None:
    """A budget of 0 bytes defers every merge, odd sizes too."""
    plan = plan_merges(layout_of(partition("a", [1_000] * 9)), SMALL_TARGET, budget=MergeBudget(0))
    assert plan.groups == ()
    assert {skip.reason for skip in plan.skipped} == {SkipReason.OVER_BUDGET}


def test_files_larger_than_half_the_budget_still_merge() -> None:
    """Two files that exceed the budget together are merged on top of it, one group in each plan, with a note."""
    layout = layout_of(partition("a", [60_000] * 7), partition("b", [60_000] * 7))
    hot = {key("a"): 0, key("b"): 0}
    plan = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, hot, budget=MergeBudget(70_000))
    assert len(plan.groups) == 1
    assert "exceeds the budget of 68.4 KiB" in plan.notes[0]
    second = plan_merges(simulate(layout, plan), SMALL_TARGET, Occasion.BATCH, hot, budget=MergeBudget(70_000))
    assert {group.label for group in (*plan.groups, *second.groups)} == {"hour=a", "hour=b"}


def test_odd_sizes_take_turns() -> None:
    """Where two partitions compete for the one merge above the budget, batch after batch, neither falls behind."""
    layout = layout_of(partition("a", [60_000] * 6), partition("b", [60_000] * 6))
    hot = {key("a"): 0, key("b"): 0}
    for batch in range(20):
        grown = {}
        for owner, facts in layout.partitions.items():
            path = f"new/{owner.values[0]}-{batch}.parquet"
            added = FileFact(path, 60_000, 1, owner, layout.head.sequence_number)
            size_bytes = facts.size_bytes + 60_000
            small = (*facts.small, added)
            grown[owner] = dataclasses.replace(facts, files=facts.files + 1, size_bytes=size_bytes, small=small)
        layout = dataclasses.replace(layout, partitions=Partitions.of(grown))
        plan = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, hot, budget=MergeBudget(70_000))
        assert len(plan.groups) == 1
        layout = simulate(layout, plan)
        assert abs(mergeable(layout, key("a")) - mergeable(layout, key("b"))) <= 2


def test_the_merge_above_the_budget_goes_to_the_neediest() -> None:
    """Of partitions whose merges all exceed the budget, the one furthest above its slots is served."""
    layout = layout_of(partition("a", [60_000] * 8), partition("b", [60_000] * 10), partition("c", [60_000] * 9))
    plan = plan_merges(
        layout, SMALL_TARGET, Occasion.BATCH, dict.fromkeys(layout.partitions, 0), budget=MergeBudget(70_000)
    )
    assert [group.label for group in plan.groups] == ["hour=b"]


def test_only_one_merge_of_a_plan_exceeds_the_budget() -> None:
    """A hot and a cold partition of odd sizes: the hot one is merged on top of the budget, the cold one waits."""
    layout = layout_of(partition("cold", [60_000] * 7, quiet=50), partition("hot", [60_000] * 7))
    plan = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, {key("hot"): 0}, budget=MergeBudget(70_000))
    assert [group.label for group in plan.groups] == ["hour=hot"]


def test_a_hot_partition_falls_back_to_the_cheapest_merge_that_reaches_its_slots() -> None:
    """When others used up the budget, a partition above its slots merges just enough of its smallest files."""
    sizes = [1_000, 2_000, *[20_000] * 5]
    layout = layout_of(*(partition(n, sizes) for n in range(4)))
    hot = dict.fromkeys(layout.partitions, 0)
    due = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, hot).groups[0].size_bytes
    assert due > 20_000
    plan = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, hot, budget=MergeBudget(due + 9_000))
    assert [group.size_bytes for group in plan.groups] == [due, 3_000, 3_000, 3_000]
    assert plan.partitions_over_limit == ()


def test_a_budget_below_the_cheapest_merge_still_lowers_the_number_of_files() -> None:
    """Where a budget cannot bring a partition to its slots, as many small files as it pays for are merged."""
    sizes = [1_000] * 40
    layout = layout_of(partition("a", sizes), partition("b", sizes))
    hot = dict.fromkeys(layout.partitions, 0)
    plan = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, hot, budget=MergeBudget(10_500))
    assert sorted(len(group.inputs) for group in plan.groups) == [10, 40]


def test_partitions_above_their_slots_come_before_those_within() -> None:
    """A cheap merge that could wait does not take the bytes of one that must not."""
    within = partition("within", [12_600] * 6)
    above = partition("above", [20_000] * 7)
    layout = layout_of(above, within)
    hot = dict.fromkeys(layout.partitions, 0)
    both = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, hot)
    assert [group.label for group in both.groups] == ["hour=above", "hour=within"]
    tight = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, hot, budget=MergeBudget(100_000))
    assert [group.label for group in tight.groups] == ["hour=above"]


@pytest.fixture
def hundred_thousand() -> Layout:
    dice = random.Random(5)
    partitions = [
        partition(n, [dice.randrange(1, 20 * MIB) for _ in range(500)], limit=DEFAULT.small_file_limit_bytes)
        for n in range(200)
    ]
    return layout_of(*partitions, limit=DEFAULT.small_file_limit_bytes)


@pytest.mark.engine
def test_a_hundred_thousand_files_are_planned(hundred_thousand: Layout) -> None:
    """200 partitions of 500 small files become the fewest files, by maintenance and as a debt of a batch."""
    plan = plan_merges(hundred_thousand, DEFAULT)
    assert plan.files_removed == 100_000
    assert plan.files_after < 2_500
    hot = plan_merges(hundred_thousand, DEFAULT, Occasion.BATCH, dict.fromkeys(hundred_thousand.partitions, 1))
    assert hot.partitions_over_limit == ()
