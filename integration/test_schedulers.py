"""The examples for Airflow and Dagster in these schedulers, each in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from docs_tools.blocks import ROOT
from docs_tools.lake import HOURS, gone_bad

EXAMPLES = ROOT / "examples"
_TIMEOUT_S = 900

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SqlCatalog]:
    """A table gone bad, which child processes find by its name, too."""
    with gone_bad(tmp_path) as catalog:
        yield catalog


def _environment(folder: Path, *packages: str) -> Path:
    """The Python of a new environment with some packages."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    _run([str(python), "-m", "pip", "install", "--quiet", *packages], {})
    return python


def _run(command: list[str], more: dict[str, str], *, succeeds: bool = True) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | more, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
    )
    assert (done.returncode == 0) == succeeds, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout + done.stderr


def _files_per_partition(lake: SqlCatalog) -> set[int]:
    tasks = lake.load_table("db.events").scan().plan_files()
    counts = Counter(task.file.partition[0] for task in tasks)
    assert len(counts) == HOURS
    return set(counts.values())


def test_airflow_keeps_a_table_well_sized(lake: SqlCatalog, tmp_path: Path) -> None:
    """One run of the DAG, by Airflow itself, leaves one file in each partition."""
    python = _environment(tmp_path / "airflow", "apache-airflow>=3,<4")
    dags = tmp_path / "dags"
    dags.mkdir()
    example = (EXAMPLES / "airflow_dag.py").read_text()
    assert "/opt/icesize/bin/icesize" in example
    (dags / "airflow_dag.py").write_text(example.replace("/opt/icesize/bin/icesize", f"{sys.executable} -m icesize"))
    settings = {
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": str(ROOT),
    }
    airflow = str(python.parent / "airflow")
    _run([airflow, "db", "migrate"], settings)
    told = _run([airflow, "dags", "test", "icesize"], settings)
    assert "Command exited with return code 0" in told
    assert _files_per_partition(lake) == {1}


def test_dagster_keeps_a_table_well_sized(lake: SqlCatalog, tmp_path: Path) -> None:
    """One run of the job, by Dagster itself, leaves one file in each partition, even if another table fails."""
    python = _environment(tmp_path / "dagster", "dagster>=1,<2", ".")
    example = (EXAMPLES / "dagster_job.py").read_text()
    tables = 'TABLES = ["lake.db.missing", "lake.db.events"]'
    assert 'TABLES = ["lake.db.events"]' in example
    (tmp_path / "two.py").write_text(
        example.replace('TABLES = ["lake.db.events"]', tables).replace("delay=300", "delay=0")
    )
    told = _dagster(python, tmp_path / "two.py", succeeds=False)
    assert "lake.db.missing" in told
    assert _files_per_partition(lake) == {1}
    assert "RUN_SUCCESS" in _dagster(python, EXAMPLES / "dagster_job.py")


def _dagster(python: Path, job: Path, *, succeeds: bool = True) -> str:
    """Run the job in a file, in the directory of its environment."""
    settings = {"DAGSTER_HOME": str(python.parents[2]), "PYTHONPATH": ""}
    command = [str(python.parent / "dagster"), "job", "execute", "-f", str(job), "-j", "keep_well_sized"]
    return _run(command, settings, succeeds=succeeds)
