"""Compaction of a table of small files: icesize against Iceberg's `rewrite_data_files`, on the same table.

    python -m benchmarks compact [--case large|grown|many|tiny] [--pairs 5] [--json]
    python -m benchmarks compact --case jmh250|jmh1000|jmh2000|lineitem|stream [--ways call,rust] [--keep DIR]
    python -m benchmarks compact --case huge [--gigabytes 10] [--keep DIR]

large: 240 files, 336 MB, 4 partitions. grown: 64 files of 16 MB, 1 GB, 4 partitions. many: 2,000 files of 20 kB in 50
partitions. tiny: 5 files in one partition. The table is made once and restored for each run. Pairs alternate, each
program in a process of its own, with a session and workers that have compacted another table before.

The other cases compare icesize with all rivals. They measure whole processes too, which have compacted nothing before:
see `benchmarks.compact_rivals`. jmh: 2,000,000 rows of three columns, 14 MB, in 250, 1,000 or 2,000 files of one
partition. lineitem: TPC-H's at scale factor 1, 200 files, 170 MB, one partition (needs `pip install tpchgen-cli`).
stream: 24 appends of 50,000 rows, some 4,300 files, 192 partitions, target 4 MB.

huge: 10 GB in files of 2.5 MB, one partition, compacted without Spark and compared with `cp` of the same files: see
`benchmarks.compact_huge`. It needs 22 GB on the disk.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import compact_huge, compact_rivals, compact_tables, icesize_child, peers
from benchmarks.restored import restore
from benchmarks.show import bytes_moved, finish

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
    if args.case == "huge":
        return compact_huge.main(args)
    if args.case in compact_tables.CASES:
        return compact_rivals.main(args)
    partitions, files, rows, target = CASES[args.case]
    with tempfile.TemporaryDirectory(prefix="icesize-compact-") as folder:
        # Every run has the same path, because metadata has absolute paths.
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
        ("MB copied, MB decoded, pages copied", bytes_moved(moved), "-"),
        ("the same while warming up", bytes_moved(warm_up), "-"),
        ("groups in a second plan", newest["second_plan_groups"], "-"),
        ("times faster", f"{result['ratio']:.2f}", f"pairs {result['ratios']}"),
    ]
    title = f"compact, {args.case}: {made['files']} files, {made['live_bytes'] / 1e6:.1f} MB"
    return finish(result, title, ("", "icesize", "rewrite_data_files"), lines, args.json)


def _pair(table: Path, master: Path, target: int, first_ours: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    results: dict[bool, dict[str, Any]] = {}
    for is_ours in (first_ours, not first_ours):
        restore(table, master)
        results[is_ours] = icesize_child.compact(table, target) if is_ours else peers.rewrite_data_files(table, target)
    return results[True], results[False]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks compact", description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=[*CASES, *compact_tables.CASES, "huge"], default="large")
    parser.add_argument("--pairs", type=int, default=5)
    everybody = parser.add_argument_group(f"only with {', '.join(compact_tables.CASES)}")
    ways = ",".join(compact_rivals.WAYS)
    everybody.add_argument(
        "--ways", type=compact_rivals.ways_named, default=ways, help="who runs (default: %(default)s)"
    )
    huge = parser.add_argument_group("only with huge")
    huge.add_argument("--gigabytes", type=float, default=10, help="bytes of data files (default: %(default)s)")
    kept = parser.add_argument_group(f"only with {', '.join(compact_tables.CASES)}, huge")
    kept.add_argument("--keep", type=Path, metavar="DIR", help="keep the tables there for later runs")
    parser.add_argument("--json", action="store_true")
    return parser
