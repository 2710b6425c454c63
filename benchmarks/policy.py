"""Distance of `choose_prefix` from the optimal merge schedule, with and without merges that a budget postpones."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.progress import track
from rich.table import Table

from icesize.planning.merging.chosen_files import choose_prefix
from tests.support.merge_optimum import Deferral, Workload, equal_batches, optima, workloads
from tests.support.one_partition import simulate

_SMALLEST, _LARGEST = 17, 384


class Ratio(NamedTuple):
    """Write amplification of the policy over the optimum, on one workload."""

    workload: str
    n: int
    ratio: float
    most_small_files: int


def main(argv: list[str] | None = None) -> dict[str, object]:
    """Run the equal workloads for all n = 17..384 and the random ones; print a table, or with --json JSON only."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks policy", description=__doc__)
    parser.add_argument("--slots", type=int, nargs="+", default=[4, 6, 8], help="small files that may remain")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth number of equal batches")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    options = parser.parse_args(argv)
    best = optima(_LARGEST, max(options.slots))
    console = Console(quiet=options.json)
    equal = [equal_batches(n) for n in range(_SMALLEST, _LARGEST + 1, options.every)]
    given = list(workloads())
    rows = [
        row
        for slots in track(options.slots, "slots", console=console, disable=options.json, transient=True)
        for row in _rows(slots, best[slots], equal, given)
    ]
    result: dict[str, object] = {"benchmark": "policy", "rows": rows}
    if options.json:
        print(json.dumps(result))
    else:
        console.print(_table(rows))
    return result


def measure(workload: Workload, slots: int, best: Sequence[float], deferral: Deferral | None = None) -> Ratio:
    """Run `choose_prefix` over a workload; `best[n]` is the optimum for n files per finished file."""
    outcome = simulate(
        lambda small: choose_prefix(small, workload.limit, slots), workload.sizes, workload.limit, deferral
    )
    n = workload.files_per_finished
    return Ratio(workload.name, n, outcome.write_amplification / best[n], outcome.most_small_files)


def _rows(
    slots: int, best: Sequence[float], equal: Iterable[Workload], given: Iterable[Workload]
) -> Iterable[dict[str, object]]:
    for name, chosen in (("equal batches", list(equal)), ("workloads", list(given))):
        for deferring in (False, True):
            start = time.perf_counter()
            ratios = [measure(workload, slots, best, Deferral() if deferring else None) for workload in chosen]
            seconds = time.perf_counter() - start
            arrivals = sum(len(workload.sizes) for workload in chosen)
            yield _row(name, slots, deferring, ratios, 1e6 * seconds / arrivals)


def _row(name: str, slots: int, deferring: bool, ratios: list[Ratio], us_per_arrival: float) -> dict[str, object]:
    worst = max(ratios, key=lambda ratio: ratio.ratio)
    return {
        "workloads": name,
        "slots": slots,
        "deferred_merges": deferring,
        "mean_ratio": round(sum(ratio.ratio for ratio in ratios) / len(ratios), 3),
        "worst_ratio": round(worst.ratio, 3),
        "worst_n": worst.n,
        "worst_workload": worst.workload,
        "most_small_files": max(ratio.most_small_files for ratio in ratios),
        "us_per_arrival": round(us_per_arrival, 1),
    }


def _table(rows: list[dict[str, object]]) -> Table:
    table = Table(title="choose_prefix: write amplification over the optimum")
    columns = {
        "workloads": "workloads",
        "slots": "slots",
        "deferred_merges": "merges put off",
        "mean_ratio": "mean",
        "worst_ratio": "worst",
        "worst_workload": "at",
        "most_small_files": "most small files",
        "us_per_arrival": "µs per arrival",
    }
    for title in columns.values():
        table.add_column(title)
    for row in rows:
        table.add_row(*(str(row[key]) for key in columns))
    return table
