"""Clustering after the batches of a stream (`cluster="inline"`) and beside them (`cluster="async"`)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.types import StringType
from pyspark.sql import SparkSession

from icesize import failpoints
from icesize.environment import WorkLimits
from icesize.errors import EngineUnavailable
from icesize.failpoints import FailpointReached
from icesize.parquet.files.data_file import Results
from icesize.report import Report
from icesize.sized_table import SizedTable
from icesize.spark.clustering import run
from icesize.spark.engine.jobs import ALL_CORES, Cores
from icesize.spark.engine.worker import RewriteGroups
from icesize.spark.stream import process_state
from icesize.spark.stream.options import SinkOptions
from icesize.spark.stream.sink import Sink
from tests.support.background import ROOT, WAIT_S, Gate, background_of, hang, in_background, wait_until_idle
from tests.support.spark_lake import EVENTS, SCHEMA, Lake, Rows, await_file, counted, events, rows_of, write_json
from tests.support.tables import local

ROWS = 2_000
"""Of them a file has 10 kB: it is not small, so merges leave it alone."""

POLICY = {"target_file_size_bytes": 12_000, "max_small_files": 3}
WANTED = {"icesize.cluster.by": "text"}
TEXT_ID = EVENTS.find_field("text").field_id


def batch_of(number: int, hours: int = 1) -> pa.Table:
    """Rows for one file in each of so many hours."""
    count = ROWS * hours
    return events(range(number * count, number * count + count), hours=hours)


def rows_until(batches: int, hours: int = 1) -> Rows:
    return rows_of(events(range(batches * ROWS * hours), hours=hours))


def few(first: int, hour: str, count: int) -> pa.Table:
    """Rows of one hour, for a small file."""
    rows = events(range(first, first + count))
    return rows.set_column(1, "hour", pa.array([hour] * count))


def ids_of(lake: Lake) -> list[int]:
    return sorted(row[0] for row in lake.rows())


def fill(spark: SparkSession, sink: Sink, batches: range, hours: int = 1) -> list[Report]:
    return [sink.run(counted(spark, batch_of(n, hours)), n) for n in batches]


def seed(lake: Lake, batches: int, hours: int = 1) -> None:
    """The rows of the first batches, each brought by another writer."""
    table = lake.table()
    for number in range(batches):
        table.append(batch_of(number, hours).cast(schema_to_pyarrow(EVENTS)))


def opened(lake: Lake, spark: SparkSession, **policy: object) -> SizedTable:
    return lake.open(spark, **(POLICY | policy))


def clusterings(lake: Lake) -> int:
    """Commits that clustered files, told by the names of these."""
    table, found = lake.table(), 0
    for snapshot in table.metadata.snapshots:
        entries = [e for m in snapshot.manifests(table.io) for e in m.fetch_manifest_entry(table.io)]
        found += any(e.snapshot_id == snapshot.snapshot_id and is_clustered(e.data_file) for e in entries)
    return found


def is_clustered(file: DataFile) -> bool:
    return file.file_path.rsplit("/", 1)[1].startswith("k")


def overlaps(files: Sequence[DataFile]) -> int:
    """Pairs of files, of one partition, whose values of `text` overlap."""
    bounds = [
        (from_bytes(StringType(), f.lower_bounds[TEXT_ID]), from_bytes(StringType(), f.upper_bounds[TEXT_ID]))
        for f in files
    ]
    return sum(a[0] < b[1] and b[0] < a[1] for n, a in enumerate(bounds) for b in bounds[:n])


def clustered(lake: Lake, hour: str = "h0") -> list[DataFile]:
    """Live files of an hour that were clustered."""
    return [f for f in lake.files() if f.partition[0] == hour and is_clustered(f)]


def nth(number: int, action: Callable[[], object]) -> Callable[[], None]:
    """Acts when it is called for the `number`th time."""
    calls = iter(range(1, 1000))

    def act() -> None:
        if next(calls) == number:
            action()

    return act


def beside(point: str, action: Callable[[], object]) -> AbstractContextManager[None]:
    """Acts each time that the background, and nobody else, comes to a point."""
    return failpoints.armed(point, lambda: in_background() and action())


def fail() -> None:
    raise OSError("no space left")


def renamed(rows: pa.Table) -> pa.Table:
    return rows.rename_columns(["words" if name == "text" else name for name in rows.column_names])


@pytest.mark.parametrize("cluster", ["inline", "async"])
def test_a_renamed_column_stays_clustered_and_a_dropped_one_is_told(
    spark: SparkSession, lake: Lake, cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The sink goes on under the new name; without the column it says so in one sentence, and batches land."""
    lake.create()
    seed(lake, 4)
    opened(lake, spark).cluster(["text"], "zorder")
    lake.table().update_schema().rename_column("text", "words").commit()
    heard: list[Report] = []
    sink = opened(lake, spark).sink("s", cluster=cluster, listener=heard.append)
    for n in range(4, 8):
        sink.run(counted(spark, renamed(batch_of(n))), n)
        if cluster == "async":
            wait_until_idle(sink)
    done = [r.clustering["columns"] for r in heard if r.batch_id is None and r.clustering]
    assert done == [["words"]] * (clusterings(lake) - 1) != []
    assert ids_of(lake) == list(range(8 * ROWS))
    with lake.table().update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("words")
    for n in (8, 9):
        assert sink.run(counted(spark, batch_of(n).drop_columns(["text"])), n).operations == ("append",)
        if cluster == "async":
            wait_until_idle(sink)
    why = f"clustering is off: column 'text' (field {TEXT_ID}) was dropped; run `icesize cluster TABLE` with --by"
    assert [note.startswith(why) for r in heard for note in r.notes if " is off" in note][:1] == [True]
    assert (why in caplog.text, "Traceback" in caplog.text) == (True, False)


