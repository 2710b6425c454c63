"""Compaction of one table by icesize and its rivals, each run in a process of its own.

`benchmarks.compact` and `benchmarks.deletes` call it. All programs load the table from one REST catalog, as Iceberg's
Spark writer made it, in an order that changes from round to round. The work of the catalog's server is not counted.

`process` is a process from its start to its end, with its children; its peak is that of the largest of them. `call` is
the compaction alone, in a process that has only opened the catalog, or a Spark session.

iceberg-go takes part if ICEBERG_GO names its program. The Rust engine of the wheel `iceberg-compaction` takes part if
ICEBERG_COMPACTION_PYTHON names the interpreter of an environment with it.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table

from benchmarks import compact_call, measured, peers
from benchmarks.compact_call import TABLE
from benchmarks.compact_tables import CASES, Case
from benchmarks.restored import restore
from benchmarks.show import finish
from integration.servers import local_rest_catalog

_ROOT = Path(__file__).resolve().parent.parent
_WARM_UPS = 5
"""Tables that the server opens and changes before the first run."""
_ERROR_LINES_SHOWN = 12
_SECONDS = ("seconds", "cpu_seconds")


@dataclass(frozen=True)
class Bench:
    """The original table in `master`, and its copy for each run in `table`: metadata has absolute paths.

    `metadata` is the location of its newest metadata, `uri` the catalog's.
    """

    table: Path
    master: Path
    metadata: str
    uri: str
    target_bytes: int

    @contextmanager
    def registered(self) -> Iterator[Catalog]:
        """Yield the catalog with the original table."""
        restore(self.table, self.master)
        with load_catalog("c", uri=self.uri) as catalog:
            catalog.create_namespace_if_not_exists("db")
            catalog.register_table(TABLE, self.metadata)
            try:
                yield catalog
            finally:
                catalog.drop_table(TABLE)

    def contents(self) -> dict[str, Any]:
        """Return the contents of the original table."""
        with self.registered() as catalog:
            return contents(catalog.load_table(TABLE))


@dataclass(frozen=True)
class Way:
    """A program: its title in the table of results, its command, and the environment variable that it needs."""

    title: str
    command: Callable[[Bench], list[str]]
    variable: str | None = None
    has_call: bool = True


def _icesize(bench: Bench) -> list[str]:
    return [sys.executable, "-m", "icesize", "compact", f"c.{TABLE}", "--catalog-uri", bench.uri]


def _child(way: str) -> Callable[[Bench], list[str]]:
    return lambda bench: [sys.executable, "-m", "benchmarks.compact_call", way, bench.uri, str(bench.target_bytes)]


def _go(bench: Bench) -> list[str]:
    options = ["--catalog", "rest", "--uri", bench.uri, "--target-file-size", str(bench.target_bytes)]
    return [os.environ["ICEBERG_GO"], "compact", "run", *options, TABLE]


def _rust(bench: Bench) -> list[str]:
    # Isolated: the other environment must not import modules of this one.
    program = [os.environ["ICEBERG_COMPACTION_PYTHON"], "-I", compact_call.__file__]
    return [*program, "rust", bench.uri, str(bench.target_bytes)]


WAYS = {
    "icesize": Way("icesize compact", _icesize, has_call=False),
    "call": Way("icesize, call", _child("icesize")),
    "rewrite": Way("rewrite_data_files", _child("rewrite")),
    "overwrite": Way("scan + overwrite", _child("overwrite")),
    "go": Way("iceberg-go", _go, "ICEBERG_GO", has_call=False),
    "rust": Way("Rust engine", _rust, "ICEBERG_COMPACTION_PYTHON"),
}
_BASES = {"process": "icesize", "call": "call"}
"""icesize's runs, with which the others are compared."""


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds and print tables, or JSON."""
    present, left_out = chosen(args.ways)
    with on_server(CASES[args.case], args.case, args.keep) as bench:
        before = bench.contents()
        ways = compared({way: Contestant(WAYS[way], bench, before) for way in present}, args.pairs)
    result = {"benchmark": "compact", "case": args.case, "table": before, "ways": ways, "left_out": left_out}
    return show(result, WAYS, args.json)


def ways_named(names: str) -> list[str]:
    """Return the programs of the option `--ways`."""
    ways = names.split(",")
    if unknown := [way for way in ways if way not in WAYS]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(WAYS)}")
    return ways


@contextmanager
def on_server(case: Case, name: str, keep: Path | None) -> Iterator[Bench]:
    """Yield the table of a case on a warm catalog; make the table in the directory `name` of `keep` if missing."""
    # pip compiles at installation; without it, each icesize process may compile its imports.
    compileall.compile_dir(_ROOT / "icesize", quiet=1)
    with tempfile.TemporaryDirectory(prefix="icesize-compact-") as folder:
        tables = keep.resolve() if keep else Path(folder) / "tables"
        with local_rest_catalog(Path(folder)) as uri:
            bench = made(case, tables / name, uri)
            _warm_up(bench)
            yield bench
            shutil.rmtree(bench.table)


def chosen(ways: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the programs that can run, and the reason for each other one."""
    missing = {way: name for way in ways if (name := WAYS[way].variable) and not os.environ.get(name)}
    return [way for way in ways if way not in missing], {way: f"{name} is not set" for way, name in missing.items()}


