"""Threads that are made to meet where they could disturb each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from tests.support.tables import CountingIO

Found = TypeVar("Found")


class Meeting:
    """A place at which the first two threads wait for each other; a thread that comes alone goes on after a moment."""

    def __init__(self) -> None:
        self._both = threading.Barrier(2)

    def wait(self) -> None:
        """Wait for the other thread; not at all once two have met, or one was left alone."""
        with suppress(threading.BrokenBarrierError):
            self._both.wait(0.2)
            self._both.abort()

    def ahead_of(self, work: Callable[..., Found]) -> Callable[..., Found]:
        """The same function, at whose beginning threads meet."""

        def met(*args: Any, **options: Any) -> Found:
            self.wait()
            return work(*args, **options)

        return met


class MeetingIO(CountingIO):
    """Storage at whose manifests two readers meet."""

    def __init__(self) -> None:
        super().__init__()
        self._meeting = Meeting()

    def new_input(self, location: str) -> Any:
        opened = super().new_input(location)
        if self.manifests[-1:] == [location]:
            self._meeting.wait()
        return opened


def all_at_once(calls: Sequence[Callable[[], Found]]) -> list[Found]:
    """Make each call in a thread of its own, none before all threads are there; return the results, or raise."""
    everyone = threading.Barrier(len(calls))

    def called(call: Callable[[], Found]) -> Found:
        everyone.wait(60)
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return [task.result() for task in [threads.submit(called, call) for call in calls]]
