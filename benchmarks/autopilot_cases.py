"""Tables of two weeks on which the autopilot is tried: how rows come, how they are read, and what is known of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from icesize.planning.files import PartitionKey
from icesize.planning.merging.simulation import Batch
from icesize.planning.reads import Reads
from icesize.planning.scan_cost import Prices
from icesize.policy import MIB, SizePolicy

DAYS = 14


@dataclass(frozen=True)
class Case:
    """A table: `batch` returns the bytes of a batch by partition, `reads` the reads of a day.

    Attributes:
        name: What it stands for.
        batches_per_day: Batches of a day.
        batch: Returns batch `number`; `random` depends on the case and the number.
        reads: Returns the reads of a day, from the number of the day.
        is_logged: True if the autopilot gets a log of the reads of the last day.
        columns: Columns that the table may be clustered by.
        before: Bytes of partitions before the first day, in the order of their first rows.
        is_inline: True if batches merge; else passes of maintenance do.
        files_per_arrival: Files that a batch adds to a partition.
        passes_per_day: Passes of maintenance.
        prices: Prices; None for local disks.
        policy: What users set.
    """

    name: str
    batches_per_day: int
    batch: Callable[[int, np.random.Generator], Batch]
    reads: Callable[[int], tuple[Reads, ...]]
    is_logged: bool = True
    columns: tuple[str, ...] = ()
    before: Mapping[PartitionKey, int] = field(default_factory=dict)
    is_inline: bool = True
    files_per_arrival: int = 1
    passes_per_day: float = 24.0
    prices: Prices | None = field(default_factory=Prices)
    policy: SizePolicy = field(default_factory=SizePolicy)

    def batches(self) -> list[Batch]:
        """Return all batches of the two weeks."""
        seed = sum(map(ord, self.name))
        return [self.batch(n, np.random.default_rng([seed, n])) for n in range(DAYS * self.batches_per_day)]


def key(*values: object) -> PartitionKey:
    """Return a partition."""
    return PartitionKey(0, values)


def always(*reads: Reads) -> Callable[[int], tuple[Reads, ...]]:
    """Return reads that are the same each day."""
    return lambda day: reads


def _whole_table(number: int, random: np.random.Generator) -> Batch:
    return {key(): int(3 * MIB * random.lognormal(0, 0.3))}


def _hours(number: int, random: np.random.Generator) -> Batch:
    hour, late = number // 12, int(random.integers(1, 5))
    size = int(8 * MIB * random.lognormal(0, 0.3))
    return {key(hour): size, **({key(hour - late): size // 20} if hour >= late else {})}


def _tenants(number: int, random: np.random.Generator) -> Batch:
    weights = 1 / np.arange(1, 9)
    sizes = 60 * MIB * weights / weights.sum() * random.lognormal(0, 0.3, 8)
    return {key(tenant): int(size) for tenant, size in enumerate(sizes)}


KNOWN = (
    Case("one table, a batch every 5 minutes, dashboards", 288, _whole_table, always(Reads(500.0))),
    Case("hours with late rows, reports of the day", 288, _hours, always(Reads(96.0, 24), Reads(24.0, 1))),
    Case(
        "8 tenants, queries for single users", 96, _tenants, always(Reads(300.0, 1, 2, ("user",)), Reads(4.0)),
        columns=("user",), before={key(tenant): 40 * 1024 * MIB // (tenant + 1) for tenant in range(8)},
    ),
)  # fmt: skip
"""Cases that were known when the autopilot was made."""
