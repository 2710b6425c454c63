"""Events that an observer got, as tests compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from icesize.events import Planned, Progress
from icesize.planning.plan import Plan

Observe = Callable[[object], object]


def no_observer(event: object) -> None:
    """Take no notice of an event."""


def plans_of(events: Iterable[object]) -> list[Plan]:
    """Return the plans that the observer got."""
    return [event.plan() for event in events if isinstance(event, Planned)]


def done_bytes(events: Iterable[object]) -> int:
    """Return the last sum of bytes that the observer got."""
    return [event.done for event in events if isinstance(event, Progress)][-1]
