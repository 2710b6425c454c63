"""Appends with icesize and with Iceberg's distributions over a number of writers, each in a process of its own.

    python -m benchmarks.shuffle_child ours DATA WAREHOUSE --tasks 60 --target-bytes 117000 --partition hour
    python -m benchmarks.shuffle_child iceberg DATA WAREHOUSE --tasks 60 --target-bytes 117000 --distribution hash

Each command prints one JSON line. The warehouse must be empty except for the table's metadata directory. With Iceberg's
distributions, `spark.sql.shuffle.partitions` is the number of tasks, without coalescing. The rest of adaptive execution
has Spark's defaults.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType

import icesize
from benchmarks import footprint, peers
from benchmarks.feed import Handle, feed
from benchmarks.generate import batch_files
from benchmarks.simulation import skew
from icesize.parquet.files.names import writer_of
from icesize.report import Report
from tests.support.children import run_child
from tests.support.processes import Processes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TINY_BYTES = 100_000
"""The talk about Flink's smart shuffle counts files below 100 KB."""

_ADDED_FILES = f"""
    SELECT DISTINCT e.snapshot_id, e.data_file.file_path, e.data_file.file_size_in_bytes
    FROM {peers.TABLE}.all_entries e JOIN {peers.TABLE}.snapshots s ON e.snapshot_id = s.snapshot_id
    WHERE e.status = 1 AND s.operation = 'append'
"""


@dataclass(frozen=True)
class Workload:
    """Batches, and their table; `warehouse` is emptied before each run and removed after it."""

    data: Path
    warehouse: Path
    target_bytes: int
    batches: int
    partition: peers.Partition
    tasks: int

    def run(self, program: str, *options: str) -> dict[str, Any]:
        """Return the result of the program, and its reads of metadata."""
        folder = footprint.metadata_folder(peers.emptied(self.warehouse))
        folder.mkdir(parents=True)
        given = ["--target-bytes", str(self.target_bytes), "--batches", str(self.batches)]
        given += ["--partition", self.partition, "--tasks", str(self.tasks), *options]
        try:
            with footprint.MetadataReads(self.warehouse) as reads:
                answer = run_child("benchmarks.shuffle_child", program, str(self.data), str(self.warehouse), *given)
        finally:
            shutil.rmtree(self.warehouse)
        figures = reads.figures()
        answer["puts"] += figures["metadata_deleted"]
        return answer | figures


def write_by_icesize(workload: Workload, sink: Mapping[str, Any], policy: Mapping[str, int]) -> dict[str, Any]:
    """Write the batches through a sink with these options.

    Returns lists by batch: `seconds`, `cpu_seconds`, `jvm_children_cpu_seconds` (see `CpuSeconds`) and `appends` (see
    `_figures`); and `worker_peak_mib`, `rows`, `puts` (objects made), `metadata_reads` and `data_reads` (files that
    merges read).
    """
    return workload.run("ours", "--sink", json.dumps(dict(sink)), "--policy", json.dumps(dict(policy)))


def iceberg(workload: Workload, distribution: peers.Distribution) -> dict[str, Any]:
    """Write the batches with Iceberg's own writer; for `none`, the rows are spread over the tasks first."""
    return workload.run("iceberg", "--distribution", distribution)


def partition_weights(workload: Workload) -> list[dict[Hashable, float]]:
    """Return the bytes of each partition, by batch: its rows, each as large as the mean row of the batch's file."""
    return [_weights(file, workload.partition) for file in batch_files(workload.data, workload.batches)]


def _weights(file: Path, partition: peers.Partition) -> dict[Hashable, float]:
    columns = {"hour": ["hour"], "hour_status": ["hour", "status"], "user": ["user_id"], "id": ["id"]}[partition]
    counted = pq.read_table(file, columns=columns).group_by(columns).aggregate([([], "count_all")])
    buckets = {"user": peers.USER_BUCKETS, "id": peers.ID_BUCKETS}.get(partition)
    bucket = BucketTransform(buckets).transform(LongType()) if buckets else None
    rows = Counter[Hashable]()
    for row in counted.to_pylist():
        key = tuple(row[name] if bucket is None else bucket(row[name]) for name in columns)
        rows[key] += row["count_all"]
    bytes_per_row = file.stat().st_size / rows.total()
    return {key: count * bytes_per_row for key, count in rows.items()}


def _ours(args: argparse.Namespace) -> dict[str, Any]:
    spark = peers.session(args.warehouse)
    peers.create_stream_table(spark, args.data, "hash", args.target_bytes, args.partition)
    table = icesize.open(spark, peers.TABLE, policy=json.loads(args.policy) or None)
    reports: list[Report] = []
    sink = table.sink("benchmark", query_id="benchmark", listener=reports.append, **json.loads(args.sink))
    measured = _measured(spark, args, sink.run)
    phases: Counter[str] = Counter()
    for report in reports:
        phases.update(report.seconds)
    return measured | {
        "engine": "icesize",
        "appends": _appends(spark, args, writer=writer_of),
        "data_reads": sum(report.files_removed for report in reports),
        "phases": {phase: round(seconds, 2) for phase, seconds in phases.items()},
    }


