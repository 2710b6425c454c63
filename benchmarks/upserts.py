"""Upserts into a table, batch by batch, with merges, and what scans of the table cost afterwards.

    python -m benchmarks upserts [--keys 1000000] [--rows 50000] [--batches 20] [--shape uniform] [--format-version 3]
    python -m benchmarks upserts --curve 0.05,0.1,0.2,0.4
    python -m benchmarks upserts --ways icesize,merge,pyiceberg,flink
    python -m benchmarks upserts --foreign 0,5,15 --keys 3000000 --rows 10000 --target-bytes 16777216
    python -m benchmarks upserts --load 3000000 --driver-rows 500000

| way | what a batch is |
|---|---|
| icesize | a call of `table.sink(..., mode="upsert")` |
| merge | `MERGE INTO` as in `foreachBatch`, merge-on-read, with one event per key; `--peer-batches` batches |
| pyiceberg | `Table.upsert`, on a table of `--pyiceberg-keys` keys with a hundredth of them per batch (format v2) |
| flink | a checkpoint of Iceberg's Flink sink in upsert mode, each second: `benchmarks.upsert_flink` |

Each way is a process of its own, with a table that Spark filled. The first two batches are not measured. Scans read all
columns and rows; their ratio is the time for the table / the time for the same rows, freshly rewritten by Spark.

Bytes ingested are the bytes of the batches as Parquet files; bytes written are those of all data and delete files.
`--curve` runs icesize under several shares of dead rows at which a file falls due (`delete-ratio-threshold`).
`--foreign` runs a stream with these trigger intervals beside jobs of others: `benchmarks.upsert_foreign`.
`--load` upserts so many keys into an empty table in one batch: `benchmarks.upsert_load`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import upsert_child, upsert_flink, upsert_foreign, upsert_load
from benchmarks.show import finish
from benchmarks.upsert_child import WARM_BATCHES
from benchmarks.upsert_rows import Workload

WAYS = ("icesize", "merge", "pyiceberg", "flink")
READERS = ("Spark", "DuckDB", "PyIceberg")
_PYICEBERG_BATCHES = 1


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run all ways, and print a table, or JSON."""
    args = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="icesize-upserts-", dir=args.dir) as folder:
        root = Path(folder)
        if args.foreign:
            return upsert_foreign.run(root, args)
        if args.load:
            return upsert_load.run(root, args)
        load = Workload(args.keys, args.rows, args.batches + WARM_BATCHES, args.shape)
        if {"icesize", "merge"} & set(args.ways) or args.curve:
            load.write(root / "data")
        if args.curve:
            ways = [_ran(root, args, "icesize", load, dead_share=share) | {"share": share} for share in args.curve]
        else:
            ways = [_way(root, args, way, load) for way in args.ways]
    result = {
        "benchmark": "upserts", "keys": args.keys, "rows": args.rows, "shape": args.shape,
        "format_version": args.format_version, "ways": ways, "rows_exact": all(way["rows_exact"] for way in ways),
    }  # fmt: skip
    title = f"{args.rows:,} {args.shape} events a batch into {args.keys:,} keys, format v{args.format_version}"
    return finish(result, title, ("", *(_title(way) for way in ways)), _lines(ways), args.json)


def _way(root: Path, args: argparse.Namespace, way: str, load: Workload) -> dict[str, Any]:
    if way == "flink":
        return upsert_flink.run(root / "flink", args.flink_seconds, args.flink_keys, args.flink_rows)
    if way == "pyiceberg":
        small = replace(
            load, keys=args.pyiceberg_keys, rows=args.pyiceberg_keys // 100, batches=_PYICEBERG_BATCHES + WARM_BATCHES
        )
        small.write(root / "small")
        return _ran(root, args, way, small, data=root / "small", version=2)
    return _ran(root, args, way, load if way == "icesize" else replace(load, batches=args.peer_batches + WARM_BATCHES))


def _ran(
    root: Path, args: argparse.Namespace, way: str, load: Workload, data: Path | None = None, **options: object
) -> dict[str, Any]:
    options = {"version": args.format_version, **options}
    ran = upsert_child.run(
        way, data or root / "data", root / "warehouse", keys=load.keys, batches=load.batches,
        target_bytes=args.target_bytes, scans=int(not args.no_scans), **options,
    )  # fmt: skip
    return ran | {"keys": load.keys, "rows": load.rows}


