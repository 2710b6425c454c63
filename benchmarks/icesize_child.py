"""icesize on the benchmark's rows, each run in a process of its own; the counterpart of `benchmarks.peers`.

    python -m benchmarks.icesize_child stream DATA WAREHOUSE --target-bytes 4000000 --partition hour
    python -m benchmarks.icesize_child compact WAREHOUSE --target-bytes 134217728
    python -m benchmarks.icesize_child cluster WAREHOUSE --by user_id --strategy zorder --target-bytes 4000000

Each command prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import icesize
from benchmarks import peers
from benchmarks.feed import feed
from benchmarks.generate import batch_files
from icesize.environment import Environment, WorkLimits
from icesize.planning.files import PartitionKey
from icesize.report import Report
from icesize.sized_table import SizedTable
from icesize.spark.engine.merge_job import work_for_spark
from tests.support.children import run_child

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from icesize.spark.stream.sink import Sink

_MOST_FURTHER = 10
"""Most further batches after the load, until no partition has more than `max-small-files` small files."""
_NOTHING_COPIED = Environment(limits=WorkLimits(driver_copy_bytes=0, local_work_bytes=-1))
"""Limits with which the driver copies nothing, so that Spark's workers do it."""

_COPY_WAYS = 2
"""Methods of copying: whole row groups, and single pages."""


def stream(
    data: Path,
    warehouse: Path,
    target_bytes: int,
    batches: int,
    partition: str,
    streaming: bool,
    *,
    policy: Mapping[str, int | bool],
    sink: Mapping[str, Any],
    every_seconds: float = 0.0,
    under: Sequence[str] = (),
) -> dict[str, Any]:
    """Write the first `batches` batches of `data` through a sink.

    Returns the values of `peers.iceberg_stream`, small files and write amplification. `sink` are the sink's options.
    `under` is a command that runs the process.

    With `merge` "async", more batches of one row follow at the same pace, until no partition has too many small files.
    The result then has their number, and the seconds of the drain.
    """
    options = ["--target-bytes", str(target_bytes), "--batches", str(batches), "--partition", partition]
    options += ["--policy", json.dumps(policy), "--sink", json.dumps(sink), "--every", str(every_seconds)]
    options += ["--streaming"] if streaming else []
    return run_child("benchmarks.icesize_child", "stream", str(data), str(warehouse), *options, under=under)


def compact(warehouse: Path, target_bytes: int) -> dict[str, Any]:
    """Compact the table in `warehouse` with a warm session and warm workers, after a compaction of `c.db.warm`.

    Returns `seconds`, `phases`, `bytes` by method and the same of the `warm_up`, `before` and `after`, groups in a
    `second_plan` and the `rows`.
    """
    return run_child("benchmarks.icesize_child", "compact", str(warehouse), "--target-bytes", str(target_bytes))


def cluster(warehouse: Path, by: str, strategy: str, target_bytes: int) -> dict[str, Any]:
    """Cluster the table in `warehouse` in a warm session, after a clustering of `c.db.warm`, then once more.

    Returns `seconds`, `phases`, `files` after it, the report's `clustering`, `second_plan_groups` and the files that
    the second run has rewritten (`rewritten_again`).
    """
    options = ("--by", by, "--strategy", strategy, "--target-bytes", str(target_bytes))
    return run_child("benchmarks.icesize_child", "cluster", str(warehouse), *options)


def _stream(args: argparse.Namespace) -> dict[str, Any]:
    spark = peers.session(peers.emptied(args.warehouse))
    peers.create_stream_table(spark, args.data, "hash", args.target_bytes, args.partition)
    table = icesize.open(spark, peers.TABLE, policy=json.loads(args.policy) or None)
    reports: list[Report] = []
    # The listener also receives reports of merges beside the batches.
    sink = table.sink("benchmark", query_id="benchmark", listener=reports.append, **json.loads(args.sink))
    most: list[int] = []

    def take(batch: DataFrame, number: int) -> None:
        sink.run(batch, number)
        # The inspection costs some milliseconds, which count.
        most.append(table.inspect().small_files_max)

    files = batch_files(args.data, args.batches)
    seconds = feed(spark, files, take, args.warehouse / "checkpoint" if args.streaming else None, args.every)
    after = _until_k(spark.read.parquet(str(files[-1])), table, sink, seconds) if sink.options.merge == "async" else {}
    return _stream_result(table, reports, seconds, most) | {"rows": spark.table(peers.TABLE).count()} | after


