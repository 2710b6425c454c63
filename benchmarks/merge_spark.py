"""The parts of `benchmarks.merge` that need Spark, each in a process of its own.

    python -m benchmarks.merge_spark make WAREHOUSE --files 60 --rows 40000
    python -m benchmarks.merge_spark rewrite WAREHOUSE --rounds 3
    python -m benchmarks.merge_spark scan WAREHOUSE --rounds 8

Each command prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import psutil

import icesize
from benchmarks import icesize_child, peers
from benchmarks.merge_child import TARGET_BYTES, pin, written
from tests.support.children import run_child
from tests.support.processes import peak_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REWRITTEN = "c.db.rewritten"
"""The same rows as `c.db.t` in as many files, for the peer."""
_WARM_UP_SCANS = 4
_SUMS = (
    "count(*), sum(id), sum(p), sum(user_id), {microseconds}(max(event_time)), max(amount), max(status), max(payload)"
)
"""Aggregates of all columns, at least one of them a sum, because counts and bounds alone may come from footers."""


def make(warehouse: Path, files: int, rows: int) -> dict[str, Any]:
    """Write the small files of both tables; return `paths` of those of `c.db.t`, their `live_bytes` and `rows`."""
    return run_child("benchmarks.merge_spark", "make", str(warehouse), "--files", str(files), "--rows", str(rows))


def rewrite(warehouse: Path, rounds: int) -> dict[str, Any]:
    """Run `rewrite_data_files` on the peer's table, once for warming up and then `rounds` times; it stays rewritten.

    Returns the same as the methods of `benchmarks.merge_child`; the peak is the JVM's.
    """
    return run_child("benchmarks.merge_spark", "rewrite", str(warehouse), "--rounds", str(rounds))


def scan(warehouse: Path, rounds: int) -> dict[str, Any]:
    """Compact `c.db.t` with icesize and read both tables alternately, `rounds` times with each reader.

    Returns by reader: median seconds of both tables, their `ratio`, and whether both results were the same.
    """
    return run_child("benchmarks.merge_spark", "scan", str(warehouse), "--rounds", str(rounds))


def _make(args: argparse.Namespace) -> dict[str, Any]:
    spark = peers.session(peers.emptied(args.warehouse))
    for table in (peers.TABLE, REWRITTEN):
        peers.create_small_files(spark, table, [(0, 1, args.files, args.rows)], TARGET_BYTES)
    return peers.state(spark) | {"paths": _paths(spark, peers.TABLE)}


def _rewrite(args: argparse.Namespace) -> dict[str, Any]:
    pin()
    spark = peers.session(args.warehouse, cores=1)
    (small,) = spark.sql(f"SELECT snapshot_id FROM {REWRITTEN}.snapshots").collect()
    seconds: list[float] = []
    for round_number in range(1 + args.rounds):
        if round_number:
            spark.sql(f"CALL c.system.rollback_to_snapshot('db.rewritten', {small.snapshot_id})")
        seconds.append(peers.timed(lambda: peers.call_rewrite(spark, "db.rewritten", TARGET_BYTES)))
    (jvm,) = (child for child in psutil.Process().children(recursive=True) if child.name() == "java")
    measured: dict[str, Any] = {"seconds": seconds[1:], "peak_bytes": peak_bytes(jvm.pid)}
    return measured | written(_paths(spark, REWRITTEN))


def _scan(args: argparse.Namespace) -> dict[str, Any]:
    spark = peers.session(args.warehouse, cores=1)
    report = icesize.open(spark, peers.TABLE, policy={"target-file-size-bytes": TARGET_BYTES}).compact()
    readers = {
        "DuckDB": _by_duckdb(spark),
        "Spark, Parquet": _by_spark_files(spark),
        "Spark, Iceberg": _by_table(spark),
    }
    scans = {name: _alternating(read, args.rounds) for name, read in readers.items()}
    return {"compacted": peers.state(spark), "bytes": icesize_child.moved([report]), "scans": scans}


Read = Callable[[str], list[Any]]
"""Aggregates all columns of a table."""


def _alternating(read: Read, rounds: int) -> dict[str, Any]:
    """Read both tables in turns; readers in a JVM need some scans to reach their full speed."""
    tables = [peers.TABLE, REWRITTEN]
    for _ in range(_WARM_UP_SCANS):
        same = read(tables[0]) == read(tables[1])
    seconds: dict[str, list[float]] = {table: [] for table in tables}
    for _ in range(rounds):
        for table in tables:
            seconds[table].append(peers.timed(partial(read, table)))
        tables.reverse()
    (mine, theirs), (best, their_best) = (
        [aggregate(seconds[table]) for table in (peers.TABLE, REWRITTEN)] for aggregate in (statistics.median, min)
    )
    return {
        "icesize": mine,
        "rewritten": theirs,
        "ratio": round(mine / theirs, 3),
        "ratio_of_best": round(best / their_best, 3),
        "same": same,
    }


def _by_duckdb(spark: SparkSession) -> Read:
    database = duckdb.connect(config={"threads": 1})
    listed = {table: ", ".join(f"'{path}'" for path in _paths(spark, table)) for table in (peers.TABLE, REWRITTEN)}
    sums = _SUMS.format(microseconds="epoch_us")
    return lambda table: database.execute(f"SELECT {sums} FROM read_parquet([{listed[table]}])").fetchall()


def _by_spark_files(spark: SparkSession) -> Read:
    """Return a reader of Spark's own vectorized Parquet reader."""
    for table in (peers.TABLE, REWRITTEN):
        spark.read.parquet(*_paths(spark, table)).createOrReplaceTempView(_view(table))
    return lambda table: _sums(spark, _view(table))


def _by_table(spark: SparkSession) -> Read:
    """Return a reader of Iceberg's tables."""
    return lambda table: _sums(spark, table)


def _view(table: str) -> str:
    return table.replace(".", "_")


def _sums(spark: SparkSession, table: str) -> list[Any]:
    return spark.sql(f"SELECT {_SUMS.format(microseconds='unix_micros')} FROM {table}").collect()


def _paths(spark: SparkSession, table: str) -> list[str]:
    rows = spark.sql(f"SELECT file_path FROM {table}.files").collect()
    return sorted(row.file_path.removeprefix("file:") for row in rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.merge_spark", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    programs = {
        "make": (_make, ("--files", "--rows")),
        "rewrite": (_rewrite, ("--rounds",)),
        "scan": (_scan, ("--rounds",)),
    }
    for name, (run, options) in programs.items():
        command = commands.add_parser(name)
        command.add_argument("warehouse", type=Path)
        for option in options:
            command.add_argument(option, type=int, required=True)
        command.set_defaults(run=run)
    return parser


if __name__ == "__main__":
    chosen = _parser().parse_args()
    print(json.dumps(chosen.run(chosen)))
