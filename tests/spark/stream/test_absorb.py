"""placement="absorb": new rows end up inside the small file of their partition, one file per partition if so wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import LongType
from pyspark.sql import SparkSession

from icesize.environment import Environment
from icesize.failpoints import armed
from icesize.parquet.reading.projection import BoundProjection
from icesize.planning.files import FileFact, PartitionKey
from icesize.planning.merging.contention import QUIET_MS
from icesize.report import Report
from icesize.spark.routing import write_plan
from icesize.spark.stream.sink import Sink
from tests.support.row_deletes import delete_ids
from tests.support.spark_lake import Lake, Make, counted, events, feed, forget_commit, rows_of, run, with_options


@pytest.fixture(params=[True, False], ids=["stream safe", "written once"])
def safe(request: pytest.FixtureRequest) -> bool:
    """Both forms of absorbing."""
    return bool(request.param)


def absorb(spark: SparkSession, lake: Lake, safe: bool, name: str = "events", **policy: object) -> Sink:
    """A sink that leaves one small file per partition, other policy keys as given."""
    return lake.open(spark, name, **{"max_small_files": 1, **policy}).sink("s", placement="absorb", stream_safe=safe)


def fill(spark: SparkSession, lake: Lake, sink: Sink, batches: int, hours: int = 2) -> Report:
    """Batches of ten rows over some partitions; the report of the last."""
    reports = [sink.run(counted(spark, events(range(n * 10, n * 10 + 10), hours)), n) for n in range(batches)]
    return reports[-1]


def late_rows(number: int) -> list[int]:
    """Ids of a batch that writes to hour `number // 2` and, fewer rows, to the one before."""
    hour = number // 2
    new = [i * 5 + hour for i in range(number * 40, number * 40 + 40)]
    return new + [i - 1 for i in new[:5] if hour]


def test_one_small_file_per_partition(spark: SparkSession, lake: Lake, make: Make, safe: bool) -> None:
    """k = 1 with late rows: after each batch every partition is one file, rows are exact, W tells of all bytes."""
    lake.create()
    sink = absorb(spark, lake, safe)
    ids: list[int] = []
    reports: list[Report] = []
    for number in range(7):
        new = late_rows(number)
        reports.append(sink.run(make(spark, events(new, hours=5)), number))
        ids += new
        assert set(lake.files_per_partition().values()) == {1}
        assert (reports[-1].small_files_max, reports[-1].rows) == (1, len(new))
    assert lake.rows() == rows_of(events(ids, hours=5))
    twice, fresh = (("append", "replace") if safe else ("overwrite",)), ("append",)
    assert [r.operations for r in reports] == [fresh, *[twice] * 6]
    assert [r.files_removed for r in reports] == ([0, 2, 2, 4, 2, 4, 2] if safe else [0, 1, 1, 2, 1, 2, 1])
    written = [path.stat().st_size for path in (lake.folder / "lake").rglob("*.parquet")]
    assert sum(r.bytes_written for r in reports) == sum(written)
    assert sum(r.files_added for r in reports) == len(written)
    assert lake.orphans() == set()


@pytest.mark.smoke
def test_price_of_stream_safety_is_one(spark: SparkSession, lake: Lake) -> None:
    """Both forms rewrite the same older rows; the stream-safe one writes the new ones a second time."""
    totals: dict[bool, list[float]] = {}
    for safe in (True, False):
        lake.create(f"safe_{safe}")
        reports = []
        sink = absorb(spark, lake, safe, f"safe_{safe}")
        for number in range(3):
            rows = events(range(number * 5000, number * 5000 + 5000))
            reports.append(sink.run(counted(spark, rows), number))
        totals[safe] = [r.write_amplification or 0 for r in reports]
        assert lake.rows(f"safe_{safe}") == rows_of(events(range(15_000)))
    assert totals[True] == pytest.approx([1, 3, 4], rel=0.02)
    assert totals[False] == pytest.approx([1, 2, 3], rel=0.02)


def test_stream_readers_see_new_rows_once(spark: SparkSession, lake: Lake) -> None:
    """The stream-safe form keeps what readers of appends need: each APPEND has its rows, in files that are there."""
    lake.create()
    fill(spark, lake, absorb(spark, lake, safe=True), 3)
    table = lake.table()
    appends = [s for s in table.metadata.snapshots if s.summary and s.summary.operation.value == "append"]
    seen = []
    for snapshot in appends:
        added = [
            e.data_file.file_path
            for m in snapshot.manifests(table.io)
            if m.added_snapshot_id == snapshot.snapshot_id
            for e in m.fetch_manifest_entry(table.io)
            if e.snapshot_id == snapshot.snapshot_id
        ]
        tasks = {t.file.file_path: t for t in table.scan(snapshot_id=snapshot.snapshot_id).plan_files()}
        assert set(added) <= set(tasks)
        seen += [row for path in added for row in pa.parquet.read_table(path.removeprefix("file://")).to_pylist()]
    assert sorted(row["id"] for row in seen) == list(range(30))


def test_small_files_are_few_with_more_slots(spark: SparkSession, lake: Lake, safe: bool) -> None:
    """k = 3: files are left alone until there is one too many, and nothing is written twice before."""
    lake.create()
    sink = absorb(spark, lake, safe, max_small_files=3)
    reports = [sink.run(counted(spark, events(range(n * 10, n * 10 + 10))), n) for n in range(5)]
    assert [r.operations for r in reports[:3]] == [("append",)] * 3
    assert reports[3].files_removed > 0
    assert max(r.small_files_max for r in reports) == 3
    assert lake.rows() == rows_of(events(range(50)))


def test_full_files_are_left_alone(spark: SparkSession, lake: Lake, make: Make, safe: bool) -> None:
    """A partition that outgrows the limit gets its next small file; what is well sized is never written again."""
    lake.create()
    sink = absorb(spark, lake, safe, target_file_size_bytes=16_000)
    full: set[str] = set()
    for number in range(8):
        report = sink.run(make(spark, events(range(number * 700, number * 700 + 700))), number)
        now = {f.file_path for f in lake.files() if f.file_size_in_bytes >= 12_000}
        assert full <= now
        assert sum(f.file_size_in_bytes < 12_000 for f in lake.files()) <= 1
        assert report.small_files_max <= 1
        full = now
    assert len(full) >= 2
    assert lake.rows() == rows_of(events(range(5600)))


def test_large_batch_is_not_cut_into_small_files(spark: SparkSession, lake: Lake, make: Make, safe: bool) -> None:
    """A batch of 1.2 targets is one file, not two small ones of 0.6, wherever it is written."""
    lake.create()
    sink = absorb(spark, lake, safe, target_file_size_bytes=16_000)
    report = sink.run(make(spark, events(range(3_800))), 0)
    assert [f.file_size_in_bytes >= 12_000 for f in lake.files()] == [True]
    assert (report.small_files_max, report.rows) == (0, 3_800)


def test_unpartitioned_table(
    spark: SparkSession, lake: Lake, make: Make, safe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without partitions the table is one small file after each batch, however many tasks could write."""
    lake.limits = replace(lake.limits, task_bytes=1_000)
    lake.create(by={})
    sink = absorb(spark, lake, safe)
    for number in range(3):
        assert sink.run(make(spark, events(range(number * 2000, number * 2000 + 2000))), number).small_files_max == 1
        assert len(lake.files()) == 1
    assert lake.rows() == rows_of(events(range(6_000)))


