"""Merges beside the batches (`merge="async"`): what they promise, how they fail, how they end; expiry by the sink."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from icesize import failpoints
from icesize.environment import Environment, WorkLimits
from icesize.errors import EngineUnavailable
from icesize.events import BatchCommitted
from icesize.parquet.files.data_file import Results
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.planning.plan import MergeTask
from icesize.report import Report
from icesize.spark.engine import jobs, merge_job, session
from icesize.spark.engine.worker import RewriteGroups
from icesize.spark.stream import background as background_module
from icesize.spark.stream import process_state
from icesize.spark.stream.options import SinkOptions
from icesize.spark.stream.sink import Sink
from tests.support.background import ROOT, WAIT_S, Gate, background_of, hang, in_background, wait_until_idle
from tests.support.spark_lake import Lake, await_file, counted, events, rows_of, with_options

OWN_RULES = {"history.expire.max-snapshot-age-ms": "1", "history.expire.min-snapshots-to-keep": "1"}


class Merges:
    """Stands where the background runs its merges: counts them, and calls `before` in their thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = self.running = self.most_running = 0
        self.before: Callable[[], object] = lambda: None
        monkeypatch.setattr(background_module, "run_merges", self)

    def __call__(
        self,
        spark: SparkSession,
        groups: Mapping[int, MergeTask],
        settings: WriteSettings,
        owner: Uncommitted,
        **options: Any,
    ) -> Results:
        self.calls += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            done = merge_job.run_merges(spark, groups, settings, owner, **options)
            self.before()
            return done
        finally:
            self.running -= 1


def fill(spark: SparkSession, sink: Sink, batches: range, hours: int = 1) -> list[Report]:
    """Batch n holds ten rows from id 10 n on."""
    return [sink.run(counted(spark, events(range(n * 10, n * 10 + 10), hours=hours)), n) for n in batches]


@pytest.mark.smoke
def test_bound_is_reached_beside_the_batches(spark: SparkSession, lake: Lake) -> None:
    """Batches only append; once drained every partition is within k, rows are exact and nothing is left over."""
    lake.create()
    sink = lake.open(spark).sink("s", merge="async")
    reports = fill(spark, sink, range(10), hours=2)
    assert {r.operations for r in reports} == {("append",)}
    last = sink.drain(WAIT_S)
    assert last is not None
    assert last.batch_id is None
    assert max(lake.files_per_partition().values()) <= 3
    assert lake.rows() == rows_of(events(range(100), hours=2))
    assert lake.operations().count("append") == 10
    assert lake.operations().count("replace") >= 1
    assert set(lake.operations()) == {"append", "replace"}
    assert lake.orphans() == set()
    assert fill(spark, sink, range(10, 11))[0].merge_lag_batches == 1


def test_cold_partition_is_finished(spark: SparkSession, lake: Lake) -> None:
    """A partition without rows for `cold-after-commits` commits is merged to one file, once, and not one sooner."""
    lake.create()
    sink = lake.open(spark, cold_after_commits=2).sink("s", merge="async")
    fill(spark, sink, range(3))
    removed = []
    for batch in range(3, 7):
        sink(counted(spark, events([2 * batch + 1], hours=2)), batch)
        report = sink.drain(WAIT_S)
        removed.append(report.files_removed if report else None)
    assert removed[:3] == [0, 3, 0]
    assert lake.files_per_partition()[("h0",)] == 1


def test_files_are_named_after_stream_and_batch(spark: SparkSession, lake: Lake) -> None:
    """Files of a merge carry the stream and the newest batch, so that what a killed run leaves is told."""
    lake.create()
    sink = lake.open(spark).sink("s", merge="async")
    fill(spark, sink, range(4))
    names = {f.file_path.rsplit("/", 1)[1] for f in lake.files()}
    sink.drain(WAIT_S)
    [merged] = {f.file_path.rsplit("/", 1)[1] for f in lake.files()} - names
    [hashed] = {name.split("-")[0] for name in names}
    assert merged.startswith(f"{hashed}-3-")


