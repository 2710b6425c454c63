"""One large partition of small files, without Spark: icesize against `cp` of the same files.

`benchmarks.compact` calls it. The table has files of 2.5 MB whose pages can all be copied. One column has a dictionary,
in another order in each file; the others have none. To save time, only a few such files are written; they are copied
under new names.

Each run is a process of its own and includes the flush of its output to the disk; the catalog is a SQLite file. All
files are read once before each run, so that both programs find them in the page cache if memory suffices. The result
has the bytes read from the disk anyway. If the file system's `cp` shares blocks instead of copying them, the ratio
means nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestampType

from benchmarks import peers
from benchmarks.compact_call import TABLE
from benchmarks.compact_rivals import WAYS, Bench, contents, data_paths, made, run_measured
from benchmarks.compact_tables import Case
from benchmarks.show import bytes_moved, finish

_SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "user", LongType()),
    NestedField(3, "at", TimestampType()),
    NestedField(4, "amount", DoubleType()),
    NestedField(5, "status", StringType()),
    NestedField(6, "payload", StringType()),
)
_STATUSES = np.array(["new", "paid", "sent", "done", "void"])
_ROWS_PER_FILE = 60_000
_DISTINCT_FILES = 8
_NEEDED = 1.1
"""Bytes on disk per byte of the table's files: once for the table, and again for the output of icesize or `cp`."""
_FLUSHED = ("sh", "-c", '"$@" >"$0" && sync -f "$0"')
"""Runs a command with its output in a file, and flushes that file system to the disk."""
_MOVED = ("bytes_copied", "bytes_decoded", "pages_copied", "decode_reasons")


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the pairs and print a table, or JSON; raise SystemExit if the disk has too little space."""
    size = round(args.gigabytes * 1e9)
    with tempfile.TemporaryDirectory(prefix="icesize-compact-") as temporary:
        folder = (args.keep.resolve() if args.keep else Path(temporary)) / f"huge-{args.gigabytes:g}"
        uri = f"sqlite:///{temporary}/catalog.db"
        SqlCatalog("c", uri=uri).close()
        bench = made(Case(partial(_make, size=size)), folder, uri)
        _check_room(folder, size * _NEEDED)
        try:
            result = _compared(bench, args.pairs)
        finally:
            shutil.rmtree(bench.table, ignore_errors=True)
    return _show({"benchmark": "compact", "case": "huge"} | result, args.json)


def _make(warehouse: Path, scratch: Path, size: int) -> None:
    """Make the table `db.t` with `size` bytes of data files."""
    _check_room(scratch, 2 * size * _NEEDED)
    with peers.catalog(peers.emptied(warehouse)) as catalog:
        catalog.create_namespace("db")
        table = catalog.create_table(TABLE, _SCHEMA)
        folder = Path(table.location().removeprefix("file://")) / "data"
        folder.mkdir(parents=True)
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for path in _data_files(folder, size):
                append.append_data_file(_entry(path, table))


def _check_room(folder: Path, needed: float) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SystemExit(
            f"Cannot run: it needs {needed / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are free. Choose fewer "
            "--gigabytes, or another folder with --keep or the variable TMPDIR"
        )


def _data_files(folder: Path, size: int) -> Iterator[Path]:
    written = 0
    for number in count():
        path = folder / f"{number:05}.parquet"
        if number < _DISTINCT_FILES:
            _write(path, number)
        else:
            shutil.copyfile(folder / f"{number % _DISTINCT_FILES:05}.parquet", path)
        yield path
        written += path.stat().st_size
        if written >= size:
            return


def _write(path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    columns = {
        "id": np.arange(_ROWS_PER_FILE) + seed * _ROWS_PER_FILE,
        "user": random.integers(0, 10**6, _ROWS_PER_FILE),
        "at": random.integers(0, 10**15, _ROWS_PER_FILE),
        "amount": np.round(random.random(_ROWS_PER_FILE) * 1000, 2),
        "status": _STATUSES[random.integers(0, len(_STATUSES), _ROWS_PER_FILE)],
        "payload": [random.bytes(24).hex() for _ in range(_ROWS_PER_FILE)],
    }
    rows = pa.table(columns, schema=schema_to_pyarrow(_SCHEMA))
    # Without Arrow's schema, as other writers of Iceberg leave it out.
    pq.write_table(rows, path, compression="zstd", use_dictionary=["status"], write_page_index=True, store_schema=False)


def _entry(path: Path, table: Table) -> DataFile:
    plan = compute_statistics_plan(table.schema(), table.properties)
    names = parquet_path_to_id_mapping(table.schema())
    statistics = data_file_statistics_from_parquet_metadata(pq.read_metadata(path), plan, names)
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path.as_uri(),
        file_format=FileFormat.PARQUET,
        partition=Record(),
        file_size_in_bytes=path.stat().st_size,
        sort_order_id=None,
        spec_id=0,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _compared(bench: Bench, pairs: int) -> dict[str, Any]:
    with bench.registered() as catalog:
        before = contents(catalog.load_table(TABLE))
    # The host of a virtual machine reclaims unused memory; the first large write would wait for it.
    _cp(bench)
    runs = [_pair(bench, number) for number in range(pairs)]
    mine, copies = ([pair[way] for pair in runs] for way in _RUNS)
    speeds = [round(copy["seconds"] / own["seconds"], 2) for own, copy in zip(mine, copies, strict=True)]
    return {
        "table": before,
        "ratios": speeds,
        "ratio": round(statistics.median(speeds), 2),
        "rows_exact": all(run["after"][key] == before[key] for run in mine for key in ("rows", "checksum")),
        "icesize": _together(mine, before["bytes"]) | {key: mine[-1][key] for key in ("after", "commits", "moved")},
        "cp": _together(copies, before["bytes"]),
    }


def _pair(bench: Bench, number: int) -> dict[str, dict[str, Any]]:
    order = list(_RUNS) if number % 2 == 0 else list(reversed(_RUNS))
    return {way: _RUNS[way](bench) for way in order}


def _icesize(bench: Bench) -> dict[str, Any]:
    with _ready(bench) as catalog:
        cost, report = _flushed(bench, [*WAYS["icesize"].command(bench), "--json"])
        told = json.loads(report)
        moved = {key: told[key] for key in _MOVED}
        after = contents(catalog.load_table(TABLE))
        return cost | {"after": after, "commits": len(told["snapshot_ids"]), "moved": moved}


def _cp(bench: Bench) -> dict[str, Any]:
    with _ready(bench) as catalog:
        folder = Path(data_paths(catalog.load_table(TABLE))[0]).parent
        return _flushed(bench, ["cp", "-r", str(folder), str(bench.table / "copy")])[0]


_RUNS = {"icesize": _icesize, "cp": _cp}


@contextmanager
def _ready(bench: Bench) -> Iterator[Catalog]:
    """Yield the original table, with all of its files read.

    The output of the previous run is removed last, so that its memory is free for the next one.
    """
    for path in bench.master.rglob("*.parquet"):
        path.read_bytes()
    with bench.registered() as catalog:
        yield catalog


def _flushed(bench: Bench, command: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the cost of the command, including the flush to the disk, and its output."""
    answer = bench.table / "answer"
    cost, _ = run_measured([*_FLUSHED, str(answer), *command])
    return cost, answer.read_text()


