"""`icesize scan` of a catalog of many tables: seconds, and the peak memory of the whole process.

    python -m benchmarks catalog [--tables 1000] [--large 10] [--large-files 50000] [--most-snapshots 70000]
        [--with-deletes 100] [--json]

`benchmarks.catalog_tables` makes the tables, once for both kinds of catalog: SQLite, and REST on this machine. Only
metadata exist. A table that needs nothing is surveyed again in one process, where catalog and packages are loaded. No
peer ranks tables from metadata, so there are bounds instead of ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

import icesize
from benchmarks.catalog_tables import FILE_BYTES, Shape, Sizes, make, shapes
from benchmarks.show import finish

_MEASURED = Path(__file__).with_name("measured.py")
WELL = Shape(files=12, snapshots=20, file_bytes=FILE_BYTES[-1], is_young=True)
"""A table that needs nothing."""
AGAIN = 20


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Make the catalog, scan it twice by each kind, print a table or JSON."""
    args = _parser().parse_args(argv)
    sizes = Sizes(args.tables, args.large, args.large_files, args.most_snapshots, args.with_deletes)
    with tempfile.TemporaryDirectory(prefix="icesize-catalog-") as folder:
        uri = f"sqlite:///{folder}/cat.db"
        catalog = SqlCatalog("c", uri=uri, warehouse=f"file://{folder}/wh")
        made = [*shapes(sizes), WELL]
        names = make(catalog, Path(folder, "wh"), made, int(time.time() * 1000))
        scans = {"SQLite": _scanned(uri, len(made))}
        with _served(f"{folder}/cat.db") as address:
            scans["REST"] = _scanned(address, len(made))
        seconds = _surveyed(catalog, names[-1])
        catalog.close()
    result = {
        "benchmark": "catalog", "tables": len(made), "files": sum(shape.files for shape in made),
        "snapshots": sum(shape.snapshots for shape in made), "scans": scans, "well_sized_seconds": round(seconds, 4),
    }  # fmt: skip
    rows = [
        (f"{kind}: {name}", f"{scan[key] / unit:,.1f}", bound)
        for kind, scan in scans.items()
        for name, key, unit, bound in (
            ("seconds", "seconds", 1, "90"), ("CPU seconds", "cpu_seconds", 1, ""),
            ("peak memory, MiB", "peak_bytes", 2**20, "2,048"),
        )
    ]  # fmt: skip
    rows.append((f"a table that needs nothing, seconds (median of {AGAIN})", f"{seconds:.3f}", "0.1"))
    title = f"scan, {len(made):,} tables, {result['files']:,} files, {result['snapshots']:,} snapshots"
    return finish(result, title, ("", "icesize", "bound"), rows, args.json)


def _scanned(uri: str, tables: int) -> dict[str, float]:
    """Return the cost of the command as a process; raise RuntimeError if it did not survey all tables."""
    measured = [sys.executable, "-I", "-S", str(_MEASURED)]
    command = [*measured, sys.executable, "-m", "icesize", "scan", "c", "--limit", "5", "--catalog-uri", uri]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    if done.returncode or not lines[0].startswith(f"c  {tables:,} tables"):
        raise RuntimeError(f"Cannot scan {uri}: {done.stdout[:300]} {done.stderr[-300:]}")
    cost: dict[str, float] = json.loads(lines[-1])
    return cost


def _surveyed(catalog: SqlCatalog, name: str) -> float:
    seconds = list[float]()
    for _ in range(AGAIN):
        began = time.perf_counter()
        (table,) = icesize.scan(name, catalog=catalog).tables
        seconds.append(time.perf_counter() - began)
        if table.health < 100:
            raise RuntimeError(f"{name} was made to need nothing, and it needs maintenance: {table}")
    return statistics.median(seconds)


@contextmanager
def _served(database: str) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.catalog_server", database]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        if server.stdin is None or server.stdout is None:
            raise RuntimeError("Cannot talk to the server")
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks catalog", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", type=int, default=1_000)
    parser.add_argument("--large", type=int, default=10, help="tables of --large-files files")
    parser.add_argument("--large-files", type=int, default=50_000)
    parser.add_argument("--most-snapshots", type=int, default=70_000, help="snapshots of one more table")
    parser.add_argument("--with-deletes", type=int, default=100, help="tables with position delete files")
    parser.add_argument("--json", action="store_true")
    return parser
