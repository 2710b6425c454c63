"""A stream of one batch per second into few partitions: clustering beside it, against the same stream alone.

    python -m benchmarks.cluster_stream DATA WAREHOUSE --cluster async --merge inline --strategy sort --cores 2
                                        --partitions 8 --target-bytes 4194304

The child is one stream, in a process of its own, and prints one JSON line. Both streams write into a table with
clustering columns, so that only the clustering differs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import icesize
from benchmarks import cluster_peers, peers
from benchmarks.cluster_opened import read_files
from benchmarks.cluster_rows import Integers, distinct_users, drawn_points, write_batches
from benchmarks.feed import feed
from benchmarks.generate import batch_files
from benchmarks.rival_model import reason_of
from benchmarks.show import finish
from icesize.report import Report
from icesize.sized_table import SizedTable
from tests.support.children import run_child
from tests.support.processes import Processes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from icesize.spark.stream.sink import Sink

EVERY_SECONDS = 1.0
_WARM = 30
"""Batches in which a process warms up; they do not count."""
_BY = ("user_id", "event_time")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run both streams, `--pairs` times, in alternating order, and print a table, or JSON."""
    with tempfile.TemporaryDirectory(prefix="icesize-cluster-stream-") as folder:
        root = Path(folder)
        write_batches(root / "data", args.seconds, args.batch_rows)
        pairs = [_pair(root, args, async_first=n % 2 == 0) for n in range(args.pairs)]
    ratios = [_percentile(beside, 95) / _percentile(alone, 95) for beside, alone in pairs]
    beside, alone = pairs[-1]
    result = {
        "benchmark": "cluster --stream",
        "machine_cores": os.cpu_count(),
        "spark_cores": args.cores,
        "batches": args.seconds,
        "rows_per_batch": args.batch_rows,
        "p95_ratios": [round(ratio, 3) for ratio in ratios],
        "p95_ratio": round(statistics.median(ratios), 3),
        "failures": [run["failure"] for pair in pairs for run in pair if run["failure"]],
        "rows_exact": all(run["rows_exact"] for pair in pairs for run in pair),
        "async": beside,
        "off": alone,
    }
    title = f"stream, {args.batch_rows} rows each second, Spark on {args.cores} of {os.cpu_count()} cores"
    return finish(result, title, ("", "cluster async", "cluster off", "goal"), _lines(result), args.json)


def _pair(root: Path, args: argparse.Namespace, async_first: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    order = ("async", "off") if async_first else ("off", "async")
    done = {cluster: _in_child(root, args, cluster) for cluster in order}
    return done["async"], done["off"]


def _in_child(root: Path, args: argparse.Namespace, cluster: str) -> dict[str, Any]:
    given = {
        "--cluster": cluster,
        "--merge": args.merge,
        "--strategy": args.strategies[0],
        "--cores": args.cores,
        "--partitions": args.partitions,
        "--target-bytes": args.target_bytes,
    }
    options = [str(word) for option in given.items() for word in option]
    return run_child("benchmarks.cluster_stream", str(root / "data"), str(root / "table"), *options)


def _lines(result: dict[str, Any]) -> list[tuple[object, ...]]:
    runs = [result["async"], result["off"]]

    def line(name: str, key: str, goal: str = "-") -> tuple[object, ...]:
        return (name, *(run[key] for run in runs), goal)

    return [
        ("stream failures", *(int(bool(run["failure"])) for run in runs), "0"),
        line("batches", "batches"),
        *((f"batch, p{p}, seconds", *(f"{_percentile(run, p):.3f}" for run in runs), "-") for p in (50, 95)),
        ("slowest batch, seconds", *(f"{max(_warm(run)):.3f}" for run in runs), "-"),
        ("p95, async / off", f"{result['p95_ratio']:.2f}", f"pairs {result['p95_ratios']}", "<= 1.2"),
        line("batches that took more than a second", "late"),
        line("cores busy, mean", "cores_busy"),
        line("clusterings that landed", "landed"),
        line("clusterings that did not land at all", "dropped"),
        line("partitions of clusterings lost to other commits", "lost_partitions"),
        line("clusterings that failed", "failed"),
        line("MB written by clustering", "clustered_mb"),
        line("MB live", "live_mb"),
        line("files at the end", "files"),
        line("files opened by user_id =, at the end", "point_files"),
        line("the same after draining", "point_files_drained"),
        line("seconds to drain", "drain_seconds"),
        line("rows", "rows"),
        line("each row exactly once", "rows_exact", "True"),
    ]


def _warm(run: dict[str, Any]) -> list[float]:
    seconds: list[float] = run["seconds"]
    return seconds[_WARM:] or seconds


def _percentile(run: dict[str, Any], percent: int) -> float:
    seconds = _warm(run)
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1] if len(seconds) > 1 else seconds[0]


