"""A table that upserts change continuously and that icesize and Iceberg compact repeatedly.

    python -m benchmarks compact_upserts [--compactions 6] [--updates 3] [--rows 20000] [--keep DIR]

The table is TPC-H's lineitem in 200 files, unpartitioned, as in `benchmarks.compact`. An update is one commit: an
equality delete of `--rows` rows, anywhere in the table, by order and line number, and the same rows with another
quantity. With one update every 20 seconds, a compaction would run every minute; the benchmark does not wait.

After `--updates` updates the table is compacted, by `icesize.SizedTable.compact` in this process and by
`rewrite_data_files` (`delete-file-threshold` 1) in a long-running Spark session. Each program has a table of its own,
which receives the same files. Only the calls are timed. CPU seconds are those of this process and all of its children,
Spark's included.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table

import icesize
from benchmarks import peers
from benchmarks.compact_call import TABLE
from benchmarks.compact_rivals import Bench, contents, data_paths, on_server, summed
from benchmarks.compact_tables import CASES
from benchmarks.deletes import BASE, KEY
from benchmarks.show import finish
from tests.support.delete_files import commit_row_delta, equality_deletes
from tests.support.processes import Processes

PEER = "db.peer"
CHANGED = "l_quantity"
_SEED = 7


class Rows:
    """The rows of the table, and their state after updates."""

    def __init__(self, table: Table) -> None:
        self._rows = pa.concat_tables(pq.read_table(path) for path in data_paths(table))
        self._random = np.random.default_rng(_SEED)
        self._quantities: NDArray[np.int32] = np.zeros(self._rows.num_rows, np.int32)
        self._updates = 0

    def updated(self, rows: int) -> pa.Table:
        """Return some rows with another quantity, which differs from update to update."""
        self._updates += 1
        drawn = self._random.choice(len(self._quantities), rows, replace=False)
        self._quantities[drawn] = self._updates
        quantities = self._as_quantity(pa.array(np.full(rows, self._updates, np.int32)))
        return self._with(self._rows.take(drawn), quantities)

    def sums(self) -> dict[str, Any]:
        """Return the expected number of rows, and their checksum."""
        changed = pa.array(self._quantities > 0)
        quantities = pc.if_else(changed, self._as_quantity(pa.array(self._quantities)), self._rows[CHANGED])
        rows, checksum = summed("SELECT * FROM live", (), live=self._with(self._rows, quantities))
        return {"rows": rows, "checksum": checksum}

    def _with(self, rows: pa.Table, quantities: pa.Array) -> pa.Table:
        return rows.set_column(rows.schema.get_field_index(CHANGED), rows.field(CHANGED), quantities)

    def _as_quantity(self, quantities: pa.Array) -> pa.Array:
        return quantities.cast(self._rows.field(CHANGED).type)


Compact = Callable[[], object]


@contextmanager
def _icesize(catalog: Catalog, bench: Bench) -> Iterator[Compact]:
    yield icesize.open(None, TABLE, catalog=catalog).compact


@contextmanager
def _rewrite(catalog: Catalog, bench: Bench) -> Iterator[Compact]:
    spark = peers.rest_session(bench.uri)

    def rewrite() -> None:
        # A session caches tables for half a minute.
        spark.sql(f"REFRESH TABLE c.{PEER}")
        peers.call_rewrite(spark, PEER, bench.target_bytes)

    try:
        yield rewrite
    finally:
        spark.stop()


WAYS: dict[str, Callable[[Catalog, Bench], AbstractContextManager[Compact]]] = {TABLE: _icesize, PEER: _rewrite}
"""The table that each program compacts."""
TITLES = {TABLE: "icesize", PEER: "rewrite_data_files"}


@dataclass(frozen=True)
class Contestant:
    """A program that compacts a table, and the cost of each compaction."""

    name: str
    compact: Compact
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    def run(self, processes: Processes) -> None:
        """Run one compaction, timed."""
        began, cpu_began = time.perf_counter(), processes.cpu().total
        self.compact()
        self.seconds.append(round(time.perf_counter() - began, 3))
        self.cpu_seconds.append(round(processes.cpu().total - cpu_began, 3))


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Update and compact in turns, and print a table, or JSON."""
    args = _parser().parse_args(argv)
    with on_server(CASES[BASE], BASE, args.keep) as bench, bench.registered() as catalog:
        catalog.register_table(PEER, bench.metadata)
        before = contents(catalog.load_table(TABLE))
        with ExitStack() as ways:
            contestants = [Contestant(name, ways.enter_context(way(catalog, bench))) for name, way in WAYS.items()]
            expected = run(catalog, contestants, args)
        left = {name: contents(catalog.load_table(name)) for name in WAYS}
        catalog.drop_table(PEER)
    return _shown(args, before, expected, contestants, left)


