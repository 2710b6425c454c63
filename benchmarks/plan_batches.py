"""Planning the batches of a stream on a table of many partitions, metadata only.

    python -m benchmarks.plan_batches WAREHOUSE --partitions 100000 --batches 200 --touched 10

Each batch adds a file to some of the newest 100 partitions, and commits the merges of its plan. Only the time from the
loaded metadata to the plan is measured: manifest list, layout and plan. One batch in ten is of another writer, and one
in fifty expires snapshots. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import uuid
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.snapshots import NOW_MS, create_table, data_file
from icesize.parquet.files.data_file import MergeResult
from icesize.planning.files import PartitionKey
from icesize.planning.merging.planner import plan_merges
from icesize.planning.plan import MergeTask
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.append import Append
from icesize.table.commit.steps.replace import Replace
from icesize.table.state.handle import TableHandle
from tests.support.tables import expire, make_visible

NEWEST = 100
"""Partitions among which a batch chooses: four days of an hourly table."""
FIRST_BATCHES = 5
"""Batches that are not measured: the first one reads all manifests."""


def measured(warehouse: Path, partitions: int, batches: int, touched: int) -> dict[str, Any]:
    """Return milliseconds of planning, median and 99th percentile, on a table of so many partitions."""
    catalog = peers.catalog(peers.emptied(warehouse))
    table = create_table(catalog, warehouse)
    location, dice = table.location(), random.Random(7)

    def new_file(hour: str) -> Any:
        return data_file(f"{location}/data/hour={hour}/{uuid.uuid4()}.parquet", hour)

    first = [new_file(f"h{number:06}") for number in range(partitions)]
    make_visible(catalog, table, [Append(tuple(first)).stage(SnapshotBuilder(table, NOW_MS), {})])
    handle, times = TableHandle(catalog, ("db", "t")), list[float]()
    for batch in range(FIRST_BATCHES + batches):
        hours = [f"h{partitions - 1 - n:06}" for n in dice.sample(range(min(NEWEST, partitions)), touched)]
        incoming = {PartitionKey(1, (hour,)): 1 for hour in hours}
        current = handle.load()
        table = current.table
        began = time.perf_counter()
        layout = handle.reader(current.policy).read(table.metadata, table.io)
        plan = plan_merges(layout, current.policy, incoming=incoming)
        times.append(time.perf_counter() - began)
        builder = SnapshotBuilder(table, NOW_MS + batch)
        staged = [Append(tuple(map(new_file, hours))).stage(builder, {})]
        if plan.groups and batch % 10:
            merges = tuple(MergeResult(group.inputs, (_output(group, location),)) for group in plan.groups)
            staged.append(Replace(merges).stage(builder, {}))
        make_visible(catalog, table, staged)
        for path, columns in builder.facts.items() if batch % 10 else ():
            handle.store.remember(path, columns)
        if batch % 50 == 49:
            expire(catalog.load_table("db.t"), keep=20)
    catalog.close()
    counted = sorted(times[FIRST_BATCHES:])
    return {
        "partitions": partitions,
        "first_ms": round(1000 * times[0], 1),
        "median_ms": round(1000 * statistics.median(counted), 2),
        "p99_ms": round(1000 * counted[int(0.99 * len(counted))], 2),
    }


def _output(group: MergeTask, location: str) -> Any:
    hour = str(group.partition.values[0])
    return data_file(f"{location}/data/hour={hour}/{uuid.uuid4()}.parquet", hour)


def main() -> None:
    """Run one measurement and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan_batches", description=__doc__.splitlines()[0])
    parser.add_argument("warehouse", type=Path)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--touched", type=int, required=True)
    args = parser.parse_args()
    print(json.dumps(measured(args.warehouse, args.partitions, args.batches, args.touched)))


if __name__ == "__main__":
    main()
