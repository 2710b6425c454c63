"""Merges beside batches: the bound on small files, its price, and everything that may drop a merge."""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import BinaryType, DecimalType, LongType, NestedField
from pyspark.sql import SparkSession

from icesize.environment import Environment, WorkLimits
from icesize.parquet.files.data_file import MergeFailure, MergeResult
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.planning.files import FileFact, PartitionKey
from icesize.planning.plan import MergeTask
from icesize.report import Report
from icesize.spark.clustering.in_spark import InSpark
from icesize.spark.engine import merge_job
from icesize.spark.engine.merge_job import MergeRun, run_merges
from tests.support.spark_lake import Lake, Make, counted, events, rows_of

K = 3


def local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


def hours_of(batch: int) -> list[int]:
    """Ids of a batch that writes to hour `batch // 4` and, fewer rows, to the one before."""
    hour = batch // 4
    new = [i * 5 + hour for i in range(batch * 40, batch * 40 + 40)]
    return new + [i - 1 for i in new[:5] if hour]


@pytest.mark.slow
def test_files_stay_bounded(spark: SparkSession, lake: Lake, make: Make) -> None:
    """P1: after each of 15 batches every touched partition holds at most k small files, rows are exact, W is told."""
    lake.create()
    sink = lake.open(spark, cold_after_commits=4).sink("s")
    ids: list[int] = []
    reports: list[Report] = []
    for batch in range(15):
        new = hours_of(batch)
        report = sink.run(make(spark, events(new, hours=5)), batch)
        ids += new
        files = lake.files_per_partition()
        touched = {(f"h{i % 5}",) for i in new}
        assert max(files[partition] for partition in touched) <= K
        assert report.small_files_max == max(files[partition] for partition in touched)
        reports.append(report)
    assert lake.rows() == rows_of(events(ids, hours=5))
    assert set(lake.operations()) == {"append", "replace"}
    assert files[("h0",)] == 1, "a partition without rows for four commits is finished"
    written = [path.stat().st_size for path in (lake.folder / "lake").rglob("*.parquet")]
    assert sum(r.bytes_written for r in reports) == sum(written)
    assert sum(r.files_added for r in reports) == len(written)
    assert max(r.write_amplification or 0 for r in reports) > 1
    assert lake.orphans() == set()


@pytest.mark.smoke
def test_cold_partition_is_finished(spark: SparkSession, lake: Lake) -> None:
    """A partition that gets no rows for `cold-after-commits` commits is merged to one file, once."""
    lake.create()
    sink = lake.open(spark, cold_after_commits=2).sink("s")
    for batch in range(3):
        sink(counted(spark, events(range(batch * 10, batch * 10 + 10))), batch)
    assert lake.files_per_partition()[("h0",)] == 3
    removed = [sink.run(counted(spark, events([batch * 2 + 1], hours=2)), batch).files_removed for batch in range(3, 7)]
    assert removed[:3] == [0, 3, 0]
    assert lake.files_per_partition()[("h0",)] == 1


def test_merge_off(spark: SparkSession, lake: Lake) -> None:
    """merge="off" appends only; a later compact merges all, and then has nothing left to do."""
    lake.create()
    table = lake.open(spark)
    sink = table.sink("s", merge="off")
    for batch in range(6):
        sink(counted(spark, events(range(batch * 10, batch * 10 + 10))), batch)
    assert lake.operations() == ["append"] * 6
    assert lake.files_per_partition() == Counter({("h0",): 6})
    report = table.compact()
    assert (report.files_removed, report.files_added, report.operations) == (6, 1, ("replace",))
    assert table.compact().snapshot_ids == ()
    assert lake.rows() == rows_of(events(range(60)))


