"""Flink's case without a cluster: files and skew of one batch, by method of routing. Arithmetic alone."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from icesize.planning.file_sizes import expected_files
from icesize.planning.routing import router
from tests.support.late_events import hour_shares
from tests.support.routing import file_floor, loads, total_files

WRITERS = 500
HOURS = 240
"""Ten days of late rows."""
BATCH_BYTES = 250e6 * 600
"""Ten minutes at 250 MB/s."""
TARGET_BYTES = 512 * 2**20

Weights = Mapping[int, float]
"""Bytes of a batch by hour; hour 0 is the newest."""


@dataclass(frozen=True)
class Outcome:
    """Files of one batch and the bytes of each writer."""

    files: int
    loads: tuple[float, ...]

    @property
    def skew(self) -> float:
        """Bytes of the fullest writer over the mean of all."""
        return router.skew(self.loads)


def skew(loads: Iterable[float], writers: int) -> float:
    """Return the largest load over the mean of all `writers`, also those without load; 1.0 if nothing was written."""
    known = list(loads)
    return router.skew([*known, *[0.0] * (writers - len(known))])


def hour_weights(hours: int = HOURS, batch_bytes: float = BATCH_BYTES) -> dict[int, float]:
    """Return the profile of the benchmark's stream: 60 % in the newest hour, a long tail."""
    return {age: float(share) * batch_bytes for age, share in enumerate(hour_shares(hours - 1))}


def round_robin(weights: Weights, writers: int, target_bytes: int) -> Outcome:
    """Return the outcome if rows are spread evenly: every writer has an equal part and a file of every hour."""
    files = sum(writers * expected_files(weight / writers, target_bytes) for weight in weights.values())
    return Outcome(files, (sum(weights.values()) / writers,) * writers)


def key_by(weights: Weights, writers: int, target_bytes: int) -> Outcome:
    """Return the outcome if the hash of an hour selects the writer of all its rows."""
    loads = [0.0] * writers
    for hour, weight in weights.items():
        loads[zlib.crc32(str(hour).encode()) % writers] += weight
    return Outcome(sum(expected_files(weight, target_bytes) for weight in weights.values()), tuple(loads))


def routed(weights: Weights, writers: int, target_bytes: int) -> Outcome:
    """Return the outcome of `route`; each writer has at least one file for each of its hours."""
    planned = router.route(weights, writers, target_bytes)
    return Outcome(total_files(planned), tuple(loads(planned, weights, target_bytes, 0)))


@dataclass(frozen=True)
class Simulated:
    """Files of a batch and skew by method, and the fewest files that an even load allows."""

    floor: int
    files: dict[str, int]
    skew: dict[str, float]


def simulate(weights: Weights, writers: int = WRITERS, target_bytes: int = TARGET_BYTES) -> Simulated:
    """Return the results of all three methods for one batch."""
    ways = {"route": routed, "keyBy": key_by, "round robin": round_robin}
    outcomes = {name: way(weights, writers, target_bytes) for name, way in ways.items()}
    return Simulated(
        file_floor(weights, writers, target_bytes),
        {name: outcome.files for name, outcome in outcomes.items()},
        {name: round(outcome.skew, 2) for name, outcome in outcomes.items()},
    )