def _title(way: dict[str, Any]) -> str:
    return f"{way['way']}, {way['share']:.0%} dead" if "share" in way else str(way["way"])


def _lines(ways: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = {
        "keys": [f"{way['keys']:,}" for way in ways],
        "events a batch": [f"{way['rows']:,}" for way in ways],
        "batches measured": [str(len(_measured(way))) if way["seconds"] else "-" for way in ways],
        "median batch, seconds": [_seconds(way, statistics.median) for way in ways],
        "95th percentile, seconds": [_seconds(way, _p95) for way in ways],
        "maximum, seconds": [_seconds(way, max) for way in ways],
        "batches with merges": [str(len(way["merging_batches"])) if "merging_batches" in way else "-" for way in ways],
        "bytes written per byte ingested": [str(way.get("write_amplification", "-")) for way in ways],
        "data files": [str(way["data_files"]) for way in ways],
        "position delete files or vectors": [str(way["position_deletes"]) for way in ways],
        "equality delete files": [str(way["equality_deletes"]) for way in ways],
        "dead rows": [f"{way['dead_share']:.1%}" for way in ways],
    }
    for reader in READERS:
        scans = [way["scans"].get(reader) for way in ways]
        rows[f"scan by {reader}, seconds"] = [f"{scan['seconds']:.2f}" if scan else "-" for scan in scans]
        rows[f"scan by {reader}, ratio"] = [f"{scan['ratio']:.2f}" if scan else "-" for scan in scans]
    rows["heap peak, MiB"] = [str(way["heap_peak_mib"]) if way["way"] == "icesize" else "-" for way in ways]
    rows["rows"] = ["exact" if way["rows_exact"] else "NOT EXACT" for way in ways]
    return [[name, *cells] for name, cells in rows.items()]


def _measured(way: dict[str, Any]) -> list[float]:
    seconds: list[float] = way["seconds"]
    return seconds[WARM_BATCHES:]


def _seconds(way: dict[str, Any], summed: Callable[[list[float]], float]) -> str:
    return f"{summed(_measured(way)):.2f}" if way["seconds"] else "-"


def _p95(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[94] if len(seconds) > 1 else seconds[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks upserts", description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=50_000, help="events of a batch")
    parser.add_argument("--batches", type=int, default=20, help="measured batches of icesize")
    parser.add_argument("--peer-batches", type=int, default=5, help="measured batches of MERGE")
    parser.add_argument("--shape", choices=["uniform", "zipf"], default="uniform")
    parser.add_argument("--format-version", type=int, choices=[2, 3], default=3)
    parser.add_argument("--target-bytes", type=int, default=128 << 20, help="target size of the table's files")
    parser.add_argument("--ways", type=_names, default=["icesize", "merge"], metavar=",".join(WAYS))
    parser.add_argument("--curve", type=_numbers, default=(), metavar="SHARE,...", help="only icesize, per share")
    parser.add_argument("--foreign", type=_numbers, default=(), metavar="SECONDS,...", help="beside jobs of others")
    parser.add_argument("--foreign-seconds", type=float, default=120.0, help="how long others work, per interval")
    parser.add_argument("--foreign-pause", type=float, default=4.0, help="mean seconds between two jobs of others")
    parser.add_argument("--foreign-parts", type=int, default=10, help="partitions, of ten, that the stream touches")
    parser.add_argument("--load", type=int, default=0, metavar="KEYS", help="one batch into an empty table")
    parser.add_argument("--driver-rows", type=int, default=500_000, help="events that the driver of a load may hold")
    parser.add_argument("--pyiceberg-keys", type=int, default=100_000)
    parser.add_argument("--flink-seconds", type=int, default=60)
    parser.add_argument("--flink-keys", type=int, default=200_000)
    parser.add_argument("--flink-rows", type=int, default=5_000, help="changes per second")
    parser.add_argument("--no-scans", action="store_true")
    parser.add_argument("--dir", type=Path, default=None, help="directory for the tables")
    parser.add_argument("--json", action="store_true")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(WAYS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(WAYS)}")
    return names


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


if __name__ == "__main__":
    main()
