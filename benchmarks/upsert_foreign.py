"""Upserts beside jobs of others on the same table: the share of their jobs that commit, by trigger interval.

    python -m benchmarks upserts --foreign 0,5,15 --keys 3000000 --rows 10000 --target-bytes 16777216

For each interval, a stream upserts into a new table with ten partitions, each of which has a tenth of all keys; with 0,
a batch begins when the last one ends. Beside it, in a JVM of their own, run in turns, at random times:

| job | what it does |
|---|---|
| rewrite_data_files | Spark rewrites all files of one partition |
| MERGE | Spark's `MERGE INTO` of 1,000 rows with random keys, merge-on-read |
| table.upsert | icesize upserts such rows |

Nobody repeats a failed job. At the end, each row is compared with the newest of all committed events of its key.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

import icesize
from benchmarks import peers
from benchmarks.rival_model import reason_of
from benchmarks.show import finish
from benchmarks.upsert_rows import COLUMNS, Workload, batch_files, create_table, first_files, rows_of, values_of
from integration.servers import local_rest_catalog
from tests.support.children import run_child

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE, NAME = "c.db.t", "db.t"
PARTITIONS = 10
JOB_ROWS = 1_000
_BATCHES = 20
"""Files of events, which come in turns with new orders."""
_WARM_ROUNDS = 1
_MODULE = "benchmarks.upsert_foreign"
_PART = f"CAST(id % {PARTITIONS} AS INT) AS part"


def run(root: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Run a stream and the jobs of others, for each interval, and print a table, or JSON."""
    Workload(args.keys, args.rows, _BATCHES, args.shape).write(root / "data")
    ways = [_beside(root, interval, args) for interval in args.foreign]
    exact = not any(way["wrong_rows"] or way["batches_failed"] for way in ways)
    result = {"benchmark": "upserts", "keys": args.keys, "rows": args.rows, "ways": ways, "rows_exact": exact}
    title = f"{args.rows:,} events a batch into {args.foreign_parts} of {PARTITIONS} partitions of {args.keys:,} keys"
    header = ("", *(f"every {interval:g} s" if interval else "continuously" for interval in args.foreign))
    return finish(result, title, header, _lines(ways), args.json)


def _beside(root: Path, interval: float, args: argparse.Namespace) -> dict[str, Any]:
    folder = root / f"every_{interval:g}"
    folder.mkdir()
    options = {
        "data": root / "data", "keys": args.keys, "interval": interval, "seconds": args.foreign_seconds,
        "pause": args.foreign_pause, "target-bytes": args.target_bytes, "parts": args.foreign_parts,
        "version": args.format_version,
    }  # fmt: skip
    with local_rest_catalog(folder) as uri:
        return run_child(_MODULE, "stream", uri, *(f"--{name}={value}" for name, value in options.items()))


