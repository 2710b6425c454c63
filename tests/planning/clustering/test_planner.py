"""Plans of clustering over simulated tables: what is written, what stays and why, and that it converges."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.cluster_by import STRATEGIES, Bounds, ClusterBy, ClusterFile
from icesize.planning.clustering.depth import files_scanned
from icesize.planning.clustering.planner import plan_clusters
from icesize.planning.clustering.sets import outputs_of
from icesize.planning.files import FileFact, Head, Layout, PartitionFacts, PartitionKey, Partitions, SkipReason
from icesize.planning.plan import Plan
from icesize.policy import SizePolicy
from tests.support.examples import examples, sampled
from tests.support.layouts import SPEC, equal_parts, key

POLICY = SizePolicy(target_file_size_bytes=1_000)
LIMIT = POLICY.small_file_limit_bytes
HIGHEST = 63
OWNER = key("d")
Row = tuple[int | None, ...]
thorough = examples(100)


@dataclass(frozen=True)
class Stored:
    """A simulated data file: its rows, what its name says, and whether a column lacks metrics."""

    fact: FileFact
    rows: tuple[Row, ...]
    set_id: str | None = None
    full: bool = False
    without_metrics: bool = False

    def as_planned(self) -> ClusterFile:
        bounds = tuple(None if self.without_metrics else bounds_of(column) for column in zip(*self.rows, strict=True))
        return ClusterFile(self.fact, bounds, self.set_id, self.full)


def bounds_of(values: Iterable[Any]) -> Bounds:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else ()


def by_columns(strategy: str = "sort", full_targets: int = 64, columns: int = 2, new_share: float = 0.2) -> ClusterBy:
    sealed_set_bytes = full_targets * POLICY.target_file_size_bytes
    return ClusterBy(("a", "b", "c")[:columns], (1, 2, 3)[:columns], strategy, sealed_set_bytes, new_share)


def layout_of(table: Sequence[Stored]) -> Layout:
    owners = {file.fact.partition for file in table}
    facts = {}
    for owner in owners:
        sizes = [file.fact.size_bytes for file in table if file.fact.partition == owner]
        facts[owner] = PartitionFacts(owner, f"day={owner.values[0]}", len(sizes), sum(sizes), len(sizes))
    return Layout(Head(7, 70), SPEC, LIMIT, Partitions.of(facts))


def plan_of(table: Sequence[Stored], by: ClusterBy, **arguments: Any) -> Plan:
    files: dict[PartitionKey, list[ClusterFile]] = {}
    for file in table:
        files.setdefault(file.fact.partition, []).append(file.as_planned())
    return plan_clusters(layout_of(table), files, by, POLICY, **arguments)


def z_value(row: Row) -> int:
    bits = range(HIGHEST.bit_length() - 1, -1, -1)
    return sum(
        ((row[c] or 0) >> bit & 1) << (bit * len(row) + len(row) - 1 - c) for bit in bits for c in range(len(row))
    )


def execute(
    table: Sequence[Stored], plan: Plan, by: ClusterBy, shrink: Callable[[], float] = lambda: 1.0, run: int = 0
) -> list[Stored]:
    """The table after the plan: rows of each group in order, cut in equal parts that are named as one set.

    Bytes that are put in order for the first time become `shrink()` of what they were.
    """
    assert plan.clustering is not None
    stored = {file.fact.path: file for file in table}
    for number, (group, full) in enumerate(zip(plan.groups, plan.clustering.full, strict=True)):
        inputs = [stored.pop(input_file.path) for input_file in group.inputs]
        rows = [row for input_file in inputs for row in input_file.rows]
        size_bytes = sum(v.fact.size_bytes * (1.0 if v.set_id else shrink()) for v in inputs)
        nulls_first = [tuple((v is not None, v or 0) for v in row) for row in rows]
        keys: list[Any] = nulls_first if by.strategy == "sort" else [z_value(row) for row in rows]
        rows = [rows[n] for n in sorted(range(len(rows)), key=keys.__getitem__)]
        ends = [len(rows) * (n + 1) // group.outputs for n in range(group.outputs)]
        for n, size in enumerate(equal_parts(round(size_bytes), group.outputs)):
            part = tuple(rows[ends[n - 1] if n else 0 : ends[n]]) or ((None,) * len(by.columns),)
            fact = FileFact(f"run{run}/{number}-{n}", max(1, size), len(part), group.partition)
            stored[fact.path] = Stored(fact, part, f"{run}-{number}", full)
    return list(stored.values())


def new_file(name: str, size_bytes: int, rows: Iterable[Row], owner: PartitionKey = OWNER, **more: Any) -> Stored:
    obstacle = more.pop("obstacle", None)
    return Stored(FileFact(name, size_bytes, 1, owner, obstacle=obstacle), tuple(rows), **more)


def wide_files(count: int, size_bytes: int, name: str = "new", owner: PartitionKey = OWNER) -> list[Stored]:
    """Files that all have the whole range of both columns, and some values between."""
    dice = random.Random(f"{name} {owner}")
    return [
        new_file(
            f"{name}{n:03d}",
            size_bytes,
            [(0, 0), (HIGHEST, HIGHEST), *[(dice.randint(0, 63), dice.randint(0, 63)) for _ in range(30)]],
            owner,
        )
        for n in range(count)
    ]


def sorted_files(count: int, size_bytes: int, name: str = "calm", **more: Any) -> list[Stored]:
    """Files side by side in the first column, each with every value of the second."""
    step = (HIGHEST + 1) // count
    return [
        new_file(f"{name}{n:03d}", size_bytes, [(n * step, 0), (n * step + step - 1, HIGHEST)], **more)
        for n in range(count)
    ]


def reasons(plan: Plan) -> Counter[str]:
    return Counter(plan.skipped_by_reason)


def test_z_values_of_the_simulator_interleave_bits() -> None:
    """Simulated curves are curves: the first column has the upper one of each pair of bits."""
    assert [z_value(row) for row in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (None, 3)]] == [0, 1, 2, 3, 8, 5]


@st.composite
def tables(draw: st.DrawFn, columns: int = 2, plain: bool = False) -> list[Stored]:
    """Partitions of small and large files, wide and narrow, of nulls only or without metrics, some in sets already."""
    dice = random.Random(draw(st.integers(0, 2**32)))
    table = []
    for value in range(draw(st.integers(1, 3))):
        owner = key(value or None, SPEC if plain else dice.choice([SPEC, SPEC, SPEC, 0]))
        spread = draw(st.sampled_from([0, 2, 20, HIGHEST]))
        for n in range(draw(st.integers(0, 30))):
            size = dice.choice([dice.randint(1, 300), dice.randint(300, 1_200), dice.randint(1_200, 9_000)])
            kind = dice.choice(["rows"] * 12 + ["nulls", "hidden", "blocked", "set", "full"])
            corner = [dice.randint(0, HIGHEST - spread) for _ in range(columns)]
            rows = [tuple(low + dice.randint(0, spread) for low in corner) for _ in range(dice.randint(1, 5))]
            if kind == "nulls":
                rows = [(None,) * columns]
            table.append(
                new_file(
                    f"{value}/{n}",
                    size,
                    rows,
                    owner,
                    obstacle=SkipReason.HAS_DELETES if kind == "blocked" and not plain else None,
                    set_id=f"before{dice.randint(0, 2)}" if kind in ("set", "full") else None,
                    full=kind == "full",
                    without_metrics=kind == "hidden",
                )
            )
    return table


@st.composite
def planned(draw: st.DrawFn, plain: bool = False) -> tuple[list[Stored], ClusterBy, dict[str, Any]]:
    columns = draw(st.integers(1, 3))
    strategy = draw(st.sampled_from(STRATEGIES)) if columns > 1 else "sort"
    by = by_columns(strategy, draw(st.sampled_from([1, 3, 10, 64])), columns, draw(st.sampled_from([0.1, 0.2, 0.5])))
    table = draw(tables(columns, plain))
    if plain:
        return table, by, {}
    owners = sorted({file.fact.partition for file in table}, key=repr)
    some = st.lists(st.sampled_from(owners), unique=True, max_size=1) if owners else st.just([])
    arguments = {
        "budget_bytes": draw(st.none() | st.integers(0, 30_000)),
        "contested": draw(some),
        "leave_small": draw(some),
    }
    return table, by, arguments


Case = tuple[list[Stored], ClusterBy, dict[str, Any]]


@thorough
@given(planned())
def test_every_file_is_a_victim_or_skipped_once(case: Case) -> None:
    """Files and bytes of groups and skips are those of the table, each file once."""
    table, by, arguments = case
    plan = plan_of(table, by, **arguments)
    named = Counter(file.path for group in plan.groups for file in group.inputs)
    named.update(skip.file.path for skip in plan.skipped if skip.file)
    assert named == Counter(file.fact.path for file in table)
    assert plan.files_removed + sum(skip.files for skip in plan.skipped) == len(table) == plan.files_before
    skipped_bytes = sum(skip.size_bytes for skip in plan.skipped)
    assert plan.bytes_to_write + skipped_bytes == sum(file.fact.size_bytes for file in table)
    assert plan.files_after == len(execute(table, plan, by))


@thorough
@given(planned())
def test_files_that_must_stay_stay_for_their_reason(case: Case) -> None:
    """Obstacles, old specs, contested partitions, full sets and small files left to merging are never input files."""
    table, by, arguments = case
    plan = plan_of(table, by, **arguments)
    why = {skip.file.path: skip.reason for skip in plan.skipped if skip.file}
    for file in table:
        fact = file.fact
        if fact.obstacle:
            assert why[fact.path] is fact.obstacle
        elif fact.partition.spec_id != SPEC:
            assert why[fact.path] is SkipReason.OLD_SPEC
        elif fact.partition in arguments["contested"]:
            assert why[fact.path] is SkipReason.CONTESTED
        elif file.full:
            assert why[fact.path] is SkipReason.CLUSTERED
        elif fact.partition in arguments["leave_small"] and fact.size_bytes < LIMIT:
            assert why[fact.path] is SkipReason.TOO_FEW
    assert (SkipReason.OVER_BUDGET in why.values()) <= (arguments["budget_bytes"] is not None)


@thorough
@given(planned())
def test_groups_become_several_files_of_the_target_size(case: Case) -> None:
    """A group is of one partition, has the outputs that merging would make, two at least, and is full when it says."""
    table, by, arguments = case
    plan = plan_of(table, by, **arguments)
    assert plan.clustering is not None
    for group, full in zip(plan.groups, plan.clustering.full, strict=True):
        assert {file.partition for file in group.inputs} == {group.partition}
        assert group.label == f"day={group.partition.values[0]}"
        assert group.outputs == outputs_of(group.size_bytes, POLICY) >= 2
        assert full == (group.size_bytes >= by.sealed_set_bytes)
    assert plan.bytes_to_write <= (float("inf") if arguments["budget_bytes"] is None else arguments["budget_bytes"])
    assert plan.clustering.bytes_to_write == plan.bytes_to_write


@thorough
@given(planned(), st.integers())
def test_order_of_files_and_partitions_does_not_matter(case: Case, seed: int) -> None:
    """A shuffled table gives an equal plan."""
    table, by, arguments = case
    mixed = random.Random(seed).sample(table, len(table))
    assert plan_of(mixed, by, **arguments) == plan_of(table, by, **arguments)


@thorough
@given(planned(plain=True), st.lists(st.integers(0, 40_000), max_size=2), st.integers())
def test_a_plan_without_a_budget_leaves_nothing_to_plan(case: Case, budgets: list[int], seed: int) -> None:
    """After rounds under budgets and one without, whatever the outputs' sizes, the next plan is empty."""
    table, by, _ = case
    dice = random.Random(seed)
    for run, budget in enumerate([*budgets, None]):
        plan = plan_of(table, by, budget_bytes=budget)
        table = execute(table, plan, by, lambda: dice.uniform(0.7, 1.0), run)
    assert plan_of(table, by).groups == ()


