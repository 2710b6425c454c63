"""What a stream delivers again, or cannot deliver: replays, lost checkpoints, rollbacks, clocks that jump."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.table.snapshots import ancestors_of
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from icesize.environment import Environment
from icesize.errors import BatchOutOfOrder
from icesize.report import Report
from integration.faults.story import Story
from tests.support.spark_lake import events, feed, forget_commit, run
from tests.support.tables import expire

DAY_MS = 86_400_000
Expire = Callable[[Story], object]


@pytest.mark.fault(15)
def test_a_replayed_batch_is_skipped(story: Story) -> None:
    """A batch delivered again after its commit is skipped, and the report says so."""
    sink = story.sized().sink("s", query_id="q", listener=story.reports.append)
    rows = events(range(30), hours=3)
    sink.run(story.batch(rows), 0)
    assert sink.run(story.batch(rows), 0).already_committed
    story.expect(rows)


@pytest.mark.fault(5, 15)
def test_a_batch_that_spark_knows_nothing_of_is_skipped(story: Story) -> None:
    """A query whose checkpoint lacks its last batch receives it again, skips it and continues."""
    feed(story, 0, 2)
    run(story.spark, story, story.sized().sink("s"))
    forget_commit(story, 1)
    feed(story, 2, 3)
    run(story.spark, story, story.sized().sink("s", listener=story.reports.append))
    assert [(r.batch_id, r.already_committed) for r in story.reports] == [(1, True), (2, False)]
    assert story.operations() == ["append"] * 3
    story.expect(events(range(90), hours=3))


def by_icesize(story: Story) -> None:
    """Our expiry of everything but the head."""
    assert story.sized().expire_snapshots(older_than=timedelta(0), retain_last=1).snapshot_ids_expired


def by_iceberg(story: Story) -> None:
    """Iceberg's procedure, in a session that knows the story's catalog."""
    session: SparkSession = story.spark.newSession()
    session.conf.set("spark.sql.catalog.lake.uri", f"jdbc:sqlite:file:{story.folder}/lake.db")
    session.conf.set("spark.sql.catalog.lake.warehouse", f"file://{story.folder}/lake")
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() + 60))
    arguments = f"table => 'db.events', older_than => TIMESTAMP '{moment}', retain_last => 1"
    session.sql(f"CALL lake.system.expire_snapshots({arguments})").collect()


@pytest.mark.fault(16)
@pytest.mark.parametrize(
    "forget",
    [by_icesize, by_iceberg, pytest.param(lambda story: expire(story.table()), id="by_pyiceberg")],
)
def test_a_batch_is_known_without_its_snapshot(story: Story, forget: Expire) -> None:
    """A batch is skipped even after any engine expired its snapshot, while other streams continued."""
    slow = story.sized().sink("slow", query_id="q", listener=story.reports.append)
    busy = story.sized().sink("busy", query_id="p")
    rows, others = events(range(30), hours=3), [events(range(n * 30, n * 30 + 30), hours=3) for n in range(1, 4)]
    [batch] = slow.run(story.batch(rows), 7).snapshot_ids
    for number, other in enumerate(others):
        busy.run(story.batch(other), number)
    forget(story)
    assert batch not in {snapshot.snapshot_id for snapshot in story.table().metadata.snapshots}
    assert slow.run(story.batch(rows), 7).already_committed
    assert not slow.run(story.batch(events(range(120, 150), hours=3)), 8).already_committed
    story.expect(rows, *others, events(range(120, 150), hours=3))


@pytest.mark.fault(17)
def test_a_new_checkpoint_is_refused(story: Story) -> None:
    """A query without its checkpoint is refused with instructions; once accepted, every batch is committed."""
    feed(story, 0, 2)
    run(story.spark, story, story.sized().sink("s"))
    shutil.rmtree(story.folder / "checkpoint")
    shutil.rmtree(story.folder / "in")
    feed(story, 2, 4)
    snapshots = story.operations()
    with pytest.raises(StreamingQueryException) as refused:
        run(story.spark, story, story.sized().sink("s"))
    for words in ("Cannot commit batch 0 of stream 's'", "wrote batch 1", "accept_new_checkpoint=True", "--forget s"):
        assert words in str(refused.value)
    assert story.operations() == snapshots
    accepting = story.sized().sink("s", accept_new_checkpoint=True, listener=story.reports.append)
    run(story.spark, story, accepting)
    assert [(r.batch_id, r.rows, r.already_committed) for r in story.reports] == [(0, 30, False), (1, 30, False)]
    story.expect(events(range(120), hours=3))


@pytest.mark.fault(17)
def test_an_older_copy_of_a_checkpoint_is_refused(story: Story) -> None:
    """A checkpoint restored from an older copy is refused, because its batches may contain other rows."""
    sink = story.sized().sink("s", query_id="q")
    rows = [events(range(n * 30, n * 30 + 30), hours=3) for n in range(3)]
    for number, each in enumerate(rows):
        sink.run(story.batch(each), number)
    with pytest.raises(BatchOutOfOrder, match=r"batch 2 is committed already.*Start from the newest checkpoint"):
        sink.run(story.batch(events(range(500, 530))), 1)
    story.expect(*rows)


@pytest.mark.fault(34)
def test_a_checkpoint_that_cannot_be_written(story: Story) -> None:
    """A query that cannot write its checkpoint after the commit fails; after a restart it skips that batch and
    continues."""
    feed(story, 0, 3)
    commits, aside = story.folder / "checkpoint" / "commits", story.folder / "aside"

    def block(report: Report) -> None:
        story.reports.append(report)
        if report.batch_id == 1 and not report.already_committed:
            commits.rename(aside)
            commits.write_text("no folder")

    with pytest.raises(StreamingQueryException):
        run(story.spark, story, story.sized().sink("s", listener=block))
    assert [r.batch_id for r in story.reports] == [0, 1]
    commits.unlink()
    aside.rename(commits)
    run(story.spark, story, story.sized().sink("s", listener=block))
    assert [(r.batch_id, r.already_committed) for r in story.reports[2:]] == [(1, True), (2, False)]
    story.expect(events(range(90), hours=3))


@pytest.mark.fault(36)
def test_a_rollback_is_told(story: Story) -> None:
    """After a rollback the ledger keeps the batch: a replay is skipped, the next batch is committed, and both reports
    mention it."""
    sink = story.sized().sink("s", query_id="q", listener=story.reports.append)
    rows = [events(range(n * 30, n * 30 + 30), hours=3) for n in range(4)]
    first, second = [sink.run(story.batch(rows[number]), number).snapshot_ids[-1] for number in (0, 1)]
    story.table().manage_snapshots().rollback_to_snapshot(first).commit()
    replayed = sink.run(story.batch(rows[1]), 1)
    after = sink.run(story.batch(rows[2]), 2)
    assert (replayed.already_committed, after.rows) == (True, 30)
    for report in (replayed, after):
        [note] = report.notes
        assert "batch 1 of stream 's'" in note
        assert f"snapshot {second}" in note
        assert "gone" in note
    assert sink.run(story.batch(rows[3]), 3).notes == ()
    table = story.table()
    assert second not in {s.snapshot_id for s in ancestors_of(table.metadata.current_snapshot(), table.metadata)}
    story.expect(rows[0], rows[2], rows[3])


@pytest.mark.fault(31)
def test_order_is_that_of_commits(story: Story) -> None:
    """With clocks that jump a day, snapshots keep the order of commits, and timestamps in the table never go back."""
    shift = [0, 1, -1, 0, 1, -1]
    ids: list[int] = []
    for number, days in enumerate(shift):
        environment = Environment(now_ms=lambda days=days: int(time.time() * 1000) + days * DAY_MS)  # type: ignore[misc]
        sink = story.sized_at(environment).sink("s", query_id="q", listener=story.reports.append)
        rows = events(range(number * 30, number * 30 + 30), hours=3)
        ids += sink.run(story.batch(rows), number).snapshot_ids
        assert sink.run(story.batch(rows), number).already_committed
        story.expect(rows)
    snapshots = story.table().metadata.snapshots
    assert [s.snapshot_id for s in snapshots] == ids
    times = [s.timestamp_ms for s in snapshots]
    assert times == sorted(set(times))
    versions = [v.snapshot_id for v in story.sized().versions({"p0_hour": "h0"})]
    assert versions == [i for i in reversed(ids) if i in versions]
    assert versions[0] == ids[-1]
    assert "replace" in story.operations()


@pytest.mark.fault(31)
@pytest.mark.parametrize("days", [-1, 1])
def test_nothing_goes_early(story: Story, days: int) -> None:
    """A clock that is wrong by a day makes maintenance expire no snapshot and delete no file."""
    sink = story.sized().sink("s", query_id="q", listener=story.reports.append)
    rows = [events(range(n * 30, n * 30 + 30), hours=3) for n in range(5)]
    for number, each in enumerate(rows):
        sink.run(story.batch(each), number)
    unknown = Path(story.files()[0].file_path.removeprefix("file://")).with_name("unknown.parquet")
    unknown.write_bytes(b"of somebody who is about to commit it")
    before = story.on_disk()
    wrong = story.sized_at(Environment(now_ms=lambda: int(time.time() * 1000) + days * DAY_MS + days * 60_000))
    assert wrong.expire_snapshots().snapshot_ids_expired == ()
    report = wrong.remove_orphan_files(timedelta(hours=24), dry_run=False)
    assert (report.files_deleted, report.young) == (0, 1)
    [note] = report.notes
    assert "of the storage is" in note
    assert note.endswith("its time counts")
    assert story.on_disk() == before
    story.expect(*rows)
