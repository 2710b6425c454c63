"""Run all maintenance steps within a budget: which steps run, what a budget leaves, what fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import icesize
from icesize.environment import Environment, WorkLimits
from icesize.errors import CommitStateUnknown, RewriteFailed, TableError
from icesize.events import Progress
from icesize.failpoints import armed
from icesize.maintenance.jobs.dangling_deletes import DanglingReport
from icesize.maintenance.jobs.rewrite_deletes import DeletesReport
from icesize.maintenance.jobs.rewrite_manifests import ManifestReport
from icesize.maintenance.passes.maintain import STEPS, UNCHECKED, MaintenanceReport, MaintenanceStep, Pass
from icesize.maintenance.rounds import Budget
from icesize.maintenance.table_context import TableContext
from icesize.planning.files import PartitionKey
from icesize.report import Report
from icesize.table.cleanup.expiry import ExpiryReport
from icesize.table.cleanup.orphans import OrphanReport
from icesize.table.state.handle import TableHandle
from tests.support.jobs import context_of
from tests.support.tables import append, arrow, check, ids_of, live_paths, local, make_table, operations, small_files

ROUND_BYTES = WorkLimits().bytes_without_spark
ONCE = {
    "rewritten_deletes": DeletesReport(),
    "deletes": DanglingReport(),
    "manifests": ManifestReport(),
    "expiry": ExpiryReport(),
    "orphans": OrphanReport(),
}
"""Steps that commit once, and what they came to."""


@dataclass
class FakeTable:
    """A table with so many bytes of small files; each step takes a second."""

    cold_bytes: int = 0
    hot_bytes: int = 0
    loose_bytes: int = 0
    is_clustered: bool = False
    failing: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    conflicts: bool = False
    internal_errors: tuple[str, ...] = ()
    seconds: float = 0.0
    done: list[str] = field(default_factory=list)

    def merge_round(
        self, context: TableContext, bytes_left: int | None, damaged: Collection[PartitionKey], *, cold_only: bool
    ) -> Report | None:
        budget_bytes = context.round_bytes(bytes_left)
        self._work(f"merge {'cold' if cold_only else 'all'} {budget_bytes}", "merges")
        size = min(budget_bytes, self.cold_bytes if cold_only else self.hot_bytes)
        if not size:
            return None
        if cold_only:
            self.cold_bytes -= size
        else:
            self.hot_bytes -= size
        return Report(
            snapshot_ids=() if self.conflicts else (1,), operations=("replace",), bytes_written=size,
            internal_errors=self.internal_errors,
        )  # fmt: skip

    def cluster_round(
        self, context: TableContext, bytes_left: int | None, damaged: Collection[PartitionKey]
    ) -> Report | None:
        if not self.is_clustered:
            return None
        budget_bytes = context.round_bytes(bytes_left)
        self._work(f"cluster {budget_bytes}", "clustering")
        size = min(budget_bytes, self.loose_bytes)
        self.loose_bytes -= size
        return Report(snapshot_ids=(1,), operations=("replace",), bytes_written=size) if size else None

    def once(self, step: str) -> object:
        """What a step came to that commits once."""
        self._work(step, step)
        return ONCE[step]

    def steps(self) -> list[MaintenanceStep]:
        """The steps of every pass, which work on this table."""
        merges = next(step for step in STEPS if step.name == "merges")
        wanted = {"clustering": lambda context: self.is_clustered}
        runs: dict[str, tuple[Callable[..., Any], ...]] = {
            # without moves, which this table has none of
            "merges": tuple(
                partial(self.merge_round, **job.keywords) for job in merges.run if isinstance(job, partial)
            ),
            "clustering": (self.cluster_round,),
        }
        runs |= {step: (lambda context, step=step: self.once(step),) for step in ONCE}
        return [replace(step, run=runs[step.name], is_wanted=wanted.get(step.name, step.is_wanted)) for step in STEPS]

    def _work(self, what: str, step: str) -> None:
        self.seconds += 1
        self.done.append(what)
        if step in self.failing:
            raise TableError(f"Cannot do {step}")
        if (job := what.rpartition(" ")[0]) in self.damaged:
            raise RewriteFailed(f"Cannot compact: {job} failed")


def run(table: FakeTable, budget_bytes: int | None = None, budget_seconds: float | None = None) -> MaintenanceReport:
    """One pass by a clock that goes on only when the table works."""
    handle = cast(TableHandle, SimpleNamespace(name="lake.db.t", catalog=SimpleNamespace(list_namespaces=list)))
    context = context_of(handle, Environment(monotonic=lambda: table.seconds))
    return Pass(context, Budget(budget_bytes, budget_seconds)).run(table.steps())


def test_every_step_runs_in_order() -> None:
    """Cold partitions, the others, delete files put together, useless ones, manifests, expiry, orphans."""
    table = FakeTable(cold_bytes=10, hot_bytes=20)
    report = run(table)
    rounds = [f"merge cold {ROUND_BYTES}"] * 2 + [f"merge all {ROUND_BYTES}"] * 2
    assert table.done == [*rounds, "rewritten_deletes", "deletes", "manifests", "expiry", "orphans"]
    assert (report.bytes_merged, report.failed, report.not_started) == (30, {}, ())
    assert report.seconds == {
        "merges": 4.0, "clustering": 0.0, "rewritten_deletes": 1.0, "deletes": 1.0, "manifests": 1.0,
        "expiry": 1.0, "orphans": 1.0, "total": 9.0,
    }  # fmt: skip


def test_the_observer_gets_the_progress_of_every_step(lake: SqlCatalog) -> None:
    """The observer gets each step by its name when it begins, the bytes of each round of merges from none to all of
    them, and the number of expired files that are deleted."""
    at_once = {"history.expire.max-snapshot-age-ms": "1", "history.expire.min-snapshots-to-keep": "1"}
    make_table(lake, properties=at_once)
    for number, kind in enumerate("aaabbb"):
        append(lake, [number], kind)
    events = list[object]()
    environment = Environment(limits=WorkLimits(round_bytes=1), observe=events.append)
    table = icesize.open(None, "db.t", catalog=lake, environment=environment)
    plan = table.plan()
    report = table.maintain()
    seen = [(event.step, event.done, event.total) for event in events if isinstance(event, Progress)]
    assert list(dict.fromkeys(step for step, done, total in seen if total is None)) == [
        "merges", "clustering", "rewritten_deletes", "deletes", "manifests", "expiry", "orphans",
    ]  # fmt: skip
    sizes = sorted(group.size_bytes for group in plan.groups)
    merged = [(done, total) for step, done, total in seen if step == "merges" and total is not None]
    assert sorted(merged) == sorted([*((0, size) for size in sizes), *((size, size) for size in sizes)])
    assert report.expiry is not None
    deleted = sum(report.expiry.files_deleted.values())
    assert [(step, done, total) for step, done, total in seen if step == "expiry"][-1] == ("expiry", deleted, deleted)


def test_merges_come_in_rounds() -> None:
    """More than a round's bytes are merged in several commits, so that a killed pass loses one of them at most."""
    report = run(FakeTable(hot_bytes=3 * ROUND_BYTES - 1))
    assert [r.bytes_written for r in report.merges] == [ROUND_BYTES, ROUND_BYTES, ROUND_BYTES - 1]


