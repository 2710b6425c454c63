"""What runs beside the batches of a stream: waiting for it, holding it, and ending it."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from icesize.spark.stream import background as background_module
from icesize.spark.stream import process_state
from icesize.spark.stream.background import Background
from icesize.spark.stream.sink import Sink

ROOT = Path(__file__).parents[2]
"""Where the programs that tests start find `tests` and `icesize`."""
WAIT_S = 120
"""Nothing here takes as long: a test that would hang fails."""


def background_of(sink: Sink) -> Background:
    return process_state.stream_state(sink.source, sink.stream_id).background


def in_background() -> bool:
    return threading.current_thread().name == "icesize-background"


def end_backgrounds() -> None:
    """Whatever a test did, its merges end with it."""
    for background in list(background_module._all):
        assert background.stop(WAIT_S)
    assert [t.name for t in threading.enumerate() if t.name == "icesize-background"] == []


def wait_until_idle(sink: Sink) -> None:
    """Like `drain`, without asking for one more run."""
    background = background_of(sink)
    with background._changed:
        assert background._changed.wait_for(lambda: background._thread is None, WAIT_S)


class Gate:
    """Something of the background arrives and is held until the test lets it go."""

    def __init__(self) -> None:
        self._arrived, self._open = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self._arrived.set()
        assert self._open.wait(WAIT_S)

    def wait(self) -> None:
        assert self._arrived.wait(WAIT_S)

    def open(self) -> None:
        self._open.set()


def hang(begun: str) -> None:
    """Where the worker unpacks its work: until it is killed."""
    Path(begun).touch()
    signal.pause()