def _lines(ways: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = {
        "batches": [str(way["batches"]) for way in ways],
        "median batch, seconds": [f"{way['batch_seconds']:.2f}" for way in ways],
        "batches failed": [str(way["batches_failed"]) for way in ways],
        "batches with conflicts": [str(way["batches_with_conflicts"]) for way in ways],
        "wrong rows": [str(way["wrong_rows"]) for way in ways],
    }
    for name in JOBS:
        jobs = [way["jobs"][name] for way in ways]
        rows[f"{name}, median seconds"] = [f"{job['seconds']:.1f}" for job in jobs]
        rows[f"{name}, committed"] = [
            f"{job['committed']} of {job['tried']}, {job['committed'] / job['tried']:.0%}" for job in jobs
        ]
    return [[name, *cells] for name, cells in rows.items()]


# ---- the stream ----


def _stream(args: argparse.Namespace) -> dict[str, Any]:
    spark = peers.rest_session(args.uri)
    _create(spark, args)
    newest = np.zeros(args.keys, np.int64)
    stream = _Stream(spark, args, newest)
    options = [f"--{name}={getattr(args, name)}" for name in ("keys", "seconds", "pause")]
    with ThreadPoolExecutor(1) as pool:
        jobs = pool.submit(run_child, _MODULE, "jobs", args.uri, *options)
        stream.run(jobs)
    beside = jobs.result()
    for seed, order in beside.pop("landed"):
        _fold(newest, _job_ids(args.keys, seed), order)
    return stream.facts() | beside | {"interval": args.interval, "wrong_rows": _wrong_rows(spark, newest)}


def _create(spark: SparkSession, args: argparse.Namespace) -> None:
    create_table(spark, TABLE, args, f"{COLUMNS}, part int", "PARTITIONED BY (part)", distribution="hash")
    spark.read.parquet(*map(str, first_files(args.data))).selectExpr("*", _PART).writeTo(TABLE).append()


class _Stream:
    """Batches, as of a trigger with an interval; `newest` is the newest order of each key, and is kept up to date."""

    def __init__(self, spark: SparkSession, args: argparse.Namespace, newest: NDArray[np.int64]) -> None:
        self._spark, self._newest, self._interval = spark, newest, args.interval
        self._parts = args.parts
        self._files = batch_files(args.data)
        self._seconds = list[float]()
        self._failed = list[str]()
        self._conflicts = 0
        table = icesize.open(spark, TABLE)
        self._sink = table.sink("changes", query_id="benchmark", mode="upsert", key="id", order_by="n")

    def run(self, until: Future[Any]) -> None:
        """Upsert batches until the future is done; a failed batch comes again, as after a restart."""
        batch = 0
        for tick in self._ticks():
            if until.done():
                return
            began = time.perf_counter()
            batch += self._lands(batch, tick)
            self._seconds.append(time.perf_counter() - began)

    def facts(self) -> dict[str, Any]:
        return {
            "batches": len(self._seconds), "batch_seconds": round(statistics.median(self._seconds), 3),
            "batches_failed": len(self._failed), "failures": self._failed, "batches_with_conflicts": self._conflicts,
        }  # fmt: skip

    def _ticks(self) -> Iterator[int]:
        """Yield orders, when the trigger fires: at multiples of the interval, or at once if that time has passed."""
        due = time.monotonic()
        while True:
            yield _now()
            due = max(due + self._interval, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))

    def _lands(self, batch: int, order: int) -> bool:
        file = self._files[batch % len(self._files)]
        try:
            report = self._sink.run(self._events(file, order), batch)
        except Exception as error:
            self._failed.append(reason_of(str(error)))
            return False
        self._conflicts += bool(report.conflicts)
        events = pq.read_table(file, columns=["id", "n"])
        ids, orders = events["id"].to_numpy(), events["n"].to_numpy() + order
        taken = ids % PARTITIONS < self._parts
        _fold(self._newest, ids[taken], orders[taken])
        return True

    def _events(self, file: Path, order: int) -> DataFrame:
        rows = self._spark.read.parquet(str(file)).where(f"id % {PARTITIONS} < {self._parts}")
        rows = rows.selectExpr("id", f"n + {order} AS n", "status", "note")
        return rows.selectExpr("id", "n", f"{_VALUE} AS value", "status", "note", _PART)


_VALUE = "(id * 31 + n * 17) % 1000003"
"""`values_of` in SQL."""


def _now() -> int:
    """Return the order of events that happen now, in microseconds."""
    return time.time_ns() // 1000


def _fold(newest: NDArray[np.int64], ids: NDArray[np.int64], orders: NDArray[np.int64] | int) -> None:
    np.maximum.at(newest, ids, orders)


def _wrong_rows(spark: SparkSession, newest: NDArray[np.int64]) -> int:
    """Return the number of rows that are missing, surplus, or not the newest of their key."""
    spark.sql(f"REFRESH TABLE {TABLE}")
    rows = spark.sql(f"SELECT id, n, value FROM {TABLE}").toArrow()
    ids, orders, values = (rows[name].to_numpy() for name in ("id", "n", "value"))
    right = (orders == newest[ids]) & (values == values_of(ids, orders))
    return int((~right).sum()) + int((np.bincount(ids, minlength=len(newest)) != 1).sum())


