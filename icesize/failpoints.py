"""Named points where a test can make the program raise, wait or die; no-ops unless armed.

Points of the main job, in order: `batch-started` (nothing read yet), `statistics` (the batch was looked at),
`planned` (nothing written yet), `writing` (rows were handed to a data file that is not closed; reached in whatever
process writes, new rows as well as merged ones), `files-written` (data files closed, nothing visible), `before-swap`
(manifests written, the catalog not asked yet), `after-swap` (committed, nothing reported). `cleanup`: ahead of each
removal of a file of ours that must not stay. `background`: a turn of the merges beside a stream begins. Expiry:
`expiry-decided` (nothing committed), then `before-delete` (ahead of each batch of deletions, also of orphan files).

A test in the same process arms a point with a callable (`with armed("before-swap", barrier.wait)`). A child process
is armed by the environment: `ICESIZE_FAILPOINTS="before-swap@2=kill;planned=raise"` kills it with SIGKILL the second
time it gets to `before-swap`. That needs `ICESIZE_TESTING=1` beside it. Without it the variable is ignored, with one
warning: a variable that strayed into production must neither kill a driver nor stop its stream.

Actions are `raise`, `kill`, and `wait:PATH` (until that file exists). `raise-once:PATH` and `kill-once:PATH` act in the
first process that gets there, and leave that file behind as a sign.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

POINTS = (
    "batch-started", "statistics", "planned", "writing", "files-written", "before-swap", "after-swap", "cleanup",
    "background", "expiry-decided", "before-delete",
)  # fmt: skip
VARIABLE = "ICESIZE_FAILPOINTS"
TESTING = "ICESIZE_TESTING"

LOG = logging.getLogger("icesize")

_armed: dict[str, Callable[[], object]] = {}
_reached: Counter[str] = Counter()
_counting = threading.Lock()


class FailpointReached(RuntimeError):
    """Raised by a point that is armed with `raise`."""


def reach(name: str) -> None:
    """Do what this point is armed with; called by the code that passes it."""
    with _counting:
        # files are written in threads: each has to see its own number
        _reached[name] += 1
        nth = _reached[name]
    if action := _armed.get(name):
        action()
    points = os.environ.get(VARIABLE, "")
    if points and os.environ.get(TESTING) != "1":
        _warn_once()
    elif points:
        for item in points.split(";"):
            point, _, action_text = item.strip().partition("=")
            point, _, only = point.partition("@")
            if point == name and (not only or int(only) == nth):
                _act(name, action_text)


def for_child(points: str) -> dict[str, str]:
    """Return the environment that arms points of a child process: `before-swap@2=kill`."""
    return {VARIABLE: points, TESTING: "1"}


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


@cache
def _warn_once() -> None:
    LOG.warning("%s is set and ignored: it is for tests, and needs %s=1. Unset it.", VARIABLE, TESTING)


def _act(name: str, action: str) -> None:
    what, _, path = action.partition(":")
    if what in ("raise-once", "kill-once") and path:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        what, path = what.removesuffix("-once"), ""
    if what == "kill" and not path:
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "raise" and not path:
        raise FailpointReached(name)
    elif what == "wait" and path:
        while not os.path.exists(path):
            time.sleep(0.01)
    else:
        raise ValueError(
            f"Cannot act on failpoint '{name}': '{action}' is none of raise, kill, raise-once:PATH, kill-once:PATH, "
            "wait:PATH"
        )
