"""The driver of one streaming query of the demo, a process of its own so that it can be killed.

Run as `python -m icesize.demo.stream DIR icesize`, or as `DIR race JAR` or `DIR merge JAR` with Iceberg's runtime for
Spark (a file, or the Maven coordinates from which Spark fetches it). Each committed batch is one line of JSON on
standard output. All other output, including Spark's logs, goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from icesize.demo.lake import ACCOUNTS, EVENTS, RACE_ICEBERG, RACE_ICESIZE, Lake, full_name
from icesize.spark.engine.launch import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from icesize.report import Report

STREAM_ID = "demo"

SHORT_LIVED = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Settings for a Spark that ends after a few batches, too soon to be worth thorough compilation."""

_COLUMNS = "id BIGINT, event_time TIMESTAMP, hour STRING, user_id BIGINT, kind STRING, payload STRING"
_RACE_CATALOG = "iceberg"
"""Spark's name for a catalog that is a directory: it needs no other jar, and the lake registers its table later."""
_Take = Callable[["DataFrame", int], dict[str, Any]]
"""Writes one batch and returns its result."""


def main(directory: str, how: str, jar: str = "") -> None:
    """Run the query over all files that its checkpoint does not have."""
    output = _keep_stdout_to_ourselves()
    lake = Lake(Path(directory))

    spark = start(lake, f"icesize demo: {how}", _race_settings(lake, jar) if jar else SHORT_LIVED)
    try:
        if how == "merge":
            for batch in _merge(spark, lake):
                print(json.dumps(batch), file=output, flush=True)
            return
        take = _race(spark, lake) if how == "race" else _with_icesize(spark, lake)

        def sink(df: DataFrame, batch_id: int) -> None:
            print(json.dumps({"batch": batch_id, **take(df, batch_id)}), file=output, flush=True)

        events = spark.readStream.schema(_COLUMNS).option("maxFilesPerTrigger", 1).parquet(lake.events.as_uri())
        writer = events.writeStream.foreachBatch(sink).trigger(availableNow=True)
        query = writer.option("checkpointLocation", (lake.directory / "checkpoints" / how).as_uri()).start()
        query.awaitTermination()
        if how == "race":
            _register(lake)
    finally:
        spark.stop()


def start(lake: Lake, app: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a small local Spark session that keeps its files in the lake; raise EngineUnavailable on failure."""
    ours = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(lake.directory / "spark"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
    }
    return start_session(app, master=f"local[{min(4, os.cpu_count() or 1)}]", conf={**ours, **settings})


def _keep_stdout_to_ourselves() -> TextIO:
    """Return standard output under a number that no child inherits; the JVM and its logs get standard error instead."""
    ours = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return os.fdopen(ours, "w", encoding="utf-8")


def _with_icesize(spark: SparkSession, lake: Lake) -> _Take:
    run = _sink(spark, lake, EVENTS)

    def take(df: DataFrame, batch_id: int) -> dict[str, Any]:
        began = time.monotonic()
        report = run(df, batch_id)
        return {
            "seconds": time.monotonic() - began,
            "rows": report.rows,
            "files_added": report.files_added,
            "files_removed": report.files_removed,
            "small_files_max": report.small_files_max,
        }

    return take


def _sink(spark: SparkSession, lake: Lake, table: str) -> Callable[[DataFrame, int], Report]:
    import icesize

    return icesize.open(spark, full_name(table), catalog=lake.catalog()).sink(STREAM_ID).run


def _race_settings(lake: Lake, jar: str) -> dict[str, str]:
    catalog = f"spark.sql.catalog.{_RACE_CATALOG}"
    return {
        "spark.jars" if Path(jar).exists() else "spark.jars.packages": jar,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": (lake.directory / "iceberg").as_uri(),
    }


def _race(spark: SparkSession, lake: Lake) -> _Take:
    """Return a function that writes each batch to two tables, with Iceberg's own writer and with icesize, in turns.

    Every other batch, the other writer goes first.
    """
    target = lake.load(RACE_ICESIZE).properties["write.target-file-size-bytes"]
    theirs = f"{_RACE_CATALOG}.demo.{RACE_ICEBERG}"
    spark.sql(
        f"CREATE TABLE {theirs} ({_COLUMNS}) USING iceberg PARTITIONED BY (hour) "
        f"TBLPROPERTIES ('write.target-file-size-bytes'='{target}')"
    )
    ours = _sink(spark, lake, RACE_ICESIZE)
    writers: dict[str, Callable[[DataFrame, int], object]] = {
        "iceberg": lambda df, batch_id: df.writeTo(theirs).append(),
        "icesize": ours,
    }

    def take(df: DataFrame, batch_id: int) -> dict[str, Any]:
        seconds = {}
        for name in sorted(writers, reverse=batch_id % 2 == 1):
            began = time.monotonic()
            writers[name](df, batch_id)
            seconds[name] = time.monotonic() - began
        return {"seconds": seconds}

    return take


def _merge(spark: SparkSession, lake: Lake) -> Iterator[dict[str, Any]]:
    """Merge the changes of accounts into a table of Iceberg's, batch by batch; yield the cost of each."""
    first, *batches = sorted(lake.changes.glob("*.parquet"))
    table = f"{_RACE_CATALOG}.demo.{ACCOUNTS}"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, change BIGINT, balance BIGINT, owner STRING) USING iceberg "
        "TBLPROPERTIES ('write.merge.mode'='merge-on-read')"
    )
    spark.read.parquet(first.as_uri()).drop("op").writeTo(table).append()
    for number, file in enumerate(batches, 1):
        began = time.monotonic()
        spark.read.parquet(file.as_uri()).createOrReplaceTempView("changes")
        spark.sql(
            f"MERGE INTO {table} t USING changes s ON t.id = s.id WHEN MATCHED AND s.change > t.change "
            "AND s.op = 'd' THEN DELETE WHEN MATCHED AND s.change > t.change THEN UPDATE SET * "
            "WHEN NOT MATCHED AND s.op != 'd' THEN INSERT *"
        )
        seconds = time.monotonic() - began
        files = spark.table(f"{table}.files").select("content").collect()
        snapshots = spark.table(f"{table}.snapshots").select("summary").collect()
        yield {
            "batch": number, "seconds": seconds, "files": sum(row.content == 0 for row in files),
            "delete_files": sum(row.content != 0 for row in files),
            "bytes": sum(int(row.summary.get("added-files-size", 0)) for row in snapshots),
        }  # fmt: skip


def _register(lake: Lake) -> None:
    """Register Iceberg's table in the lake, so that icesize's commands can read it like the others."""
    metadata = lake.directory / "iceberg" / "demo" / RACE_ICEBERG / "metadata"
    newest = (metadata / "version-hint.text").read_text().strip()
    lake.register(RACE_ICEBERG, (metadata / f"v{newest}.metadata.json").as_uri())


if __name__ == "__main__":
    main(*sys.argv[1:])