@pytest.mark.parametrize("damage", ["corrupt", "missing"])
def test_damaged_file_drops_its_group_only(spark: SparkSession, lake: Lake, damage: str, make: Make) -> None:
    """A corrupt or missing data file: its merge is dropped and named, the other merge and the append land."""
    lake.create()
    sink = lake.open(spark, max_small_files=2).sink("s")
    for batch in range(2):
        sink(counted(spark, events(range(batch * 10, batch * 10 + 10), hours=2)), batch)
    input_file = next(f.file_path for f in lake.files() if f.partition[0] == "h1")
    if damage == "corrupt":
        local(input_file).write_bytes(b"x" * local(input_file).stat().st_size)
    else:
        local(input_file).unlink()
    report = sink.run(make(spark, events(range(20, 30), hours=2)), 2)
    assert report.operations == ("append", "replace")
    assert (report.rows, report.files_removed) == (10, 2)
    [note] = [n for n in report.notes if "dropped" in n]
    assert "p0_hour=h1" in note
    assert os.path.basename(input_file) in note
    assert lake.files_per_partition()[("h1",)] == 3
    assert lake.orphans() == set()


def test_deadline_drops_merges(spark: SparkSession, lake: Lake) -> None:
    """With 'merge-deadline-ms' 0 merges that have not begun when the write job ends are dropped; the append lands."""
    lake.create()
    table = lake.open(spark, max_small_files=2, merge_deadline_ms=0)
    sink = table.sink("s")
    for batch in range(2):
        sink(counted(spark, events(range(batch * 40, batch * 40 + 40), hours=40)), batch)
    # new rows are merged too, so merges begin when the deadline is over
    absorbing = table.sink("s", placement="absorb")
    report = absorbing.run(counted(spark, events(range(80, 120), hours=40)), 2)
    assert report.rows == 40
    assert [n for n in report.notes if "merges stopped at the deadline ('merge-deadline-ms')" in n]
    assert report.small_files_max == 3
    assert lake.rows() == rows_of(events(range(120), hours=40))
    assert lake.orphans() == set()


def test_partitions_of_an_old_spec_are_merged_when_they_are_cold(spark: SparkSession, lake: Lake) -> None:
    """As cold partitions of the current one: within the budget of a batch, in their own partition."""
    lake.create()
    sink = lake.open(spark, cold_after_commits=1).sink("s")
    for batch in range(3):
        sink(counted(spark, events([batch])), batch)
    with lake.table().update_spec() as update:
        update.add_identity("text")
    reports = [sink.run(counted(spark, events([batch])), batch) for batch in range(3, 7)]
    assert sum(report.files_removed for report in reports) >= 3
    assert lake.files_per_partition()[("h0",)] == 1
    assert lake.rows() == rows_of(events(range(7)))


def test_spark_moves_rows_into_the_current_spec(spark: SparkSession, lake: Lake) -> None:
    """Tasks write the files of the new partitions; later batches go on there."""
    lake.create()
    lake.limits = replace(lake.limits, driver_merge_bytes=0, driver_copy_bytes=0, local_work_bytes=0)
    table = lake.open(spark)
    sink = table.sink("s")
    for batch in range(3):
        sink(counted(spark, events(range(batch * 20, batch * 20 + 20), hours=2)), batch)
    with lake.table().update_spec() as update:
        update.remove_field("p0_hour").add_field("id", "bucket[3]", "bucket")
    assert table.compact(into_current_spec=True).files_removed > 6
    assert lake.files_per_partition() == {(0,): 1, (1,): 1, (2,): 1}
    sink(counted(spark, events([60])), 3)
    assert lake.rows() == rows_of(pa.concat_tables([events(range(60), hours=2), events([60])]))
    assert lake.orphans() == set()


def test_ineligible_files_are_named(spark: SparkSession, lake: Lake) -> None:
    """Small files of an older partition spec without its column stay; the report names their partition and how many."""
    lake.create()
    sink = lake.open(spark).sink("s")
    with lake.table().update_spec() as update:
        update.add_identity("text")
    for batch in range(4):
        sink(counted(spark, events([batch])), batch)
    with lake.table().update_spec() as update:
        update.remove_field("text")
    with lake.table().update_schema() as change:
        change.delete_column("text")
    report = sink.run(counted(spark, events([9])).drop("text"), 4)
    assert list(report.ineligible.values()) == [1] * 4
    assert report.skipped["OLD_SPEC"] == 4
    assert "ineligible" in str(report)


