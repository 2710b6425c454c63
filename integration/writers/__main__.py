"""`python -m integration.writers`: merge files of many writers, and say which seeds fail and what was reached."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from integration.writers.cases import DELETES, PATHS, Case, case_of
from integration.writers.merging import Lake, Outcome, run
from integration.writers.pool import EMPTY, HERE, NEEDED, Made, check_in, checked_in, make_pool

SPARK_WRITERS = ("spark-v1", "spark-v2")
LEAST = 20
"""Merges that a cell of the table should have."""


@dataclass
class Tally:
    """What the cases of a run reached."""

    cells: dict[tuple[str, str], Counter[tuple[str, str]]] = field(default_factory=lambda: defaultdict(Counter))
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
            self.moved.update(outcome.moved.split(", "))
            self.decoded[f"{case.path}: {outcome.why}"] += bool(outcome.why)
            for file in case.files:
                self.cells[file.writer, file.encoding][case.path, case.deletes] += 1

    def fail(self, case: Case, why: str) -> None:
        """Print a case that failed."""
        self.failures.append(f"{case}: {why}")
        print(f"FAILED {self.failures[-1]}\nagain: --replay {case.seed}", flush=True)

    def print(self, missing: dict[str, str], full: bool) -> None:
        """Print the table of merges by writer, encoding, path and deletes, the empty cells and what was refused."""
        columns = [(path, deletes) for path in PATHS for deletes in DELETES]
        if full:
            print("writer | encoding | " + " | ".join(f"{path} {deletes}" for path, deletes in columns))
            for key, found in sorted(self.cells.items()):
                print(" | ".join((*key, *(str(found[column]) for column in columns))))
        counts = [found[column] for found in self.cells.values() for column in columns]
        few = sum(0 < count < LEAST for count in counts)
        print(f"{len(counts)} cells: {counts.count(0)} empty, {few} below {LEAST}, {max(counts, default=0)} the most")
        for writer, why in sorted({**EMPTY, **missing}.items()):
            print(f"no files of {writer}: {why}")
        for why, count in self.refused.most_common():
            print(f"refused {count} times: {why}")
        print(f"decoded because {dict(+self.decoded)}")
        print(f"{self.cases} cases, moved {dict(self.moved)}, {len(self.failures)} failed", flush=True)


def _kind(refused: str) -> str:
    """A message without the path."""
    return " ".join(word for word in refused.split() if "/" not in word)[:240]


def main() -> int:
    """Run as the options say."""
    options = _options()
    logging.getLogger("icesize").setLevel(logging.CRITICAL)
    if options.check_in:
        check_in(options.first_seed, 4)
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
        made += spark.write(folder / "pool", options.pool_seed, max(6, options.each // 3))
    print(f"{len(made)} files by {len({file.writer for file in made})} writers", flush=True)
    _cases(options, made, lake, tally, keeps=spark is not None)
    if spark is not None:
        failures, unread = spark.read(lake)
        for case, why in failures:
            tally.fail(case, why)
        for why, count in unread.most_common():
            print(f"no reader: Spark refuses {count} merged tables and an input file of each, {why}")
        print(f"Spark read {len(lake.kept)} merged tables in both modes")
        spark.stop()
    tally.print(
        missing if spark is not None else {**missing, **dict.fromkeys(SPARK_WRITERS, "without --spark")}, options.table
    )
    return 1 if tally.failures else 0


def _cases(options: argparse.Namespace, made: Sequence[Made], lake: Lake, tally: Tally, keeps: bool) -> None:
    began = time.monotonic()
    seeds = options.replay or range(options.first_seed, sys.maxsize)
    for seed in seeds:
        if options.replay is None and time.monotonic() - began > options.seconds:
            return
        case = case_of(seed, made)
        tally.add(case, run(lake, case, keep=keeps and len(lake.kept) < options.spark_reads))


if __name__ == "__main__":
    sys.exit(main())
