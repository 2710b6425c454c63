"""A driver that streams a Kafka topic into `db.events`: `python -m integration.kafka_child FOLDER ADDRESS TOPIC UNTIL`.

In a process of its own, because Kafka's source needs its jars when the JVM starts, and because tests kill it. FOLDER
holds `lake.db` (catalog `lake`) and gets the checkpoint. UNTIL is `all`: it ends with what the topic holds at the
start, or `told`: it goes on until its standard input ends, and takes all that is there by then.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import icesize
from integration.jars import kafka_source_jars
from integration.servers import FRUGAL
from tests.support.spark_child import POLICY, session
from tests.support.spark_lake import lake_catalog

MAX_OFFSETS = 100
"""Offsets of one batch, over all partitions."""

COLUMNS = (
    "partition AS kafka_partition",
    "offset AS kafka_offset",
    "split_part(CAST(value AS string), ' ', 1) AS hour",
    "split_part(CAST(value AS string), ' ', 2) AS text",
)
"""Values are `hour text`."""


def stream(folder: Path, table: icesize.SizedTable, spark: SparkSession, address: str, topic: str, until: str) -> None:
    """One query from the checkpoint, or from the topic's beginning; raises what it failed with."""
    options = {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest"}
    options |= {"maxOffsetsPerTrigger": str(MAX_OFFSETS), "kafka.isolation.level": "read_committed"}
    rows = spark.readStream.format("kafka").options(**options).load().selectExpr(*COLUMNS)
    writer = rows.writeStream.foreachBatch(table.sink("s")).option("checkpointLocation", f"{folder}/checkpoint")
    if until == "all":
        writer.trigger(availableNow=True).start().awaitTermination()
        return
    query = writer.start()
    sys.stdin.read()
    query.processAllAvailable()
    query.stop()


def main(folder: Path, address: str, topic: str, until: str) -> None:
    """Streams with small batches and small files."""
    catalog = lake_catalog(folder)
    jars = ",".join(str(jar) for jar in kafka_source_jars())
    spark = session("local[2]", **FRUGAL | {"spark.jars": jars})
    table = icesize.open(spark, "db.events", catalog=catalog, policy=POLICY)
    try:
        stream(folder, table, spark, address, topic, until)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5])
