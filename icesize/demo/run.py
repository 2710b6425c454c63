"""The demo from start to end, one step after the other; each step announces its content first."""

from __future__ import annotations

import shlex
import tempfile
import time
from pathlib import Path

from pyiceberg.table import Table
from rich.console import Console

from icesize.demo import events
from icesize.demo.driver import run_driver
from icesize.demo.lake import EVENTS, Lake, full_name, rows_and_exact
from icesize.demo.story import DemoOptions, Story
from icesize.demo.upserts import show_upserts
from icesize.environment import Environment
from icesize.errors import EngineUnavailable
from icesize.presentation.console import show
from icesize.presentation.progress import drawn
from icesize.presentation.views import tables
from icesize.spark.engine.launch import require_spark
from icesize.table.catalog.history import head_snapshot
from icesize.units import format_bytes, format_count

POLICY_KEY, SMALL_FILES = "icesize.policy.max-small-files", 3
"""Fewer small files may stay in an hour than by default, so that a short stream has something to merge."""
TABLE = {"write.target-file-size-bytes": str(2**18), POLICY_KEY: str(SMALL_FILES)}
"""Properties of the table. The events of an hour fill this target size: 5,000 of them are about 0.3 MiB."""
RUNS = 3
"""Runs of each query, of which the fastest counts: the first run also loads code that all runs need."""
COMMANDS = ("inspect", "plan", "compact", "versions", "history")


def run_demo(console: Console, wishes: DemoOptions) -> bool:
    """Run the demo; return True if every row is there exactly once.

    Raises EngineUnavailable without PySpark or Java, TableError for a used `path`.
    """
    if wishes.with_spark and not wishes.upserts:
        try:
            require_spark()
        except EngineUnavailable as error:
            raise EngineUnavailable(f"{error}, or run `icesize demo --no-spark`") from error
    began = time.monotonic()
    story = Story(console, Lake(Path(wishes.path or tempfile.mkdtemp(prefix="icesize-demo-")).resolve()), wishes)
    if wishes.upserts:
        return show_upserts(story)
    _goes_bad(story)
    sql = "SELECT kind, count(*) FROM events GROUP BY kind"
    hint = "Measured with all files on this disk: on an object store, each file costs a request more."
    _query(story, "small files", "What a query pays for that", sql, hint)
    _mend(story)
    _query(story, "compacted", "The same query again")
    if wishes.with_spark:
        _stream(story)
        _query(story, "after the stream", "The same query, after the stream")
    is_exact = _count_rows(story)
    story.say("")
    story.say(f"That took {time.monotonic() - began:.0f} s. The table stays in {story.lake.directory}; try", "bold")
    for name in COMMANDS:
        story.say(f"  icesize {name} {full_name(EVENTS)} --catalog-uri {shlex.quote(story.lake.uri)}")
    return is_exact


def _goes_bad(story: Story) -> None:
    wishes = story.wishes
    story.title(
        "A table gets small files",
        f"PyIceberg makes {format_count(wishes.batches, 'append')} to a table that is partitioned by hour,",
        f"{format_count(wishes.rows, 'event')} each. Some come hours late, so each append leaves small",
        "files in many hours.",
    )
    story.lake.create(EVENTS, properties=TABLE)
    table = story.lake.load(EVENTS)
    for number in range(wishes.batches):
        table.append(events.batch(number, wishes.rows))
    _show_files(story)


def _show_files(story: Story) -> None:
    """Show the chart of the table's files; all charts of a run have the scale of the largest so far."""
    inspection = story.table().inspect()
    story.say("")
    story.say(
        f"{format_count(inspection.files, 'file')} in {format_count(inspection.partitions, 'hour')}, "
        f"{format_bytes(inspection.size_bytes)}, "
        f"at most {format_count(inspection.small_files_max, 'small file')} in an hour"
    )
    story.most_files = max(story.most_files, inspection.small_files)
    show(story.console, [tables.bars(inspection, story.most_files)])


def _query(story: Story, state: str, heading: str, *explained: str) -> None:
    """Measure the query, and show its cost beside the earlier ones."""
    story.title(heading, *explained)
    for name, figure in {"": state, **measured(story.lake.load(EVENTS))}.items():
        story.figures.setdefault(name, []).append(figure)
    story.columns(story.figures)


def measured(table: Table) -> dict[str, str]:
    """Run the query on the current state of the table by PyIceberg; return its cost and its answer."""
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        rows = table.scan(selected_fields=("kind",)).to_arrow().group_by("kind").aggregate([([], "count_all")])
        seconds.append(time.perf_counter() - began)
    snapshot = head_snapshot(table.metadata)
    return {
        "manifests read": f"{len(snapshot.manifests(table.io)) if snapshot else 0:,}",
        "files opened": f"{len(list(table.scan().plan_files())):,}",
        "whole query": f"{min(seconds) * 1000:,.0f} ms",
        "events counted": f"{sum(rows['count_all'].to_pylist()):,}",
    }


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
    story.say(f"starting Spark (log: {lake.log})", "dim")
    run_driver(lake, story.say, kill_in=killed)
    story.say(f"driver killed (SIGKILL) in batch {killed}: its files are written, nothing is committed", "yellow")
    story.say("starting Spark again", "dim")
    run_driver(lake, story.say)
    _show_files(story)


def _count_rows(story: Story) -> bool:
    wishes = story.wishes
    expected = (wishes.batches + (wishes.streamed if wishes.with_spark else 0)) * wishes.rows
    through = "a compaction, a killed driver and a resumed one" if wishes.with_spark else "the compaction"
    story.title("Is every row there?", f"Each event has a number. After {through}", "each must be there exactly once.")
    return story.counted(f"rows, of {expected:,}", *rows_and_exact(story.lake.load(EVENTS), expected))
