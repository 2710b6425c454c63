"""The driver of one streaming query of the demo, a process of its own so that it can be killed.

Run as `python -m icesize.demo.stream DIR TABLE plain|icesize`. Each committed batch is one line of JSON on standard
output; everything else, Spark's logs included, goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from icesize.demo.events import SCHEMA
from icesize.demo.lake import Lake, full_name, newest_files
from icesize.spark.engine.launch import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM_ID = "demo"

_COLUMNS = "id BIGINT, event_time TIMESTAMP, hour STRING, user_id BIGINT, kind STRING, payload STRING"
_Write = Callable[["DataFrame", int], str]
"""Writes one batch and says in words what came of it."""


def main(directory: str, table: str, how: str) -> None:
    """Run the query over all files that its checkpoint has not seen."""
    output = _keep_stdout_to_ourselves()
    lake = Lake(Path(directory))

    spark = start_session(f"icesize demo: {how}", master=f"local[{min(4, os.cpu_count() or 1)}]", conf=_settings(lake))
    try:
        write = _with_icesize(spark, lake, table) if how == "icesize" else _plainly(lake, table)

        def sink(df: DataFrame, batch_id: int) -> None:
            began = time.monotonic()
            words = write(df, batch_id)
            told = {"batch": batch_id, "seconds": time.monotonic() - began, "words": words}
            print(json.dumps(told), file=output, flush=True)

        events = spark.readStream.schema(_COLUMNS).option("maxFilesPerTrigger", 1).parquet(lake.events.as_uri())
        writer = events.writeStream.foreachBatch(sink).trigger(availableNow=True)
        query = writer.option("checkpointLocation", (lake.directory / "checkpoints" / table).as_uri()).start()
        query.awaitTermination()
    finally:
        spark.stop()


def _keep_stdout_to_ourselves() -> TextIO:
    """Our standard output under a number that no child inherits; the JVM and its logs get standard error instead."""
    ours = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return os.fdopen(ours, "w", encoding="utf-8")


def _settings(lake: Lake) -> dict[str, str]:
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(lake.directory / "spark"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
    }


def _plainly(lake: Lake, table: str) -> _Write:
    """Each batch appended as it is. Like most foreachBatch functions it knows nothing of replayed batches."""
    from icesize.spark.engine.jobs import fetch

    catalog = lake.catalog()

    def append(df: DataFrame, batch_id: int) -> str:
        loaded = catalog.load_table(full_name(table).partition(".")[2])
        loaded.append(fetch(df).cast(SCHEMA))
        return f"{newest_files(loaded)} files added"

    return append


def _with_icesize(spark: SparkSession, lake: Lake, table: str) -> _Write:
    import icesize

    sink = icesize.open(spark, full_name(table), catalog=lake.catalog()).sink(STREAM_ID)

    def commit(df: DataFrame, batch_id: int) -> str:
        report = sink.run(df, batch_id)
        if report.already_committed:
            return "committed already, skipped"
        changed = f"{report.files_added} files added, {report.files_removed} merged away"
        return f"{changed}, at most {report.small_files_max} small in a partition"

    return commit


if __name__ == "__main__":
    main(*sys.argv[1:])
