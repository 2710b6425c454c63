"""Maintenance that is killed and run again, and orphan cleanup that meets a batch under way."""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from icesize.environment import Environment
from icesize.errors import RewriteFailed
from icesize.failpoints import armed
from icesize.report import Report
from icesize.table.cleanup.orphans import OrphanReport
from integration.faults.child import run_child
from integration.faults.faulted_table import LONG_AGO_S, FaultedTable
from tests.support.spark_lake import events, rows_of
from tests.support.tables import data_files_on_disk, local

KILLED = -signal.SIGKILL
BATCHES = 5


def fill(faulted: FaultedTable, first: int = 0, last: int = BATCHES, step: int = 1) -> None:
    """Small files that are due to be merged: in each of two partitions as many as there are batches.

    With a `step` of so many batches ids are in no order.
    """
    sink = faulted.sized().sink("s", query_id="q", merge="off", listener=faulted.reports.append)
    for number in range(first, last):
        begin = number * 30 if step == 1 else number
        rows = events(range(begin, begin + 30 * step, step), hours=2)
        sink.run(faulted.batch(rows), number)
        faulted.expect(rows)


def age(path: Path) -> None:
    """As if this file had been written days ago."""
    os.utime(path, (path.stat().st_mtime - LONG_AGO_S,) * 2)


def data_files(faulted: FaultedTable) -> list[Path]:
    """Data files below the table, referenced or not."""
    return sorted(local(path) for path in data_files_on_disk(faulted.table()))


@pytest.mark.fault(35)
@pytest.mark.parametrize(
    ("point", "landed"),
    [
        pytest.param("planned", False, marks=pytest.mark.slow),
        pytest.param("writing@2", False, marks=pytest.mark.slow),
        pytest.param("files-written", False, marks=pytest.mark.slow),
        pytest.param("before-swap", False, marks=pytest.mark.slow),
        ("after-swap", True),
    ],
)
def test_compaction_killed(faulted: FaultedTable, point: str, landed: bool) -> None:
    """A compaction that dies is committed whole or not at all; a second run does what remains."""
    fill(faulted)
    code, _ = run_child(faulted, "compact", f"{point}=kill")
    assert code == KILLED
    assert set(faulted.files_per_partition().values()) == ({1} if landed else {BATCHES})
    for operations in ([] if landed else ["replace"]), []:
        code, [report] = run_child(faulted, "compact")
        assert (code, report["operations"]) == (0, operations)
        assert set(faulted.files_per_partition().values()) == {1}


@pytest.mark.fault(35)
@pytest.mark.parametrize(
    ("point", "landed"),
    [
        pytest.param("planned", False, marks=pytest.mark.slow),
        pytest.param("writing@2", False, marks=pytest.mark.slow),
        pytest.param("files-written", False, marks=pytest.mark.slow),
        pytest.param("before-swap@2", False, marks=pytest.mark.slow),
        pytest.param("after-swap@2", True, marks=pytest.mark.slow),
    ],
)
def test_clustering_killed(faulted: FaultedTable, point: str, landed: bool) -> None:
    """A clustering that dies is committed whole or not at all; a second run does what remains."""
    fill(faulted, step=BATCHES)
    # the first swap is that of what is remembered
    code, _ = run_child(faulted, "cluster", f"{point}=kill")
    assert code == KILLED
    assert faulted.operations().count("replace") == landed
    for operations in ([] if landed else ["replace"]), []:
        code, [report] = run_child(faulted, "cluster")
        assert (code, report["operations"]) == (0, operations)
        assert {after["point_files"] for after in report["clustering"]["after"].values()} == {2.0}


