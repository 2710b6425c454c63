"""A driver of long or large runs: `python -m integration.long_child FOLDER ACTION OPTIONS`.

FOLDER holds `lake.db` (catalog `lake`, table `db.events`). OPTIONS is JSON, the keywords of the action. The last line
that it prints is JSON: what the run came to.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha512
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from icesize.spark.stream.sink import Sink
from integration.kafka_child import FRUGAL
from tests.support.processes import Processes
from tests.support.spark_child import session
from tests.support.spark_lake import Lake, events, lake_catalog

ROOT = Path(__file__).parents[1]

BATCHES = 500
MEASURED_EVERY = 50
ROWS_PER_BATCH = 100
BATCHES_PER_HOUR = 10
EXPIRE_EVERY = 10

LARGE_ROWS = 5_800_000
"""Rows of about 190 bytes in Arrow: a little more than 1 GiB."""

TEXT = r"translate(base64(unhex(concat(sha2(concat(id, 'a'), 512), sha2(concat(id, 'b'), 512)))), '\r\n', '')"
"""172 characters that no compression makes smaller than the 128 random bytes in them; Spark's words for `text_of`."""


def rows_of_batch(number: int) -> pa.Table:
    """A hundred rows: three of four in the newest hour, which ends after ten batches, the others in the one before."""
    first = number * ROWS_PER_BATCH
    rows = events(range(first, first + ROWS_PER_BATCH))
    newest = number // BATCHES_PER_HOUR
    hours = [f"h{newest - (i % 4 == 3)}" for i in range(ROWS_PER_BATCH)]
    return rows.set_column(1, "hour", pa.array(hours))


def text_of(number: int) -> str:
    """The text of a row of a large batch."""
    return b64encode(b"".join(sha512(f"{number}{part}".encode()).digest() for part in "ab")).decode()


def batches(lake: Lake, merge: str) -> dict[str, Any]:
    """Small batches through one sink, which merges and expires; what the process holds after each fifty of them."""
    spark = session("local[2]", **FRUGAL)
    sink = lake.open(spark).sink("s", merge=merge, expire_every=EXPIRE_EVERY)
    held = []
    for number in range(BATCHES):
        sink(spark.createDataFrame(rows_of_batch(number)), number)
        if (number + 1) % MEASURED_EVERY == 0:
            held.append({"batches": number + 1, **_held(sink)})
    spark.stop()
    return {"held": held}


def _held(sink: Sink) -> dict[str, int]:
    """What this process holds when nothing is under way, and the JVM below it for comparison."""
    sink.drain()
    gc.collect()
    process = psutil.Process()
    jvm = [child.memory_info().rss for child in process.children() if child.name() == "java"]
    return {
        "bytes": process.memory_info().rss,
        "objects": len(gc.get_objects()),
        "threads": threading.active_count(),
        "open_files": process.num_fds(),
        "jvm_bytes": sum(jvm),
    }


def large(lake: Lake, hours: int, target_bytes: int, statistics: str) -> dict[str, Any]:
    """One batch of 1 GiB that executors of 1 GiB make and write; what became of them."""
    settings = {
        "spark.executor.memory": "1g",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.local.dir": f"{lake.folder}/local",
    }
    spark = session("local-cluster[2,1,1024]", **settings)
    try:
        sink = lake.open(spark, target_file_size_bytes=target_bytes).sink("s", statistics=statistics)
        report = sink.run(large_rows(spark, hours), 0)
        return {
            "report": report.to_dict(),
            "worker_peak_bytes": Processes().worker_peak_bytes(),
            "executors": _executors(spark),
        }
    finally:
        spark.stop()


def large_rows(spark: SparkSession, hours: int) -> DataFrame:
    """Rows that executors make, each hour in every task."""
    return spark.range(0, LARGE_ROWS, 1, 16).selectExpr("id", f"concat('h', id % {hours}) AS hour", f"{TEXT} AS text")


def _executors(spark: SparkSession) -> list[dict[str, Any]]:
    """Every executor that ever was, the driver aside, with its tasks."""
    context: Any = spark.sparkContext._jsc
    listed = context.sc().statusStore().executorList(False)
    every = [listed.apply(i) for i in range(listed.size())]
    return [
        {"id": e.id(), "alive": e.isActive(), "tasks": e.completedTasks(), "failed": e.failedTasks()}
        for e in every
        if e.id() != "driver"
    ]


ACTIONS: dict[str, Callable[..., dict[str, Any]]] = {"batches": batches, "large": large}


def main(folder: Path, action: str, options: dict[str, Any]) -> None:
    """Runs one action to its end."""
    catalog = lake_catalog(folder)
    print(json.dumps(ACTIONS[action](Lake(catalog, folder), **options)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
