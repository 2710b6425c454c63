"""What the program takes from the world around it: time, waiting and chance, passed in so that tests decide them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Environment:
    """`monotonic` and `sleep` in seconds, `now_ms` since 1970, `new_id` never gives the same text twice."""

    monotonic: Callable[[], float] = time.monotonic
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000)
    sleep: Callable[[float], None] = time.sleep
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex


def rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds to a tenth of a millisecond, as reports give them."""
    return {phase: round(value, 4) for phase, value in seconds.items()}


class Stopwatch:
    """Seconds per phase of one call, and in `total`."""

    def __init__(self, environment: Environment) -> None:
        self._now = environment.monotonic
        self._began = self._last = self._now()
        self.seconds: dict[str, float] = {}

    @property
    def rounded(self) -> dict[str, float]:
        """The same as reports give it."""
        return rounded(self.seconds)

    def lap(self, phase: str) -> float:
        """End a phase that began with the last lap; returns its seconds."""
        now = self._now()
        taken = now - self._last
        self.seconds[phase] = self.seconds.get(phase, 0.0) + taken
        self._last = now
        self.seconds["total"] = now - self._began
        return taken
