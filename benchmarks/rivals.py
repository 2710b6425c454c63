"""A stream by icesize among rivals on the same partitions: are all rows right, and which commits conflict with which?

    python -m benchmarks rivals [--seconds 120] [--pause 3] [--partitions 4] [--rows 2000] [--seed 7] [--json]
    python -m benchmarks rivals --control
    python -m benchmarks rivals --isolation serializable | --no-compaction | --compact | --cached

Several jobs work on one table of Iceberg's REST catalog at the same time: a streaming query with merges, icesize's
maintenance and expiry in another process, and Iceberg's `rewrite_data_files` and `expire_snapshots`. DELETE, UPDATE and
MERGE run in both of Iceberg's modes, beside a stream reader. No job retries a failed statement.

`--control` is the same without icesize's merges and maintenance, which therefore cause none of its failures. The exit
code is 1 if a row is lost, doubled, resurrected or wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyiceberg.catalog.rest import RestCatalog

import icesize
from benchmarks.rival_jobs import NAME, Compaction, Reader, RowLevel, Stream
from benchmarks.rival_model import Row, compare, expected_rows
from benchmarks.rival_report import counted, lines_of, merges
from benchmarks.rival_upkeep import Rebases, upkeep
from benchmarks.show import finish
from icesize.parquet.files.names import writer_of
from integration.faults.faulted_table import needed
from integration.jars import spark_jars
from integration.servers import catalog_settings, local_rest_catalog, session_settings
from integration.tools import local_path

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

TARGET_BYTES = 400_000
STATEMENT_PAUSE_S = 1.0
COMPACTION_PAUSE_S = 20.0
STREAM_CATALOG, RIVAL_CATALOG = "rest", "rival"


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run for `--seconds` and print a table, or JSON; raise SystemExit(1) if anything is not exact."""
    args = _parser().parse_args(argv)
    rebases = Rebases().listen()
    with tempfile.TemporaryDirectory(prefix="icesize-rivals-") as folder:
        result = _run(Path(folder), args) | {"rebases_of_the_stream": rebases.count}
    what = "without icesize's merges" if args.control else "with icesize's merges"
    title = f"rivals, {args.seconds:.0f} s, pause {args.pause:g} s, {args.isolation}, {what}"
    finish(result, title, ("", ""), lines_of(result), args.json)
    if result["violations"]:
        sys.exit(1)
    return result


def _run(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    with local_rest_catalog(folder) as uri, _session(folder, uri, args.cached) as spark:
        catalog = RestCatalog(STREAM_CATALOG, uri=uri)
        _create(spark, args)
        table = icesize.open(spark, f"{STREAM_CATALOG}.{NAME}")
        merge = "off" if args.control else "inline"
        stream = Stream(spark, table, merge, args.rows, args.partitions, args.pause).start(folder / "stream")
        stream.wait_for_rows()
        work = _at_work(folder, args, spark, uri, stream)
        found = sorted(tuple(row) for row in spark.table(f"{RIVAL_CATALOG}.{NAME}").collect())
        violations = [*work.ended, *_wrong(catalog.load_table(NAME), stream, work, found, args.partitions)]
        result = _result(stream, work, args) | {"violations": violations, "rows": len(found)}
        result["leaked"] = _leaked(catalog.load_table(NAME))
        catalog.close()
        return result


@dataclass(frozen=True)
class _Work:
    """The results of all jobs beside the stream; `ended` describes queries that failed."""

    rows: RowLevel
    compaction: Compaction
    reader: Reader
    upkeep: dict[str, Any]
    ended: list[str]


def _at_work(folder: Path, args: argparse.Namespace, spark: SparkSession, uri: str, stream: Stream) -> _Work:
    """Let all jobs work for `--seconds`, then end them: first those that change the table, last the reader."""
    stopping = threading.Event()
    reader = Reader(spark, f"{STREAM_CATALOG}.{NAME}", folder / "reader")
    catalogs = [RestCatalog(STREAM_CATALOG, uri=uri) for _ in range(2)]
    rows = RowLevel(spark, RIVAL_CATALOG, catalogs[0], stopping, STATEMENT_PAUSE_S, seed=args.seed)
    compaction = Compaction(spark, RIVAL_CATALOG, catalogs[1], stopping, COMPACTION_PAUSE_S, target_bytes=TARGET_BYTES)
    done: dict[str, Any] = {}
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(rows.run, args.partitions, args.touched or args.partitions, lambda: stream.committed)]
        if not args.no_compaction:
            jobs.append(pool.submit(compaction.run))
        try:
            if args.control:
                time.sleep(args.seconds)
            else:
                done = upkeep(uri, args.seconds, folder / "reader", args.upkeep_every, args.compact)
        finally:
            stopping.set()
        for job in jobs:
            job.result()
    ended = {"stream": stream.stop(), "reader": reader.stop()}
    for catalog in catalogs:
        catalog.close()
    failed = [f"the {who} failed: {why}" for who, why in ended.items() if why is not None]
    return _Work(rows, compaction, reader, done, failed)


def _wrong(table: Table, stream: Stream, work: _Work, found: Sequence[Row], partitions: int) -> Iterator[str]:
    """Return descriptions of all differences between the table and the model."""
    expected = expected_rows(stream.committed, partitions, work.rows.landed)
    own = table.scan().to_arrow().to_pylist()
    for who, rows in (("Spark", found), ("PyIceberg", [(r["id"], r["part"], r["v"], r["text"]) for r in own])):
        if (differences := compare(expected, rows)).any:
            yield f"{who} reads {differences}"
    each_once = Counter(range(stream.committed))
    if work.reader.seen != each_once:
        missed, more = each_once - work.reader.seen, work.reader.seen - each_once
        yield f"the reader missed {len(missed)} rows and saw {len(more)} too often"
    yield from _broken(table)


