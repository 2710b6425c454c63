"""Stream events into an Iceberg table through icesize, from Kafka or from Spark's rate source.

Alone, the program needs no other service. It creates a SQLite catalog and the table in one directory, and reads Spark's
rate source:

    python examples/stream.py --folder /tmp/icesize-example --batches 10

In `examples/compose.yaml`, the same program uses a REST catalog, an S3 store and Kafka. Only the environment differs:
PyIceberg's variables configure the catalog (`PYICEBERG_CATALOG__LAKE__URI`, ...), and KAFKA and TOPIC the source. Spark
needs no Iceberg jar, because icesize writes the table's files and commits them.
"""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import HourTransform
from pyiceberg.types import LongType, NestedField, TimestamptzType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import icesize

NAME = "lake.shop.clicks"
SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "user_id", LongType()), NestedField(3, "at", TimestamptzType())
)
BY_HOUR = PartitionSpec(PartitionField(3, 1000, HourTransform(), "at_hour"))
KAFKA_JAR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1"


def main() -> None:
    """Stream until the table contains the number of batches, then print its state."""
    options = _options()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("icesize").setLevel(logging.INFO)  # one line for each batch

    catalog = _catalog(options.folder)
    catalog.create_namespace_if_not_exists("shop")
    catalog.create_table_if_not_exists("shop.clicks", SCHEMA, partition_spec=BY_HOUR)

    spark = _spark(options.folder)
    try:
        table = icesize.open(spark, NAME, catalog=catalog)
        query = (
            _events(spark)
            .writeStream.foreachBatch(table.sink(stream_id="clicks"))
            .option("checkpointLocation", str(options.folder / "checkpoint"))
            .trigger(processingTime="2 seconds")
            .start()
        )
        while not options.batches or len(table.history().batches) < options.batches:
            if query.awaitTermination(1):
                break
        query.stop()
        print(table.inspect())
        print(table.history())
    finally:
        spark.stop()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("/tmp/icesize-example"), help="where the files go")
    parser.add_argument("--batches", type=int, default=0, help="number of batches after which to end; 0: never")
    return parser.parse_args()


def _catalog(folder: Path) -> Catalog:
    """Return the catalog that PyIceberg's variables configure, or a SQLite catalog in the directory."""
    folder.mkdir(parents=True, exist_ok=True)
    if "PYICEBERG_CATALOG__LAKE__URI" in os.environ:
        return load_catalog("lake")
    return load_catalog("lake", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())


def _spark(folder: Path) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("icesize example")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.ui.showConsoleProgress", "false")
    if "KAFKA" in os.environ:
        builder = builder.config("spark.jars.packages", KAFKA_JAR).config("spark.jars.ivy", str(folder / "ivy"))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _events(spark: SparkSession) -> DataFrame:
    """Return events of either source; some are hours late, so they leave small files in many partitions."""
    if "KAFKA" not in os.environ:
        ticks = spark.readStream.format("rate").option("rowsPerSecond", 500).load()
        late = sf.make_interval(hours=sf.col("value") % 6)
        return ticks.select(
            sf.col("value").alias("id"),
            (sf.col("value") % 97).alias("user_id"),
            (sf.col("timestamp") - late).alias("at"),
        )
    messages = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", os.environ["KAFKA"])
        .option("subscribe", os.environ["TOPIC"])
        .option("startingOffsets", "earliest")
        .load()
    )
    event = sf.from_json(sf.col("value").cast("string"), "id long, user_id long, at timestamp")
    return messages.select(event.alias("event")).select("event.*")


if __name__ == "__main__":
    main()
