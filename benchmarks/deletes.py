"""Compaction of a table with deletes pending, which leaves out every deleted row, by icesize and its rivals.

    python -m benchmarks deletes [--case random|clustered|thirty|equality|vectors] [--pairs 3] [--ways call,go]
        [--keep DIR]

The table is TPC-H's lineitem, 200 files, as in `benchmarks.compact`; the figures are those of
`benchmarks.compact_rivals`. iceberg-go takes part if ICEBERG_GO names its program. In addition, icesize merges the same
files without the deletes.

random: one position delete file for each data file deletes 2 % of its rows, anywhere in it. Spark leaves such files.
clustered: 2 % of the rows of each file, all in one run that begins anywhere. thirty: 30 %, anywhere. equality: 1,000
equality delete files of 20 keys each, order and line number of rows anywhere in the table; PyIceberg's scan refuses
them. vectors: random, in a table of format v3 with a deletion vector for each data file; PyIceberg writes no such
table.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.table import Table

import icesize
from benchmarks import peers
from benchmarks.compact_call import TABLE
from benchmarks.compact_rivals import (
    WAYS,
    Bench,
    Contestant,
    Way,
    chosen,
    compared,
    contents,
    data_paths,
    local,
    on_server,
    show,
    summed,
    ways_named,
)
from benchmarks.compact_tables import CASES as TABLES
from benchmarks.restored import restore
from icesize.planning.files import PartitionKey
from tests.support.delete_files import delete_equal, delete_positions
from tests.support.v3_tables import as_v3

BASE = "lineitem"
KEY = ["l_orderkey", "l_linenumber"]
_PLACE = ("filename", "file_row_number")
"""DuckDB's names for the position of a row."""
_LIVE = f"""
    SELECT * EXCLUDE ({", ".join(_PLACE)})
    FROM read_parquet(?, hive_partitioning = false, filename = true, file_row_number = true)
    ANTI JOIN deleted USING """
_SEED = 7
_FEW, _MANY = 0.02, 0.3
_DELETE_FILES, _KEYS_PER_FILE = 1000, 20

Positions = NDArray[np.int64]
Draw = Callable[[np.random.Generator, int, int], Positions]
"""Draws a number of positions from the rows of a file."""


def _anywhere(random: np.random.Generator, rows: int, deleted: int) -> Positions:
    return np.sort(random.choice(rows, deleted, replace=False))


def _one_run(random: np.random.Generator, rows: int, deleted: int) -> Positions:
    return np.arange(deleted) + random.integers(rows - deleted + 1)


def _by_position(table: Table, share: float, draw: Draw) -> pa.Table:
    """Delete a share of the rows of each file; return their positions."""
    random, deleted, places = np.random.default_rng(_SEED), dict[str, list[int]](), list[pa.Table]()
    for file in (task.file for task in table.scan().plan_files()):
        drawn = draw(random, file.record_count, round(file.record_count * share))
        deleted[file.file_path] = drawn.tolist()
        places.append(pa.table([[local(file.file_path)] * len(drawn), drawn], names=_PLACE))
    delete_positions(table, deleted, PartitionKey(table.spec().spec_id), granularity="file")
    return pa.concat_tables(places)


def _by_equality(table: Table, files: int) -> pa.Table:
    """Delete the rows with some of the keys; return the keys."""
    keys = pa.concat_tables(pq.read_table(path, columns=KEY) for path in data_paths(table))
    drawn = _anywhere(np.random.default_rng(_SEED), keys.num_rows, files * _KEYS_PER_FILE)
    deleted = keys.take(drawn)
    delete_equal(table, KEY, [tuple(row.values()) for row in deleted.to_pylist()], files=files)
    return deleted


def _by_vector(table: Table, share: float, draw: Draw) -> pa.Table:
    """Delete a share of the rows of each file of the table, which becomes one of format v3; return their positions."""
    places = _by_position(table, share, draw)
    as_v3(table.catalog, TABLE)
    opened = icesize.open(None, TABLE, catalog=table.catalog, policy={"max-delete-files": 0})
    opened.rewrite_deletes()
    return places


CASES: dict[str, Callable[[Table], pa.Table]] = {
    "random": partial(_by_position, share=_FEW, draw=_anywhere),
    "clustered": partial(_by_position, share=_FEW, draw=_one_run),
    "thirty": partial(_by_position, share=_MANY, draw=_anywhere),
    "equality": partial(_by_equality, files=_DELETE_FILES),
    "vectors": partial(_by_vector, share=_FEW, draw=_anywhere),
}
"""Each deletes rows of a table, and returns the values of some DuckDB columns that only these rows have."""
_NOT_BY_PYICEBERG = {
    "equality": "PyIceberg reads no equality deletes", "vectors": "PyIceberg writes no format v3",
}  # fmt: skip
"""Cases that PyIceberg's own merge cannot do."""


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the rounds and print tables, or JSON."""
    args = _parser().parse_args(argv)
    present, left_out = chosen(args.ways)
    if args.case in _NOT_BY_PYICEBERG and "overwrite" in present:
        present.remove("overwrite")
        left_out["overwrite"] = _NOT_BY_PYICEBERG[args.case]
    without = Way(f"{WAYS['call'].title}, without deletes", WAYS["call"].command)
    with on_server(TABLES[BASE], BASE, args.keep) as base:
        bench, before = with_deletes(base, args.case)
        contestants = {way: Contestant(WAYS[way], bench, before) for way in present}
        contestants["without"] = Contestant(without, base, base.contents())
        ways = compared(contestants, args.pairs)
    result = {"benchmark": "deletes", "case": args.case, "table": before, "ways": ways, "left_out": left_out}
    return show(result, WAYS | {"without": without}, args.json)


def with_deletes(base: Bench, case: str) -> tuple[Bench, dict[str, Any]]:
    """Return the table with the deletes of a case, and its contents without deleted rows; make it if it is missing."""
    master, facts = base.master.with_name(f"master-{case}"), base.master.with_name(f"{case}.json")
    if not facts.exists():
        shutil.rmtree(master, ignore_errors=True)
        restore(base.table, base.master)
        with peers.catalog(base.table) as catalog:
            deleted = CASES[case](catalog.load_table(TABLE))
            table = catalog.load_table(TABLE)
            live = f"{_LIVE} ({', '.join(deleted.column_names)})"
            rows, checksum = summed(live, data_paths(table), deleted=deleted)
            before = contents(table) | {"rows": rows, "checksum": checksum}
        base.table.rename(master)
        # This file is written last, so that an interrupted table is made again.
        facts.write_text(json.dumps({"metadata": table.metadata_location, "before": before}))
    told = json.loads(facts.read_text())
    return replace(base, master=master, metadata=told["metadata"]), told["before"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks deletes", description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, default="random")
    parser.add_argument("--pairs", type=int, default=3)
    ways = ",".join(WAYS)
    parser.add_argument("--ways", type=ways_named, default=ways, help="who runs (default: %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the tables there for later runs")
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    main()
