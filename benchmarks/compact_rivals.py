"""Compaction of one table by icesize and by everybody else, each run in a process of its own: `benchmarks.compact`.

All find the table in one REST catalog, as Iceberg's Spark writer made it, in an order that turns from round to round.
What the catalog's server works for them is not counted. `process` is all from its start to its end, with what it has
started; its peak is that of the largest of these. `call` is the compaction alone, in a process that has opened the
catalog, or a Spark session, and has done nothing before.

iceberg-go takes part where ICEBERG_GO names its program, and the Rust engine of the wheel `iceberg-compaction` where
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
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from benchmarks import compact_ways, measured, peers
from benchmarks.compact_tables import CASES, Case
from benchmarks.compact_ways import TABLE
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
    """The table as it was made, in `master`, and where each run finds it, in `table`: metadata holds absolute paths.

    `metadata` is the location of its newest metadata, `uri` the catalog's.
    """

    table: Path
    master: Path
    metadata: str
    uri: str
    target_bytes: int

    @contextmanager
    def registered(self) -> Iterator[Catalog]:
        """The catalog with the table as it was made."""
        restore(self.table, self.master)
        with load_catalog("c", uri=self.uri) as catalog:
            catalog.create_namespace_if_not_exists("db")
            catalog.register_table(TABLE, self.metadata)
            try:
                yield catalog
            finally:
                catalog.drop_table(TABLE)


@dataclass(frozen=True)
class Way:
    """How it is called in the table of results, its command, and the variable that it needs."""

    title: str
    command: Callable[[Bench], list[str]]
    variable: str | None = None
    has_call: bool = True


def _icesize(bench: Bench) -> list[str]:
    return [sys.executable, "-m", "icesize", "compact", f"c.{TABLE}", "--catalog-uri", bench.uri]


def _child(way: str) -> Callable[[Bench], list[str]]:
    return lambda bench: [sys.executable, "-m", "benchmarks.compact_ways", way, bench.uri, str(bench.target_bytes)]


def _go(bench: Bench) -> list[str]:
    options = ["--catalog", "rest", "--uri", bench.uri, "--target-file-size", str(bench.target_bytes)]
    return [os.environ["ICEBERG_GO"], "compact", "run", *options, TABLE]


def _rust(bench: Bench) -> list[str]:
    # isolated: that environment gets nothing of this one
    program = [os.environ["ICEBERG_COMPACTION_PYTHON"], "-I", compact_ways.__file__]
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
"""The way of icesize that others are compared with."""


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds and print tables, or JSON."""
    present, left_out = chosen(args.ways)
    # as pip does when it installs: otherwise each process of ours may compile what it imports
    compileall.compile_dir(_ROOT / "icesize", quiet=1)
    with tempfile.TemporaryDirectory(prefix="icesize-compact-") as folder:
        tables = args.keep.resolve() if args.keep else Path(folder) / "tables"
        with local_rest_catalog(Path(folder)) as uri:
            bench = made(CASES[args.case], tables / args.case, uri)
            _warm_up(bench)
            before, ways = compared(bench, present, args.pairs)
            shutil.rmtree(bench.table)
    result = {"benchmark": "compact", "case": args.case, "table": before, "ways": ways, "left_out": left_out}
    return _show(result | {"ratios": ratios(ways), "rows_exact": all(way["rows_exact"] for way in ways.values())}, args)


