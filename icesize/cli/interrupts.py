"""Ctrl-C and SIGTERM during a command: both stop it, and print whether its commit succeeded.

The `with` blocks of the interrupted code remove files that are not committed (`icesize.parquet.files.uncommitted`).
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from icesize.events import CommitEnded, CommitStarted, Event, PendingCommit

MOST_ENDED = 20
"""Commits that ended and of which an interrupted command prints the outcome."""
SHELLS_COUNT_FROM = 128
"""The exit code of a process that a signal ended is this plus the number of the signal."""


class Observers:
    """The observer of one command: it keeps the running commits, and calls the observers of the moment.

    Only the newest few commits that ended are kept: a service makes thousands, each of which holds facts of manifests.
    """

    def __init__(self, telemetry: Callable[[Event], object] | None = None) -> None:
        self._running: dict[int, PendingCommit] = {}
        self._ended = deque[PendingCommit](maxlen=MOST_ENDED)
        self.telemetry = telemetry
        self._observers: tuple[Callable[[Event], object], ...] = ()

    def __call__(self, event: Event) -> None:
        if isinstance(event, CommitStarted):
            self._running[id(event.commit)] = event.commit
        elif isinstance(event, CommitEnded) and event.commit:
            self._ended.append(event.commit)
            self._running.pop(id(event.commit), None)
        for observe in (*self._observers, *([self.telemetry] if self.telemetry else [])):
            observe(event)

    @property
    def commits(self) -> list[PendingCommit]:
        """The newest commits that ended, and those that run."""
        return [*self._ended, *self._running.values()]

    @contextmanager
    def also(self, *observers: Callable[[Event], object]) -> Iterator[None]:
        """Also call these observers in the block."""
        before, self._observers = self._observers, (*self._observers, *observers)
        try:
            yield
        finally:
            self._observers = before


class _Terminated(KeyboardInterrupt):
    """SIGTERM as an exception, with the effect of Ctrl-C."""


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Make SIGTERM raise `KeyboardInterrupt` inside the block, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets only the main thread set signal handlers
        return

    def terminate(number: int, frame: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Stop:
    """The signal that a command got to stop, if any."""

    signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None


@contextmanager
def stopped_between_groups(announce: Callable[[str], object]) -> Iterator[Stop]:
    """Make the first Ctrl-C or SIGTERM inside the block stop new work only, so that a running commit ends.

    A second one interrupts, as it does elsewhere. `announce` gets a sentence at the first one.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: object) -> None:
        if stop.signal is not None:
            raise _Terminated if number == signal.SIGTERM else KeyboardInterrupt
        stop.signal = number
        announce("stopping after the current commit; repeat to interrupt it")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def what_became_of(commitments: Sequence[PendingCommit]) -> str:
    """Return the outcome of the interrupted commits, for the message."""
    statuses = [commitment.status() for commitment in commitments]
    if unknown := [status.advice for status in statuses if status.is_committed is None]:
        return f"outcome unknown: {unknown[-1]}"
    ids = [str(snapshot_id) for status in statuses for snapshot_id in status.snapshot_ids]
    if ids:
        return f"snapshot{'s' if len(ids) > 1 else ''} {', '.join(ids)} {'were' if len(ids) > 1 else 'was'} committed"
    return "the change was committed" if any(status.is_committed for status in statuses) else "nothing was committed"


def exit_code_of(interrupt: KeyboardInterrupt) -> int:
    """Return the exit code: 130 for Ctrl-C, 143 for SIGTERM."""
    return SHELLS_COUNT_FROM + (signal.SIGTERM if isinstance(interrupt, _Terminated) else signal.SIGINT)
