"""A driver with executors of its own: `python -m tests.support.spark_child FOLDER MASTER`.

FOLDER holds `lake.db` (catalog `lake`, table `db.events`). What went wrong is printed as one line.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import icesize
from icesize.errors import IcesizeError
from tests.support.spark_lake import events, lake_catalog

POLICY = {"target-file-size-bytes": 1_000_000, "max-small-files": 3}


def session(master: str, **settings: str) -> SparkSession:
    """A quiet session without a user interface."""
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.host": "127.0.0.1"}
    quiet |= {"spark.driver.bindAddress": "127.0.0.1", "spark.sql.session.timeZone": "UTC"}
    builder = SparkSession.builder.master(master)
    for key, value in (quiet | settings).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def batches(table: icesize.SizedTable, spark: SparkSession) -> None:
    """Four batches over four partitions, each partition written by the executors."""
    sink = table.sink("s")
    for batch in range(4):
        sink(spark.createDataFrame(events(range(batch * 2000, batch * 2000 + 2000), hours=4)).repartition(4), batch)


def main(folder: Path, master: str) -> int:
    """Runs the batches; 1 when icesize refused."""
    catalog = lake_catalog(folder)
    settings = {"spark.executorEnv.PYTHONPATH": os.environ.get("EXECUTORS_PYTHONPATH", "")}
    spark = session(master, **settings)
    table = icesize.open(spark, "db.events", catalog=catalog, policy=POLICY)
    try:
        batches(table, spark)
    except IcesizeError as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
