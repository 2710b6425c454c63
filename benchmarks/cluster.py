"""Clustering by user and time: icesize against Iceberg's sorting `rewrite_data_files`, on the same table.

    python -m benchmarks cluster [--rows 20000000] [--partitions 8] [--target-bytes 4194304]
                                 [--strategies sort,zorder,hilbert] [--pairs 2] [--json]
    python -m benchmarks cluster --stream [--seconds 300] [--merge inline] [--cores 2] [--pairs 2] [--json]

The table is made once, in well-sized files whose rows have no order, and restored for each run. Pairs alternate in the
same run. Each program has a process of its own, with a session that has clustered another table before. Iceberg has no
Hilbert curve, so its z-order is the peer of icesize's.

At the default size, a partition has about 27 files. They let a curve separate 5 x 5 regions, while a query on the
unordered table still ends in a second. `--stream` clusters beside a stream of one batch per second into the same
partitions, and compares with the same stream alone.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks import cluster_peers, cluster_stream, icesize_child
from benchmarks.cluster_opened import Files, Partition, optimum, read_files
from benchmarks.cluster_rows import (
    Integers,
    Queries,
    distinct_users,
    drawn_points,
    drawn_ranges,
    write_batches,
)
from benchmarks.restored import restore
from benchmarks.show import finish
from icesize.planning.cluster_by import STRATEGIES
from tests.support.late_events import HOURS

COLUMNS = ("user_id", "event_time")
PERCENTS = (25, 10)
"""Percent of the time span that a range query covers."""


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the pairs and print a table for each strategy, or JSON."""
    args = _parser().parse_args(argv)
    if args.stream:
        return cluster_stream.run(args)
    with tempfile.TemporaryDirectory(prefix="icesize-cluster-") as folder:
        bench = _Bench.made(Path(folder), args)
        before = bench.measured()
        strategies = {strategy: bench.compared(strategy, args.pairs, before) for strategy in args.strategies}
    result = {"benchmark": "cluster", "table": bench.facts, "before": before, "strategies": strategies}
    if args.json:
        return finish(result, "", (), (), as_json=True)
    for strategy, compared in strategies.items():
        peer = f"Iceberg {_peer_of(strategy)}"
        facts = bench.facts
        title = (
            f"cluster, {strategy}: {facts['rows']:,} rows, {facts['files']} files, {facts['live_bytes'] / 1e6:.0f} MB"
        )
        finish(result, title, ("", "before", "icesize", peer, "goal"), _lines(strategy, before, compared), False)
    return result


def _peer_of(strategy: str) -> str:
    return strategy if strategy in cluster_peers.ORDERS else "zorder"