# clustering after a batch


@pytest.mark.smoke
@pytest.mark.parametrize("merge", ["inline", "off"])
def test_inline_clusters_when_due(spark: SparkSession, lake: Lake, merge: str) -> None:
    """Once files overlap enough a batch is followed by a commit of its own, told in its report and to the listener."""
    lake.create(properties=WANTED)
    heard: list[Report] = []
    sink = opened(lake, spark).sink("s", merge=merge, cluster="inline", listener=heard.append)
    reports = fill(spark, sink, range(6))
    due = [r for r in reports if r.clustering]
    alone = [r for r in heard if r.batch_id is None]
    assert 1 <= len(due) < 6, "a set is left alone until enough has come"
    assert len(alone) == len(due) == clusterings(lake)
    assert [r.batch_id for r in heard if r.batch_id is not None] == list(range(6))
    for told, own in zip(due, alone, strict=True):
        assert told.operations == ("append",)
        assert own.operations == ("replace",)
        assert told.clustering == own.clustering
        assert told.notes == (f"clustered: {own.files_removed} files became {own.files_added}",)
        assert told.clustering is not None
        before, after = (told.clustering[when]["text"]["point_files"] for when in ("before", "after"))
        assert after < before
    assert [r.notes for r in reports if not r.clustering] == [()] * (6 - len(due))
    assert overlaps(clustered(lake)) == 0
    assert len(clustered(lake)) >= 2
    assert lake.operations().count("append") == 6
    assert lake.rows() == rows_until(6)
    assert lake.orphans() == set()
    assert sink.last_report is reports[-1]