# ---- jobs of others ----

Job = Callable[["SparkSession", argparse.Namespace, int], "list[tuple[int, int]]"]


def _jobs(args: argparse.Namespace) -> dict[str, Any]:
    """Run the jobs in turns; the first round compiles the JVM's code and is not counted."""
    spark, chance = peers.rest_session(args.uri), Random(7)
    # A job begins with the newest state, and not with a cached one.
    spark.conf.set("spark.sql.catalog.c.cache-enabled", "false")
    landed = list[tuple[int, int]]()
    attempts: dict[str, list[tuple[float, str | None]]] = defaultdict(list)
    ends = None
    for number in count():
        if number == _WARM_ROUNDS:
            attempts.clear()
            ends = time.monotonic() + args.seconds
        if ends and time.monotonic() > ends:
            break
        for name, job in JOBS.items():
            time.sleep(args.pause * chance.uniform(0.5, 1.5))
            began, failure = time.perf_counter(), None
            try:
                landed += job(spark, args, number)
            except Exception as error:
                failure = reason_of(str(error))
            attempts[name].append((time.perf_counter() - began, failure))
    return {"landed": landed, "jobs": {name: _summed(tries) for name, tries in attempts.items()}}


def _summed(tries: Sequence[tuple[float, str | None]]) -> dict[str, Any]:
    failures = Counter(failure for _, failure in tries if failure)
    return {
        "seconds": round(statistics.median(seconds for seconds, _ in tries), 2), "tried": len(tries),
        "committed": len(tries) - failures.total(), "failures": dict(failures),
    }  # fmt: skip


def _rewrite(spark: SparkSession, args: argparse.Namespace, number: int) -> list[tuple[int, int]]:
    options = "options => map('rewrite-all', 'true')"
    where = f"where => 'part = {number % PARTITIONS}'"
    spark.sql(f"CALL c.system.rewrite_data_files(table => '{NAME}', {options}, {where})").collect()
    return []


def _merge(spark: SparkSession, args: argparse.Namespace, number: int) -> list[tuple[int, int]]:
    rows, event = _rows(spark, args.keys, 2 * number)
    rows.createOrReplaceTempView("changes")
    spark.sql(
        f"MERGE INTO {TABLE} t USING changes s ON t.id = s.id WHEN MATCHED AND s.n > t.n THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    return [event]


def _upsert(spark: SparkSession, args: argparse.Namespace, number: int) -> list[tuple[int, int]]:
    rows, event = _rows(spark, args.keys, 2 * number + 1)
    icesize.open(spark, TABLE).upsert(rows)
    return [event]


JOBS: dict[str, Job] = {"rewrite_data_files": _rewrite, "MERGE": _merge, "table.upsert": _upsert}


def _rows(spark: SparkSession, keys: int, seed: int) -> tuple[DataFrame, tuple[int, int]]:
    """Return changes that happen now, and what `_fold` needs to know of them."""
    ids, order = _job_ids(keys, seed), _now()
    rows = rows_of(ids, np.full(len(ids), order), np.random.default_rng(seed))
    return spark.createDataFrame(rows).selectExpr("*", _PART), (seed, order)


def _job_ids(keys: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).choice(keys, JOB_ROWS, replace=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upsert_foreign", description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=["stream", "jobs"])
    parser.add_argument("uri", help="of the REST catalog")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--interval", type=float)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--pause", type=float, required=True)
    parser.add_argument("--target-bytes", type=int)
    parser.add_argument("--parts", type=int)
    parser.add_argument("--version", type=int)
    return parser


if __name__ == "__main__":
    chosen = _parser().parse_args()
    print(json.dumps(_stream(chosen) if chosen.role == "stream" else _jobs(chosen)))
