"""Faults of the processes that write: tasks that fail, executors that are killed, shuffle files that are lost."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed

from icesize.parquet.files.names import writer_of
from icesize.spark.engine import jobs
from icesize.spark.engine.worker import WriteRows
from integration.faults.cluster_child import TIMEOUT_S, driver, end_of, run_driver, workers
from integration.faults.faulted_table import FaultedTable, widened
from tests.support.spark_lake import events, uncounted

MERGES_IN_WORKERS = {"in_hand": True, "merges_in_spark": True, "policy": {"merge-deadline-ms": 600_000}}
"""The driver writes rows, so that workers write merged files only, and waits for them."""


@retry(retry=retry_if_result(lambda both: not both), wait=wait_fixed(0.05), stop=stop_after_delay(TIMEOUT_S))
def until_both_write(faulted: FaultedTable) -> bool:
    """Wait until two tasks have begun a file, and so wait at `writing` themselves."""
    return len(faulted.leftovers()) == 2


def executors(child: subprocess.Popen[str]) -> list[psutil.Process]:
    """The executors of a driver on a local cluster, which are its descendants."""
    found = psutil.Process(child.pid).children(recursive=True)
    # a process that has ended has no command line any more
    words = {p: p.as_dict(["cmdline"])["cmdline"] or [] for p in found}
    return [p for p in found if any("CoarseGrainedExecutorBackend" in word for word in words[p])]


def attempts(paths: Iterable[str]) -> set[int]:
    """The attempts that wrote files, as their names tell."""
    return {int(Path(path).name.removesuffix(".parquet").split("-")[3]) for path in paths}


def mostly_one_hour(ids: range, width_bytes: int = 100) -> pa.Table:
    """Wide rows, nine of ten in one hour: enough for several files of the target size."""
    hours = [f"h{1 + i % 3}" if i % 10 == 0 else "h0" for i in ids]
    return widened(events(ids).set_column(1, "hour", pa.array(hours)), width_bytes)


@dataclass(frozen=True)
class Twins(WriteRows):
    """A task that runs twice at the same time, under one number, as a speculative copy does: one answer is taken."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = list(batches)
        for _ in range(2):
            [answer] = super().__call__(rows)
        yield answer


@pytest.mark.fault(7)
def test_a_speculative_twin(faulted: FaultedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a task has two attempts, the table contains the files of the chosen one; orphan cleanup finds the others."""
    monkeypatch.setattr(jobs, "WriteRows", Twins)
    rows = events(range(60), hours=3)
    report = (
        faulted.sized().sink("s", write_tasks=1, listener=faulted.reports.append).run(uncounted(faulted.spark, rows), 0)
    )
    assert (report.rows, report.files_added) == (60, 3)
    chosen, loser = sorted(f.file_path for f in faulted.files()), faulted.leftovers()
    assert len(loser) == 3
    assert {writer_of(path) for path in (*chosen, *loser)} == {0}
    assert [pq.read_metadata(path).num_rows for path in sorted(loser)] == [20, 20, 20]
    faulted.expect(rows)


@pytest.mark.slow
@pytest.mark.fault(7)
def test_tasks_that_fail_after_writing(faulted: FaultedTable) -> None:
    """If a task fails after it finished files, Spark repeats it: rows are exact, and only files of the successful
    attempt are visible."""
    raised, killed = faulted.folder / "raised", faulted.folder / "killed"
    failpoint = f"writing@2=raise-once:{raised};writing@3=kill-once:{killed}"
    rows = events(range(80), hours=4)
    refused, faulted.reports = run_driver(
        faulted, "local[2,4]", [rows], spark=workers(failpoint), sink={"write_tasks": 1}
    )
    assert refused == ""
    assert raised.exists()
    assert killed.exists()
    assert attempts(f.file_path for f in faulted.files()) == {2}
    left = faulted.leftovers()
    assert attempts(left) == {1}, "the task that raised removed its files, the one that was killed could not"
    assert len(left) == 3
    faulted.expect(rows)


@pytest.mark.slow
@pytest.mark.fault(6)
def test_a_worker_that_dies_while_it_merges(faulted: FaultedTable) -> None:
    """Spark replaces a worker that is killed during a merge, and the merge is committed."""
    rows = [events(range(n * 40, n * 40 + 40), hours=4) for n in range(4)]
    killed = faulted.folder / "killed"
    spark = workers(f"writing=kill-once:{killed}")
    refused, faulted.reports = run_driver(faulted, "local[2,4]", rows, spark=spark, **MERGES_IN_WORKERS)
    assert refused == ""
    assert killed.exists()
    last = faulted.reports[-1]
    assert (last.operations, last.small_files_max) == (("append", "replace"), 2)
    assert len(faulted.leftovers()) == 1
    faulted.expect(*rows)


@pytest.mark.slow
@pytest.mark.fault(6)
def test_workers_that_die_at_each_merge(faulted: FaultedTable) -> None:
    """If workers die at every merge, the batch is committed without that merge, and the report names it."""
    rows = [events(range(n * 40, n * 40 + 40), hours=4) for n in range(4)]
    spark = workers("writing=kill")
    refused, faulted.reports = run_driver(faulted, "local[2,4]", rows, spark=spark, **MERGES_IN_WORKERS)
    assert refused == ""
    last = faulted.reports[-1]
    assert (last.operations, last.rows, last.small_files_max) == (("append",), 40, 4)
    assert [note for note in last.notes if "dropped: Cannot merge files: " in note]
    faulted.expect(*rows)


@pytest.mark.slow
@pytest.mark.fault(6)
def test_a_killed_executor(faulted: FaultedTable) -> None:
    """If an executor is killed while it writes, other executors run its tasks: rows are exact, and orphan cleanup finds
    its files."""
    rows, go = mostly_one_hour(range(40_000)), faulted.folder / "go"
    settings = {"spark": workers(f"writing=wait:{go}"), "sink": {"statistics": "exact", "write_tasks": 4}}
    with driver(faulted, "local-cluster[2,1,1024]", [rows], **settings) as child:
        until_both_write(faulted)
        executors(child)[0].kill()
        go.touch()
        refused, faulted.reports = end_of(child, faulted)
    assert refused == ""
    assert faulted.reports[-1].rows == 40_000
    assert faulted.leftovers() != set()
    faulted.expect(rows)


@pytest.mark.slow
@pytest.mark.fault(8)
def test_lost_shuffle_files(faulted: FaultedTable) -> None:
    """After shuffle files are lost, Spark recomputes rows in another order; each row reaches the same task, so rows are
    exact."""
    rows, go = mostly_one_hour(range(60_000)), faulted.folder / "go"
    settings = {"spark": workers(f"writing=wait:{go}"), "sink": {"statistics": "exact", "write_tasks": 6}}
    with driver(faulted, "local[2,4]", [rows], **settings) as child:
        until_both_write(faulted)
        made = len(list((faulted.folder / "made").iterdir()))
        for path in (faulted.folder / "local").rglob("shuffle_*"):
            path.unlink()
        go.touch()
        refused, faulted.reports = end_of(child, faulted)
    assert refused == ""
    assert len(list((faulted.folder / "made").iterdir())) > made, "no shuffle file was missed"
    of_hot_hour = [f.file_path for f in faulted.files() if f.partition[0] == "h0"]
    assert len({writer_of(path) for path in of_hot_hour}) > 1, "no partition was divided"
    faulted.expect(rows)