def _tasks(table: Table) -> list[MergeTask]:
    groups: dict[PartitionKey, list[FileFact]] = {}
    for task in table.scan().plan_files():
        key = PartitionKey(task.file.spec_id, tuple(task.file.partition._data))
        fact = FileFact(task.file.file_path, task.file.file_size_in_bytes, task.file.record_count, key)
        groups.setdefault(key, []).append(fact)
    return [MergeTask(tuple(files), key) for key, files in sorted(groups.items(), key=lambda item: repr(item[0]))]


@pytest.fixture
def four_groups(spark: SparkSession, lake: Lake) -> tuple[Lake, list[MergeTask], Any]:
    """A table with three files in each of four partitions, the merges of all, and how to write its files."""
    lake.create()
    table = lake.open(spark)
    for batch in range(3):
        table.append(counted(spark, events(range(batch * 40, batch * 40 + 40), hours=4)))
    return lake, _tasks(lake.table()), table._handle.load().settings()


def test_large_groups_run_as_a_spark_job(spark: SparkSession, four_groups: tuple[Lake, list[MergeTask], Any]) -> None:
    """Groups above the driver's limit are merged by Spark, each with its own result; a damaged group fails alone."""
    lake, tasks, settings = four_groups
    small = tasks[2]
    limits = WorkLimits(driver_merge_bytes=small.size_bytes)
    large = [t if i == 2 else MergeTask(t.inputs * 2, t.partition) for i, t in enumerate(tasks)]
    local(tasks[0].inputs[0].path).write_bytes(b"broken")
    heard: list[int] = []
    owner = owner_of(settings)
    results = run_merges(spark, dict(enumerate(large)), settings, owner, limits=limits, progress=heard.append)
    failed, *merged = (results[number] for number in range(4))
    assert isinstance(failed, MergeFailure)
    assert os.path.basename(tasks[0].inputs[0].path) in failed.why
    assert [r.rows_out for r in merged if isinstance(r, MergeResult)] == [60, 30, 60]
    assert sorted(heard) == sorted(t.size_bytes for t in large)
    names = {os.path.basename(f.path) for r in merged if isinstance(r, MergeResult) for f in r.files}
    assert lake.orphans() == names


@pytest.mark.parametrize("room_bytes", [0, -1])
def test_a_local_master_merges_in_the_driver_between_batches(
    spark: SparkSession, four_groups: tuple[Lake, list[MergeTask], Any], room_bytes: int
) -> None:
    """Without a batch to write, large groups need no Spark job up to a limit of work, and a damaged one fails alone."""
    lake, tasks, settings = four_groups
    work_bytes = sum(task.size_bytes for task in tasks)
    limits = WorkLimits(driver_merge_bytes=-1, local_work_bytes=work_bytes + room_bytes)
    local(tasks[0].inputs[0].path).write_bytes(b"broken")
    progress: list[int] = []
    context, group = spark.sparkContext, f"merges with {room_bytes}"
    context.setJobGroup(group, "merges")
    owner = owner_of(settings)
    try:
        results = InSpark(spark, limits).merge(dict(enumerate(tasks)), settings, owner, progress.append)
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            context._jsc.setLocalProperty(name, None)
    assert bool(context.statusTracker().getJobIdsForGroup(group)) is (room_bytes < 0)
    failed, *merged = (results[number] for number in range(4))
    assert isinstance(failed, MergeFailure)
    assert [r.rows_out for r in merged if isinstance(r, MergeResult)] == [30] * 3
    assert sorted(progress) == sorted(task.size_bytes for task in tasks)
    owner.abandon()
    assert lake.orphans() == set()


def owner_of(settings: WriteSettings) -> Uncommitted:
    return Uncommitted(settings.storage, "x-0")