@thorough
@given(planned(plain=True), st.integers(2_200, 12_000), st.integers())
def test_rounds_under_one_budget_come_to_an_end(case: Case, budget: int, seed: int) -> None:
    """Under any budget clustering stops by itself: no plan undoes another, none writes the same files for ever."""
    table, by, _ = case
    dice = random.Random(seed)
    for run in range(2 * len(table) + 2):
        plan = plan_of(table, by, budget_bytes=budget)
        if not plan.groups:
            break
        table = execute(table, plan, by, lambda: dice.uniform(0.7, 1.0), run)
    assert plan.groups == ()


@pytest.mark.parametrize("strategy", ["sort", "zorder"])
@pytest.mark.parametrize("new_share", sampled([0.2, 0.1, 0.5], 3))
def test_each_byte_is_written_a_bounded_number_of_times(strategy: str, new_share: float) -> None:
    """200 increments, planned after each: a byte is written 1 + 1 / new share times at most, full sets never again.

    The bound holds without slack: what joins a set is new and has `new_share` of its bytes at least.
    """
    by = by_columns(strategy, 16, new_share=new_share)
    dice = random.Random(3)
    table: list[Stored] = []
    written = ingested = 0
    full: set[str] = set()
    for run in range(200):
        added = wide_files(1, dice.randint(100, 1_000), f"in{run}-")
        ingested += added[0].fact.size_bytes
        table += added
        plan = plan_of(table, by)
        assert not full & {file.path for group in plan.groups for file in group.inputs}
        written += plan.bytes_to_write
        table = execute(table, plan, by, lambda: dice.uniform(0.7, 1.0), run)
        full |= {file.fact.path for file in table if file.full}
    assert written <= (1 + 1 / new_share) * ingested
    assert len({file.set_id for file in table if file.full}) >= 4
    waiting = sum(file.fact.size_bytes for file in table if file.set_id is None)
    assert waiting <= max(2_000, new_share * by.sealed_set_bytes + 1_000)


