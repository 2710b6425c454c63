"""Compactions and clusterings of a partition beside a `MERGE INTO` of Spark every few seconds: which of them commit?

    python -m benchmarks beside [--seconds 90] [--interval 5] [--files 30] [--rows 100000] [--format-version 3] [--json]

In each round, icesize merges all files of one partition, while Spark on one core updates rows of it. Then all rows are
compared with those of the committed statements, row ids included, and the table is rolled back. Nobody repeats a
failed statement or a dropped merge. The first clustering gives the table a sort order, so later compactions sort and
are slower. The ways differ in the mode of the statements:

| way | the statements |
|---|---|
| merge-on-read | delete rows by position or by vector, and add files |
| copy-on-write | rewrite files of a table without delete files |
| copy-on-write, with deletes | the same, in a table with one deleted row |
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import icesize
from benchmarks import peers
from benchmarks.rival_model import reason_of
from benchmarks.show import finish
from icesize.errors import IcesizeError
from icesize.report import Report
from icesize.sized_table import SizedTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE, NAME = "c.db.t", "db.t"
WAYS = {"merge-on-read": False, "copy-on-write": False, "copy-on-write, with deletes": True}
"""Whether the table has a delete file before the first round."""
JOBS: Mapping[str, tuple[int, Callable[[SizedTable], Report]]] = {
    "compact": (512 << 20, lambda table: table.compact("p = 0")),
    "cluster": (16 << 20, lambda table: table.cluster(["user_id"], where="p = 0")),
}
"""The target size of files: a clustering into one file would be none."""
PARTITIONS = 2
CHANGED_ROWS, SPAN = 200, 20_000
"""Rows of a statement, and the range of their ids."""


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run all ways, and print a table, or JSON; raise SystemExit(1) if rows or row ids are not exact."""
    args = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="icesize-beside-", dir=args.dir) as folder:
        ways = _ran(Path(folder), args)
    exact = all(way["rows"] == "exact" for way in ways)
    result = {"benchmark": "beside", "icesize": icesize.__file__, "ways": ways, "rows_exact": exact}
    title = f"MERGE every {args.interval:g} s, format v{args.format_version}, {ways[0]['bytes'] / 1e6:.0f} MB to merge"
    finish(result, title, _SHOWN, [[way[name] for name in _SHOWN] for way in ways], args.json)
    if not exact:
        raise SystemExit(1)
    return result


_SHOWN = (
    "way", "job", "tried", "committed", "dropped", "median seconds", "longest seconds", "statements",
    "statements committed", "statements failed", "median seconds of a statement", "rows",
)  # fmt: skip


