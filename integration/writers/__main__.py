"""`python -m integration.writers`: merge files of many writers, and say which seeds fail and what was reached."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from integration.writers.cases import DELETES, PATHS, Case, Cases, Cell
from integration.writers.merging import Lake, Outcome, run
from integration.writers.pool import HERE, NEEDED, check_in, checked_in, make_pool

SPARK_WRITERS = ("spark-v1", "spark-v2")
LEAST = 20
"""Merges that a cell of the table should have."""
MOST_TRIES = 4 * LEAST
"""Cases that aim at a cell which is not reached often enough."""


@dataclass
class Tally:
    """What the cases of a run reached."""

    cells: Counter[Cell] = field(default_factory=Counter)
    tried: Counter[Cell] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    decoded: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    cases: int = 0

    def add(self, case: Case, outcome: Outcome) -> None:
        """Count a case, and print it if it failed."""
        self.cases += 1
        if outcome.failure:
            self.fail(case, outcome.failure)
        elif outcome.refused:
            self.refused[_kind(outcome.refused)] += 1
        else:
            self.decoded[f"{case.path}: {outcome.why}"] += bool(outcome.why)
            self.moved.update({way for ways in outcome.moved.values() for way in ways})
            ways = ((file, way) for file in case.files for way in outcome.moved[file.name])
            self.cells.update({Cell(file.writer, file.encoding, way, case.deletes) for file, way in ways})

    def lacks(self, cell: Cell) -> bool:
        """Return whether a case should aim at a cell."""
        return self.cells[cell] < LEAST and self.tried[cell] < MOST_TRIES

    def fail(self, case: Case, why: str) -> None:
        """Print a case that failed."""
        self.failures.append(f"{case}: {why}")
        print(f"FAILED {self.failures[-1]}\nagain: --replay {case.seed}", flush=True)

    def print(self, cases: Cases, missing: Mapping[str, str], full: bool) -> None:
        """Print the table of merges by writer, encoding, path and deletes, the empty cells and what was refused."""
        if full:
            self._print_table(cases)
        counts = [self.cells[cell] for cell in cases.cells]
        few = sum(0 < count < LEAST for count in counts)
        print(f"{len(counts)} cells: {counts.count(0)} empty, {few} below {LEAST}, {max(counts, default=0)} the most")
        print("; ".join(f"{' '.join(cell)}: {self.cells[cell]}" for cell in cases.cells if self.cells[cell] < LEAST))
        for (writer, encoding), why in cases.never_copied.items():
            print(f"nothing is copied of {writer} {encoding}: {why}")
        for writer, why in sorted(missing.items()):
            print(f"no files of {writer}: {why}")
        for why, count in self.refused.most_common():
            print(f"refused {count} times: {why}")
        print(f"decoded because {dict(+self.decoded)}")
        print(f"{self.cases} cases, moved {dict(self.moved)}, {len(self.failures)} failed", flush=True)

    def _print_table(self, cases: Cases) -> None:
        """A cell that cannot be reached has a dash."""
        columns, reachable = list(product(PATHS, DELETES)), set(cases.cells)
        print("writer | encoding | " + " | ".join(map(" ".join, columns)))
        for writer, encoding in sorted({cell[:2] for cell in cases.cells}):
            row = [Cell(writer, encoding, *column) for column in columns]
            found = [str(self.cells[cell]) if cell in reachable or self.cells[cell] else "-" for cell in row]
            print(" | ".join((writer, encoding, *found)))


def _kind(refused: str) -> str:
    """A message without the path."""
    return " ".join(word for word in refused.split() if "/" not in word)[:240]


def main() -> int:
    """Run as the options say."""
    options = _options()
    logging.getLogger("icesize").setLevel(logging.CRITICAL)
    if options.check_in:
        check_in(list(NEEDED) if options.writers is None else options.writers.split(","), options.first_seed, 4)
        return 0
    folder = Path(tempfile.mkdtemp(prefix="writers-", dir=options.folder))
    try:
        return many(folder, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.writers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long to begin new cases")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first case and of the files")
    parser.add_argument("--pool-seed", type=int, default=0, help="seed of the files, which a replay needs, too")
    parser.add_argument("--replay", type=int, nargs="+", help="only the cases of these seeds")
    parser.add_argument("--writers", help="only these, by comma; 'here' are those of this environment")
    parser.add_argument("--each", type=int, default=60, help="files of each writer")
    parser.add_argument("--table", action="store_true", help="print the whole table")
    parser.add_argument("--spark", action="store_true", help="Spark writes files and reads merged ones, too")
    parser.add_argument("--spark-reads", type=int, default=120, help="merged tables that Spark reads")
    parser.add_argument("--folder", help="where files and tables lie while they are needed")
    parser.add_argument("--check-in", action="store_true", help="make the files that are checked in again")
    return parser.parse_args()


def _writers(named: str | None) -> Sequence[str]:
    if named is None:
        return (*HERE, *NEEDED)
    return HERE if named == "here" else named.split(",")


def many(folder: Path, options: argparse.Namespace) -> int:
    """Make the files, run cases for the time that there is, and print what came of them."""
    tally, lake = Tally(), Lake.create(folder)
    made, missing = make_pool(folder / "pool", _writers(options.writers), options.pool_seed, options.each)
    made += checked_in()
    spark = None
    if options.spark:
        from integration.writers.in_spark import Reader  # a JVM

        spark = Reader.start(folder)
        made += spark.write(folder / "pool", options.pool_seed, max(9, options.each // 2))
    else:
        missing |= dict.fromkeys(SPARK_WRITERS, "without --spark")
    print(f"{len(made)} files by {len({file.writer for file in made})} writers", flush=True)
    cases = Cases(tuple(made))
    _run(options, cases, lake, tally, most_kept=options.spark_reads if spark is not None else 0)
    if spark is not None:
        failures, unread = spark.read(lake)
        for case, why in failures:
            tally.fail(case, why)
        for why, count in unread.most_common():
            print(f"no reader: Spark refuses {count} merged tables and an input file of each, {why}")
        print(f"Spark read {len(lake.kept)} merged tables in both modes")
        spark.stop()
    tally.print(cases, missing, options.table)
    return 1 if tally.failures else 0


def _run(options: argparse.Namespace, cases: Cases, lake: Lake, tally: Tally, most_kept: int) -> None:
    """Run the cases of the seeds that aim at a cell which needs more merges; a case does not depend on others.

    Tables are kept for Spark, one for each writer, encoding and path.
    """
    began, kept = time.monotonic(), set[tuple[str, ...]]()
    for seed in options.replay or range(options.first_seed, sys.maxsize):
        cell = cases.aim(seed)
        if options.replay is None:
            if time.monotonic() - began > options.seconds or not any(map(tally.lacks, cases.cells)):
                return
            if not tally.lacks(cell):
                continue
            tally.tried[cell] += 1
        keep = cell[:3] not in kept and len(lake.kept) < most_kept
        before = len(lake.kept)
        tally.add(case := cases.of(seed), run(lake, case, keep=keep))
        if len(lake.kept) > before:
            kept.add(cell[:3])


if __name__ == "__main__":
    sys.exit(main())