def test_rows_that_come_in_order_are_never_written() -> None:
    """A sort by time of a table that gets its rows in time, after one that was clustered: nothing is due, ever."""
    by = by_columns()
    table = execute(wide_files(8, 1_000), plan_of(wide_files(8, 1_000), by), by)
    for n in range(60):
        table.append(new_file(f"later{n}", 400, [(HIGHEST + n, 0), (HIGHEST + n + 1, 9)]))
        assert plan_of(table, by).groups == ()
    assert reasons(plan_of(table, by)) == {"CLUSTERED": 68}


def test_a_first_run_sorts_what_overlaps() -> None:
    """Twenty wide files become a set of as many; a point query then opens one, as the plan expects."""
    by = by_columns()
    table = wide_files(20, 1_000)
    plan = plan_of(table, by)
    assert str(plan).splitlines()[0] == "cluster (sort by a, b): 1 partition, 20 -> 20 files, 19.5 KiB to write"
    assert plan.clustering is not None
    assert plan.clustering.before["a"].point_files == 20.0
    assert plan.clustering.expected_point_files == {"a": 1.0, "b": 20.0}
    assert (plan.clustering.new_bytes, plan.clustering.amplification) == (20_000, 1.0)
    assert plan.to_dict()["clustering"]["full"] == [False]
    after = execute(table, plan, by)
    found = files_scanned([(file.as_planned().bounds[0], file.fact.size_bytes) for file in after])
    assert found.point_files < 2.0
    second = plan_of(after, by)
    assert str(second).splitlines()[0] == "cluster (sort by a, b): nothing to cluster in 20 files"
    assert reasons(second) == {"CLUSTERED": 20}


