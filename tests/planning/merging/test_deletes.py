"""Plans for files with deletes: what is due whatever its size, what it is merged with, and what goes for it."""

from __future__ import annotations

import pytest

from icesize.planning.files import DeleteFile, PartitionFacts, SkipReason
from icesize.planning.insight.inspection import inspect
from icesize.planning.merging.after_write import complete_plan
from icesize.planning.merging.groups import MergeBudget
from icesize.planning.merging.planner import Occasion, plan_merges
from icesize.policy import SizePolicy
from icesize.results import Advice
from tests.support.layouts import (
    LIMIT,
    SMALL_TARGET,
    due,
    equality_delete,
    key,
    layout_of,
    partition,
    position_delete,
    simulate,
)

A = key("a")
TARGET = SMALL_TARGET.target_file_size_bytes


def eager(threshold: int) -> SizePolicy:
    """A file is due from so many delete files."""
    return SizePolicy(target_file_size_bytes=TARGET, delete_file_threshold=threshold)


def about(file: int, rows: int, number: int = 60) -> DeleteFile:
    """A position delete about one file of partition a."""
    return position_delete(A, number, f"a/{file}.parquet", rows)


def upserted(sizes: list[int], times: int) -> PartitionFacts:
    """A partition with so many equality deletes that hit all its files."""
    return partition("a", sizes, deletes=[equality_delete(A, 50 + n) for n in range(times)])


def inputs_of(facts: PartitionFacts, policy: SizePolicy = SMALL_TARGET) -> list[list[int]]:
    """The numbers of the files of each group that is planned where everything is looked at."""
    groups = plan_merges(layout_of(facts), policy).groups
    return [sorted(file.sequence_number for file in group.inputs) for group in groups]


@pytest.mark.parametrize(("rows", "is_due"), [(2_999, False), (3_000, True), (99_999, True)])
def test_the_share_of_deleted_rows_decides(rows: int, is_due: bool) -> None:
    """A well-sized file is written again, alone, from 30 percent of its rows; more than all of them are all."""
    facts = partition("a", [99_990, 2 * LIMIT], deletes=[about(0, rows)])
    plan = plan_merges(layout_of(facts), SMALL_TARGET)
    assert [(len(group.inputs), group.outputs) for group in plan.groups] == ([(1, 1)] if is_due else [])
    assert plan.rows_freed == (min(rows, 10_000) if is_due else 0)
    assert plan.delete_files_freed == is_due
    assert plan.skipped_by_reason == {"WELL_SIZED": 1 if is_due else 2}


@pytest.mark.parametrize(("times", "policy", "is_due"), [
    (6, SMALL_TARGET, False), (7, SMALL_TARGET, True), (2, eager(3), False), (3, eager(3), True),
])  # fmt: skip
def test_the_number_of_delete_files_decides(times: int, policy: SizePolicy, is_due: bool) -> None:
    """More than `max-delete-files`, or as many as `delete-file-threshold`, also of a single small file."""
    for size in (10, TARGET):
        assert inputs_of(upserted([size], times), policy) == ([[0]] if is_due else [])


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"occasion": Occasion.COMMIT, "hot": {A: 0}},
        {"occasion": Occasion.BATCH, "hot": {A: 1}},
        {"occasion": Occasion.BATCH},
    ],
)
def test_what_is_due_goes_wherever_the_plan_looks(arguments: dict[str, object]) -> None:
    """In full plans, in partitions that a batch has touched or writes to, and in cold ones."""
    facts = partition("a", [10, TARGET], quiet=99, deletes=[equality_delete(A, 50 + n) for n in range(7)])
    elsewhere = upserted([10, TARGET], 7)
    plan = plan_merges(layout_of(facts), SMALL_TARGET, **arguments)  # type: ignore[arg-type]
    assert sum(len(group.inputs) for group in plan.groups) == 2
    other = plan_merges(layout_of(elsewhere), SMALL_TARGET, Occasion.BATCH, {key("b"): 1})
    assert (other.groups, other.notes) == ((), ())


def test_files_that_shrink_are_merged_with_small_ones() -> None:
    """What is left of files with many deleted rows is counted, not their size: of two halves and a small file one file
    of the target size is made."""
    facts = partition("a", [99_990, 99_990, 5_000, 99_990], deletes=[about(n, 5_000) for n in (0, 1)])
    [group] = plan_merges(layout_of(facts), SMALL_TARGET).groups
    assert [file.sequence_number for file in group.inputs] == [0, 1, 2]
    assert (group.outputs, group.output_size_bytes, group.deleted_rows) == (1, 104_990, 10_000)