def test_a_table_that_is_to_be_clustered_is_clustered_after_its_merges() -> None:
    """What merges have left of the budget pays for it; what is not paid for is named, of other tables nothing is."""
    table = FakeTable(hot_bytes=20, loose_bytes=30, is_clustered=True)
    report = run(table)
    rounds = [f"merge all {ROUND_BYTES}", *[f"cluster {ROUND_BYTES}"] * 2]
    assert table.done[2:] == [*rounds, "rewritten_deletes", "deletes", "manifests", "expiry", "orphans"]
    assert ([r.bytes_written for r in report.clusterings], report.not_started) == ([30], ())
    report = run(FakeTable(hot_bytes=20, loose_bytes=30, is_clustered=True), budget_bytes=25)
    assert ([r.bytes_written for r in report.clusterings], report.not_started) == ([5], ("clustering",))
    assert run(FakeTable(failing=("clustering",), is_clustered=True)).failed == {"clustering": "Cannot do clustering"}
    steps = ("rewritten_deletes", "deletes", "manifests", "expiry", "orphans")
    assert run(FakeTable(), budget_seconds=0).not_started == ("merges", *steps)
    late = run(FakeTable(loose_bytes=30, is_clustered=True), budget_seconds=0)
    assert late.not_started == ("merges", "clustering", *steps)


