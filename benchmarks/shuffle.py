"""Smart shuffle: files, skew and cost of appends, icesize against Iceberg's distributions, on the same rows.

    python -m benchmarks shuffle [--part a|b|c|d|e|all] [--batches 24] [--rows 1000000] [--tasks 4,60] [--pairs 1]
                                 [--statistics auto|recent|exact] [--engines icesize,hash] [--data DIR] [--json]

a: a smaller workload of the talk about Flink's smart shuffle: the newest hour of a batch is 180 target files. b: a
table partitioned by bucket(60, user_id), with the most tasks of --tasks, against `hash`. c: the assumed cost of closing
a file: 0, the default, 4 times that; hours by status, without merges. d: the talk's own size by arithmetic alone: 500
writers, 240 hours, 250 MB/s. e: 10,000 partitions in a batch, over the fewest of --tasks, icesize alone: the memory of
its workers.

icesize merges by default, and its time includes the merges, except in c. In Iceberg's runs,
`spark.sql.shuffle.partitions` is the number of tasks, `spark.sql.adaptive.coalescePartitions.enabled` is false, and the
rest of adaptive execution has Spark's defaults. With `none`, the rows are spread over the tasks first.

Runs alternate from pair to pair. Medians leave out the first two batches, in which a process warms up. On a local disk,
Iceberg starts a `chmod` process per file and checksum, which an object store does not need. The CPU time of these
processes has a line of its own; their wall time cannot be separated.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import peers, shuffle_child, simulation
from benchmarks.generate import generate
from benchmarks.show import finish
from icesize.policy import CLOSE_FILE_COST_BYTES
from tests.support.routing import file_floor

SEED = 7
NEWEST_SHARE = 0.6
NEWEST_FILES = 180
"""250 MB/s for ten minutes, 60 % of it in the newest hour, in files of 512 MiB: about 170; the talk says 180."""
WARM_UP = 2
DISTRIBUTIONS = ("hash", "none", "range")

Runs = Mapping[str, Sequence[dict[str, Any]]]
"""Results of each program, by pair."""


class Shown(NamedTuple):
    """A table for people, and the result that it shows."""

    result: dict[str, Any]
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True)
class Bench:
    """The options, a directory for warehouses, and the batches, which are made on first use."""

    args: argparse.Namespace
    root: Path

    def workload(self, partition: peers.Partition, tasks: int) -> shuffle_child.Workload:
        """Return the batches, with a target file size that fits theirs."""
        data = self.args.data or self.root / "data"
        made = generate(data, self.args.batches, self.args.rows, SEED)
        batch_bytes = statistics.mean(file["bytes"] for file in made["files"])
        target_bytes = round(NEWEST_SHARE * batch_bytes / NEWEST_FILES)
        return shuffle_child.Workload(data, self.root / "runs", target_bytes, self.args.batches, partition, tasks)

    def run(self, programs: Mapping[str, Callable[[], dict[str, Any]]]) -> Runs:
        """Run each program once per pair, every other pair in the opposite order."""
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in programs}
        for pair in range(self.args.pairs):
            for name in programs if pair % 2 == 0 else reversed(programs):
                runs[name].append(programs[name]())
        return runs

    def title(self, what: str, workload: shuffle_child.Workload) -> str:
        """Return a description of the run, in a line."""
        size = f"{self.args.batches} batches x {self.args.rows:,} rows, target {workload.target_bytes:,} bytes"
        return f"{what}, {workload.tasks} tasks, {size}"


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the parts and print their tables, or one JSON object."""
    args = _parser().parse_args(argv)
    parts = PARTS if args.part == "all" else {args.part: PARTS[args.part]}
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="icesize-shuffle-") as folder:
        bench = Bench(args, Path(folder))
        for name, part in parts.items():
            for shown in part(bench):
                results.append({"part": name} | shown.result)
                if not args.json:
                    finish(*shown, as_json=False)
    result = {"benchmark": "shuffle", "statistics": args.statistics, "results": results}
    return finish(result, "", (), (), as_json=True) if args.json else result


