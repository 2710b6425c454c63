"""One streaming query through icesize's sink, `python -m benchmarks.connect_child classic|URL DATA WAREHOUSE`.

Prints one JSON line: `seconds` of each batch from Spark's progress, and `files` and `rows` at the end.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import icesize
from benchmarks import peers
from benchmarks.generate import batch_files


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Create the table and write the batches, one file each."""
    spark = peers.session(args.warehouse) if args.session == "classic" else _remote(args.session)
    peers.create_stream_table(spark, args.data, "hash", args.target_bytes, "hour")
    table = icesize.open(spark, peers.TABLE)
    files = batch_files(args.data, args.batches)
    source = spark.readStream.schema(spark.read.parquet(str(files[0])).schema).option("maxFilesPerTrigger", 1)
    rows = source.option("pathGlobFilter", "batch_*.parquet").parquet(str(files[0].parent))
    writer = rows.writeStream.foreachBatch(table.sink("benchmark"))
    query = writer.option("checkpointLocation", str(args.warehouse / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    seconds = [progress["durationMs"]["addBatch"] / 1000 for progress in query.recentProgress]
    return {"seconds": seconds, "files": table.inspect().files, "rows": spark.table(peers.TABLE).count()}


def _remote(url: str) -> SparkSession:
    return SparkSession.builder.remote(url).getOrCreate()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.connect_child")
    parser.add_argument("session", metavar="classic|URL")
    parser.add_argument("data", type=Path)
    parser.add_argument("warehouse", type=Path)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--target-bytes", type=int, required=True)
    print(json.dumps(main(parser.parse_args())))
