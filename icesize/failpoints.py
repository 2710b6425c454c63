"""Named points at which a test can make the program raise, wait or die; they do nothing unless armed.

The points of a batch, in their order:

batch-started   nothing is read yet
statistics      the rows per partition are known
planned         nothing is written yet
writing         rows are in a data file that is still open; any process that writes new or merged rows passes it
files-written   the data files are closed, nothing is visible
before-swap     the manifests are written, the catalog has received no request yet
after-swap      the commit is done, nothing is reported

Other points: `cleanup` comes before each removal of an uncommitted file. `background` begins a cycle of the merges
beside a stream. An expiry passes `expiry-decided` (nothing committed), then `before-delete`, before each batch of
deletions. Orphan cleanup also passes `before-delete`.

A test in the same process arms a point with a callable (`with armed("before-swap", barrier.wait)`). The environment
arms a child process: `ICESIZE_FAILPOINTS="before-swap@2=kill;planned=raise"` kills it with SIGKILL when it reaches
`before-swap` for the second time. This also needs `ICESIZE_TESTING=1`. Otherwise, icesize ignores the variable and
warns once, because a stray variable in production must neither kill a driver nor stop its stream.

Actions are `raise`, `kill`, and `wait:PATH` (until that file exists). `raise-once:PATH` and `kill-once:PATH` act in the
first process that reaches the point. That process creates the file PATH, so that later ones do nothing.
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
    """A point that is armed with `raise` was reached."""


def reach(name: str) -> None:
    """Perform the action of a point if it is armed; the program calls this when it passes the point."""
    with _counting:
        # several threads write files: each must see its own number, or `@2` could match twice or never
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
    """Return the environment variables that arm points of a child process, such as `before-swap@2=kill`."""
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
