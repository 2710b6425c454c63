"""Runs the demo's streaming drivers as child processes, shows their batches, and leaves none behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from icesize import failpoints
from icesize.console import show_line
from icesize.demo.lake import Lake
from icesize.errors import IcesizeError
from icesize.units import format_count


def run_query(console: Console, lake: Lake, table: str, how: str, *, kill_at: str | None = None, nth: int = 1) -> float:
    """Run one driver until its query has seen all files; returns the seconds that its batches took.

    With `kill_at` the driver dies by SIGKILL when it reaches that failpoint for the `nth` time. Raises IcesizeError,
    naming the log, when a driver ends otherwise than it should.
    """
    log = lake.logs / f"{table}.log"
    show_line(console, f"  starting Spark (log: {log})", "dim")
    with (
        log.open("a", encoding="utf-8") as errors,
        subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "icesize.demo.stream", str(lake.directory), table, how],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_environment(f"{kill_at}@{nth}=kill" if kill_at else None),
            start_new_session=True,
        ) as child,
    ):
        try:
            seconds = _show_batches(console, child.stdout or ())
            code = child.wait()
        finally:
            _end(child)
    if kill_at and code == -signal.SIGKILL:
        show_line(console, f"  driver killed (SIGKILL) in batch {nth - 1}: its files are written, nothing is committed")
    elif kill_at or code != 0:
        raise IcesizeError(
            f"Cannot go on: the driver of '{table}' ended with code {code}: {_last_words(log)} (log: {log})"
        )
    return seconds


def _environment(failpoint: str | None) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in (failpoints.VARIABLE, "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS")}
    env["PYSPARK_PYTHON"] = env["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if failpoint:
        env[failpoints.VARIABLE] = failpoint
    return env


def _show_batches(console: Console, lines: Iterable[str]) -> float:
    seconds = 0.0
    for line in lines:
        batch = json.loads(line)
        seconds += batch["seconds"]
        show_line(console, f"  batch {batch['batch']:>3}  {batch['seconds']:5.1f} s  {batch['words']}")
    return seconds


def _end(child: subprocess.Popen[str]) -> None:
    """End the driver's whole process group: a killed driver leaves its JVM, which would go on for a while."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # all of them have ended
    finally:
        child.wait()


def _last_words(log: Path) -> str:
    """The last line of a log that names an error."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    named = [x.strip() for x in lines if "Error" in x or "Exception" in x]
    return named[-1][:300] if named else f"{format_count(len(lines), 'line')} of log, none names an error"
