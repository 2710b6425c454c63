"""A streaming query on Spark Connect against the same one in a classic session: icesize's sink, on the same rows.

    python -m benchmarks connect [--pairs N] [--batches N] [--rows N] [--json]

Pairs alternate in the same run, each session in a JVM of its own with the same settings. The ratio is the median over
pairs of the median batch on Connect / classic. Spark's own progress reports the time of a batch; the first two batches
are left out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.generate import generate
from benchmarks.show import finish
from integration.connect import connect_server
from tests.support.children import run_child

SEED = 7
TARGET_BYTES = 4_000_000
_WARM_UP = 2
_DEFAULT = {"spark.sql.shuffle.partitions": "200"}
"""Spark's own default, which the number of icesize's tasks must not follow."""


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the pairs and print a table, or JSON."""
    args = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="icesize-connect-") as folder:
        root = Path(folder)
        generate(root / "data", args.batches, args.rows, SEED)
        pairs = [_pair(root, args, classic_first=n % 2 == 0) for n in range(args.pairs)]
    ratios = [_median(pair["connect"]) / _median(pair["classic"]) for pair in pairs]
    given = args.batches * args.rows
    result = {
        "benchmark": "connect",
        "batches": args.batches,
        "rows_per_batch": args.rows,
        "ratios": [round(r, 3) for r in ratios],
        "ratio": round(statistics.median(ratios), 3),
        "rows_exact": all(run["rows"] == given for pair in pairs for run in pair.values()),
        **pairs[-1],
    }
    return finish(result, "streaming query", ("", "Connect", "classic"), _lines(result), args.json)


def _pair(root: Path, args: argparse.Namespace, classic_first: bool) -> dict[str, Any]:
    programs = {"classic": _classic, "connect": _connect}
    order = programs if classic_first else reversed(programs)
    return {name: programs[name](root / "data", peers.emptied(root / name), args.batches) for name in order}


def _classic(data: Path, warehouse: Path, batches: int) -> dict[str, Any]:
    return _child("classic", data, warehouse, batches)


def _connect(data: Path, warehouse: Path, batches: int) -> dict[str, Any]:
    with connect_server(warehouse, peers.session_settings(warehouse) | _DEFAULT) as server:
        return _child(server.url, data, warehouse, batches)


def _child(session: str, data: Path, warehouse: Path, batches: int) -> dict[str, Any]:
    options = ["--target-bytes", str(TARGET_BYTES), "--batches", str(batches)]
    return run_child("benchmarks.connect_child", session, str(data), str(warehouse), *options)


def _lines(result: dict[str, Any]) -> list[tuple[object, ...]]:
    connect, classic = result["connect"], result["classic"]
    return [
        ("median batch, seconds", f"{_median(connect):.2f}", f"{_median(classic):.2f}"),
        ("slowest batch, seconds", f"{max(connect['seconds']):.2f}", f"{max(classic['seconds']):.2f}"),
        ("files at the end", connect["files"], classic["files"]),
        ("rows exact", result["rows_exact"], "-"),
        ("time, Connect / classic", f"{result['ratio']:.2f}", f"pairs {result['ratios']}"),
    ]


def _median(run: dict[str, Any]) -> float:
    return statistics.median(run["seconds"][_WARM_UP:] or run["seconds"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks connect", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--json", action="store_true")
    return parser