def test_job_that_fails_does_not_lose_finished_groups(
    spark: SparkSession, four_groups: tuple[Lake, list[MergeTask], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the Spark job fails as a whole, groups merged in the driver still count, and nothing of theirs leaks."""
    lake, tasks, settings = four_groups
    large = [tasks[0], MergeTask(tasks[1].inputs * 2, tasks[1].partition)]
    limits = WorkLimits(driver_merge_bytes=tasks[0].size_bytes)
    owner = owner_of(settings)
    run = MergeRun(spark, settings, owner, Environment(limits=limits))
    monkeypatch.setattr("icesize.spark.engine.worker.RewriteGroups.__reduce__", _broken, raising=False)
    run.start(dict(enumerate(large)))
    results = run.finish(60)
    assert isinstance(results[0], MergeResult)
    assert "Cannot merge" in str(results[1])
    owner.abandon()
    assert lake.orphans() == set()


def _broken(self: object) -> object:
    return (_fail_to_load, ())


def _fail_to_load() -> object:
    raise ValueError("cannot be loaded")


@pytest.mark.internal_error
def test_error_that_nobody_foresaw_stops_no_other_merges(
    spark: SparkSession, four_groups: tuple[Lake, list[MergeTask], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merges that begin later are done all the same, and the results say what the error was."""
    lake, tasks, settings = four_groups
    merge = merge_job.merge

    def failing(group: MergeTask, *rest: Any) -> MergeResult:
        if group is tasks[0]:
            raise ValueError("not foreseen")
        return merge(group, *rest)

    monkeypatch.setattr(merge_job, "merge", failing)
    owner = owner_of(settings)
    run = MergeRun(spark, settings, owner, Environment())
    run.start({0: tasks[0]})
    assert run.finish(60) == {0: MergeFailure("not foreseen", is_internal=True)}
    run.start({1: tasks[1]})
    assert isinstance(run.finish(60)[1], MergeResult)
    owner.abandon()
    assert lake.orphans() == set()


def test_stopped_run_removes_its_files(spark: SparkSession, four_groups: tuple[Lake, list[MergeTask], Any]) -> None:
    """Stopping joins its thread, twice is no harm; what it had written goes with its owner."""
    lake, tasks, settings = four_groups
    owner = owner_of(settings)
    run = MergeRun(spark, settings, owner, Environment())
    run.start(dict(enumerate(tasks)))
    run.stop()
    run.stop()
    owner.abandon()
    assert [t.name for t in threading.enumerate() if t.name == "icesize-merges"] == []
    assert lake.orphans() == set()


def test_nothing_to_merge_starts_no_thread(spark: SparkSession, lake: Lake) -> None:
    """A run without groups has no thread and no results."""
    lake.create()
    settings = lake.open(spark)._handle.load().settings()
    run = MergeRun(spark, settings, owner_of(settings), Environment())
    run.start({})
    assert run.finish(0) == {}


def test_decimals_and_binaries_survive_merges(spark: SparkSession, lake: Lake) -> None:
    """Values of files that were merged more than once are those that were written, NULL and extremes too."""
    fields = (DecimalType(38, 10), BinaryType(), LongType())
    schema = Schema(*(NestedField(i, name, kind) for i, (name, kind) in enumerate(zip("dxn", fields, strict=True), 1)))
    lake.create(schema=schema, by={})
    sink = lake.open(spark, max_small_files=2).sink("s")
    numbers = [Decimal("1234567890123456789012345678.0000000001"), Decimal("-0.0000000001"), None]
    expected: list[pa.Table] = []
    for batch in range(6):
        columns = {"d": pa.array(numbers, pa.decimal128(38, 10)), "x": pa.array([b"", b"\x00\xff", None])}
        expected.append(pa.table(columns | {"n": pa.array([batch, -(2**63), None], pa.int64())}))
        sink(counted(spark, expected[-1]), batch)
    assert lake.operations().count("replace") >= 2
    assert lake.rows() == rows_of(pa.concat_tables(expected))