def test_small_files_that_hardly_hold_rows_are_no_files_of_the_target_size() -> None:
    """Small files are chosen by what is left of them: eleven that are nearly empty do not become two files."""
    sizes = [20_000] * 11
    facts = partition("a", sizes, deletes=[about(n, 1_900) for n in range(11)])
    [group] = plan_merges(layout_of(facts), SMALL_TARGET).groups
    assert (len(group.inputs), group.outputs) == (11, 1)
    assert group.output_size_bytes < 20_000
    assert sum(g.outputs for g in plan_merges(layout_of(partition("a", sizes)), SMALL_TARGET).groups) == 2


def test_slots_count_what_large_files_become() -> None:
    """A hot partition holds k small files also where large ones become small by their deletes."""
    facts = partition("a", [9_000] * 6 + [99_990], deletes=[about(6, 9_000)])
    layout = layout_of(facts)
    plan = plan_merges(layout, SMALL_TARGET, Occasion.COMMIT, dict.fromkeys([A], 0))
    after = simulate(layout, plan)
    assert due(after, SMALL_TARGET) == []
    assert plan.small_files_max == len(after.partitions[A].small) <= 6


def test_deletes_that_name_no_file_of_the_plan_do_not_make_it_begin_again() -> None:
    """Of two files under the same deletes a budget pays for one: the next plan is about the other one, and then there
    is nothing to do."""
    deletes = [position_delete(A, 50 + n) for n in range(7)]
    layout = layout_of(partition("a", [TARGET, TARGET], deletes=deletes))
    inputs = []
    for _ in range(2):
        plan = plan_merges(layout, SMALL_TARGET, budget=MergeBudget(TARGET))
        inputs += [file.path for group in plan.groups for file in group.inputs]
        layout = simulate(layout, plan)
    assert sorted(inputs) == ["a/0.parquet", "a/1.parquet"]
    assert plan.delete_files_freed == 0, "by their numbers they may hit the file that was written first"
    assert plan_merges(layout, SMALL_TARGET, budget=MergeBudget(TARGET)).groups == ()


def test_what_spares_most_per_byte_comes_first() -> None:
    """Bytes of deleted rows count, and files that need not be opened by what that costs; delete files are opened once
    for each file."""
    policy = SizePolicy(target_file_size_bytes=TARGET, close_file_cost_bytes=1_000)
    layout = layout_of(
        partition("few rows", [99_990], deletes=[position_delete(key("few rows"), 60, "few rows/0.parquet", 3_000)]),
        partition("rows", [99_990], deletes=[position_delete(key("rows"), 60, "rows/0.parquet", 9_000)]),
        partition("files", [50_000] * 2),
        partition("scans", [50_000] * 2, deletes=[equality_delete(key("scans"), 50 + n) for n in range(3)]),
    )
    order = [str(group.partition.values[0]) for group in plan_merges(layout, policy).groups]
    assert order == ["rows", "few rows", "scans", "files"]


def test_backlogs_come_before_what_may_wait_and_are_named() -> None:
    """A hot partition with more than `max-delete-files` is served before one with rows to free; what is left is in the
    notes, and in the plan as JSON."""
    many = [equality_delete(key("many"), 50 + n) for n in range(8)]
    layout = layout_of(
        partition("rows", [99_990], deletes=[position_delete(key("rows"), 60, "rows/0.parquet", 9_999)]),
        partition("many", [TARGET, TARGET], deletes=many),
    )
    plan = plan_merges(
        layout, SMALL_TARGET, Occasion.COMMIT, dict.fromkeys(list(layout.partitions), 0), budget=MergeBudget(TARGET)
    )
    assert [group.label for group in plan.groups] == ["hour=many"]
    assert [(outcome.label, outcome.delete_files) for outcome in plan.partitions_over_delete_limit] == [
        ("hour=many", 8)
    ]
    assert plan.skipped_by_reason == {"OVER_BUDGET": 2}
    assert plan.notes == (
        "1 partition with files that are read with more than 'max-delete-files' (6) delete files: 8 in hour=many",
    )
    told = plan.to_dict()
    assert (told["partitions_over_delete_limit"], told["delete_files_max"], told["max_delete_files"]) == (
        {"hour=many": 8},
        8,
        6,
    )
    assert plan_merges(layout, SMALL_TARGET).partitions_over_delete_limit == ()


