"""Iceberg's side of the clustering benchmark: the table, its sorting `rewrite_data_files`, and queries by Spark.

    python -m benchmarks.cluster_peers make DATA WAREHOUSE --partitions 8 --target-bytes 4194304
    python -m benchmarks.cluster_peers rewrite WAREHOUSE --strategy zorder --target-bytes 4194304
    python -m benchmarks.cluster_peers again WAREHOUSE --strategy zorder --target-bytes 4194304
    python -m benchmarks.cluster_peers ask WAREHOUSE QUERIES

Each command prints one JSON line, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import peers
from benchmarks.cluster_rows import Queries
from benchmarks.generate import batch_files
from tests.support.children import run_child

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = {
    "sort": "user_id ASC NULLS FIRST, event_time ASC NULLS FIRST",
    "zorder": "zorder(user_id, event_time)",
}
"""Orders that Iceberg can sort by; it has no Hilbert curve."""

_WARM_BATCHES = 8
"""Batches of the warm table, in two partitions: at full size, these are large enough for Spark tasks."""
_ASKED, _ROUNDS = 7, 3
"""Queries of each kind that Spark runs, and rounds of them."""
_REWRITTEN = "rewritten_data_files_count"


def make(data: Path, warehouse: Path, partitions: int, target_bytes: int) -> dict[str, Any]:
    """Make `c.db.t` of the batches in `data`; return its `files`, `live_bytes` and `rows`.

    Files have about the target size, each with rows of all batches. Partitions are independent of the columns that
    queries use. The warehouse is emptied first. It also has `c.db.warm`, which each program clusters before the clock
    starts.
    """
    arguments = ("--partitions", str(partitions), "--target-bytes", str(target_bytes))
    return run_child("benchmarks.cluster_peers", "make", str(data), str(warehouse), *arguments)


def rewrite(warehouse: Path, strategy: str, target_bytes: int) -> dict[str, Any]:
    """Sort the table in `warehouse` with Iceberg's procedure, two groups at a time, in a warm session.

    Returns `seconds`, `files` after it and the procedure's `result`.
    """
    arguments = ("--strategy", strategy, "--target-bytes", str(target_bytes))
    return run_child("benchmarks.cluster_peers", "rewrite", str(warehouse), *arguments)


def rewrite_again(warehouse: Path, strategy: str, target_bytes: int) -> dict[str, Any]:
    """Call the procedure on the table that it has sorted; return the number of files that it rewrites.

    `by_default` are those that it chooses by size; `same_options` are those with the options of the first call.
    """
    arguments = ("--strategy", strategy, "--target-bytes", str(target_bytes))
    return run_child("benchmarks.cluster_peers", "again", str(warehouse), *arguments)


def ask(warehouse: Path, queries: Queries) -> dict[str, Any]:
    """Run the first of these queries in a warm session; return median `seconds` and mean `bytes_read` of each kind.

    The kinds are `point` and `range_N`, N in percent. The result also has the `rows` of the table and a `checksum`,
    which is the same for the same rows in any order.
    """
    given = warehouse / "queries.json"
    ranges = {f"range_{percent}": some[:_ASKED].tolist() for percent, some in queries.ranges.items()}
    given.write_text(json.dumps({"point": queries.points[:_ASKED].tolist(), **ranges}))
    return run_child("benchmarks.cluster_peers", "ask", str(warehouse), str(given))


def create_table(spark: SparkSession, data: Path, table: str, buckets: int, target_bytes: int) -> None:
    """Create an empty table with the columns of the batches in `data`, partitioned by a hash of `id`."""
    fields = spark.read.parquet(str(batch_files(data)[0])).schema
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields)
    partitioning = f"PARTITIONED BY (bucket({buckets}, id))"
    peers.create(spark, table, columns, partitioning, "none", target_bytes)


def _make(args: argparse.Namespace) -> dict[str, Any]:
    spark = peers.session(peers.emptied(args.warehouse))
    # Rows are distributed in turns, which needs no order among them.
    spark.conf.set("spark.sql.execution.sortBeforeRepartition", "false")
    files = batch_files(args.data)
    for table, buckets, some in (
        (peers.WARM_TABLE, 2, files[:_WARM_BATCHES]),
        (peers.TABLE, args.partitions, files),
    ):
        # A writer that reached the target size would start a second, tiny file.
        create_table(spark, args.data, table, buckets, 2 * args.target_bytes)
        size_bytes = sum(file.stat().st_size for file in some)
        each = max(2, round(size_bytes / buckets / args.target_bytes))
        # Each task writes one file into every partition.
        rows = spark.read.parquet(*map(str, some)).repartition(each)
        rows.writeTo(table).append()
        wanted = f"'write.target-file-size-bytes' = '{args.target_bytes}'"
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({wanted})")
    return peers.state(spark)


def _rewrite(args: argparse.Namespace) -> dict[str, Any]:
    spark = peers.session(args.warehouse)
    _call(spark, "db.warm", args, everything=True)
    results: list[dict[str, Any]] = []
    seconds = peers.timed(lambda: results.append(_call(spark, "db.t", args, everything=True)))
    return {
        "engine": f"iceberg rewrite_data_files, {args.strategy}",
        "seconds": round(seconds, 3),
        "files": peers.state(spark)["files"],
        "result": results[0],
    }


def _again(args: argparse.Namespace) -> dict[str, Any]:
    spark = peers.session(args.warehouse)
    by_default = _call(spark, "db.t", args, everything=False)[_REWRITTEN]
    return {"by_default": by_default, "same_options": _call(spark, "db.t", args, everything=True)[_REWRITTEN]}


def _call(spark: SparkSession, table: str, args: argparse.Namespace, everything: bool) -> dict[str, Any]:
    options = f"'target-file-size-bytes', '{args.target_bytes}', 'max-concurrent-file-group-rewrites', '2'"
    options += ", 'rewrite-all', 'true'" if everything else ""
    order = f"strategy => 'sort', sort_order => '{ORDERS[args.strategy]}'"
    call = f"CALL c.system.rewrite_data_files(table => '{table}', {order}, options => map({options}))"
    result: dict[str, Any] = spark.sql(call).collect()[0].asDict()
    return result


def _ask(args: argparse.Namespace) -> dict[str, Any]:
    spark = peers.session(args.warehouse)
    totals = "count(*) n, sum(id) ids, bit_xor(xxhash64(*)) bits, sum(cast(xxhash64(*) AS decimal(38, 0))) hashes"
    row = spark.sql(f"SELECT {totals} FROM {peers.TABLE}").collect()[0]
    answers: dict[str, Any] = {"rows": row.n, "checksum": f"{row.ids} {row.bits} {row.hashes}"}
    for kind, ranges in json.loads(args.queries.read_text()).items():
        answers[kind] = _answered([partial(_query, spark, kind, first, last) for first, last in ranges], spark)
    return answers


def _query(spark: SparkSession, kind: str, first: int, last: int) -> None:
    """Plan and run a query: a DataFrame that is collected twice would not read again."""
    times = f"event_time BETWEEN timestamp_micros({first}) AND timestamp_micros({last})"
    where = f"user_id = {first}" if kind == "point" else times
    spark.sql(f"SELECT sum(amount) FROM {peers.TABLE} WHERE {where}").collect()


def _answered(asked: Sequence[Callable[[], None]], spark: SparkSession) -> dict[str, float]:
    for query in asked:
        query()
    before = _bytes_read(spark)
    seconds = [peers.timed(query) for _ in range(_ROUNDS) for query in asked]
    mean_read = (_bytes_read(spark) - before) / len(seconds)
    return {"seconds": round(statistics.median(seconds), 4), "bytes_read": round(mean_read)}


def _bytes_read(spark: SparkSession) -> int:
    """Return the bytes that tasks have read from storage so far, from the data of Spark's executors page."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    executors = context.statusStore().executorList(False)
    return sum(executors.apply(i).totalInputBytes() for i in range(executors.size()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_peers", description="Iceberg's sorts, timed.")
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("make", help="make the table")
    making.add_argument("data", type=Path)
    making.add_argument("--partitions", type=int, required=True)
    making.set_defaults(run=_make)
    rewriting = commands.add_parser("rewrite", help="sort it with rewrite_data_files")
    rewriting.set_defaults(run=_rewrite)
    repeating = commands.add_parser("again", help="call the same procedure once more")
    repeating.set_defaults(run=_again)
    asking = commands.add_parser("ask", help="query it, and count its rows")
    asking.set_defaults(run=_ask)
    for command in (making, rewriting, repeating, asking):
        command.add_argument("warehouse", type=Path)
    for command in (rewriting, repeating):
        command.add_argument("--strategy", choices=sorted(ORDERS), required=True)
    for command in (making, rewriting, repeating):
        command.add_argument("--target-bytes", type=int, required=True)
    asking.add_argument("queries", type=Path)
    return parser


if __name__ == "__main__":
    chosen = _parser().parse_args()
    print(json.dumps(chosen.run(chosen)))
