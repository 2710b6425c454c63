"""The cost of moving one column, by each method that a merge can choose: predicted by the cost model, and measured.

    python -m benchmarks columns [--files 24] [--rows 40000] [--rounds 3] [--kinds text,long] [--json]

There are twelve kinds of columns: few values, with another dictionary in each file, and plain values without one. Each
column is alone in its files, which icesize's writer makes, and merged in one thread. The methods copy its pages,
renumber its indices, encode the column again, or decode all rows. Files of few values are copied if their dictionaries
are equal.

For each method, the table has milliseconds, the minimum of all rounds: the prediction, processor time, and wall time
while two threads do the same. The last one shows waits for Python's lock (on a quiet machine with two cores).
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg import types as iceberg

from benchmarks.show import finish
from icesize.parquet.copying.assembly import Assembly
from icesize.parquet.editing.column_plan import (
    CHUNK_NS,
    ColumnPlan,
    Part,
    decoding_ns,
    plan_columns,
    renumbering_ns,
)
from icesize.parquet.editing.page_changes import works
from icesize.parquet.editing.page_copy import merge_row_groups
from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.footer import read_footer
from icesize.parquet.format.sources import LocalSource
from icesize.parquet.rewriting.merge import merge
from icesize.parquet.writing.row_writer import use_system_memory
from icesize.planning.plan import MergeTask
from tests.support.parquet_files import fact, local, schema_of, settings_of, write_one

WAYS = ("copy", "renumber", "encode again", "decode")
_DISTINCT = 200
"""Distinct values per file in a column of few values."""
_NEVER_NS = 10**12
_THREADS = 2


@dataclass(frozen=True)
class Kind:
    """A kind of columns: its type, the value for a number, and `few` if a file has few distinct values."""

    type: iceberg.IcebergType
    value: Callable[[int], Any]
    few: bool = True


_WORDS = [random.Random(n).randbytes(8).hex() for n in range(100_000)]
KINDS = {
    "few texts": Kind(iceberg.StringType(), lambda n: f"city of {_WORDS[n]}"),
    "few longs": Kind(iceberg.LongType(), lambda n: n * 1_000_003),
    "few ints": Kind(iceberg.IntegerType(), lambda n: n * 7),
    "few doubles": Kind(iceberg.DoubleType(), lambda n: n / 8),
    "few dates": Kind(iceberg.DateType(), lambda n: date(1990, 1, 1) + timedelta(n % 10_000)),
    "few decimals": Kind(iceberg.DecimalType(28, 2), lambda n: Decimal(n) / 4),
    "texts": Kind(iceberg.StringType(), lambda n: f"row {n} {_WORDS[n % 100_000]}", few=False),
    "longs": Kind(iceberg.LongType(), lambda n: n * 1_000_003, few=False),
    "ints": Kind(iceberg.IntegerType(), lambda n: n * 7 % 2**31, few=False),
    "doubles": Kind(iceberg.DoubleType(), lambda n: n / 8, few=False),
    "booleans": Kind(iceberg.BooleanType(), lambda n: n % 3 == 0, few=False),
    "decimals": Kind(iceberg.DecimalType(28, 2), lambda n: Decimal(n) / 4, few=False),
}


@dataclass(frozen=True)
class Files:
    """Small files with one column."""

    settings: WriteSettings
    written: list[NewDataFile]
    parts: list[Part]


def small_files(folder: Path, kind: Kind, files: int, rows: int, *, alike: bool) -> Files:
    """Write the files; those of few values have equal dictionaries if they are `alike`."""
    settings = settings_of(folder, schema_of(("column", kind.type)))
    chance = random.Random(1)
    written = []
    for number in range(files):
        first = 0 if alike else number * (_DISTINCT if kind.few else rows)
        numbers = [first + n % _DISTINCT for n in range(rows)] if kind.few else [first + n for n in range(rows)]
        if kind.few:
            numbers[_DISTINCT:] = chance.choices(numbers[:_DISTINCT], k=rows - _DISTINCT)
        table = pa.table([pa.array(map(kind.value, numbers), settings.arrow_schema.types[0])], settings.arrow_schema)
        written.append(write_one(settings, table))
    sources = [LocalSource(local(file.path)) for file in written]
    footers = [read_footer(source) for source in sources]
    return Files(settings, written, [Part(s, f, f.row_groups[0]) for s, f in zip(sources, footers, strict=True)])


def planned(files: Files, way: str) -> ColumnPlan | None:
    """Return the plan of one row group by this method; None if the method does not fit the column."""
    plan = plan_columns(files.parts, _NEVER_NS if way == "copy" else -_NEVER_NS)
    if way == "encode again":
        leaf = replace(plan.leaves[0], dictionary=None, numbers=())
        return replace(plan, reencode={"column": "dictionaries"}, leaves=[leaf])
    return plan if (way == "copy") == plan.is_copied(0, files.parts) and not plan.reencode else None


def chosen(files: Files) -> str:
    """Return the method that a merge chooses by itself."""
    plan = plan_columns(files.parts, files.settings.limits.renumber_page_ns)
    if plan.reencode:
        return "encode again"
    return "renumber" if plan.leaves[0].numbers else "copy"


def run(files: Files, way: str, rounds: int) -> tuple[float, float] | None:
    """Return seconds of processor time, and of wall time for two threads; None if the method is impossible."""
    names = count()
    work: Callable[[], None] = lambda: _decode(files, next(names))  # noqa: E731
    if way != "decode":
        plan = planned(files, way)
        if plan is None:
            return None
        work = partial(_moved, files, plan)
    return min(_timed(work) for _ in range(rounds)), min(_beside(work) for _ in range(rounds))


def predicted(files: Files, way: str) -> float:
    """Return the seconds that the cost model predicts."""
    chunks, limits = [part.group.chunks[0] for part in files.parts], files.settings.limits
    moving, again = CHUNK_NS * len(chunks), decoding_ns(chunks)
    ns = {
        "copy": moving,
        "renumber": moving + renumbering_ns(chunks, limits.renumber_page_ns),
        "encode again": moving + again,
        "decode": again + limits.open_ns * len(chunks),
    }
    return ns[way] / 1e9


def _timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _beside(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    with ThreadPoolExecutor(_THREADS) as pool:
        for future in [pool.submit(work) for _ in range(_THREADS)]:
            future.result()
    return time.perf_counter() - began


def _moved(files: Files, plan: ColumnPlan) -> None:
    assembly = Assembly(BytesIO(), [part.footer for part in files.parts])
    changed = (work(files.settings.parquet.level) for work in works(files.parts, plan))
    merge_row_groups(files.parts, plan, assembly, changed)
    assert assembly.finish().rows == sum(file.rows for file in files.written)


def _decode(files: Files, number: int) -> None:
    settings = replace(files.settings, merge_by_copying=False)
    inputs = tuple(map(fact, files.written))
    merge(MergeTask(inputs, inputs[0].partition), settings, FileNames("columns", number, 0))


def measured(folder: Path, name: str, files: int, rows: int, rounds: int) -> dict[str, Any]:
    """Return the cost of each method for one kind of columns, in milliseconds, and the method that a merge chooses."""
    kind = KINDS[name]
    own = small_files(folder / "own", kind, files, rows, alike=False)
    same = small_files(folder / "same", kind, files, rows, alike=True) if kind.few else own
    found: dict[str, Any] = {"kind": name, "chosen": chosen(own), "ways": {}}
    for way in WAYS:
        of = same if way == "copy" else own
        seconds = run(of, way, rounds)
        if seconds is not None:
            figures = zip(("predicted_ms", "cpu_ms", "beside_ms"), (predicted(of, way), *seconds), strict=True)
            found["ways"][way] = {name: round(figure * 1e3, 1) for name, figure in figures}
    return found


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure all kinds and print a table, or JSON."""
    args = _parser().parse_args(argv)
    use_system_memory()
    with tempfile.TemporaryDirectory(prefix="icesize-columns-") as folder:
        kinds = [measured(Path(folder) / kind, kind, args.files, args.rows, args.rounds) for kind in args.kinds]
    result = {"benchmark": "columns", "files": args.files, "rows": args.rows, "kinds": kinds}
    lines = [(found["kind"], *(_cell(found["ways"].get(way)) for way in WAYS), found["chosen"]) for found in kinds]
    title = f"columns: {args.files} files of {args.rows} rows, predicted ms, processor ms, wall ms of two"
    return finish(result, title, ("", *WAYS, "a merge chooses"), lines, args.json)


def _cell(way: dict[str, float] | None) -> str:
    return "-" if way is None else ", ".join(f"{figure:.0f}" for figure in way.values())


def kinds_named(names: str) -> Sequence[str]:
    """Return the kinds in a list with commas."""
    if unknown := set(names.split(",")) - KINDS.keys():
        raise argparse.ArgumentTypeError(f"{sorted(unknown)[0]!r} is none of {', '.join(KINDS)}")
    return names.split(",")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks columns", description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=24)
    parser.add_argument("--rows", type=int, default=40_000, help="of each file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", type=kinds_named, default=[*KINDS], help="with commas between them")
    parser.add_argument("--json", action="store_true")
    return parser
