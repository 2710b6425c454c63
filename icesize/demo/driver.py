"""Runs the driver of the stream as a process of its own, which can be killed and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

from icesize import failpoints
from icesize.demo.lake import Lake
from icesize.errors import IcesizeError


def run_driver(lake: Lake, on_batch: Callable[[str], object], kill_in: int | None = None) -> None:
    """Run one driver until its query has read all files; call `on_batch` with the line of each committed batch.

    In batch number `kill_in`, SIGKILL ends the driver as soon as the batch's files are written. Raises IcesizeError
    with the path of the log if a driver ends with another code than expected.
    """
    with (
        lake.log.open("a", encoding="utf-8") as errors,
        subprocess.Popen(  # noqa: S603 - icesize's own module
            [sys.executable, "-m", "icesize.demo.stream", str(lake.directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_environment(kill_in),
            start_new_session=True,
        ) as child,
    ):
        try:
            for line in child.stdout or ():
                on_batch(line.rstrip("\n"))
            code = child.wait()
        finally:
            # the whole process group: a killed driver leaves its JVM, which would run for a while
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if code != (0 if kill_in is None else -signal.SIGKILL):
        raise IcesizeError(f"Cannot go on: the driver of the stream ended with code {code}. See its log, {lake.log}")


def _environment(kill_in: int | None) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in (failpoints.VARIABLE, "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS")}
    env["PYSPARK_PYTHON"] = env["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return env if kill_in is None else env | failpoints.for_child(f"files-written@{kill_in + 1}=kill")