def _until_k(batch: DataFrame, table: SizedTable, sink: Sink, seconds: list[float]) -> dict[str, Any]:
    """After the load, write batches until no partition has more than `max-small-files` small files, then drain."""
    k, pace, further = table.policy.max_small_files, statistics.median(seconds), 0
    while table.inspect().small_files_max > k and further < _MOST_FURTHER:
        began = time.perf_counter()
        sink.run(batch.limit(1), len(seconds) + further)
        further += 1
        time.sleep(max(0.0, pace - (time.perf_counter() - began)))
    most = table.inspect().small_files_max
    began = time.perf_counter()
    sink.drain()
    return {
        "further_batches": further,
        "small_files_after_them": most,
        "drain_seconds": round(time.perf_counter() - began, 3),
        "small_files_after_drain": table.inspect().small_files_max,
    }


def _stream_result(table: SizedTable, reports: list[Report], seconds: list[float], most: list[int]) -> dict[str, Any]:
    inspection = table.inspect()
    batches = [r for r in reports if r.batch_id is not None][: len(seconds)]
    sizes = moved(reports)
    phases: Counter[str] = Counter()
    for report in batches:
        phases.update(report.seconds)
    return {
        "engine": "icesize",
        "seconds": [round(s, 3) for s in seconds],
        "files": inspection.files,
        "live_bytes": inspection.size_bytes,
        "bytes": sizes,
        "decode_reasons": _reasons(reports),
        "written_bytes": sizes["bytes_written"],
        "write_amplification": round(sizes["bytes_written"] / sizes["bytes_ingested"], 3),
        "small_files_max": most,
        "dropped_merges": sum(bool(r.conflicts) or "deadline" in " ".join(r.notes) for r in reports),
        "operations": sorted({o for r in reports for o in r.operations}),
        "commit_seconds": [r.seconds["commit"] for r in batches],
        "phases": {k: round(v, 2) for k, v in phases.items()},
        "median_phases": {k: statistics.median(r.seconds.get(k, 0.0) for r in batches) for k in phases},
        "files_per_partition_max": max(_partition_files(table).values()),
        "cold_above_minimum": _cold_above_minimum(table),
    }


def layout(table: SizedTable) -> Any:
    """Return the current table, and its files as the planner reads them."""
    current = table._handle.load()
    return current, table._handle.reader(current.policy).read(current.table.metadata, current.table.io)


def _partition_files(table: SizedTable) -> dict[PartitionKey, int]:
    return {key: facts.files for key, facts in layout(table)[1].partitions.items()}


def _cold_above_minimum(table: SizedTable) -> int:
    """Return the number of cold partitions that could still have fewer files."""
    current, files = layout(table)
    due = {group.partition for group in table.plan().groups}
    cold = {
        k for k, p in files.partitions.items() if files.commits_since(p.newest) >= current.policy.cold_after_commits
    }
    return len(due & cold)


def _compact(args: argparse.Namespace) -> dict[str, Any]:
    spark = peers.session(args.warehouse)
    policy = {"target-file-size-bytes": args.target_bytes}
    warm_up = _warm_up(icesize.open(spark, peers.WARM_TABLE, policy=policy, environment=_NOTHING_COPIED))
    table = icesize.open(spark, peers.TABLE, policy=policy)
    before = table.inspect()
    began = time.perf_counter()
    report = table.compact()
    seconds = time.perf_counter() - began
    return {
        "engine": "icesize compact",
        "seconds": round(seconds, 3),
        "phases": report.seconds,
        "bytes": moved([report]),
        "decode_reasons": report.decode_reasons,
        "warm_up": moved([warm_up]),
        "before": {"files": before.files, "bytes": before.size_bytes},
        "after": {"files": table.inspect().files},
        "second_plan_groups": len(table.plan().groups),
        "rows": spark.table(peers.TABLE).count(),
    }


