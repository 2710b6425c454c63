"""Tables of many snapshots, made by icesize's own snapshots and PyIceberg's catalog, without Spark.

    python -m benchmarks.snapshots merged WAREHOUSE --files 20000 --snapshots 1100
    python -m benchmarks.snapshots appended WAREHOUSE --snapshots 5000

Each command prints one JSON line and leaves the table `c.db.t` in a catalog that `benchmarks.peers.catalog` opens. Data
files have one byte each or do not exist, because the benchmarked programs read only metadata.
"""

from __future__ import annotations

import argparse
import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.transforms import IdentityTransform

from benchmarks import peers
from icesize.parquet.files.data_file import MergeResult, NewDataFile
from icesize.planning.files import FileFact, PartitionKey
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.append import Append
from icesize.table.commit.steps.merge import Merge
from tests.support.children import run_child
from tests.support.late_events import batch
from tests.support.tables import make_visible

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

FILE_BYTES = 1_000_000
NOW_MS = 1_767_225_600_000
APPENDS_PER_MERGE = 10
"""Appends before each merge; the merge takes as many files, one of each append, from some of the partitions."""


def merged(warehouse: Path, files: int, snapshots: int) -> dict[str, Any]:
    """Make a table with about `files` live files, half of all that its `snapshots` ever added; return its facts."""
    arguments = ("--files", str(files), "--snapshots", str(snapshots))
    return run_child("benchmarks.snapshots", "merged", str(warehouse), *arguments)


def appended(warehouse: Path, snapshots: int) -> dict[str, Any]:
    """Make a table of `snapshots` appends of one file each."""
    return run_child("benchmarks.snapshots", "appended", str(warehouse), "--snapshots", str(snapshots))


def create_table(catalog: SqlCatalog, warehouse: Path) -> Table:
    """Create an empty table `db.t` with the columns of the benchmarks' batches, partitioned by hour."""
    (warehouse / "wh").mkdir(parents=True, exist_ok=True)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", batch(0, rows=1).schema.remove_metadata())
    with table.update_spec() as update:
        update.add_field("hour", IdentityTransform(), "hour")
    return catalog.load_table("db.t")


def data_file(path: str, hour: str) -> NewDataFile:
    """Return a file as a write returns it, with the statistics of 7 columns."""
    columns = range(1, 8)
    return NewDataFile(
        path=path,
        size_bytes=FILE_BYTES,
        rows=20_000,
        partition=PartitionKey(1, (hour,)),
        column_sizes=dict.fromkeys(columns, 140_000),
        value_counts=dict.fromkeys(columns, 20_000),
        null_value_counts=dict.fromkeys(columns, 0),
        lower_bounds=dict.fromkeys(columns, b"\0" * 8),
        upper_bounds=dict.fromkeys(columns, b"\x7f" * 8),
        split_offsets=(4,),
    )


class _Rounds:
    """Rounds of ten appends, each of one file per partition, and a merge of about half of the partitions.

    `growth` is the number of live files that a round adds.
    """

    def __init__(self, catalog: SqlCatalog, table: Table, growth: int) -> None:
        self._catalog, self._table = catalog, table
        self._builder = SnapshotBuilder(table, NOW_MS)
        # Ten appends put ten files into each partition, and a merge replaces them with one.
        self._merges = growth // APPENDS_PER_MERGE
        self._partitions = (growth + (APPENDS_PER_MERGE - 1) * self._merges) // APPENDS_PER_MERGE
        self._folder = table.location().removeprefix("file://")

    def run(self, number: int) -> None:
        """Commit ten appends, then one REPLACE of the round's new files in some of the partitions."""
        batches = []
        for _ in range(APPENDS_PER_MERGE):
            files = [self._write(hour) for hour in range(self._partitions)]
            make_visible(self._catalog, self._table, [Append(tuple(files)).stage(self._builder, {})])
            batches.append(files)
        first = number * self._merges
        chosen = sorted((first + i) % self._partitions for i in range(self._merges))
        inputs = [_fact(files[hour]) for hour in chosen for files in batches]
        outputs = [self._write(hour) for hour in chosen]
        merges = Merge((MergeResult(tuple(inputs), tuple(outputs)),))
        make_visible(self._catalog, self._table, [merges.stage(self._builder, {})])

    def _write(self, hour: int) -> NewDataFile:
        name = f"data/hour=h{hour:04}/{uuid.uuid4()}.parquet"
        path = f"{self._folder}/{name}"
        try:
            Path(path).write_bytes(b"\0")
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path))
            Path(path).write_bytes(b"\0")
        return data_file(f"{self._table.location()}/{name}", f"h{hour:04}")


def _fact(file: NewDataFile) -> FileFact:
    return FileFact(file.path, file.size_bytes, file.rows, file.partition)


def _merged(args: argparse.Namespace) -> dict[str, Any]:
    catalog = peers.catalog(peers.emptied(args.warehouse))
    rounds = args.snapshots // (APPENDS_PER_MERGE + 1)
    making = _Rounds(catalog, create_table(catalog, args.warehouse), args.files // rounds)
    for number in range(rounds):
        making.run(number)
    return _made(catalog)


def _appended(args: argparse.Namespace) -> dict[str, Any]:
    catalog = peers.catalog(peers.emptied(args.warehouse))
    table = create_table(catalog, args.warehouse)
    builder = SnapshotBuilder(table, NOW_MS)
    made = [
        Append((data_file(f"{table.location()}/data/{i}.parquet", "h0"),)).stage(builder, {})
        for i in range(args.snapshots)
    ]
    make_visible(catalog, table, made)
    return _made(catalog)


def _made(catalog: SqlCatalog) -> dict[str, Any]:
    metadata = catalog.load_table("db.t").metadata
    catalog.close()
    head = metadata.current_snapshot()
    totals = head.summary.additional_properties if head and head.summary else {}
    return {"snapshots": len(metadata.snapshots), "files": int(totals["total-data-files"])}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.snapshots", description="Tables of many snapshots.")
    commands = parser.add_subparsers(required=True)
    merging = commands.add_parser("merged", help="appends, and merges now and then")
    merging.add_argument("--files", type=int, required=True)
    merging.set_defaults(run=_merged)
    appending = commands.add_parser("appended", help="appends of one file that does not exist")
    appending.set_defaults(run=_appended)
    for command in (merging, appending):
        command.add_argument("warehouse", type=Path)
        command.add_argument("--snapshots", type=int, required=True)
    return parser


if __name__ == "__main__":
    chosen = _parser().parse_args()
    print(json.dumps(chosen.run(chosen)))
