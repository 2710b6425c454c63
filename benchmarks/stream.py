"""A stream into a table: icesize with its merges against Iceberg's own append without any, same rows, same run.

    python -m benchmarks stream [--pairs N] [--batches N] [--rows N] [--partition hour|day|none] [--streaming] [--json]

Pairs alternate, each program in a process of its own; the ratio is the median over pairs of icesize / Iceberg.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import ours, peers
from benchmarks.generate import generate
from benchmarks.show import finish

SEED = 7
TARGET_BYTES = 4_000_000


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the pairs and print a table, or JSON."""
    args = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="icesize-stream-") as folder:
        root = Path(folder)
        generate(root / "data", args.batches, args.rows, SEED)
        pairs = [_pair(root, args, first_ours=n % 2 == 0) for n in range(args.pairs)]
    ratios = [sum(a["seconds"]) / sum(b["seconds"]) for a, b in pairs]
    newest, peer = pairs[-1]
    result = {
        "benchmark": "stream",
        "partition": args.partition,
        "streaming": args.streaming,
        "batches": args.batches,
        "rows_per_batch": args.rows,
        "ratios": [round(r, 3) for r in ratios],
        "ratio": round(statistics.median(ratios), 3),
        "rows_exact": all(a["rows"] == args.batches * args.rows for a, _ in pairs),
        "icesize": newest,
        "iceberg": peer,
    }
    rows = [
        ("total seconds", f"{sum(newest['seconds']):.1f}", f"{sum(peer['seconds']):.1f}"),
        ("median batch, seconds", _median(newest), _median(peer)),
        ("files at the end", newest["files"], peer["files"]),
        ("most small files after any batch", max(newest["small_files_max"]), "-"),
        ("most files in a partition", newest["files_per_partition_max"], peer["files_per_partition_max"]),
        ("write amplification", newest["write_amplification"], peer["write_amplification"]),
        ("batches that dropped merges", newest["dropped_merges"], "-"),
        ("rows", newest["rows"], peer["rows"]),
        ("time, icesize / Iceberg", f"{result['ratio']:.2f}", f"pairs {result['ratios']}"),
    ]
    if args.commits:
        result["commit_growth"] = _commit_growth(newest["commit_seconds"])
        rows.append(("commit seconds, late / early batches", f"{result['commit_growth']:.2f}", "-"))
    title = f"{'streaming query' if args.streaming else 'stream'}, partitioned by {args.partition}"
    return finish(result, title, ("", "icesize", "Iceberg append"), rows, args.json)


def _pair(root: Path, args: argparse.Namespace, first_ours: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    def run_ours() -> dict[str, Any]:
        policy = {"cold-after-commits": args.cold_after} if args.cold_after else {}
        data, where = root / "data", root / "ours"
        return ours.stream(data, where, TARGET_BYTES, args.batches, args.partition, policy, args.streaming)

    def run_peer() -> dict[str, Any]:
        data, where = root / "data", root / "peer"
        return peers.iceberg_stream(data, where, "hash", TARGET_BYTES, args.batches, args.partition, args.streaming)

    if args.only_ours:
        mine = run_ours()
        return mine, mine
    if first_ours:
        mine = run_ours()
        return mine, run_peer()
    peer = run_peer()
    return run_ours(), peer


def _median(result: dict[str, Any]) -> str:
    return f"{statistics.median(result['seconds'][2:] or result['seconds']):.2f}"


def _commit_growth(seconds: list[float]) -> float:
    """Median commit time of batches 170-190 over that of batches 15-25 in a run of 192."""
    return statistics.median(seconds[170:191]) / statistics.median(seconds[15:26])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks stream", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--partition", choices=["hour", "day", "none"], default="hour")
    parser.add_argument("--streaming", action="store_true", help="through a real streaming query, not read by read")
    parser.add_argument("--cold-after", type=int, default=None, help="cold-after-commits of the policy")
    parser.add_argument("--only-ours", action="store_true", help="without the peer: every ratio is 1")
    parser.add_argument("--commits", action="store_true", help="how commit time grows (needs 192 batches)")
    parser.add_argument("--json", action="store_true")
    return parser
