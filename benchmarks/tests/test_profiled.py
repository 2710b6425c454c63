"""Tests of profiles: samples are counted by step of a batch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import profiled

RUN = "Sink.run (icesize/spark/stream/sink.py:150);_once (icesize/table/commit/batch_life.py:86)"


def test_steps_of_the_driver_and_of_writers() -> None:
    """A sample counts for the first step whose function is on its stack, 10 ms each, divided by the batches.

    Samples outside of a batch count for no step.
    """
    lines = [
        f"process 1;{RUN};commit_written (icesize/table/commit/batch_commit.py:140) 4",
        f"process 1;{RUN};commit_written (icesize/table/commit/batch_commit.py:140);PyIcebergCommitter.stage "
        "(icesize/table/commit/pyiceberg_committer.py:90) 2",
        f"process 1;{RUN};finish (icesize/somewhere.py:1) 1",
        "process 1;main (worker.py:1);write_rows (icesize/parquet/writing/row_writer.py:50);FileEncoder.finish "
        "(icesize/parquet/writing/file_writer.py:80) 3",
        "process 1;<module> (benchmarks/icesize_child.py:1) 100",
    ]
    assert profiled.steps(lines, batches=2) == {
        "driver": {"rest of the commit": 20.0, "manifests made": 10.0, "rest of the batch": 5.0},
        "writers": {"files finished": 15.0},
    }


def test_steps_name_functions_that_exist() -> None:
    """The function of each step is in the file that the step names."""
    root = Path(__file__).parents[2]
    for _, place in (*profiled._DRIVER, *profiled._WRITERS):
        function, _, file = place.partition("(")
        if file.endswith(".py"):
            assert re.search(rf"def {function.strip()}\b", (root / file).read_text()) or not function, place


def test_without_py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the missing program and its installation."""
    monkeypatch.setattr("shutil.which", lambda *name, **path: None)
    with pytest.raises(SystemExit, match="py-spy is not installed, `pip install py-spy`"):
        profiled.sampling(tmp_path, "stream", as_folded=True)
