"""Work on a real S3 server whose answers take some milliseconds: icesize against Iceberg's Spark and PyIceberg.

    python -m benchmarks object-store [--latency 30] [--cases small,tiny,large,full,parts,stream,passes]
        [--ways icesize,overwrite,rewrite] [--batches 12] [--tables 30] [--json]

Requests are those in the log of the server, so they are exact and do not depend on the machine. Seconds only compare
within a row. USD are the prices of Amazon S3 for 1,000 such runs: 0.4 for a million reads, 5 for a million writes and
listings. A compaction is a whole process, from its start to its end; CPU seconds and memory are those of icesize's. A
batch is 20,000 rows into 24 partitions, with its merges; the median of the batches after the first four counts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

import icesize
from benchmarks.show import finish
from integration.object_store import ObjectStore, object_store, toxiproxy_server

BUCKET, TABLE = "lake", "db.t"
COMPACTIONS = {
    "small": (400, 5_000, 1), "tiny": (2_000, 500, 1), "large": (40, 200_000, 1), "full": (20, 1_600_000, 1),
    "parts": (300, 7_500, 3),
}  # fmt: skip
"""Files, rows of each, partitions: files of about 120 KiB, 14 KiB, 4 MiB, 32 MiB and 180 KiB."""
ROWS, PARTITIONS, KEYS = 20_000, 24, 80_000
FIRST = 4
"""Batches that warm a stream up."""
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "p", IntegerType(), required=False),
    NestedField(3, "name", StringType(), required=False),
    NestedField(4, "v", DoubleType(), required=False),
    NestedField(5, "w", DoubleType(), required=False),
)
BY_P = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))


_REQUEST = re.compile(r" s3_(\w+) ")
_USD_READ, _USD_WRITE = 0.4e-6, 5e-6
"""Prices of requests to Amazon S3 Standard in us-east-1; deletes are free."""
_MEASURED = Path(__file__).with_name("measured.py")


@dataclass(frozen=True)
class Cost:
    """The cost of some work; `process` is that of its process, if it was one of icesize."""

    seconds: float
    requests: Counter[Any]
    process: dict[str, float] | None = None


@dataclass(frozen=True)
class Lake:
    """A warehouse in an S3 server; clients that are measured go through the slow `endpoint`."""

    folder: Path
    store: ObjectStore
    endpoint: str

    def properties(self, endpoint: str = "") -> dict[str, str]:
        """Return the properties of the catalog for PyIceberg."""
        place = {"uri": f"sqlite:///{self.folder}/c.db", "warehouse": f"s3://{BUCKET}/wh"}
        return place | self.store.properties(endpoint)

    def catalog(self, endpoint: str = "") -> SqlCatalog:
        return SqlCatalog("lake", **self.properties(endpoint))

    def java(self) -> dict[str, str]:
        """Return the settings of the catalog for Spark, with Iceberg's S3FileIO."""
        jdbc = {"type": "jdbc", "uri": f"jdbc:sqlite:file:{self.folder}/c.db", "jdbc.schema-version": "V1"}
        settings = self.store.java_properties() | {"s3.endpoint": self.endpoint, "cache-enabled": "false"}
        return jdbc | {"warehouse": f"s3://{BUCKET}/wh"} | settings

    def icesize(self, *arguments: str) -> dict[str, float]:
        """Run a command in a process of its own; return its cost."""
        prefix = "PYICEBERG_CATALOG__LAKE__"
        settings = {"type": "sql", **self.properties(self.endpoint)}
        names = {prefix + key.upper().replace(".", "__").replace("-", "_"): value for key, value in settings.items()}
        command = [sys.executable, "-I", "-S", str(_MEASURED), sys.executable, "-m", "icesize", *arguments]
        done = subprocess.run(command, env=os.environ | names, check=True, stdout=subprocess.PIPE)
        cost: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return cost

    def measured(self, work: Callable[[], dict[str, float] | None]) -> Cost:
        """Return the seconds of the work and its requests by name."""
        before, began = self.log.stat().st_size, time.perf_counter()
        process = work()
        seconds = time.perf_counter() - began
        with self.log.open() as log:
            log.seek(before)
            return Cost(seconds, Counter(_REQUEST.findall(log.read())), process)

    @property
    def log(self) -> Path:
        return self.folder / "access.log"


@contextmanager
def _lake(latency_ms: int) -> Iterator[Lake]:
    with tempfile.TemporaryDirectory(prefix="icesize-benchmark-") as name:
        folder = Path(name)
        with object_store(folder, folder / "access.log") as store, toxiproxy_server(folder) as proxies:
            store.client().create_bucket(Bucket=BUCKET)
            line = proxies.proxy("slow", store.endpoint)
            line.add("latency", latency=latency_ms)
            lake = Lake(folder, store, line.endpoint)
            lake.catalog().create_namespace("db")
            yield lake


