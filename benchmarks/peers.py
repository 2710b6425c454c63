"""Iceberg's own writer and `rewrite_data_files` on the benchmark's rows, each in a process of its own.

    python -m benchmarks.peers stream DATA WAREHOUSE --distribution hash --target-bytes 4000000 --partition hour
    python -m benchmarks.peers small-files WAREHOUSE --partitions 4 --files 60 --rows 40000 --target-bytes 134217728
    python -m benchmarks.peers rewrite WAREHOUSE --target-bytes 134217728

Each command prints one JSON line. All leave a table `c.db.t` in a SQLite catalog that PyIceberg opens too: name `c`,
URI `sqlite:///WAREHOUSE/cat.db`, warehouse `file://WAREHOUSE/wh` (see `catalog`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.feed import feed
from benchmarks.generate import batch_files
from integration.jars import spark_jars
from tests.support.children import run_child

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import DataFrame, SparkSession

Distribution = Literal["hash", "none", "range"]
Partition = Literal["hour", "day", "none", "user", "hour_status", "id"]
TABLE = "c.db.t"
WARM_TABLE = "c.db.warm"
ID_BUCKETS = 10_000
USER_BUCKETS = 60
_PARTITIONING = {
    "hour": "PARTITIONED BY (hour)",
    "day": "PARTITIONED BY (days(event_time))",
    "none": "",
    "user": f"PARTITIONED BY (bucket({USER_BUCKETS}, user_id))",
    "id": f"PARTITIONED BY (bucket({ID_BUCKETS}, id))",
    "hour_status": "PARTITIONED BY (hour, status)",
}
_WARM_FILES = ((0, 2, 8, 40_000), (2, 2, 3, 120_000), (4, 4, 5, 500))
"""First partition, partitions, files in each, rows per file.

There are files whose pages can be copied and files whose row groups can, in groups so large that Spark tasks merge
them: two of each, for two workers. The last ones are tiny.
"""
_STATUSES = ("new", "paid", "sent", "done", "void")
_SMALL_FILE_COLUMNS = (
    "id bigint, p int, user_id bigint, event_time timestamp, amount double, status string, payload string"
)


def iceberg_stream(
    data: Path,
    warehouse: Path,
    distribution: Distribution,
    target_bytes: int,
    batches: int,
    partition: Partition,
    streaming: bool,
) -> dict[str, Any]:
    """Append the first `batches` batches of `data`, one by one, with Iceberg's Spark writer alone.

    The warehouse is emptied first. Returns `seconds` per batch, `rows`, `files`, `live_bytes`, `written_bytes`,
    `write_amplification`, and the most and the mean files per partition. Raises `RuntimeError` if the child fails.
    """
    arguments = ["--distribution", distribution, "--target-bytes", str(target_bytes)]
    arguments += ["--batches", str(batches), "--partition", partition, *(["--streaming"] if streaming else [])]
    return _in_child("stream", str(data), str(warehouse), *arguments)


def iceberg_small_files(
    warehouse: Path, partitions: int, files_per_partition: int, rows_per_file: int, target_bytes: int
) -> dict[str, Any]:
    """Make a table of `partitions` x `files_per_partition` small files; return its `files` and `live_bytes`.

    The warehouse is emptied first. The same arguments make the same rows. The warehouse also has `c.db.warm`, which
    each program compacts before the clock starts. Raises `RuntimeError` if the child fails.
    """
    arguments = ["--partitions", str(partitions), "--files", str(files_per_partition), "--rows", str(rows_per_file)]
    return _in_child("small-files", str(warehouse), *arguments, "--target-bytes", str(target_bytes))


def rewrite_data_files(warehouse: Path, target_bytes: int) -> dict[str, Any]:
    """Compact the table in `warehouse` with Iceberg's procedure, two groups at a time, in a warm session.

    Warm: the session has compacted `c.db.warm`, 1.4 million rows, before the clock starts. Returns `seconds`, `before`
    and `after` (files, bytes, rows) and the procedure's `result`. Raises `RuntimeError` if the child fails.
    """
    return _in_child("rewrite", str(warehouse), "--target-bytes", str(target_bytes))


def catalog(warehouse: Path) -> SqlCatalog:
    """Return a peer's catalog in PyIceberg; the caller closes it."""
    from pyiceberg.catalog.sql import SqlCatalog

    root = warehouse.resolve()
    return SqlCatalog("c", uri=f"sqlite:///{root}/cat.db", warehouse=f"file://{root}/wh")