@dataclass(frozen=True)
class _Bench:
    """The original table in `master`, and its copy for each run in `table`: metadata has absolute paths."""

    table: Path
    master: Path
    target_bytes: int
    facts: dict[str, Any]
    users: Integers

    @classmethod
    def made(cls, root: Path, args: argparse.Namespace) -> _Bench:
        paths = write_batches(root / "data", HOURS, -(-args.rows // HOURS))
        facts = cluster_peers.make(root / "data", root / "table", args.partitions, args.target_bytes)
        users = distinct_users(paths)
        shutil.rmtree(root / "data")
        (root / "table").rename(root / "master")
        bench = cls(root / "table", root / "master", args.target_bytes, facts, users)
        bench.restore()
        return bench

    def restore(self) -> None:
        restore(self.table, self.master)

    @cached_property
    def times(self) -> dict[Partition, Integers]:
        """`event_time` by partition, sorted; independent of the files of the rows."""
        return read_files(self.table, COLUMNS).sorted_values("event_time")

    @cached_property
    def queries(self) -> Queries:
        first = min(int(values[0]) for values in self.times.values())
        last = max(int(values[-1]) for values in self.times.values())
        ranges = {percent: drawn_ranges(first, last, percent) for percent in PERCENTS}
        return Queries(drawn_points(self.users), ranges)

    def compared(self, strategy: str, pairs: int, before: dict[str, Any]) -> dict[str, Any]:
        """Run all pairs and compare them; layout, queries and second runs are those of the last pair."""
        runs = [self._pair(strategy, first_ours=n % 2 == 0, last=n == pairs - 1) for n in range(pairs)]
        ratios = [mine["seconds"] / theirs["seconds"] for mine, theirs in runs]
        mine, theirs = runs[-1]
        return {
            "ratios": [round(ratio, 3) for ratio in ratios],
            "ratio": round(statistics.median(ratios), 3),
            "seconds": [statistics.median(run[i]["seconds"] for run in runs) for i in range(2)],
            "rows_exact": all(_rows(run["measured"]) == _rows(before) for run in (mine, theirs)),
            "icesize": mine,
            "iceberg": theirs,
        }

    def _pair(self, strategy: str, first_ours: bool, last: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        results = {is_ours: self._run(strategy, is_ours, last) for is_ours in (first_ours, not first_ours)}
        return results[True], results[False]

    def _run(self, strategy: str, is_ours: bool, last: bool) -> dict[str, Any]:
        self.restore()
        peer = (self.table, _peer_of(strategy), self.target_bytes)
        if is_ours:
            done = icesize_child.cluster(self.table, ",".join(COLUMNS), strategy, self.target_bytes)
        else:
            done = cluster_peers.rewrite(*peer)
        if last:
            done["measured"] = self.measured()
        if last and not is_ours:
            done["again"] = cluster_peers.rewrite_again(*peer)
        return done

    def measured(self) -> dict[str, Any]:
        """Return the files and bytes that queries open in the current table, and the cost of some of them."""
        files, queries = read_files(self.table, COLUMNS), self.queries
        opened = {"point": _opened(files, "user_id", queries.points)}
        for percent, ranges in queries.ranges.items():
            best = optimum(files, self.times, ranges)
            found = _opened(files, "event_time", ranges)
            opened[f"range_{percent}"] = found | {
                "optimum": round(best, 2),
                "ratio": round(found["files"] / best, 3),
            }
        sizes = {"files": len(files.paths), "bytes": int(files.sizes.sum())}
        return sizes | {"opened": opened, "asked": cluster_peers.ask(self.table, queries)}


def _opened(files: Files, column: str, ranges: Integers) -> dict[str, float]:
    count, size_bytes = files.opened(column, ranges)
    return {"files": round(count, 2), "bytes": round(size_bytes)}


def _rows(measured: dict[str, Any]) -> tuple[int, str]:
    return measured["asked"]["rows"], measured["asked"]["checksum"]


def _lines(strategy: str, before: dict[str, Any], compared: dict[str, Any]) -> list[tuple[object, ...]]:
    mine, theirs = compared["icesize"], compared["iceberg"]
    states = [before, mine["measured"], theirs["measured"]]
    again = theirs["again"]
    seconds = (f"{value:.1f}" for value in compared["seconds"])
    factors = [before["opened"]["point"]["files"] / state["opened"]["point"]["files"] for state in states]
    wanted = ">= 10" if strategy == "sort" else "-"
    return [
        ("seconds, median", "-", *seconds, "-"),
        ("time, icesize / Iceberg", "-", f"{compared['ratio']:.2f}", f"pairs {compared['ratios']}", "<= 0.7"),
        ("files", *(state["files"] for state in states), "-"),
        ("MB", *(f"{state['bytes'] / 1e6:.1f}" for state in states), "-"),
        ("rows", *(state["asked"]["rows"] for state in states), "-"),
        ("rows exact", "-", *(_rows(state) == _rows(before) for state in states[1:]), "True"),
        *_query_lines("user_id =", "point", states),
        ("times fewer files, user_id =", *(f"{factor:.1f}" for factor in factors), wanted),
        *(line for percent in PERCENTS for line in _range_lines(strategy, percent, states)),
        ("second run: groups in our plan", "-", mine["second_plan_groups"], "-", "0"),
        ("second run: files rewritten", "-", mine["rewritten_again"], again["by_default"], "0"),
        ("... by the same options again", "-", mine["rewritten_again"], again["same_options"], "0"),
    ]


def _range_lines(strategy: str, percent: int, states: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    kind, name = f"range_{percent}", f"{percent} % of time"
    opened = [state["opened"][kind] for state in states]
    wanted = "<= 2" if strategy != "sort" and percent == PERCENTS[0] else "-"
    return [
        *_query_lines(name, kind, states),
        (f"optimum, sorted by it, {name}", *(found["optimum"] for found in opened), "-"),
        (f"files opened / optimum, {name}", *(f"{found['ratio']:.2f}" for found in opened), wanted),
    ]


def _query_lines(name: str, kind: str, states: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    opened, asked = ([state[what][kind] for state in states] for what in ("opened", "asked"))
    return [
        (f"files opened, {name}", *(found["files"] for found in opened), "-"),
        (f"MB of these files, {name}", *(f"{found['bytes'] / 1e6:.1f}" for found in opened), "-"),
        (f"MB read by Spark, {name}", *(f"{found['bytes_read'] / 1e6:.2f}" for found in asked), "-"),
        (f"seconds in Spark, {name}", *(f"{found['seconds']:.3f}" for found in asked), "-"),
    ]


def _strategies(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in STRATEGIES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(STRATEGIES)}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks cluster", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000, help="of the table")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--target-bytes", type=int, default=4 * 2**20)
    parser.add_argument("--strategies", type=_strategies, default=list(STRATEGIES), help="the stream takes the first")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--stream", action="store_true", help="beside a stream of one batch per second")
    parser.add_argument("--seconds", type=int, default=300, help="of the stream, and batches")
    parser.add_argument("--batch-rows", type=int, default=20_000, help="of each batch of the stream")
    parser.add_argument("--merge", choices=["inline", "async", "off"], default="inline", help="of the stream")
    parser.add_argument("--cores", type=int, default=2, help="of Spark in the stream")
    parser.add_argument("--json", action="store_true")
    return parser