def test_one_run_at_a_time(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kicks during a run make one run after it, however many; the reports tell the lag."""
    lake.create()
    fake, gate = Merges(monkeypatch), Gate()
    sink = lake.open(spark).sink("s", merge="async")
    fill(spark, sink, range(3))
    sink.drain(WAIT_S)
    assert fake.calls == 0
    fake.before = gate
    reports = fill(spark, sink, range(3, 4))
    gate.wait()
    reports += fill(spark, sink, range(4, 9))
    assert [r.merge_lag_batches for r in reports] == [1, 2, 3, 4, 5, 6]
    assert len([t for t in threading.enumerate() if t.name == "icesize-background"]) == 1
    gate.open()
    sink.drain(WAIT_S)
    assert (fake.calls, fake.most_running) == (2, 1)
    assert background_of(sink).lag == 0
    assert max(lake.files_per_partition().values()) <= 3
    assert lake.rows() == rows_of(events(range(90)))


def test_replayed_and_empty_batches(spark: SparkSession, lake: Lake) -> None:
    """A replayed batch looks after what an earlier process left, adding nothing to the lag; an empty one is silent."""
    lake.create()
    table = lake.open(spark)
    fill(spark, table.sink("s", merge="off"), range(5))
    sink = table.sink("s", merge="async")
    [replayed] = fill(spark, sink, range(4, 5))
    assert (replayed.already_committed, replayed.merge_lag_batches) == (True, 0)
    wait_until_idle(sink)
    assert lake.files_per_partition()[("h0",)] <= 3
    empty = sink.run(counted(spark, events([])), 5)
    assert (empty.snapshot_ids, empty.merge_lag_batches) == ((), 0)
    assert [t.name for t in threading.enumerate() if t.name == "icesize-background"] == []


def test_lag_only_where_merges_are_made_in_the_background(spark: SparkSession, lake: Lake) -> None:
    """Other sinks have no lag, nothing to drain and nothing to stop."""
    lake.create()
    sink = lake.open(spark).sink("s")
    assert fill(spark, sink, range(1))[0].merge_lag_batches is None
    assert sink.drain() is None
    sink.stop()


def test_rival_takes_the_files(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge whose files another writer removed is dropped and told; the partition is left alone for a while."""
    lake.create()
    fake, gate = Merges(monkeypatch), Gate()
    fake.before = gate
    table = lake.open(spark)
    sink = table.sink("s", merge="async")
    fill(spark, sink, range(4))
    gate.wait()
    assert table.compact().files_removed == 4
    gate.open()
    report = sink.drain(WAIT_S)
    assert report is not None
    [conflict] = report.conflicts
    assert conflict.endswith("files dropped: another writer removed a file of it")
    [after] = fill(spark, sink, range(4, 5))
    assert after.notes == (f"background merge: {conflict}",)
    report = sink.drain(WAIT_S)
    assert report is not None
    assert report.skipped == {"CONTESTED": 2}
    assert lake.rows() == rows_of(events(range(50)))
    assert lake.orphans() == set()


def test_lost_race_leaves_the_lock_to_batches(spark: SparkSession, lake: Lake) -> None:
    """While a run waits for another attempt at its commit, batches can commit."""
    lake.create()
    pauses: list[bool] = []

    def sleep(seconds: float) -> None:
        pauses.append(process_state.stream_state(sink.source, "s").commit_lock.locked())

    sink = with_options(lake.open(spark).sink("s", merge="async"), environment=Environment(sleep=sleep))
    rival = lake.open(spark).sink("rival", merge="off")
    once = iter([True])

    def overtake() -> None:
        if in_background() and next(once, False):
            rival(counted(spark, events([1000])), 0)

    with failpoints.armed("before-swap", overtake):
        fill(spark, sink, range(4))
        report = sink.drain(WAIT_S)
    assert report is not None
    assert report.operations == ("replace",)
    assert pauses == [False]
    assert lake.rows() == rows_of(events([*range(40), 1000]))
    assert lake.orphans() == set()


def test_batches_and_runs_do_not_commit_at_once(spark: SparkSession, lake: Lake) -> None:
    """A run whose files are written waits for the commit of a batch, and the other way round."""
    lake.create()
    sink = lake.open(spark).sink("s", merge="async")
    commit_lock = process_state.stream_state(sink.source, "s").commit_lock
    inside: list[str] = []
    seen: list[tuple[bool, int, bool]] = []

    def enter() -> None:
        inside.append(threading.current_thread().name)
        seen.append((in_background(), len(inside), commit_lock.locked()))

    with failpoints.armed("before-swap", enter), failpoints.armed("after-swap", inside.pop):
        fill(spark, sink, range(12), hours=2)
        sink.drain(WAIT_S)
    assert set(seen) == {(False, 1, True), (True, 1, True)}
    assert lake.rows() == rows_of(events(range(120), hours=2))


def test_failure_is_told_by_the_next_report(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that fails fails no batch: the next report names it, the lag grows, the next trigger is let go by."""
    lake.create()
    fake = Merges(monkeypatch)
    heard: list[Report] = []

    def fail() -> None:
        raise OSError("no space left")

    fake.before = fail
    sink = lake.open(spark).sink("s", merge="async", listener=heard.append)
    fill(spark, sink, range(3))
    sink.drain(WAIT_S)
    fill(spark, sink, range(3, 4))
    wait_until_idle(sink)
    note = "background merge failed: OSError: no space left"
    assert [r.notes for r in heard if r.batch_id is None] == [(note,)]
    assert "merge in the background failed, the batches are committed" in caplog.text
    assert lake.orphans() == set()

    [after] = fill(spark, sink, range(4, 5))
    assert (after.notes, after.merge_lag_batches) == ((note,), 2)
    wait_until_idle(sink)
    assert fake.calls == 1, "one trigger is let go by after the first failure"

    report = sink.drain(WAIT_S)
    assert report is not None
    assert (fake.calls, report.notes) == (2, (note,))
    fake.before = lambda: None
    report = sink.drain(WAIT_S)
    assert report is not None
    assert report.operations == ("replace",), "who drains does not wait for the pause to end"
    assert [(r.notes, r.merge_lag_batches) for r in fill(spark, sink, range(5, 6))] == [((note,), 1)]
    assert lake.rows() == rows_of(events(range(60)))


def test_no_thread_to_be_had(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started the batch is committed all the same, and the next report says so."""
    lake.create()
    sink = lake.open(spark).sink("s", merge="async")

    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(background_module.threading, "Thread", NoThread)
        background = background_of(sink)
        background.trigger(_trigger(spark, sink), batches=1)
    assert sink.drain(WAIT_S) is not None
    assert fill(spark, sink, range(1))[0].notes == ("background merge failed: RuntimeError: can't start new thread",)


def _trigger(spark: SparkSession, sink: Sink) -> background_module.Trigger:
    state = process_state.stream_state(sink.source, sink.stream_id)
    return sink._trigger(spark, state.open(spark, sink.source), 0)


def test_dropped_table_is_left_alone(spark: SparkSession, lake: Lake) -> None:
    """A table that took the name of the one that was opened is not merged."""
    lake.create()
    sink = lake.open(spark).sink("s", merge="async")
    trigger = _trigger(spark, sink)
    lake.catalog.drop_table("db.events")
    lake.create()
    background_of(sink).trigger(trigger)
    wait_until_idle(sink)
    [note] = background_of(sink).take_notes()
    assert "TableError: Cannot merge in 'lake.db.events': the table was dropped and recreated" in note


def test_drain_has_a_timeout(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who will not wait for ever is told; the run goes on."""
    lake.create()
    fake, gate = Merges(monkeypatch), Gate()
    fake.before = gate
    sink = lake.open(spark).sink("s", merge="async")
    fill(spark, sink, range(4))
    gate.wait()
    with pytest.raises(TimeoutError, match="merges in the background have not ended after 0 s"):
        sink.drain(0)
    gate.open()
    report = sink.drain(WAIT_S)
    assert report is not None
    assert report.operations == ("replace",)


def test_stop_removes_what_was_written(spark: SparkSession, lake: Lake) -> None:
    """A stopped run ends without a commit and without its files; the next batch starts another."""
    lake.create()
    sink = lake.open(spark).sink("s", merge="async")
    background, written = background_of(sink), threading.Event()

    def hold() -> None:
        if in_background():
            written.set()
            assert background._cancelled.wait(WAIT_S)

    with failpoints.armed("files-written", hold):
        fill(spark, sink, range(4))
        assert written.wait(WAIT_S)
        assert len(lake.orphans()) == 1
        sink.stop()
    assert lake.orphans() == set()
    assert lake.operations() == ["append"] * 4
    [after] = fill(spark, sink, range(4, 5))
    assert (after.notes, after.merge_lag_batches) == ((), 2)
    sink.drain(WAIT_S)
    assert lake.files_per_partition()[("h0",)] <= 3
    assert lake.rows() == rows_of(events(range(50)))


def test_stop_cancels_the_job(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Spark job under way is cancelled, and nobody waits for its tasks."""
    lake.create()
    lake.limits = WorkLimits(driver_merge_bytes=0)
    begun = tmp_path / "begun"
    monkeypatch.setattr(RewriteGroups, "__reduce__", lambda self: (hang, (str(begun),)), raising=False)
    sink = lake.open(spark).sink("s", merge="async")
    fill(spark, sink, range(4))
    await_file(begun, WAIT_S)
    sink.stop()
    assert background_of(sink).take_notes() == ()
    assert lake.operations() == ["append"] * 4
    assert lake.orphans() == set()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["exit", "spark"])
def test_driver_that_ends_takes_the_run_along(java: None, lake: Lake, end: str) -> None:
    """A driver that ends, or stops Spark, under a run: it exits as usual and leaves neither files nor half a commit."""
    lake.create()
    command = [sys.executable, "-m", "tests.support.background_child", str(lake.folder), end]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=2 * WAIT_S
    )
    assert (done.returncode, done.stdout) == (0, "5 files\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert lake.orphans() == set()
    assert lake.operations() == ["append"] * 4
    assert [row[0] for row in lake.rows()] == [0, 1, 2, 3]


def test_jobs_of_a_run_are_its_own(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large merges are Spark jobs on half of the cores, in the query's pool, with a tag and a description of their own,
    not in its group.
    """
    lake.create()
    fake = Merges(monkeypatch)
    slots: list[int] = []
    balanced = jobs.balanced

    def recorded(*arguments: Any) -> Any:
        slots.append(arguments[-1])
        return balanced(*arguments)

    monkeypatch.setattr(jobs, "balanced", recorded)
    lake.limits = WorkLimits(driver_merge_bytes=0)
    sink = lake.open(spark).sink("s", merge="async")
    context = spark.sparkContext
    names = ("spark.scheduler.pool", "spark.jobGroup.id", "spark.job.description")
    seen: list[Any] = []
    fake.before = lambda: seen.append((set(context.getJobTags()), *(context.getLocalProperty(name) for name in names)))
    context.setLocalProperty("spark.scheduler.pool", "etl")
    context.setJobGroup("query", "the query")
    try:
        fill(spark, sink, range(4))
        assert sink.drain(WAIT_S) is not None
    finally:
        for name in names:
            context._jsc.setLocalProperty(name, None)
    assert (session.parallelism(spark), slots) == (2, [1])
    tag = background_of(sink)._tag
    assert seen == [({tag}, "etl", None, "icesize: merges of lake.db.events in the background")]
    assert lake.files_per_partition()[("h0",)] <= 3
    assert lake.rows() == rows_of(events(range(40)))


def test_pickled_sink_shares_the_run(spark: SparkSession, lake: Lake) -> None:
    """A copy of the sink in this process kicks and drains the same merges."""
    lake.create()
    sink = lake.open(spark).sink("s", merge="async")
    copy = cloudpickle.loads(cloudpickle.dumps(sink))
    fill(spark, copy, range(5))
    assert sink.drain(WAIT_S) is copy.drain(WAIT_S) is not None
    assert lake.files_per_partition()[("h0",)] <= 3


def test_listener_and_observer_get_each_report(
    spark: SparkSession, lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """Both get the report of each batch and of each run in the background that did something, and an error of the
    listener harms neither."""
    lake.create()
    heard, observed = list[Report](), list[Report]()

    def observe(event: object) -> None:
        if isinstance(event, BatchCommitted):
            observed.append(event.report)

    def listen(report: Report) -> None:
        heard.append(report)
        raise ZeroDivisionError

    lake.observe = observe

    sink = lake.open(spark).sink("s", merge="async", listener=listen)
    fill(spark, sink, range(4))
    last = sink.drain(WAIT_S)
    assert [r.batch_id for r in heard if r.batch_id is not None] == [0, 1, 2, 3]
    assert [r for r in heard if r.batch_id is None] == [last]
    assert observed == heard
    assert sink.last_report is not last
    assert "the listener failed after merges were committed" in caplog.text


def test_two_streams_one_table(spark: SparkSession, lake: Lake) -> None:
    """Two streams that both merge beside their batches lose no row and leave no file, whoever wins."""
    lake.create()
    table = lake.open(spark)
    sinks = [table.sink(name, merge="async") for name in "ab"]
    for batch in range(6):
        for i, sink in enumerate(sinks):
            first = 1000 * i + 10 * batch
            sink(counted(spark, events(range(first, first + 10))), batch)
    for sink in sinks:
        sink.drain(WAIT_S)
    assert lake.rows() == rows_of(events([*range(60), *range(1000, 1060)]))
    assert lake.orphans() == set()
    assert lake.operations().count("append") == 12
    assert lake.files_per_partition()[("h0",)] < 12


def test_refused_on_connect() -> None:
    """Spark Connect runs the sink where nobody could wait for it: refused before anything is done."""
    sink = Sink(process_state.TableSource("lake.db.events"), "s", SinkOptions(merge="async"))
    assert session.is_connect(SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(EngineUnavailable, match="Cannot merge in the background on Spark Connect: "):
        sink(SimpleNamespace(sparkSession=SimpleNamespace()), 0)  # type: ignore[arg-type]


def test_hive_catalog_is_opened_again(lake: Lake) -> None:
    """A catalog that carries one call at a time is opened once more for the thread; others are shared."""

    class HiveCatalog(SqlCatalog):
        pass

    assert background_module._for_another_thread(lake.catalog) is lake.catalog
    hive = HiveCatalog(lake.catalog.name, **lake.catalog.properties)
    other = background_module._for_another_thread(hive)
    assert isinstance(other, HiveCatalog)
    assert other is not hive
    assert (other.name, other.properties) == (hive.name, hive.properties)
    for each in (hive, other):
        each.close()


@pytest.mark.parametrize("merge", ["inline", "async"])
def test_sink_expires_every_n_batches(spark: SparkSession, lake: Lake, merge: str) -> None:
    """With `expire_every` the table's own rules are applied after each Nth batch id, and the reports say so."""
    lake.create(properties=OWN_RULES)
    sink = lake.open(spark, small_file_limit_bytes=0).sink("s", merge=merge, expire_every=3)
    counts, told = [], []
    for batch in range(7):
        [report] = fill(spark, sink, range(batch, batch + 1))
        wait_until_idle(sink)
        counts.append(len(lake.table().metadata.snapshots))
        told.append([n for n in report.notes if "expired" in n])
    assert counts == [1, 2, 1, 2, 3, 1, 2]
    expected: list[list[str]] = [[] for _ in range(7)]
    for batch, of in ((2, 3), (5, 4)):
        line = next(n for n in told[batch + (merge == "async")])
        assert line.startswith(f"expired {of - 1} of {of} snapshots, deleted ")
        expected[batch + (merge == "async")] = [line]
    assert told == expected
    assert lake.rows() == rows_of(events(range(70)))


def test_expiry_counts_batch_ids(spark: SparkSession, lake: Lake) -> None:
    """A query started anew for each batch expires too, as does one whose due batch id was left out."""
    lake.create(properties=OWN_RULES)
    for batch in range(3):
        with lake.unremembered() as unknown:
            fill(spark, unknown.open(spark).sink("s", merge="off", expire_every=3), range(batch, batch + 1))
    assert len(lake.table().metadata.snapshots) == 1
    sink = lake.open(spark).sink("s", merge="off", expire_every=3)
    fill(spark, sink, range(3, 5))
    assert len(lake.table().metadata.snapshots) == 3
    fill(spark, sink, range(7, 8))
    assert len(lake.table().metadata.snapshots) == 1


def test_expiry_that_fails_fails_no_batch(spark: SparkSession, lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """A table that forbids deleting files: the batch is committed, report and log say what did not happen."""
    lake.create(properties=OWN_RULES | {"gc.enabled": "false"})
    [report] = fill(spark, lake.open(spark).sink("s", expire_every=1), range(1))
    [note] = report.notes
    assert note.startswith("expiring snapshots failed: UnsupportedTable: Cannot delete files of 'lake.db.events'")
    [record] = [r for r in caplog.records if "snapshots were not expired, the batch is committed" in r.getMessage()]
    assert not record.exc_info  # a refusal needs no traceback after each batch
    assert len(lake.rows()) == 10


def test_many_snapshots_are_told_not_expired(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A sink that expires nothing says when snapshots are many: in each report, once in the log, with the command."""
    monkeypatch.setattr("icesize.spark.stream.sink.MANY_SNAPSHOTS", 3)
    lake.create(properties=OWN_RULES)
    reports = fill(spark, lake.open(spark).sink("s", merge="off"), range(4))
    note = (
        "the table has {} snapshots, each commit rewrites all of them: run `icesize expire-snapshots lake.db.events` "
        "or use sink(..., expire_every=N)"
    )
    assert [r.notes for r in reports] == [(), (), (note.format(3),), (note.format(4),)]
    warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert warnings == ["lake.db.events: " + note.format(3)]
    assert len(lake.table().metadata.snapshots) == 4