def test_the_budget_of_bytes_bounds_all_merges() -> None:
    """What is left over is named, and the other steps run."""
    table = FakeTable(cold_bytes=60, hot_bytes=100)
    report = run(table, budget_bytes=100)
    assert (report.bytes_merged, table.hot_bytes, report.not_started) == (100, 60, ("merges",))
    assert table.done[-5:] == ["rewritten_deletes", "deletes", "manifests", "expiry", "orphans"]


def test_no_bytes_no_merges() -> None:
    """A budget of zero bytes leaves merging out."""
    table = FakeTable(cold_bytes=60)
    assert run(table, budget_bytes=0).not_started == ("merges",)
    assert table.done == ["rewritten_deletes", "deletes", "manifests", "expiry", "orphans"]


def test_merges_leave_time_for_the_other_steps() -> None:
    """No round begins after 70 % of the seconds, however much is left to merge."""
    table = FakeTable(hot_bytes=100 * ROUND_BYTES)
    report = run(table, budget_seconds=20)
    assert table.done[-5:] == ["rewritten_deletes", "deletes", "manifests", "expiry", "orphans"]
    assert (len(report.merges), report.not_started) == (13, ("merges",))


def test_steps_without_time_are_left_and_named() -> None:
    """When the seconds are over no step begins."""
    table = FakeTable()
    report = run(table, budget_seconds=5)
    assert (table.done[-1], report.not_started) == ("manifests", ("expiry", "orphans"))
    assert (report.expiry, report.orphans) == (None, None)


def test_a_step_that_fails_does_not_stop_the_others() -> None:
    """It is named with its message."""
    report = run(FakeTable(failing=("merges", "expiry")))
    assert report.failed == {"merges": "Cannot do merges", "expiry": "Cannot do expiry"}
    assert report.manifests is not None
    assert report.orphans is not None
    assert report.to_dict()["expiry"] is None


def test_a_mistake_of_ours_in_one_group_is_an_error_of_the_pass() -> None:
    """The merges of the other groups are committed and counted."""
    report = run(FakeTable(hot_bytes=20, internal_errors=("merge dropped: internal error",)))
    assert (report.failed, report.bytes_merged) == ({"merges": "merge dropped: internal error"}, 20)
    assert not report.succeeded


