"""The demo from start to end, one step after the other; each step announces its content first."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from icesize.demo import events, explore
from icesize.demo.driver import Batch, log_of, run_driver
from icesize.demo.lake import EVENTS, RACE_ICEBERG, RACE_ICESIZE, Lake, full_name, rows_and_exact, written_bytes
from icesize.demo.queries import SQL, measure
from icesize.demo.story import DemoOptions, Story, show_columns
from icesize.demo.upserts import show_upserts
from icesize.environment import Environment
from icesize.errors import EngineUnavailable
from icesize.presentation.console import show, show_line
from icesize.presentation.progress import drawn
from icesize.presentation.views import tables
from icesize.spark.engine.launch import java_version
from icesize.units import format_bytes, format_count

TARGET_BYTES = 2**18
"""A target size that the events of an hour fill: 5,000 of them are about 0.3 MiB."""
SMALL_FILES = 3
"""Small files that may stay in an hour: fewer than by default, so that a short stream has something to merge."""
POLICY_KEY = "icesize.policy.max-small-files"


def run_demo(console: Console, wishes: DemoOptions) -> Lake | None:
    """Run the demo; return the lake, or None if not every row is there exactly once.

    Raises EngineUnavailable without Java, TableError for a used `path`.
    """
    needs_java = wishes.iceberg_jar is not None if wishes.upserts else wishes.with_spark
    if needs_java and java_version() is None:
        raise EngineUnavailable(
            "Cannot start Spark: there is no Java runtime in JAVA_HOME or on PATH; install Java 17, "
            "or run `icesize demo --no-spark`"
        )
    began = time.monotonic()
    story = Story(console, Lake(Path(wishes.path or tempfile.mkdtemp(prefix="icesize-demo-")).resolve()), wishes)
    if wishes.upserts:
        return story.lake if show_upserts(story) else None
    _goes_bad(story)
    _query(story, "small files", "What a query pays for that")
    _mend(story)
    _query(story, "compacted", "The same query again")
    if wishes.with_spark:
        _stream(story)
        _query(story, "after the stream", "The same query, after the stream")
        if wishes.iceberg_jar:
            _race(story, wishes.iceberg_jar)
    exact = _count_rows(story)
    _show_next_steps(story, time.monotonic() - began)
    return story.lake if exact else None


def _goes_bad(story: Story) -> None:
    wishes = story.wishes
    story.title(
        "A table gets small files",
        f"PyIceberg makes {format_count(wishes.batches, 'append')} to a table that is partitioned by hour,",
        f"{format_count(wishes.rows, 'event')} each. Some come hours late, so each append leaves small",
        "files in many hours.",
    )
    story.lake.create(EVENTS, TARGET_BYTES, {POLICY_KEY: str(SMALL_FILES)})
    table = story.lake.load(EVENTS)
    for number in range(wishes.batches):
        table.append(events.batch(number, wishes.rows))
    _show_files(story)


def _show_files(story: Story) -> None:
    """Show the chart of the table's files; all charts of a run have the scale of the largest so far."""
    inspection = story.table().inspect()
    show_line(story.console, "")
    story.say(
        f"{format_count(inspection.files, 'file')} in {format_count(inspection.partitions, 'hour')}, "
        f"{format_bytes(inspection.size_bytes)}, "
        f"at most {format_count(inspection.small_files_max, 'small file')} in an hour"
    )
    story.most_files = max(story.most_files, inspection.small_files)
    show(story.console, [tables.bars(inspection, story.most_files)])


def _query(story: Story, state: str, heading: str) -> None:
    """Measure the query, and show its cost beside the earlier ones."""
    explained = (
        (
            SQL,
            "Measured with all files on this disk and in its cache: on an object store",
            "each file costs a request more.",
        )
        if not story.costs
        else ()
    )
    story.title(heading, *explained)
    story.costs.append((state, measure(story.lake.load(EVENTS))))
    costs = [cost for _, cost in story.costs]
    duckdb = [cost.duckdb_seconds for cost in costs]
    figures = {
        "": [state for state, _ in story.costs],
        "manifests read": [f"{cost.manifests:,}" for cost in costs],
        "files opened": [f"{cost.files:,}" for cost in costs],
        "planning, by PyIceberg": [f"{cost.planning_seconds * 1000:,.0f} ms" for cost in costs],
        "whole query, by PyIceberg": [f"{cost.seconds * 1000:,.0f} ms" for cost in costs],
        "whole query, by DuckDB": [f"{seconds * 1000:,.0f} ms" for seconds in duckdb if seconds is not None],
        "events counted": [f"{sum(cost.answer.values()):,}" for cost in costs],
    }
    show_columns(story, {name: row for name, row in figures.items() if len(row) == len(costs)})


