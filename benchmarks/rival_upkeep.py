"""icesize's maintenance of the rivals' table, in a loop, in a process of its own without Spark.

    python -m benchmarks.rival_upkeep REST_URI --seconds 120 --checkpoint READER [--every 5] [--compact]

Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyiceberg.catalog.rest import RestCatalog

import icesize
from benchmarks.rival_jobs import NAME, OLD_AFTER_S, RETAINED
from benchmarks.rival_model import reason_of
from icesize.report import Report
from icesize.sized_table import SizedTable
from tests.support.children import run_child


class Rebases(logging.Handler):
    """Counts icesize's commits in this process that conflicted and were staged again."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "another writer came first" in record.getMessage()

    def listen(self) -> Rebases:
        """Start to read icesize's log; return self."""
        log = logging.getLogger("icesize")
        log.setLevel(logging.INFO)
        log.propagate = False
        log.addHandler(self)
        return self


def upkeep(uri: str, seconds: float, checkpoint: Path, every_seconds: float, compact: bool) -> dict[str, Any]:
    """Maintain the table for `seconds`; return the number of commits of each step that were `tried` and `landed`."""
    options = ["--seconds", str(seconds), "--checkpoint", str(checkpoint), "--every", str(every_seconds)]
    return run_child("benchmarks.rival_upkeep", uri, *options, *(["--compact"] if compact else []))


@dataclass
class Maintainer:
    """icesize's maintenance in a loop: commits tried and `landed` (committed) by step, reports, and failures."""

    table: SizedTable
    checkpoint: Path
    tried: Counter[str] = field(default_factory=Counter)
    landed: Counter[str] = field(default_factory=Counter)
    reports: list[Report] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    passes: int = 0

    def run_once(self, compact: bool) -> None:
        """Run `maintain`, then `compact` if requested, then an expiry with the rivals' limits."""
        self.passes += 1
        if (upkeep := self._call("maintain", self.table.maintain)) is not None:
            for report in upkeep.merges:
                self._merged(report)
            if upkeep.manifests and upkeep.manifests.snapshot_id:
                self._count("manifests", landed=True)
            for step, why in upkeep.failed.items():
                self._count(step, landed=False)
                self.failed[f"maintain, {step}: {reason_of(why)}"] += 1
        if compact and (report := self._call("compact", self.table.compact)) is not None:
            self._merged(report)
        if (expiry := self._call("expiry", self._expire)) is not None and expiry.snapshot_ids_expired:
            self._count("expiry", landed=True)

    def _expire(self) -> Any:
        age = timedelta(seconds=OLD_AFTER_S)
        return self.table.expire_snapshots(older_than=age, retain_last=RETAINED, readers=[str(self.checkpoint)])

    def _call(self, step: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except icesize.IcesizeError as error:
            self._count(step, landed=False)
            self.failed[f"{step}: {type(error).__name__}: {reason_of(str(error))}"] += 1
            return None

    def _merged(self, report: Report) -> None:
        self.reports.append(report)
        if report.snapshot_ids or report.conflicts:
            self._count("merges", landed=bool(report.snapshot_ids))

    def _count(self, step: str, landed: bool) -> None:
        self.tried[step] += 1
        self.landed[step] += landed


def _main(args: argparse.Namespace) -> dict[str, Any]:
    """Maintain for `--seconds`, then return the results."""
    rebases = Rebases().listen()
    catalog = RestCatalog("rest", uri=args.uri)
    ends = time.monotonic() + args.seconds
    work = Maintainer(icesize.open(None, NAME, catalog=catalog), args.checkpoint)
    while time.monotonic() < ends:
        work.run_once(args.compact)
        time.sleep(min(args.every, max(0.0, ends - time.monotonic())))
    catalog.close()
    return {
        "passes": work.passes,
        "steps_tried": work.tried,
        "steps_landed": work.landed,
        "failed": work.failed,
        "rebases": rebases.count,
        "reports": [report.to_dict() for report in work.reports],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rival_upkeep", description="Maintenance by icesize.")
    parser.add_argument("uri")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True, help="of the reader that expiry must not hurt")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two passes")
    parser.add_argument("--compact", action="store_true", help="also compact(), which merges contested partitions")
    return parser


if __name__ == "__main__":
    print(json.dumps(_main(_parser().parse_args())))
