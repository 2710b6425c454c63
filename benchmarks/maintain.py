"""`icesize scan` and `icesize maintain` of a catalog whose data files exist, as processes.

    python -m benchmarks maintain [--tables 1000] [--large 10] [--large-files 50000] [--most-snapshots 70000]
        [--with-deletes 100] [--budget-share 0.3] [--kills 0] [--rest] [--json]
    python -m benchmarks maintain --tables 1 --large 1 --large-files 60000 --large-deletes 50000 --large-partitions 20
        --targets 2 --budget-share 1
    python -m benchmarks maintain --tables 1 --large 1 --large-files 1000000 --large-partitions 1000 --budget-share 1
    python -m benchmarks maintain --tables 1 --large 1 --large-files 400000 --large-partitions 365000 --budget-share 1

`benchmarks.linked_files` makes the data files, a thousandth of their size. `maintain` may rewrite `--budget-share` of
the bytes that are due; with 1, it has no budget. No choice of whole merges within a budget saves more files than the
bound, which also takes a part of the last merge. Afterwards, each table must have its rows. PyIceberg and pyarrow read
the rows of tables with deletes or few files, and some of the tables are verified, small ones to the last byte.

With `--kills`, passes are killed first, at named points and at random moments. After the last pass, all tables must
have their rows, be valid, and have no orphan data files but those with names of icesize.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import icesize
from benchmarks.catalog_tables import Sizes, make, shapes
from benchmarks.linked_files import LinkedFiles, Rows
from benchmarks.show import finish
from icesize.failpoints import for_child
from icesize.maintenance.passes.survey import CatalogTables, survey_and_merges
from icesize.table.catalog.tables import NotLoaded, TablePattern
from integration.servers import local_rest_catalog

_MEASURED = Path(__file__).with_name("measured.py")
_OURS = re.compile(r"[0-9a-f]{12}-\d+-\d+-\d+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.parquet")
"""Names of icesize's files; those of generated files have one number less."""
_MOST_TO_READ = 20_000
"""Data files of a table that are read to verify it: about a minute."""
_SERVED = "rest_backend"
"""The catalog of Iceberg's REST server in its database."""
_SERVER_MEMORY = "2g"
"""Memory of its Java machine: metadata of 70,000 snapshots for two requests at once."""
_POINTS = ("planned", "writing", "files-written", "before-swap", "after-swap", "expiry-decided", "before-delete")