def peak_mib() -> int:
    """Return the most memory that this process had, in MiB, on Linux.

    The peak of `getrusage` would be that of the parent process, if that was larger when this process began.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:"))


def session(warehouse: Path, cores: int = 2) -> SparkSession:
    """Return Spark `local[cores]` with Iceberg's runtime and catalog `c`; the process must not have Spark yet."""
    return _session(session_settings(warehouse), cores)


def rest_session(uri: str) -> SparkSession:
    """Return such a session on two cores, with the REST catalog at `uri` as `c`."""
    return _session(_settings() | {"spark.sql.catalog.c.type": "rest", "spark.sql.catalog.c.uri": uri}, cores=2)


def _session(settings: Mapping[str, str], cores: int) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{cores}]").appName("icesize benchmark peer")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def session_settings(warehouse: Path) -> dict[str, str]:
    """Return Spark's settings of that session."""
    root = warehouse.resolve()
    return _settings() | {
        "spark.sql.catalog.c.type": "jdbc",
        "spark.sql.catalog.c.uri": f"jdbc:sqlite:file:{root}/cat.db?journal_mode=WAL&busy_timeout=30000",
        "spark.sql.catalog.c.warehouse": f"file://{root}/wh",
        "spark.sql.catalog.c.jdbc.schema-version": "V1",
    }


def _settings() -> dict[str, str]:
    """Return all settings except the address of the catalog `c`."""
    return {
        "spark.jars": ",".join(str(jar) for jar in spark_jars()),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.c": "org.apache.iceberg.spark.SparkCatalog",
    }


def create_stream_table(
    spark: SparkSession, data: Path, distribution: Distribution, target_bytes: int, partition: Partition
) -> None:
    """Create `c.db.t` with the columns of the batches in `data`."""
    fields = spark.read.parquet(str(batch_files(data)[0])).schema
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields)
    create(spark, TABLE, columns, _PARTITIONING[partition], distribution, target_bytes)


def _stream(args: argparse.Namespace) -> dict[str, Any]:
    spark = session(emptied(args.warehouse))
    create_stream_table(spark, args.data, args.distribution, args.target_bytes, args.partition)
    files = batch_files(args.data, args.batches)
    append = partial(_append, distribution=args.distribution)
    seconds = feed(spark, files, append, args.warehouse / "checkpoint" if args.streaming else None)
    summaries = [row.summary for row in spark.sql(f"SELECT summary FROM {TABLE}.snapshots").collect()]
    written = sum(int(summary.get("added-files-size", 0)) for summary in summaries)
    grouping = "GROUP BY partition" if args.partition != "none" else ""
    counts = [row.n for row in spark.sql(f"SELECT count(*) n FROM {TABLE}.files {grouping}").collect()]
    now = state(spark)
    return now | {
        "engine": f"iceberg append, distribution {args.distribution}",
        "seconds": [round(value, 3) for value in seconds],
        "written_bytes": written,
        "write_amplification": round(written / now["live_bytes"], 3),
        "files_per_partition_max": max(counts),
        "files_per_partition_mean": round(sum(counts) / len(counts), 2),
    }


def _append(batch: DataFrame, number: int, distribution: Distribution) -> None:
    # Without a distribution, each task writes the rows that it reads. A small file would be one task: spread it first.
    rows = batch.repartition(8) if distribution == "none" else batch
    rows.writeTo(TABLE).append()


def _small_files(args: argparse.Namespace) -> dict[str, Any]:
    spark = session(emptied(args.warehouse))
    create_small_files(spark, TABLE, [(0, args.partitions, args.files, args.rows)], args.target_bytes)
    create_small_files(spark, WARM_TABLE, _WARM_FILES, args.target_bytes)
    return {"engine": "iceberg append, distribution none"} | state(spark)


def create_small_files(
    spark: SparkSession, table: str, parts: Sequence[tuple[int, int, int, int]], target_bytes: int
) -> None:
    """Create a table partitioned by `p`; a part is its first `p`, its partitions, files in each and rows per file."""
    create(spark, table, _SMALL_FILE_COLUMNS, "PARTITIONED BY (p)", "none", target_bytes)
    for first, partitions, files, rows in parts:
        some = _random_rows(spark, partitions, files, rows)
        # Each task writes one file into every partition.
        some.withColumn("p", some["p"] + first).writeTo(table).append()