def made(case: Case, folder: Path, uri: str) -> Bench:
    """Return the table of a case; make it in a directory if it is missing."""
    facts = folder / "made.json"
    if not facts.exists():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / "master", ignore_errors=True)
        case.make(folder / "table", folder)
        with peers.catalog(folder / "table") as catalog:
            metadata = catalog.load_table(TABLE).metadata_location
        (folder / "table").rename(folder / "master")
        # This file is written last, so that an interrupted table is made again.
        facts.write_text(json.dumps({"metadata": metadata}))
    metadata = json.loads(facts.read_text())["metadata"]
    return Bench(folder / "table", folder / "master", metadata, uri, case.target_bytes)


def _warm_up(bench: Bench) -> None:
    """Let the server compile its code, like a server that has run for a while."""
    for number in range(_WARM_UPS):
        with bench.registered() as catalog, catalog.load_table(TABLE).transaction() as transaction:
            transaction.set_properties({"warm-up": str(number)})


@dataclass(frozen=True)
class Contestant:
    """A program, its table, and the `rows` and `checksum` that the table must have afterwards."""

    way: Way
    bench: Bench
    expected: Mapping[str, Any]

    def run(self) -> dict[str, Any]:
        """Return the cost of one run, and the table after it."""
        with self.bench.registered() as catalog:
            process, answer = run_measured(self.way.command(self.bench))
            call = json.loads(answer) if self.way.has_call else None
            return {"process": process, "call": call, "after": contents(catalog.load_table(TABLE))}


def compared(contestants: Mapping[str, Contestant], rounds: int) -> dict[str, dict[str, Any]]:
    """Return the cost of every round of each program, and its table after the last round."""
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in contestants}
    for number in range(rounds):
        for way in contestants if number % 2 == 0 else reversed(contestants):
            runs[way].append(contestants[way].run())
    return {way: _together(some, contestants[way].expected) for way, some in runs.items()}


