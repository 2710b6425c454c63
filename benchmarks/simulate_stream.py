"""The batches of a stream into daily partitions: which partitions each batch writes to, and how much."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from icesize.planning.files import PartitionKey
from icesize.planning.merging.simulation import BatchSizes

MOST_DAYS_LATE = 10
_SPREAD = 0.5
"""Standard deviation of the logarithm of sizes."""
_LATE_SHARE = 0.1
"""Size of what is late for a partition / size of what is on time."""


@dataclass(frozen=True)
class Stream:
    """A stream into as many `partitions` each day as it has tenants; the values of a partition are day and tenant.

    A batch writes `batch_bytes` to `touched` partitions, of which `late` are one to ten days old. Tenant n sends events
    at a rate of 1 / (n + 1), so that a few tenants are in each batch, and most in few of them. Batches depend on `seed`
    and on their number alone.
    """

    partitions: int
    touched: int
    late: int
    batches_per_day: int
    batch_bytes: int
    seed: int

    def day(self, number: int) -> int:
        """Return the day of a batch."""
        return number // self.batches_per_day

    def batch(self, number: int) -> BatchSizes:
        """Return the bytes of batch `number` by partition."""
        random, today = np.random.default_rng([self.seed, number]), self.day(number)
        places = [(today, tenant) for tenant in self._tenants(random, self.touched - self.late)]
        on_time = len(places)
        if today:
            late = random.choice(min(today, MOST_DAYS_LATE), self.late, p=_lateness(today)) + 1
            places += zip((today - late).tolist(), self._tenants(random, self.late), strict=True)
        sizes = np.exp(random.normal(0.0, _SPREAD, len(places)))
        sizes[on_time:] *= _LATE_SHARE
        ends = np.rint(np.cumsum(sizes) / sizes.sum() * self.batch_bytes).astype(np.int64)
        whole = np.diff(ends, prepend=0).tolist()
        return {PartitionKey(0, place): size for place, size in zip(places, whole, strict=True) if size}

    def _tenants(self, random: np.random.Generator, number: int) -> list[int]:
        """Choose so many tenants, without repetition: those whose next event, of each one's rate, comes first."""
        waits: NDArray[np.float64] = random.exponential(self._means)
        return sorted(np.argsort(waits)[:number].tolist())

    @cached_property
    def _means(self) -> NDArray[np.float64]:
        return np.arange(1.0, self.partitions + 1.0)


def _lateness(today: int) -> NDArray[np.float64]:
    """Return the share of each number of days in the late rows: that of hours in `tests.support.late_events`."""
    shares = 1.0 / (np.arange(1.0, min(today, MOST_DAYS_LATE) + 1.0) + 1.0) ** 1.2
    return np.asarray(shares / shares.sum())
