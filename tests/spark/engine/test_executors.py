"""The sink on executors that are processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyiceberg.transforms import BucketTransform
from pyspark.sql import SparkSession

from icesize.errors import EngineUnavailable
from tests.support.spark_lake import Lake, counted, events, rows_of, uncounted

ROOT = Path(__file__).parents[3]
CHILD_TIMEOUT_S = 300


def cluster(lake: Lake, python: str, executors_pythonpath: str) -> subprocess.CompletedProcess[str]:
    """Four batches on two executors of one core, which run `python`."""
    command = [sys.executable, "-m", "tests.support.spark_child", str(lake.folder), "local-cluster[2,1,1024]"]
    # the executors' working folder is not the driver's, so what they import is what they have been given
    environment = os.environ | {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment |= {"EXECUTORS_PYTHONPATH": executors_pythonpath}
    environment.pop("PYTHONPATH", None)
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=CHILD_TIMEOUT_S
    )


@pytest.mark.slow
def test_sink_on_several_executors(java: None, lake: Lake) -> None:
    """Two executors write and merge: rows exact, partitions bounded, nothing left over."""
    lake.create()
    done = cluster(lake, sys.executable, str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    assert lake.rows() == rows_of(events(range(8000), hours=4))
    assert max(lake.files_per_partition().values()) <= 3
    assert lake.orphans() == set()


_WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "{module}":
            raise ModuleNotFoundError("No module named '{module}'", name="{module}")

sys.meta_path.insert(0, Without())
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["icesize", "pyarrow"])
def test_executors_that_lack_a_module(java: None, lake: Lake, module: str) -> None:
    """Executors without icesize or pyarrow: one sentence that names the module and how to ship it; nothing written."""
    lake.create()
    folder = lake.folder / "without"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_WITHOUT.format(module=module))
    done = cluster(lake, sys.executable, f"{folder}{os.pathsep}{ROOT}")
    assert done.stdout, done.stderr
    assert done.returncode == 1
    [line] = [line for line in done.stdout.splitlines() if line]
    assert line.startswith("EngineUnavailable: Cannot ")
    assert f"Spark's workers have no module '{module}'" in line
    assert "--archives" in line
    assert "pyFiles" in line
    assert lake.on_disk() == set()


def test_workers_run_the_python_of_a_local_driver(
    spark: SparkSession, lake: Lake, by_spark: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`venv/bin/python job.py`, the environment not being activated: workers run that Python, not that on PATH."""
    lake.create()
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python3")
    lake.open(spark).append(spark.createDataFrame(events(range(40), hours=2)))
    assert spark.sparkContext.pythonExec == sys.executable
    assert lake.rows() == rows_of(events(range(40), hours=2))


def test_columns_that_workers_compute_run_the_python_of_a_local_driver(
    spark: SparkSession, lake: Lake, by_spark: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buckets of a first batch are computed before its rows are written, and their workers run that Python, too."""
    lake.create(by={"id": BucketTransform(3)})
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python3")
    lake.open(spark).append(spark.createDataFrame(events(range(40))))
    assert lake.rows() == rows_of(events(range(40)))


def test_workers_that_read_a_version_run_the_python_of_a_local_driver(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where reading an older version is the first thing that a session asks of its workers."""
    lake.create()
    lake.open(spark).append(counted(spark, events(range(40), hours=2)))
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python3")
    [version, _] = lake.open(spark).versions()
    assert lake.open(spark).read_version(version.partition, version.snapshot_id).count() == version.rows == 20


def test_a_python_that_lacks_icesize_is_named(
    spark: SparkSession, lake: Lake, by_spark: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python that somebody has chosen for the workers stays; where it lacks icesize, both are named and how to choose
    another."""
    lake.create()
    (lake.folder / "sitecustomize.py").write_text(_WITHOUT.format(module="icesize"))
    chosen = lake.folder / "chosen-python"
    chosen.write_text(f'#!/bin/sh\nPYTHONPATH="{lake.folder}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    chosen.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(chosen))
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(chosen))
    with pytest.raises(EngineUnavailable, match="Spark's workers have no module 'icesize'") as raised:
        lake.open(spark).append(uncounted(spark, events(range(40))))
    assert f"they run '{chosen}', and this driver is '{sys.executable}'" in str(raised.value)
    assert "Set PYSPARK_PYTHON" in str(raised.value)
    assert lake.on_disk() == set()