def _stream(args: argparse.Namespace) -> dict[str, Any]:
    spark = peers.session(peers.emptied(args.warehouse), args.cores)
    cluster_peers.create_table(spark, args.data, peers.TABLE, args.partitions, args.target_bytes)
    table = icesize.open(spark, peers.TABLE)
    table.cluster(_BY, args.strategy)
    reports: list[Report] = []
    options = {"merge": args.merge, "cluster": args.cluster}
    sink = table.sink("benchmark", query_id="benchmark", listener=reports.append, **options)
    fed = _fed(spark, sink, args)
    points = drawn_points(distinct_users(batch_files(args.data)))
    at_end = _point_files(args.warehouse, points)
    drained = peers.timed(sink.drain)
    depths = {"point_files": at_end, "point_files_drained": _point_files(args.warehouse, points)}
    return fed | depths | {"drain_seconds": round(drained, 1)} | _told(reports) | _held(spark, table, args.data)


def _fed(spark: SparkSession, sink: Sink, args: argparse.Namespace) -> dict[str, Any]:
    """Feed all batches through a streaming query; return the time of each batch, and the reason of an early end."""
    seconds: list[float] = []

    def take(batch: DataFrame, number: int) -> None:
        seconds.append(peers.timed(lambda: sink.run(batch, number)))

    processes, failure = Processes(), None
    cpu, began = processes.cpu().total, time.perf_counter()
    try:
        feed(spark, batch_files(args.data), take, args.warehouse / "checkpoint", EVERY_SECONDS)
    except Exception as error:
        failure = reason_of(str(error))
    busy = (processes.cpu().total - cpu) / (time.perf_counter() - began)
    return {
        "failure": failure,
        "seconds": [round(value, 3) for value in seconds],
        "batches": len(seconds),
        "late": sum(value > EVERY_SECONDS for value in seconds[_WARM:]),
        "cores_busy": round(busy, 2),
    }


def _point_files(warehouse: Path, points: Integers) -> float:
    return round(read_files(warehouse, _BY).opened("user_id", points)[0], 1)


def _told(reports: Sequence[Report]) -> dict[str, Any]:
    """Return figures of clusterings, which have reports of their own."""
    beside = [report for report in reports if report.batch_id is None]
    runs = [report for report in beside if report.clustering is not None]
    return {
        "landed": sum(bool(report.snapshot_ids) for report in runs),
        "dropped": sum(not report.snapshot_ids for report in runs),
        "lost_partitions": sum(len(report.conflicts) for report in runs),
        "failed": sum("clustering failed" in note for report in beside for note in report.notes),
        "clustered_mb": round(sum(report.bytes_written for report in runs if report.snapshot_ids) / 1e6, 1),
        "said": sorted({sentence for report in runs for sentence in (*report.conflicts, *report.notes)}),
    }


def _held(spark: SparkSession, table: SizedTable, data: Path) -> dict[str, Any]:
    """Return figures of the current table, and whether it has each row of the data once."""
    totals = "SELECT count(*) n, count(DISTINCT id) ids, bit_xor(xxhash64(*)) bits"
    found = spark.sql(f"{totals} FROM {peers.TABLE}").collect()[0]
    given = spark.sql(f"{totals} FROM parquet.`{data}`").collect()[0]
    inspection = table.inspect()
    return {
        "rows": found.n,
        "rows_exact": found == given and found.n == found.ids,
        "files": inspection.files,
        "live_mb": round(inspection.size_bytes / 1e6, 1),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_stream", description="A stream, timed.")
    parser.add_argument("data", type=Path)
    parser.add_argument("warehouse", type=Path)
    parser.add_argument("--cluster", choices=["async", "off"], required=True)
    parser.add_argument("--merge", choices=["inline", "async", "off"], required=True)
    parser.add_argument("--strategy", required=True)
    for option in ("--cores", "--partitions", "--target-bytes"):
        parser.add_argument(option, type=int, required=True)
    return parser


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    print(json.dumps(_stream(_parser().parse_args())))
