"""Faults of the process that drives a stream: it is killed, and a real child process goes on from its checkpoint."""

from __future__ import annotations

import signal

import pytest

from icesize.table.records.ledger import stream_hash
from integration.faults.child import run_child
from integration.faults.faulted_table import FaultedTable
from tests.support.spark_lake import events, feed, rows_of

BATCHES = 5
BATCH_ROWS = 30
KILLED = -signal.SIGKILL


def rows_until(batch: int) -> range:
    """Ids of all rows before this batch."""
    return range(batch * BATCH_ROWS)


def go_on(faulted: FaultedTable, how: str) -> list[int]:
    """Start the driver again and let it come to the end of its input; the batches that were there already."""
    code, reports = run_child(faulted, how)
    assert code == 0
    faulted.expect(events(rows_until(BATCHES), hours=3))
    assert reports[-1]["batch_id"] in (BATCHES - 1, None)
    assert max(faulted.files_per_partition().values()) <= 3
    return [report["batch_id"] for report in reports if report["already_committed"]]


def orphans(faulted: FaultedTable) -> set[str]:
    """Data files of the table that nobody refers to."""
    return faulted.orphans() - {file.file_path.rsplit("/", 1)[1] for file in faulted.files("neighbour")}


def lost_files(faulted: FaultedTable, batch: int) -> set[str]:
    """The same; all of them are of that batch."""
    lost = orphans(faulted)
    assert {name.rsplit("-", 7)[0] for name in lost} <= {f"{stream_hash('s')}-{batch}"}
    return lost


@pytest.mark.parametrize(
    ("point", "leaves_files"),
    [
        pytest.param("batch-started@4", False, marks=[pytest.mark.fault(1), pytest.mark.slow]),
        pytest.param("statistics@4", False, marks=[pytest.mark.fault(2), pytest.mark.slow]),
        pytest.param("planned@4", False, marks=[pytest.mark.fault(2), pytest.mark.slow]),
        pytest.param("files-written@4", True, marks=[pytest.mark.fault(4), pytest.mark.slow]),
        pytest.param("before-swap@4", True, marks=[pytest.mark.fault(4), pytest.mark.slow]),
    ],
)
def test_killed_before_the_commit(faulted: FaultedTable, point: str, leaves_files: bool) -> None:
    """If a driver dies before its commit, only files of one batch remain; a restart writes the batch once."""
    feed(faulted, 0, BATCHES)
    code, before = run_child(faulted, "append", f"{point}=kill")
    assert (code, [report["batch_id"] for report in before]) == (KILLED, [0, 1, 2])
    assert faulted.rows() == rows_of(events(rows_until(3), hours=3))
    left = lost_files(faulted, 3)
    assert bool(left) is leaves_files
    assert go_on(faulted, "append") == []
    assert lost_files(faulted, 3) == left


@pytest.mark.slow
@pytest.mark.fault(3)
def test_killed_while_writing(faulted: FaultedTable) -> None:
    """If a driver dies while its workers write, invisible files of one batch remain, and the batch is written again."""
    feed(faulted, 0, 3)
    assert run_child(faulted, "append")[0] == 0
    feed(faulted, 3, BATCHES)
    go_on_writing = faulted.folder / "go-on"
    code, _ = run_child(faulted, "killed-writing", f"writing=wait:{go_on_writing}")
    go_on_writing.touch()
    assert code == KILLED
    assert faulted.rows() == rows_of(events(rows_until(3), hours=3))
    assert lost_files(faulted, 3)
    assert go_on(faulted, "append") == []


@pytest.mark.slow
@pytest.mark.fault(5)
def test_killed_after_the_commit(faulted: FaultedTable) -> None:
    """A driver that dies between its commit and the checkpoint skips that batch after a restart."""
    feed(faulted, 0, BATCHES)
    code, before = run_child(faulted, "append", "after-swap@4=kill")
    assert (code, [report["batch_id"] for report in before]) == (KILLED, [0, 1, 2])
    assert faulted.rows() == rows_of(events(rows_until(4), hours=3))
    assert lost_files(faulted, 3) == set()
    assert go_on(faulted, "append") == [3]
    assert lost_files(faulted, 3) == set()


@pytest.mark.slow
@pytest.mark.fault(4)
@pytest.mark.parametrize("how", ["absorb", "absorb-once"])
def test_killed_while_absorbing(faulted: FaultedTable, how: str) -> None:
    """If the driver dies while it writes new and older rows into one file, the older files stay unchanged."""
    feed(faulted, 0, BATCHES)
    code, _ = run_child(faulted, how, "before-swap@4=kill")
    assert code == KILLED
    assert faulted.rows() == rows_of(events(rows_until(3), hours=3))
    left = lost_files(faulted, 3)
    assert left
    assert go_on(faulted, how) == []
    assert lost_files(faulted, 3) == left


@pytest.mark.slow
@pytest.mark.fault(1, 5)
def test_killed_in_the_thread_of_the_merges(faulted: FaultedTable) -> None:
    """If a driver dies at the start of a background merge, the restarted query resumes with the same batch."""
    feed(faulted, 0, BATCHES)
    code, before = run_child(faulted, "async", "background@2=kill")
    assert code == KILLED
    landed = len(faulted.rows()) // BATCH_ROWS
    assert len(before) <= landed
    assert faulted.rows() == rows_of(events(rows_until(landed), hours=3))
    assert set(go_on(faulted, "async")) <= {landed - 1}


@pytest.mark.slow
@pytest.mark.fault(4)
def test_killed_with_a_merge_written(faulted: FaultedTable) -> None:
    """A driver that dies before a background merge is committed loses that merge, and repeats it later."""
    feed(faulted, 0, BATCHES)
    code, _ = run_child(faulted, "killed-merging")
    assert code == KILLED
    landed = len(faulted.rows()) // BATCH_ROWS
    assert faulted.rows() == rows_of(events(rows_until(landed), hours=3))
    assert set(faulted.operations()) == {"append"}
    left = orphans(faulted)
    assert left
    assert set(go_on(faulted, "async")) <= {landed - 1}
    assert "replace" in faulted.operations()
    assert orphans(faulted) == left