def test_a_curve_expects_its_floor_in_every_column() -> None:
    """Sixteen outputs on a curve in two columns: a point query on either is expected to open four."""
    plan = plan_of(wide_files(16, 1_000), by_columns("zorder"))
    assert plan.clustering is not None
    assert plan.clustering.expected_point_files == {"a": 4.0, "b": 4.0}


@pytest.mark.parametrize("strategy", ["sort", "zorder"])
def test_new_files_wait_until_they_have_their_share(strategy: str) -> None:
    """Beside a set of 10,000 bytes 1,900 new ones wait, 2,000 do not and take the set along."""
    by = by_columns(strategy)
    table = execute(wide_files(10, 1_000), plan_of(wide_files(10, 1_000), by), by)
    assert reasons(plan_of([*table, *wide_files(2, 950)], by)) == {"CLUSTERED": 10, "TOO_FEW": 2}
    plan = plan_of([*table, *wide_files(4, 500)], by)
    assert (plan.files_removed, plan.files_added) == (14, 12)
    assert plan.clustering is not None
    assert (plan.clustering.new_bytes, plan.clustering.amplification) == (2_000, 6.0)


def test_the_smaller_open_sets_count_as_new() -> None:
    """Two open sets are joined when the smaller has the share; then there is no new byte."""
    by = by_columns()
    small = execute(wide_files(2, 1_000, "s"), plan_of(wide_files(2, 1_000, "s"), by), by, run=1)
    for count, due in ((10, True), (11, False)):
        large = execute(wide_files(count, 1_000), plan_of(wide_files(count, 1_000), by), by, run=2)
        plan = plan_of([*small, *large], by)
        assert bool(plan.groups) is due
        assert plan.clustering is not None
        assert plan.clustering.amplification is None


