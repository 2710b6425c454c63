"""One way to upsert the benchmark's batches, in a process of its own.

    python -m benchmarks.upsert_child icesize DATA WAREHOUSE --keys 1000000 --batches 20 --version 3 --dead-share 0.2
    python -m benchmarks.upsert_child merge DATA WAREHOUSE --keys 1000000 --batches 5 --version 3

The table `c.db.t` of `benchmarks.peers` has the first rows, written by Spark, when the batches begin. Prints one JSON
line.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

import icesize
from benchmarks import peers
from benchmarks.feed import Handle, feed
from benchmarks.upsert_rows import batch_files, create_table, first_files, sums
from icesize.report import Report
from integration.evolution.readers import duckdb_with_iceberg
from tests.support.children import run_child

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME, TABLE, FRESH = "db.t", "c.db.t", "c.db.fresh"
KEY, ORDER = "id", "n"
WARM_BATCHES = 2
"""Batches that are not measured: they start Spark's workers and compile the code of the JVM."""
_SCANS, _LONG_SECONDS = 3, 10.0
_PROBE_SECONDS = 0.02
SQL = "SELECT count(*), sum(n), sum(value), max(id), max(status), max(note) FROM {}"


def run(way: str, data: Path, warehouse: Path, **options: object) -> dict[str, Any]:
    """Run a way in a process of its own; the names of options are those of the command line, with underscores."""
    arguments = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    return run_child("benchmarks.upsert_child", way, str(data), str(warehouse), *arguments)


def _run(args: argparse.Namespace) -> dict[str, Any]:
    spark = peers.session(peers.emptied(args.warehouse))
    create_table(spark, TABLE, args)
    spark.read.parquet(*map(str, first_files(args.data))).writeTo(TABLE).append()
    before = _written_bytes(spark)
    files = batch_files(args.data, args.batches)
    handle, facts = WAYS[args.way](spark, args)
    with heap_peak() as peak:
        seconds = feed(spark, files, handle, None)
    ingested = sum(path.stat().st_size for path in files)
    return {
        "way": args.way, "seconds": [round(each, 3) for each in seconds],
        "ingested_bytes": ingested, "written_bytes": (written := _written_bytes(spark) - before),
        "write_amplification": round(written / ingested, 2), "heap_peak_mib": peak["bytes"] >> 20,
        **_files(spark), **facts(), "rows_exact": _is_exact(spark, args, files), "scans": _scans(spark, args),
    }  # fmt: skip


# ---- ways ----

Facts = Callable[[], Mapping[str, Any]]


def _icesize(spark: SparkSession, args: argparse.Namespace) -> tuple[Handle, Facts]:
    policy = {} if args.dead_share is None else {"delete-ratio-threshold": args.dead_share}
    reports = list[Report]()
    table = icesize.open(spark, TABLE, policy=policy or None)
    sink = table.sink(
        "benchmark", query_id="benchmark", mode="upsert", key=KEY, order_by=ORDER, listener=reports.append
    )

    def facts() -> dict[str, Any]:
        merging = [number for number, report in enumerate(reports) if "replace" in report.operations]
        phases = {name for report in reports for name in report.seconds}
        medians = {
            name: round(statistics.median(report.seconds.get(name, 0.0) for report in reports), 3) for name in phases
        }
        return {"merging_batches": merging, "phases": medians}

    return sink, facts