def run(catalog: Catalog, contestants: Sequence[Contestant], args: argparse.Namespace) -> dict[str, Any]:
    """Run all updates and compactions, in alternating order; return the expected `rows` and their `checksum`."""
    rows, processes = Rows(catalog.load_table(TABLE)), Processes()
    for number in range(args.compactions):
        for _ in range(args.updates):
            update(catalog, rows.updated(args.rows), contestants)
        for contestant in contestants if number % 2 == 0 else reversed(contestants):
            contestant.run(processes)
    return rows.sums()


def update(catalog: Catalog, rows: pa.Table, contestants: Sequence[Contestant]) -> None:
    """Commit the same files to each of the tables, in one commit each; all tables share the directory of the files."""
    table = catalog.load_table(TABLE)
    deletes = equality_deletes(table, KEY, list(zip(*(rows[name].to_pylist() for name in KEY), strict=True)))
    data = list(_dataframe_to_data_files(table.metadata, rows, table.io))
    for file in data:
        file.spec_id = table.spec().spec_id
    for contestant in contestants:
        commit_row_delta(catalog.load_table(contestant.name), [deletes], data)


def _shown(
    args: argparse.Namespace,
    before: dict[str, Any],
    expected: dict[str, Any],
    contestants: Sequence[Contestant],
    left: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    ways = {
        TITLES[each.name]: {
            "seconds": each.seconds,
            "cpu_seconds": each.cpu_seconds,
            "after": left[each.name],
            "rows_exact": all(left[each.name][key] == value for key, value in expected.items()),
        }
        for each in contestants
    }
    ours, peer = (sum(each.seconds) for each in contestants)
    result = {
        "benchmark": "compact_upserts", "table": before, "updates": args.compactions * args.updates, "rows": args.rows,
        "ways": ways, "ratio": round(peer / ours, 2), "rows_exact": all(way["rows_exact"] for way in ways.values()),
    }  # fmt: skip
    title = f"{result['updates']} updates of {args.rows:,} of {before['rows']:,} rows, {args.compactions} compactions"
    header = ("", "seconds in sum", "each", "CPU", "MB", "files", "delete files", "rows")
    return finish(result, title, header, [_line(*way) for way in ways.items()], args.json)


def _line(title: str, way: dict[str, Any]) -> list[str]:
    after, each = way["after"], " ".join(f"{seconds:.1f}" for seconds in way["seconds"])
    sums = [f"{sum(way['seconds']):.1f}", each, f"{sum(way['cpu_seconds']):.1f}", f"{after['bytes'] / 1e6:.1f}"]
    return [
        title,
        *sums,
        str(after["files"]),
        str(after["delete_files"]),
        "exact" if way["rows_exact"] else "NOT EXACT",
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks compact_upserts", description=__doc__.splitlines()[0])
    parser.add_argument("--compactions", type=int, default=6)
    parser.add_argument("--updates", type=int, default=3, help="before each compaction")
    parser.add_argument("--rows", type=int, default=20_000, help="of each update")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the table there for later runs")
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    main()