def _compaction(lake: Lake, case: str, ways: Sequence[str]) -> list[dict[str, Any]]:
    """Compact the same table in each way; its rows are counted after each."""
    files, rows, partitions = COMPACTIONS[case]
    catalog, random = lake.catalog(), np.random.default_rng(1)
    spec = BY_P if partitions > 1 else PartitionSpec()
    target = {"write.target-file-size-bytes": str(128 * 2**20)}
    table = catalog.create_table(TABLE, SCHEMA, partition_spec=spec, properties=target)
    paths = [f"s3://{BUCKET}/wh/db/t/data/f{number:05}.parquet" for number in range(files)]
    for number, path in enumerate(paths):
        with table.io.new_output(path).create() as stream:
            pq.write_table(_rows(random, number, rows, number % partitions), stream, compression="zstd")
    table.add_files(paths, check_duplicate_files=False)
    original, found = lake.folder / "original.db", list[dict[str, Any]]()
    shutil.copy(lake.folder / "c.db", original)
    for way in ways:
        shutil.copy(original, lake.folder / "c.db")
        cost = lake.measured(partial(_COMPACT[way], lake))
        tasks = list(lake.catalog().load_table(TABLE).scan().plan_files())
        exact = sum(task.file.record_count for task in tasks) == files * rows
        found.append(_row(f"compact {case}: {files} files", way, cost, exact, len(tasks)))
    lake.catalog().drop_table(TABLE)
    return found


def _rows(random: np.random.Generator, number: int, rows: int, partition: int) -> pa.Table:
    columns = [
        np.arange(rows) + number * rows, np.full(rows, partition, np.int32),
        [f"n{each}" for each in random.integers(0, 5_000, rows)], random.random(rows), random.random(rows),
    ]  # fmt: skip
    return pa.table(columns, schema=SCHEMA.as_arrow())


def _overwrite(lake: Lake) -> None:
    program = (
        "import sys, json; from pyiceberg.catalog.sql import SqlCatalog\n"
        f"t = SqlCatalog('lake', **json.loads(sys.argv[1])).load_table('{TABLE}'); t.overwrite(t.scan().to_arrow())"
    )
    subprocess.run([sys.executable, "-c", program, json.dumps(lake.properties(lake.endpoint))], check=True)


def _rewrite(lake: Lake) -> None:
    options = "options => map('max-concurrent-file-group-rewrites', '4')"
    _session(lake).sql(f"CALL lake.system.rewrite_data_files(table => '{TABLE}', {options})").collect()


_COMPACT: dict[str, Callable[[Lake], dict[str, float] | None]] = {
    "icesize": lambda lake: lake.icesize("compact", f"lake.{TABLE}"),
    "overwrite": _overwrite,
    "rewrite": _rewrite,
}


def _session(lake: Lake) -> Any:
    """Return Spark `local[2]` with the catalog `lake`: one session for all rows."""
    from pyspark.sql import SparkSession

    from integration.jars import s3_jar, spark_jars

    extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    settings = {
        "spark.ui.enabled": "false", "spark.driver.memory": "3g", "spark.sql.extensions": extensions,
        "spark.jars": ",".join(map(str, (*spark_jars(), s3_jar()))), "spark.sql.shuffle.partitions": "4",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        **{f"spark.sql.catalog.lake.{key}": value for key, value in lake.java().items()},
    }  # fmt: skip
    session = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    for key, value in lake.java().items():  # of this lake, if the session is older
        session.conf.set(f"spark.sql.catalog.lake.{key}", value)
    session.sparkContext.setLogLevel("ERROR")
    return session


def _stream(lake: Lake, batches: int) -> list[dict[str, Any]]:
    """Write the same batches by each way: appends, then upserts whose keys repeat every four batches."""
    spark, found = _session(lake), list[dict[str, Any]]()
    for way in ("icesize", "append", "icesize upsert", "MERGE"):
        name, version = f"db.{way.replace(' ', '_').lower()}", 3 if way in ("icesize upsert", "MERGE") else 2
        columns = "id bigint, p int, v double, n string"
        properties = f"'format-version'='{version}', 'write.target-file-size-bytes'='{8 * 2**20}'"
        properties += ", 'write.merge.mode'='merge-on-read'" if way == "MERGE" else ""
        spark.sql(f"CREATE TABLE lake.{name} ({columns}) USING iceberg PARTITIONED BY (p) TBLPROPERTIES ({properties})")
        write = _writer(lake, spark, way, name)
        costs = [lake.measured(partial(write, _batch(spark, way, number), number)) for number in range(batches)]
        exact = spark.table(f"lake.{name}").count() == min(batches * ROWS, KEYS if version == 3 else batches * ROWS)
        seconds = statistics.median(cost.seconds for cost in costs[FIRST:])
        requests = sum((cost.requests for cost in costs[FIRST:]), Counter[str]())
        mean = Counter({method: round(count / len(costs[FIRST:]), 1) for method, count in requests.items()})
        title = "batch of upserts" if version == 3 else "batch of appends"
        found.append(_row(title, way, Cost(seconds, mean), exact, spark.table(f"lake.{name}.data_files").count()))
    return found