def _together(runs: Sequence[Mapping[str, Any]], size: int) -> dict[str, Any]:
    seconds, cpu_seconds = ([round(run[key], 3) for run in runs] for key in ("seconds", "cpu_seconds"))
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "gigabytes_per_second": round(size / 1e9 / statistics.median(seconds), 3),
        "peak_bytes": max(run["peak_bytes"] for run in runs),
        "disk_read_bytes": max(run["disk_read_bytes"] for run in runs),
    }


def _show(result: dict[str, Any], as_json: bool) -> dict[str, Any]:
    before, mine, copy = result["table"], result["icesize"], result["cp"]
    after, moved = mine["after"], mine["moved"]
    both = (mine, copy)
    lines = [
        ("seconds, median", *(f"{statistics.median(one['seconds']):.2f}" for one in both)),
        ("CPU seconds, median", *(f"{statistics.median(one['cpu_seconds']):.2f}" for one in both)),
        ("GB/s", *(f"{one['gigabytes_per_second']:.2f}" for one in both)),
        ("peak MB of memory", *(f"{one['peak_bytes'] / 1e6:.0f}" for one in both)),
        ("MB not found in the page cache", *(f"{one['disk_read_bytes'] / 1e6:.0f}" for one in both)),
        ("files, row groups", f"{after['files']}, {after['row_groups']}", f"{before['files']}, {before['row_groups']}"),
        ("commits", mine["commits"], "-"),
        ("MB copied, MB decoded, pages copied", bytes_moved(moved), "-"),
        ("rows", "exact" if result["rows_exact"] else "NOT EXACT", "-"),
        ("speed, cp = 1", f"{result['ratio']:.2f}", f"pairs {result['ratios']}"),
    ]
    title = f"compact, huge: {before['files']:,} files, {before['bytes'] / 1e9:.2f} GB, {before['rows']:,} rows"
    return finish(result, title, ("", "icesize compact", "cp"), lines, as_json)
