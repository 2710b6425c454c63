"""Planning a table of 100,000 small files: cold, and again after no change. No peer: bounds, not ratios.

    python -m benchmarks plan [--files 100000] [--partitions 1000] [--json]

The files do not exist, only their manifest entries: 25,000 per manifest, with the statistics of 7 columns.
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


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Make the table, plan it twice in a process of its own, print a table or JSON."""
    args = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="icesize-plan-") as folder:
        _make_table(Path(folder), args.files, args.partitions)
        result = run_child("benchmarks.icesize_child", "plan", folder) | {"benchmark": "plan", "files": args.files}
    rows = [
        ("first plan, seconds", result["cold_seconds"], "3"),
        ("again, seconds (median of 5)", result["again_seconds"], "0.3"),
        ("peak memory of the process, MiB", result["peak_mib"], "600"),
    ]
    return finish(result, f"plan, {args.files:,} files", ("", "icesize", "bound"), rows, args.json)


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
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--json", action="store_true")
    return parser
