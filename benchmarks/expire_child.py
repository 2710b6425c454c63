"""Expiry of old snapshots by icesize and by Iceberg's `expire_snapshots`, each in a process of its own.

    python -m benchmarks.expire_child ours WAREHOUSE --retain 100
    python -m benchmarks.expire_child iceberg WAREHOUSE --retain 100 --concurrent 4
    python -m benchmarks.expire_child commits WAREHOUSE --retain 100

Each command prints one JSON line and works on the table `c.db.t` of `benchmarks.snapshots`.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import pstats
import statistics
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import icesize
from benchmarks import peers
from benchmarks.snapshots import data_file
from icesize.environment import Environment, Stopwatch
from icesize.parquet.files.data_file import Written
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.planning.merging.planner import plan_merges
from icesize.sized_table import SizedTable
from icesize.table.commit.batch_commit import Batch, commit_written
from icesize.table.commit.batch_report import WrittenBatch
from tests.support.children import run_child

_COMMITS = 9
"""Commits whose median is the commit time; the first one, which opens connections, is left out."""
_PROFILE_LINES = 25


def expire_by_icesize(warehouse: Path, retain: int, profile: bool = False) -> dict[str, Any]:
    """Expire all but the newest `retain` snapshots with icesize; `profile` adds a profile of its time, as text."""
    options = ["--retain", str(retain), *(["--profile"] if profile else [])]
    return run_child("benchmarks.expire_child", "ours", str(warehouse), *options)


def iceberg(warehouse: Path, retain: int, concurrent: int | None) -> dict[str, Any]:
    """Expire with Iceberg's procedure, in a session that has expired another table before the clock starts."""
    options = ["--retain", str(retain), *(["--concurrent", str(concurrent)] if concurrent else [])]
    return run_child("benchmarks.expire_child", "iceberg", str(warehouse), *options)


def commits(warehouse: Path, retain: int) -> dict[str, Any]:
    """Return the median time to commit one file, before and after all but the newest `retain` snapshots expired."""
    return run_child("benchmarks.expire_child", "commits", str(warehouse), "--retain", str(retain))


def _ours(args: argparse.Namespace) -> dict[str, Any]:
    catalog = peers.catalog(args.warehouse)
    table = icesize.open(None, "db.t", catalog=catalog)
    profiler = cProfile.Profile()
    began = time.perf_counter()
    if args.profile:
        report = profiler.runcall(table.expire_snapshots, older_than=timedelta(0), retain_last=args.retain)
    else:
        report = table.expire_snapshots(older_than=timedelta(0), retain_last=args.retain)
    seconds = time.perf_counter() - began
    catalog.close()
    return {
        "engine": "icesize expire_snapshots",
        "seconds": round(seconds, 3),
        "phases": {phase: round(value, 2) for phase, value in report.seconds.items()},
        "expired": len(report.snapshot_ids_expired),
        "deleted": report.files_deleted,
        "peak_mib": peers.peak_mib(),
        "profile": _told(profiler) if args.profile else None,
    }


def _told(profiler: cProfile.Profile) -> str:
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(_PROFILE_LINES)
    return text.getvalue()


def _iceberg(args: argparse.Namespace) -> dict[str, Any]:
    spark = peers.session(args.warehouse)
    # The JVM compiles the code first, as in a maintenance session that has run for a while.
    spark.sql("CREATE TABLE c.db.warm (id bigint) USING iceberg")
    for number in range(4):
        spark.sql(f"INSERT INTO c.db.warm VALUES ({number})")
    options = f"older_than => TIMESTAMP '{_now(spark)}'"
    if args.concurrent is not None:
        options += f", max_concurrent_deletes => {args.concurrent}"
    spark.sql(f"CALL c.system.expire_snapshots(table => 'db.warm', retain_last => 1, {options})").collect()
    call = f"CALL c.system.expire_snapshots(table => 'db.t', retain_last => {args.retain}, {options})"
    began = time.perf_counter()
    answer = spark.sql(call).collect()[0].asDict()
    seconds = time.perf_counter() - began
    concurrent = "" if args.concurrent is None else f", max_concurrent_deletes {args.concurrent}"
    return {
        "engine": f"iceberg expire_snapshots{concurrent}",
        "seconds": round(seconds, 3),
        "deleted": {key: n for key, n in answer.items() if n},
    }


def _now(spark: Any) -> str:
    return str(spark.sql("SELECT date_format(now(), 'yyyy-MM-dd HH:mm:ss.SSS') t").collect()[0].t)


def _commits(args: argparse.Namespace) -> dict[str, Any]:
    catalog = peers.catalog(args.warehouse)
    table = icesize.open(None, "db.t", catalog=catalog)
    before, before_seconds = _count(table), _commit_seconds(table)
    began = time.perf_counter()
    table.expire_snapshots(older_than=timedelta(0), retain_last=args.retain)
    seconds = time.perf_counter() - began
    after, after_seconds = _count(table), _commit_seconds(table)
    catalog.close()
    return {
        "snapshots": before,
        "commit_seconds": before_seconds,
        "expire_seconds": round(seconds, 3),
        "snapshots_after": after,
        "commit_seconds_after": after_seconds,
    }


def _count(table: SizedTable) -> int:
    return len(table._handle.load().table.metadata.snapshots)


def _commit_seconds(table: SizedTable) -> float:
    """Return the median seconds that a batch reports as `commit`: from its written file to its visible rows."""
    handle, environment = table._handle, Environment()
    seconds = []
    for _ in range(_COMMITS + 1):
        current = handle.load()
        layout = handle.reader(current.policy).read(current.table.metadata, current.table.io)
        file = data_file(f"{current.table.location()}/data/{uuid.uuid4()}.parquet", "h0")
        began = time.perf_counter()
        commit_written(
            WrittenBatch(current, layout, plan_merges(layout, current.policy), rows=Written((file,))),
            Batch(handle, environment, Stopwatch(environment)),
            Uncommitted(current.settings().storage, "p"),
            environment,
        )
        seconds.append(time.perf_counter() - began)
    return round(statistics.median(seconds[1:]), 3)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.expire_child", description="Expiries, timed.")
    commands = parser.add_subparsers(required=True)
    mine = commands.add_parser("ours")
    mine.add_argument("--profile", action="store_true")
    mine.set_defaults(run=_ours)
    peer = commands.add_parser("iceberg")
    peer.add_argument("--concurrent", type=int, default=None, help="max_concurrent_deletes (default: not given)")
    peer.set_defaults(run=_iceberg)
    committing = commands.add_parser("commits")
    committing.set_defaults(run=_commits)
    for command in (mine, peer, committing):
        command.add_argument("warehouse", type=Path)
        command.add_argument("--retain", type=int, required=True)
    return parser


if __name__ == "__main__":
    chosen = _parser().parse_args()
    print(json.dumps(chosen.run(chosen)))
