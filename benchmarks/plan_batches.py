"""Planning the batches of a stream on a table of many partitions, metadata only.

    python -m benchmarks.plan_batches WAREHOUSE --partitions 1000 --files 100000 --batches 200 --touched 10

Another writer's manifests of 25,000 entries list the first files: in each partition a small file, and large ones. Each
batch adds a file to some of the newest 100 partitions, and commits the merges of its plan. One batch in ten is of
another writer, and one in fifty expires snapshots. Measured are the time from the loaded metadata to the plan (manifest
list, layout and plan), and the bytes of metadata that the commit writes. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from pyiceberg.table.snapshots import Snapshot

from benchmarks import peers
from benchmarks.snapshots import NOW_MS, create_table, data_file
from icesize.parquet.files.data_file import MergeResult, NewDataFile
from icesize.planning.files import PartitionKey
from icesize.planning.merging.planner import Occasion, plan_merges
from icesize.planning.plan import MergeTask
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.append import Append
from icesize.table.commit.steps.merge import Merge
from icesize.table.manifests.manifest_lists import manifests_in
from icesize.table.state.handle import TableHandle
from tests.support.tables import expire, make_visible
from tests.support.v3_tables import as_v3

NEWEST = 100
"""Partitions among which a batch chooses: four days of an hourly table."""
LISTED_TOGETHER = 25_000
"""Entries of the first manifests: those of Iceberg's target size, 8 MiB."""
LARGE_BYTES = 512 * 2**20
FIRST_BATCHES = 50
"""Batches that are not measured. The first one reads all manifests. Until each of the newest partitions has been merged
once, merges touch the first manifests, and a commit divides each of those once."""


def measured(
    warehouse: Path, partitions: int, files: int, batches: int, touched: int, format_version: int
) -> dict[str, Any]:
    """Return milliseconds of planning and bytes of metadata, on a table of so many partitions and files."""
    catalog = peers.catalog(peers.emptied(warehouse))
    table = create_table(catalog, warehouse)
    table = as_v3(catalog) if format_version == 3 else table
    location, dice = table.location(), random.Random(7)

    def new_file(hour: str) -> Any:
        return data_file(f"{location}/data/hour={hour}/{uuid.uuid4()}.parquet", hour)

    first, builder, made = first_files(location, partitions, files), SnapshotBuilder(table, NOW_MS), list[Snapshot]()
    while listed := tuple(islice(first, LISTED_TOGETHER)):
        made.append(Append(listed).stage(builder, {}))
    make_visible(catalog, table, made)
    handle, times, sizes = TableHandle(catalog, ("db", "t")), list[float](), list[int]()
    for batch in range(FIRST_BATCHES + batches):
        hours = [f"h{partitions - 1 - n:06}" for n in dice.sample(range(min(NEWEST, partitions)), touched)]
        incoming = {PartitionKey(1, (hour,)): 1 for hour in hours}
        current = handle.load()
        table = current.table
        began = time.perf_counter()
        layout = handle.reader(current.policy).read(table.metadata, table.io)
        plan = plan_merges(layout, current.policy, Occasion.BATCH, incoming)
        times.append(time.perf_counter() - began)
        builder = SnapshotBuilder(table, NOW_MS + batch, handle.store)
        staged = [Append(tuple(map(new_file, hours))).stage(builder, {})]
        if plan.groups and batch % 10:
            merges = tuple(MergeResult(group.inputs, (_output(group, location),)) for group in plan.groups)
            staged.append(Merge(merges).stage(builder, {}))
        make_visible(catalog, table, staged)
        for path, columns in builder.facts.items() if batch % 10 else ():
            handle.store.remember(path, columns)
        sizes.append(builder.written_bytes)
        if batch % 50 == 49:
            expire(catalog.load_table("db.t"), keep=20)
    listed = len(manifests_in(catalog.load_table("db.t").current_snapshot(), table.io, table.metadata.specs()))
    catalog.close()
    counted, bytes_counted = sorted(times[FIRST_BATCHES:]), sorted(sizes[FIRST_BATCHES:])
    return {
        "partitions": partitions,
        "files": files,
        "first_ms": round(1000 * times[0], 1),
        "median_ms": round(1000 * statistics.median(counted), 2),
        "p99_ms": round(1000 * counted[int(0.99 * len(counted))], 2),
        "mean_metadata_bytes": round(statistics.mean(bytes_counted)),
        "p99_metadata_bytes": bytes_counted[int(0.99 * len(bytes_counted))],
        "max_metadata_bytes": max(sizes),
        "manifests": listed,
    }


def first_files(location: str, partitions: int, files: int) -> Iterator[NewDataFile]:
    """Yield the files by partition: in each a small one, and others of more than half of the target size."""
    for number in range(files):
        hour = f"h{number * partitions // files:06}"
        file = data_file(f"{location}/data/hour={hour}/{uuid.uuid4()}.parquet", hour)
        is_first = number * partitions // files != (number - 1) * partitions // files
        yield file if is_first else replace(file, size_bytes=LARGE_BYTES)


def _output(group: MergeTask, location: str) -> Any:
    hour = str(group.partition.values[0])
    return data_file(f"{location}/data/hour={hour}/{uuid.uuid4()}.parquet", hour)


def main() -> None:
    """Run one measurement and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan_batches", description=__doc__.splitlines()[0])
    parser.add_argument("warehouse", type=Path)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--files", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--touched", type=int, required=True)
    parser.add_argument("--format-version", type=int, choices=(2, 3), default=2)
    print(json.dumps(measured(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
