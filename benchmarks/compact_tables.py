"""Tables of small files from Iceberg's Spark writer: the cases of `benchmarks.compact_rivals`.

    python -m benchmarks.compact_tables plain WAREHOUSE --files 250
    python -m benchmarks.compact_tables copy WAREHOUSE --files 200 --of lineitem.parquet

Each command makes the unpartitioned table `c.db.t` in a process of its own. `plain` is as small as the tables of
Iceberg's own JMH benchmarks: 2,000,000 rows of three columns.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import peers
from benchmarks.generate import generate
from tests.support.children import run_child

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = 2_000_000
_KINDS = 8
_NAME_LENGTH = 9
"""Characters of a name; with 9, the table has about 14 MB."""
_DEFAULT_TARGET_BYTES = 512 * 2**20
"""Iceberg's default: each of these tables fits into one file."""
_LINEITEM_FILES = 200
_STREAM_TARGET_BYTES = 4_000_000
_BATCHES, _BATCH_ROWS, _SEED = 24, 50_000, 7


@dataclass(frozen=True)
class Case:
    """A function that makes a table, and the target for its files.

    `make` takes the warehouse, and a directory for other files.
    """

    make: Callable[[Path, Path], object]
    target_bytes: int = _DEFAULT_TARGET_BYTES


def _plain(warehouse: Path, scratch: Path, files: int) -> None:
    run_child("benchmarks.compact_tables", "plain", str(warehouse), "--files", str(files))


def _lineitem(warehouse: Path, scratch: Path) -> None:
    """Make TPC-H's largest table at scale factor 1, 6,001,215 rows."""
    beside = str(Path(sys.executable).parent)
    program = shutil.which("tpchgen-cli", path=beside) or shutil.which("tpchgen-cli")
    if program is None:
        raise SystemExit("Cannot make the table lineitem: 'tpchgen-cli' is not installed: pip install tpchgen-cli")
    subprocess.run([program, "parquet", "-s", "1", "--tables=lineitem", f"--output-dir={scratch}", "-q"], check=True)
    rows = scratch / "lineitem.parquet"
    run_child("benchmarks.compact_tables", "copy", str(warehouse), "--files", str(_LINEITEM_FILES), "--of", str(rows))
    rows.unlink()


def _stream(warehouse: Path, scratch: Path) -> None:
    generate(scratch / "batches", _BATCHES, _BATCH_ROWS, _SEED)
    peers.iceberg_stream(scratch / "batches", warehouse, "hash", _STREAM_TARGET_BYTES, _BATCHES, "hour", False)
    shutil.rmtree(scratch / "batches")


CASES = {
    "jmh250": Case(partial(_plain, files=250)),
    "jmh1000": Case(partial(_plain, files=1000)),
    "jmh2000": Case(partial(_plain, files=2000)),
    "lineitem": Case(_lineitem),
    "stream": Case(_stream, _STREAM_TARGET_BYTES),
}


def _make_plain(spark: SparkSession, args: argparse.Namespace) -> None:
    from pyspark.sql import functions as f

    _create(spark, "id bigint, kind int, name string")
    kind = (f.rand(1) * _KINDS).cast("int").alias("kind")
    name = f.substring(f.sha1(f.col("id").cast("string")), 1, _NAME_LENGTH).alias("name")
    # Each task writes one file.
    spark.range(0, _ROWS, 1, args.files).select("id", kind, name).writeTo(peers.TABLE).append()


def _make_copy(spark: SparkSession, args: argparse.Namespace) -> None:
    rows = spark.read.parquet(str(args.of))
    _create(spark, ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema))
    rows.repartition(args.files).writeTo(peers.TABLE).append()


def _create(spark: SparkSession, columns: str) -> None:
    peers.create(spark, peers.TABLE, columns, "", "none", _DEFAULT_TARGET_BYTES)


def _main(args: argparse.Namespace) -> dict[str, Any]:
    spark = peers.session(peers.emptied(args.warehouse))
    args.make(spark, args)
    return peers.state(spark)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compact_tables", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    plain = commands.add_parser("plain", help="three columns, made up")
    plain.set_defaults(make=_make_plain)
    copy = commands.add_parser("copy", help="the rows of a Parquet file")
    copy.add_argument("--of", type=Path, required=True, metavar="FILE")
    copy.set_defaults(make=_make_copy)
    for command in (plain, copy):
        command.add_argument("warehouse", type=Path)
        command.add_argument("--files", type=int, required=True)
    return parser


if __name__ == "__main__":
    print(json.dumps(_main(_parser().parse_args())))
