"""Runs the driver of a stream as a process of its own, which can be killed and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from icesize import failpoints
from icesize.demo.lake import Lake
from icesize.errors import IcesizeError
from icesize.units import format_count

Batch = Mapping[str, Any]
"""A line of `icesize.demo.stream`: the number of a batch (`batch`), and other values by the kind of stream."""


def run_driver(
    lake: Lake, how: str, on_batch: Callable[[Batch], object], *options: str, kill_in: int | None = None
) -> None:
    """Run one driver until its query has read all files; call `on_batch` with each committed batch.

    In batch number `kill_in`, SIGKILL ends the driver as soon as the batch's files are written. Raises IcesizeError
    with the path of the log if a driver ends with another code than expected.
    """
    log = log_of(lake, how)
    with (
        log.open("a", encoding="utf-8") as errors,
        subprocess.Popen(  # noqa: S603 - icesize's own module
            [sys.executable, "-m", "icesize.demo.stream", str(lake.directory), how, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_environment(kill_in),
            start_new_session=True,
        ) as child,
    ):
        try:
            for batch in _batches(child):
                on_batch(batch)
            code = child.wait()
        finally:
            _end(child)
    if code != (0 if kill_in is None else -signal.SIGKILL):
        raise IcesizeError(
            f"Cannot go on: the driver of the stream ended with code {code}: {_last_words(log)} (log: {log})"
        )


def log_of(lake: Lake, how: str) -> Path:
    """Return the log of a driver's standard error, Spark's logs included."""
    return lake.logs / f"{how}.log"


def _environment(kill_in: int | None) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in (failpoints.VARIABLE, "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS")}
    env["PYSPARK_PYTHON"] = env["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if kill_in is not None:
        env |= failpoints.for_child(f"files-written@{kill_in + 1}=kill")
    return env


def _batches(child: subprocess.Popen[str]) -> Iterator[Batch]:
    for line in child.stdout or ():
        yield json.loads(line)


def _end(child: subprocess.Popen[str]) -> None:
    """Kill the driver's whole process group, because a killed driver leaves its JVM, which would run for a while."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # all of them have ended
    finally:
        child.wait()


def _last_words(log: Path) -> str:
    """Return the last line of a log that names an error."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    named = [x.strip() for x in lines if "Error" in x or "Exception" in x]
    return named[-1][:300] if named else f"{format_count(len(lines), 'line')} of log, none names an error"