def test_format_version_1(spark: SparkSession, lake: Lake, safe: bool) -> None:
    """Tables without sequence numbers are absorbed into as well."""
    lake.create(properties={"format-version": "1"})
    sink = absorb(spark, lake, safe)
    reports = [sink.run(counted(spark, events(range(n * 10, n * 10 + 10), 2)), n) for n in range(3)]
    assert [r.files_removed for r in reports] == ([0, 4, 4] if safe else [0, 2, 2])
    assert lake.files_per_partition() == Counter({("h0",): 1, ("h1",): 1})
    assert lake.rows() == rows_of(events(range(30), 2))


def test_large_small_files_are_taken_along_by_spark(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch in hand whose older files are too much for the driver is written by Spark, with the same result."""
    lake.create()
    sink = absorb(spark, lake, safe=False)
    fill(spark, lake, sink, 2)
    lake.limits = replace(lake.limits, driver_bytes_along=0)
    sink = absorb(spark, lake, safe=False)
    monkeypatch.setattr(write_plan, "write_in_threads", None)
    assert sink.run(counted(spark, events(range(20, 30), 2)), 2).operations == ("overwrite",)
    assert lake.files_per_partition() == Counter({("h0",): 1, ("h1",): 1})
    assert lake.rows() == rows_of(events(range(30), 2))


def test_stream_and_replay(spark: SparkSession, lake: Lake, safe: bool) -> None:
    """A query over JSON files, which are not read a third time: one file per partition, a replayed batch is skipped,
    and what was kept to be counted is let go."""
    lake.create()
    feed(lake, 0, 3)
    sink = absorb(spark, lake, safe)
    run(spark, lake, sink)
    assert set(lake.files_per_partition().values()) == {1}
    snapshots = len(lake.operations())
    forget_commit(lake, 2)
    run(spark, lake, sink)
    assert sink.last_report is not None
    assert sink.last_report.already_committed
    assert len(lake.operations()) == snapshots
    feed(lake, 3, 5)
    run(spark, lake, sink)
    assert set(lake.files_per_partition().values()) == {1}
    assert lake.rows() == rows_of(events(range(150), hours=3))
    assert set(lake.operations()) == ({"append", "replace"} if safe else {"append", "overwrite"})
    assert lake.orphans() == set()
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty()


def test_pending_deletes(spark: SparkSession, lake: Lake, make: Make, safe: bool) -> None:
    """Deletes of a file that is absorbed are applied, which the report says; nothing deleted comes back, nor counts as
    a row that was there before."""
    lake.create("t")
    sink = absorb(spark, lake, safe, "t")
    fill(spark, lake, sink, 2)
    key, gone = PartitionKey(0, ("h0",)), [*range(0, 16, 2)]
    delete_ids(lake.catalog, FileFact("", 0, 0, key), gone)
    report = sink.run(make(spark, events(range(20, 30), 2)), 2)
    assert lake.files_per_partition("t") == Counter({("h0",): 1, ("h1",): 1})
    assert (report.rows, report.rows_deleted, report.ineligible) == (10, 8, {})
    assert report.bytes_ingested > 0
    assert lake.rows("t") == rows_of(events([i for i in range(30) if i not in gone], 2))


def once(action: Callable[[], object]) -> Callable[[], object]:
    """The action the first time, nothing later."""
    left = [action]
    return lambda: left.pop()() if left else None


def test_victim_removed_in_between(spark: SparkSession, lake: Lake, make: Make, safe: bool) -> None:
    """Another writer removes a small file between plan and commit: its rows stay gone and the new rows land once, as
    an append beside it or by being written again with what is left."""
    lake.create()
    sink = absorb(spark, lake, safe)
    fill(spark, lake, sink, 2)
    with armed("files-written", once(lambda: lake.table().delete("hour == 'h0'"))):
        report = sink.run(make(spark, events(range(20, 30), 2)), 2)
    assert report.operations == (("append", "replace") if safe else ("overwrite",))
    [conflict] = report.conflicts
    dropped = "merge of 2 files dropped" if safe else "the batch was written again"
    assert conflict == f"{dropped}: another writer removed a file of it"
    assert lake.files_per_partition() == Counter({("h0",): 1, ("h1",): 1})
    assert lake.rows() == rows_of(events([*range(1, 20, 2), *range(20, 30)], 2))
    assert lake.orphans() == set()


def rewrite(lake: Lake) -> None:
    """Another writer writes the rows of a partition anew."""
    table = lake.table()
    table.overwrite(table.scan(row_filter="hour == 'h0'").to_arrow(), overwrite_filter="hour == 'h0'")


def test_a_partition_that_others_just_rewrote_is_appended_to(spark: SparkSession, lake: Lake, make: Make) -> None:
    """The second try leaves the partition in which another writer came first alone, and absorbs in the others."""
    lake.create()
    sink = absorb(spark, lake, safe=False)
    fill(spark, lake, sink, 1)
    with armed("files-written", lambda: rewrite(lake)):
        report = sink.run(make(spark, events(range(10, 20), 2)), 1)
    assert report.operations == ("overwrite",)
    assert report.conflicts == ("the batch was written again: another writer removed a file of it",)
    assert report.skipped["CONTESTED"] == 1
    assert lake.files_per_partition() == Counter({("h0",): 2, ("h1",): 1})
    assert lake.rows() == rows_of(events(range(20), 2))
    assert lake.orphans() == set()


def test_inputs_removed_again_and_again(spark: SparkSession, lake: Lake, make: Make) -> None:
    """Rows that were written together with others three times in vain are appended alone."""
    lake.create()
    # what others did seems long ago, so that only lost races tell of them
    later = Environment(now_ms=lambda: Environment().now_ms() + QUIET_MS)
    sink = with_options(absorb(spark, lake, safe=False), environment=later)
    fill(spark, lake, sink, 1)
    with armed("files-written", lambda: rewrite(lake)):
        report = sink.run(make(spark, events(range(10, 20), 2)), 1)
    assert report.operations == ("append",)
    again = "the batch was written again: another writer removed a file of it"
    assert report.conflicts == (*[again] * 3, "nothing was absorbed: others came first 3 times")
    assert lake.files_per_partition() == Counter({("h0",): 2, ("h1",): 2})
    assert lake.rows() == rows_of(events(range(20), 2))
    assert lake.orphans() == set()
    # the partition is left to the others for some batches, then rows go in again
    reports = [sink.run(make(spark, events(range(n * 10, n * 10 + 10), 2)), n) for n in range(2, 8)]
    assert reports[0].skipped["CONTESTED"] > 0
    assert reports[-1].small_files_max == 1
    assert lake.rows() == rows_of(events(range(80), 2))


def test_older_rows_that_would_change_never_stop_the_stream(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file cannot be rewritten without another value: new rows are appended alone, and the report says why."""
    lake.create()
    sink = absorb(spark, lake, safe=False)
    fill(spark, lake, sink, 1, hours=1)
    right = BoundProjection.__call__

    def without_texts(self: BoundProjection, rows: pa.Table) -> pa.Table:
        done = right(self, rows)
        return done.set_column(2, done.schema.field(2), pa.nulls(len(done), done.schema.types[2]))

    with monkeypatch.context() as patch:
        patch.setattr(BoundProjection, "__call__", without_texts)
        report = sink.run(counted(spark, events(range(10, 20))), 1)
    assert report.operations == ("append",)
    (why,) = report.conflicts
    assert why.startswith("nothing was absorbed: Cannot rewrite rows: column 'text' has 20 entries")
    assert lake.rows() == rows_of(events(range(20)))
    assert lake.orphans() == set()
    assert sink.run(counted(spark, events(range(20, 30))), 2).small_files_max == 1
    assert lake.rows() == rows_of(events(range(30)))


def test_rival_append_in_between(spark: SparkSession, lake: Lake, safe: bool) -> None:
    """Another writer's append in the meantime is no conflict: both stay, and the next batch absorbs it too."""
    lake.create()
    sink = absorb(spark, lake, safe)
    fill(spark, lake, sink, 2, hours=1)
    rival = events(range(100, 110))
    rival = rival.cast(rival.schema.set(0, rival.schema.field("id").with_nullable(False)))
    with armed("files-written", once(lambda: lake.table().append(rival))):
        report = sink.run(counted(spark, events(range(20, 30))), 2)
    assert (report.conflicts, report.files_removed) == ((), 2 if safe else 1)
    assert lake.files_per_partition() == Counter({("h0",): 2})
    sink(counted(spark, events(range(30, 40))), 3)
    assert lake.files_per_partition() == Counter({("h0",): 1})
    assert lake.rows() == rows_of(events([*range(40), *range(100, 110)]))


def test_schema_changed_in_between(spark: SparkSession, lake: Lake, make: Make, safe: bool) -> None:
    """A column that is added while the batch runs: the rows land, as an append or written again with it."""
    lake.create()
    sink = absorb(spark, lake, safe)
    fill(spark, lake, sink, 2, hours=1)

    def add_column() -> None:
        with lake.table().update_schema() as update:
            update.add_column("more", LongType())

    with armed("files-written", once(add_column)):
        report = sink.run(make(spark, events(range(20, 30))), 2)
    assert report.operations == (("append",) if safe else ("overwrite",))
    assert "schema or partition spec changed" in report.conflicts[0]
    assert [row[:3] for row in lake.rows()] == rows_of(events(range(30)))
    assert sink.run(make(spark, events(range(30, 40))), 3).small_files_max == 1
    assert lake.orphans() == set()


def test_over_budget(spark: SparkSession, lake: Lake, safe: bool) -> None:
    """What the budget does not pay for is left beside the new rows and named; a batch without that bound absorbs it."""
    lake.create()
    sink = absorb(spark, lake, safe, merge_budget_bytes=1)
    reports = [sink.run(counted(spark, events(range(n * 30, n * 30 + 30), 3)), n) for n in range(2)]
    assert sorted(lake.files_per_partition().values()) == [2, 2, 2]
    assert (reports[1].small_files_max, reports[1].skipped["OVER_BUDGET"]) == (2, 6)
    assert any("3 merges cannot be done as a whole within 1 B" in note for note in reports[1].notes)
    report = absorb(spark, lake, safe).run(counted(spark, events(range(60, 90), 3)), 2)
    assert report.small_files_max == 1
    assert set(lake.files_per_partition().values()) == {1}
    assert lake.rows() == rows_of(events(range(90), 3))


def test_deadline(spark: SparkSession, lake: Lake) -> None:
    """Only a deadline that somebody has set stops merges, which begin when the rows are written; the append lands."""
    lake.create()
    sink = absorb(spark, lake, safe=True, merge_deadline_ms=0)
    reports = [sink.run(counted(spark, events(range(n * 40, n * 40 + 40), hours=40)), n) for n in range(2)]
    assert [n for n in reports[1].notes if "merges stopped at the deadline ('merge-deadline-ms')" in n]
    assert reports[1].small_files_max == 2
    assert lake.rows() == rows_of(events(range(80), hours=40))
    assert lake.orphans() == set()


def test_damaged_small_file(spark: SparkSession, lake: Lake, make: Make, safe: bool) -> None:
    """A small file that cannot be read stays where it is and is named; new rows land, other partitions are absorbed."""
    lake.create()
    sink = absorb(spark, lake, safe)
    fill(spark, lake, sink, 2)
    input_file = next(f.file_path for f in lake.files() if f.partition[0] == "h1")
    Path(input_file.removeprefix("file://")).unlink()
    report = sink.run(make(spark, events(range(20, 30), 2)), 2)
    assert (report.rows, report.small_files_max) == (10, 2)
    assert [note for note in report.notes if input_file.rsplit("/", 1)[1] in note]
    assert lake.files_per_partition() == Counter({("h0",): 1, ("h1",): 2})
    assert lake.orphans() == set()


def test_failure_after_writing_leaves_nothing(spark: SparkSession, lake: Lake, make: Make, safe: bool) -> None:
    """An error between writing and commit removes all new files, leaves the old ones, and a retry is exact."""
    lake.create()
    sink = absorb(spark, lake, safe)
    fill(spark, lake, sink, 2)
    before = lake.on_disk()
    rows = make(spark, events(range(20, 30), 2))
    for point in ("files-written", "before-swap"):
        with armed(point, _fail), pytest.raises(KeyboardInterrupt):
            sink(rows, 2)
        assert lake.on_disk() == before
    sink(rows, 2)
    assert lake.rows() == rows_of(events(range(30), 2))


def _fail() -> Any:
    raise KeyboardInterrupt


def test_committed_batch_is_not_written_again(spark: SparkSession, lake: Lake, safe: bool) -> None:
    """An error after the commit: nothing is removed, and the replayed batch is skipped."""
    lake.create()
    sink = absorb(spark, lake, safe)
    fill(spark, lake, sink, 2)
    with armed("after-swap", _fail), pytest.raises(KeyboardInterrupt):
        sink(counted(spark, events(range(20, 30), 2)), 2)
    assert sink.run(counted(spark, events(range(20, 30), 2)), 2).already_committed
    assert lake.rows() == rows_of(events(range(30), 2))
    assert lake.orphans() == set()


def test_empty_batch(spark: SparkSession, lake: Lake, safe: bool) -> None:
    """A batch without rows absorbs nothing and commits nothing."""
    lake.create()
    sink = absorb(spark, lake, safe)
    fill(spark, lake, sink, 1)
    report = sink.run(counted(spark, events([])), 1)
    assert (report.rows, report.snapshot_ids) == (0, ())
    assert lake.operations() == ["append"]