def _stream(bench: Bench) -> Iterator[Shown]:
    for tasks in bench.args.tasks:
        yield _against(bench, bench.workload("hour", tasks), bench.args.engines, "a: 192 hours")


def _buckets(bench: Bench) -> Iterator[Shown]:
    workload = bench.workload("user", max(bench.args.tasks))
    engines = [name for name in bench.args.engines if name in ("icesize", "hash")]
    yield _against(bench, workload, engines, f"b: bucket({peers.USER_BUCKETS}, user_id)")


def _closing(bench: Bench) -> Iterator[Shown]:
    costs = (0, CLOSE_FILE_COST_BYTES, 4 * CLOSE_FILE_COST_BYTES)
    sink = {"statistics": bench.args.statistics, "merge": "off"}
    for tasks in bench.args.tasks:
        workload = bench.workload("hour_status", tasks)
        options = sink | {"write_tasks": tasks}
        programs = {
            f"{cost // 1024} KiB": partial(
                shuffle_child.write_by_icesize, workload, options, {"close-file-cost-bytes": cost}
            )
            for cost in costs
        }
        yield _shown(bench, workload, bench.run(programs), "c: cost of closing a file, hours by status, no merges")


def _simulated(bench: Bench) -> Iterator[Shown]:
    found = simulation.simulate(simulation.hour_weights())
    rows = [
        (f"files per batch (floor {found.floor:,})", *(f"{files:,}" for files in found.files.values())),
        ("files / floor", *(f"{files / found.floor:.2f}" for files in found.files.values())),
        ("bytes of writers, max / mean", *(f"{skew:.2f}" for skew in found.skew.values())),
    ]
    title = f"d: {simulation.WRITERS} writers, {simulation.HOURS} hours, {simulation.BATCH_BYTES / 1e9:.0f} GB a batch"
    yield Shown(asdict(found), title, ("", *found.files), rows)


def _many(bench: Bench) -> Iterator[Shown]:
    yield _against(
        bench, bench.workload("id", min(bench.args.tasks)), ["icesize"], f"e: bucket({peers.ID_BUCKETS}, id)"
    )


PARTS: dict[str, Callable[[Bench], Iterator[Shown]]] = {
    "a": _stream, "b": _buckets, "c": _closing, "d": _simulated, "e": _many,
}  # fmt: skip


def _against(bench: Bench, workload: shuffle_child.Workload, engines: Sequence[str], what: str) -> Shown:
    sink = {"statistics": bench.args.statistics, "write_tasks": workload.tasks}
    programs = {"icesize": partial(shuffle_child.write_by_icesize, workload, sink, {})}
    programs |= {name: partial(shuffle_child.iceberg, workload, name) for name in DISTRIBUTIONS}
    return _shown(bench, workload, bench.run({name: programs[name] for name in engines}), what)


def _shown(bench: Bench, workload: shuffle_child.Workload, runs: Runs, what: str) -> Shown:
    floor = statistics.median(
        file_floor(weights, workload.tasks, workload.target_bytes)
        for weights in shuffle_child.partition_weights(workload)[_warm(workload.batches) :]
    )
    figures = {name: _figures(of_pairs, bench.args.batches * bench.args.rows) for name, of_pairs in runs.items()}
    result = {
        "tasks": workload.tasks,
        "target_bytes": workload.target_bytes,
        "floor": floor,
        "figures": figures,
        "ratios": _ratios(runs),
    }
    rows = [(label.format(floor=floor), *(of[key] for of in figures.values())) for label, key in _LABELS.items()]
    rows.insert(1, ("files / floor", *(f"{of['files'] / floor:.2f}" for of in figures.values())))
    for what_of, ratios in result["ratios"].items():
        rows.append((f"{what_of}, icesize / hash", f"{statistics.median(ratios):.2f}", f"pairs {ratios}"))
    return Shown(result, bench.title(what, workload), ("", *figures), rows)


