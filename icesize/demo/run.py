"""The demo from start to end: make events, stream or append them, compare, and say what to try next."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console

from icesize.console import merging, show_line, show_plan
from icesize.demo import events
from icesize.demo.children import run_query
from icesize.demo.compare import Side, show_comparison, show_next_steps
from icesize.demo.lake import Lake, full_name
from icesize.errors import EngineUnavailable
from icesize.planning.plan import Plan
from icesize.sized_table import open as open_table
from icesize.spark.engine.launch import has_java
from icesize.units import format_count

PLAIN = "events_plain"
SIZED = "events"

_HOW_TO_READ_SECONDS = (
    "(seconds of the batches: the first after each start of Spark takes longer, and icesize was started twice;\n"
    " the plain append collects each batch in the driver, which only small batches allow)"
)


def run_demo(console: Console, path: str | None, batches: int, rows: int, *, with_spark: bool) -> bool:
    """Whether every row is there exactly once. Raises EngineUnavailable without Java, TableError for a used `path`."""
    if with_spark and not has_java():
        raise EngineUnavailable(
            "Cannot start Spark: there is no Java runtime in JAVA_HOME or on PATH; install Java 17, "
            "or run `icesize demo --no-spark`"
        )
    lake = Lake(Path(path or tempfile.mkdtemp(prefix="icesize-demo-")).resolve())
    lake.create(*((PLAIN, SIZED) if with_spark else (SIZED,)))
    show_line(console, f"demo in {lake.directory}", "bold")
    show_line(console, f"making {format_count(batches, 'batch file')} of {format_count(rows, 'event')}, some late")
    events.write_files(lake.events, batches, rows)
    compare = _stream_twice if with_spark else _append_and_compact
    sides = compare(console, lake, batches, rows)
    show_comparison(console, sides, batches * rows, _HOW_TO_READ_SECONDS if with_spark else "")
    show_next_steps(console, lake, PLAIN if with_spark else SIZED, SIZED)
    return all(side.exact for side in sides)


def _stream_twice(console: Console, lake: Lake, batches: int, rows: int) -> list[Side]:
    """The same files through two Structured Streaming queries: plainly appended, and with icesize, killed once."""
    expected = batches * rows
    show_line(console, "")
    show_line(console, "1. a streaming query that appends each batch as it is", "bold")
    plain_seconds = run_query(console, lake, PLAIN, "plain")
    show_line(console, "")
    show_line(console, "2. the same files with icesize; its driver is killed in the middle of a batch", "bold")
    half = (batches + 1) // 2
    seconds = run_query(console, lake, SIZED, "icesize", kill_at="files-written", nth=half)
    seconds += run_query(console, lake, SIZED, "icesize")
    return [
        Side.of("plain append (PyIceberg)", lake, PLAIN, plain_seconds, expected),
        Side.of("icesize", lake, SIZED, seconds, expected),
    ]


def _append_and_compact(console: Console, lake: Lake, batches: int, rows: int) -> list[Side]:
    """One table without Spark: filled by PyIceberg, then compacted in this process."""
    show_line(console, "")
    show_line(console, "1. PyIceberg appends each batch as it is", "bold")
    began = time.monotonic()
    table = lake.load(SIZED)
    for file in sorted(lake.events.iterdir()):
        table.append(pq.read_table(file))
        show_line(console, f"  {file.stem}: {format_count(rows, 'row')}")
    before = Side.of("plain append (PyIceberg)", lake, SIZED, time.monotonic() - began, batches * rows)
    show_line(console, "")
    show_line(console, "2. icesize compacts the table", "bold")
    began = time.monotonic()
    planned: list[Plan] = []

    def on_plan(plan: Plan) -> None:
        show_plan(console, plan)
        planned.append(plan)

    sized = open_table(None, full_name(SIZED), catalog=lake.catalog())
    with merging(console, lambda: planned[0].bytes_to_write) as progress:
        sized.compact(on_plan=on_plan, progress=progress)
    return [before, Side.of("then icesize compact", lake, SIZED, time.monotonic() - began, batches * rows)]
