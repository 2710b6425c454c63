"""Events for the demo: each batch has a newest hour, and late rows for the hours before it."""

from __future__ import annotations

import datetime as dt
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

LATE_SHARE = 0.4
"""Share of the rows of a batch that belong to earlier hours."""
LATE_HOURS = 12
"""Hours by which rows are late at most; an hour of age `age` gets a share of them in proportion to 1 / age."""
PAYLOAD_BYTES = 40
"""Random bytes in each row, written as hexadecimal digits."""

_START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
_HOUR = dt.timedelta(hours=1)
_HOUR_US = 3_600_000_000
_KINDS = ("view", "click", "cart", "order")

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("event_time", pa.timestamp("us", tz="UTC")),
        ("hour", pa.string()),
        ("user_id", pa.int64()),
        ("kind", pa.string()),
        ("payload", pa.string()),
    ]
)


def batch(number: int, rows: int, seed: int = 7) -> pa.Table:
    """Return the rows of one batch; the same arguments return the same rows.

    Ids continue from batch to batch without a gap.
    """
    chance = random.Random(f"{seed}-{number}")  # noqa: S311 - not a secret
    newest = _START + (LATE_HOURS + number) * _HOUR
    ages = [0, *range(1, LATE_HOURS + 1)]
    late = [1 / age for age in ages[1:]]
    weights = [1 - LATE_SHARE, *(LATE_SHARE * w / sum(late) for w in late)]
    hours = [newest - age * _HOUR for age in ages]
    starts_us = [int(hour.timestamp()) * 1_000_000 for hour in hours]
    names = [hour.strftime("%Y-%m-%d-%H") for hour in hours]
    drawn = chance.choices(ages, weights, k=rows)
    columns = [
        pa.array(range(number * rows, (number + 1) * rows), pa.int64()),
        pa.array([starts_us[age] + int(chance.random() * _HOUR_US) for age in drawn], SCHEMA.field("event_time").type),
        pa.array([names[age] for age in drawn], pa.string()),
        pa.array([int(chance.paretovariate(0.5)) % 1_000_000 for _ in drawn], pa.int64()),
        pa.array(chance.choices(_KINDS, (80, 14, 4, 2), k=rows), pa.string()),
        pa.array([chance.randbytes(PAYLOAD_BYTES).hex() for _ in drawn], pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def write_files(directory: Path, numbers: range, rows: int) -> None:
    """Write one Parquet file per batch, with modification times in the order of the batches.

    Spark reads files in the order of these times.
    """
    directory.mkdir(parents=True)
    for number in numbers:
        path = directory / f"batch-{number:03}.parquet"
        pq.write_table(batch(number, rows), path)
        seconds = int(_START.timestamp()) + number
        os.utime(path, (seconds, seconds))
