"""The rows to cluster: the benchmarks' events, streamed to disk, and queries drawn from them (needs numpy)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.late_events import HOURS, batch

SEED = 7
DRAWN = 200
"""Queries of each kind, of which the mean is taken."""

Integers = np.ndarray[Any, np.dtype[np.int64]]


class Queries(NamedTuple):
    """Ranges of a column, both ends inclusive, shape [queries, 2]; a point is a range of one value."""

    points: Integers
    ranges: dict[int, Integers]


def write_batches(folder: Path, batches: int, rows: int) -> list[Path]:
    """Write `batches` batches of `rows` rows each, with unique ids; after `HOURS` batches, time begins again.

    With `HOURS` batches, rows are spread over all hours about evenly.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        return list(pool.map(partial(_write, folder, rows), range(batches)))


def _write(folder: Path, rows: int, number: int) -> Path:
    turn, i = divmod(number, HOURS)
    events = batch(i, rows, HOURS, SEED + turn)
    ids = pa.array(np.arange(rows, dtype=np.int64) + number * rows)
    path = folder / f"batch_{number:03d}.parquet"
    pq.write_table(events.set_column(0, "id", ids), path, compression="zstd")
    return path


def distinct_users(paths: Sequence[Path]) -> Integers:
    """Return each value of `user_id` once, sorted."""
    return np.unique(np.concatenate([np.unique(integers(path, "user_id")) for path in paths]))


def integers(path: Path | str, column: str) -> Integers:
    """Return a column of a file as whole numbers, times in microseconds."""
    values = pq.read_table(path, columns=[column], partitioning=None)[column]
    return np.asarray(values.cast(pa.int64()))


def drawn_points(values: Integers, count: int = DRAWN) -> Integers:
    """Return some of these values as ranges of one value, each as likely as any other; the same at each call."""
    chosen = np.random.default_rng(SEED).choice(values, min(count, len(values)), replace=False)
    return np.stack([chosen, chosen], axis=1)


def drawn_ranges(first: int, last: int, percent: int, count: int = DRAWN) -> Integers:
    """Return ranges of `percent` of the span, with random starts inside it; the same at each call."""
    width = (last - first) * percent // 100
    starts = np.random.default_rng([SEED, percent]).integers(first, last - width, count, endpoint=True)
    return np.stack([starts, starts + width], axis=1)