def _merge(spark: SparkSession, args: argparse.Namespace) -> tuple[Handle, Facts]:
    def handle(df: DataFrame, number: int) -> None:
        df.createOrReplaceTempView("batch")
        newest = f"SELECT newest.* FROM (SELECT max_by(struct(*), {ORDER}) newest FROM batch GROUP BY {KEY})"
        df.sparkSession.sql(
            f"MERGE INTO {TABLE} t USING ({newest}) s ON t.{KEY} = s.{KEY} "
            f"WHEN MATCHED AND s.{ORDER} > t.{ORDER} THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    return handle, dict


def _pyiceberg(spark: SparkSession, args: argparse.Namespace) -> tuple[Handle, Facts]:
    catalog, files = peers.catalog(args.warehouse), batch_files(args.data)

    def handle(df: DataFrame, number: int) -> None:
        rows = pq.read_table(files[number])
        last = rows.group_by(KEY).aggregate([(ORDER, "max")])
        newest = rows.filter(pc.is_in(rows[ORDER], last[f"{ORDER}_max"].combine_chunks()))
        catalog.load_table(NAME).upsert(newest, [KEY])

    return handle, dict


WAYS: dict[str, Callable[[SparkSession, argparse.Namespace], tuple[Handle, Facts]]] = {
    "icesize": _icesize, "merge": _merge, "pyiceberg": _pyiceberg,
}  # fmt: skip


# ---- the table ----


def _written_bytes(spark: SparkSession) -> int:
    """Return the bytes of all data and delete files that snapshots added."""
    spark.sql(f"REFRESH TABLE {TABLE}")
    rows = spark.sql(f"SELECT summary FROM {TABLE}.snapshots").collect()
    return sum(int(row.summary.get("added-files-size", 0)) for row in rows)


def _files(spark: SparkSession) -> dict[str, Any]:
    spark.sql(f"REFRESH TABLE {TABLE}")
    data = spark.sql(f"SELECT count(*) files, sum(record_count) rows FROM {TABLE}.data_files").collect()[0]
    deletes = spark.sql(f"SELECT content, count(*) files FROM {TABLE}.delete_files GROUP BY content").collect()
    by_content = {row.content: row.files for row in deletes}
    live = spark.table(TABLE).count()
    return {
        "data_files": data.files, "position_deletes": by_content.get(1, 0), "equality_deletes": by_content.get(2, 0),
        "dead_share": round(1 - live / data.rows, 4),
    }  # fmt: skip


def _is_exact(spark: SparkSession, args: argparse.Namespace, files: list[Path]) -> bool:
    return tuple(spark.sql(SQL.format(TABLE)).collect()[0])[:3] == sums(args.data, args.keys, files)


def _scans(spark: SparkSession, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return seconds of full scans by each reader, of the table and of the same rows freshly rewritten."""
    if not args.scans:
        return {}
    create_table(spark, FRESH, args)
    spark.table(TABLE).writeTo(FRESH).append()
    with peers.catalog(args.warehouse) as catalog:
        of_readers = readers(spark, lambda name: catalog.load_table(name.removeprefix("c.")))
        return {reader: compared(partial(read, TABLE), partial(read, FRESH)) for reader, read in of_readers.items()}


def readers(spark: SparkSession, load: Callable[[str], Any], sql: str = SQL) -> dict[str, Callable[[str], object]]:
    """Return functions that read all columns and rows of a table of this name, by Spark, DuckDB and PyIceberg."""
    duckdb = duckdb_with_iceberg()
    duckdb.execute("SET threads = 2")

    def by_duckdb(name: str) -> object:
        place = "/" + load(name).metadata_location.removeprefix("file:").lstrip("/")
        return duckdb.execute(sql.format(f"iceberg_scan('{place}')")).fetchall()

    return {
        "Spark": lambda name: spark.sql(sql.format(name)).collect(),
        "DuckDB": by_duckdb,
        "PyIceberg": lambda name: load(name).scan().to_arrow(),
    }


def compared(table: Callable[[], object], fresh: Callable[[], object]) -> dict[str, float]:
    """Return the median seconds of both, which alternate after one run each, and their ratio.

    Scans that take long run once.
    """
    runs = [(peers.timed(table), peers.timed(fresh))]
    if runs[0][0] < _LONG_SECONDS:
        runs = [(peers.timed(table), peers.timed(fresh)) for _ in range(_SCANS)]
    mine, best = (statistics.median(each) for each in zip(*runs, strict=True))
    return {"seconds": round(mine, 3), "fresh_seconds": round(best, 3), "ratio": round(mine / best, 2)}


@contextmanager
def heap_peak() -> Iterator[dict[str, int]]:
    """Note the most anonymous memory of this process in the block; mapped files and Spark's JVM do not count."""
    peak, done = {"bytes": 0}, Event()

    def probe() -> None:
        while True:
            lines = Path("/proc/self/status").read_text().splitlines()
            kib = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
            peak["bytes"] = max(peak["bytes"], kib * 1024)
            if done.wait(_PROBE_SECONDS):
                return

    thread = Thread(target=probe)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upsert_child", description=__doc__.splitlines()[0])
    parser.add_argument("way", choices=sorted(WAYS))
    parser.add_argument("data", type=Path)
    parser.add_argument("warehouse", type=Path)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--version", type=int, choices=[2, 3], default=3)
    parser.add_argument("--target-bytes", type=int, required=True)
    parser.add_argument("--dead-share", type=float, default=None)
    parser.add_argument("--scans", type=int, default=1)
    return parser


if __name__ == "__main__":
    chosen = _parser().parse_args()
    print(json.dumps(_run(chosen)))
