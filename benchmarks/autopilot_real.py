"""The autopilot's simulation against Spark: bytes, files and seconds of three streams under other settings.

    python -m benchmarks autopilot_real [--batches 60] [--rows 20000] [--json]

Each stream runs twice. From the history of the first run, under the `BASE` settings, the simulation predicts what the
second run comes to, under other settings: bytes written, data files at the end, seconds of the batches, and seconds of
ten scans between them. Seconds are predicted from the counts of the simulation, with the costs per batch, per rewritten
file and byte, and per scanned file and byte that fit the first run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import icesize
from benchmarks import peers
from benchmarks.show import finish
from benchmarks.snapshots import create_table
from icesize.planning.merging.simulation import Batch, ReplayedTable, spec_of
from icesize.policy import MIB, SizePolicy
from icesize.report import Report
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.partition_changes import recent_appends
from tests.support.late_events import batch

BASE = SizePolicy(target_file_size_bytes=4 * MIB, max_small_files=6)
SCANS = 10
Hours = Callable[[int, int], list[str]]
"""Returns the partitions of the rows of a batch, from its number and the number of rows."""


def _one(number: int, rows: int) -> list[str]:
    return ["all"] * rows


def _moving(number: int, rows: int) -> list[str]:
    return [f"h{max(0, number // 12 - (row % 20 == 0)):03}" for row in range(rows)]


def _skewed(number: int, rows: int) -> list[str]:
    shares = np.random.default_rng(number).zipf(1.7, rows) % 8
    return [f"t{share}" for share in shares.tolist()]


STREAMS: Mapping[str, tuple[Hours, SizePolicy]] = {
    "one partition": (_one, SizePolicy(target_file_size_bytes=4 * MIB, max_small_files=16)),
    "a partition for 12 batches": (_moving, SizePolicy(target_file_size_bytes=4 * MIB, max_small_files=2)),
    "8 partitions, skewed": (_skewed, SizePolicy(target_file_size_bytes=1 * MIB, max_small_files=4)),
}
"""The partitions of each stream, and the settings of its second run."""


@dataclass(frozen=True)
class Seen:
    """A run, real or simulated: per batch rewritten files and bytes and seconds, per scan files, bytes and seconds."""

    written_bytes: float
    files: float
    rewrites: NDArray[np.float64]
    scans: NDArray[np.float64]
    batch_seconds: NDArray[np.float64]
    scan_seconds: NDArray[np.float64]

    @property
    def seconds(self) -> float:
        """Seconds of all batches and scans."""
        return float(self.batch_seconds.sum() + self.scan_seconds.sum())


def really(spark: Any, warehouse: Path, hours: Hours, policy: SizePolicy, sizes: tuple[int, int]) -> tuple[Seen, Any]:
    """Run a stream; return what was seen, and the table."""
    catalog = peers.catalog(peers.emptied(warehouse))
    create_table(catalog, warehouse)
    reports, seconds, scans = list[Report](), list[float](), list[tuple[int, int, float]]()
    sized = icesize.open(spark, "db.t", catalog=catalog, policy=policy)
    sink = sized.sink("stream", query_id="stream", listener=reports.append)
    batches, rows = sizes
    for number in range(batches):
        frame = spark.createDataFrame(_rows(number, rows, batches, hours))
        began = time.perf_counter()
        sink(frame, number)
        seconds.append(time.perf_counter() - began)
        if number % (batches // SCANS) == 0:
            scans.append(_scanned(catalog))
    files = catalog.load_table("db.t").inspect.files().num_rows
    rewrites = [(r.files_removed, r.bytes_written - r.bytes_ingested) for r in reports]
    seen = Seen(
        sum(r.bytes_written for r in reports), files, np.array(rewrites, float),
        np.array([scan[:2] for scan in scans], float), np.array(seconds), np.array([scan[2] for scan in scans]),
    )  # fmt: skip
    return seen, catalog.load_table("db.t")


def _rows(number: int, rows: int, batches: int, hours: Hours) -> pa.Table:
    events = batch(number, rows=rows, batches=batches)
    return events.set_column(events.schema.get_field_index("hour"), "hour", pa.array(hours(number, rows)))


def _scanned(catalog: Any) -> tuple[int, int, float]:
    """Return files, bytes, and the least of three times of reading one column of all files."""
    paths = [task.file for task in catalog.load_table("db.t").scan().plan_files()]
    names = [file.file_path.removeprefix("file://") for file in paths]

    def once() -> float:
        began = time.perf_counter()
        for name in names:
            pq.ParquetFile(name).read(use_threads=False)
        return time.perf_counter() - began

    return len(paths), sum(file.file_size_in_bytes for file in paths), min(once() for _ in range(3))


def simulated(batches: Sequence[Batch], policy: SizePolicy, base: Seen) -> Seen:
    """Return what a run under another policy comes to, with the costs that fit the run `base`."""
    table, rewrites, scans = ReplayedTable(policy, spec_of(batches)), list[tuple[int, int]](), list[tuple[int, int]]()
    for number, arrived in enumerate(batches):
        planned = table.plan(arrived)
        table.apply(planned.changes)
        inputs = sum(len(merge.inputs) for merge in planned.merges)
        rewrites.append((inputs, sum(merge.written_bytes for merge in planned.merges)))
        if number % (len(batches) // SCANS) == 0:
            scans.append((table.layout.files, table.layout.size_bytes))
    ingested = sum(sum(arrived.values()) for arrived in batches)
    counts, scanned = np.array(rewrites, float), np.array(scans, float)
    return Seen(
        ingested + float(counts[:, 1].sum()), table.layout.files, counts, scanned,
        _fitted(base.rewrites, base.batch_seconds, counts), _fitted(base.scans, base.scan_seconds, scanned),
    )  # fmt: skip


def _fitted(counts: NDArray[np.float64], seconds: NDArray[np.float64], wanted: NDArray[np.float64]) -> Any:
    """Return the seconds for other counts, by the costs (none below 0) that fit some known ones best."""
    known = np.column_stack([np.ones(len(counts)), counts])
    # the first batch starts Spark's workers
    kept, times = known[1:], seconds[1:]
    columns = list(range(known.shape[1]))
    while True:
        costs, *_ = np.linalg.lstsq(kept[:, columns], times, rcond=None)
        if (costs >= 0).all() or len(columns) == 1:
            break
        columns.pop(int(np.argmin(costs * kept[:, columns].mean(axis=0))))
    predicted = np.column_stack([np.ones(len(wanted)), wanted])[:, columns] @ costs
    predicted[0] += max(0.0, seconds[0] - float(known[0, columns] @ costs))
    return predicted


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the streams, print a table or JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks autopilot_real", description=(__doc__ or "")[:90])
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    streams, sizes = dict[str, Any](), (args.batches, args.rows)
    with tempfile.TemporaryDirectory(prefix="icesize-autopilot-") as folder:
        spark = peers.session(Path(folder))
        really(spark, Path(folder), _one, BASE, (SCANS, args.rows))  # warms up
        for name, (hours, policy) in STREAMS.items():
            base, table = really(spark, Path(folder), hours, BASE, sizes)
            appends = recent_appends(table.metadata, table.io, ManifestStore(), args.batches)
            arrived = [{key: seen.size_bytes for key, seen in append.partitions.items()} for append in appends]
            streams[name] = _compared(
                simulated(arrived, policy, base), really(spark, Path(folder), hours, policy, sizes)[0]
            )
        spark.stop()
    rows = [
        (name, what, f"{one[what]['simulated']:,.1f}", f"{one[what]['real']:,.1f}", f"{one[what]['ratio']:.3f}")
        for name, one in streams.items()
        for what in one
    ]
    title = f"{args.batches} batches of {args.rows:,} rows: simulation / Spark (0.85 - 1.15)"
    return finish(
        {"benchmark": "autopilot_real", "streams": streams}, title, ("stream", "", "simulated", "real", "ratio"), rows,
        args.json,
    )  # fmt: skip


def _compared(then: Seen, real: Seen) -> dict[str, dict[str, float]]:
    pairs = {
        "MB written": (then.written_bytes / 1e6, real.written_bytes / 1e6), "files": (then.files, real.files),
        "seconds": (then.seconds, real.seconds),
        "seconds of scans": (float(then.scan_seconds.sum()), float(real.scan_seconds.sum())),
    }  # fmt: skip
    return {name: {"simulated": s, "real": r, "ratio": round(s / r, 4)} for name, (s, r) in pairs.items()}