@dataclass(frozen=True)
class _Made:
    """A catalog of generated tables at a URI, with the rows of each of its `names`."""

    uri: str
    catalog: Catalog
    names: Sequence[str]
    rows: Mapping[str, Rows]

    def tables(self) -> Iterator[tuple[str, Table]]:
        """Yield the tables as they are now."""
        return ((name, self.catalog.load_table(name.removeprefix("c."))) for name in self.names)

    def command(self, *arguments: str) -> list[str]:
        """Return a command line for this catalog."""
        return [sys.executable, "-m", "icesize", *arguments, "--catalog-uri", self.uri]


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Make the catalog, maintain it, check it, print a table or JSON. Raises RuntimeError if anything is lost."""
    args = _parser().parse_args(argv)
    sizes = Sizes(
        args.tables, args.large, args.large_files, args.most_snapshots, args.with_deletes, args.large_deletes,
        args.large_partitions,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="icesize-maintain-", dir=args.folder) as folder, ExitStack() as serving:
        made = _made(Path(folder), sizes, args.targets, _SERVED if args.rest else "c")
        if args.rest:
            made.catalog.close()
            uri = serving.enter_context(local_rest_catalog(Path(folder), _SERVER_MEMORY))
            made = replace(made, uri=uri, catalog=load_catalog("c", uri=uri))
        result: dict[str, Any] = {
            "benchmark": "maintain",
            "catalog": type(made.catalog).__name__,
            "tables": args.tables,
            "files": _files(made),
        }
        result["kills"] = [_killed(made, number, args.seed) for number in range(args.kills)]
        result |= _maintained(made, args.budget_share)
        result["rows_read"] = sum(_check_rows(made, name, table, args.read_files) for name, table in made.tables())
        chosen = (
            made.names if args.kills else random.Random(args.seed).sample(made.names, min(args.verify, args.tables))
        )
        for name in chosen:
            _check_valid(made, name, only_newest=not args.kills)
        result["orphans"] = sum(_orphans(table) for _, table in made.tables()) if args.kills else None
        made.catalog.close()
    return finish(result, _title(result), ("", "icesize", "bound"), _lines(result), args.json)


def _made(folder: Path, sizes: Sizes, targets: int, name: str) -> _Made:
    """Make the tables in the database that a REST server in this folder would use, by the name of its catalog."""
    uri = f"sqlite:///{folder}/rest.db"
    catalog = SqlCatalog(name, uri=uri, warehouse=f"file://{folder}/rest")
    (folder / "linked").mkdir()
    contents = LinkedFiles(folder / "linked", targets)
    names = make(catalog, folder / "rest", [*shapes(sizes)], int(time.time() * 1000), contents=contents)
    names = [each.replace(name, "c", 1) for each in names]
    located = {table.location(): each for each, table in _Made(uri, catalog, names, {}).tables()}
    return _Made(uri, catalog, names, {located[where]: rows for where, rows in contents.rows.items()})


def _maintained(made: _Made, budget_share: float) -> dict[str, Any]:
    """Scan and maintain the catalog by processes of their own; return their costs and what the pass saved."""
    scan = _run(made, "scan", "c")[1]
    files, jobs = _files(made), _jobs(made)
    budget_bytes = int(budget_share * sum(size for _, size in jobs))
    within = () if budget_share >= 1 else ("--budget-bytes", str(budget_bytes))
    report, cost = _run(made, "maintain", "c.*", *within)
    return {
        "scan": scan, "maintain": cost, "bytes_due": sum(size for _, size in jobs), "budget_bytes": budget_bytes,
        "bytes_rewritten": report["bytes_rewritten"], "files_saved": files - _files(made),
        "most_files_saved": round(bound(jobs, budget_bytes)) if within else None,
        "tables_changed": len(report["tables"]), "tables_not_started": len(report["not_started"]),
    }  # fmt: skip


def _run(made: _Made, *arguments: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the result of a command and its cost; raise RuntimeError if it fails."""
    measured = [sys.executable, "-I", "-S", str(_MEASURED)]
    done = subprocess.run([*measured, *made.command(*arguments, "--json")], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{arguments} ended with {done.returncode}: {done.stdout[-2000:]} {done.stderr[-2000:]}")
    result, _, cost = done.stdout.strip().rpartition("\n")
    return json.loads(result), json.loads(cost)


def _jobs(made: _Made) -> list[tuple[int, int]]:
    """Return the files that each due merge saves, and its bytes."""
    tables = CatalogTables(made.catalog, TablePattern.of("c"))
    plans, _ = tables.look_at_each(lambda context, table: survey_and_merges(context, table)[1])
    groups = [group for plan in plans if not isinstance(plan, NotLoaded) for group in plan.groups]
    return [(len(group.inputs) - group.outputs + group.avoidable_deletes, group.size_bytes) for group in groups]


def bound(jobs: Sequence[tuple[int, int]], budget_bytes: int) -> float:
    """Return what no choice of jobs within the budget exceeds: the best one of which the last job may be cut."""
    saved = 0.0
    for benefit, size in sorted(jobs, key=lambda job: -job[0] / job[1]):
        saved += benefit * min(1.0, budget_bytes / size)
        budget_bytes -= min(size, budget_bytes)
    return saved


def _files(made: _Made) -> int:
    """Return the number of data files and delete files of all tables."""
    kinds = ("total-data-files", "total-delete-files")
    return sum(_total(table, kind) for _, table in made.tables() for kind in kinds)


def _total(table: Table, name: str) -> int:
    head = table.current_snapshot()
    return int(head.summary[name] or 0) if head and head.summary else 0


def _check_rows(made: _Made, name: str, table: Table, most_files: int) -> bool:
    """Raise RuntimeError if a table lacks rows or has too many; return whether the rows were read."""
    deletes, expected = _total(table, "total-delete-files"), made.rows[name]
    if not deletes and _total(table, "total-data-files") > most_files:
        if (number := _total(table, "total-records")) != expected.number:
            raise RuntimeError(f"{name} has {number} rows instead of {expected.number}")
        return False
    if (actual := _read(table)) != expected:
        raise RuntimeError(f"{name} has {actual} instead of {expected}")
    return True


def _read(table: Table) -> Rows:
    """Return the rows of a table, of which PyIceberg selects the files, and pyarrow reads them."""
    count, total, deletes = 0, 0, cache(lambda location: _columns(location, "file_path", "pos"))
    for task in table.scan().plan_files():
        (values,) = _columns(task.file.file_path, "c1")
        live = np.ones(len(values), bool)
        for delete in task.delete_files:
            paths, positions = deletes(delete.file_path)
            live[positions[paths == task.file.file_path]] = False
        count, total = count + int(live.sum()), total + int(values[live].sum())
    return Rows(count, total)


def _columns(location: str, *names: str) -> list[np.ndarray[Any, Any]]:
    # not `read_table`, which takes values of partitions from paths
    table = pq.ParquetFile(location.removeprefix("file://")).read(list(names))
    return [table[name].to_numpy() for name in names]


def _check_valid(made: _Made, name: str, *, only_newest: bool) -> None:
    is_small = _total(made.catalog.load_table(name.removeprefix("c.")), "total-data-files") <= _MOST_TO_READ
    verification = icesize.open(None, name, catalog=made.catalog).verify(deep=is_small, current=only_newest)
    if not verification.is_valid:
        raise RuntimeError(f"{name} is not valid: {verification}")


def _killed(made: _Made, number: int, seed: int) -> str:
    """Kill a pass, check the rows of all tables, and return where the pass was."""
    dice = random.Random(f"{seed} {number}")
    if number % 2:
        where, armed, seconds = "a random moment", {}, dice.uniform(2, 12)
    else:
        point = _POINTS[number // 2 % len(_POINTS)]
        where = f"{point}@{dice.randint(1, 9)}"
        armed, seconds = for_child(f"{where}=kill"), 3600.0
    with subprocess.Popen(
        made.command("maintain", "c.*", "--json"), env={**os.environ, **armed}, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            running.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            running.kill()
    for name, table in made.tables():
        _check_rows(made, name, table, most_files=0)
    return where if running.returncode < 0 else f"{where} (the pass ended before)"


def _orphans(table: Table) -> int:
    """Return the number of data files that no snapshot needs; raise RuntimeError for one that icesize did not write."""
    needed = set[str]()
    manifests = {m.manifest_path: m for each in table.snapshots() for m in each.manifests(table.io)}
    for manifest in manifests.values():
        needed.update(e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io, discard_deleted=True))
    folder = Path(table.location().removeprefix("file://"), "data")
    orphans = [path for path in folder.rglob("*.parquet") if f"file://{path}" not in needed]
    if foreign := [path for path in orphans if not _OURS.fullmatch(path.name)]:
        raise RuntimeError(f"{len(foreign)} files are orphans, and icesize did not write them: {foreign[0]}")
    return len(orphans)


def _title(result: Mapping[str, Any]) -> str:
    kills = f", {len(result['kills'])} passes killed first" if result["kills"] else ""
    return f"maintain, {result['catalog']}, {result['tables']:,} tables, {result['files']:,} files{kills}"


def _lines(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    most = result["most_files_saved"]
    lines = [
        (f"{command}: {name}", f"{result[command][key] / unit:,.1f}", bound)
        for command in ("scan", "maintain")
        for name, key, unit, bound in (
            ("seconds", "seconds", 1, ""), ("CPU seconds", "cpu_seconds", 1, ""),
            ("peak memory, MiB", "peak_bytes", 2**20, "2,048"),
        )
    ]  # fmt: skip
    return [
        *lines,
        ("MB rewritten", f"{result['bytes_rewritten'] / 1e6:,.1f}", f"{result['budget_bytes'] / 1e6:,.1f}"),
        ("files saved", f"{result['files_saved']:,}", "" if most is None else f"{most:,}"),
        ("tables changed", f"{result['tables_changed']:,}", ""),
        ("tables whose rows were read", f"{result['rows_read']:,}", ""),
        *((f"kill {number}", where, "") for number, where in enumerate(result["kills"], 1)),
        *([("orphan data files of icesize", f"{result['orphans']:,}", "")] if result["kills"] else []),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks maintain", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", type=int, default=1_000)
    parser.add_argument("--large", type=int, default=10, help="tables of --large-files files")
    parser.add_argument("--large-files", type=int, default=50_000)
    parser.add_argument("--large-deletes", type=int, default=0, help="position delete files of each of these tables")
    parser.add_argument("--large-partitions", type=int, default=0, help="partitions of each; 0: one for 30 files")
    parser.add_argument("--targets", type=int, choices=(1, 2), default=1, help="data files that a delete file names")
    parser.add_argument("--most-snapshots", type=int, default=70_000, help="snapshots of one more table")
    parser.add_argument("--with-deletes", type=int, default=100, help="tables with position delete files")
    parser.add_argument("--rest", action="store_true", help="use Iceberg's REST server instead of a SQLite file")
    parser.add_argument("--budget-share", type=float, default=0.3, help="share of the due bytes; 1: no budget")
    parser.add_argument("--kills", type=int, default=0, help="passes to kill before the one that is measured")
    parser.add_argument("--read-files", type=int, default=200, help="most data files of a table that is read")
    parser.add_argument("--verify", type=int, default=20, help="tables to verify; all after kills")
    parser.add_argument("--folder", type=Path, help="where the catalog is made; default: the directory for such files")
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    main()
