"""Merging the same small files with many methods, on one core, warm: bytes per second, memory, and reads of the result.

    python -m benchmarks merge [--files 60] [--rows 40000] [--rounds 3] [--scans 8] [--json]

Iceberg's Spark writer makes the files, about 1.4 MB each. Every method runs in a process of its own, bound to one core:
once for warming up, then `--rounds` times. Memory is measured in processes that merge once, with a quarter of the
files, all of them, and four times all. Then icesize compacts the table. Readers aggregate all columns of it and of the
table that `rewrite_data_files` made, in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import merge_spark
from benchmarks.merge_child import WAYS, Job
from benchmarks.show import finish
from tests.support.children import run_child

_TITLES = {
    "row groups": "icesize, row groups",
    "pages": "icesize pages",
    "chosen": "icesize as it chooses",
    "lineage": "the same, format v3",
    "decode": "icesize decode",
    "pyarrow": "pyarrow",
    "duckdb": "DuckDB COPY",
    "rewrite": "rewrite_data_files",
}
_COLUMNS = ("", "MB/s", "x decode", "seconds", "peak MB", "groups", "MB out")
_COPYING = ("row groups", "pages")


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run all of it and print tables, or JSON."""
    args = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="icesize-merge-") as folder:
        root = Path(folder)
        made = merge_spark.make(root / "table", args.files, args.rows)
        paths = made.pop("paths")
        ways = {way: _run(root, way, paths, args.rounds) for way in args.ways}
        peaks = {way: _peaks(root, way, paths) for way in args.ways if way in _COPYING}
        # These two leave the tables merged.
        ways["rewrite"] = merge_spark.rewrite(root / "table", args.rounds)
        read = merge_spark.scan(root / "table", args.scans)
    for way in ways.values():
        way["mb_per_second"] = round(made["live_bytes"] / 1e6 / statistics.median(way["seconds"]), 1)
    result = {
        "benchmark": "merge",
        "table": made,
        "ways": ways,
        "rows_exact": all(way["rows"] == made["rows"] for way in ways.values()),
        "peak_bytes_by_files": peaks,
        "compacted": read["compacted"],
        "compacted_bytes": read["bytes"],
        "scans": read["scans"],
    }
    return _show(result, args.json)


def _show(result: dict[str, Any], as_json: bool) -> dict[str, Any]:
    made, scans = result["table"], result["scans"]
    title = f"merge, one core: {made['files']} files, {made['live_bytes'] / 1e6:.1f} MB"
    finish(result, title, _COLUMNS, [*_lines(result["ways"]), ("rows exact", result["rows_exact"])], as_json)
    if not as_json and result["peak_bytes_by_files"]:
        finish(result, *_peak_table(result["peak_bytes_by_files"]), as_json)
    if not as_json:
        finish(result, *_scan_table(scans, result["compacted_bytes"]), as_json)
    return result


def _run(root: Path, way: str, paths: list[str], rounds: int) -> dict[str, Any]:
    job = root / "job.json"
    job.write_text(json.dumps(Job(str(root / "table"), paths, str(root / "merged.parquet"), rounds)._asdict()))
    return run_child("benchmarks.merge_child", way, str(job))


def _peaks(root: Path, way: str, paths: list[str]) -> dict[int, int]:
    """Return peak bytes by the number of files, in processes that merge once."""
    lists = (paths[: max(1, len(paths) // 4)], paths, paths * 4)
    return {len(some): _run(root, way, some, rounds=0)["peak_bytes"] for some in lists}


def _lines(ways: dict[str, dict[str, Any]]) -> list[tuple[object, ...]]:
    decoded = ways["decode"]["mb_per_second"] if "decode" in ways else None
    return [
        (
            _TITLES[name],
            way["mb_per_second"],
            f"{way['mb_per_second'] / decoded:.2f}" if decoded else "-",
            f"{statistics.median(way['seconds']):.3f}",
            f"{way['peak_bytes'] / 1e6:.0f}",
            way["row_groups"],
            f"{way['bytes'] / 1e6:.1f}",
        )
        for name, way in ways.items()
    ]


_Shown = tuple[str, tuple[str, ...], list[tuple[object, ...]]]
"""Title, header, rows."""


def _peak_table(peaks: dict[str, dict[int, int]]) -> _Shown:
    counts = tuple(f"{count} files" for count in next(iter(peaks.values())))
    rows: list[tuple[object, ...]] = [
        (_TITLES[way], *(f"{peak / 1e6:.0f}" for peak in by_files.values())) for way, by_files in peaks.items()
    ]
    return "peak MB of one merge", ("", *counts), rows


def _scan_table(scans: dict[str, dict[str, Any]], moved: dict[str, int]) -> _Shown:
    copied, decoded = (f"{moved[way] / 1e6:.1f} MB" for way in ("bytes_copied", "bytes_decoded"))
    title = f"seconds to aggregate all columns; icesize copied {copied}, decoded {decoded}"
    rows: list[tuple[object, ...]] = [
        (name, f"{scan['icesize']:.3f}", f"{scan['rewritten']:.3f}", scan["ratio"], scan["ratio_of_best"], scan["same"])
        for name, scan in scans.items()
    ]
    return title, ("", "icesize", "rewrite_data_files", "ratio", "of best", "same answer"), rows


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks merge", description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--rows", type=int, default=40_000, help="per file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scans", type=int, default=8, help="of each table by each reader")
    parser.add_argument(
        "--ways", nargs="+", choices=sorted(WAYS), default=list(WAYS), help="besides rewrite_data_files"
    )
    parser.add_argument("--json", action="store_true")
    return parser