def test_a_rewrite_of_deletes_that_failed_by_a_mistake_of_icesize_fails_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The report keeps what the step did, and names the mistake as the reason."""
    done = DeletesReport(snapshot_ids=(1,), internal_errors=("internal error",))
    monkeypatch.setitem(ONCE, "rewritten_deletes", done)
    report = run(FakeTable(hot_bytes=20))
    assert (report.failed, report.rewritten_deletes) == ({"rewritten_deletes": "internal error"}, done)
    assert not report.succeeded


def test_cold_partitions_that_cannot_be_merged_do_not_keep_the_others_from_it() -> None:
    """Damaged files in every cold partition are an error of the pass, and the others are merged all the same."""
    report = run(FakeTable(hot_bytes=20, damaged=("merge cold",)))
    assert report.failed == {"merges": "Cannot compact: merge cold failed"}
    assert (report.bytes_merged, report.not_started) == (20, ())
    assert not report.succeeded


def test_files_of_other_tables_are_counted_with_a_note(lake: SqlCatalog) -> None:
    """A pass loads no other table, which its report notes; orphan cleanup does, and leaves their files alone."""
    make_table(lake)
    table = append(lake, [1])
    theirs = make_table(lake, properties={"write.data.path": f"{table.location()}/data"}, name="db.other")
    theirs.append(arrow([2]))
    [path] = live_paths(lake.load_table("db.other"))
    os.utime(local(path), (0, 0))
    sized = icesize.open(None, "db.t", catalog=lake)
    counted, removed = sized.maintain().orphans, sized.remove_orphan_files(dry_run=False)
    assert counted is not None
    assert (counted.files_found, counted.notes, removed.files_found) == (1, (UNCHECKED,), 0)
    local(path).unlink()
    nothing = sized.maintain().orphans
    assert nothing is not None
    assert (nothing.files_found, nothing.notes) == (0, ())


def test_a_damaged_partition_is_an_error_of_the_pass(lake: SqlCatalog) -> None:
    """Whatever else was merged: the step is named as failed, with the partition and the file; the other steps ran."""
    make_table(lake)
    for kind in "ab":
        for number in range(3):
            append(lake, [number], kind)
    damaged = small_files(lake.load_table("db.t"), "a")[0].path
    local(damaged).unlink()
    report = icesize.open(None, "db.t", catalog=lake).maintain()
    assert damaged in report.failed["merges"]
    assert "merge of 3 files in 'kind=a' dropped" in report.failed["merges"]
    assert [merge.files_removed for merge in report.merges] == [3]
    assert report.orphans is not None


@pytest.mark.parametrize("round_bytes", [1, WorkLimits().round_bytes])
def test_a_damaged_partition_does_not_keep_the_others_from_their_turn(lake: SqlCatalog, round_bytes: int) -> None:
    """The largest partitions come first and are damaged: every other one is merged in the same pass, and each damaged
    file is named."""
    make_table(lake)
    for kind, files in (("a", 4), ("b", 4), ("c", 3), ("d", 3)):
        for number in range(files):
            append(lake, [number], kind)
    damaged = [small_files(lake.load_table("db.t"), kind)[0].path for kind in "ab"]
    for path in damaged:
        local(path).unlink()
    environment = Environment(limits=WorkLimits(round_bytes=round_bytes))
    report = icesize.open(None, "db.t", catalog=lake, environment=environment).maintain()
    assert sum(merge.files_removed for merge in report.merges) == 6
    assert all(path in report.failed["merges"] for path in damaged)
    assert report.not_started == ()


def test_merges_that_do_not_land_are_not_repeated() -> None:
    """A round that lost to other writers would lose again: one try of each kind."""
    report = run(FakeTable(cold_bytes=10, hot_bytes=10 * ROUND_BYTES, conflicts=True))
    assert len(report.merges) == 2


def test_an_unknown_outcome_ends_the_pass() -> None:
    """Nothing more is deleted while the state of the table is unknown; the error has what was done before."""

    class Unknown(FakeTable):
        def once(self, step: str) -> object:
            if step == "manifests":
                raise CommitStateUnknown("Cannot tell")
            return super().once(step)

    table = Unknown(cold_bytes=10)
    with pytest.raises(CommitStateUnknown) as raised:
        run(table)
    assert "expiry" not in table.done
    report = raised.value.report
    assert isinstance(report, MaintenanceReport)
    assert (len(report.merges), report.deletes is None, report.manifests) == (1, False, None)
    assert report.failed == {"manifests": "Cannot tell"}


@pytest.mark.parametrize("conflicts", [False, True])
def test_a_pass_that_committed_nothing_reports_nothing_done(conflicts: bool) -> None:
    """An unknown outcome has no report when no step before it committed anything."""

    class Unknown(FakeTable):
        def once(self, step: str) -> object:
            if step == "manifests":
                raise CommitStateUnknown("Cannot tell")
            return super().once(step)

    with pytest.raises(CommitStateUnknown) as raised:
        run(Unknown(cold_bytes=10 if conflicts else 0, conflicts=conflicts))
    assert raised.value.report is None


@pytest.mark.parametrize("budget", [{"budget_bytes": -1}, {"budget_seconds": -0.5}])
def test_negative_budgets_are_refused(budget: dict[str, int]) -> None:
    """A budget below zero is a mistake."""
    with pytest.raises(ValueError, match="must be >= 0"):
        run(FakeTable(), **budget)


def test_a_pass_that_dies_is_continued_by_the_next(lake: SqlCatalog) -> None:
    """Rounds that were committed stay; the next pass merges the rest, expires and leaves nothing behind."""
    kinds = ("a", "b", "c")
    make_table(lake)
    for number, kind in enumerate(kinds * 3):
        append(lake, [number], kind)
    # one partition a round
    environment = Environment(limits=WorkLimits(round_bytes=1))
    table = icesize.open(None, "lake.db.t", catalog=lake, environment=environment)
    rounds = []

    def die() -> None:
        rounds.append(1)
        if len(rounds) == 2:
            raise KeyboardInterrupt

    with armed("files-written", die), pytest.raises(KeyboardInterrupt):
        table.maintain()
    assert operations(lake.load_table("db.t")) == ["append"] * 9 + ["replace"]
    report = table.maintain()
    assert [merge.files_removed for merge in report.merges] == [3, 3]
    assert (report.failed, report.not_started) == ({}, ())
    after = lake.load_table("db.t")
    check(after)
    assert len(live_paths(after)) == 3
    assert ids_of(lake) == list(range(9))


def test_no_pass_writes_more_than_its_budget(lake: SqlCatalog) -> None:
    """A merge larger than the budget is done in parts, pass after pass. What no budget of this size can merge is named
    with the budget that it needs."""
    make_table(lake, {})
    for number in range(9):
        lake.load_table("db.t").append(arrow([number]))
    sizes = [file.size_bytes for file in small_files(lake.load_table("db.t"))]
    table = icesize.open(None, "db.t", catalog=lake, policy={"max_small_files": 1})
    budget_bytes = 4 * max(sizes)
    none = table.maintain(max(sizes))
    assert (none.bytes_merged, none.not_started) == (0, ("merges",))
    assert any("1 merge cannot be done as a whole within" in note for note in none.merges[0].notes)
    assert table.compact(budget_bytes=max(sizes)).snapshot_ids == (), "a call of its own has the same bound"
    first = table.maintain(budget_bytes)
    assert [report.files_removed for report in first.merges] == [4]
    assert first.bytes_merged <= budget_bytes
    assert first.not_started == ("merges",)
    while (done := table.maintain(budget_bytes)).bytes_merged:
        assert done.bytes_merged <= budget_bytes
    assert len(small_files(lake.load_table("db.t"))) == 1
    assert ids_of(lake) == list(range(9))


def test_budgets_are_numbers_or_text(lake: SqlCatalog) -> None:
    """Python takes what the command line takes; other text is refused with examples, before anything is done."""
    assert Budget.of("20GiB", "25m") == Budget.of(20 * 2**30, 1500) == Budget(20 * 2**30, 1500)
    assert Budget.of("512", "1.5") == Budget(512, 1.5)
    assert Budget.of() == Budget()
    make_table(lake)
    table = icesize.open(None, "db.t", catalog=lake)
    assert "merges" in table.maintain("1GiB", "0s").not_started
    assert table.compact(budget_bytes="1GiB", budget_seconds="25m").files_removed == 0
    with pytest.raises(ValueError, match=r"'budget-seconds' \('soon'\) must be a duration such as 90s, 30m or 1h30m"):
        table.maintain(budget_seconds="soon")
    with pytest.raises(ValueError, match=r"'budget-bytes' \('512MB'\) must be a size such as 64MiB"):
        table.plan(budget_bytes="512MB")


class Counting(SqlCatalog):
    """A catalog that counts the loads of its tables."""

    loads = 0

    def load_table(self, identifier: str | tuple[str, ...]) -> Table:
        """Load a table."""
        self.loads += 1
        return super().load_table(identifier)


def test_steps_without_work_share_one_load(lake: SqlCatalog) -> None:
    """A pass that changes nothing loads the table for its first step, and where the newest state decides."""
    make_table(lake)
    for number in range(7):
        append(lake, [number], "a")
    counting = Counting("lake", **lake.properties)
    table = icesize.open(None, "lake.db.t", catalog=counting)
    assert len(table.maintain().merges) == 1
    counting.loads = 0
    report = table.maintain()
    assert (report.is_changed, report.failed, report.not_started) == (False, {}, ())
    # the first step, the commits of deletes and manifests, which find nothing, the expiry, and the search for orphans
    assert counting.loads == 1 + 2 + 2 + 2
    counting.close()


def run_jobs(lake: SqlCatalog, jobs: Sequence[Callable[..., Any]], environment: Environment | None = None) -> None:
    """A pass over `db.t` whose steps run these jobs."""
    steps = [
        replace(step, run=(job,), rounds="", name="orphans") for step, job in zip(cycle(STEPS), jobs, strict=False)
    ]
    Pass(context_of(TableHandle(lake, ("db", "t")), environment or Environment()), Budget()).run(steps)


def test_the_next_step_sees_a_commit_of_the_step_before(lake: SqlCatalog) -> None:
    """A step that commits, loses its commit or fails leaves no state for the next one."""
    make_table(lake)
    seen = list[int]()

    def look(context: TableContext) -> None:
        seen.append(len(context.load().table.metadata.snapshots))

    def change(context: TableContext, result: object) -> object:
        look(context)
        append(lake, [1], "a")
        return result

    def fail(context: TableContext) -> None:
        change(context, None)
        raise TableError("Cannot go on")

    changed = SimpleNamespace(snapshot_ids=(1,))
    lost = SimpleNamespace(snapshot_ids=(), conflicts=("another writer",))
    jobs: tuple[Callable[..., Any], ...] = (
        look, partial(change, result=changed), look, partial(change, result=lost), look, fail, look,
    )  # fmt: skip
    run_jobs(lake, jobs)
    assert seen == [0, 0, 1, 1, 2, 2, 3]


def test_a_late_pass_does_not_look_at_a_state_before_its_commit(lake: SqlCatalog) -> None:
    """A step that commits and then has no time left leaves no state; one that only looks leaves the one it loaded."""
    make_table(lake)
    seconds, seen = [0.0], list[int]()

    def look(context: TableContext) -> None:
        seen.append(len(context.load().table.metadata.snapshots))

    def merge_round(context: TableContext, bytes_left: int | None, without: Collection[PartitionKey]) -> object:
        look(context)
        append(lake, [1], "a")
        seconds[0] = 80.0
        return SimpleNamespace(internal_errors=(), snapshot_ids=(1,), bytes_written=1)

    context = context_of(TableHandle(lake, ("db", "t")), Environment(monotonic=lambda: seconds[0]))
    merges, deletes = (step for step in STEPS if step.name in ("merges", "deletes"))
    steps = [replace(merges, run=(merge_round,)), replace(deletes, run=(look,))]
    assert Pass(context, Budget(seconds=100)).run(steps).not_started == ("merges",)
    assert seen == [0, 1]


def test_a_state_is_used_by_the_next_step_for_a_minute(lake: SqlCatalog) -> None:
    """A step that looks for long leaves a state that is loaded again: its credentials may end."""
    make_table(lake)
    seconds, seen = [0.0], list[int]()

    def look(context: TableContext) -> None:
        seen.append(len(context.load().table.metadata.snapshots))
        append(lake, [1], "a")
        seconds[0] += 40

    run_jobs(lake, [look] * 4, Environment(monotonic=lambda: seconds[0]))
    assert seen == [0, 0, 2, 2]