def _warm_up(table: SizedTable) -> Report:
    """Run every merge method once in every worker: the table has groups for Spark tasks and for the driver."""
    groups, settings = table.plan().groups, table._handle.load().settings()
    in_spark = len(work_for_spark(dict(enumerate(groups)), settings, _NOTHING_COPIED.limits))
    if in_spark < 2 * _COPY_WAYS or in_spark == len(groups):
        raise RuntimeError(f"Cannot warm up: {in_spark} of {len(groups)} groups are merged in Spark tasks")
    return table.compact()


def moved(reports: Sequence[Report]) -> dict[str, int]:
    """Return the bytes ingested, and the bytes and pages that merges decoded, copied and wrote."""
    sizes: Counter[str] = Counter()
    for report in reports:
        sizes.update({k: v or 0 for k, v in report.to_dict().items() if k.startswith(("bytes_", "pages_"))})
    return dict(sizes)


def _reasons(reports: Sequence[Report]) -> dict[str, int]:
    """Return the number of decoded files, by reason."""
    reasons: Counter[str] = Counter()
    for report in reports:
        reasons.update(report.decode_reasons)
    return dict(reasons)


def _cluster(args: argparse.Namespace) -> dict[str, Any]:
    spark, by = peers.session(args.warehouse), args.by.split(",")
    policy = {"target-file-size-bytes": args.target_bytes}
    icesize.open(spark, peers.WARM_TABLE, policy=policy).cluster(by, args.strategy)
    table = icesize.open(spark, peers.TABLE, policy=policy)
    began = time.perf_counter()
    report = table.cluster(by, args.strategy)
    seconds = time.perf_counter() - began
    second = table.plan_clustering()
    return {
        "engine": f"icesize cluster, {args.strategy}",
        "seconds": round(seconds, 3),
        "phases": report.seconds,
        "files": table.inspect().files,
        "clustering": report.clustering,
        "second_plan_groups": len(second.groups) if second else None,
        "rewritten_again": table.cluster().files_removed,
    }


AGAIN = 5
"""Plans of which the median counts: Python's collector scans 100,000 files in one or another of them."""


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _plan(args: argparse.Namespace) -> dict[str, Any]:
    root = args.warehouse.resolve()
    catalog = peers.catalog(root)
    table = icesize.open(None, "db.t", catalog=catalog, environment=Environment(spill_directory=args.spill))
    began = time.perf_counter()
    groups = len(table.plan().groups)
    cold = time.perf_counter() - began
    again = statistics.median(_seconds(table.plan) for _ in range(AGAIN))
    catalog.close()
    peak_mib = peers.peak_mib()
    return {"cold_seconds": round(cold, 3), "again_seconds": round(again, 3), "peak_mib": peak_mib, "groups": groups}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.icesize_child", description="icesize, timed.")
    commands = parser.add_subparsers(required=True)
    streaming = commands.add_parser("stream")
    streaming.add_argument("data", type=Path)
    streaming.add_argument("--batches", type=int, default=None)
    streaming.add_argument("--partition", choices=["hour", "day", "none"], default="hour")
    streaming.add_argument("--policy", default="{}")
    streaming.add_argument("--sink", default="{}", help="the sink's options")
    streaming.add_argument("--every", type=float, default=0.0, help="seconds between the beginnings of batches")
    streaming.add_argument("--streaming", action="store_true")
    streaming.set_defaults(run=_stream)
    compacting = commands.add_parser("compact")
    compacting.set_defaults(run=_compact)
    clustering = commands.add_parser("cluster")
    clustering.add_argument("--by", required=True, help="columns, with commas between them")
    clustering.add_argument("--strategy", required=True)
    clustering.set_defaults(run=_cluster)
    for command in (streaming, compacting, clustering):
        command.add_argument("warehouse", type=Path)
        command.add_argument("--target-bytes", type=int, required=True)
    planning = commands.add_parser("plan")
    planning.add_argument("warehouse", type=Path)
    planning.add_argument("--spill", help="directory for facts of files")
    planning.set_defaults(run=_plan)
    return parser


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = _parser().parse_args()
    print(json.dumps(chosen.run(chosen)))