_LABELS = {
    "files per batch (floor {floor:g})": "files",
    "files under 100 KB": "tiny_files",
    "files under half of the target": "files_under_half",
    "writers with rows": "writers",
    "bytes of writers, max / mean": "bytes_skew",
    "files of writers, max / mean": "files_skew",
    "seconds of a batch, median": "median_seconds",
    "seconds of all batches": "total_seconds",
    "CPU seconds of a batch, median": "median_cpu_seconds",
    "of which processes the JVM started": "median_jvm_children_cpu_seconds",
    "CPU seconds of all batches": "total_cpu_seconds",
    "peak memory of a Python worker, MiB": "worker_peak_mib",
    "PUTs, objects made": "puts",
    "GETs of metadata, files read": "metadata_reads",
    "GETs of data, files that merges read": "data_reads",
    "rows exact": "rows_exact",
}


def _figures(runs: Sequence[dict[str, Any]], rows: int) -> dict[str, Any]:
    """Return the figures of a program: times as medians over pairs, file counts and skews as medians over batches.

    Only the last pair counts for all figures except times.
    """
    newest = runs[-1]
    appends = newest["appends"][_warm(len(newest["appends"])) :]
    keys = ("files", "tiny_files", "files_under_half", "writers", "bytes_skew", "files_skew")
    return {
        **{key: round(statistics.median(append[key] for append in appends), 2) for key in keys},
        **{f"median_{key}": round(statistics.median(_median(run[key]) for run in runs), 2) for key in _TIMES},
        **{f"total_{key}": round(statistics.median(sum(run[key]) for run in runs), 1) for key in _TIMES},
        **{key: newest[key] for key in ("worker_peak_mib", "puts", "metadata_reads", "data_reads")},
        "phases": newest.get("phases"),
        "rows_exact": all(run["rows"] == rows for run in runs),
    }


_TIMES = ("seconds", "cpu_seconds", "jvm_children_cpu_seconds")


def _ratios(runs: Runs) -> dict[str, list[float]]:
    """Return ratios by pair; none if one of the two programs did not run."""
    pairs = list(zip(runs.get("icesize", ()), runs.get("hash", ()), strict=False))
    if not pairs:
        return {}
    return {
        "seconds": [round(_median(a["seconds"]) / _median(b["seconds"]), 2) for a, b in pairs],
        "CPU seconds": [round(_median(a["cpu_seconds"]) / _median(b["cpu_seconds"]), 2) for a, b in pairs],
        "the same without what the JVM started": [round(_own_cpu(a) / _own_cpu(b), 2) for a, b in pairs],
    }


def _own_cpu(run: dict[str, Any]) -> float:
    both = zip(run["cpu_seconds"], run["jvm_children_cpu_seconds"], strict=True)
    return _median([seconds - of_children for seconds, of_children in both])


def _median(values: Sequence[float]) -> float:
    return statistics.median(values[_warm(len(values)) :])


def _warm(batches: int) -> int:
    """Return the number of batches that are left out."""
    return WARM_UP if batches > WARM_UP else 0


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _engines(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - {"icesize", *DISTRIBUTIONS}:
        raise argparse.ArgumentTypeError(f"no such engine: {', '.join(sorted(unknown))}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks shuffle", description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=[*PARTS, "all"], default="all")
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--tasks", type=_numbers, default=[4, 60], help="numbers of writers, by commas")
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--statistics", choices=["auto", "recent", "exact"], default="auto")
    parser.add_argument(
        "--engines", type=_engines, default=["icesize", *DISTRIBUTIONS], help="which of icesize,hash,none,range"
    )
    parser.add_argument("--data", type=Path, default=None, help="where the batches are kept; default: made anew")
    parser.add_argument("--json", action="store_true")
    return parser
