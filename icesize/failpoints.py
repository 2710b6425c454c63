"""Named points where a test can make the program raise, wait or die; no-ops unless armed.

Points of the main job, in order: `planned` (nothing written yet), `files-written` (data files closed, nothing
visible), `before-swap` (manifests written, the catalog not asked yet), `after-swap` (committed, nothing reported).
Where files of expired snapshots are deleted: `before-delete` (ahead of each bunch).

A test in the same process arms a point with a callable (`with armed("before-swap", barrier.wait)`). A child process
is armed by the environment: `ICESIZE_FAILPOINTS="before-swap@2=kill;planned=raise"` kills it with SIGKILL the second
time it gets to `before-swap`. Actions are `raise`, `kill`, and `wait:PATH` (until that file exists).
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

POINTS = ("planned", "files-written", "before-swap", "after-swap", "before-delete")
VARIABLE = "ICESIZE_FAILPOINTS"

_armed: dict[str, Callable[[], object]] = {}
_reached: Counter[str] = Counter()


class FailpointReached(RuntimeError):
    """Raised by a point that is armed with `raise`."""


def reach(name: str) -> None:
    """Do what this point is armed with; called by the code that passes it."""
    _reached[name] += 1
    if action := _armed.get(name):
        action()
    if VARIABLE in os.environ:
        _from_environment(name)


@contextmanager
def armed(name: str, action: Callable[[], object]) -> Iterator[None]:
    """Run `action` each time `name` is reached, in any thread, until the block ends."""
    if name not in POINTS:
        raise ValueError(f"Cannot arm '{name}': the points are {', '.join(POINTS)}")
    _armed[name] = action
    try:
        yield
    finally:
        del _armed[name]


def _from_environment(name: str) -> None:
    for item in os.environ[VARIABLE].split(";"):
        point, _, action = item.strip().partition("=")
        point, _, nth = point.partition("@")
        if point == name and (not nth or int(nth) == _reached[name]):
            _act(name, action)


def _act(name: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "raise":
        raise FailpointReached(name)
    elif action.startswith("wait:"):
        while not os.path.exists(action.removeprefix("wait:")):
            time.sleep(0.01)
    else:
        raise ValueError(f"Cannot act on failpoint '{name}': '{action}' is none of raise, kill, wait:PATH")