def _batch(spark: Any, way: str, number: int) -> Any:
    first = number * ROWS
    key = f"id % {KEYS}" if way in ("icesize upsert", "MERGE") else "id"
    partition = f"cast(id % {KEYS} % {PARTITIONS} as int) p"
    rows = spark.range(first, first + ROWS, numPartitions=2)
    return rows.selectExpr(f"{key} id", partition, "hash(id) / 1e9 v", "concat('n', id % 977) n")


def _writer(lake: Lake, spark: Any, way: str, name: str) -> Callable[[Any, int], Any]:
    if way == "append":
        return lambda rows, number: rows.writeTo(f"lake.{name}").append()
    if way == "MERGE":

        def merge(rows: Any, number: int) -> None:
            rows.createOrReplaceTempView("changes")
            condition = "t.id = s.id AND t.p = s.p"
            action = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            spark.sql(f"MERGE INTO lake.{name} t USING changes s ON {condition} {action}").collect()

        return merge
    table = icesize.open(spark, name, catalog=lake.catalog(lake.endpoint))
    rule = {"mode": "upsert", "key": ["id"]} if way == "icesize upsert" else {}
    return table.sink("s", **rule)  # type: ignore[arg-type]


def _passes(lake: Lake, tables: int) -> list[dict[str, Any]]:
    """Run passes over tables of eight small files and nine snapshots; the requests are those of one table."""
    catalog, rows = lake.catalog(), pa.table({"a": pa.array(range(1_000), pa.int64())})
    aged = {"history.expire.max-snapshot-age-ms": "1", "history.expire.min-snapshots-to-keep": "1"}
    for number in range(tables):
        table = catalog.create_table(f"db.t{number:03}", rows.schema, properties=aged)
        for _ in range(8):
            table.append(rows)
    found = []
    for title, arguments in (
        ("scan", ("scan", "lake")),
        ("maintain --all", ("maintain", "lake", "--all", "--yes")),
        ("maintain --all, nothing due", ("maintain", "lake", "--all", "--yes")),
    ):
        cost = lake.measured(partial(lake.icesize, *arguments))
        each = Counter({method: round(count / tables, 1) for method, count in cost.requests.items()})
        found.append(_row(f"{title}, {tables} tables", "icesize", replace(cost, requests=each), True, tables))
    return found


def _row(work: str, way: str, cost: Cost, exact: bool, files: int) -> dict[str, Any]:
    process = cost.process or {}
    return {
        "work": work, "way": way, "seconds": round(cost.seconds, 2), "requests": dict(sorted(cost.requests.items())),
        "usd": round(1_000 * _usd(cost.requests), 3), "files": files, "rows_exact": exact,
        "cpu_seconds": round(process["cpu_seconds"], 2) if process else None,
        "peak_mib": round(process["peak_bytes"] / 2**20) if process else None,
    }  # fmt: skip


def _usd(requests: Counter[Any]) -> float:
    reads = sum(count for name, count in requests.items() if name.startswith(("Get", "Head")))
    free = sum(count for name, count in requests.items() if name.startswith(("Delete", "Abort")))
    return float(reads * _USD_READ + (requests.total() - reads - free) * _USD_WRITE)


def _with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the seconds of icesize in the same work, divided by those of each row."""
    ours = {row["work"]: row["seconds"] for row in rows if row["way"].startswith("icesize")}
    return [
        {**row, "ratio": round(ours[row["work"]] / row["seconds"], 2) if row["work"] in ours else None} for row in rows
    ]


def main(argv: list[str]) -> dict[str, Any]:
    """Run the cases at each latency, and print a row for each work and way."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks object-store", description=__doc__.splitlines()[0])
    parser.add_argument("--latency", default="30", help="milliseconds that each answer takes, or several with commas")
    parser.add_argument("--cases", default="small,tiny,large,full,parts,stream,passes")
    parser.add_argument("--ways", default="icesize,overwrite,rewrite", help="of compactions")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--tables", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    rows = list[dict[str, Any]]()
    for latency_ms in map(int, args.latency.split(",")):
        for case in args.cases.split(","):
            with _lake(latency_ms) as lake:
                found = (
                    _stream(lake, args.batches) if case == "stream"
                    else _passes(lake, args.tables) if case == "passes"
                    else _compaction(lake, case, args.ways.split(","))
                )  # fmt: skip
            rows += [{"latency_ms": latency_ms, **row} for row in _with_ratios(found)]
    result = {"benchmark": "object-store", "rows": rows, "rows_exact": all(row["rows_exact"] for row in rows)}
    header = (
        "ms", "work", "way", "seconds", "icesize / this", "CPU s", "MiB", "requests", "USD per 1,000", "files",
        "rows exact",
    )  # fmt: skip
    cells = [
        (row["latency_ms"], row["work"], row["way"], row["seconds"], row["ratio"], row["cpu_seconds"], row["peak_mib"],
         _text(row["requests"]), row["usd"], row["files"], row["rows_exact"])
        for row in rows
    ]  # fmt: skip
    return finish(result, "an S3 server with latency", header, cells, args.json)


def _text(requests: dict[str, float]) -> str:
    return ", ".join(f"{method} {count:g}" for method, count in requests.items())
