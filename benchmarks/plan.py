"""Planning a table of 100,000 small files: cold, after no change, with a spill. No peer: bounds, not ratios.

    python -m benchmarks plan [--files 100000] [--partitions 1000] [--json]
    python -m benchmarks plan --batches 200 --partitions 100000 [--files 1000000] [--touched 10]
        [--format-version 3] [--json]

The files do not exist, only their manifest entries: 25,000 per manifest, with the statistics of 7 columns. With
`--batches`, the batches of a stream are planned and committed (`benchmarks.plan_batches`), also on a table of 1,000
partitions of one file each in the same run. `--files` are then those of the large table, else one per partition.
"""

from __future__ import annotations

import argparse
import tempfile
import uuid
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.show import finish
from benchmarks.snapshots import NOW_MS, create_table, data_file
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.append import Append
from tests.support.children import run_child
from tests.support.tables import make_visible

FILES = 100_000
FEW_PARTITIONS = 1_000
"""Partitions of the table that a large one is compared with."""


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Make the table, plan it twice in a process of its own, print a table or JSON."""
    args = _parser().parse_args(argv)
    if args.batches:
        return _batches(args)
    args.files = args.files or FILES
    with tempfile.TemporaryDirectory(prefix="icesize-plan-") as folder:
        _make_table(Path(folder), args.files, args.partitions)
        result = run_child("benchmarks.icesize_child", "plan", folder) | {"benchmark": "plan", "files": args.files}
        spills = [run_child("benchmarks.icesize_child", "plan", folder, "--spill", f"{folder}/spill") for _ in range(2)]
    result["spill_seconds"] = [spill["cold_seconds"] for spill in spills]
    rows = [
        ("first plan, seconds", result["cold_seconds"], "3"),
        ("first plan with an empty spill, seconds", result["spill_seconds"][0], ""),
        ("first plan of another process with that spill, seconds", result["spill_seconds"][1], ""),
        ("again, seconds (median of 5)", result["again_seconds"], "0.3"),
        ("peak memory of the process, MiB", result["peak_mib"], "600"),
    ]
    return finish(result, f"plan, {args.files:,} files", ("", "icesize", "bound"), rows, args.json)


def _batches(args: argparse.Namespace) -> dict[str, Any]:
    """Plan the batches of a stream on two tables; print times, and those of the large one in relation to the small."""
    cases = []
    for partitions, files in ((FEW_PARTITIONS, FEW_PARTITIONS), (args.partitions, args.files or args.partitions)):
        with tempfile.TemporaryDirectory(prefix="icesize-plan-") as folder:
            counts = {"partitions": partitions, "files": files, "batches": args.batches, "touched": args.touched}
            counts["format-version"] = args.format_version
            options = [text for name, count in counts.items() for text in (f"--{name}", str(count))]
            cases.append(run_child("benchmarks.plan_batches", f"{folder}/warehouse", *options))
    few, many = cases
    result = {"benchmark": "plan batches", "cases": cases, "ratio": round(many["median_ms"] / few["median_ms"], 2)}
    columns = ("first_ms", "median_ms", "p99_ms", "mean_metadata_bytes", "p99_metadata_bytes", "max_metadata_bytes")
    rows = [(f"{c['partitions']:,}", f"{c['files']:,}", *(f"{c[name]:,}" for name in columns)) for c in cases]
    rows.append(("ratio", "", *(f"{many[name] / few[name]:.2f}" for name in columns)))
    header = (
        "partitions", "files", "first, ms", "median", "p99", "mean, bytes", "p99", "most",
    )  # fmt: skip
    title = f"planning a batch into {args.touched} partitions (ms); metadata of its commit (bytes), `most`: all batches"
    return finish(result, title, header, rows, args.json)


def _make_table(root: Path, files: int, partitions: int) -> None:
    catalog = peers.catalog(root)
    table = create_table(catalog, root)
    names = (f"0a1b2c3d4e5f-{i // 500}-{i % 8}-0-{uuid.uuid4()}.parquet" for i in range(files))
    hours = (f"h{i % partitions:04}" for i in range(files))
    added = [data_file(f"{table.location()}/data/hour={h}/{name}", h) for h, name in zip(hours, names, strict=True)]
    make_visible(catalog, table, [Append(tuple(added)).stage(SnapshotBuilder(table, NOW_MS), {})])
    catalog.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks plan", description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, help="files of the large table")
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--batches", type=int, default=0, help="plan so many batches of a stream")
    parser.add_argument("--touched", type=int, default=10, help="partitions that each batch writes to")
    parser.add_argument("--format-version", type=int, choices=(2, 3), default=2, help="of the table of --batches")
    parser.add_argument("--json", action="store_true")
    return parser