def test_a_set_alone_is_never_due() -> None:
    """Even where any share is enough, a set waits for something that joins it, however bad it came out."""
    table = sorted_files(16, 1_000, set_id="s")
    for new_share in (0.0, 0.2):
        assert reasons(plan_of(table, by_columns("zorder", new_share=new_share))) == {"CLUSTERED": 16}


def test_what_becomes_one_file_is_left_to_merging() -> None:
    """1,500 bytes are one file at a target of 1,000: no group, however deep they overlap."""
    assert reasons(plan_of(wide_files(30, 50), by_columns())) == {"TOO_FEW": 30}
    assert len(plan_of(wide_files(32, 50), by_columns()).groups) == 1


def test_a_single_file_is_in_order() -> None:
    """One file, however large, is not cut into many: no query opens fewer files by that."""
    for strategy in STRATEGIES:
        assert reasons(plan_of(wide_files(1, 9_000), by_columns(strategy))) == {"CLUSTERED": 1}


def test_a_small_gain_is_not_worth_a_rewrite() -> None:
    """Of 17 files one lies over a corner of another: it waits, whatever the share. Four that lie over all do not."""
    table = sorted_files(16, 1_000)
    late = new_file("late", 1_000, [(1, 0), (2, 1)])
    wider = [new_file(f"late{n}", 1_000, [(0, 0), (HIGHEST, 1)]) for n in range(4)]
    assert reasons(plan_of([*table, late], by_columns(new_share=0.01))) == {"CLUSTERED": 16, "TOO_FEW": 1}
    assert plan_of([*table, *wider], by_columns()).files_removed == 20


def test_one_late_file_does_not_undo_the_order_of_a_partition() -> None:
    """Files in order count as a set: what overlaps them waits for its share, large or small."""
    table = sorted_files(16, 1_000)
    for size in (100, 1_000, 3_000):
        plan = plan_of([*table, new_file("late", size, [(0, 0), (HIGHEST, 1)])], by_columns())
        assert reasons(plan) == {"CLUSTERED": 16, "TOO_FEW": 1}
    due = plan_of([*table, new_file("late", 3_200, [(0, 0), (HIGHEST, 1)])], by_columns())
    assert due.files_removed == 17


def test_files_in_order_of_a_full_set_stay_for_ever() -> None:
    """Where files in order have the bytes of a full set, new ones are clustered without them, whatever their share."""
    by = by_columns(full_targets=16)
    table = [*sorted_files(16, 1_000), *wide_files(3, 1_000)]
    plan = plan_of(table, by)
    assert reasons(plan) == {"CLUSTERED": 16}
    assert plan.files_removed == 3
    assert plan_of(execute(table, plan, by), by).groups == ()


