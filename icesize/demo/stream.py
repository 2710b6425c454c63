"""The driver of the demo's streaming query, a process of its own so that it can be killed.

Run as `python -m icesize.demo.stream DIR`. Each committed batch is one line on standard output. All other output,
including Spark's logs, goes to standard error.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from icesize.demo.lake import EVENTS, Lake, full_name
from icesize.spark.engine.launch import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS = "id BIGINT, event_time TIMESTAMP, hour STRING, user_id BIGINT, kind STRING, payload STRING"


def main(directory: str) -> None:
    """Run the query over all files that its checkpoint does not have."""
    import icesize

    output, lake = _keep_stdout_to_ourselves(), Lake(Path(directory))
    conf = {
        # this Spark ends after a few batches, too soon to be worth thorough compilation
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(lake.directory / "spark"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
    }
    spark = start_session("icesize demo", master=f"local[{min(4, os.cpu_count() or 1)}]", conf=conf)
    try:
        run = icesize.open(spark, full_name(EVENTS), catalog=lake.catalog()).sink("demo").run

        def sink(df: DataFrame, batch_id: int) -> None:
            began = time.monotonic()
            report = run(df, batch_id)
            print(
                f"  batch {batch_id:>2}  {time.monotonic() - began:4.1f} s  {report.rows:,} rows, "
                f"files +{report.files_added} -{report.files_removed}, "
                f"at most {report.small_files_max} small in an hour",
                file=output,
                flush=True,
            )

        events = spark.readStream.schema(_COLUMNS).option("maxFilesPerTrigger", 1).parquet(lake.events.as_uri())
        writer = events.writeStream.foreachBatch(sink).trigger(availableNow=True)
        writer.option("checkpointLocation", (lake.directory / "checkpoint").as_uri()).start().awaitTermination()
    finally:
        spark.stop()


def _keep_stdout_to_ourselves() -> TextIO:
    """Return standard output under a number that no child inherits; the JVM and its logs get standard error instead."""
    ours = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return os.fdopen(ours, "w", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