def run_measured(command: Sequence[str]) -> tuple[dict[str, float], str]:
    """Return the cost of a command, and its last line of output.

    Raises RuntimeError with the end of its errors if it fails.
    """
    helper = [sys.executable, "-I", "-S", measured.__file__]
    done = subprocess.run([*helper, *command], cwd=_ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        told = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise RuntimeError("\n".join([f"Cannot run {' '.join(command)}:", *told[-_ERROR_LINES_SHOWN:]]))
    *printed, cost = [line for line in done.stdout.splitlines() if line.strip()]
    return json.loads(cost), printed[-1] if printed else ""


def data_paths(table: Table) -> list[str]:
    """Return the local paths of a table's data files."""
    return _paths(table)[0]


def _paths(table: Table) -> tuple[list[str], list[str]]:
    """Return data files and delete files, from manifests, because PyIceberg plans no scan of equality deletes."""
    data, deletes = list[str](), list[str]()
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        for entry in manifest.fetch_manifest_entry(table.io):
            file = entry.data_file
            kind = data if file.content == DataFileContent.DATA else deletes
            kind.append(local(file.file_path))
    return data, deletes


def local(path: str) -> str:
    """Return the local path of a file that manifests name."""
    return "/" + path.removeprefix("file:").lstrip("/")


def contents(table: Table) -> dict[str, Any]:
    """Return `files`, `delete_files`, `row_groups`, `bytes` and `rows` of a table, and a `checksum` of all rows.

    Rows are those of its data files, deleted or not. Their order does not change the checksum.
    """
    paths, deletes = _paths(table)
    # Files of format v3 have columns for the lineage of rows, too. A partition's path has a value of a column.
    columns = ", ".join(f'"{name}"' for name in table.schema().column_names)
    rows, checksum = summed(f"SELECT {columns} FROM read_parquet(?, hive_partitioning = false)", paths)
    return {
        "files": len(paths),
        "delete_files": len(deletes),
        "row_groups": sum(pq.read_metadata(path).num_row_groups for path in paths),
        "bytes": sum(os.path.getsize(path) for path in paths),
        "rows": rows,
        "checksum": checksum,
    }


def summed(query: str, paths: Sequence[str], **tables: pa.Table) -> tuple[int, str]:
    """Return the number of rows of a query and their checksum; `?` stands for `paths`, names for `tables`."""
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        sums = f"SELECT count(*), sum(hash(t)::HUGEINT)::VARCHAR FROM ({query}) t"
        [(rows, checksum)] = connection.execute(sums, [paths] if paths else None).fetchall()
    return rows, checksum


def _together(runs: Sequence[Mapping[str, Any]], expected: Mapping[str, Any]) -> dict[str, Any]:
    parts = {
        part: {key: [round(run[part][key], 3) for run in runs] for key in _SECONDS} for part in _BASES if runs[0][part]
    }
    return parts | {
        "peak_bytes": max(run["process"]["peak_bytes"] for run in runs),
        "after": runs[-1]["after"],
        "rows_exact": all(run["after"][key] == expected[key] for run in runs for key in ("rows", "checksum")),
    }


def ratios(ways: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the seconds of process and call over those of icesize, the median over rounds."""
    return {
        part: {
            way: round(statistics.median(map(truediv, run[part]["seconds"], ways[base][part]["seconds"])), 2)
            for way, run in ways.items()
            if part in run
        }
        for part, base in _BASES.items()
        if base in ways
    }


def show(result: dict[str, Any], known: Mapping[str, Way], as_json: bool) -> dict[str, Any]:
    """Print the result of a benchmark and return it, with `ratios` and `rows_exact` of all programs."""
    before, ways = result["table"], result["ways"]
    result |= {"ratios": ratios(ways), "rows_exact": all(way["rows_exact"] for way in ways.values())}
    title = f"{result['benchmark']}, {result['case']}: {before['files']} files, {before['bytes'] / 1e6:.1f} MB, "
    title += f"{before['rows']:,} rows"
    times = [[known[way].title, *_times(way, run, result["ratios"])] for way, run in ways.items()]
    finish(result, title, ("seconds, median", "process", "CPU", "x ours", "call", "CPU", "x ours"), times, as_json)
    if not as_json:
        outcomes = [[known[way].title, *_outcome(run)] for way, run in ways.items()]
        header = ("", "peak MB", "MB", "files", "delete files", "row groups", "rows")
        finish(result, "what it left", header, outcomes, False)
        for way, why in result["left_out"].items():
            print(f"left out: {known[way].title}, as {why}")
    return result


def _times(way: str, run: Mapping[str, Any], compared_to_icesize: Mapping[str, Mapping[str, float]]) -> list[str]:
    cells = []
    for part in _BASES:
        cells += [f"{statistics.median(run[part][key]):.2f}" if part in run else "-" for key in _SECONDS]
        cells.append(str(compared_to_icesize.get(part, {}).get(way, "-")))
    return cells


def _outcome(run: Mapping[str, Any]) -> list[str]:
    after = run["after"]
    sizes = [f"{size / 1e6:.1f}" for size in (run["peak_bytes"], after["bytes"])]
    counts = [str(after[key]) for key in ("files", "delete_files", "row_groups")]
    return [*sizes, *counts, "exact" if run["rows_exact"] else "NOT EXACT"]
