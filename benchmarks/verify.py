"""Verification of a table of many files: its metadata and a listing of the storage. No peer: bounds, not ratios.

    python -m benchmarks verify [--files 1000000] [--json]

The files exist, but have no bytes on disk: `verify` compares their sizes, and reads none. They have 25,000 entries per
manifest, with the statistics of 7 columns, in 1,000 partitions.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import icesize
from benchmarks import peers
from benchmarks.show import finish
from benchmarks.snapshots import FILE_BYTES, NOW_MS, create_table, data_file
from icesize.parquet.files.data_file import NewDataFile
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.append import Append
from tests.support.children import run_child
from tests.support.tables import make_visible

PARTITIONS = 1_000


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Make the table, verify it in a process of its own, print a table or JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks verify", description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", metavar="WAREHOUSE", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        result = _verified(Path(args.child))
        print(json.dumps(result))
        return result
    with tempfile.TemporaryDirectory(prefix="icesize-verify-") as folder:
        _make_table(Path(folder), args.files)
        result = run_child("benchmarks.verify", "--child", folder) | {"benchmark": "verify", "files": args.files}
    rows = [
        ("all, seconds", result["seconds"]["total"], "60"),
        ("metadata, seconds", result["seconds"]["metadata"], ""),
        ("listing and comparison, seconds", result["seconds"]["storage"], ""),
        ("CPU, seconds", result["cpu_seconds"], ""),
        ("peak memory of the process, MiB", result["peak_mib"], "1,000"),
    ]
    return finish(result, f"verify, {args.files:,} files", ("", "icesize", "bound"), rows, args.json)


def _verified(warehouse: Path) -> dict[str, Any]:
    catalog = peers.catalog(warehouse)
    began = time.process_time()
    verification = icesize.open(None, "c.db.t", catalog=catalog).verify()
    assert verification.is_valid
    assert not verification.notes
    cpu_seconds = round(time.process_time() - began, 2)
    return {"seconds": verification.seconds, "cpu_seconds": cpu_seconds, "peak_mib": peers.peak_mib()}


def _make_table(root: Path, files: int) -> None:
    catalog = peers.catalog(root)
    table = create_table(catalog, root)
    added = tuple(_created(table.location(), files))
    make_visible(catalog, table, [Append(added).stage(SnapshotBuilder(table, NOW_MS), {})])
    catalog.close()


def _created(location: str, files: int) -> Iterator[NewDataFile]:
    folder = location.removeprefix("file://")
    for number in range(files):
        hour = f"h{number % PARTITIONS:04}"
        name = f"data/hour={hour}/0a1b2c3d4e5f-{number // 500}-{number % 8}-0-{uuid.uuid4()}.parquet"
        if number < PARTITIONS:
            os.makedirs(f"{folder}/data/hour={hour}", exist_ok=True)
        with open(f"{folder}/{name}", "wb") as file:
            file.truncate(FILE_BYTES)
        yield data_file(f"{location}/{name}", hour)


if __name__ == "__main__":
    main()
