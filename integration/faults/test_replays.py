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
from integration.faults.faulted_table import FaultedTable
from tests.support.spark_lake import events, feed, forget_commit, run
from tests.support.tables import expire

DAY_MS = 86_400_000
Expire = Callable[[FaultedTable], object]


@pytest.mark.fault(15)
@pytest.mark.any_format
def test_a_replayed_batch_is_skipped(faulted: FaultedTable) -> None:
    """A batch delivered again after its commit is skipped, and the report shows it."""
    sink = faulted.sized().sink("s", query_id="q", listener=faulted.reports.append)
    rows = events(range(30), hours=3)
    sink.run(faulted.batch(rows), 0)
    assert sink.run(faulted.batch(rows), 0).already_committed
    faulted.expect(rows)


@pytest.mark.fault(5, 15)
@pytest.mark.any_format
def test_a_batch_that_spark_knows_nothing_of_is_skipped(faulted: FaultedTable) -> None:
    """If a checkpoint lacks the last committed batch, the query receives that batch again, skips it and continues."""
    feed(faulted, 0, 2)
    run(faulted.spark, faulted, faulted.sized().sink("s"))
    forget_commit(faulted, 1)
    feed(faulted, 2, 3)
    run(faulted.spark, faulted, faulted.sized().sink("s", listener=faulted.reports.append))
    assert [(r.batch_id, r.already_committed) for r in faulted.reports] == [(1, True), (2, False)]
    assert faulted.operations() == ["append"] * 3
    faulted.expect(events(range(90), hours=3))


def by_icesize(faulted: FaultedTable) -> None:
    """Our expiry of everything but the head."""
    assert faulted.sized().expire_snapshots(older_than=timedelta(0), retain_last=1).snapshot_ids_expired


def by_iceberg(faulted: FaultedTable) -> None:
    """Iceberg's procedure, in a session that knows the faulted's catalog."""
    session: SparkSession = faulted.spark.newSession()
    session.conf.set("spark.sql.catalog.lake.uri", f"jdbc:sqlite:file:{faulted.folder}/lake.db")
    session.conf.set("spark.sql.catalog.lake.warehouse", f"file://{faulted.folder}/lake")
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() + 60))
    arguments = f"table => 'db.events', older_than => TIMESTAMP '{moment}', retain_last => 1"
    session.sql(f"CALL lake.system.expire_snapshots({arguments})").collect()


@pytest.mark.fault(16)
@pytest.mark.parametrize(
    "forget",
    [by_icesize, by_iceberg, pytest.param(lambda faulted: expire(faulted.table()), id="by_pyiceberg")],
)
@pytest.mark.any_format
def test_a_batch_is_known_without_its_snapshot(faulted: FaultedTable, forget: Expire) -> None:
    """A batch is skipped even after any engine expired its snapshot, while other streams continued."""
    slow = faulted.sized().sink("slow", query_id="q", listener=faulted.reports.append)
    busy = faulted.sized().sink("busy", query_id="p")
    rows, others = events(range(30), hours=3), [events(range(n * 30, n * 30 + 30), hours=3) for n in range(1, 4)]
    [batch] = slow.run(faulted.batch(rows), 7).snapshot_ids
    for number, other in enumerate(others):
        busy.run(faulted.batch(other), number)
    forget(faulted)
    assert batch not in {snapshot.snapshot_id for snapshot in faulted.table().metadata.snapshots}
    assert slow.run(faulted.batch(rows), 7).already_committed
    assert not slow.run(faulted.batch(events(range(120, 150), hours=3)), 8).already_committed
    faulted.expect(rows, *others, events(range(120, 150), hours=3))


@pytest.mark.fault(17)
@pytest.mark.any_format
def test_a_new_checkpoint_is_refused(faulted: FaultedTable) -> None:
    """A query without its checkpoint is refused with instructions; once accepted, every batch is committed."""
    feed(faulted, 0, 2)
    run(faulted.spark, faulted, faulted.sized().sink("s"))
    shutil.rmtree(faulted.folder / "checkpoint")
    shutil.rmtree(faulted.folder / "in")
    feed(faulted, 2, 4)
    snapshots = faulted.operations()
    with pytest.raises(StreamingQueryException) as refused:
        run(faulted.spark, faulted, faulted.sized().sink("s"))
    for words in ("Cannot commit batch 0 of stream 's'", "wrote batch 1", "accept_new_checkpoint=True", "--forget s"):
        assert words in str(refused.value)
    assert faulted.operations() == snapshots
    accepting = faulted.sized().sink("s", accept_new_checkpoint=True, listener=faulted.reports.append)
    run(faulted.spark, faulted, accepting)
    assert [(r.batch_id, r.rows, r.already_committed) for r in faulted.reports] == [(0, 30, False), (1, 30, False)]
    faulted.expect(events(range(120), hours=3))


@pytest.mark.fault(17)
@pytest.mark.any_format
def test_an_older_copy_of_a_checkpoint_is_refused(faulted: FaultedTable) -> None:
    """A checkpoint restored from an older copy is refused, because its batches may contain other rows."""
    sink = faulted.sized().sink("s", query_id="q")
    rows = [events(range(n * 30, n * 30 + 30), hours=3) for n in range(3)]
    for number, each in enumerate(rows):
        sink.run(faulted.batch(each), number)
    with pytest.raises(BatchOutOfOrder, match=r"batch 2 is committed already.*Start from the newest checkpoint"):
        sink.run(faulted.batch(events(range(500, 530))), 1)
    faulted.expect(*rows)