def _ran(warehouse: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    spark = peers.session(warehouse, cores=1)
    # A statement begins with the newest state, and not with a cached one.
    spark.conf.set("spark.sql.catalog.c.cache-enabled", "false")
    peers.create_small_files(spark, TABLE, [(0, PARTITIONS, args.files, args.rows)], 512 << 20)
    spark.sql(f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('format-version' = '{args.format_version}')")
    bench = _Bench(spark, warehouse, args, Random(args.seed))
    # Rows of an older format get their ids with the next commit.
    bench.merge("copy-on-write", "new")
    found = []
    for way, with_deletes in WAYS.items():
        if with_deletes:
            spark.sql(f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
            spark.sql(f"DELETE FROM {TABLE} WHERE p = 0 AND id = 0")
        found += [bench.run(way, job, args.seconds) for job in JOBS]
    spark.stop()
    return found


@dataclass
class _Bench:
    """The table; each round begins and ends with its newest snapshot of now."""

    spark: SparkSession
    warehouse: Path
    args: argparse.Namespace
    chance: Random
    numbers: int = 0

    def run(self, way: str, job: str, seconds: float) -> dict[str, Any]:
        """Run rounds for so many seconds, at least one."""
        mode = way.partition(",")[0]
        base, start = self.snapshots()[-1], self.facts()
        size = self.spark.sql(f"SELECT sum(file_size_in_bytes) FROM {TABLE}.files WHERE partition.p = 0").first()
        tries, wrong, ends = _Tries(), list[str](), time.monotonic() + seconds
        while not tries.seconds or time.monotonic() < ends:
            changed = dict[int, str]()
            with self._statements(mode, tries, changed):
                time.sleep(self.chance.uniform(0, self.args.interval))
                tries.add(lambda: self._merged(job))
            wrong += self._wrong(start, changed)
            self.spark.sql(f"CALL c.system.rollback_to_snapshot('{NAME}', {base})").collect()
        found = {
            "way": way,
            "job": job,
            "bytes": size[0] if size else 0,
            "rows": "; ".join(wrong) or "exact",
        } | tries.summed()
        print(found, file=sys.stderr, flush=True)
        return found

    def merge(self, mode: str, status: str) -> dict[int, str]:
        """Run one statement, and return the new status of the rows that it changes."""
        first = PARTITIONS * self.chance.randrange(1, (self.args.files * self.args.rows - SPAN) // PARTITIONS)
        ids = [first + PARTITIONS * i for i in self.chance.sample(range(SPAN // PARTITIONS), CHANGED_ROWS)]
        values = ", ".join(f"({i}L)" for i in ids)
        self.spark.sql(f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('write.merge.mode' = '{mode}')")
        self.spark.sql(
            f"MERGE INTO {TABLE} t USING (SELECT id FROM VALUES {values} AS s(id)) s "
            f"ON t.p = 0 AND t.id BETWEEN {min(ids)} AND {max(ids)} AND t.id = s.id "
            f"WHEN MATCHED THEN UPDATE SET status = '{status}'"
        )
        return dict.fromkeys(ids, status)

    def snapshots(self) -> list[int]:
        """Return the ids of the snapshots that the table has had, oldest first."""
        history = self.spark.sql(f"SELECT snapshot_id FROM {TABLE}.history ORDER BY made_current_at")
        return [row[0] for row in history.collect()]

    def facts(self) -> tuple[Any, ...]:
        """Return the number of rows of the partition, and sums over all that no statement changes."""
        # Iceberg 1.11 never frees the vectors of `_row_id`, which are outside the heap
        self.spark.conf.set("spark.sql.iceberg.vectorization.enabled", "false")
        row_id = ", _row_id" if self.args.format_version == 3 else ""
        hashed = f"xxhash64(id, user_id, amount{row_id})"
        sums = self.spark.sql(f"SELECT count(*), sum(id), bit_xor({hashed}) FROM {TABLE} WHERE p = 0").collect()
        self.spark.conf.unset("spark.sql.iceberg.vectorization.enabled")
        return tuple(sums[0])

    def _merged(self, job: str) -> Report:
        target_bytes, run = JOBS[job]
        policy: dict[str, object] = {"target-file-size-bytes": target_bytes}
        return run(icesize.open(None, NAME, catalog=peers.catalog(self.warehouse), policy=policy))

    @contextmanager
    def _statements(self, mode: str, tries: _Tries, changed: dict[int, str]) -> Iterator[None]:
        """Run a statement every few seconds until the block ends; one that has begun then is awaited."""
        ended = threading.Event()

        def run() -> None:
            due = time.monotonic()
            while not ended.wait(max(0.0, due - time.monotonic())):
                due = max(due + self.args.interval, time.monotonic())
                self.numbers += 1
                changed.update(tries.statement(lambda: self.merge(mode, f"m{self.numbers}")) or {})

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _wrong(self, start: tuple[Any, ...], changed: Mapping[int, str]) -> list[str]:
        found = self.facts()
        differs = [] if found == start else [f"rows or row ids: {start} became {found}"]
        rows = self.spark.sql(f"SELECT id, status FROM {TABLE} WHERE p = 0 AND status LIKE 'm%'").collect()
        return differs if {row[0]: row[1] for row in rows} == changed else [*differs, "values"]


@dataclass
class _Tries:
    """What became of the jobs and of the statements beside them."""

    seconds: list[float] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    statements: list[float] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)

    def add(self, job: Callable[[], Report]) -> None:
        """Run a job; it counts as dropped if any of its merges was."""
        began = time.perf_counter()
        try:
            report = job()
            why = [sentence.split(": ", 1)[-1] for sentence in report.conflicts][:1]
            self.dropped.update(why or ([] if report.snapshot_ids else ["nothing to do"]))
        except IcesizeError as error:
            self.dropped[type(error).__name__] += 1
        self.seconds.append(time.perf_counter() - began)

    def statement(self, run: Callable[[], dict[int, str]]) -> dict[int, str] | None:
        """Run a statement, and return what it changed; None if it failed."""
        began = time.perf_counter()
        try:
            return run()
        except Exception as error:
            self.failed[reason_of(str(error))] += 1
            return None
        finally:
            self.statements.append(time.perf_counter() - began)

    def summed(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "tried": len(self.seconds), "committed": len(self.seconds) - self.dropped.total(),
            "dropped": _counted(self.dropped), "median seconds": round(statistics.median(self.seconds), 1),
            "longest seconds": round(max(self.seconds), 1), "statements": len(self.statements),
            "statements committed": len(self.statements) - self.failed.total(),
            "statements failed": _counted(self.failed),
            "median seconds of a statement": round(statistics.median(self.statements or [0]), 1),
        }  # fmt: skip


def _counted(reasons: Counter[str]) -> str:
    return "; ".join(f"{number}: {reason}" for reason, number in reasons.most_common())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks beside", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=90.0, help="for each way and each job")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds from one statement to the next")
    parser.add_argument("--files", type=int, default=30, help="of each of two partitions")
    parser.add_argument("--rows", type=int, default=100_000, help="in a file")
    parser.add_argument("--format-version", type=int, choices=[2, 3], default=3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--dir", type=Path, default=None, help="directory for the tables")
    parser.add_argument("--json", action="store_true")
    return parser
