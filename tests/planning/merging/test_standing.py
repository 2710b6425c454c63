"""The summary of partitions that a batch does not touch: the same plan, at a cost that does not grow with the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.deletes.delete_plan import plan_delete_rewrites
from icesize.planning.files import Layout, PartitionFacts, PartitionKey, Partitions, SkipReason
from icesize.planning.merging.after_write import complete_plan, plan_absorbing
from icesize.planning.merging.groups import MergeBudget
from icesize.planning.merging.planner import MOST_COLD, Occasion, plan_merges
from icesize.planning.merging.standing import Standing
from icesize.planning.overlay import Overlay
from icesize.planning.plan import Plan
from icesize.policy import SizePolicy
from tests.support.layouts import SMALL_TARGET, key, layout_of, layouts, partition, policies, thorough

COLD = SMALL_TARGET.cold_after_commits


def summed_up(layout: Layout, policy: SizePolicy) -> Layout:
    """The layout with its summary."""
    return dataclasses.replace(layout, standing=Standing(policy).changed((), layout.partitions.values()))


def facts_of(plan: Plan, policy: SizePolicy) -> dict[str, Any]:
    """Everything that reports and commits take from a plan of a batch."""
    return {
        "groups": plan.groups,
        "skipped": plan.skipped_by_reason,
        "small_files_max": plan.small_files_max,
        "delete_files_max": plan.delete_files_max,
        "over_delete_limit": {outcome.partition: outcome for outcome in plan.partitions_over_delete_limit},
        "delete_files_freed": plan.delete_files_freed,
        "over_limit": {outcome.partition: outcome for outcome in plan.partitions_over_limit},
        "ineligible": {outcome.label: (outcome.small_files, outcome.ineligible) for outcome in plan.ineligible},
        "files": (plan.files_before, plan.files_after),
        "is_due": plan.is_due,
        "notes": sorted(plan.notes),
        "incoming": plan.incoming,
    }


def paused(layout: Layout, pause: int, quiet: int) -> Layout:
    """The layout with newest rows so many commits after those of the last small file, and so many commits ago."""
    last = max((file.sequence_number for facts in layout.partitions.values() for file in facts.small), default=0)
    newest = last + pause
    return dataclasses.replace(
        layout,
        partitions=Partitions.of(
            {k: dataclasses.replace(facts, newest=newest) for k, facts in layout.partitions.items()}
        ),
        commits_since=lambda stamp: newest + quiet - stamp,
        now=newest + quiet,
    )


@st.composite
def batches(draw: st.DrawFn) -> tuple[Layout, SizePolicy, dict[str, Any]]:
    """A layout, a policy, and the arguments of a batch, or of a plan after one."""
    policy = draw(policies())
    layout = draw(layouts(policy))
    if draw(st.booleans()):
        layout = paused(layout, draw(st.integers(0, 60)), draw(st.integers(0, 150)))
    owners = sorted(layout.partitions, key=repr)
    chosen = draw(st.lists(st.sampled_from([*owners, key("new")]), unique=True))
    is_written, counts = draw(st.booleans()), st.integers(0, policy.max_small_files + 1)
    return layout, policy, {
        "occasion": Occasion.COMMIT if is_written else Occasion.BATCH,
        "hot": {owner: 0 if is_written else draw(counts) for owner in chosen},
        "budget": MergeBudget(draw(st.none() | st.integers(0, 8 * policy.target_file_size_bytes))),
        "contested": draw(st.lists(st.sampled_from(owners), unique=True, max_size=1)) if owners else [],
    }  # fmt: skip


@thorough
@given(batches())
def test_a_batch_has_the_same_plan_with_and_without_the_summary(
    case: tuple[Layout, SizePolicy, dict[str, Any]],
) -> None:
    """A plan that looks at few partitions has the merges, counts and notes of one that looks at all of them."""
    layout, policy, arguments = case
    few = plan_merges(summed_up(layout, policy), policy, **arguments)
    assert facts_of(few, policy) == facts_of(plan_merges(layout, policy, **arguments), policy)
    assert (
        few.files_removed + sum(skip.files for skip in few.skipped) + sum(few.untouched.files.values()) == layout.files
    )


@thorough
@given(batches(), st.data())
def test_plans_that_are_completed_or_absorb_are_the_same_too(
    case: tuple[Layout, SizePolicy, dict[str, Any]], data: st.DataObject
) -> None:
    """The summary follows the files of a batch: a completed plan and one that absorbs new files are the same."""
    layout, policy, arguments = case
    arguments["occasion"] = Occasion.BATCH
    actual = {owner: data.draw(st.integers(0, 3)) for owner in arguments["hot"]}
    limits = {name: arguments[name] for name in ("budget", "contested")}
    plans = []
    for known in (layout, summed_up(layout, policy)):
        first = plan_merges(known, policy, **arguments)
        completed = complete_plan(first, known, policy, actual, **limits)
        new = [dataclasses.replace(f, path=f"new/{f.path}") for p in layout.partitions.values() for f in p.small[:1]]
        plans.append([facts_of(plan, policy) for plan in (completed, plan_absorbing(known, policy, new, **limits))])
    assert plans[0] == plans[1]


@thorough
@given(batches())
def test_delete_rewrites_are_the_same_with_and_without_the_summary(
    case: tuple[Layout, SizePolicy, dict[str, Any]],
) -> None:
    """The summary names every partition in which new delete files may be due."""
    layout, policy, _ = case
    assert plan_delete_rewrites(summed_up(layout, policy), policy) == plan_delete_rewrites(layout, policy)


@thorough
@given(policies().flatmap(lambda policy: st.tuples(st.just(policy), *[layouts(policy)] * 2)))
def test_a_summary_that_is_updated_is_the_summary_of_the_new_layout(case: tuple[SizePolicy, Layout, Layout]) -> None:
    """Partitions that change, appear and vanish leave the summary that would be made from nothing."""
    policy, old, new = case
    changes: dict[PartitionKey, PartitionFacts | None] = {owner: new.partitions.get(owner) for owner in old.partitions}
    updated = summed_up(old, policy).with_partitions(changes | dict(new.partitions))
    assert updated.partitions == new.partitions
    assert updated.standing == Standing(policy).changed((), new.partitions.values())
    assert updated.files == new.files


def test_planning_a_batch_makes_the_facts_of_few_partitions() -> None:
    """A batch into three of 3,000 partitions asks for these and the two that turn cold, and for no others."""
    idle = [partition(f"idle{n}", [1_000], quiet=COLD) for n in range(2_995)]
    hot = [partition(f"hot{n}", [1_000] * 7) for n in range(3)]
    cold = [partition(f"cold{n}", [1_000] * 3, quiet=COLD - 1) for n in range(2)]
    layout, made = summed_up(layout_of(*idle, *hot, *cold), SMALL_TARGET), list[PartitionKey]()

    def make(keys: Collection[PartitionKey] | None) -> dict[PartitionKey, PartitionFacts]:
        assert keys is not None, "a plan of a batch asks for all partitions"
        made.extend(keys)
        return layout.partitions.some(keys)

    lazy = dataclasses.replace(layout, partitions=Partitions(layout.partitions.newest, make))
    plan = plan_merges(lazy, SMALL_TARGET, Occasion.BATCH, {facts.key: 1 for facts in hot})
    assert sorted({group.label for group in plan.groups}) == [f"hour={name}{n}" for name, n in NAMES]
    assert plan.skipped_by_reason["TOO_FEW"] >= 2_995
    assert sorted(made, key=repr) == [key(f"{name}{n}") for name, n in NAMES]
    assert plan.untouched.files == {SkipReason.TOO_FEW: 2_995}


NAMES = [("cold", 0), ("cold", 1), ("hot", 0), ("hot", 1), ("hot", 2)]


def test_a_batch_finishes_a_bounded_number_of_cold_partitions() -> None:
    """Of a table that was never maintained a batch looks at 1,000 partitions, and the next batch at others."""
    facts = [partition(n, [1_000] * 2, quiet=COLD) for n in range(MOST_COLD + 5)]
    layout = summed_up(layout_of(*facts), SMALL_TARGET)
    first = plan_merges(layout, SMALL_TARGET, Occasion.BATCH)
    assert len(first.groups) == MOST_COLD
    gone = {group.partition: layout.partitions[group.partition].without(group.inputs) for group in first.groups}
    second = plan_merges(layout.with_partitions(gone), SMALL_TARGET, Occasion.BATCH)
    assert len(second.groups) == 5


@given(
    st.dictionaries(st.integers(0, 9), st.integers()),
    st.lists(st.dictionaries(st.integers(0, 400), st.none() | st.integers(), max_size=300), max_size=4),
)
def test_an_overlay_is_the_mapping_with_its_changes(base: dict[int, int], steps: list[dict[int, int | None]]) -> None:
    """An overlay has the entries of its base and the changes, and those that it was made from stay as they are."""
    expected, overlay = dict(base), Overlay(base)
    for changes in steps:
        before, copy = overlay, dict(overlay)
        overlay = overlay.changed(changes)
        expected = {k: v for k, v in {**expected, **changes}.items() if v is not None}
        assert dict(overlay) == expected == dict(overlay.items())
        assert (len(overlay), set(overlay)) == (len(expected), set(expected))
        assert all((number in overlay) == (number in expected) for number in changes)
        assert dict(before) == copy
        for bound in (-1, 0, 200):
            pairs = [(value, number) for number, value in expected.items() if value <= bound]
            assert sorted(overlay.up_to(bound)) == sorted(pairs)
            assert [value for value, _ in overlay.up_to(bound)] == sorted((v for v, _ in pairs), reverse=True)


@thorough
@given(policies().flatmap(lambda policy: st.tuples(st.just(policy), layouts(policy))), st.data())
def test_partitions_are_the_same_made_at_once_or_when_asked_for(
    case: tuple[SizePolicy, Layout], data: st.DataObject
) -> None:
    """Whatever is asked for, removed and put in place first, the mapping has the facts of all partitions."""
    facts = dict(case[1].partitions)
    lazy = Partitions(case[1].partitions.newest, lambda keys: facts if keys is None else case[1].partitions.some(keys))
    expected = dict(facts)
    for owner in data.draw(st.lists(st.sampled_from(sorted(facts, key=repr)), unique=True)) if facts else []:
        assert lazy.some([owner, key("unknown")]) == {owner: expected[owner]}
        change = data.draw(st.sampled_from([None, dataclasses.replace(facts[owner], newest=5)]))
        lazy = lazy.changed({owner: change})
        expected = {k: v for k, v in {**expected, owner: change}.items() if v is not None}
    assert (len(lazy), set(lazy)) == (len(expected), set(expected))
    assert dict(lazy.items()) == expected == {owner: lazy[owner] for owner in lazy}
    assert {owner: stamp for stamp, owner in lazy.newest.up_to(10**9)} == {k: f.newest for k, f in expected.items()}
