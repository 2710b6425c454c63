"""The demo from start to end: make events, stream or append them, compare, and say what to try next.

Streaming drivers run as child processes, of which none is left behind.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console

from icesize import failpoints
from icesize.console import merging, show_bars, show_line, show_plan
from icesize.demo import events
from icesize.demo.lake import Lake, full_name, rows_and_exact
from icesize.errors import EngineUnavailable, IcesizeError
from icesize.planning.inspection import Inspection
from icesize.planning.plan import Plan
from icesize.sized_table import open as open_table
from icesize.spark.engine.launch import has_java
from icesize.units import format_bytes, format_count

PLAIN = "events_plain"
SIZED = "events"

_HOW_TO_READ_SECONDS = (
    "(seconds of the batches: the first after each start of Spark takes longer, and icesize was started twice;\n"
    " the plain append collects each batch in the driver, which only small batches allow)"
)


@dataclass(frozen=True)
class Side:
    """What one way of writing came to: `written_bytes` of all snapshots; `exact`: rows are those generated."""

    title: str
    inspection: Inspection
    snapshots: int
    written_bytes: int
    seconds: float
    rows: int
    exact: bool

    @classmethod
    def of(cls, title: str, lake: Lake, table: str, seconds: float, expected_rows: int) -> Side:
        """Look at a table of the lake as it is now."""
        inspection = open_table(None, full_name(table), catalog=lake.catalog()).inspect()
        loaded = lake.load(table)
        summaries = [s.summary.additional_properties for s in loaded.snapshots() if s.summary]
        written_bytes = sum(int(summary.get("added-files-size", "0")) for summary in summaries)
        return cls(title, inspection, len(summaries), written_bytes, seconds, *rows_and_exact(loaded, expected_rows))


def run_demo(console: Console, path: str | None, batches: int, rows: int, *, with_spark: bool) -> bool:
    """Whether every row is there exactly once. Raises EngineUnavailable without Java, TableError for a used `path`."""
    if with_spark and not has_java():
        raise EngineUnavailable(
            "Cannot start Spark: there is no Java runtime in JAVA_HOME or on PATH; install Java 17, "
            "or run `icesize demo --no-spark`"
        )
    lake = Lake(Path(path or tempfile.mkdtemp(prefix="icesize-demo-")).resolve())
    tables = (PLAIN, SIZED) if with_spark else (SIZED,)
    lake.create(*tables)
    show_line(console, f"demo in {lake.directory}", "bold")
    show_line(console, f"making {format_count(batches, 'batch file')} of {format_count(rows, 'event')}, some late")
    events.write_files(lake.events, batches, rows)
    compare = _stream_twice if with_spark else _append_and_compact
    sides = compare(console, lake, batches, rows)
    _show_comparison(console, sides, batches * rows, _HOW_TO_READ_SECONDS if with_spark else "")
    _show_next_steps(console, lake, tables)
    return all(side.exact for side in sides)


def _stream_twice(console: Console, lake: Lake, batches: int, rows: int) -> list[Side]:
    """The same files through two Structured Streaming queries: plainly appended, and with icesize, killed once."""
    expected = batches * rows
    _show_title(console, "1. a streaming query that appends each batch as it is")
    plain_seconds = _run_query(console, lake, PLAIN, "plain")
    _show_title(console, "2. the same files with icesize; its driver is killed in the middle of a batch")
    seconds = _run_query(console, lake, SIZED, "icesize", kill_in=(batches - 1) // 2)
    seconds += _run_query(console, lake, SIZED, "icesize")
    return [
        Side.of("plain append (PyIceberg)", lake, PLAIN, plain_seconds, expected),
        Side.of("icesize", lake, SIZED, seconds, expected),
    ]


def _append_and_compact(console: Console, lake: Lake, batches: int, rows: int) -> list[Side]:
    """One table without Spark: filled by PyIceberg, then compacted in this process."""
    _show_title(console, "1. PyIceberg appends each batch as it is")
    began = time.monotonic()
    table = lake.load(SIZED)
    for file in sorted(lake.events.iterdir()):
        table.append(pq.read_table(file))
        show_line(console, f"  {file.stem}: {format_count(rows, 'row')}")
    before = Side.of("plain append (PyIceberg)", lake, SIZED, time.monotonic() - began, batches * rows)
    _show_title(console, "2. icesize compacts the table")
    began = time.monotonic()
    planned: list[Plan] = []

    def on_plan(plan: Plan) -> None:
        show_plan(console, plan)
        planned.append(plan)

    sized = open_table(None, full_name(SIZED), catalog=lake.catalog())
    with merging(console, lambda: planned[0].bytes_to_write) as progress:
        sized.compact(on_plan=on_plan, progress=progress)
    return [before, Side.of("then icesize compact", lake, SIZED, time.monotonic() - began, batches * rows)]


def _show_title(console: Console, text: str) -> None:
    show_line(console, "")
    show_line(console, text, "bold")


def _run_query(console: Console, lake: Lake, table: str, how: str, kill_in: int | None = None) -> float:
    """Run one driver until its query has seen all files; returns the seconds that its batches took.

    The driver dies by SIGKILL in batch number `kill_in`, once its files are written. Raises IcesizeError, naming the
    log, when a driver ends otherwise than it should.
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
            env=_environment(kill_in),
            start_new_session=True,
        ) as child,
    ):
        try:
            seconds = _show_batches(console, child.stdout or ())
            code = child.wait()
        finally:
            _end(child)
    if kill_in is not None and code == -signal.SIGKILL:
        show_line(console, f"  driver killed (SIGKILL) in batch {kill_in}: its files are written, nothing is committed")
    elif kill_in is not None or code != 0:
        raise IcesizeError(
            f"Cannot go on: the driver of '{table}' ended with code {code}: {_last_words(log)} (log: {log})"
        )
    return seconds


