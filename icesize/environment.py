"""What the program takes from the world around it: time, waiting, chance, and how much one process may take on, passed
in so that tests decide them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol


class PendingCommit(Protocol):
    """A commit on its way, to be asked by whoever is interrupted what has become of it."""

    def may_be_visible(self) -> set[str]:
        """The data files that are visible, or may be, or may still become so; no others of this commit."""

    def status(self) -> CommitStatus:
        """Whether it is in; asks the catalog where that is not known."""


@dataclass(frozen=True)
class CommitStatus:
    """`is_committed` is None where nobody can tell; `advice` says how a person finds out."""

    is_committed: bool | None
    snapshot_ids: tuple[int, ...] = ()
    advice: str = ""


MAX_CONCURRENT_DELETES = 8
"""Requests under way at a time: hides the waiting of object stores and stays far below the limits of their prefixes."""
ORPHANS_OLDER_THAN_MS = 3 * 24 * 3_600_000
"""Age at which a file that nobody needs is an orphan: Iceberg's default."""


@dataclass(frozen=True)
class WorkLimits:
    """How much work one process takes on before more of them are worth their start. The defaults were measured."""

    driver_source_bytes: int = 4 * 2**20
    """Size of a batch at its source (compressed files) up to which the driver writes it, about 100,000 rows: a Spark
    job that starts workers costs 0.3 s before it writes a byte."""
    driver_rows: int = 200_000
    """Rows that the driver fetches at most: a small file can hold millions of equal rows, which are large in memory."""
    driver_bytes_along: int = 32 * 2**20
    """Older small files that one thread of the driver decodes and writes again at most: it takes half a second, as long
    as counting the batch and starting a Spark job for it."""
    driver_merge_bytes: int = 8 * 2**20
    """Groups of no more work than decoding so many bytes are merged or clustered in the driver: a Spark job costs 0.15
    s before it reads a byte, in which the driver decodes and encodes about 10 MB, or copies 64."""
    driver_copy_bytes: int = 64 * 2**20
    """Bytes of all groups that are copied in the driver. Copying is Python, which two threads do not do any faster than
    one (427 MB/s against 357, measured); Spark's tasks are processes."""
    one_task_bytes: int = 64 * 2**20
    """A group up to this size is clustered by one Spark task, even if others wait for it: dividing it takes two jobs
    more, and a first and a last wave of tasks."""
    bytes_without_spark: int = 2**30
    """Bytes of data files that one process writes anew before it commits them, so that an interrupt keeps them; what is
    written as a whole may be more."""
    round_bytes: int = 2 * 2**30
    """Bytes that one round of merges or of clustering rewrites before it is committed: half a minute of decoding on two
    cores, which is what a killed pass loses at most."""
    task_bytes: int = 2**20
    """Work below which another Spark task is not worth starting: 0.03 s of writing, a task costs 0.02 s."""


@dataclass(frozen=True)
class Environment:
    """The clock, the sleep, the ids, the observer and the limits of one process.

    `monotonic` returns seconds, `sleep` takes seconds, and `now_ms` returns milliseconds since 1970. `new_id` never
    returns the same text twice. `observe` is called with each event of `icesize.events`.
    """

    monotonic: Callable[[], float] = time.monotonic
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000)
    sleep: Callable[[float], None] = time.sleep
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex
    observe: Callable[[Any], object] = lambda event: None
    limits: WorkLimits = field(default_factory=WorkLimits)

    def also_observing(self, observer: Callable[[Any], object]) -> Environment:
        """Return this environment with a second observer, which is called first."""

        def both(event: Any) -> None:
            observer(event)
            self.observe(event)

        return replace(self, observe=both)


def rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds to a tenth of a millisecond, as reports give them."""
    return {phase: round(value, 4) for phase, value in seconds.items()}


class Stopwatch:
    """Seconds per phase of one call, and in `total`."""

    def __init__(self, environment: Environment) -> None:
        self._now = environment.monotonic
        self._began = self._last = self._now()
        self.seconds: dict[str, float] = {}

    def lap(self, phase: str) -> float:
        """End a phase that began with the last lap; returns its seconds."""
        now = self._now()
        taken = now - self._last
        self.seconds[phase] = self.seconds.get(phase, 0.0) + taken
        self._last = now
        self.seconds["total"] = now - self._began
        return taken