@pytest.mark.fault(34)
@pytest.mark.any_format
def test_a_checkpoint_that_cannot_be_written(faulted: FaultedTable) -> None:
    """A query that cannot write its checkpoint after the commit fails; after a restart it skips that batch and
    continues."""
    feed(faulted, 0, 3)
    commits, aside = faulted.folder / "checkpoint" / "commits", faulted.folder / "aside"

    def block(report: Report) -> None:
        faulted.reports.append(report)
        if report.batch_id == 1 and not report.already_committed:
            commits.rename(aside)
            commits.write_text("no folder")

    with pytest.raises(StreamingQueryException):
        run(faulted.spark, faulted, faulted.sized().sink("s", listener=block))
    assert [r.batch_id for r in faulted.reports] == [0, 1]
    commits.unlink()
    aside.rename(commits)
    run(faulted.spark, faulted, faulted.sized().sink("s", listener=block))
    assert [(r.batch_id, r.already_committed) for r in faulted.reports[2:]] == [(1, True), (2, False)]
    faulted.expect(events(range(90), hours=3))


@pytest.mark.fault(36)
def test_a_rollback_is_told(faulted: FaultedTable) -> None:
    """After a rollback the ledger keeps the batch: a replay is skipped, the next batch is committed, and both reports
    mention it."""
    sink = faulted.sized().sink("s", query_id="q", listener=faulted.reports.append)
    rows = [events(range(n * 30, n * 30 + 30), hours=3) for n in range(4)]
    first, second = [sink.run(faulted.batch(rows[number]), number).snapshot_ids[-1] for number in (0, 1)]
    faulted.table().manage_snapshots().rollback_to_snapshot(first).commit()
    replayed = sink.run(faulted.batch(rows[1]), 1)
    after = sink.run(faulted.batch(rows[2]), 2)
    assert (replayed.already_committed, after.rows) == (True, 30)
    for report in (replayed, after):
        [note] = report.notes
        assert "batch 1 of stream 's'" in note
        assert f"snapshot {second}" in note
        assert "gone" in note
    assert sink.run(faulted.batch(rows[3]), 3).notes == ()
    table = faulted.table()
    assert second not in {s.snapshot_id for s in ancestors_of(table.metadata.current_snapshot(), table.metadata)}
    faulted.expect(rows[0], rows[2], rows[3])


@pytest.mark.fault(31)
@pytest.mark.any_format
def test_order_is_that_of_commits(faulted: FaultedTable) -> None:
    """With clocks that jump a day, snapshots keep the order of commits, and timestamps in the table never go back."""
    shift = [0, 1, -1, 0, 1, -1]
    ids: list[int] = []
    for number, days in enumerate(shift):
        environment = Environment(now_ms=lambda days=days: int(time.time() * 1000) + days * DAY_MS)  # type: ignore[misc]
        sink = faulted.sized_at(environment).sink("s", query_id="q", listener=faulted.reports.append)
        rows = events(range(number * 30, number * 30 + 30), hours=3)
        ids += sink.run(faulted.batch(rows), number).snapshot_ids
        assert sink.run(faulted.batch(rows), number).already_committed
        faulted.expect(rows)
    snapshots = faulted.table().metadata.snapshots
    assert [s.snapshot_id for s in snapshots] == ids
    times = [s.timestamp_ms for s in snapshots]
    assert times == sorted(set(times))
    versions = [v.snapshot_id for v in faulted.sized().versions({"p0_hour": "h0"})]
    assert versions == [i for i in reversed(ids) if i in versions]
    assert versions[0] == ids[-1]
    assert "replace" in faulted.operations()


@pytest.mark.fault(31)
@pytest.mark.parametrize("days", [-1, 1])
@pytest.mark.any_format
def test_nothing_goes_early(faulted: FaultedTable, days: int) -> None:
    """A clock that is wrong by a day makes maintenance expire no snapshot and delete no file."""
    sink = faulted.sized().sink("s", query_id="q", listener=faulted.reports.append)
    rows = [events(range(n * 30, n * 30 + 30), hours=3) for n in range(5)]
    for number, each in enumerate(rows):
        sink.run(faulted.batch(each), number)
    unknown = Path(faulted.files()[0].file_path.removeprefix("file://")).with_name("unknown.parquet")
    unknown.write_bytes(b"of somebody who is about to commit it")
    before = faulted.on_disk()
    wrong = faulted.sized_at(Environment(now_ms=lambda: int(time.time() * 1000) + days * DAY_MS + days * 60_000))
    assert wrong.expire_snapshots().snapshot_ids_expired == ()
    report = wrong.remove_orphan_files(timedelta(hours=24), dry_run=False)
    assert (report.files_deleted, report.too_recent) == (0, 1)
    [note] = report.notes
    assert "of the storage is" in note
    assert note.endswith("its time counts")
    assert faulted.on_disk() == before
    faulted.expect(*rows)