def _environment(kill_in: int | None) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in (failpoints.VARIABLE, "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS")}
    env["PYSPARK_PYTHON"] = env["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if kill_in is not None:
        env[failpoints.VARIABLE] = f"files-written@{kill_in + 1}=kill"
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


def _show_comparison(console: Console, sides: list[Side], expected_rows: int, remark: str) -> None:
    """A table with one column per side, a remark on how to read it, then both histograms on one scale."""
    figures = {
        "": [s.title for s in sides],
        "files": [f"{s.inspection.files:,}" for s in sides],
        "most small files per partition": [f"{s.inspection.small_files_max:,}" for s in sides],
        "bytes in live files": [format_bytes(s.inspection.size_bytes) for s in sides],
        "bytes written": [format_bytes(s.written_bytes) for s in sides],
        "seconds": [f"{s.seconds:.1f}" for s in sides],
        "snapshots": [f"{s.snapshots:,}" for s in sides],
        f"rows, of {expected_rows:,}": [f"{s.rows:,} ({'exact' if s.exact else 'NOT EXACT'})" for s in sides],
    }
    names = max(map(len, figures))
    widths = [max(len(row[i]) for row in figures.values()) for i in range(len(sides))]
    show_line(console, "")
    for name, row in figures.items():
        cells = "   ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        show_line(console, f"{name:<{names}}   {cells}", "" if name else "bold")
    if remark:
        show_line(console, remark, "dim")
    most = max(s.inspection.small_files for s in sides)
    for side in sides:
        _show_title(console, f"{side.title}: files by size")
        show_bars(console, side.inspection, full_bar_files=most)


def _show_next_steps(console: Console, lake: Lake, tables: Iterable[str]) -> None:
    """Commands for the tables that stay: what is there, what would be done, do it."""
    uri = shlex.quote(lake.uri)
    _show_title(console, f"the tables stay in {lake.directory}; try")
    for table in tables:
        for command in ("inspect", "plan", "compact"):
            show_line(console, f"  icesize {command} {full_name(table)} --catalog-uri {uri}")