def _mend(story: Story) -> None:
    console, name = story.console, full_name(EVENTS)
    story.title(f"What would be done: icesize plan {name}", "This reads what the catalog knows, and changes nothing.")
    plan = story.table().plan()
    show(console, tables.plan(plan, groups=False))
    story.title(
        f"It is done: icesize compact {name}", "One commit; readers and writers of the table continue during it."
    )
    with drawn(console) as observe:
        report = story.table(environment=Environment(observe=observe)).compact()
    show(console, tables.committed(report, plan))
    _show_files(story)


def _stream(story: Story) -> None:
    wishes, lake = story.wishes, story.lake
    killed = wishes.streamed // 2
    story.title(
        "A stream that keeps it so",
        f"Spark streams {wishes.streamed} more batches into it, through icesize: each commit holds",
        f"a batch and the merges that it makes due; {SMALL_FILES} small files may stay in an hour",
        f"({POLICY_KEY}).",
        f"In batch {killed} the driver is killed; a new one resumes from the same checkpoint.",
    )
    events.write_files(lake.events, range(wishes.batches, wishes.batches + wishes.streamed), wishes.rows)
    story.say(f"starting Spark (log: {log_of(lake, 'icesize')})", "dim")
    run_driver(lake, "icesize", lambda batch: _show_batch(story, batch), kill_in=killed)
    story.say(f"driver killed (SIGKILL) in batch {killed}: its files are written, nothing is committed", "yellow")
    story.say("starting Spark again", "dim")
    run_driver(lake, "icesize", lambda batch: _show_batch(story, batch))
    _show_files(story)


def _show_batch(story: Story, batch: Batch) -> None:
    story.say(
        f"  batch {batch['batch']:>2}  {batch['seconds']:4.1f} s  {batch['rows']:,} rows, "
        f"files +{batch['files_added']} -{batch['files_removed']}, at most {batch['small_files_max']} small in an hour"
    )


def _race(story: Story, jar: str) -> None:
    """Write the same batches with Iceberg's own writer and with icesize in one Spark session."""
    lake = story.lake
    story.title(
        "The same stream by Iceberg's own writer for Spark",
        "One Spark writes each batch into two empty tables, by Iceberg's writer and by icesize, which take turns.",
    )
    lake.create(RACE_ICESIZE, TARGET_BYTES, {POLICY_KEY: str(SMALL_FILES)})
    story.say(f"starting Spark (log: {log_of(lake, 'race')})", "dim")
    batches: list[Mapping[str, float]] = []
    run_driver(lake, "race", lambda batch: batches.append(batch["seconds"]), jar)
    counted = batches[2:] or batches
    sides = {"Iceberg's writer": ("iceberg", RACE_ICEBERG), "icesize": ("icesize", RACE_ICESIZE)}
    tables = [lake.load(table) for _, table in sides.values()]
    inspections = [story.table(table).inspect() for _, table in sides.values()]
    show_columns(
        story,
        {
            "": list(sides),
            "median of a batch": [f"{statistics.median(b[key] for b in counted):.2f} s" for key, _ in sides.values()],
            "files": [f"{i.files:,}" for i in inspections],
            "most small files in an hour": [f"{i.small_files_max:,}" for i in inspections],
            "bytes written": [format_bytes(written_bytes(table)) for table in tables],
            "rows": [f"{i.rows:,}" for i in inspections],
        },
    )
    if len(counted) < len(batches):
        story.say("The first two batches are left out: in them Spark starts its workers and compiles.", "dim")


def _count_rows(story: Story) -> bool:
    wishes = story.wishes
    expected = (wishes.batches + (wishes.streamed if wishes.with_spark else 0)) * wishes.rows
    through = "a compaction, a killed driver and a resumed one" if wishes.with_spark else "the compaction"
    story.title("Is every row there?", f"Each event has a number. After {through}", "each must be there exactly once.")
    rows, exact = rows_and_exact(story.lake.load(EVENTS), expected)
    verdict = ("exact", "green") if exact else ("NOT EXACT", "bold red")
    story.say(f"rows, of {expected:,}   {rows:,} ({verdict[0]})", verdict[1])
    return exact


def _show_next_steps(story: Story, seconds: float) -> None:
    """Print commands for the lake's table: inspect it, preview a compaction, run it."""
    show_line(story.console, "")
    show_line(story.console, f"That took {seconds:.0f} s. The table stays in {story.lake.directory}; try", "bold")
    for command in explore.commands(story.lake):
        story.say(f"  {command}")
    if story.wishes.with_spark and not story.wishes.iceberg_jar:
        story.say("  icesize demo --iceberg-jar JAR: the same stream by Iceberg's own writer, too", "dim")
    story.say("  icesize demo --explore: a Python shell with the table at the end", "dim")
