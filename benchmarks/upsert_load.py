"""One batch of upserts into an empty table, in a process of its own: more events than the driver may hold.

    python -m benchmarks upserts --load 3000000 --driver-rows 500000
    python -m benchmarks.upsert_load DATA WAREHOUSE --keys 3000000 --driver-rows 500000 --version 3

Each key has one event, and a tenth of them a second one. The peak is that of the anonymous memory of the driver's
Python; Spark's JVM does not count. The child prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import icesize
from benchmarks import peers
from benchmarks.show import finish
from benchmarks.upsert_child import KEY, ORDER, SQL, TABLE, heap_peak
from benchmarks.upsert_rows import Workload, batch_files, create_table, first_files, sums
from icesize.environment import Environment, WorkLimits
from tests.support.children import run_child


def run(root: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Load the events with the limit of `args` and with a limit above their number, and print a table, or JSON."""
    Workload(args.load, args.load // 10, 1, "uniform").write(root / "data")
    options = {"keys": args.load, "version": args.format_version, "target-bytes": args.target_bytes}
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    ways = [
        run_child(
            "benchmarks.upsert_load",
            str(root / "data"),
            str(root / "warehouse"),
            "--driver-rows",
            str(limit),
            *arguments,
        )
        for limit in (args.driver_rows, 2 * args.load)
    ]
    result = {
        "benchmark": "upserts", "load": args.load, "ways": ways, "rows_exact": all(way["rows_exact"] for way in ways),
    }  # fmt: skip
    lines = [
        ["seconds", *(f"{way['seconds']:.1f}" for way in ways)],
        ["heap peak, MiB", *(str(way["heap_peak_mib"]) for way in ways)],
        ["data files", *(str(way["data_files"]) for way in ways)],
        ["rows", *("exact" if way["rows_exact"] else "NOT EXACT" for way in ways)],
    ]
    titles = ("", *(f"at most {way['driver_rows']:,} events at once" for way in ways))
    return finish(result, f"{args.load:,} keys into an empty table", titles, lines, args.json)


def _load(args: argparse.Namespace) -> dict[str, Any]:
    spark = peers.session(peers.emptied(args.warehouse))
    create_table(spark, TABLE, args)
    limits = replace(WorkLimits(), driver_upserts=args.driver_rows)
    table = icesize.open(spark, TABLE, environment=Environment(limits=limits))
    # starts Spark's workers and compiles the code of the JVM
    warm = spark.range(200_000).selectExpr("id", "0L n", "0L value", "'new' status", "'' note")
    create_table(spark, "c.db.warm", args)
    icesize.open(spark, "c.db.warm", environment=Environment(limits=limits)).upsert(warm, key=KEY, order_by=ORDER)
    batches = batch_files(args.data)
    events = spark.read.parquet(*map(str, (*first_files(args.data), *batches)))
    with heap_peak() as peak:
        seconds = peers.timed(lambda: table.upsert(events, key=KEY, order_by=ORDER))
    spark.sql(f"REFRESH TABLE {TABLE}")
    found = tuple(spark.sql(SQL.format(TABLE)).collect()[0])[:3]
    return {
        "driver_rows": args.driver_rows, "seconds": round(seconds, 2), "heap_peak_mib": peak["bytes"] >> 20,
        "data_files": spark.sql(f"SELECT * FROM {TABLE}.data_files").count(),
        "rows_exact": found == sums(args.data, args.keys, batches),
    }  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upsert_load", description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("warehouse", type=Path)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--driver-rows", type=int, required=True)
    parser.add_argument("--version", type=int, choices=[2, 3], default=3)
    parser.add_argument("--target-bytes", type=int, default=128 << 20)
    return parser


if __name__ == "__main__":
    print(json.dumps(_load(_parser().parse_args())))
