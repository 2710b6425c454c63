"""A year of a stream through the planner, without bytes: files, written bytes, metadata, planning, requests and money.

    python -m benchmarks simulate [--days 2] [--periods 3] [--length 365] [--writer icesize] [--json]

Every batch of a few days is simulated in each period. Between two periods the table grows by finished partitions, which
are copies of those of the first day, so that the last period begins with a table of almost a year. With `--days 365
--periods 1`, every batch of the year is simulated. Peers write the same batches, and commit by the same rules for
manifests. The default takes four minutes of CPU time, a third of it for icesize.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks.show import finish
from benchmarks.simulate_costs import Tally
from benchmarks.simulate_metadata import Manifests
from benchmarks.simulate_picture import draw
from benchmarks.simulate_stream import MOST_DAYS_LATE, Stream
from benchmarks.simulate_writers import WRITERS, Writer, merged_whole
from icesize.planning.files import PartitionFacts, PartitionKey
from icesize.planning.merging.simulation import ReplayedTable

_LONG_AGO = -(10**6)
"""The stamp of rows that no batch of the simulation brought."""

_FILES = {
    "writer": "files",
    "day": "day",
    "partitions": "partitions",
    "files_per_partition": "files per partition",
    "files_per_partition_max": "most",
    "small_files": "small",
    "small_files_max": "most",
    "write_amplification": "write amp",
}
_COSTS = {
    "writer": "costs",
    "day": "day",
    "metadata_kb": "metadata, kB",
    "metadata_kb_p99": "p99",
    "plan_ms": "planning, ms",
    "plan_ms_p99": "p99",
    "requests_per_day": "requests a day",
    "usd_per_day": "USD a day",
}


class Simulation:
    """A table while a stream is written into it. `first_day` is the oldest day of its partitions."""

    def __init__(self, stream: Stream, writer: Writer) -> None:
        self.stream, self.writer = stream, writer
        self.table, self.manifests = writer.empty_table(), Manifests(stream.partitions)
        self.first_day = -MOST_DAYS_LATE

    def run(self, days: int) -> Tally:
        """Write the batches of so many days."""
        tally = Tally()
        for number in range(self.table.batch, self.table.batch + days * self.stream.batches_per_day):
            self.step(number, tally)
        return tally

    def step(self, number: int, tally: Tally) -> None:
        """Write one batch."""
        batch = self.stream.batch(number)
        commit = self.writer.take(self.table, batch, (number + 1) % self.stream.batches_per_day == 0)
        tally.add(batch, commit, self.manifests.commit(commit.snapshots), self.table.layout.partitions)

    def grow(self, days: int) -> None:
        """Add finished partitions of so many days before all others, as those of the first day are now."""
        # late rows reach back to days of the stream only, so the copies change no batch
        first = [self._cold(f) for n in range(self.stream.partitions) if (f := self._of_first_day(n))]
        old = range(self.first_day - days, self.first_day)
        copies = [_copy(self.table, facts, day) for day in old for facts in first]
        self.first_day -= days
        self.table.layout = self.table.layout.with_partitions({facts.key: facts for facts, _ in copies})
        self.manifests.put([(facts.key, numbers) for facts, numbers in copies])

    def _cold(self, facts: PartitionFacts) -> PartitionFacts:
        """Return a partition as its writer leaves it: icesize merges it once it gets no rows any more."""
        if not self.writer.finishes or len(facts.small) < 2:
            return facts
        merge, limit_bytes = merged_whole(self.table, facts), self.table.policy.small_file_limit_bytes
        return reduce(lambda cold, file: cold.adding(file, limit_bytes), merge.outputs, facts.without(merge.inputs))

    def _of_first_day(self, tenant: int) -> PartitionFacts | None:
        return self.table.layout.partitions.get(PartitionKey(0, (0, tenant)))


def _copy(table: ReplayedTable, facts: PartitionFacts, day: int) -> tuple[PartitionFacts, range]:
    """Return a finished partition as one of another day, and the numbers of its files."""
    key = PartitionKey(0, (day, facts.key.values[1]))
    paths = [next(table.paths) for _ in range(facts.files)]
    small = tuple(
        replace(file, path=str(number), partition=key, sequence_number=0)
        for file, number in zip(facts.small, paths, strict=False)
    )
    return replace(facts, key=key, small=small, newest=_LONG_AGO), range(paths[0], paths[-1] + 1)


def simulate(stream: Stream, writer: Writer, days: int, periods: int, length: int) -> list[dict[str, Any]]:
    """Return the figures of each period. The table has partitions of `length` days in the end."""
    simulation, rows = Simulation(stream, writer), list[dict[str, Any]]()
    gap = max(0, length - days * periods) // max(1, periods - 1)
    for period in range(periods):
        if period and gap:
            simulation.grow(gap)
        tally = simulation.run(days)
        summary = tally.summary(stream.batches_per_day, simulation.table.layout.partitions.values())
        rows.append({"day": (period + 1) * days + period * gap, **summary})
    return rows


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Simulate every writer; print a table, or JSON."""
    args = _parser().parse_args(argv)
    stream = Stream(
        args.partitions, args.touched, args.late, args.batches, round(args.tb * 1e12 / args.batches), args.seed
    )
    names = args.writer or list(WRITERS)
    shown = track(names, "writers", console=Console(stderr=True), disable=args.json, transient=True)
    rows = [
        {"writer": name, **row}
        for name in shown
        for row in simulate(stream, WRITERS[name], args.days, args.periods, args.length)
    ]
    if args.picture:
        draw(rows, args.picture)
    result = {"benchmark": "simulate", "simulated": _simulated(args), "rows": rows}
    for title, columns in ((_simulated(args), _FILES), ("per batch, or per day", _COSTS)):
        finish(
            result, title, tuple(columns.values()), [[_cell(row[key]) for key in columns] for row in rows], args.json
        )
        if args.json:
            break
    return result


def _simulated(args: argparse.Namespace) -> str:
    """Return one sentence about the stream, and about what is simulated of it."""
    stream = f"{args.tb:g} TB and {args.partitions:,} partitions a day, {args.batches:,} batches a day"
    copied = max(0, args.length - args.days * args.periods)
    days = f"every batch of {args.periods} x {args.days} days simulated, {copied} days of partitions copied"
    return f"{stream} into {args.touched} partitions each; {days}"


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks simulate", description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=2, help="days of each period whose batches are simulated")
    parser.add_argument("--periods", type=int, default=3, help="at the first, the table is empty")
    parser.add_argument("--length", type=int, default=365, help="days of partitions in the table at the end")
    parser.add_argument("--partitions", type=int, default=1_000, help="partitions of each day")
    parser.add_argument("--touched", type=int, default=50, help="partitions that each batch writes to")
    parser.add_argument("--late", type=int, default=5, help="partitions of earlier days among them")
    parser.add_argument("--batches", type=int, default=1_440, help="batches a day")
    parser.add_argument("--tb", type=float, default=10.0, help="terabytes a day")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--writer", action="append", choices=list(WRITERS), help="default: all of them; repeatable")
    parser.add_argument("--picture", type=Path, help="draw the writers' costs and metadata in this SVG file")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    return parser
