"""A stream into a table: icesize with its merges against Iceberg's own append without any, on the same rows.

    python -m benchmarks stream [--pairs N] [--batches N] [--rows N] [--partition hour|day|none] [--streaming] [--json]
    python -m benchmarks stream --placement absorb --k 1 [--no-stream-safe]
    python -m benchmarks stream --merge async [--every SECONDS]
    python -m benchmarks stream --against decoding
    python -m benchmarks stream --profile FOLDER [--rows N] [--streaming]

Pairs alternate in the same run, each program in a process of its own; the ratio is the median over pairs of icesize /
Iceberg. With merges beside the batches (`--merge async`), a pair has a third run, of icesize without merges. `--against
decoding` compares with icesize itself, set to decode and encode all merged rows instead of copying.

`--profile` compares nothing; it shows the time of each step of a batch. One run uses the phases of its reports. Two
more runs, slower for it, take samples, and leave a flame graph and folded stacks in the directory.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import icesize_child, peers, profiled
from benchmarks.generate import generate
from benchmarks.show import finish

SEED = 7
TARGET_BYTES = 4_000_000
_PEERS = {"append": "Iceberg append", "decoding": "icesize decode-only"}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the pairs and print a table, or JSON."""
    args = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="icesize-stream-") as folder:
        root = Path(folder)
        generate(root / "data", args.batches, args.rows, SEED)
        if args.profile is not None:
            return _profile(root, args)
        runs = [_runs(root, args, first_ours=n % 2 == 0) for n in range(args.pairs)]
    result = _compared(runs, args)
    title = f"{'streaming query' if args.streaming else 'stream'}, partitioned by {args.partition}"
    if args.placement != "append" or args.merge != "inline":
        title += f", {'overwrite' if args.no_stream_safe else args.placement}, merge {args.merge}"
    finish(result, title, ("", "icesize", _PEERS[args.against]), _lines(result, args), args.json)
    return result