def chosen(ways: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Those of the ways that can run, and why the others cannot."""
    missing = {way: name for way in ways if (name := WAYS[way].variable) and not os.environ.get(name)}
    return [way for way in ways if way not in missing], {way: f"{name} is not set" for way, name in missing.items()}


def made(case: Case, folder: Path, uri: str) -> Bench:
    """The table of a case, made in a folder unless it is there."""
    facts = folder / "made.json"
    if not facts.exists():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / "master", ignore_errors=True)
        case.make(folder / "table", folder)
        with peers.catalog(folder / "table") as catalog:
            metadata = catalog.load_table(TABLE).metadata_location
        (folder / "table").rename(folder / "master")
        # written last: what was interrupted is made again
        facts.write_text(json.dumps({"metadata": metadata}))
    metadata = json.loads(facts.read_text())["metadata"]
    return Bench(folder / "table", folder / "master", metadata, uri, case.target_bytes)


def _warm_up(bench: Bench) -> None:
    """The server compiles what it will run, as one that has been up for a while."""
    for number in range(_WARM_UPS):
        with bench.registered() as catalog, catalog.load_table(TABLE).transaction() as transaction:
            transaction.set_properties({"warm-up": str(number)})


def compared(bench: Bench, ways: Sequence[str], rounds: int) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The table as it was, and of each way what every round cost and the table as the last round left it."""
    with bench.registered() as catalog:
        before = contents(catalog.load_table(TABLE))
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            runs[way].append(_run(bench, WAYS[way]))
    return before, {way: _together(some, before) for way, some in runs.items()}


def _run(bench: Bench, way: Way) -> dict[str, Any]:
    with bench.registered() as catalog:
        process, answer = run_measured(way.command(bench))
        call = json.loads(answer) if way.has_call else None
        return {"process": process, "call": call, "after": contents(catalog.load_table(TABLE))}


def run_measured(command: Sequence[str]) -> tuple[dict[str, float], str]:
    """What a command cost, and the last line that it printed; RuntimeError with the end of its errors if it fails."""
    helper = [sys.executable, "-I", "-S", measured.__file__]
    done = subprocess.run([*helper, *command], cwd=_ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        told = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise RuntimeError("\n".join([f"Cannot run {' '.join(command)}:", *told[-_ERROR_LINES_SHOWN:]]))
    *printed, cost = [line for line in done.stdout.splitlines() if line.strip()]
    return json.loads(cost), printed[-1] if printed else ""


def data_paths(table: Table) -> list[str]:
    """Where the local file system has the data files of a table."""
    files = [task.file.file_path for task in table.scan().plan_files()]
    return ["/" + file.removeprefix("file:").lstrip("/") for file in files]


def contents(table: Table) -> dict[str, Any]:
    """`files`, `row_groups`, `bytes` and `rows` of a table, and a `checksum` of all rows, the same in any order."""
    paths = data_paths(table)
    # a path says of a partition what is a column of the file as well
    query = "SELECT count(*), sum(hash(t)::HUGEINT)::VARCHAR FROM read_parquet(?, hive_partitioning = false) t"
    [(rows, checksum)] = duckdb.connect().execute(query, [paths]).fetchall()
    return {
        "files": len(paths),
        "row_groups": sum(pq.read_metadata(path).num_row_groups for path in paths),
        "bytes": sum(os.path.getsize(path) for path in paths),
        "rows": rows,
        "checksum": checksum,
    }


def _together(runs: Sequence[Mapping[str, Any]], before: Mapping[str, Any]) -> dict[str, Any]:
    parts = {
        part: {key: [round(run[part][key], 3) for run in runs] for key in _SECONDS} for part in _BASES if runs[0][part]
    }
    return parts | {
        "peak_bytes": max(run["process"]["peak_bytes"] for run in runs),
        "after": runs[-1]["after"],
        "rows_exact": all(run["after"][key] == before[key] for run in runs for key in ("rows", "checksum")),
    }


def ratios(ways: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Seconds of process and call over those of icesize, the median over rounds."""
    return {
        part: {
            way: round(statistics.median(map(truediv, run[part]["seconds"], ways[base][part]["seconds"])), 2)
            for way, run in ways.items()
            if part in run
        }
        for part, base in _BASES.items()
        if base in ways
    }


def _show(result: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    before, ways = result["table"], result["ways"]
    title = f"compact, {args.case}: {before['files']} files, {before['bytes'] / 1e6:.1f} MB, {before['rows']:,} rows"
    times = [_times(way, run, result["ratios"]) for way, run in ways.items()]
    finish(result, title, ("seconds, median", "process", "CPU", "x ours", "call", "CPU", "x ours"), times, args.json)
    if not args.json:
        outcomes = [_outcome(way, run) for way, run in ways.items()]
        finish(result, "what it left", ("", "peak MB", "MB", "files", "row groups", "rows"), outcomes, False)
        for way, why in result["left_out"].items():
            print(f"left out: {WAYS[way].title}, as {why}")
    return result


def _times(way: str, run: Mapping[str, Any], compared_to_icesize: Mapping[str, Mapping[str, float]]) -> list[str]:
    cells = [WAYS[way].title]
    for part in _BASES:
        cells += [f"{statistics.median(run[part][key]):.2f}" if part in run else "-" for key in _SECONDS]
        cells.append(str(compared_to_icesize.get(part, {}).get(way, "-")))
    return cells


def _outcome(way: str, run: Mapping[str, Any]) -> list[str]:
    after = run["after"]
    sizes = [f"{size / 1e6:.1f}" for size in (run["peak_bytes"], after["bytes"])]
    return [WAYS[way].title, *sizes, after["files"], after["row_groups"], "exact" if run["rows_exact"] else "NOT EXACT"]
