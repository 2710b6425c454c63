"""Ctrl-C and SIGTERM while a command works: both stop it, and say whether its commit is in.

What cleans up after them is the `with` blocks of whoever works: files that are not committed are removed there.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from icesize.environment import PendingCommit
from icesize.events import CommitStarted, Event

SHELLS_COUNT_FROM = 128
"""A process that a signal has ended has this and the signal's number as its exit code."""


class Observers:
    """The observer of one command: it keeps the commits that began, and calls the observers of the moment."""

    def __init__(self) -> None:
        self.commits: list[PendingCommit] = []
        self._observers: tuple[Callable[[Event], object], ...] = ()

    def __call__(self, event: Event) -> None:
        if isinstance(event, CommitStarted):
            self.commits.append(event.commit)
        for observe in self._observers:
            observe(event)

    @contextmanager
    def also(self, *observers: Callable[[Event], object]) -> Iterator[None]:
        """Call these observers, too, in the block."""
        self._observers = observers
        try:
            yield
        finally:
            self._observers = ()


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which is to do what Ctrl-C does."""


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM raises `KeyboardInterrupt` in this block, too."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only that one may ask for signals
        return

    def terminate(number: int, frame: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def what_became_of(commitments: Sequence[PendingCommit]) -> str:
    """What an interrupt has left in the table."""
    statuses = [commitment.status() for commitment in commitments]
    if unknown := [status.advice for status in statuses if status.is_committed is None]:
        return f"outcome unknown: {unknown[-1]}"
    ids = [str(snapshot_id) for status in statuses for snapshot_id in status.snapshot_ids]
    if ids:
        return f"snapshot{'s' if len(ids) > 1 else ''} {', '.join(ids)} {'were' if len(ids) > 1 else 'was'} committed"
    return "the change was committed" if any(status.is_committed for status in statuses) else "nothing was committed"


def exit_code_of(interrupt: KeyboardInterrupt) -> int:
    """130 for Ctrl-C, 143 for SIGTERM."""
    return SHELLS_COUNT_FROM + (signal.SIGTERM if isinstance(interrupt, _Terminated) else signal.SIGINT)