def _broken(table: Table) -> Iterator[str]:
    """Return files that differ from the table's metadata, and batches that the table has twice."""
    head = table.metadata.current_snapshot()
    manifests = head.manifests(table.io) if head else []
    files = [entry.data_file for m in manifests for entry in m.fetch_manifest_entry(table.io)]
    if len({local_path(f.file_path) for f in files}) < len(files):
        yield "a file is listed twice"
    for file in files:
        path = Path(local_path(file.file_path))
        if not path.is_file() or path.stat().st_size != file.file_size_in_bytes:
            yield f"{path.name} is not there, or not as large as the table says"
        elif pq.read_metadata(path).num_rows != file.record_count:
            yield f"{path.name} has not as many rows as the table says"
    if gone := [path for path in needed(table) if not Path(path).is_file()]:
        yield f"{len(gone)} files that a snapshot needs are gone, {gone[0]} for one"
    summaries = [s.summary for s in table.metadata.snapshots if s.summary and s.summary.operation.value == "append"]
    batches = Counter(s.additional_properties.get("icesize.ledger") for s in summaries)
    yield from (f"a batch was appended twice: {entry}" for entry, n in batches.items() if entry and n > 1)


def _leaked(table: Table) -> dict[str, list[str]]:
    """Return names of data files on disk that no snapshot needs, by their writer."""
    on_disk = {str(path) for path in (Path(local_path(table.location())) / "data").rglob("*.parquet")}
    leaked: dict[str, list[str]] = {"icesize": [], "others": []}
    for path in sorted(on_disk - needed(table)):
        leaked["icesize" if writer_of(path) is not None else "others"].append(Path(path).name)
    return leaked


def _result(stream: Stream, work: _Work, args: argparse.Namespace) -> dict[str, Any]:
    rows = [a for a in work.rows.attempts if a.label != "ALTER TABLE"]
    return {
        "benchmark": "rivals",
        "seconds": args.seconds,
        "pause_seconds": args.pause,
        "control": args.control,
        "isolation": args.isolation,
        "partitions": args.partitions,
        "touched": args.touched or args.partitions,
        "batches": stream.batches,
        "appended": stream.committed,
        "stream": merges([report.to_dict() for report in stream.reports]),
        "upkeep": {**work.upkeep, "reports": None, **merges(work.upkeep.get("reports", []))} if work.upkeep else {},
        "row_level": counted(rows),
        "compaction": counted(work.compaction.attempts),
        "batch_seconds": [report.seconds.get("total", 0.0) for report in stream.reports],
    }


@contextmanager
def _session(folder: Path, uri: str, cached: bool) -> Iterator[SparkSession]:
    """Yield Spark with two catalogs on one server: `rest` for the stream, and `rival`, like another cluster.

    By default, `rival` caches no tables.
    """
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = session_settings(folder) | catalog_settings(uri, folder)
    rest = {k: v for k, v in settings.items() if k.startswith("spark.sql.catalog.rest")}
    settings |= {k.replace(".rest", f".{RIVAL_CATALOG}", 1): v for k, v in rest.items()}
    settings[f"spark.sql.catalog.{RIVAL_CATALOG}.cache-enabled"] = str(cached).lower()
    settings["spark.jars"] = ",".join(map(str, spark_jars()))
    builder = SparkSession.builder.master("local[4]").appName("icesize rivals")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def _create(spark: SparkSession, args: argparse.Namespace) -> None:
    properties = {
        "format-version": "2",
        "write.target-file-size-bytes": str(TARGET_BYTES),
        "icesize.policy.max-small-files": str(args.k),
        **{f"write.{kind}.isolation-level": args.isolation for kind in ("delete", "update", "merge")},
    }
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    spark.sql(f"CREATE NAMESPACE {STREAM_CATALOG}.db")
    columns = "id bigint, part string, v bigint, text string"
    spark.sql(
        f"CREATE TABLE {STREAM_CATALOG}.{NAME} ({columns}) USING iceberg PARTITIONED BY (part) TBLPROPERTIES ({listed})"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks rivals", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="300 is the stress run")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between two batches of the stream")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--touched", type=int, default=None, help="partitions that row-level statements act on: all")
    parser.add_argument("--rows", type=int, default=2_000, help="rows of a batch")
    parser.add_argument("--k", type=int, default=3, help="max-small-files of the policy")
    parser.add_argument("--seed", type=int, default=7, help="of the statements")
    parser.add_argument("--isolation", choices=["snapshot", "serializable"], default="snapshot")
    parser.add_argument("--upkeep-every", type=float, default=15.0, help="seconds between passes of our maintenance")
    parser.add_argument("--compact", action="store_true", help="our maintenance also compacts contested partitions")
    parser.add_argument("--no-compaction", action="store_true", help="no rewrite_data_files and expiry of others")
    parser.add_argument("--cached", action="store_true", help="rivals with Iceberg's default catalog cache")
    parser.add_argument("--control", action="store_true", help="no merges and no maintenance by icesize")
    parser.add_argument("--json", action="store_true")
    return parser
