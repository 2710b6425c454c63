"""The context that every job of maintenance works with."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import cast

from icesize.environment import Environment
from icesize.events import Progress
from icesize.table.state.handle import TableHandle
from tests.support.jobs import context_of


def test_progress_of_two_threads_never_decreases() -> None:
    """The observer gets the sum of what several threads have done, in increasing order, even if one call is slow."""
    sums, first_is_in, second_is_done = list[int](), threading.Event(), threading.Event()

    def observe(event: object) -> None:
        assert isinstance(event, Progress)
        if event.done == 1:
            first_is_in.set()
            second_is_done.wait(0.1)
        sums.append(event.done)

    context = context_of(cast(TableHandle, SimpleNamespace(name="lake.db.t")), Environment(observe=observe))
    advance = context.advance("merges", 2)
    first = threading.Thread(target=advance, args=(1,))
    first.start()
    first_is_in.wait(10)
    advance(1)
    second_is_done.set()
    first.join()
    assert sums == [0, 1, 2]


def test_work_of_no_bytes_has_no_progress() -> None:
    """The observer gets no event for a plan without bytes."""
    events = list[object]()
    context_of(cast(TableHandle, SimpleNamespace(name="lake.db.t")), Environment(observe=events.append)).advance(
        "merges", 0
    )
    assert events == []
