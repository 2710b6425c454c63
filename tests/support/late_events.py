"""Micro-batches of events with a long tail of late rows (needs numpy).

192 hourly partitions `h000`..`h191`. The newest hour moves by one per batch and gets 60 % of its rows; an hour that
is `age` hours older gets a share of the rest in proportion to 1 / (age + 1) ** 1.2. The same arguments give the same
rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

HOURS = 192
STATUSES = ("ok", "retry", "late", "void", "error")
_STATUS_SHARES = (0.80, 0.10, 0.06, 0.03, 0.01)
_START_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z, the start of h000
_HOUR_US = 3_600_000_000
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_TEMPLATES, _TEMPLATE_BYTES, _PAYLOAD_BYTES = 64, 40, 80


def batch(i: int, rows: int = 50_000, batches: int = 24, seed: int = 7) -> pa.Table:
    """Rows of batch `i` of `batches`: id, event_time (us, UTC), hour, user_id, amount, status, payload (80 hex digits).

    Raises `ValueError` unless 0 <= i < batches <= 192.
    """
    if not 0 <= i < batches <= HOURS:
        raise ValueError(f"'i' ({i}) must be >= 0 and < 'batches' ({batches}), which must be <= {HOURS}")
    random = np.random.default_rng([seed, i])
    newest = newest_hour(i, batches)
    # The order of the draws is part of the workload: another order gives other rows.
    hour = newest - random.choice(newest + 1, size=rows, p=hour_shares(newest))
    event_us = _START_US + hour * _HOUR_US + random.integers(0, _HOUR_US, rows)
    user = np.minimum(random.zipf(1.3, rows), 1_000_000).astype(np.int64)
    amount = np.round(random.lognormal(3.0, 1.0, rows), 2)
    status = random.choice(len(STATUSES), size=rows, p=_STATUS_SHARES)
    payload = _payload(random, rows, seed)
    return pa.table(
        {
            "id": pa.array(np.arange(rows, dtype=np.int64) + i * rows),
            "event_time": pa.array(event_us).cast(pa.timestamp("us", tz="UTC")),
            "hour": pa.array([f"h{value:03d}" for value in hour], pa.string()),
            "user_id": pa.array(user),
            "amount": pa.array(amount),
            "status": pa.array([STATUSES[value] for value in status], pa.string()),
            "payload": payload,
        }
    )


def newest_hour(i: int, batches: int) -> int:
    """The hour with most rows of batch `i`; that of the last batch is 191."""
    return HOURS - batches + i


def hour_shares(newest: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Share of the rows by age in hours, 0 first."""
    if newest == 0:
        return np.ones(1)
    weights = 1.0 / (np.arange(1, newest + 1) + 1.0) ** 1.2
    return np.concatenate([[0.6], 0.4 * weights / weights.sum()])


def _payload(random: np.random.Generator, rows: int, seed: int) -> pa.StringArray:
    """Half a template that repeats, half random: compresses as event payloads do, about two to one."""
    templates = _HEX[np.random.default_rng(seed).integers(0, 16, (_TEMPLATES, _TEMPLATE_BYTES))]
    digits = np.empty((rows, _PAYLOAD_BYTES), dtype=np.uint8)
    digits[:, :_TEMPLATE_BYTES] = templates[random.integers(0, _TEMPLATES, rows)]
    digits[:, _TEMPLATE_BYTES:] = _HEX[random.integers(0, 16, (rows, _PAYLOAD_BYTES - _TEMPLATE_BYTES))]
    offsets = np.arange(rows + 1, dtype=np.int32) * _PAYLOAD_BYTES
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets.tobytes()), pa.py_buffer(digits.tobytes()))
