"""A driver on a standalone cluster: `python -m integration.standalone_child FOLDER MASTER SETTINGS STEP [STEP ...]`.

FOLDER holds `lake.db` (catalog `lake`, table `db.events`). SETTINGS is JSON, Spark's. Executors do all the work,
however little it is. Prints what the steps came to as one line of JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed

import icesize
from icesize.environment import Environment, WorkLimits
from icesize.sized_table import SizedTable
from tests.support.spark_child import POLICY, session
from tests.support.spark_lake import Lake, events, lake_catalog

BATCHES, ROWS = 4, 2000
"""Of the stream."""
LARGE_BYTES = 20_000
"""Work above which the pass over all tables leaves a group to the executors."""
TIMEOUT_S = 600


@dataclass(frozen=True)
class Driver:
    """One session on the cluster."""

    spark: SparkSession
    table: SizedTable
    lake: Lake

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

    def maintain(self) -> dict[str, Any]:
        """All tables; makes the file `both` when both executors work and the small tables are done."""
        environment = Environment(limits=WorkLimits(driver_merge_bytes=LARGE_BYTES))
        watcher = threading.Thread(target=self._note_both)
        watcher.start()
        report = icesize.maintain("lake.db.*", spark=self.spark, catalog=self.lake.catalog, environment=environment)
        watcher.join()
        return report.to_dict()

    def _note_both(self) -> None:
        self._are_both_at_work()
        (self.lake.folder / "both").touch()

    @retry(retry=retry_if_result(lambda both: not both), wait=wait_fixed(0.1), stop=stop_after_delay(TIMEOUT_S))
    def _are_both_at_work(self) -> bool:
        tracker = self.spark.sparkContext._jsc.sc().statusTracker()
        tasks = [executor.numRunningTasks() for executor in tracker.getExecutorInfos()]
        small = [name for _, name in self.lake.catalog.list_tables("db") if name.startswith("small")]
        return sum(map(bool, tasks)) == 2 and all(len(self.lake.files(name)) == 1 for name in small)


def main(folder: Path, master: str, settings: dict[str, str], steps: list[str]) -> None:
    """Runs the steps."""
    catalog = lake_catalog(folder)
    spark = session(master, **settings)
    environment = Environment(limits=WorkLimits(driver_merge_bytes=-1, driver_copy_bytes=-1))
    table = icesize.open(spark, "db.events", catalog=catalog, policy=POLICY, environment=environment)
    driver = Driver(spark, table, Lake(catalog, folder))
    print(json.dumps({step: getattr(driver, step)() for step in steps}))
    spark.stop()
    catalog.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), sys.argv[4:])
