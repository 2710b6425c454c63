"""Iceberg's Flink sink in upsert mode, and what scans cost after it, in a process of its own.

    python -m benchmarks.upsert_flink FOLDER --seconds 60 --keys 200000 --per-second 5000

The job is that of `integration.flink`: it inserts, updates and deletes rows of random keys into three partitions, with
a checkpoint each second. Nothing maintains the table. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from pyiceberg.catalog.rest import RestCatalog

from benchmarks import peers
from benchmarks.upsert_child import compared, readers
from integration.flink.job import Changelog, make_table, running
from integration.servers import local_rest_catalog
from tests.support.children import run_child

NAME, FRESH = "c.db.flink", "c.db.fresh"
SQL = "SELECT count(*), sum(n), max(id), max(p), max(t) FROM {}"
_READERS = ("Spark", "DuckDB")
"""PyIceberg reads no equality deletes."""


def run(folder: Path, seconds: int, keys: int, per_second: int) -> dict[str, Any]:
    """Run the job in a process of its own."""
    options = ["--seconds", str(seconds), "--keys", str(keys), "--per-second", str(per_second)]
    return run_child("benchmarks.upsert_flink", str(folder), *options)


def _run(args: argparse.Namespace) -> dict[str, Any]:
    args.folder.mkdir(parents=True)
    log = Changelog("FlinkSink", "upsert", args.seconds, 0, per_second=args.per_second, keys=args.keys)
    with local_rest_catalog(args.folder) as uri:
        catalog = RestCatalog("c", uri=uri)
        catalog.create_namespace_if_not_exists("db")
        make_table(catalog, "db.flink")
        with running(log, uri, "db.flink", args.folder):
            pass
        spark = peers.rest_session(uri)
        table = catalog.load_table("db.flink")
        spark.sql(f"CREATE TABLE {FRESH} USING iceberg PARTITIONED BY (p) AS SELECT * FROM {NAME}")
        data = spark.sql(f"SELECT count(*) files, sum(record_count) rows FROM {NAME}.data_files").collect()[0]
        deletes = spark.sql(f"SELECT content, count(*) files FROM {NAME}.delete_files GROUP BY content").collect()
        by_content = {row.content: row.files for row in deletes}
        rows = log.rows()
        left = tuple(spark.sql(SQL.format(NAME)).collect()[0])[:2]
        of_readers = readers(spark, lambda name: catalog.load_table(name.removeprefix("c.")), SQL)
        return {
            "way": "flink", "keys": args.keys, "rows": args.per_second, "seconds": [],
            "checkpoints": len(table.metadata.snapshots), "data_files": data.files,
            "position_deletes": by_content.get(1, 0), "equality_deletes": by_content.get(2, 0),
            "dead_share": round(1 - len(rows) / data.rows, 4),
            "rows_exact": left == (len(rows), sum(row[2] for row in rows)),
            "scans": {
                name: compared(partial(of_readers[name], NAME), partial(of_readers[name], FRESH)) for name in _READERS
            },
        }  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upsert_flink", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    for option in ("--seconds", "--keys", "--per-second"):
        parser.add_argument(option, type=int, required=True)
    return parser


if __name__ == "__main__":
    chosen = _parser().parse_args()
    print(json.dumps(_run(chosen)))