def test_a_curve_in_order_is_left_as_it_is() -> None:
    """Sixteen boxes of a grid are at the floor depth of both columns; sixteen stripes are not at that of one."""
    grid = [
        new_file(f"{x}{y}", 1_000, [(16 * x, 16 * y), (16 * x + 15, 16 * y + 15)]) for x in range(4) for y in range(4)
    ]
    assert reasons(plan_of(grid, by_columns("hilbert"))) == {"CLUSTERED": 16}
    stripes = sorted_files(16, 1_000)
    assert plan_of(stripes, by_columns("hilbert")).files_removed == 16
    assert reasons(plan_of(stripes, by_columns("sort"))) == {"CLUSTERED": 16}
    assert reasons(plan_of([*grid, *wide_files(20, 100)], by_columns("hilbert"))) == {"CLUSTERED": 16, "TOO_FEW": 20}


def test_columns_of_one_value_are_passed_over() -> None:
    """In a partition of one tenant, a sort by tenant and time orders by time and is judged by time."""
    by = by_columns()
    table = [dataclasses.replace(file, rows=tuple((5, row[1]) for row in file.rows)) for file in wide_files(10, 1_000)]
    plan = plan_of(table, by)
    assert plan.files_removed == 10
    assert plan.clustering is not None
    assert plan.clustering.expected_point_files == {"a": 10.0, "b": 1.0}
    in_order = [dataclasses.replace(file, rows=((5, n), (5, n + 1))) for n, file in enumerate(table)]
    assert reasons(plan_of(in_order, by)) == {"CLUSTERED": 10}


def test_one_file_without_bounds_may_be_in_order() -> None:
    """A sorted table ends in one file with NaN, whose bounds are unknown; several such files are not in order."""
    table = sorted_files(16, 1_000)
    nan = [new_file(f"nan{n}", 1_000, [(0, 0)], without_metrics=True) for n in range(5)]
    nulls = new_file("nulls", 1_000, [(None, None)])
    assert reasons(plan_of([*table, nulls, nan[0]], by_columns())) == {"CLUSTERED": 18}
    assert reasons(plan_of([*table, nulls, *nan[:2]], by_columns())) == {"CLUSTERED": 18, "TOO_FEW": 1}
    assert plan_of([*table, nulls, *nan], by_columns()).files_removed == 22


def test_more_than_a_full_set_is_cut_into_full_sets() -> None:
    """35 targets at full sets of 10 are three sets of about equal bytes, by lower bound, none of them open."""
    by = by_columns(full_targets=10)
    overlapping = [new_file(f"{99 - n}", 1_000, [(n, 0), (n + 20, 9)]) for n in range(35)]
    plan = plan_of(overlapping, by)
    assert plan.clustering is not None
    assert plan.clustering.full == (True, True, True)
    assert sorted(len(group.inputs) for group in plan.groups) == [11, 12, 12]
    lowest = [[99 - int(file.path) for file in group.inputs] for group in plan.groups]
    assert all(names == list(range(names[0], names[-1] + 1)) for names in lowest)
    after = execute(overlapping, plan, by)
    assert reasons(plan_of([*after, *wide_files(1, 1_900)], by)) == {"CLUSTERED": 36}


def test_a_budget_goes_to_what_gains_most_per_byte() -> None:
    """Of two partitions the one of deeper overlap per byte is paid for first; the other one gets what is left."""
    deep, light = wide_files(20, 200, "deep", key("y")), wide_files(4, 1_000, "light", key("x"))
    both = plan_of([*light, *deep], by_columns())
    assert [group.label for group in both.groups] == ["day=y", "day=x"]
    tight = plan_of([*light, *deep], by_columns(), budget_bytes=6_500)
    assert [(group.label, len(group.inputs)) for group in tight.groups] == [("day=y", 20), ("day=x", 2)]
    assert reasons(tight) == {"OVER_BUDGET": 2}


def test_a_budget_below_the_set_takes_the_new_files_alone() -> None:
    """A set that the budget does not pay for stays; new files become a set of their own, with smaller sets."""
    by = by_columns()
    table = execute(wide_files(10, 1_000), plan_of(wide_files(10, 1_000), by), by)
    table += wide_files(3, 1_000, "more")
    plan = plan_of(table, by, budget_bytes=5_000)
    assert [file.path for file in plan.groups[0].inputs] == ["more000", "more001", "more002"]
    table = [*execute(table, plan, by, run=1), *wide_files(2, 1_000, "last")]
    joined = plan_of(table, by, budget_bytes=5_000)
    assert {file.path[:4] for file in joined.groups[0].inputs} == {"last", "run1"}
    assert reasons(joined) == {"OVER_BUDGET": 10}
    few = plan_of(table, by, budget_bytes=2_500)
    assert [file.path for file in few.groups[0].inputs] == ["last000", "last001"]


