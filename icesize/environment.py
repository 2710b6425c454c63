"""The clock, the sleep, the ids, the observer and the work limits of one process, passed in so that tests set them."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

LOG = logging.getLogger("icesize")


@dataclass(frozen=True)
class WorkLimits:
    """Limits above which icesize uses another process, task or round. The defaults were measured."""

    driver_source_bytes: int = 4 * 2**20
    """Size of a batch at its source (compressed files) up to which the driver writes it, about 100,000 rows.

    A Spark job that starts workers costs 0.3 s before it writes a byte.
    """
    driver_rows: int = 200_000
    """Most rows that the driver fetches. A small file can hold millions of equal rows, which are large in memory."""
    driver_upserts: int = 5_000_000
    """Most rows of a batch of upserts that the driver holds, at some 200 bytes each.

    It resolves a larger batch in slices of this number of rows.
    """
    driver_bytes_along: int = 32 * 2**20
    """Most bytes of older small files that one thread of the driver decodes and rewrites.

    That takes half a second: as long as counting the batch and starting a Spark job for it.
    """
    driver_merge_bytes: int = 8 * 2**20
    """The driver merges or clusters groups up to this work, in bytes to decode.

    A Spark job costs 0.15 s before it reads a byte. In that time, the driver decodes and encodes about 10 MB, or copies
    64 MB.
    """
    driver_copy_bytes: int = 64 * 2**20
    """Most bytes of all groups that are copied in the driver.

    Copying is Python code, for which two threads are hardly faster than one (427 MB/s instead of 357, measured). Tasks
    of Spark are processes.
    """
    local_work_bytes: int = 512 * 2**20
    """Most work of merges that the driver does alone if it has the cores of Spark: on a local master.

    The unit is that of `driver_merge_bytes`. Spark's workers would start on the same cores first: copying 336 MB took
    3.7 s with new workers, 0.5 s with used ones and 0.6 s in threads; decoding took the same in both. Above the limit,
    workers pay on many cores: decoding in threads holds Python's lock for a quarter of its time, copying for all of it.
    """
    one_task_bytes: int = 64 * 2**20
    """Size up to which a group is clustered by one Spark task, even if others wait for it.

    Dividing it takes two more jobs, and a first and a last wave of tasks.
    """
    bytes_without_spark: int = 2**30
    """Bytes of data files that one process rewrites before it commits them, so that an interrupt keeps them.

    A group that is written as a whole may be larger.
    """
    round_bytes: int = 2 * 2**30
    """Bytes that one round of merges or of clustering rewrites before it is committed.

    That is half a minute of decoding on two cores, and the most that a killed pass loses.
    """
    task_bytes: int = 2**20
    """Least work for another Spark task: writing that many bytes takes 0.03 s, and a task costs 0.02 s."""
    spill_bytes: int = 4 * 2**30
    """Most bytes below `Environment.spill_directory`: the facts of about 40 million files."""


@dataclass(frozen=True)
class Environment:
    """The clock, the sleep, the ids, the observer and the limits of one process.

    Attributes:
        monotonic: Return seconds of a clock that never goes back.
        now_ms: Return milliseconds since 1970.
        sleep: Wait for a number of seconds.
        new_id: Return a string that no other call returns.
        observe: Called with each event of `icesize.events`.
        limits: Limits of the work of one process.
        spill_directory: A local directory for a cache of manifests that new processes reuse; None for no cache.
    """

    monotonic: Callable[[], float] = time.monotonic
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000)
    sleep: Callable[[float], None] = time.sleep
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex
    observe: Callable[[Any], object] = lambda event: None
    limits: WorkLimits = field(default_factory=WorkLimits)
    spill_directory: str | None = None

    def notify(self, event: Any) -> None:
        """Send the observer an event about something that is done: an error of the observer is only logged."""
        try:
            self.observe(event)
        except Exception:
            LOG.exception("the observer failed with %s", type(event).__name__)

    def also_observing(self, observer: Callable[[Any], object]) -> Environment:
        """Return this environment with a second observer, which is called first."""

        def both(event: Any) -> None:
            observer(event)
            self.observe(event)

        return replace(self, observe=both)


def rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return seconds rounded to a tenth of a millisecond, as in reports."""
    return {phase: round(value, 4) for phase, value in seconds.items()}


class Stopwatch:
    """The seconds of each phase of one call, and in `total`."""

    def __init__(self, environment: Environment) -> None:
        self._now = environment.monotonic
        self._began = self._last = self._now()
        self.seconds: dict[str, float] = {}

    def lap(self, phase: str) -> float:
        """End the phase that began with the last lap, and return its seconds."""
        now = self._now()
        taken = now - self._last
        self.seconds[phase] = self.seconds.get(phase, 0.0) + taken
        self._last = now
        self.seconds["total"] = now - self._began
        return taken