def _iceberg(args: argparse.Namespace) -> dict[str, Any]:
    spark = peers.session(args.warehouse)
    spark.conf.set("spark.sql.shuffle.partitions", str(args.tasks))
    # Otherwise, small batches would get fewer tasks than requested.
    spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    peers.create_stream_table(spark, args.data, args.distribution, args.target_bytes, args.partition)

    def append(batch: DataFrame, number: int) -> None:
        rows = batch.repartition(args.tasks) if args.distribution == "none" else batch
        rows.writeTo(peers.TABLE).append()

    return _measured(spark, args, append) | {
        "engine": f"iceberg append, distribution {args.distribution}",
        "appends": _appends(spark, args, writer=_spark_partition),
        "data_reads": 0,
    }


def _measured(spark: SparkSession, args: argparse.Namespace, handle: Handle) -> dict[str, Any]:
    """Feed the batches; only their handling is timed."""
    processes = Processes()
    seconds, cpu, peak_bytes = [], [processes.cpu()], 0
    before = footprint.objects(args.warehouse)
    with footprint.counted(args.warehouse):
        for number, file in enumerate(batch_files(args.data, args.batches)):
            seconds += feed(spark, [file], lambda batch, _, number=number: handle(batch, number), None)
            cpu.append(processes.cpu())
            peak_bytes = max(peak_bytes, processes.worker_peak_bytes())
    return {
        "seconds": [round(value, 3) for value in seconds],
        "cpu_seconds": [round(b.total - a.total, 2) for a, b in itertools.pairwise(cpu)],
        "jvm_children_cpu_seconds": [
            round(b.of_jvm_children - a.of_jvm_children, 2) for a, b in itertools.pairwise(cpu)
        ],
        "worker_peak_mib": round(peak_bytes / 2**20),
        "puts": footprint.objects(args.warehouse) - before,
        "rows": spark.table(peers.TABLE).count(),
    }


def _appends(spark: SparkSession, args: argparse.Namespace, writer: Callable[[str], int]) -> list[dict[str, Any]]:
    """Return the figures of each append, in order, without files that merges made."""
    files: dict[int, list[tuple[int, int]]] = defaultdict(list)
    added = spark.sql(_ADDED_FILES).toArrow()
    for snapshot, path, size_bytes in zip(*(column.to_pylist() for column in added.columns), strict=True):
        files[snapshot].append((writer(path.rpartition("/")[2]), size_bytes))
    order = spark.sql(f"SELECT snapshot_id FROM {peers.TABLE}.snapshots ORDER BY committed_at").collect()
    return [_figures(files[row.snapshot_id], args) for row in order if row.snapshot_id in files]


def _figures(files: Sequence[tuple[int, int]], args: argparse.Namespace) -> dict[str, Any]:
    """Return the number of files, the number of small ones, and the skew of writers, from pairs of writer and bytes."""
    bytes_by, files_by = Counter[int](), Counter[int]()
    for writer, size_bytes in files:
        bytes_by[writer] += size_bytes
        files_by[writer] += 1
    return {
        "files": len(files),
        "tiny_files": sum(size < TINY_BYTES for _, size in files),
        "files_under_half": sum(size < args.target_bytes / 2 for _, size in files),
        "bytes": sum(bytes_by.values()),
        "writers": len(bytes_by),
        "bytes_skew": round(skew(bytes_by.values(), args.tasks), 3),
        "files_skew": round(skew(files_by.values(), args.tasks), 3),
    }


def _spark_partition(name: str) -> int:
    """Return the writer, a partition of the job, of `<partition>-<task attempt>-<uuid>-<number>.parquet`."""
    return int(name.split("-")[0])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shuffle_child", description="Appends, measured.")
    commands = parser.add_subparsers(required=True)
    mine = commands.add_parser("ours", help="through icesize's sink")
    mine.add_argument("--sink", default="{}", help="the sink's options")
    mine.add_argument("--policy", default="{}")
    mine.set_defaults(run=_ours)
    peer = commands.add_parser("iceberg", help="with Iceberg's writer")
    peer.add_argument("--distribution", choices=["hash", "none", "range"], default="hash")
    peer.set_defaults(run=_iceberg)
    for command in (mine, peer):
        command.add_argument("data", type=Path)
        command.add_argument("warehouse", type=Path)
        command.add_argument("--target-bytes", type=int, required=True)
        command.add_argument("--tasks", type=int, required=True)
        command.add_argument("--batches", type=int, default=None)
        command.add_argument("--partition", default="hour")
    return parser


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = _parser().parse_args()
    print(json.dumps(chosen.run(chosen)))