def test_a_budget_that_pays_for_nothing_says_so() -> None:
    """What is due but does not fit is counted, with the bytes of the smallest."""
    plan = plan_of([*wide_files(5, 1_000), *wide_files(4, 1_000, "b", key("y"))], by_columns(), budget_bytes=1_500)
    assert plan.groups == ()
    assert reasons(plan) == {"OVER_BUDGET": 9}
    assert plan.notes == ("a budget of 1.5 KiB is too small to cluster 2 partitions: the smallest needs 3.9 KiB",)
    assert plan_of(wide_files(5, 1_000), by_columns()).notes == ()


def planned_bounds(bounds: Sequence[Bounds]) -> Plan:
    """The plan of a sort by one column of files with these bounds."""
    files = [ClusterFile(FileFact(f"{n:03d}", 1_000, 1, OWNER), (value,)) for n, value in enumerate(bounds)]
    return plan_clusters(Layout(Head(7, 70), SPEC, LIMIT), {OWNER: files}, by_columns(columns=1), POLICY)


def raised_text(text: str) -> str:
    """What Iceberg stores as the upper bound of `text` by truncate(16)."""
    if len(text) <= 16:
        return text
    after = ord(text[15]) + 1
    return text[:15] + chr(0xE000 if after == 0xD800 else after)


def raised_bytes(value: bytes) -> bytes:
    """What Iceberg stores as the upper bound of `value` by truncate(16): bytes that would overflow are dropped."""
    if len(value) <= 16:
        return value
    kept = value[:16].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])


@thorough
@given(st.lists(st.text("a\ud7ff\ue000\U0001f600\0", min_size=1, max_size=4), min_size=6, max_size=24, unique=True))
def test_raised_text_bounds_do_not_count_as_overlap(texts: list[str]) -> None:
    """Sorted files whose upper bounds Iceberg cut and raised are in order, although they overlap as stored."""
    texts = sorted("a" * 15 + text for text in texts)
    bounds = [(low[:16], raised_text(high)) for low, high in zip(texts[::2], texts[1::2], strict=False)]
    assert reasons(planned_bounds(bounds)) == {"CLUSTERED": len(bounds)}


@thorough
@given(st.lists(st.text("\0a\xfe", min_size=12, max_size=12), min_size=6, max_size=24, unique=True), st.integers(0, 2))
def test_raised_binary_bounds_do_not_count_as_overlap(texts: list[str], overflows: int) -> None:
    """Binary neighbours too, where the last bytes overflow and are dropped as well."""
    end = b"abcd"[overflows:] + b"\xff" * overflows + b"tail"
    values = sorted(text.encode("latin-1") + end for text in texts)
    bounds = [(low[:16], raised_bytes(high)) for low, high in zip(values[::2], values[1::2], strict=False)]
    assert reasons(planned_bounds(bounds)) == {"CLUSTERED": len(bounds)}


def test_short_text_bounds_are_taken_as_they_are() -> None:
    """Bounds that Iceberg did not cut overlap by their last character."""
    assert planned_bounds([("a", "b" * 15), ("b" * 14 + "a", "d")] * 5).files_removed == 10


def test_files_with_deletes_are_clustered_as_others() -> None:
    """Their number of outputs is that of what is left of them."""

    def table(deleted_rows: int) -> list[Stored]:
        facts = [FileFact(f"{n}.parquet", 1_000, 100, OWNER, n) for n in range(8)]
        hit = [dataclasses.replace(f, delete_files=1, deleted_rows=deleted_rows) for f in facts]
        return [Stored(fact, tuple((value, value) for value in range(HIGHEST))) for fact in hit]

    outputs = [[group.outputs for group in plan_of(table(rows), by_columns()).groups] for rows in (0, 50)]
    assert outputs == [[8], [4]]