def _profile(root: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Run once without samples, once for the flame graph, and once for the steps."""
    folder, name = args.profile.resolve(), "streaming" if args.streaming else "stream"
    folder.mkdir(parents=True, exist_ok=True)
    graph, folded = (profiled.sampling(folder, name, as_folded=choice) for choice in (False, True))
    plain = _ours(root, args, _sink(args))
    _ours(root, args, _sink(args), graph)
    _ours(root, args, _sink(args), folded)
    in_order = sorted(plain["median_phases"].items(), key=lambda phase: phase[0] == "total")
    phases = {phase: round(1000 * seconds, 1) for phase, seconds in in_order}
    with (folder / f"{name}.folded").open() as lines:
        steps = profiled.steps(lines, args.batches)
    result = {"benchmark": "stream profile", "batches": args.batches, "rows_per_batch": args.rows, "phases": phases}
    result |= {"steps": steps, "files": [f"{folder / name}.{ending}" for ending in ("svg", "folded")]}
    lines_of = [("median of the reports", phase, value) for phase, value in phases.items()]
    lines_of += [(f"mean of samples: {who}", *line) for who, found in steps.items() for line in found.items()]
    title = f"where a batch of {args.rows:,} rows spends its milliseconds; {' and '.join(result['files'])}"
    return finish(result, title, ("", "", "ms"), lines_of, args.json)


def _compared(runs: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    ratios = [sum(run["icesize"]["seconds"]) / sum(run["peer"]["seconds"]) for run in runs]
    given = args.batches * args.rows
    result = {
        "benchmark": "stream",
        "partition": args.partition,
        "streaming": args.streaming,
        "placement": args.placement,
        "stream_safe": not args.no_stream_safe,
        "merge": args.merge,
        "against": args.against,
        "batches": args.batches,
        "rows_per_batch": args.rows,
        "ratios": [round(r, 3) for r in ratios],
        "ratio": round(statistics.median(ratios), 3),
        "rows_exact": all(r["icesize"]["rows"] == given + r["icesize"].get("further_batches", 0) for r in runs),
        "icesize": runs[-1]["icesize"],
        "peer": runs[-1]["peer"],
    }
    if args.merge == "async":
        beside = [_percentile(run["icesize"], 95) / _percentile(run["off"], 95) for run in runs]
        result |= {"without_merges": runs[-1]["off"], "p95_ratios": [round(r, 3) for r in beside]}
        result["p95_ratio"] = round(statistics.median(beside), 3)
    if args.commits:
        result["commit_growth"] = _commit_growth(result["icesize"]["commit_seconds"])
    return result


def _lines(result: dict[str, Any], args: argparse.Namespace) -> list[tuple[object, ...]]:
    newest, peer = result["icesize"], result["peer"]
    lines: list[tuple[object, ...]] = [
        ("total seconds", f"{sum(newest['seconds']):.1f}", f"{sum(peer['seconds']):.1f}"),
        ("median batch, seconds", _median(newest), _median(peer)),
        ("95th percentile, seconds", f"{_percentile(newest, 95):.2f}", f"{_percentile(peer, 95):.2f}"),
        ("files at the end", newest["files"], peer["files"]),
        ("MB decoded per MB ingested", *(_per_ingested(run, "bytes_decoded") for run in (newest, peer))),
        ("MB copied per MB ingested", *(_per_ingested(run, "bytes_copied") for run in (newest, peer))),
        ("most small files after any batch", max(newest["small_files_max"]), "-"),
        ("most small files after each batch", " ".join(map(str, newest["small_files_max"])), "-"),
        ("most files in a partition", newest["files_per_partition_max"], peer["files_per_partition_max"]),
        ("write amplification", newest["write_amplification"], peer["write_amplification"]),
        ("MB written", _megabytes(newest), _megabytes(peer)),
        ("MB written / MB live at the end", _per_live(newest), _per_live(peer)),
        ("batches that dropped merges", newest["dropped_merges"], "-"),
        ("rows", newest["rows"], peer["rows"]),
        ("rows exact", result["rows_exact"], "-"),
        (f"time, icesize / {_PEERS[args.against]}", f"{result['ratio']:.2f}", f"pairs {result['ratios']}"),
    ]
    if args.merge == "async":
        off = result["without_merges"]
        lines += [
            ("95th percentile without merges, seconds", f"{_percentile(off, 95):.2f}", "-"),
            ("95th percentile, async / off", f"{result['p95_ratio']:.2f}", f"pairs {result['p95_ratios']}"),
            ("batches of one row after the load until k", newest["further_batches"], "-"),
            ("most small files after them", newest["small_files_after_them"], "-"),
            ("seconds to drain", newest["drain_seconds"], "-"),
            ("most small files after that", newest["small_files_after_drain"], "-"),
        ]
    if args.commits:
        lines.append(("commit seconds, late / early batches", f"{result['commit_growth']:.2f}", "-"))
    return lines


def _runs(root: Path, args: argparse.Namespace, first_ours: bool) -> dict[str, Any]:
    sink = _sink(args)
    programs: dict[str, Callable[[], dict[str, Any]]] = {"icesize": lambda: _ours(root, args, sink)}
    if args.merge == "async":
        programs["off"] = lambda: _ours(root, args, sink | {"merge": "off"})
    if args.against == "decoding":
        programs["peer"] = lambda: _ours(root, args, sink, merge_by_copying=False)
    elif not args.only_ours:
        programs["peer"] = lambda: peers.iceberg_stream(root / "data", root / "peer", "hash", *_workload(args))
    done = {name: programs[name]() for name in (programs if first_ours else reversed(programs))}
    return {"peer": done["icesize"]} | done


def _workload(args: argparse.Namespace) -> tuple[Any, ...]:
    return TARGET_BYTES, args.batches, args.partition, args.streaming


def _sink(args: argparse.Namespace) -> dict[str, Any]:
    return {"placement": args.placement, "stream_safe": not args.no_stream_safe, "merge": args.merge}


def _ours(
    root: Path, args: argparse.Namespace, sink: dict[str, Any], under: Sequence[str] = (), **policy: bool
) -> dict[str, Any]:
    keys = {"cold-after-commits": args.cold_after, "max-small-files": args.k}
    chosen: dict[str, int | bool] = {key: value for key, value in keys.items() if value is not None}
    chosen |= {key.replace("_", "-"): value for key, value in policy.items()}
    data, how = root / "data", {"every_seconds": args.every, "under": under}
    return icesize_child.stream(data, root / "ours", *_workload(args), policy=chosen, sink=sink, **how)


def _median(result: dict[str, Any]) -> str:
    return f"{statistics.median(result['seconds'][2:] or result['seconds']):.2f}"


def _megabytes(result: dict[str, Any]) -> str:
    return f"{result['written_bytes'] / 1e6:.1f}"


def _per_live(result: dict[str, Any]) -> str:
    """Return the MB written per live MB, which means the same for all programs.

    Write amplification counts new rows with the size of their first write instead.
    """
    return f"{result['written_bytes'] / result['live_bytes']:.2f}"


def _per_ingested(result: dict[str, Any], way: str) -> str:
    """Return the bytes of a method per byte ingested; Iceberg's append merges nothing.

    New rows have the size of their first write.
    """
    return f"{result['bytes'][way] / result['bytes']['bytes_ingested']:.3f}" if "bytes" in result else "-"


def _percentile(result: dict[str, Any], percent: int) -> float:
    """Return a percentile of the batches after the first two, in which a process warms up."""
    seconds: list[float] = result["seconds"][2:] or result["seconds"]
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1] if len(seconds) > 1 else seconds[0]


def _commit_growth(seconds: list[float]) -> float:
    """Return the median commit time of batches 170-190 over that of batches 15-25 in a run of 192."""
    return statistics.median(seconds[170:191]) / statistics.median(seconds[15:26])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks stream", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--against", choices=sorted(_PEERS), default="append", help="the peer: Iceberg's, or our own")
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--partition", choices=["hour", "day", "none"], default="hour")
    parser.add_argument("--streaming", action="store_true", help="through a real streaming query, not read by read")
    parser.add_argument("--placement", choices=["append", "absorb"], default="append")
    parser.add_argument("--no-stream-safe", action="store_true", help="absorb by overwrites, rows written once")
    parser.add_argument("--merge", choices=["inline", "async", "off"], default="inline")
    parser.add_argument("--k", type=int, default=None, help="max-small-files of the policy")
    parser.add_argument("--every", type=float, default=0.0, help="seconds between the beginnings of our batches")
    parser.add_argument("--cold-after", type=int, default=None, help="cold-after-commits of the policy")
    parser.add_argument("--only-ours", action="store_true", help="without the peer: every ratio is 1")
    parser.add_argument("--commits", action="store_true", help="how commit time grows (needs 192 batches)")
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help="where the time of a batch goes (needs py-spy)")
    parser.add_argument("--json", action="store_true")
    return parser