@pytest.mark.fault(35)
@pytest.mark.parametrize(
    ("point", "expired"),
    [
        pytest.param("expiry-decided", False, marks=pytest.mark.slow),
        pytest.param("before-swap", False, marks=pytest.mark.slow),
        pytest.param("after-swap", True, marks=pytest.mark.slow),
        ("before-delete@3", True),
    ],
)
def test_expiry_killed(faulted: FaultedTable, point: str, expired: bool) -> None:
    """An expiry that dies before its commit changes nothing; if it dies later, the next one deletes the remaining
    files."""
    fill(faulted)
    faulted.sized().compact()
    # the newest append stays, with all files that it knows
    fill(faulted, BATCHES, BATCHES + 1)
    snapshots, files = BATCHES + 2, BATCHES * 2 + 4
    code, _ = run_child(faulted, "expire", f"{point}=kill")
    assert code == KILLED
    assert len(faulted.operations()) == (1 if expired else snapshots)
    # deleted in twos: two bunches are gone when the third is due
    assert len(data_files(faulted)) == (files - 4 if point == "before-delete@3" else files)
    code, [report] = run_child(faulted, "expire")
    assert (code, len(faulted.operations()), len(data_files(faulted))) == (0, 1, 4)
    assert len(report["snapshot_ids_expired"]) == (0 if expired else snapshots - 1)
    code, [report] = run_child(faulted, "expire")
    assert (code, report["snapshot_ids_expired"], sum(report["files_deleted"].values())) == (0, [], 0)


@pytest.mark.slow
@pytest.mark.fault(35)
def test_orphan_cleanup_killed(faulted: FaultedTable) -> None:
    """Orphan cleanup that dies has deleted only orphans; a second run deletes the remaining ones."""
    fill(faulted)
    [needed, *_] = data_files(faulted)
    before = len(data_files(faulted))
    for number in range(6):
        shutil.copy(needed, orphan := needed.with_name(f"orphan{number}.parquet"))
        age(orphan)
    code, _ = run_child(faulted, "orphans", "before-delete@3=kill")
    assert (code, len(data_files(faulted))) == (KILLED, before + 2)
    for deleted in 2, 0:
        code, [report] = run_child(faulted, "orphans")
        assert (code, report["files_deleted"], len(data_files(faulted))) == (0, deleted, before)


@dataclass
class Cleanup:
    """Orphan cleanup that comes between the files of a batch and its commit; `days_later` than they were written."""

    faulted: FaultedTable
    days_later: bool
    passed_seconds: float = 0.0
    report: OrphanReport | None = None

    def __call__(self) -> None:
        if self.days_later:
            self.passed_seconds = LONG_AGO_S
            for path in data_files(self.faulted):
                age(path)
        self.report = self.faulted.sized().remove_orphan_files(dry_run=False)

    def monotonic(self) -> float:
        """The clock of the batch."""
        return time.monotonic() + self.passed_seconds

    def meets(self, batch: pa.Table) -> Report:
        """Run the cleanup in the middle of the batch."""
        table = self.faulted.sized_at(Environment(monotonic=self.monotonic))
        sink = table.sink("s", query_id="q", listener=self.faulted.reports.append)
        with armed("files-written", self):
            return sink.run(self.faulted.batch(batch), BATCHES)


@pytest.mark.fault(30)
def test_cleanup_spares_a_batch_under_way(faulted: FaultedTable) -> None:
    """Orphan cleanup between the writes and the commit of a batch keeps its files, because they are recent."""
    fill(faulted)
    rows, cleanup = events(range(500, 530), hours=2), Cleanup(faulted, days_later=False)
    assert cleanup.meets(rows).operations == ("append", "replace")
    assert cleanup.report is not None
    # new files of two partitions, and of each the merge with the older ones
    assert (cleanup.report.files_deleted, cleanup.report.too_recent) == (0, 4)
    faulted.expect(rows)


@pytest.mark.fault(30)
def test_cleanup_after_days_fails_the_batch(faulted: FaultedTable) -> None:
    """If orphan cleanup removed the files of a batch that ran for days, the batch fails; a retry succeeds."""
    fill(faulted)
    rows, cleanup = events(range(500, 530), hours=2), Cleanup(faulted, days_later=True)
    faulted.expect(rows)
    snapshots = faulted.operations()
    with pytest.raises(RewriteFailed, match=r"are gone.*orphan"):
        cleanup.meets(rows)
    assert cleanup.report is not None
    assert cleanup.report.files_deleted == 4
    assert faulted.operations() == snapshots
    assert faulted.rows() == rows_of(events(range(BATCHES * 30), hours=2))
    assert Cleanup(faulted, days_later=False).meets(rows).rows == 30
