"""A driver on a standalone cluster: `python -m integration.standalone_child FOLDER MASTER SETTINGS STEP [STEP ...]`.

FOLDER holds `lake.db` (catalog `lake`, table `db.events`). SETTINGS is JSON, Spark's. Executors do all the work,
however little it is. Prints what the steps came to as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import icesize
from icesize.environment import Environment, WorkLimits
from icesize.sized_table import SizedTable
from tests.support.spark_child import POLICY, session
from tests.support.spark_lake import events, lake_catalog

BATCHES, ROWS = 4, 2000
"""Of the stream."""


@dataclass(frozen=True)
class Driver:
    """One session on the cluster."""

    spark: SparkSession
    table: SizedTable

    def sink(self) -> dict[str, Any]:
        """Batches over four partitions, written by two tasks each."""
        sink = self.table.sink("s", write_tasks=2)
        for batch in range(BATCHES):
            rows = events(range(batch * ROWS, (batch + 1) * ROWS), hours=4)
            report = sink.run(self.spark.createDataFrame(rows).repartition(4), batch)
        return report.to_dict()

    def compact(self) -> dict[str, Any]:
        """All small files."""
        return self.table.compact().to_dict()

    def cluster(self) -> dict[str, Any]:
        """By a column that files overlap in."""
        return self.table.cluster(by=["text"]).to_dict()


def main(folder: Path, master: str, settings: dict[str, str], steps: list[str]) -> None:
    """Runs the steps."""
    catalog = lake_catalog(folder)
    spark = session(master, **settings)
    environment = Environment(limits=WorkLimits(driver_merge_bytes=-1, driver_copy_bytes=-1))
    driver = Driver(spark, icesize.open(spark, "db.events", catalog=catalog, policy=POLICY, environment=environment))
    print(json.dumps({step: getattr(driver, step)() for step in steps}))
    spark.stop()
    catalog.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), sys.argv[4:])
