"""Planning a table of 100,000 small files: cold, and again when nothing has changed. No peer: bounds, not ratios.

    python -m benchmarks plan [--files 100000] [--partitions 1000] [--json]

The files do not exist, their manifest entries do; 25,000 entries per manifest with the statistics of 7 columns.
"""

from __future__ import annotations

import argparse
import tempfile
import uuid
from pathlib import Path
from typing import Any

from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID, SetSnapshotRefUpdate
from pyiceberg.transforms import IdentityTransform

from benchmarks import peers
from benchmarks.children import run_child
from benchmarks.generate import batch
from benchmarks.show import finish
from icesize.parquet.written import WrittenFile
from icesize.planning.layout import PartitionKey
from icesize.table.snapshots import SnapshotBuilder

FILE_BYTES = 1_000_000
NOW_MS = 1_767_225_600_000


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Make the table, plan it twice in a process of its own, print a table or JSON."""
    args = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="icesize-plan-") as folder:
        _make_table(Path(folder), args.files, args.partitions)
        result = run_child("benchmarks.ours", "plan", folder) | {"benchmark": "plan", "files": args.files}
    rows = [
        ("first plan, seconds", result["cold_seconds"], "3"),
        ("again, seconds", result["again_seconds"], "0.3"),
        ("peak memory of the process, MiB", result["peak_mib"], "600"),
    ]
    return finish(result, f"plan, {args.files:,} files", ("", "icesize", "bound"), rows, args.json)


def _make_table(root: Path, files: int, partitions: int) -> None:
    catalog = peers.catalog(root)
    (root / "wh").mkdir()
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", batch(0, rows=1).schema.remove_metadata())
    with table.update_spec() as update:
        update.add_field("hour", IdentityTransform(), "hour")
    table = catalog.load_table("db.t")
    builder = SnapshotBuilder(table, NOW_MS)
    snapshot = builder.append([_file(table.location(), i, partitions) for i in range(files)], {})
    catalog.commit_table(
        table,
        (AssertTableUUID(uuid=uuid.UUID(str(table.metadata.table_uuid))),),
        (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(ref_name=MAIN_BRANCH, type=SnapshotRefType.BRANCH, snapshot_id=snapshot.snapshot_id),
        ),
    )
    catalog.close()


def _file(location: str, i: int, partitions: int) -> WrittenFile:
    columns = range(1, 8)
    return WrittenFile(
        path=f"{location}/data/hour=h{i % partitions:04}/0a1b2c3d4e5f-{i // 500}-{i % 8}-0-{uuid.uuid4()}.parquet",
        size_bytes=FILE_BYTES,
        rows=20_000,
        partition=PartitionKey(1, (f"h{i % partitions:04}",)),
        column_sizes=dict.fromkeys(columns, 140_000),
        value_counts=dict.fromkeys(columns, 20_000),
        null_value_counts=dict.fromkeys(columns, 0),
        lower_bounds=dict.fromkeys(columns, b"\0" * 8),
        upper_bounds=dict.fromkeys(columns, b"\x7f" * 8),
        split_offsets=(4,),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks plan", description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--json", action="store_true")
    return parser
