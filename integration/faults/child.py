"""A driver or a maintenance job that a test may kill: `python -m integration.faults.child FOLDER ACTION`.

FOLDER is that of a `FaultedTable`: the catalog `lake.db`, its table `db.events`, and for drivers JSON files in `in`.
Each report is printed as one line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import icesize
from icesize import failpoints
from icesize.environment import Environment
from icesize.report import Report
from icesize.sized_table import SizedTable
from icesize.table.cleanup.expiry import ExpiryReport, expire
from icesize.table.cleanup.orphans import OrphanReport, OrphanSearch
from icesize.table.cleanup.retention_inputs import ExpireOptions
from icesize.table.state.handle import TableHandle
from icesize.table.storage import bulk_delete
from tests.support.spark_child import POLICY, session
from tests.support.spark_lake import Lake, lake_catalog, run

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600

STREAMS: dict[str, dict[str, Any]] = {
    "append": {},
    "absorb": {"placement": "absorb"},
    "absorb-once": {"placement": "absorb", "stream_safe": False},
    "async": {"merge": "async"},
    "killed-merging": {"merge": "async"},
    "killed-writing": {},
}
"""Drivers, by the options of their sinks. `killed-merging` dies when a merge beside the batches has written its files,
`killed-writing` when a worker has begun a file.
"""

FILES_BETWEEN_CHECKS = 2
"""Files that expiry and orphan cleanup delete between two looks at the table here, so that a kill falls between."""


def run_child(lake: Lake, action: str, armed: str = "") -> tuple[int, list[dict[str, Any]]]:
    """Run one action in a process of its own, with failpoints `armed` as their variable has it.

    Returns the exit code (0, or killed) and the reports.
    """
    command = [sys.executable, "-m", "integration.faults.child", str(lake.folder), action]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable} | failpoints.for_child(armed)
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stdout + done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def stream(lake: Lake, how: str) -> None:
    """Everything in `in`, one file per batch."""
    spark = session("local[2]")
    try:
        sink = lake.open(spark).sink("s", listener=tell, **STREAMS[how])
        if how == "killed-writing":
            threading.Thread(target=_die_at_a_new_file, args=(lake,), daemon=True).start()
        with _dying_while_merging() if how == "killed-merging" else nullcontext():
            run(spark, lake, sink)
            sink.drain()
    finally:
        spark.stop()


def tell(report: Report) -> None:
    """One line for the test."""
    print(json.dumps(report.to_dict()), flush=True)


def _dying_while_merging() -> AbstractContextManager[None]:
    def die() -> None:
        if threading.current_thread().name == "icesize-background":
            os.kill(os.getpid(), signal.SIGKILL)

    return failpoints.armed("files-written", die)


def _die_at_a_new_file(lake: Lake) -> None:
    known = lake.on_disk()
    while lake.on_disk() <= known:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def _expire(handle: TableHandle) -> ExpiryReport:
    options = ExpireOptions(older_than=timedelta(0), retain_last=1)
    return expire(handle, options, Environment())


def _remove_orphans(handle: TableHandle) -> OrphanReport:
    return OrphanSearch(handle.name, lambda: handle.load().table).run(dry_run=False)


JOBS: dict[str, Callable[[SizedTable, TableHandle], Any]] = {
    "compact": lambda table, handle: table.compact(),
    "cluster": lambda table, handle: table.cluster(["id"]),
    "expire": lambda table, handle: _expire(handle),
    "orphans": lambda table, handle: _remove_orphans(handle),
}
"""Maintenance, without Spark."""

TINY = {"cluster": {"target-file-size-bytes": 3_000, "small-file-limit-bytes": 1_000}}
"""Sizes at which a job has more to do than to merge everything."""


def maintain(lake: Lake, job: str) -> None:
    """One job on the table."""
    policy = POLICY | TINY.get(job, {})
    table = icesize.open(None, "db.events", catalog=lake.catalog, policy=policy)
    report = JOBS[job](table, TableHandle(lake.catalog, ("db", "events"), policy))
    print(json.dumps(report.to_dict()))


def main(folder: Path, action: str) -> None:
    """Runs one action to its end."""
    bulk_delete.FILES_BETWEEN_CHECKS = FILES_BETWEEN_CHECKS
    lake = Lake(lake_catalog(folder), folder)
    maintain(lake, action) if action in JOBS else stream(lake, action)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
