"""Compaction of a table of small files: icesize against Iceberg's `rewrite_data_files`, same table, same run.

    python -m benchmarks compact [--case large|grown|many|tiny] [--pairs 5] [--json]

large: 240 files, 336 MB, 4 partitions. grown: 64 files of 16 MB, 1 GB, 4 partitions. many: 2,000 files of 20 kB in 50
partitions. tiny: 5 files in one partition. The table is made once and restored for each run; pairs alternate, each
program in a process of its own, with a session, and workers, that have compacted another table before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import ours, peers
from benchmarks.show import finish

CASES = {
    "large": (4, 60, 40_000, 134_217_728),
    "grown": (4, 16, 456_000, 134_217_728),
    "many": (50, 40, 300, 134_217_728),
    "tiny": (1, 5, 500, 134_217_728),
}
"""Partitions, files per partition, rows per file, target file size in bytes."""


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the pairs and print a table, or JSON."""
    args = _parser().parse_args(argv)
    partitions, files, rows, target = CASES[args.case]
    with tempfile.TemporaryDirectory(prefix="icesize-compact-") as folder:
        # one path for every run: metadata holds absolute paths
        table, master = Path(folder) / "table", Path(folder) / "master"
        made = peers.iceberg_small_files(table, partitions, files, rows, target)
        table.rename(master)
        pairs = [_pair(table, master, target, first_ours=n % 2 == 0) for n in range(args.pairs)]
    ratios = [b["seconds"] / a["seconds"] for a, b in pairs]
    mine = [a["seconds"] for a, _ in pairs]
    peer = [b["seconds"] for _, b in pairs]
    newest = pairs[-1][0]
    result = {
        "benchmark": "compact",
        "case": args.case,
        "table": made,
        "ratios": [round(r, 2) for r in ratios],
        "ratio": round(statistics.median(ratios), 2),
        "rows_exact": all(a["rows"] == made["rows"] for a, _ in pairs),
        "icesize": newest,
        "iceberg": pairs[-1][1],
    }
    moved, warm_up = newest["bytes"], newest["warm_up"]
    lines = [
        ("seconds, median", f"{statistics.median(mine):.2f}", f"{statistics.median(peer):.2f}"),
        ("files before", newest["before"]["files"], pairs[-1][1]["before"]["files"]),
        ("files after", newest["after"]["files"], pairs[-1][1]["after"]["files"]),
        ("MB copied, MB decoded, pages copied", _bytes_moved(moved), "-"),
        ("the same while warming up", _bytes_moved(warm_up), "-"),
        ("groups in a second plan", newest["second_plan_groups"], "-"),
        ("times faster", f"{result['ratio']:.2f}", f"pairs {result['ratios']}"),
    ]
    title = f"compact, {args.case}: {made['files']} files, {made['live_bytes'] / 1e6:.1f} MB"
    return finish(result, title, ("", "icesize", "rewrite_data_files"), lines, args.json)


def _pair(table: Path, master: Path, target: int, first_ours: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    results: dict[bool, dict[str, Any]] = {}
    for is_ours in (first_ours, not first_ours):
        restore(table, master)
        results[is_ours] = ours.compact(table, target) if is_ours else peers.rewrite_data_files(table, target)
    return results[True], results[False]


def restore(table: Path, master: Path) -> None:
    """The table as it was made. Data files are linked: programs delete them, but none writes into one."""
    shutil.rmtree(table, ignore_errors=True)
    shutil.copytree(master, table, copy_function=_link_data)
    # what the run before has written would be flushed while this one is timed
    os.sync()


def _link_data(source: str, target: str) -> None:
    if source.endswith(".parquet"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def _bytes_moved(moved: dict[str, int]) -> str:
    return f"{moved['bytes_copied'] / 1e6:.1f}, {moved['bytes_decoded'] / 1e6:.1f}, {moved['pages_copied']}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks compact", description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=sorted(CASES), default="large")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    return parser
