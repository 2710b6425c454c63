"""A driver whose rows are made, written and merged by workers that a test may kill.

`python -m integration.faults.cluster_child FOLDER MASTER SETTINGS`: FOLDER holds `lake.db` (catalog `lake`, table
`db.events`) and one folder of Parquet files for each batch in `in`, named by its id. Each time a task makes rows of a
batch it leaves a file in `made`, and hands them over in another order: as any source may that is read again. Reports
are pickled to `reports`. SETTINGS is JSON: `spark`, `sink` and `policy` are options of each; with `merges_in_spark` no
merge is so small that the driver makes it, with `in_hand` batches are written by the driver. What went wrong is printed
as one line.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import icesize
from icesize import failpoints
from icesize.environment import Environment, WorkLimits
from icesize.errors import IcesizeError
from icesize.report import Report
from tests.support.spark_child import POLICY, session
from tests.support.spark_lake import SCHEMA, Lake, lake_catalog

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600


@contextmanager
def driver(lake: Lake, master: str, batches: Iterable[pa.Table], **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """A driver that takes the batches in, under SETTINGS; it is killed when the block ends early."""
    for number, rows in enumerate(batches):
        folder = lake.folder / "in" / f"{number:03}"
        folder.mkdir(parents=True, exist_ok=True)
        half = rows.num_rows // 2
        for part, some in enumerate((rows.slice(0, half), rows.slice(half))):
            pq.write_table(some, folder / f"{part}.parquet")
    command = [sys.executable, "-m", "integration.faults.cluster_child", str(lake.folder), master, json.dumps(settings)]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    with (lake.folder / "child.log").open("w") as log:
        child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    with child:
        try:
            yield child
        finally:
            child.kill()


def end_of(child: subprocess.Popen[str], lake: Lake) -> tuple[str, list[Report]]:
    """Wait for a driver: what it refused, empty when it refused nothing, and its reports."""
    printed, _ = child.communicate(timeout=TIMEOUT_S)
    assert child.returncode == bool(printed), printed + (lake.folder / "child.log").read_text()
    return printed, pickle.loads((lake.folder / "reports").read_bytes())


def run_driver(lake: Lake, master: str, batches: Iterable[pa.Table], **settings: Any) -> tuple[str, list[Report]]:
    """A driver from its start to its end."""
    with driver(lake, master, batches, **settings) as child:
        return end_of(child, lake)


def workers(failpoint: str = "", startup: Path | None = None) -> dict[str, str]:
    """Settings of Spark that arm a failpoint in workers, not in the driver; each runs `sitecustomize` of a folder."""
    variables = failpoints.for_child(failpoint) if failpoint else {}
    armed = {f"spark.executorEnv.{name}": value for name, value in variables.items()}
    path = os.pathsep.join(str(p) for p in (startup, ROOT) if p)
    return {"spark.executorEnv.PYTHONPATH": path, **armed}


@dataclass(frozen=True)
class Source:
    """Makes the rows of a task, each time in another order."""

    made: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        Path(self.made, uuid.uuid4().hex).touch()
        for batch in batches:
            yield batch.take(random.sample(range(batch.num_rows), batch.num_rows))


def rows_of_batch(spark: SparkSession, folder: Path, number: Path, in_hand: bool) -> DataFrame:
    """One batch; with `in_hand` a cheap one."""
    df = spark.read.schema(SCHEMA).parquet(str(number))
    return df if in_hand else df.mapInArrow(Source(str(folder / "made")), df.schema)


def run(folder: Path, master: str, settings: dict[str, Any], reports: list[Report]) -> None:
    """All batches through one sink."""
    limits = WorkLimits(driver_merge_bytes=-1) if settings.get("merges_in_spark") else WorkLimits()
    catalog = lake_catalog(folder)
    spark = session(master, **{"spark.local.dir": f"{folder}/local"}, **settings.get("spark", {}))
    policy, environment = POLICY | settings.get("policy", {}), Environment(limits=limits)
    table = icesize.open(spark, "db.events", catalog=catalog, policy=policy, environment=environment)
    sink = table.sink("s", listener=reports.append, **settings.get("sink", {}))
    try:
        for number in sorted((folder / "in").iterdir()):
            sink(rows_of_batch(spark, folder, number, settings.get("in_hand", False)), int(number.name))
    finally:
        spark.stop()
        catalog.close()


def main(folder: Path, master: str, settings: dict[str, Any]) -> int:
    """Runs all batches; 1 when icesize refused."""
    reports: list[Report] = []
    os.makedirs(folder / "made", exist_ok=True)
    try:
        run(folder, master, settings, reports)
    except IcesizeError as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    finally:
        (folder / "reports").write_bytes(pickle.dumps(reports))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])))