def test_the_plan_says_what_goes() -> None:
    """Rows that are known to be deleted, and delete files that hit nothing else."""
    facts = partition("a", [10, 10, TARGET], deletes=[about(0, 1), about(2, 2), equality_delete(A, 1)])
    plan = plan_merges(layout_of(facts), SMALL_TARGET)
    assert (
        str(plan).splitlines()[0]
        == "plan: 1 partition, 2 -> 1 file, 20 B to write, 1 deleted row and 2 delete files to remove"
    )
    assert (plan.to_dict()["rows_freed"], plan.to_dict()["delete_files_freed"]) == (1, 2)


def test_contested_and_ineligible_files_stay() -> None:
    """Due files of partitions that others change are named as contested; with an obstacle a large one stays unnamed."""
    layout = layout_of(upserted([TARGET, 10], 7))
    plan = plan_merges(layout, SMALL_TARGET, contested=[A])
    assert (plan.groups, plan.skipped_by_reason, plan.partitions_over_delete_limit) == ((), {"CONTESTED": 2}, ())
    hindered = partition(
        "a",
        [TARGET, 10],
        obstacles=[SkipReason.HAS_DELETES] * 2,
        deletes=[equality_delete(A, 50 + n) for n in range(7)],
    )
    plan = plan_merges(layout_of(hindered), SMALL_TARGET)
    assert (plan.groups, plan.skipped_by_reason) == ((), {"WELL_SIZED": 1, "HAS_DELETES": 1})
    off = SizePolicy(small_file_limit_bytes=0)
    assert plan_merges(layout, off).groups == ()


def test_a_completed_plan_has_large_files_once() -> None:
    """Where a partition got more files than expected, what is left of it is planned again, large files as well."""
    layout = layout_of(upserted([100, 100, *[60_000] * 5, TARGET, TARGET], 7))
    first = plan_merges(layout, SMALL_TARGET, Occasion.BATCH, {A: 1}, budget=MergeBudget(TARGET + 400_000))
    whole = complete_plan(first, layout, SMALL_TARGET, {A: 3})
    inputs = [file.path for group in whole.groups for file in group.inputs]
    assert len(inputs) == len(set(inputs)) == 9
    assert whole.delete_files_freed == 7


def test_an_inspection_shows_deletes() -> None:
    """Files that are touched, rows that are known to be deleted, delete files for each file that is read, and what to
    do."""
    facts = partition("a", [99_990, 10, 10], deletes=[about(0, 5_000), *(equality_delete(A, n) for n in (1, 50))])
    layout = layout_of(facts, partition("b", [LIMIT] * 3))
    labels = {A: {"hour": "a"}, key("b"): {"hour": "b"}}
    seen = inspect(layout, SMALL_TARGET, labels, plan_merges(layout, SMALL_TARGET), table="t")
    deletes = seen.deletes
    assert (deletes.files, deletes.files_due, deletes.deleted_rows) == (3, 1, 5_000)
    assert deletes.row_share == pytest.approx(5_000 / layout.rows)
    assert (deletes.delete_files_per_file, deletes.worst, deletes.worst_per_file) == (5 / 6, {"hour": "a"}, 5 / 3)
    assert [(one.at_least, one.files) for one in deletes.histogram] == [(1, 2), (2, 1)]
    assert seen.advice == (
        Advice("1 file due for rewriting: run `icesize compact` to remove its deleted rows", "icesize compact t"),
        Advice("`icesize compact` would merge 3 files into 1", "icesize compact t"),
    )
    assert seen.to_dict()["deletes"]["delete_files_max"] == 3
    assert (
        "deletes pending on 3 files, 5,000 deleted rows known (15.4%), 0.8 delete files per file on average "
        "(1.7 in hour=a), at most 3" in str(seen)
    )
    clean = layout_of(partition("b", [LIMIT]))
    without = inspect(clean, SMALL_TARGET, {key("b"): {"hour": "b"}}, plan_merges(clean, SMALL_TARGET), table="t")
    assert without.deletes.files == 0
    assert "delete" not in str(without)
