"""A standalone Spark cluster whose executors have no icesize: it is shipped by `--archives`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed

import icesize
from icesize import failpoints
from integration.standalone import Cluster, archive, bare_python, executor_settings, frugal_settings, standalone
from integration.standalone_child import BATCHES, ROWS
from tests.support.spark_lake import Lake, events, lake_catalog, rows_of

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 600
WRITTEN = events(range(BATCHES * ROWS), hours=4)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive with icesize and what it needs."""
    return archive(tmp_path_factory.mktemp("packed") / "environment.tar")


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A SQLite catalog with an empty table of hours."""
    catalog = lake_catalog(tmp_path)
    catalog.create_namespace("db")
    lake = Lake(catalog, tmp_path)
    lake.create()
    yield lake
    catalog.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A master and two workers of one core."""
    with standalone(tmp_path) as running:
        yield running


@contextmanager
def driver(cluster: Cluster, lake: Lake, settings: dict[str, str], *steps: str) -> Iterator[subprocess.Popen[str]]:
    """A driver with these steps (`integration.standalone_child`); it is killed when the block ends early."""
    command = [sys.executable, "-m", "integration.standalone_child", str(lake.folder), cluster.master]
    environment = os.environ | {"PYSPARK_PYTHON": bare_python(), "PYSPARK_DRIVER_PYTHON": sys.executable}
    with (lake.folder / "driver.log").open("w") as log:
        child = subprocess.Popen(
            [*command, json.dumps(settings), *steps],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    with child:
        try:
            yield child
        finally:
            child.kill()


def end_of(child: subprocess.Popen[str], lake: Lake) -> dict[str, Any]:
    """What its steps came to."""
    printed, _ = child.communicate(timeout=TIMEOUT_S)
    assert child.returncode == 0, (lake.folder / "driver.log").read_text()[-8000:]
    told: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return told


def clean(lake: Lake, *names: str) -> None:
    """Orphan cleanup of these tables, days later."""
    for path in lake.folder.rglob("*.parquet"):
        os.utime(path, (0, 0))
    for name in names:
        icesize.open(None, f"db.{name}", catalog=lake.catalog).remove_orphan_files(dry_run=False)


@retry(retry=retry_if_result(lambda both: not both), wait=wait_fixed(0.1), stop=stop_after_delay(TIMEOUT_S))
def until_both_merge(lake: Lake) -> bool:
    """Wait until two tasks have begun a file that no snapshot has."""
    return len(lake.orphans()) >= 2


@retry(retry=retry_if_result(lambda both: not both), wait=wait_fixed(0.1), stop=stop_after_delay(TIMEOUT_S))
def until_both_work(lake: Lake, child: subprocess.Popen[str]) -> bool:
    """Wait until the driver sees that both executors merge, and that it has merged the small tables."""
    assert child.poll() is None, (lake.folder / "driver.log").read_text()[-8000:]
    return (lake.folder / "both").exists()


@pytest.mark.slow
def test_sink_compaction_and_clustering(cluster: Cluster, lake: Lake, packed: Path) -> None:
    """Two executors in processes of their own write, merge and cluster: rows exact, nothing left over."""
    with driver(cluster, lake, executor_settings(packed), "sink", "compact", "cluster") as child:
        told = end_of(child, lake)
    assert told["sink"]["small_files_max"] <= 3
    assert told["compact"]["files_removed"] > told["compact"]["files_added"]
    assert lake.rows() == rows_of(WRITTEN)
    assert set(lake.files_per_partition().values()) == {1}
    assert lake.orphans() == set()


@pytest.mark.slow
def test_a_worker_killed_while_it_merges(cluster: Cluster, lake: Lake, packed: Path) -> None:
    """A worker whose machine dies in the middle of a merge: the other one does its part, rows are exact, and what it
    left behind is found by orphan cleanup."""
    with driver(cluster, lake, executor_settings(packed), "sink") as child:
        end_of(child, lake)
    go = lake.folder / "go"
    waits = {f"spark.executorEnv.{name}": value for name, value in failpoints.for_child(f"writing=wait:{go}").items()}
    with driver(cluster, lake, executor_settings(packed) | waits, "compact") as child:
        until_both_merge(lake)
        cluster.kill_worker(0)
        go.touch()
        told = end_of(child, lake)
    assert told["compact"]["operations"] == ["replace"]
    assert lake.rows() == rows_of(WRITTEN)
    assert set(lake.files_per_partition().values()) == {1}
    clean(lake, "events")
    assert lake.orphans() == set()


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_pass_over_all_tables(cluster: Cluster, lake: Lake, packed: Path, *, is_killed: bool) -> None:
    """While both executors merge a large table each, the driver merges the small ones. If a worker dies, the other one
    does its part: no table fails, rows are exact, and what is left behind is found by orphan cleanup."""
    rows = {"large_a": 20_000, "large_b": 20_000} | {f"small_{each}": 10 for each in "abcd"}
    for name, count in rows.items():
        table = lake.create(name, by={})
        for number in range(3):
            table.append(events(range(number * count, number * count + count)).cast(table.schema().as_arrow()))
    go = lake.folder / "go"
    waits = {f"spark.executorEnv.{name}": value for name, value in failpoints.for_child(f"writing=wait:{go}").items()}
    with driver(cluster, lake, executor_settings(packed) | waits, "maintain") as child:
        until_both_work(lake, child)
        if is_killed:
            cluster.kill_worker(0)
        go.touch()
        report = end_of(child, lake)["maintain"]
    assert (report["failed"], report["not_started"], len(report["tables"])) == ({}, [], len(rows))
    for name, count in rows.items():
        assert lake.rows(name) == rows_of(events(range(3 * count)))
        assert len(lake.files(name)) == 1
    clean(lake, *rows)
    kept = (lake.table(name).inspect.all_files().column("file_path").to_pylist() for name in rows)
    assert lake.on_disk() == {path.rsplit("/", 1)[1] for paths in kept for path in paths}


@pytest.mark.slow
def test_a_cluster_without_icesize(cluster: Cluster, lake: Lake) -> None:
    """Executors that were given nothing: the message names both Pythons and what to do; nothing is written."""
    with driver(cluster, lake, frugal_settings(), "sink") as child:
        assert child.wait(TIMEOUT_S) == 1
    told = (lake.folder / "driver.log").read_text()
    assert "EngineUnavailable: Cannot " in told
    assert "Spark's workers have no module" in told
    assert f"they run '{bare_python()}', and this driver is '{sys.executable}'" in told
    assert lake.on_disk() == set()