def _random_rows(spark: SparkSession, partitions: int, files: int, rows: int) -> DataFrame:
    from pyspark.sql import functions as f

    key = f.col("id")
    status = f.element_at(f.array(*[f.lit(name) for name in _STATUSES]), (f.rand(3) * len(_STATUSES) + 1).cast("int"))
    session_number = (key / 100).cast("int").cast("string")
    return spark.range(0, partitions * files * rows, 1, files).select(
        "id",
        (key % partitions).cast("int").alias("p"),
        (f.rand(1) * 1e6).cast("bigint").alias("user_id"),
        f.timestamp_seconds(f.lit(1_700_000_000) + key / 10).alias("event_time"),
        f.round(f.rand(2) * 1000, 2).alias("amount"),
        status.alias("status"),
        f.concat(f.sha1(key.cast("string")), f.lit("-session-"), session_number).alias("payload"),
    )


def _rewrite(args: argparse.Namespace) -> dict[str, Any]:
    spark = session(args.warehouse)
    before = state(spark)
    # The JVM compiles the code first, as in a maintenance session that has run for a while.
    call_rewrite(spark, "db.warm", args.target_bytes)
    results: list[dict[str, Any]] = []
    seconds = timed(lambda: results.append(call_rewrite(spark, "db.t", args.target_bytes)))
    return {
        "engine": "iceberg rewrite_data_files",
        "seconds": round(seconds, 3),
        "before": before,
        "after": state(spark),
        "result": results[0],
    }


def call_rewrite(spark: SparkSession, table: str, target_bytes: int) -> dict[str, Any]:
    """Run the procedure on a table of the catalog `c`, so that all deletes are applied; return its result."""
    options = f"'target-file-size-bytes', '{target_bytes}', 'min-input-files', '2', 'delete-file-threshold', '1'"
    options += ", 'max-concurrent-file-group-rewrites', '2'"
    call = f"CALL c.system.rewrite_data_files(table => '{table}', options => map({options}))"
    result: dict[str, Any] = spark.sql(call).collect()[0].asDict()
    return result


def create(
    spark: SparkSession, table: str, columns: str, partitioning: str, distribution: str, target_bytes: int
) -> None:
    """Create an empty table whose writers keep a file open for each partition."""
    properties = {
        "write.distribution-mode": distribution,
        "write.target-file-size-bytes": str(target_bytes),
        "write.spark.fanout.enabled": "true",
    }
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    spark.sql("CREATE NAMESPACE IF NOT EXISTS c.db")
    spark.sql(f"CREATE TABLE {table} ({columns}) USING iceberg {partitioning} TBLPROPERTIES ({listed})")


def state(spark: SparkSession, table: str = TABLE) -> dict[str, int]:
    """Return `files`, `live_bytes` and `rows` of a table."""
    sums = "count(*) files, sum(file_size_in_bytes) live_bytes, sum(record_count) rows"
    found: dict[str, int] = spark.sql(f"SELECT {sums} FROM {table}.files").collect()[0].asDict()
    return found


def timed(action: Callable[[], object]) -> float:
    """Return the seconds of an action."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def emptied(warehouse: Path) -> Path:
    """Return the directory, without an earlier benchmark's catalog; raise FileExistsError if it has other content."""
    if warehouse.exists() and any(warehouse.iterdir()) and not (warehouse / "cat.db").exists():
        raise FileExistsError(f"Cannot empty {warehouse}: it holds something else than a benchmark's catalog")
    shutil.rmtree(warehouse, ignore_errors=True)
    warehouse.mkdir(parents=True)
    return warehouse


def _in_child(*arguments: str) -> dict[str, Any]:
    return run_child("benchmarks.peers", *arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Iceberg's own programs, timed.")
    commands = parser.add_subparsers(required=True)
    stream = commands.add_parser("stream", help="append batch after batch with Iceberg's Spark writer")
    stream.add_argument("data", type=Path)
    stream.add_argument("--distribution", choices=["hash", "none", "range"], default="hash")
    stream.add_argument("--batches", type=int, default=None, help="only the first N (default: all)")
    stream.add_argument("--partition", choices=sorted(_PARTITIONING), default="hour")
    stream.add_argument("--streaming", action="store_true", help="through a real streaming query")
    stream.set_defaults(run=_stream)
    small = commands.add_parser("small-files", help="make a table of small files")
    for option in ("--partitions", "--files", "--rows"):
        small.add_argument(option, type=int, required=True)
    small.set_defaults(run=_small_files)
    rewrite = commands.add_parser("rewrite", help="compact the table with rewrite_data_files")
    rewrite.set_defaults(run=_rewrite)
    for command in (stream, small, rewrite):
        command.add_argument("warehouse", type=Path)
        command.add_argument("--target-bytes", type=int, required=True)
    return parser


if __name__ == "__main__":
    chosen = _parser().parse_args()
    print(json.dumps(chosen.run(chosen)))