def test_inline_pays_no_more_than_the_batch_allows(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass takes away no more bytes than merges of the batch might; by default four times those of the batch."""
    monkeypatch.setattr("icesize.policy.MIN_MERGE_BUDGET_BYTES", 0)
    lake.create(properties=WANTED)
    seed(lake, 8)
    default, tight = (opened(lake, spark, merge_budget_bytes=budget) for budget in (None, 30_000))
    before = {f.file_path: f.file_size_in_bytes for f in lake.files()}
    [report] = fill(spark, default.sink("s", cluster="inline"), range(8, 9))
    gone = before.keys() - {f.file_path for f in lake.files()}
    assert gone
    assert 3 * report.bytes_ingested < sum(before[path] for path in gone) <= 4 * report.bytes_ingested
    before = {f.file_path: f.file_size_in_bytes for f in lake.files()}
    fill(spark, tight.sink("s", cluster="inline"), range(9, 10))
    gone = before.keys() - {f.file_path for f in lake.files()}
    assert 10_000 < sum(before[path] for path in gone) <= 30_000
    assert lake.rows() == rows_until(10)


def damage(lake: Lake) -> None:
    """Cuts a file of the table in its middle."""
    path = local(lake.files()[0].file_path)
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes(len(content) - 200) + content[-100:])


def recreate(lake: Lake) -> None:
    lake.catalog.drop_table("db.events")
    lake.create(properties=WANTED)


@pytest.mark.parametrize(
    ("point", "number", "act", "message"),
    [
        (
            "after-swap",
            1,
            lambda lake: lake.table().transaction().remove_properties("icesize.cluster.by").commit_transaction(),
            "clustering is off: the table's property 'icesize.cluster.by' does not say by which columns; call",
        ),
        ("after-swap", 1, damage, "clustering failed: merge of 4 files in 'p0_hour=h0' dropped: Cannot read "),
        ("files-written", 2, lambda lake: fail(), "clustering failed: OSError: no space left"),
        ("before-swap", 2, lambda lake: fail(), "clustering failed: OSError: no space left"),
        (
            "after-swap",
            1,
            recreate,
            "clustering failed: TableError: Cannot cluster 'lake.db.events': the table was dropped and recreated",
        ),
    ],
    ids=["no property", "damaged file", "files-written", "before-swap", "another table"],
)
def test_inline_failure_fails_no_batch(
    spark: SparkSession,
    lake: Lake,
    caplog: pytest.LogCaptureFixture,
    point: str,
    number: int,
    act: Callable[[Lake], object],
    message: str,
) -> None:
    """What keeps clustering from being done is in the report of the batch, which is committed; no file is left."""
    lake.create(properties=WANTED)
    table = opened(lake, spark)
    seed(lake, 3)
    with failpoints.armed(point, nth(number, lambda: act(lake))):
        [report] = fill(spark, table.sink("s", cluster="inline"), range(3, 4))
    [note] = report.notes
    assert note.startswith(message)
    assert (report.operations, report.rows) == (("append",), ROWS)
    assert clusterings(lake) == 0
    if act is recreate:
        return
    assert lake.operations() == ["append"] * 4
    assert lake.orphans() == set()
    if act is not damage:
        assert lake.rows() == rows_until(4)


def test_inline_loses_its_files_to_a_rival(spark: SparkSession, lake: Lake) -> None:
    """Files that somebody else clusters meanwhile: the group is dropped and named, nothing is lost or left."""
    lake.create(properties=WANTED)
    table = opened(lake, spark)
    seed(lake, 3)
    with failpoints.armed("files-written", nth(2, lambda: table.cluster())):
        [report] = fill(spark, table.sink("s", cluster="inline"), range(3, 4))
    [note] = report.notes
    assert note.startswith("clustering failed: merge of 4 files")
    assert note.endswith("files dropped: another writer removed a file of it")
    assert clusterings(lake) == 1
    assert lake.rows() == rows_until(4)
    assert lake.orphans() == set()


def test_replayed_batch_is_not_followed_by_clustering(spark: SparkSession, lake: Lake) -> None:
    """A batch whose process died after its commit adds nothing when it comes again; the next one clusters, once."""
    lake.create(properties=WANTED)
    sink = opened(lake, spark).sink("s", cluster="inline")
    seed(lake, 3)

    def die() -> None:
        raise FailpointReached("after-swap")

    with failpoints.armed("after-swap", die), pytest.raises(FailpointReached):
        fill(spark, sink, range(3, 4))
    [again] = fill(spark, sink, range(3, 4))
    assert (again.already_committed, again.clustering, clusterings(lake)) == (True, None, 0)
    [after] = fill(spark, sink, range(4, 5))
    assert after.clustering is not None
    [again] = fill(spark, sink, range(4, 5))
    assert (again.already_committed, again.clustering, clusterings(lake)) == (True, None, 1)
    assert lake.rows() == rows_until(5)
    assert lake.orphans() == set()


# clustering beside the batches


@pytest.mark.parametrize("merge", ["inline", "async", "off"])
def test_async_clusters_beside_the_batches(spark: SparkSession, lake: Lake, merge: str) -> None:
    """Batches only bring rows; once drained nothing is due, rows are exact and nothing is left over."""
    lake.create(properties=WANTED)
    heard: list[Report] = []
    table = opened(lake, spark)
    sink = table.sink("s", merge=merge, cluster="async", listener=heard.append)
    reports = fill(spark, sink, range(4), hours=2)
    last = sink.drain(WAIT_S)
    assert last is not None
    assert {r.clustering for r in reports if r.clustering} == set()
    assert [r.merge_lag_batches is None for r in reports] == [merge != "async"] * 4
    passes = [r for r in heard if r.clustering]
    assert {(r.batch_id, r.operations) for r in passes} == {(None, ("replace",))}
    assert len(passes) == clusterings(lake) >= 1
    plan = table.plan_clustering()
    assert plan is not None
    assert [group for group in plan.groups if not any(v.size_bytes < 9_000 for v in group.inputs)] == []
    assert [overlaps(clustered(lake, hour)) for hour in ("h0", "h1")] == [0, 0]
    assert lake.rows() == rows_until(4, hours=2)
    assert lake.operations().count("append") == 4
    assert lake.orphans() == set()
    assert sink.drain(WAIT_S) is last, "nothing is due any more"


class Moves:
    """Stands where the background has rows moved: counts it, and calls `before` in its thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.cores: list[Cores] = []
        self.before: Callable[[], object] = lambda: None
        self.run_clusters = run.run_clusters
        monkeypatch.setattr(run, "run_clusters", self)

    def __call__(self, *arguments: Any, cores: Cores, **options: Any) -> Results:
        self.calls += 1
        self.cores.append(cores)
        done = self.run_clusters(*arguments, cores=cores, **options)
        self.before()
        return done


def test_batches_do_not_wait(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """While rows are moved batches commit; what was moved is committed on top of them and not moved again."""
    lake.create(properties=WANTED)
    moves, gate = Moves(monkeypatch), Gate()
    seed(lake, 3)
    sink = opened(lake, spark).sink("s", cluster="async")
    moves.before = gate
    fill(spark, sink, range(3, 4))
    gate.wait()
    reports = fill(spark, sink, range(4, 6))
    assert [(r.operations, r.notes) for r in reports] == [(("append",), ())] * 2
    assert clusterings(lake) == 0
    moves.before = lambda: None
    gate.open()
    sink.drain(WAIT_S)
    assert lake.operations()[:7] == ["append"] * 6 + ["replace"]
    assert (moves.calls, set(moves.cores)) == (clusterings(lake), {Cores.half(spark)})
    assert lake.rows() == rows_until(6)
    assert lake.orphans() == set()


def test_passes_go_on_until_nothing_is_due(spark: SparkSession, lake: Lake) -> None:
    """What one pass may not pay for is done by the next, without another batch; `drain` waits for all of them."""
    lake.limits = WorkLimits(round_bytes=50_000)
    lake.create(properties=WANTED)
    heard: list[Report] = []
    table = opened(lake, spark)
    seed(lake, 3, hours=3)
    sink = table.sink("s", cluster="async", listener=heard.append)
    fill(spark, sink, range(3, 4), hours=3)
    sink.drain(WAIT_S)
    passes = [r for r in heard if r.clustering]
    assert len(passes) == clusterings(lake) >= 3
    assert {r.partitions_touched for r in passes} == {1}
    assert [overlaps(clustered(lake, f"h{n}")) for n in range(3)] == [0] * 3
    assert table.plan_clustering() is not None
    assert lake.rows() == rows_until(4, hours=3)
    assert lake.orphans() == set()


def test_failure_is_told_and_holds_no_merge_back(
    spark: SparkSession, lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """A table that does not say by what: the next report tells it, merges go on, the next trigger is let go by."""
    lake.create()
    heard: list[Report] = []
    sink = lake.open(spark, max_small_files=1).sink("s", merge="async", cluster="async", listener=heard.append)
    reports = []
    for n in range(6):
        reports.append(sink.run(counted(spark, few(n * 600, "h0", 600)), n))
        wait_until_idle(sink)
    note = (
        "clustering is off: the table's property 'icesize.cluster.by' does not say by which columns; "
        "call cluster(by=[...]) once"
    )
    assert [r.notes for r in reports] == [(), (note,), (), (note,), (), ()]
    assert [r.merge_lag_batches for r in reports] == [1] * 6
    assert (note in caplog.text, "Traceback" in caplog.text) == (True, False)
    assert lake.operations() == ["append", *["append", "replace"] * 5], "each batch had its merge"
    assert [r.notes for r in heard if r.batch_id is None and not r.snapshot_ids] == [(note,)] * 3
    assert ids_of(lake) == list(range(6 * 600))
    assert lake.orphans() == set()


def test_drain_tries_again_what_failed(spark: SparkSession, lake: Lake) -> None:
    """Storage that fails under a pass leaves no file; who drains has it tried again at once."""
    lake.create(properties=WANTED)
    seed(lake, 3)
    sink = opened(lake, spark).sink("s", cluster="async")
    with beside("files-written", fail):
        fill(spark, sink, range(3, 4))
        wait_until_idle(sink)
    assert background_of(sink).take_notes() == ("background clustering failed: OSError: no space left",)
    assert lake.orphans() == set()
    report = sink.drain(WAIT_S)
    assert report is not None
    assert (report.operations, clusterings(lake)) == (("replace",), 1)
    assert lake.rows() == rows_until(4)


def test_stop_removes_what_was_written(spark: SparkSession, lake: Lake) -> None:
    """A stopped pass ends without a commit and without its files; the next batch starts another."""
    lake.create(properties=WANTED)
    seed(lake, 3)
    sink = opened(lake, spark).sink("s", cluster="async")
    background, written = background_of(sink), threading.Event()

    def hold() -> None:
        written.set()
        assert background._cancelled.wait(WAIT_S)

    with beside("files-written", hold):
        fill(spark, sink, range(3, 4))
        assert written.wait(WAIT_S)
        assert len(lake.orphans()) >= 2
        sink.stop()
    assert lake.orphans() == set()
    assert lake.operations() == ["append"] * 4
    [after] = fill(spark, sink, range(4, 5))
    assert after.notes == ()
    sink.drain(WAIT_S)
    assert clusterings(lake) == 1
    assert lake.rows() == rows_until(5)


def test_stop_ends_the_passes(spark: SparkSession, lake: Lake) -> None:
    """A commit under way is finished, and the next pass, which would be due, does not begin."""
    lake.limits = WorkLimits(round_bytes=50_000)
    lake.create(properties=WANTED)
    seed(lake, 3, hours=3)
    sink = opened(lake, spark).sink("s", cluster="async")
    background, committed, looks = background_of(sink), threading.Event(), []

    def hold() -> None:
        committed.set()
        assert background._cancelled.wait(WAIT_S)

    with beside("background", lambda: looks.append(1)), beside("after-swap", hold):
        fill(spark, sink, range(3, 4), hours=3)
        assert committed.wait(WAIT_S)
        sink.stop()
    assert (clusterings(lake), len(looks)) == (1, 1)
    sink.drain(WAIT_S)
    assert clusterings(lake) == 1, "nothing was triggered since"
    fill(spark, sink, range(4, 5), hours=3)
    sink.drain(WAIT_S)
    assert clusterings(lake) >= 3
    assert lake.rows() == rows_until(5, hours=3)
    assert lake.orphans() == set()


@pytest.mark.slow
def test_stop_cancels_the_job(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Spark job under way is cancelled, and nobody waits for its tasks."""
    lake.create(properties=WANTED)
    seed(lake, 3)
    lake.limits = WorkLimits(driver_merge_bytes=0)
    begun = tmp_path / "begun"
    monkeypatch.setattr(RewriteGroups, "__reduce__", lambda self: (hang, (str(begun),)), raising=False)
    sink = opened(lake, spark).sink("s", cluster="async")
    fill(spark, sink, range(3, 4))
    await_file(begun, WAIT_S)
    sink.stop()
    assert background_of(sink).take_notes() == ()
    assert lake.operations() == ["append"] * 4
    assert lake.orphans() == set()


@pytest.mark.parametrize("cluster", [pytest.param("inline", marks=pytest.mark.slow), "async"])
def test_jobs_have_a_description(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, cluster: str
) -> None:
    """Large groups are jobs of Spark; in the background with a tag of their own, not in the group of the query."""
    lake.create(properties=WANTED)
    seed(lake, 3)
    moves, context = Moves(monkeypatch), spark.sparkContext
    lake.limits = WorkLimits(driver_merge_bytes=0)
    seen: list[Any] = []
    names = ("spark.jobGroup.id", "spark.job.description")
    moves.before = lambda: seen.append((set(context.getJobTags()), *(context.getLocalProperty(n) for n in names)))
    sink = opened(lake, spark).sink("s", cluster=cluster)
    context.setJobGroup("query", "the query")
    try:
        fill(spark, sink, range(3, 4))
        sink.drain(WAIT_S)
    finally:
        for name in names:
            context._jsc.setLocalProperty(name, None)
    beside_it = ({background_of(sink)._tag}, None, "icesize: clustering of lake.db.events in the background")
    assert seen == [beside_it if cluster == "async" else (set(), "query", "the query")]
    assert moves.cores == [Cores.half(spark) if cluster == "async" else ALL_CORES]
    assert overlaps(clustered(lake)) == 0
    assert lake.rows() == rows_until(4)
    assert lake.orphans() == set()


def test_merges_take_the_files_first(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files that a batch merges while they are clustered: the group is dropped and named, the rows are there."""
    lake.create(properties=WANTED)
    moves, gate = Moves(monkeypatch), Gate()
    moves.before = gate
    table = opened(lake, spark, cold_after_commits=2)
    without = table.sink("s", merge="off", cluster="async")
    for n, hour in enumerate(["h0", "h0", "h0", "h1", "h1"]):
        without(counted(spark, few(n * 2_000, hour, 1_600)), n)
    gate.wait()
    assert len(lake.orphans()) >= 2
    sink = table.sink("s", cluster="async")
    late = sink.run(counted(spark, few(10_000, "h0", 1_600)), 5)
    assert late.operations == ("append", "replace")
    moves.before = lambda: None
    gate.open()
    wait_until_idle(sink)
    [note] = [n for n in background_of(sink).take_notes() if "dropped" in n]
    assert note.startswith("background clustering: merge of 3 files")
    assert note.endswith("files dropped: another writer removed a file of it")
    assert ids_of(lake) == [i for n in range(6) for i in range(n * 2_000, n * 2_000 + 1_600)]
    assert lake.orphans() == set()


def test_small_files_of_a_live_partition_are_left_alone(spark: SparkSession, lake: Lake) -> None:
    """They are merges' as long as rows come; a partition gone cold is clustered whole."""
    lake.create(properties=WANTED)
    sink = opened(lake, spark, cold_after_commits=2).sink("s", merge="off", cluster="async")
    for n in range(5):
        sink(counted(spark, few(n * 2_000, "h0", 1_200)), n)
    assert sink.drain(WAIT_S) is None, "nothing was due"
    for n in range(5, 7):
        sink(counted(spark, few(n * 2_000, "h1", 1_200)), n)
    report = sink.drain(WAIT_S)
    assert report is not None
    assert (report.files_removed, lake.files_per_partition()[("h1",)]) == (5, 2)
    assert len(clustered(lake)) == lake.files_per_partition()[("h0",)] == report.files_added
    assert len(ids_of(lake)) == 7 * 1_200
    assert lake.orphans() == set()


@pytest.mark.parametrize("cluster", ["inline", "async"])
def test_contested_partitions_are_left_alone(spark: SparkSession, lake: Lake, cluster: str) -> None:
    """A partition whose rows somebody else has just changed is not clustered, and the report says so; others are."""
    lake.create(properties=WANTED)
    seed(lake, 3, hours=2)
    lake.table().delete("id = 0")
    heard: list[Report] = []
    sink = opened(lake, spark).sink("s", cluster=cluster, listener=heard.append)
    fill(spark, sink, range(3, 4), hours=2)
    sink.drain(WAIT_S)
    [report] = [r for r in heard if r.batch_id is None]
    assert report.skipped["CONTESTED"] == 4
    assert (clustered(lake, "h0"), len(clustered(lake, "h1")) >= 2) == ([], True)
    assert ids_of(lake) == list(range(1, 4 * 2 * ROWS))
    assert lake.orphans() == set()


def test_another_table_gets_nothing(spark: SparkSession, lake: Lake) -> None:
    """A table that takes the name while rows are moved gets no commit and no files, nor does the next trigger help."""
    lake.create(properties=WANTED)
    seed(lake, 3)
    sink = opened(lake, spark).sink("s", cluster="async")
    with beside("files-written", nth(1, lambda: recreate(lake))):
        fill(spark, sink, range(3, 4))
        wait_until_idle(sink)
    sink.drain(WAIT_S)
    first, second = background_of(sink).take_notes()
    assert "dropped and recreated" in first
    assert "TableError: Cannot cluster 'lake.db.events': the table was dropped and recreated" in second
    assert lake.rows() == []
    assert not any(name.startswith("k") for name in lake.on_disk())


@pytest.mark.slow
def test_a_query_that_ends_leaves_it_running(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The query is over while rows are still moved: they are committed all the same."""
    lake.create(properties=WANTED)
    for n in range(4):
        write_json(tmp_path / "in", n, batch_of(n))
    moves, gate = Moves(monkeypatch), Gate()
    moves.before = gate
    lake.limits = WorkLimits(driver_merge_bytes=0)
    sink = opened(lake, spark).sink("s", cluster="async")
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    query = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
    started = query.trigger(availableNow=True).start()
    gate.wait()
    assert started.awaitTermination(WAIT_S)
    assert clusterings(lake) == 0
    gate.open()
    report = sink.drain(WAIT_S)
    assert report is not None
    assert (report.operations, clusterings(lake) >= 1) == (("replace",), True)
    assert lake.rows() == rows_until(4)
    assert lake.orphans() == set()


@pytest.mark.slow
def test_driver_that_ends_takes_the_pass_along(java: None, lake: Lake) -> None:
    """The interpreter ends under a pass: it exits as usual and leaves neither files nor half a commit."""
    lake.create(properties=WANTED)
    seed(lake, 4)
    command = [sys.executable, "-m", "tests.support.cluster_child", str(lake.folder)]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=2 * WAIT_S
    )
    assert (done.returncode, done.stdout) == (0, "4 clustered\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert lake.orphans() == set()
    assert lake.operations() == ["append"] * 5
    assert ids_of(lake) == [*range(4 * ROWS), 1_000_000]


@pytest.mark.slow
@pytest.mark.parametrize("merge", ["inline", "async"])
def test_nothing_is_lost_whatever_fails(spark: SparkSession, lake: Lake, merge: str) -> None:
    """Batches and passes that fail here and there, and a rival that clusters too: each row is there once."""
    lake.create(properties=WANTED)
    table = opened(lake, spark, cold_after_commits=3)
    sink = table.sink("s", merge=merge, cluster="async")
    for n in range(16):
        rows = counted(spark, batch_of(n, hours=2) if n % 3 else few(2 * n * ROWS, f"h{n % 4}", 500))
        point = ("files-written", "before-swap", "after-swap", "planned", "background")[n % 5]
        with failpoints.armed(point, nth(1 + n % 2, fail)):
            try:
                sink(rows, n)
            except OSError:
                sink(rows, n)
            if n % 4 == 3:
                wait_until_idle(sink)
        if n % 7 == 6:
            table.cluster()
    sink.drain(WAIT_S)
    assert ids_of(lake) == [
        i for n in range(16) for i in range(2 * n * ROWS, 2 * n * ROWS + (2 * ROWS if n % 3 else 500))
    ]
    assert clusterings(lake) >= 2
    assert lake.operations().count("append") == 16
    assert lake.orphans() == set()


# what is refused


def test_choices() -> None:
    """A way of clustering that there is not is refused when the sink is made."""
    with pytest.raises(ValueError, match=r"^'cluster' \('nonsense'\) must be one of 'off', 'inline', 'async'$"):
        SinkOptions(cluster="nonsense")


def test_refused_on_connect() -> None:
    """Nobody could wait for it there; the sentence says what to do instead."""
    sink = Sink(process_state.TableSource("lake.db.events"), "s", SinkOptions(cluster="async"))
    with pytest.raises(EngineUnavailable, match=r"use 'inline' for 'merge' and 'cluster', or 'off' and `icesize maint"):
        sink(SimpleNamespace(sparkSession=SimpleNamespace()), 0)  # type: ignore[arg-type]
