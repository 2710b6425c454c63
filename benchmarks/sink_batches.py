"""Batches of a real sink into ten partitions, on an empty table or on one of many partitions.

    python -m benchmarks.sink_batches WAREHOUSE --partitions 100000 --batches 40 --rows 2000 --touched 10

The table's partitions have a small file each, which exists only as a manifest entry of another writer. The batches
write to other partitions, so that no merge opens it. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

import icesize
from benchmarks import peers
from benchmarks.plan_batches import LISTED_TOGETHER, NOW_MS, first_files
from benchmarks.snapshots import create_table
from icesize.report import Report
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.append import Append
from tests.support.late_events import batch
from tests.support.tables import make_visible

FIRST_BATCHES = 5
"""Batches that are not measured: they read the manifests and start Spark's workers."""


def measured(warehouse: Path, partitions: int, batches: int, rows: int, touched: int) -> dict[str, Any]:
    """Return seconds of the batches after the first ones, and what the reports say of them."""
    catalog = peers.catalog(peers.emptied(warehouse))
    table = create_table(catalog, warehouse)
    first, builder, made = first_files(table.location(), partitions, partitions), SnapshotBuilder(table, NOW_MS), []
    while listed := tuple(islice(first, LISTED_TOGETHER)):
        made.append(Append(listed).stage(builder, {}))
    if made:
        make_visible(catalog, table, made)
    spark = peers.session(warehouse)
    seconds, reports = list[float](), list[Report]()
    sink = icesize.open(spark, "db.t", catalog=catalog).sink("stream", query_id="stream", listener=reports.append)
    for number in range(FIRST_BATCHES + batches):
        df = spark.createDataFrame(_rows(number, rows, touched))
        began = time.perf_counter()
        sink(df, number)
        seconds.append(time.perf_counter() - began)
    spark.stop()
    catalog.close()
    return {
        "partitions": partitions,
        "first_seconds": round(seconds[0], 3),
        "median_seconds": round(statistics.median(seconds[FIRST_BATCHES:]), 3),
        "mean_seconds": round(statistics.mean(seconds[FIRST_BATCHES:]), 3),
        "layout_median_ms": round(1000 * statistics.median(r.seconds["layout"] for r in reports[FIRST_BATCHES:]), 1),
        "write_amplification": round(sum(r.bytes_written for r in reports) / sum(r.bytes_ingested for r in reports), 2),
        "small_files_max": max(report.small_files_max for report in reports),
    }


def _rows(number: int, rows: int, touched: int) -> pa.Table:
    """Return rows of so many partitions, the same ones for 20 batches."""
    events = batch(number, rows=rows, batches=192)
    hours = [f"n{number // 20:04}-{row % touched:03}" for row in range(events.num_rows)]
    return events.set_column(events.schema.get_field_index("hour"), "hour", pa.array(hours))


def main() -> None:
    """Run one measurement and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sink_batches", description=__doc__.splitlines()[0])
    parser.add_argument("warehouse", type=Path)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--touched", type=int, default=10)
    args = parser.parse_args()
    print(json.dumps(measured(args.warehouse, args.partitions, args.batches, args.rows, args.touched)))


if __name__ == "__main__":
    main()
